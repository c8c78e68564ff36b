"""What a training loop does with Opacus, seen while it runs, against what its accountant was told.

When torch's optimizer takes its step, Opacus has both at hand: the sum of clipped gradients, `summed_grad`, and what it
made of it, `grad`, the noisy sum over the batch size. Their difference is the noise, a value for every weight. Over all
steps, with every value divided by the standard deviation that the accountant counted, the sum of N squares is rho^2
times a chi-square variable of N degrees of freedom if normal noise of rho times that deviation was added, independent
from value to value. That gives an interval for rho from a single training.

A step must also have a batch of its own, drawn by the loader that the accountant knows of.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from scipy.stats import chi2
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpaudit.audit.frameworks.opacus_training import Step
from dpaudit.audit.inputs.files import InputError
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

    def lacking(self, claim: Claim) -> tuple[str, bool] | None:
        """What there is to say of too little noise, in a sentence, and whether the claim is refuted with it.

        None where it is not less than what was accounted.

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
            return f"{seen}; with that noise the claim is {found.verdict}.", False
        least = f"{found.epsilon_lower * 0.9995:.4g}"
        return f"{seen}; with that noise the claim is refuted: epsilon is at least {least}.", True


@dataclass
class LoopWatch:
    """What a loop did with Opacus.

    Args:
        made: Engines, and what each returned from `make_private`.
        steps: Of every noisy step, the sum of squares of its noise over the clipping norm, and how many values.
        beside: Steps of a wrapped optimizer that were not noisy.
        skipped_by_hand: Times that `signal_skip_step` asked, not for the BatchMemoryManager, to add up gradients.
        drawn: Of every batch sampler of a loader, the batches drawn; by its identity.
        passes: How often such a sampler was begun.
    """

    made: list[tuple[PrivacyEngine, tuple[Any, ...]]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    beside: int = 0
    skipped_by_hand: int = 0
    drawn: dict[int, int] = field(default_factory=dict)
    passes: int = 0

    def noise(self, history: Sequence[Step]) -> AddedNoise:
        """The noise of all steps, in units of what an accountant's history says of each.

        Raises:
            InputError: There were more noisy steps than the history has.
        """
        told = [noise for noise, _, count in history for _ in range(count)]
        if len(told) < len(self.steps):
            raise InputError(
                f"Expected the accountant to have counted all {len(self.steps)} noisy steps, not {len(told)}."
            )
        if len(told) > len(self.steps):  # whose they are is not known: the least says the least
            told = [min(told)] * len(self.steps)
        squares = sum(seen / noise**2 for (seen, _), noise in zip(self.steps, told, strict=True) if noise)
        return AddedNoise(squares, sum(values for (_, values), noise in zip(self.steps, told, strict=True) if noise))

    def check_batches(self, loader: Any) -> None:
        """Refuse steps whose batches the loader did not draw, or that add up several batches.

        Raises:
            InputError: Such steps.
        """
        drawn = self.drawn.get(id(loader.batch_sampler))
        steps = len(self.steps)
        if drawn is None:
            return
        if drawn < steps:
            raise InputError(
                f"Expected each of the {steps} noisy steps to have a batch of its own from the loader that "
                f"make_private returned, which drew {drawn}: its accountant knows of no other batches."
            )
        ahead = self.passes * loader.num_workers * (loader.prefetch_factor or 0)  # drawn, and perhaps never used
        if self.skipped_by_hand and drawn > steps + ahead:
            raise InputError(
                f"Expected one batch a step, not {drawn} in {steps} steps: gradients of several batches were added up "
                "before a step, and a record in two of them counts twice."
            )

    def remark(self) -> str | None:
        """What there is to say of steps without noise, in a sentence."""
        if not self.beside:
            return None
        return (
            f"The wrapped optimizer took {self.beside} steps without noise, beside {len(self.steps)} noisy ones: on "
            "public records they cost nothing, on private records no epsilon holds."
        )


@contextmanager
def watched_loop() -> Iterator[LoopWatch]:
    """Watches what is done with Opacus meanwhile: the way to what a user's function trains with."""
    seen, due, splitting = LoopWatch(), set[int](), [False]  # due: optimizers that have added noise

    def make_private(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: PrivacyEngine, *arguments: Any, **options: Any) -> Any:
            parts = original(self, *arguments, **options)
            seen.made.append((self, parts))
            sampler = getattr(parts[-1], "batch_sampler", None)
            if sampler is not None:
                seen.drawn[id(sampler)] = 0
                if type(sampler) not in counted:
                    counted.add(type(sampler))
                    put(type(sampler), "__iter__", batches)
            return parts

        return noted

    def batches(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any) -> Iterator[Any]:
            seen.passes += id(self) in seen.drawn
            for batch in original(self):
                if id(self) in seen.drawn:
                    seen.drawn[id(self)] += 1
                yield batch

        return noted

    def split(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any) -> Iterator[Any]:
            parts = original(self)
            while True:
                splitting[0] = True
                try:
                    part = next(parts, None)
                finally:
                    splitting[0] = False
                if part is None:
                    return
                yield part

        return noted

    def skip(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: DPOptimizer, do_skip: bool = True) -> Any:  # as Opacus's own
            seen.skipped_by_hand += bool(do_skip) and not splitting[0]
            return original(self, do_skip)

        return noted

    def noisy(original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `add_noise`, and of `pre_step`, which says whether it has added it."""

        def noted(self: DPOptimizer, *arguments: Any, **options: Any) -> Any:
            result = original(self, *arguments, **options)
            if result is not False:
                due.add(id(self))
            return result

        return noted

    def look(optimizer: Any, *_: Any) -> None:
        for _, parts in seen.made:
            wrapper = parts[1]
            if isinstance(wrapper, DPOptimizer) and wrapper.original_optimizer is optimizer:
                if id(wrapper) in due:
                    due.discard(id(wrapper))
                    seen.steps.append(_noise_of_step(wrapper))
                else:
                    seen.beside += 1

    counted: set[type] = set()
    with ExitStack() as stack:

        def put(kind: type, name: str, change: Callable[..., Any]) -> None:
            original = vars(kind).get(name)
            changed = change(getattr(kind, name))
            setattr(kind, name, changed)
            stack.callback(lambda: delattr(kind, name) if original is None else setattr(kind, name, original))

        put(PrivacyEngine, "make_private", make_private)
        put(BatchSplittingSampler, "__iter__", split)
        put(DPOptimizer, "signal_skip_step", skip)
        for kind in _optimizers(DPOptimizer):
            for name in {"pre_step", "add_noise"} & vars(kind).keys():
                put(kind, name, noisy)
        stack.callback(register_optimizer_step_pre_hook(look).remove)
        yield seen


def _optimizers(kind: type) -> set[type]:
    return {kind}.union(*map(_optimizers, kind.__subclasses__()))


def _noise_of_step(wrapper: DPOptimizer) -> tuple[float, int]:
    """Sum of squares of what was added to the sum of gradients, over the clipping norm, and how many values it has.

    A weight whose sum was 0 and got no noise is left out: nothing was released of it, as with sparse updates.
    """
    averaged = wrapper.loss_reduction == "mean"
    scale = float(wrapper.expected_batch_size) * wrapper.accumulated_iterations if averaged else 1.0
    squares, values = 0.0, 0
    for weight in wrapper.params:
        total = getattr(weight, "summed_grad", None)
        if weight.grad is None or total is None:
            continue
        noise = (weight.grad * scale - total.view_as(weight)).double() / float(wrapper.max_grad_norm)
        squares += float(noise.square().sum())
        values += int(((noise != 0) | (total.view_as(weight) != 0)).sum())
    return squares, values
