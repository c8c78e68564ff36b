"""Noise that Opacus's optimizer was seen to add, against what its accountant was told.

When torch's optimizer takes its step, Opacus has both at hand: the sum of clipped gradients, `summed_grad`, and what it
made of it, `grad`, the noisy sum over the batch size. Their difference is the noise, a value for every weight. Over all
steps, with every value divided by the standard deviation that the accountant counted, the sum of N squares is rho^2
times a chi-square variable of N degrees of freedom if normal noise of rho times that deviation was added, independent
from value to value. That gives an interval for rho from a single training.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from scipy.stats import chi2
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim

MISSED = 1e-6  # probability that an interval does not hold the ratio


@dataclass
class AddedNoise:
    """Noise that was seen, in units of the standard deviation that was accounted.

    Args:
        squares: Sum of the squares of all values.
        values: How many.
    """

    squares: float = 0.0
    values: int = 0

    def interval(self) -> tuple[float, float]:
        """Bounds on the ratio of the noise's standard deviation to the accounted one, wrong with probability MISSED."""
        if not self.values:
            return 0.0, math.inf
        low, high = chi2.ppf([1.0 - MISSED / 2.0, MISSED / 2.0], self.values)
        return math.sqrt(self.squares / low), math.sqrt(self.squares / high)

    def lacking(self, claim: Claim) -> str | None:
        """What there is to say of too little noise, in a sentence; None where it is not less than what was accounted.

        Args:
            claim: On the training as it was accounted, Gaussian noise.
        """
        low, high = self.interval()
        if not high < 1.0:
            return None
        seen = (
            f"The noise that the optimizer was seen to add has {low:.4g} to {high:.4g} of the standard deviation that "
            f"was accounted ({self.values:,} values of one training)"
        )
        phases = []
        for phase in claim.phases:
            assert isinstance(phase.mechanism, Gaussian)
            noise = replace(phase.mechanism, noise_multiplier=max(phase.mechanism.noise_multiplier * high, 1e-6))
            phases.append(replace(phase, mechanism=noise))
        found = check(replace(claim, phases=phases))
        if found.verdict != "refuted":
            return f"{seen}; with that noise the claim is {found.verdict}."
        return f"{seen}; with that noise the claim is refuted: epsilon is at least {found.epsilon_lower * 0.9995:.4g}."


@contextmanager
def noise_seen(made: Sequence[tuple[PrivacyEngine, tuple[Any, ...]]]) -> Iterator[AddedNoise]:
    """Collects the noise of the steps that are taken meanwhile.

    Args:
        made: What engines returned from `make_private` so far; it may grow.
    """
    seen = AddedNoise()

    def look(optimizer: Any, *arguments: Any) -> None:
        for engine, (_, wrapper, *_) in made:
            if not isinstance(wrapper, DPOptimizer) or wrapper.original_optimizer is not optimizer:
                continue
            scale = 1.0
            if wrapper.loss_reduction == "mean":
                scale = float(wrapper.expected_batch_size) * wrapper.accumulated_iterations
            told = float(engine.accountant.history[-1][0]) * float(wrapper.max_grad_norm)
            for weight in wrapper.params:
                if weight.grad is None or getattr(weight, "summed_grad", None) is None:
                    continue
                noise = (weight.grad * scale - weight.summed_grad.view_as(weight)).double() / told
                seen.squares += float(noise.square().sum())
                seen.values += noise.numel()

    handle = register_optimizer_step_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()
