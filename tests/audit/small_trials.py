"""A small game of trials: 50 records, a network of 46 parameters, the last record in or out."""

from functools import partial
from typing import Any

import numpy as np

from dpaudit.audit.attacks.clipbkd import canary_score
from dpaudit.audit.trials.engine import Trial, TrialSetup, trial_seed
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import train

SMALL_BLOCKS = 5e-3  # seconds, in which the setup has blocks of 8


def setup(trainer: Any = train) -> TrialSetup:
    """How the models are trained and scored."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8)).astype(np.float32)
    spec = DPSGDSpec(
        architecture=Architecture("fnn", 8, 2, {"hidden": 4}),
        mechanism=Gaussian(1.0, dimension=46),
        steps=5,
        sampling_prob=0.5,
        expected_batch_size=25.0,
        learning_rate=0.5,
    )
    score = partial(canary_score, canary=x[-1], label=1)
    return TrialSetup(spec, Pool(x, rng.integers(0, 2, size=50)), score, trainer, "cpu")


def arms(trials: int, seed: int = 3) -> list[list[Trial]]:
    """Models without the last record, and models with all."""
    members = np.ones((2, 50), dtype=bool)
    members[0, -1] = False
    return [[(members[arm], trial_seed(seed, arm, trial)) for trial in range(trials)] for arm in (0, 1)]
