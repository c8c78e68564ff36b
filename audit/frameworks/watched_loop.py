"""What a training loop does with Opacus, seen while it runs.

When torch's optimizer takes its step, Opacus has both at hand: the sum of clipped gradients, `summed_grad`, and what it
made of it, `grad`, the noisy sum over the batch size. Their difference is the noise, a value for every weight. A step
must also have a batch of its own, drawn by the loader that the accountant knows of.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpaudit.audit.frameworks.added_noise import AddedNoise
from dpaudit.audit.frameworks.opacus_training import Step
from dpaudit.audit.inputs.files import InputError

Method = Callable[..., Any]


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
        due: Optimizers that have added noise and not taken their step yet; by identity.
        splitting: Whether the BatchMemoryManager is at work.
    """

    made: list[tuple[PrivacyEngine, tuple[Any, ...]]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    beside: int = 0
    skipped_by_hand: int = 0
    drawn: dict[int, int] = field(default_factory=dict)
    passes: int = 0
    due: set[int] = field(default_factory=set)
    splitting: bool = False

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


Noting = Callable[[LoopWatch, Method], Method]


@contextmanager
def watched_loop() -> Iterator[LoopWatch]:
    """Watches what is done with Opacus meanwhile: the way to what a user's function trains with."""
    seen = LoopWatch()
    with ExitStack() as stack:
        put = partial(_put, stack, seen)
        put(PrivacyEngine, "make_private", partial(_noting_made, put, set()))
        put(BatchSplittingSampler, "__iter__", _noting_splits)
        put(DPOptimizer, "signal_skip_step", _noting_skips)
        for kind in _optimizers(DPOptimizer):
            for name in {"pre_step", "add_noise"} & vars(kind).keys():
                put(kind, name, _noting_noise)
        stack.callback(register_optimizer_step_pre_hook(partial(_note_step, seen)).remove)
        yield seen


def _put(stack: ExitStack, seen: LoopWatch, kind: type, name: str, noting: Noting) -> None:
    """Put a method that notes something in the place of a class's own, until the stack is left."""
    own = vars(kind).get(name)
    setattr(kind, name, noting(seen, getattr(kind, name)))
    stack.callback(partial(delattr, kind, name) if own is None else partial(setattr, kind, name, own))


def _noting_made(put: Callable[..., None], counted: set[type], seen: LoopWatch, original: Method) -> Method:
    def make_private(self: PrivacyEngine, *arguments: Any, **options: Any) -> Any:
        parts = original(self, *arguments, **options)
        seen.made.append((self, parts))
        sampler = getattr(parts[-1], "batch_sampler", None)
        if sampler is not None:
            seen.drawn[id(sampler)] = 0
            if type(sampler) not in counted:
                counted.add(type(sampler))
                put(type(sampler), "__iter__", _noting_batches)
        return parts

    return make_private


def _noting_batches(seen: LoopWatch, original: Method) -> Method:
    def batches(self: Any) -> Iterator[Any]:
        seen.passes += id(self) in seen.drawn
        for batch in original(self):
            if id(self) in seen.drawn:
                seen.drawn[id(self)] += 1
            yield batch

    return batches


def _noting_splits(seen: LoopWatch, original: Method) -> Method:
    def parts(self: BatchSplittingSampler) -> Iterator[Any]:
        left = original(self)
        while True:
            seen.splitting = True
            try:
                part = next(left, None)
            finally:
                seen.splitting = False
            if part is None:
                return
            yield part

    return parts


def _noting_skips(seen: LoopWatch, original: Method) -> Method:
    def signal_skip_step(self: DPOptimizer, do_skip: bool = True) -> Any:  # as Opacus's own
        seen.skipped_by_hand += bool(do_skip) and not seen.splitting
        return original(self, do_skip)

    return signal_skip_step


def _noting_noise(seen: LoopWatch, original: Method) -> Method:
    """Of `add_noise`, and of `pre_step`, which returns whether it called that: a loop may have one of its own."""

    def noisy(self: DPOptimizer, *arguments: Any, **options: Any) -> Any:
        result = original(self, *arguments, **options)
        if result is not False:
            seen.due.add(id(self))
        return result

    return noisy


def _note_step(seen: LoopWatch, optimizer: Any, *_: Any) -> None:
    for _, parts in seen.made:
        wrapper = parts[1]
        if isinstance(wrapper, DPOptimizer) and wrapper.original_optimizer is optimizer:
            if id(wrapper) in seen.due:
                seen.due.discard(id(wrapper))
                seen.steps.append(_noise_of_step(wrapper))
            else:
                seen.beside += 1


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
