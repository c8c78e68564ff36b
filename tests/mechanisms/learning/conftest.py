"""Lets the tests of this folder import their oracle, reference.py, by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
