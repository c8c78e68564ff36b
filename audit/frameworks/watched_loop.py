"""What a training loop does with Opacus, seen while it runs.

Before Opacus scales a noisy sum of clipped gradients it has both at hand: the sum, `summed_grad`, and the noisy one,
`grad`. Their difference is the noise, a value for every weight; what a loop makes of the noisy one is its own affair. A
step must also have a batch of its own, drawn by the loader that the accountant knows of.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from dpaudit.audit.frameworks.added_noise import AddedNoise, WeakSteps, bounds
from dpaudit.audit.frameworks.opacus_training import Step
from dpaudit.audit.inputs.files import InputError

Method = Callable[..., Any]
DELAYED = 2  # batches that a loader may be ahead of the step that takes one: accelerate's draw the next one early
# to compare the noise of steps: pieces that are kept of each, their values, the most steps, and the correlation of
# noise that is the same but for rounding, which 12 independent values have in 2e-16 of all pairs
PIECES, FEWEST, COMPARED, ALIKE = 64, 12, 10_000, 0.999
GRADES = 20  # of how much noise a step lacks


@dataclass(frozen=True)
class StepNoise:
    """What a step added to the sum of clipped gradients.

    Args:
        squares: Of every weight's values, the sum of squares over that of the clipping norm.
        values: How many each weight has.
        pieces: The first few of a weight, or of several small ones, of length 1; for weights of all layers.
    """

    squares: NDArray[np.float64]
    values: NDArray[np.int64]
    pieces: tuple[torch.Tensor, ...]


@dataclass
class LoopWatch:
    """What a loop did with Opacus.

    Args:
        made: Engines, and what each returned from `make_private`.
        steps: The noise of every noisy step.
        beside: Steps of a wrapped optimizer that were not noisy.
        hooked: Whether a wrapped optimizer has hooks of its own before its steps.
        drawn: Batches that the loaders of `made` drew; None where their sampler cannot be watched.
        looked_at: Those of them that were drawn without gradients, as for an accuracy.
        ahead: Batches that worker processes of all loaders may have drawn early.
        unfed: Noisy steps before which fewer batches were drawn than steps are taken with them.
        added_up: Noisy steps that add up gradients of several batches.
        due: Noise that was added, and whose step is not taken yet; by the optimizer.
        summed: The batches, by their number, whose gradients were summed since the last noisy step.
    """

    made: list[tuple[PrivacyEngine, tuple[Any, ...]]] = field(default_factory=list)
    steps: list[StepNoise] = field(default_factory=list)
    beside: int = 0
    hooked: bool = False
    drawn: int | None = None
    looked_at: int = 0
    ahead: int = 0
    unfed: int = 0
    added_up: int = 0
    due: dict[DPOptimizer, StepNoise] = field(default_factory=dict)
    summed: set[int] = field(default_factory=set)

    def noises(self, history: Sequence[Step]) -> list[AddedNoise]:
        """The noise of all steps, in units of what an accountant's history says of each: of all weights, and of each.

        Raises:
            InputError: There were more noisy steps than the history has.
        """
        pairs = self._accounted(history)
        weights = self._shapes() if {len(step.values) for step in self.steps} == {len(self._shapes())} else []
        found = []
        for which, shape in ((slice(None), None), *((slice(i, i + 1), shape) for i, shape in enumerate(weights))):
            squares = math.fsum(float(step.squares[which].sum()) / noise**2 for step, noise in pairs)
            values = sum(int(step.values[which].sum()) for step, _ in pairs)
            where = "" if shape is None else f" to a weight of shape {' x '.join(map(str, shape)) or 1}"
            found.append(AddedNoise(squares, values, where, 2 * (1 + len(weights))))  # the other half is of the steps
        return found

    def weak_steps(self, history: Sequence[Step]) -> WeakSteps | None:
        """The steps that each got less noise than an accountant's history says of it, or none at all on a weight.

        None where no step did, or whose steps the history speaks of is not known. That FEWEST values of a weight got no
        noise at all is no chance.

        Raises:
            InputError: As `noises`.
        """
        pairs = self._accounted(history)
        places = [place for place, (_, _, count) in enumerate(history) for _ in range(count)]
        if not pairs or (len(pairs) != len(places) and len({entry[:2] for entry in history}) > 1):
            return None
        squares = np.array([step.squares.sum() / noise**2 for step, noise in pairs])
        values = np.array([step.values.sum() for step, _ in pairs])
        _, high = bounds(squares, values, 2 * len(pairs))
        bare = [bool(np.any((step.squares == 0) & (step.values >= FEWEST))) for step, _ in pairs]
        high = np.where(bare, 0.0, high)
        weak = np.flatnonzero(high < 1.0)
        if not len(weak):
            return None
        counts = Counter((places[i], math.ceil(GRADES * float(high[i])) / GRADES) for i in weak)
        return WeakSteps(counts, float(high[weak].min()), len(pairs))

    def _accounted(self, history: Sequence[Step]) -> list[tuple[StepNoise, float]]:
        """Noisy steps with the noise multipliers that an accountant's history has of them, but for those of none."""
        told = [noise for noise, _, count in history for _ in range(count)]
        if len(told) < len(self.steps):
            raise InputError(
                f"Expected the accountant to have counted all {len(self.steps)} noisy steps, not {len(told)}."
            )
        if len(told) > len(self.steps):  # whose they are is not known: the least says the least
            told = [min(told)] * len(self.steps)
        return [pair for pair in zip(self.steps, told, strict=True) if pair[1]]

    def _shapes(self) -> list[tuple[int, ...]]:
        """Of the weights; none where a record's gradient in one layer has less than the norm noise is scaled to."""
        optimizer = self.made[0][1][1] if self.made else None
        if not isinstance(optimizer, DPOptimizer) or isinstance(optimizer, DPPerLayerOptimizer):
            return []
        return [tuple(weight.shape) for weight in optimizer.params]

    def repeated(self) -> int:
        """How many of the first 10,000 steps added noise that an earlier one had added."""
        kept = [step.pieces for step in self.steps[:COMPARED]]
        again: set[int] = set()
        for piece in range(max(map(len, kept), default=0)):
            where = [number for number, pieces in enumerate(kept) if len(pieces) > piece]
            rows = torch.stack([kept[number][piece] for number in where])
            for start in range(0, len(rows), 1000):
                same = (rows[start : start + 1000] @ rows.T > ALIKE).tril(start - 1).any(dim=1)
                again.update(where[start + int(number)] for number in same.nonzero())
        return len(again)

    def check_batches(self) -> None:
        """Refuse steps whose batches the loader did not draw, or that add up several batches.

        Raises:
            InputError: Such steps.
        """
        if self.unfed:
            raise InputError(
                f"Expected each of the {len(self.steps)} noisy steps to have a batch of its own from the loader that "
                f"make_private returned: {self.unfed} of them had none, and the accountant knows of no other batches."
            )
        if self.added_up:
            raise InputError(
                f"Expected one batch a step: {self.added_up} of {len(self.steps)} noisy steps added up gradients of "
                "several batches, and a record in two of them counts twice."
            )

    def remarks(self, accounted: int, repeated: int) -> list[str]:
        """What there is to say of steps without noise, and of noise that was not seen, in sentences.

        Args:
            accounted: Steps of the accountant's.
            repeated: Of `repeated`.
        """
        said = []
        if len(self.steps) < accounted:
            said.append(
                f"Of {accounted} steps that were accounted, the noise of {len(self.steps)} was seen: what the others "
                "added is not known."
            )
        if repeated:
            said.append(
                f"{repeated} of {len(self.steps)} noisy steps added the very noise of an earlier one, which their "
                "difference is free of: no epsilon holds."
            )
        if self.hooked:
            said.append(
                "The wrapped optimizer has hooks of its own, which are called after the noise was seen: what they make "
                "of a noisy gradient is not known."
            )
        if self.beside:
            said.append(
                f"The wrapped optimizer took {self.beside} steps without noise, beside {len(self.steps)} noisy ones: "
                "on public records they cost nothing, on private records no epsilon holds."
            )
        return said


