"""Noise and clips that change from step to step: against the plain loop, and accounted phase by phase."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference import DEVICE, clipped, first_module, flat, noise_vector, poisson_batch, record_gradient, train_one
from torch import nn

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import Mechanism, at_clip
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.schedule import Decay, occurrences, step_mechanisms
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import train
from dpaudit.mechanisms.registry import MECHANISMS
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.results import Verdict

INPUTS, CLASSES, RECORDS, STEPS = 10, 3, 30, 4
BASE = Laplace(0.2, clip=1.0)
CHANGING = {"clip": [1.0, 0.5, 0.25, 0.5], "scale": [0.2, 0.1, 0.4, 0.1]}


def own(inputs: int, classes: int) -> nn.Module:
    return nn.Linear(inputs, classes)


def pool(inputs: int = INPUTS) -> Pool:
    rng = np.random.default_rng(1)
    return Pool(2 * rng.normal(size=(RECORDS, inputs)).astype(np.float32), rng.integers(0, CLASSES, RECORDS))


def specification(**changes: object) -> DPSGDSpec:
    spec = DPSGDSpec(
        architecture=Architecture("linear", INPUTS, CLASSES), mechanism=BASE, steps=STEPS, sampling_prob=0.5,
        expected_batch_size=15.0, learning_rate=0.7, schedule=step_mechanisms(BASE, STEPS, CHANGING),
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", [Architecture("linear", INPUTS, CLASSES), Architecture("cnn", 196, CLASSES)])
def test_training_is_the_plain_loop_with_each_steps_own_clip_and_noise(architecture: Architecture) -> None:
    spec, members = specification(architecture=architecture), np.ones((2, RECORDS), dtype=bool)
    members[1, ::3] = False
    data = pool(architecture.inputs)
    models = train(spec, data, members, [8, 9])
    assert (models.ledger.clip, models.ledger.releases) == (1.0, (3, 1))
    for model, seed in enumerate((8, 9)):
        got = flat(models, model)
        np.testing.assert_allclose(got, plain_loop(spec, data, members[model], seed), atol=1e-4, rtol=1e-4)
        unchanged = train_one(replace(spec, schedule=()), data, members[model], seed)
        assert np.abs(got - unchanged).max() > 1e-2


def plain_loop(spec: DPSGDSpec, data: Pool, members: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    """One record at a time."""
    module, streams = first_module(spec, seed).double(), Streams(seed, DEVICE)
    parameters = list(module.parameters())
    x, y = torch.from_numpy(data.x).double(), torch.from_numpy(data.y)
    weights = nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    for clip, scale in zip(CHANGING["clip"], CHANGING["scale"], strict=True):
        drawn = poisson_batch(streams, RECORDS, spec.sampling_prob)
        total = noise_vector(Laplace(scale), streams, len(weights))
        for i in (i for i in drawn if members[i]):
            total += clipped(record_gradient(module, x[i], y[i]), clip, 2.0)
        weights -= spec.learning_rate / spec.expected_batch_size * total
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.from_numpy(weights), parameters)
    return weights


def test_the_ledger_counts_every_mechanism_of_the_schedule() -> None:
    spec = specification()
    ledger = train(spec, pool(), np.ones((1, RECORDS), dtype=bool), [1]).ledger
    assert ledger.releases == (3, 1)  # the ratio is 0.2, but for the third step, where it is 1.6
    assert ledger.noise_draws == STEPS
    assert ledger.clip == 1.0
    assert list(occurrences(spec.schedule).values()) == [3, 1]


def test_a_schedule_that_changes_nothing_gives_the_same_bits() -> None:
    members = np.ones((2, RECORDS), dtype=bool)
    plain = train(specification(schedule=()), pool(), members, [1, 2])
    same = train(specification(schedule=(BASE,) * STEPS), pool(), members, [1, 2])
    assert all(tensor.equal(same.parameters[name]) for name, tensor in plain.parameters.items())
    assert plain.ledger == same.ledger


def test_only_the_ratio_of_noise_to_clip_is_accounted() -> None:
    """Clips and scales halved together cost the same; a ratio that really falls costs more."""
    same, halved, cheaper = (
        step_mechanisms(Laplace(4.0), 20, curves)
        for curves in (
            {"clip": [1.0] * 20},
            {"clip": Decay(1.0, 0.125, 4), "scale": Decay(4.0, 0.5, 4)},
            {"scale": Decay(4.0, 2.0, 4)},
        )
    )

    def verdict(steps: Sequence[Mechanism], phases: int) -> Verdict:
        history = [Phase(mechanism, count, 0.1) for mechanism, count in occurrences(steps).items()]
        assert len(history) == phases
        return check(Claim(2.0, 1e-5, history))

    constant, together, falling = verdict(same, 1), verdict(halved, 1), verdict(cheaper, 4)
    apart = check(Claim(2.0, 1e-5, [Phase(mechanism, 5, 0.1) for mechanism in dict.fromkeys(halved)]))
    assert together.epsilon_upper == pytest.approx(constant.epsilon_upper, rel=1e-12)
    assert together.epsilon_upper == pytest.approx(apart.epsilon_upper, rel=1e-6)
    assert together.epsilon_lower == pytest.approx(apart.epsilon_lower, rel=0.01)
    assert falling.epsilon_lower > constant.epsilon_upper


@pytest.mark.parametrize("name", MECHANISMS)
def test_clip_and_noise_multiplied_together_are_one_phase_and_nothing_else_is(name: str) -> None:
    """For every registered mechanism, by its loss: scaled outputs and shifts have the loss of the unscaled ones."""
    kind, length = MECHANISMS[name], 1.7
    typical = {key: math.sqrt(domain.typical[0] * domain.typical[1]) for key, domain in kind.domains.items()}
    base = kind(**typical, clip=0.5, dimension=3)
    rng = np.random.default_rng(2)
    outputs, shift = base.sample(rng, 20), np.array([0.3, 0.0, -0.4])

    def same_law(other: Mechanism) -> bool:
        return bool(
            np.allclose(other.privacy_loss(length * outputs, length * shift), base.privacy_loss(outputs, shift))
        )

    scaled = [
        other
        for key in kind.domains
        for power in (-1, 0, 1)
        if same_law(other := replace(base, clip=length * 0.5, **{key: typical[key] * length**power}))
    ]
    assert scaled  # Gaussian noise is in units of clip, the others have one absolute scale
    assert same_law(at_clip(base, length * 0.5))
    for other in scaled:
        assert occurrences([base, other, base]) in ({base: 3}, {other: 3})
    for change in ({"clip_norm": 1.5}, {"dimension": 4}, *({key: 1.1 * value} for key, value in typical.items())):
        other = replace(scaled[0], **change)
        assert occurrences([base, other, base]) == {base: 2, other: 1}


def test_equal_ratios_are_told_from_nearly_equal_ones() -> None:
    """0.3/0.1 rounds to 2.9999999999999996, 3 but for the last place; 1e-12 more is another ratio."""
    base, rounded = Laplace(3.0), Laplace(0.3, clip=0.1)
    assert rounded.scale / rounded.clip < 3.0
    assert occurrences([base, rounded]) == {rounded: 2}  # the smaller ratio, which costs more
    other = Laplace(3.0 * (1 + 1e-12), clip=1.0)
    assert occurrences([base, rounded, other]) == {rounded: 2, other: 1}
    extreme = [Laplace(1e300, clip=1e-100), Laplace(1e299, clip=1e-101)]
    assert len(occurrences(extreme)) == 2  # both ratios overflow


def test_a_gaussian_schedule_costs_the_sum_of_its_squared_ratios() -> None:
    """Without sampling mu^2 adds up over the steps (Dong, Roth and Su 2022, Corollary 3.3)."""
    schedule = step_mechanisms(Gaussian(1.0), 6, {"noise_multiplier": [2.0, 2.0, 4.0, 4.0, 8.0, 8.0]})
    history = [Phase(mechanism, count) for mechanism, count in occurrences(schedule).items()]
    mu = np.sqrt(sum(1 / m.noise_multiplier**2 for m in schedule))  # type: ignore[attr-defined]
    several, one = check(Claim(1.0, 1e-5, history)), check(Claim(1.0, 1e-5, [Phase(Gaussian(1 / mu))]))
    assert several.epsilon_upper == pytest.approx(one.epsilon_upper, rel=1e-9)


@pytest.mark.parametrize(
    ("curves", "reason"),
    [
        ({"sigma": [1.0] * 4}, r"Expected schedule\.sigma to be one of scale, clip, which laplace has"),
        ({"clip_norm": [2.0] * 4}, r"Expected schedule\.clip_norm to be one of"),
        ({"clip": [1.0] * 3}, r"Expected schedule\.clip of 3 numbers to have one for each of 4"),
        ({"clip": [1.0, 1.0, -1.0, 1.0]}, r"schedule, step 2: Expected clip=-1\.0 in \(0, inf\)"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(curves: dict[str, list[float]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        step_mechanisms(BASE, 4, curves)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": 5}, "Expected a schedule of 4 mechanisms to have"),
        (
            {"architecture": Architecture("own", INPUTS, 3, build=own)},
            "Expected a schedule with linear, fnn or cnn only",
        ),
        ({"schedule": (BASE, BASE, BASE, Laplace(1.0, clip_norm=1.0))}, r"Expected one clip_norm .*\[1\.0, 2\.0\]"),
        ({"schedule": (*[BASE] * 3, Laplace(1.0, dimension=5))}, "Expected dimension=5 to be 33"),
    ],
)
def test_a_spec_whose_schedule_does_not_fit_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        train(specification(**changes), pool(), np.ones((1, RECORDS), dtype=bool), [1])  # type: ignore[arg-type]
