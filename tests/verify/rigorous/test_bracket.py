"""The two engines' brackets overlap on claims of the papers, which have certificates; missing theorems are named."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flint")

from scipy.integrate import quad

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim, Phase, Verdict, check
from dpaudit.verify.claim_files import load_claims
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.correlated import Correlation, Participation, Tree
from dpaudit.verify.rigorous.balls import Unavailable
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket, upper_proof
from dpaudit.verify.rigorous.certificates import NotCovered, certificate
from dpaudit.verify.rigorous.check_sampled_certificate import accepted
from dpaudit.verify.rigorous.choices import chosen_event
from dpaudit.verify.rigorous.events import Event, LabelledSum
from dpaudit.verify.samplers import (
    SAMPLERS,
    BallsInBins,
    RandomAllocation,
    Shuffled,
    WithoutReplacement,
    sampler_from_dict,
)

ROOT = Path(__file__).parents[3]
CLAIMS = ROOT / "reports" / "claims"
CLOSEST = "lap2-code-b70"  # certified at .85 of the claimed delta in floating point, .89 in balls
TREE = Correlation(Tree(nodes="all"), Participation("min-sep", separation=4))
FAST = ("gg-b2-beta1.5-n100", "gg-b2-beta4-n1")
# claims that differ in name only are one question, asked once
QUESTIONS: dict[Claim, list[str]] = defaultdict(list)
for path in sorted(CLAIMS.glob("*.toml")):
    for claim in load_claims(path):
        QUESTIONS[replace(claim, id="", source="")].append(claim.id)
# four to fifty seconds each, which `dpaudit register check` and benchmarks/rigorous.py take; product noise in balls has
# tests of its own
DEAR = {"plrvo-table2-row1-shared", *(name for names in QUESTIONS.values() for name in names if "product" in name)}


def overlaps(found: RigorousBracket | Unavailable, fast: Verdict) -> None:
    assert isinstance(found, RigorousBracket)
    assert found.delta_lower <= fast.delta_upper
    assert fast.delta_lower <= found.delta_upper
    assert found.delta_lower <= found.delta_upper
    assert found.epsilon_lower <= found.epsilon_upper


@pytest.mark.parametrize("name", FAST)
def test_brackets_overlap(name: str, checked: Callable[[Claim], Verdict]) -> None:
    [claim] = [question for question, names in QUESTIONS.items() if name in names]
    fast = checked(claim)
    overlaps(rigorous_bracket(claim, fast.witness), fast)


def drawn() -> list[Any]:
    """One question of every noise and kind of sampling but dear ones; `benchmarks/rigorous.py` asks all."""
    kinds = defaultdict(list)
    for question, names in QUESTIONS.items():
        if not DEAR & {*names}:
            phase = question.phases[0]
            noise, alone = phase.mechanism, phase.mechanism.dimension == 1
            kinds[noise.name, alone, phase.sampling_kind, phase.steps > 1].append(names)
    chosen = [random.Random(1).choice(found) for found in kinds.values()]
    closest = [names for names in QUESTIONS.values() if CLOSEST in names]
    return [pytest.param(row[0], id=row[1][0]) for row in QUESTIONS.items() if row[1] in chosen + closest]


@pytest.mark.slow
@pytest.mark.parametrize("question", drawn())
def test_both_engines_and_the_checker_on_claims_of_the_tables(
    question: Claim, checked: Callable[[Claim], Verdict]
) -> None:
    fast = checked(question)
    overlaps(rigorous_bracket(question, fast.witness), fast)
    if fast.verdict != "undecided":
        made = certificate(question, fast)
        assert not isinstance(made, NotCovered)
        assert accepted(json.dumps(made)).startswith(fast.verdict)


@pytest.mark.parametrize(
    ("claim", "word"),
    [
        (Claim.single(GeneralizedGaussian(3.0, 2.0, dimension=9), epsilon=1.0, delta=1e-5), "generalized-gaussian"),
        (Claim.single(Product(3.0, dimension=9), epsilon=1.0, delta=1e-5, steps=3), "product"),
    ],
)
def test_a_missing_upper_bound_is_named(claim: Claim, word: str) -> None:
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert found.delta_upper == 1.0
    assert word in found.theorem


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(
    "other",
    [
        Phase(Gaussian(0.5), 50, 0.01, "shuffled"),  # a rate alone
        Phase(Gaussian(5.0), 12, correlation=TREE),
    ],
    ids=["rate", "correlated"],
)
def test_a_phase_without_a_theorem_leaves_none_for_its_history(other: Phase, kind: str) -> None:
    sampler = sampler_from_dict(kind, SAMPLERS[kind].typical)
    found = upper_proof(Claim(2.0, 1e-3, [Phase(Gaussian(3.0), sampler=sampler), other]))
    assert isinstance(found, Unavailable)
    assert "no theorem for sampling_kind=" in found.reason


def test_losses_that_cancel_to_few_digits_have_both_sides() -> None:
    noise = GeneralizedGaussian(1.4564, 4462.7, clip=0.0639489, dimension=1)
    claim = Claim.single(noise, epsilon=0.0379714, delta=1.55196e-11)
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    overlaps(found, check(claim))


def test_a_pass_whose_releases_tell_nothing_has_no_event() -> None:
    noise = GammaPLRVIID(k=23.4878, theta=2.99727e-80, clip=1.0, clip_norm=3.0, dimension=1216480)
    sampler = WithoutReplacement(prob=1.32674e-05, releases=7)
    claim = Claim(phases=(Phase(noise, sampler=sampler),), epsilon=2.6459, delta=2.0745e-11)
    found = rigorous_bracket(claim)
    assert isinstance(found, Unavailable)
    assert "do not differ" in found.reason


def test_hidden_scales_with_few_coordinates_have_both_sides() -> None:
    claim = Claim.single(GammaPLRV(k=100.0, theta=0.01, dimension=3), epsilon=0.5, delta=1e-3)
    fast = check(claim)
    overlaps(rigorous_bracket(claim, fast.witness), fast)


def test_a_pure_epsilon_is_met_exactly() -> None:
    claim = Claim.single(Laplace(2.0, clip=1.0, clip_norm=1.0), epsilon=0.5, delta=0.0)
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert found.delta_upper == 0.0
    assert json.dumps(found.theorem) == '"pure-laplace"'


@pytest.mark.parametrize(
    ("adjacency", "steps", "rate", "scale", "dimension", "epsilon"),
    [
        ("add-remove", 30, 0.3, 2.0, 5, 3.0),
        ("replace-one", 100, 1.0, 10.0, 1, 9.3),
        ("zero-out", 4, 1.0, 1.0, 2, 3.9),
    ],
)
def test_composed_laplace_noise_has_both_sides(
    adjacency: Adjacency, steps: int, rate: float, scale: float, dimension: int, epsilon: float
) -> None:
    noise = Laplace(scale, clip=1.0, clip_norm=1.0, dimension=dimension)
    claim = Claim(epsilon, 1e-9, [Phase(noise, steps, rate)], adjacency, id="a")
    fast, found = check(claim), rigorous_bracket(claim)
    overlaps(found, fast)
    assert isinstance(found, RigorousBracket)
    assert found.delta_upper < 1.01 * fast.delta_upper


@pytest.mark.parametrize("noise", [Gaussian(2.0), Laplace(4.0, 1.0, 1.0)])
@pytest.mark.parametrize("rate", [0.9999999999999999, 0.9999999999999998, 1 - 1e-12])
def test_a_rate_next_to_one_costs_what_one_does(noise: Mechanism, rate: float) -> None:
    """The double and the decimal that is meant leave records out with probabilities that differ by a tenth."""
    claim = Claim.single(noise, epsilon=0.4, delta=1e-5, sampling_prob=rate)
    found, whole = rigorous_bracket(claim), rigorous_bracket(Claim.single(noise, epsilon=0.4, delta=1e-5))
    assert isinstance(found, RigorousBracket)
    assert isinstance(whole, RigorousBracket)
    overlaps(found, check(claim))
    assert found.delta_upper == pytest.approx(whole.delta_upper, rel=0.01, abs=1e-9)


def test_a_composed_laplace_pair_is_the_sum_of_its_losses() -> None:
    """Two releases at mu 1 by the law of the loss: atoms at its ends, and a density between."""
    claim = Claim.single(Laplace(1.0, clip=1.0, clip_norm=1.0), epsilon=0.5, delta=1e-5, steps=2)
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert found.theorem == "laplace-grid"

    def alone(epsilon: float) -> float:  # 1 - e^(-(1 - epsilon)/2) from -1 to 1, and 1 - e^epsilon below
        return max(0.0, -math.expm1((epsilon - 1) / 2)) if epsilon >= -1 else -math.expm1(epsilon)

    # delta of both is the mean of one's delta at epsilon - loss, over the loss of the other
    between = quad(lambda loss: math.exp((loss - 1) / 2) / 4 * alone(0.5 - loss), -1, 1, points=[-0.5])[0]
    truth = alone(-0.5) / 2 + math.exp(-1) / 2 * alone(1.5) + between
    assert truth <= found.delta_upper < 1.01 * truth


@pytest.mark.parametrize("delta", [1.83729e-222, 0.0])
def test_an_epsilon_beyond_the_smoothed_grid_is_no_smaller_than_the_true_one(delta: float) -> None:
    """The integral of what is infinite ended before it began, and counted as less than nothing."""
    noise = GammaPLRVIID(k=1.78437, theta=0.000701618, clip=1.0, clip_norm=math.inf, dimension=68754)
    claim = Claim.single(noise, epsilon=49.7554, delta=delta, steps=379)
    fast, found = check(claim), rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert found.theorem == "smoothed-grid"
    overlaps(found, fast)
    assert fast.epsilon_lower <= found.epsilon_upper
    assert math.isinf(found.epsilon_upper) == (delta == 0.0)


def test_a_loss_that_hardly_grows_ends_in_a_word() -> None:
    """|x|^1.01 needs x of 3^100 for a loss of 3, where balls no longer tell it from epsilon."""
    claim = Claim.single(GeneralizedGaussian(1.01, 1.0, 1.0, 2.0, 1), epsilon=3.0, delta=1e-5)
    found = rigorous_bracket(claim)
    assert isinstance(found, Unavailable) or found.delta_lower <= 1e-300


def test_one_dimensional_noise_is_bounded_from_both_sides() -> None:
    """mpmath: delta is 4.27278094103e-14."""
    claim = Claim.single(GeneralizedGaussian(10.0, 1.0, 8.15022e-14, 2.0, 1), epsilon=3.57686e-16, delta=4.27278095e-14)
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert found.delta_lower < 4.27278094104e-14 < found.delta_upper


@pytest.mark.parametrize("wide_first", [True, False])
def test_no_phase_is_moved_in_more_coordinates_than_it_has(*, wide_first: bool) -> None:
    wide = Phase(Gaussian(3.0, clip=0.5, clip_norm=math.inf, dimension=4), 2)
    narrow = Phase(Gaussian(1.5, clip=1.0, clip_norm=math.inf, dimension=1), 3)
    phases = (wide, narrow) if wide_first else (narrow, wide)
    claim = Claim(2.0, 1e-5, phases)
    verdict = check(claim)
    bracket = rigorous_bracket(claim, verdict.witness)
    assert isinstance(bracket, RigorousBracket)
    assert 0.99 * verdict.delta_lower < bracket.delta_lower <= verdict.delta_upper


def test_a_shared_scale_is_told_by_no_more_coordinates_than_are_left() -> None:
    few = Phase(GammaPLRV(k=16.98, theta=1.3, clip=0.07, clip_norm=1.0, dimension=3))
    many = Phase(Laplace(3.0, clip=1.0, clip_norm=2.0, dimension=1000))
    claim = Claim(2.0, 1e-5, (many, few))
    event = chosen_event(claim, 100, "remove", gauged=True)
    assert isinstance(event, Event)
    assert [part.count for part in event.parts if isinstance(part, LabelledSum)] == [100, 3]
    overlaps(rigorous_bracket(claim, check(claim).witness), check(claim))


@pytest.mark.parametrize(
    ("noise", "sampler"),
    [
        (0.6, BallsInBins(2, 1)),
        (0.4, BallsInBins(2, 1)),
        (0.8, BallsInBins(2, 3, "once")),
        (0.4, RandomAllocation(4, 2)),
    ],
)
def test_allocation_costs_no_more_than_known_releases(noise: float, sampler: BallsInBins | RandomAllocation) -> None:
    claim = Claim(8.0, 1e-3, [Phase(Gaussian(noise), sampler=sampler)], "zero-out")
    found, known = (
        rigorous_bracket(one) for one in (claim, replace(claim, phases=[Phase(Gaussian(noise), sampler.meetings)]))
    )
    assert isinstance(found, RigorousBracket)
    assert isinstance(known, RigorousBracket)
    assert found.delta_upper <= known.delta_upper * (1 + 1e-12)
    assert found.delta_lower <= known.delta_upper


@pytest.mark.parametrize(
    ("noise", "sampler", "adjacency", "epsilon"),
    [
        (0.3, Shuffled.of(4, 1, 1), "replace-one", 10.0),
        (0.3, Shuffled.of(3, 2, 1), "replace-one", 25.0),
        (0.2, BallsInBins(2, 1), "zero-out", 22.0),
    ],
)
def test_a_release_of_little_noise_that_tells_all_is_seen_beside_the_others(
    noise: float, sampler: Shuffled | BallsInBins, adjacency: Adjacency, epsilon: float
) -> None:
    claim = Claim(epsilon, 1e-5, [Phase(Gaussian(noise), sampler=sampler)], adjacency)
    first, found = check(claim), rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert 0.95 * first.delta_lower < found.delta_lower <= first.delta_upper
    assert found.epsilon_lower > epsilon
