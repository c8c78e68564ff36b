"""Passes and bins in ball arithmetic: against enumeration, exact integrals, and the first engine."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

pytest.importorskip("flint")

from flint import arb, fmpz_poly

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.rigorous.balls import ball
from dpaudit.verify.rigorous.bracket import UpperProof, rigorous_bracket, upper_proof
from dpaudit.verify.rigorous.passes import LabelledPass, capped_sum, pass_laws, pass_pairs
from dpaudit.verify.rigorous.scores import ScoreWindow
from dpaudit.verify.samplers import BallsInBins, Deterministic, RandomAllocation, Sampler, Shuffled, WithoutReplacement

BITS = 128


def phase(sigma: float, sampler: Sampler) -> Phase:
    return Phase(Gaussian(sigma), sampler=sampler)


def test_the_law_of_a_label_is_that_of_all_outputs_of_a_pass() -> None:
    """Three releases of four cells, a last batch that is dropped, V above 4 left out; the record in every place."""
    sampler = Shuffled.of(10, 3, 1, last_batch="dropped")
    part = LabelledPass("1.0", 1, ("-0.5", "0.8", "1.9"), (0, 1, 2, 4), 4, (0, -1, 2, 3, 3), 0, swaps=False)
    laws = pass_laws(phase(1.5, sampler), part, ScoreWindow(3, BITS))
    edges = np.array([-np.inf, -0.5, 0.8, 1.9, np.inf])
    for law, centre in zip(laws, (2.0, 1.0), strict=True):
        expected = np.zeros(7)
        for place, weight in [*((i, 0.3) for i in range(3)), (None, 0.1)]:
            cells = [np.diff(norm.cdf(edges, centre * (i == place), 1.5)) for i in range(3)]
            for chosen in product(range(4), repeat=3):
                total = sum(part.scores[i] for i in chosen)
                if total <= 4:
                    expected[part.labels[total] + 3] += weight * math.prod(
                        c[i] for c, i in zip(cells, chosen, strict=True)
                    )
        found = [int(mass) / 2**BITS for mass in ScoreWindow(3, BITS).masses(law)]
        assert found == pytest.approx(expected, abs=1e-14)
        assert sum(found) < 1


def test_sums_in_any_order_are_left_out_alike() -> None:
    coin = fmpz_poly([2 ** (BITS - 1), 0, 2 ** (BITS - 1)])
    law = capped_sum({0: coin}, (5,), 7, BITS)
    assert [int(x) / 2**BITS for x in law.coeffs()] == [1 / 32, 0, 5 / 32, 0, 10 / 32, 0, 10 / 32]


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize(
    "sampler",
    [
        Shuffled(4, 3),
        Shuffled(4, 3, reshuffle="once"),
        Shuffled.of(23, 5, 4, last_batch="straddling"),
        Shuffled.of(50, 4, 4, last_batch="straddling", reshuffle="once"),
        BallsInBins(4, 3, reshuffle="once"),
        RandomAllocation(12, 5),
        WithoutReplacement(0.25, 6),
        Deterministic(3, 2),
    ],
    ids=repr,
)
def test_pairs_of_passes_are_the_first_engines(sampler: Sampler, swaps: bool) -> None:
    games, pairs = sampler.games(replace_one=swaps), pass_pairs(phase(1.0, sampler), swaps=swaps)
    assert len(games) == len(pairs)
    for game, pair in zip(games, pairs, strict=True):
        assert pair.passes == game.passes
        assert math.sqrt(pair.orders) == pytest.approx(game.stretch)
        for slots, exact in ((game.first, pair.first), (game.second, pair.second)):
            assert [counts for _, counts in slots] == [counts for _, counts in exact]
            assert [weight for weight, _ in slots] == pytest.approx([float(weight) for weight, _ in exact])


def test_one_bin_is_the_gaussian_mechanism_from_above() -> None:
    proof = upper_proof(Claim(1.0, 1e-3, [phase(1.5, BallsInBins(1, 1))]))
    assert isinstance(proof, UpperProof)
    for epsilon in (0.5, 1.0, 2.0):
        truth, bound = gaussian_delta(1 / 1.5, epsilon), float(proof.delta(ball(epsilon)).upper())
        assert truth * (1 - 1e-14) <= bound < truth * (1 + 4e-3)  # the lattice is coarse for a single ratio


def test_an_order_revealed_is_no_lower_bound() -> None:
    """The curve of known orders is attained by them, and not by orders that are drawn."""
    claim = Claim(6.0, 1e-5, [phase(2.5, Shuffled(29, 9))], "zero-out")
    proof = upper_proof(claim.canonical())
    assert isinstance(proof, UpperProof)
    assert not proof.exact
    assert float(proof.delta(arb(2))) == pytest.approx(gaussian_delta(3 / 2.5, 2.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim",
    [
        Claim(0.5, 1e-4, [phase(1.5, BallsInBins(8, 1))]),
        Claim(0.7, 1e-4, [phase(1.5, RandomAllocation(8, 2))]),
        Claim(0.7, 1e-5, [phase(2.5, Shuffled(5, 2)), Phase(Gaussian(2.0), 20, 0.05)], "zero-out"),
        Claim(1.2, 1e-5, [phase(4.0, WithoutReplacement(0.05, 10))], "replace-one"),
    ],
    ids=lambda claim: f"{claim.phases[0].sampling_kind}-{len(claim.phases)}",
)
def test_both_engines_agree_and_both_are_sharp(claim: Claim) -> None:
    verdict = check(claim)
    found = rigorous_bracket(claim, verdict.witness)
    assert 0.9 * verdict.delta_lower < found.delta_lower <= verdict.delta_upper
    assert found.delta_upper >= verdict.delta_lower
    if all(phase.sampling_kind in ("balls-in-bins", "random-allocation") for phase in claim.phases):
        assert found.delta_upper < verdict.delta_upper * 1.01
