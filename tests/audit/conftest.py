"""Lets the tests of this folder import small_trials.py by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
