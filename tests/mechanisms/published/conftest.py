"""Lets the tests of this folder import what product prints on the way, product_steps.py, by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
