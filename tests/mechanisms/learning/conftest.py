"""Lets the tests of this folder import their oracle, reference.py, by name, and trains where it says."""

import inspect
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from reference import DEVICE

if DEVICE.type != "cpu":
    from dpaudit.mechanisms.learning import convolution, ensemble, opacus_path, training

    for path in (convolution, ensemble, opacus_path, training):
        inspect.unwrap(path.train).__kwdefaults__["device"] = DEVICE.type
