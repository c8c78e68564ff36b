"""Lets the tests of this folder import buffers.py (what a buffer of records does) and ball_moments.py by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