Noting = Callable[[LoopWatch, Method], Method]


@contextmanager
def watched_loop() -> Iterator[LoopWatch]:
    """Watches what is done with Opacus meanwhile: the way to what a user's function trains with."""
    seen = LoopWatch()
    with ExitStack() as stack:
        put = partial(_put, stack, seen)
        put(PrivacyEngine, "make_private", partial(_noting_made, put, {}))
        put(DataLoader, "__iter__", _noting_workers)
        for kind in _optimizers(DPOptimizer):
            for name, noting in OF_OPTIMIZERS.items():
                if name in vars(kind):
                    put(kind, name, noting)
        stack.callback(register_optimizer_step_pre_hook(partial(_note_step, seen)).remove)
        yield seen


def _put(stack: ExitStack, seen: LoopWatch, kind: type, name: str, noting: Noting) -> None:
    """Put a method that notes something in the place of a class's own, until the stack is left."""
    own, original = vars(kind).get(name), getattr(kind, name)
    setattr(kind, name, wraps(original)(noting(seen, original)))
    stack.callback(partial(delattr, kind, name) if own is None else partial(setattr, kind, name, own))


def _noting_made(put: Method, samplers: dict[int, Any], seen: LoopWatch, original: Method) -> Method:
    def make_private(self: PrivacyEngine, *arguments: Any, **options: Any) -> Any:
        parts = original(self, *arguments, **options)
        seen.made.append((self, parts))
        sampler = getattr(parts[-1], "batch_sampler", None)
        if sampler is not None:
            known = {type(item) for item in samplers.values()}
            samplers[id(sampler)] = sampler
            with suppress(TypeError):  # of a list of batches
                if type(sampler) not in known:
                    put(type(sampler), "__iter__", partial(_noting_batches, samplers))
                seen.drawn = seen.drawn or 0
        return parts

    return make_private


