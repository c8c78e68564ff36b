"""What a loop was seen to do with Opacus: honest ones are left alone, too little noise is seen in one training."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpaudit.audit.frameworks.added_noise import AddedNoise, bounds
from dpaudit.audit.frameworks.watched_loop import LoopWatch, watched_loop
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.user_code import remarks_silenced
from dpaudit.mechanisms import Gaussian
from dpaudit.verify import Claim, Phase, check
from dpaudit.verify.samplers import Shuffled

NOISE, CLIP = 1.3, 0.7


HISTORY = [(NOISE, 0.25, 24)]


def train(epochs: int = 6, virtual: bool = False, reduction: str = "mean", how: str = "honest") -> None:
    torch.manual_seed(3)
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(96, 20)).astype(np.float32), generator.integers(0, 3, 96)
    given = loader = DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=24)
    second = how == "same noise in the second layer"
    module: Any = nn.Sequential(nn.Linear(20, 3), nn.Linear(3, 3)) if second else nn.Linear(20, 3)
    engine = PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=module, optimizer=torch.optim.Adam(module.parameters(), lr=0.01), data_loader=loader,
        noise_multiplier=NOISE, max_grad_norm=CLIP, loss_reduction=reduction,
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    if how == "accounted after":
        optimizer.attach_step_hook(None)
    if how == "no noise on the bias":
        everywhere = optimizer.add_noise

        def elsewhere() -> None:
            everywhere()
            optimizer.params[1].grad = optimizer.params[1].summed_grad.clone()

        optimizer.add_noise = elsewhere
    if second:
        anew = optimizer.add_noise

        def again() -> None:
            anew()
            same = torch.Generator().manual_seed(5)
            for weight in optimizer.params[1:]:
                weight.grad = weight.summed_grad.view_as(weight) + NOISE * CLIP * torch.randn(
                    weight.shape, generator=same
                )

        optimizer.add_noise = again
    if how == "hooked":
        optimizer.original_optimizer.register_step_pre_hook(lambda *_: None)
    if how == "sparse":
        whole = optimizer.add_noise

        def some() -> None:
            whole()
            for weight in optimizer.params:
                weight.summed_grad.view_as(weight)[1:] = 0.0
                weight.grad[1:] = 0.0

        optimizer.add_noise = some
    if how == "no noise on the weight in one step":
        full = optimizer.add_noise

        def bare() -> None:
            full()
            if engine.accountant.history and engine.accountant.history[-1][2] == 7:
                optimizer.params[0].grad = optimizer.params[0].summed_grad.clone()
                optimizer.params[1].grad += 3 * NOISE * CLIP  # as much as 27 of the 60 values got

        optimizer.add_noise = bare
    if how.startswith("some steps"):
        usual = optimizer.add_noise
        factor = float(how.split()[-1])

        def changed() -> None:
            """Two steps get less, and the others as much more as makes up for it."""
            usual()
            step = len(engine.accountant.history) and engine.accountant.history[-1][2]
            ratio = factor if step in (7, 8) else math.sqrt((24 - 2 * factor**2) / 22)
            for weight in optimizer.params:
                total = weight.summed_grad.view_as(weight)
                weight.grad = total + ratio * (weight.grad - total)

        optimizer.add_noise = changed
    for epoch in range(epochs):
        if virtual:
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=7, optimizer=optimizer) as batches:
                for inputs, labels in batches:
                    optimizer.zero_grad()
                    criterion(module(inputs), labels).backward()
                    optimizer.step()
                    if how == "evaluating":
                        with torch.no_grad():
                            list(loader)
            continue
        for number, (inputs, labels) in enumerate(given if how == "loader from before" else loader):
            if how == "added up":
                optimizer.signal_skip_step(do_skip=number % 2 == 0)
            if how == "split by hand":
                optimizer.signal_skip_step(do_skip=True)
                optimizer.zero_grad()
                criterion(module(inputs[:5]), labels[:5]).backward()
                optimizer.step()
                optimizer.signal_skip_step(do_skip=False)
                inputs, labels = inputs[5:], labels[5:]
            optimizer.zero_grad()
            criterion(module(inputs), labels).backward()
            optimizer.step()
            if how == "same noise" and epoch > 3:
                optimizer.generator = torch.Generator().manual_seed(number)
            if how == "twice" and epoch == 0:
                optimizer.zero_grad()
                criterion(module(inputs), labels).backward()
                optimizer.step()
            if how == "accounted after":
                engine.accountant.step(noise_multiplier=NOISE, sample_rate=0.25)
            if how == "beside":
                module.disable_hooks()
                optimizer.original_optimizer.step()
                module.enable_hooks()


def seen_of(**how: Any) -> LoopWatch:
    with remarks_silenced(), watched_loop() as seen:
        train(**how)
    return seen


def claim() -> Claim:
    epsilon = check(Claim(1.0, 1e-5, [Phase(Gaussian(NOISE, CLIP), 24, 0.25)])).epsilon_upper
    return Claim(1.001 * epsilon, 1e-5, [Phase(Gaussian(NOISE, CLIP), 24, 0.25)])


@pytest.mark.parametrize(("virtual", "reduction"), [(False, "mean"), (True, "mean"), (False, "sum")])
def test_honest_loops_add_what_was_accounted(virtual: bool, reduction: str) -> None:
    watch = seen_of(virtual=virtual, reduction=reduction)
    watch.check_batches()
    assert watch.remarks(24, 0) == []
    seen = watch.noises(HISTORY)[0]
    assert seen.values == 24 * 63
    low, high = seen.interval()
    assert low < 1.0 < high
    assert high - low < 0.2
    assert seen.lacking(claim()) is None


def test_less_noise_is_seen_and_what_it_costs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DPOptimizer.add_noise

    def half(self: DPOptimizer) -> None:
        self.noise_multiplier *= 0.5
        honest(self)
        self.noise_multiplier /= 0.5

    monkeypatch.setattr(DPOptimizer, "add_noise", half)
    seen = seen_of().noises(HISTORY)[0]
    low, high = seen.interval()
    assert low < 0.5 < high < 0.56
    truth = check(Claim(1.0, 1e-5, [Phase(Gaussian(0.5 * NOISE, CLIP), 24, 0.25)])).epsilon_lower
    said, disproven = seen.lacking(claim()) or ("", False)
    assert disproven
    assert "the claim is refuted" in said
    assert 0.8 * truth < float(said.rsplit(" ", 1)[1].rstrip(".")) <= truth


def test_no_noise_and_nothing_seen() -> None:
    assert AddedNoise().interval() == (0.0, math.inf)
    assert AddedNoise().lacking(claim()) is None
    assert "the claim is refuted" in (AddedNoise(0.0, 100).lacking(claim()) or ("",))[0]


def test_the_interval_misses_as_rarely_as_it_says() -> None:
    """Of so many trainings of few values none may be missed: the binomial limit at a millionth is 0 of 2,000."""
    values = np.random.default_rng(0).normal(size=(2000, 50))
    bounds = [AddedNoise(float(row @ row), 50).interval() for row in values]
    assert all(low <= 1.0 <= high for low, high in bounds)
    assert np.mean([high for _, high in bounds]) < 2.0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("loader from before", "from the loader that make_private returned: 24 of them had none"),
        ("added up", "one batch a step: 11 of 12 noisy steps added up"),
        ("twice", "each of the 28 noisy steps to have a batch of its own"),
    ],
)
def test_steps_on_other_batches_than_were_accounted_are_refused(how: str, words: str) -> None:
    seen = seen_of(how=how)
    with pytest.raises(InputError, match=words):
        seen.check_batches()


@pytest.mark.parametrize("how", ["accounted after", "split by hand", "beside", "sparse"])
def test_honest_loops_of_other_kinds_add_what_was_accounted(how: str) -> None:
    """Steps on public records and weights of which nothing is released were taken for a lack of noise, or crashed."""
    seen = seen_of(how=how)
    seen.check_batches()
    assert len(seen.steps) == 24
    noise = seen.noises(HISTORY)[0]
    assert noise.values == 24 * (21 if how == "sparse" else 63)
    assert noise.lacking(claim()) is None
    told = "The wrapped optimizer took 24 steps without noise, beside 24 noisy ones"
    assert [remark.split(":")[0] for remark in seen.remarks(24, 0)] == ([told] if how == "beside" else [])


def test_a_loop_may_look_at_its_accuracy_between_the_parts_of_a_batch() -> None:
    """Batches that were drawn for that counted as added up, and the loop was refused."""
    seen = seen_of(virtual=True, how="evaluating")
    assert seen.looked_at > 24
    seen.check_batches()
    assert len(seen.steps) == 24


def test_noise_is_held_against_what_its_own_step_was_accounted_with() -> None:
    seen = seen_of()
    halves = seen.noises([(0.5 * NOISE, 0.25, 12), (NOISE, 0.25, 12)])[0]
    assert halves.squares == pytest.approx(
        sum(sum(step.squares) / NOISE**2 * (4 if i < 12 else 1) for i, step in enumerate(seen.steps))
    )
    low, high = seen.noises([(NOISE, 0.25, 20), (0.5 * NOISE, 0.25, 30)])[0].interval()  # whose steps, is not known
    assert low < 2.0 < high
    with pytest.raises(InputError, match="counted all 24 noisy steps, not 23"):
        seen.noises([(NOISE, 0.25, 23)])


def test_noise_that_is_added_again_is_told() -> None:
    """Passes five and six draw from generators of equal seeds; the last step of six has a generator of its own."""
    seen = seen_of(how="same noise")
    assert seen.repeated() == 3
    [told] = seen.remarks(24, 3)
    assert told.startswith("3 of 24 noisy steps added the very noise of an earlier one")
    assert seen_of().repeated() == 0
    assert seen_of(how="same noise in the second layer").repeated() == 23


def test_what_hooks_make_of_a_noisy_gradient_is_not_known() -> None:
    [told] = seen_of(how="hooked").remarks(24, 0)
    assert told.startswith("The wrapped optimizer has hooks of its own")


def test_noise_that_lacks_on_one_weight_alone_is_seen_there() -> None:
    """3 of 63 values: of all of them the noise is .98 of what was accounted, which may be chance."""
    whole, weight, bias = seen_of(how="no noise on the bias").noises(HISTORY)
    assert (whole.lacking(claim()), weight.lacking(claim())) == (None, None)
    told, disproven = bias.lacking(claim()) or ("", False)
    assert disproven
    assert told.startswith("The noise that the optimizer was seen to add to a weight of shape 3 has 0 to 0 of the")
    assert [noise.lacking(claim()) for noise in seen_of().noises(HISTORY)] == [None] * 3


@pytest.mark.parametrize(
    ("how", "refuted", "words"),
    [
        ("some steps with 0", True, "in 2 of 24 steps has less than the standard deviation that was accounted, none"),
        ("some steps with 0.5", False, "these steps alone do not refute the claim"),
    ],
)
def test_noise_that_lacks_in_some_steps_is_seen_there(how: str, refuted: bool, words: str) -> None:
    """As others make up for it, the noise of all steps is what was accounted."""
    seen = seen_of(how=how)
    assert all(noise.lacking(claim()) is None for noise in seen.noises(HISTORY))
    weak = seen.weak_steps(HISTORY)
    assert weak is not None
    assert weak.least == 0.0 if refuted else 0.5 <= weak.least < 1.0
    told, disproven = weak.lacking(claim(), 0.25, True)
    assert (disproven, words in told) == (refuted, True), told
    shuffled = replace(claim(), phases=[Phase(Gaussian(NOISE, CLIP), sampler=Shuffled(4, 6))])
    told, disproven = weak.lacking(shuffled, 0.25, False)
    assert disproven == refuted
    assert (
        "with probability 0.25 or more: no epsilon holds"
        if refuted
        else "what that costs with such batches is not known"
    ) in told
    assert weak.lacking(replace(shuffled, delta=0.3), 0.25, False)[1] is False


def test_one_weight_without_noise_in_one_step_is_seen_there() -> None:
    seen = seen_of(how="no noise on the weight in one step")
    assert all(noise.lacking(claim()) is None for noise in seen.noises(HISTORY))
    for history in (HISTORY, [(NOISE, 0.25, 25)]):  # one more step was accounted
        weak = seen.weak_steps(history)
        assert weak is not None
        assert (weak.least, sum(weak.counts.values())) == (0.0, 1)
        assert weak.lacking(claim(), 0.25, True)[1]


@pytest.mark.parametrize("how", ["honest", "some steps with 0.9", "sparse", "beside"])
def test_no_step_is_accused_that_may_have_had_its_noise(how: str) -> None:
    seen = seen_of(how=how)
    assert seen.weak_steps(HISTORY) is None
    assert seen.weak_steps([(NOISE, 0.25, 30)]) is None  # of one noise, whose step it is does not matter
    assert seen.weak_steps([(NOISE, 0.25, 20), (NOISE / 9, 0.25, 10)]) is None  # whose steps, is not known
    with pytest.raises(InputError, match="counted all 24 noisy steps, not 23"):
        seen.weak_steps([(NOISE, 0.25, 23)])


def test_bounds_on_many_ratios_are_wrong_as_rarely_as_they_say() -> None:
    """At 1e-6 for all of 100,000 together none may be wrong, and 1,000 values still tell .8 from 1."""
    generator = np.random.default_rng(1)
    low, high = bounds(generator.chisquare(1000, 100_000), np.full(100_000, 1000), 100_000)
    assert np.all((low <= 1.0) & (high >= 1.0))
    assert bounds(np.array([0.64 * 1000]), np.array([1000]), 100_000)[1] < 1.0
    assert [float(end[0]) for end in bounds(np.zeros(1), np.zeros(1, dtype=int), 1)] == [0.0, math.inf]
