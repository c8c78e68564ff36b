"""Events of dp-accounting, read and written: each history costs what dp-accounting itself says."""

from typing import Any

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpaudit.mechanisms import Gaussian, Laplace, Product
from dpaudit.verify import Claim, Phase, check, claim_from_dp_event, dp_event_from_claim
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.samplers import Shuffled, TruncatedPoisson, WithoutReplacement

RELATIONS: dict[Adjacency, dp.NeighboringRelation] = {
    "add-remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero-out": dp.NeighboringRelation.REPLACE_SPECIAL,
    "replace-one": dp.NeighboringRelation.REPLACE_ONE,
}
NORMAL, LAPLACE = dp.GaussianDpEvent(1.5), dp.LaplaceDpEvent(2.0)
EVENTS: list[Any] = [
    (NORMAL, "add-remove"),
    (NORMAL, "replace-one"),
    (dp.SelfComposedDpEvent(LAPLACE, 3), "add-remove"),
    (dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, NORMAL), 50), "add-remove"),
    (dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, LAPLACE), 5), "zero-out"),
    (
        dp.ComposedDpEvent([
            dp.NoOpDpEvent(),
            NORMAL,
            dp.SelfComposedDpEvent(
                dp.ComposedDpEvent([LAPLACE, dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.2, NORMAL), 4)]), 2
            ),
        ]),
        "add-remove",
    ),
    pytest.param(
        dp.SelfComposedDpEvent(dp.TruncatedSubsampledGaussianDpEvent(100, 0.05, 20, 1.5), 2), "zero-out",
        marks=pytest.mark.slow,
    ),
]  # fmt: skip


def accounted(event: dp.DpEvent, adjacency: Adjacency, delta: float = 1e-5) -> float:
    return float(PLDAccountant(RELATIONS[adjacency], 1e-4).compose(event).get_epsilon(delta))


@pytest.mark.parametrize(("event", "adjacency"), EVENTS)
def test_an_event_as_a_claim_costs_what_dp_accounting_says_and_is_written_back(
    event: dp.DpEvent, adjacency: Adjacency
) -> None:
    epsilon = accounted(event, adjacency)
    claim = claim_from_dp_event(event, epsilon=epsilon, delta=1e-5, adjacency=adjacency)
    verdict = check(claim)
    assert verdict.epsilon_lower <= epsilon * (1 + 1e-9)
    assert verdict.epsilon_upper == pytest.approx(epsilon, rel=2e-3)
    again = claim_from_dp_event(dp_event_from_claim(claim), epsilon=epsilon, delta=1e-5, adjacency=adjacency)
    assert again.canonical().phases == claim.canonical().phases


def test_releases_are_counted_and_noise_is_relative_to_its_own_norm() -> None:
    claim = claim_from_dp_event(EVENTS[5][0], epsilon=1.0, delta=1e-5, id="a", source="b")
    assert claim.phases == (
        Phase(Gaussian(1.5), 1, 1.0, "none"),
        Phase(Laplace(2.0, clip_norm=1.0), 2, 1.0, "none"),
        Phase(Gaussian(1.5), 8, 0.2),
    )
    assert (claim.id, claim.source) == ("a", "b")


def test_batches_without_replacement_keep_their_rate() -> None:
    """Ours is no bound on what dp-accounting computes there: it takes another relation (REPLACE_ONE)."""
    event = dp.SelfComposedDpEvent(dp.SampledWithoutReplacementDpEvent(50_000, 300, dp.GaussianDpEvent(1.0)), 10)
    claim = claim_from_dp_event(event, epsilon=1.0, delta=1e-5, adjacency="replace-one")
    assert claim.phases == (Phase(Gaussian(1.0), sampler=WithoutReplacement(0.006, 10)),)
    written = dp_event_from_claim(claim)
    assert (written.event.sample_size, written.event.source_dataset_size, written.count) == (3, 500, 10)
    costs = [
        RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE).compose(one).get_epsilon(1e-5)
        for one in (event, written)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)


@pytest.mark.parametrize(("steps", "levels"), [(1, 1), (7, 3), (8, 4), ([3, 100], 7)])
def test_a_tree_costs_a_release_for_each_level(steps: int | list[int], levels: int) -> None:
    event = dp.SingleEpochTreeAggregationDpEvent(4.0, steps)
    claim = claim_from_dp_event(event, epsilon=1.0, delta=1e-5, adjacency="zero-out")
    assert claim.phases == (Phase(Gaussian(4.0), levels, 1.0, "none"),)
    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    costs = [
        RdpAccountant(neighboring_relation=relation).compose(one).get_epsilon(1e-5)
        for one in (event, dp_event_from_claim(claim))
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)
    with pytest.raises(ValueError, match="Expected adjacency='add-remove' to be 'zero-out'"):
        claim_from_dp_event(event, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (dp.RandomizedResponseDpEvent(0.5, 2), "event=RandomizedResponseDpEvent to be .*randomized response is no"),
        (dp.NonPrivateDpEvent(), "event=NonPrivateDpEvent to be .*: it meets no finite epsilon"),
        (dp.UnsupportedDpEvent(), "event=UnsupportedDpEvent"),
        (dp.ZCDpEvent(0.1), "event=ZCDpEvent .*: it is a guarantee"),
        (dp.dp_event.DiscreteLaplaceDpEvent(1.0, 1), "event=DiscreteLaplaceDpEvent"),
        (dp.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]), "event=MixtureOfGaussiansDpEvent"),
        (dp.dp_event.RepeatAndSelectDpEvent(NORMAL, 2.0, 1.0), "event=RepeatAndSelectDpEvent"),
        (dp.SampledWithReplacementDpEvent(100, 5, NORMAL), "event=SampledWithReplacementDpEvent"),
        (
            dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(NORMAL, 2)),
            "event=SelfComposedDpEvent inside PoissonSampledDpEvent to be .*: only noise can be sampled there",
        ),
        (dp.NoOpDpEvent(), "event=NoOpDpEvent to release something"),
        ("text", "event=str to be .*: it is not known here"),
        (dp.GaussianDpEvent(0.0), "noise_multiplier=0.0"),
    ],
)
def test_other_events_are_refused_by_name(event: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"Expected {words}"):
        claim_from_dp_event(event, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase(Product(1.0, dimension=5)), "mechanism='product' to have normal noise"),
        (Phase(Gaussian(1.0), sampler=Shuffled(10, 2)), "sampling.kind='shuffled' with mechanism='gaussian' to have"),
        (
            Phase(Laplace(1.0, clip_norm=1), sampler=TruncatedPoisson(0.1, 5, 20, 3)),
            "sampling.kind='truncated-poisson'",
        ),
    ],
)
def test_what_no_event_describes_is_refused(phase: Phase, words: str) -> None:
    with pytest.raises(ValueError, match=f"Expected {words}"):
        dp_event_from_claim(Claim(1.0, 1e-5, (phase,)))