def _noting_batches(samplers: dict[int, Any], seen: LoopWatch, original: Method) -> Method:
    def batches(self: Any) -> Iterator[Any]:
        for batch in original(self):
            if id(self) in samplers and seen.drawn is not None:
                seen.drawn += 1
                seen.looked_at += not torch.is_grad_enabled()
            yield batch

    return batches


def _noting_workers(seen: LoopWatch, original: Method) -> Method:
    def passed(self: DataLoader[Any]) -> Any:
        seen.ahead += self.num_workers * (self.prefetch_factor or 0)
        return original(self)

    return passed


def _noting_sums(seen: LoopWatch, original: Method) -> Method:
    def clip_and_accumulate(self: DPOptimizer, *arguments: Any, **options: Any) -> Any:
        seen.summed.add((seen.drawn or 0) - seen.looked_at)
        return original(self, *arguments, **options)

    return clip_and_accumulate


def _noting_noise(seen: LoopWatch, original: Method) -> Method:
    def add_noise(self: DPOptimizer, *arguments: Any, **options: Any) -> Any:
        result = original(self, *arguments, **options)
        seen.due[self] = _noise_of_step(self)
        return result

    return add_noise


def _noting_scaled(seen: LoopWatch, original: Method) -> Method:
    """Of what follows `add_noise`, of which a loop may have one of its own."""

    def scale_grad(self: DPOptimizer, *arguments: Any, **options: Any) -> Any:
        seen.due[self] = _noise_of_step(self)
        return original(self, *arguments, **options)

    return scale_grad


OF_OPTIMIZERS: dict[str, Noting] = {
    "clip_and_accumulate": _noting_sums,
    "accumulate": _noting_sums,
    "add_noise": _noting_noise,
    "scale_grad": _noting_scaled,
}


def _note_step(seen: LoopWatch, optimizer: Any, *_: Any) -> None:
    noisy = next((wrapper for wrapper in seen.due if _wraps(wrapper, optimizer)), None)
    if noisy is None:
        seen.beside += any(_wraps(parts[1], optimizer) for _, parts in seen.made)
        return
    if seen.drawn is not None:
        early = seen.drawn - len(seen.steps)  # with this step's batch 1
        seen.unfed += early < 1
        seen.added_up += len(seen.summed) > 1 and early - seen.looked_at > DELAYED + seen.ahead
    seen.summed.clear()
    seen.hooked |= bool(optimizer._optimizer_step_pre_hooks)  # those of all optimizers, ours among them, come first
    seen.steps.append(seen.due.pop(noisy))


def _wraps(wrapper: Any, optimizer: Any) -> bool:
    """Whether an optimizer is the one inside Opacus's, or inside that one, as with accelerate."""
    inner = getattr(wrapper, "original_optimizer", None)
    while inner is not None and inner is not optimizer:
        inner = getattr(inner, "optimizer", None)
    return inner is not None


def _optimizers(kind: type) -> set[type]:
    return {kind}.union(*map(_optimizers, kind.__subclasses__()))


def _noise_of_step(wrapper: DPOptimizer) -> StepNoise:
    """What was added to the sum of gradients.

    A value whose sum was 0 and got no noise is left out, as of updates on some weights alone; so is what is not finite.
    """
    squares, values = [], []
    firsts: list[torch.Tensor] = []
    for weight in wrapper.params:
        total = getattr(weight, "summed_grad", None)
        if weight.grad is None or total is None:
            squares.append(0.0)
            values.append(0)
            continue
        total = total.view_as(weight)
        noise = (weight.grad - total).double() / float(wrapper.max_grad_norm)
        counted = noise.isfinite() & ((noise != 0) | (total != 0))
        squares.append(float(noise[counted].square().sum()))
        values.append(int(torch.count_nonzero(counted)))
        firsts.append(noise[counted].flatten()[:FEWEST].float().cpu())
    return StepNoise(np.array(squares), np.array(values), _pieces(firsts))


def _pieces(firsts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Vectors of FEWEST values and length 1, at most PIECES at equal distances; what is left over is dropped."""
    pieces, rest = [], torch.zeros(0)
    for first in firsts:
        rest = torch.cat([rest, first])
        if len(rest) >= FEWEST:
            pieces.append(rest[-FEWEST:])
            rest = rest[:0]
    chosen = np.linspace(0, len(pieces) - 1, min(PIECES, len(pieces))).round().astype(int)
    return tuple(pieces[i] / max(float(pieces[i].norm()), 1e-30) for i in chosen)
