"""Poisson batches that are cut, in balls: exact rates, and the first engine's bracket."""

from fractions import Fraction
from math import comb

import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.rigorous.balls import Unavailable, precision
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket
from dpaudit.verify.rigorous.certificates import NotCovered, certificate
from dpaudit.verify.rigorous.cut_batches import cut_rates, with_silent_others
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement

DELTA = 1e-5


@pytest.mark.parametrize(("prob", "most", "records"), [(0.25, 2, 7), (0.5, 1, 3), (0.875, 4, 9), (1.0, 3, 8)])
def test_rates_are_sums_over_how_many_others_are_drawn(prob: float, most: int, records: int) -> None:
    q, others = Fraction(prob), records - 1
    chances = [comb(others, x) * q**x * (1 - q) ** (others - x) for x in range(records)]
    full = sum(chances[most:])
    kept = q * sum(chance * Fraction(most, 1 + x) for x, chance in enumerate(chances) if x >= most)
    with precision():
        found = cut_rates(TruncatedPoisson(prob, most, records, 5))
        pairs = ((found.full, full), (found.kept, kept), (found.uncut, q * (1 - full)))
        for ball, exact in pairs:
            assert abs(ball * exact.denominator - exact.numerator) < 1e-20 * exact.denominator
        rate = float(kept / full)
    assert rate <= found.full_rate <= rate * (1 + 1e-12)
    [silent] = with_silent_others(
        Claim(1.0, DELTA, [Phase(Gaussian(1.0), sampler=TruncatedPoisson(prob, most, records, 5))])
    ).phases
    assert silent.sampling_prob == pytest.approx(float(kept + q * (1 - full)), rel=1e-12)


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("sigma", "sampler", "epsilon"),
    [
        (4.0, TruncatedPoisson(0.1, 110, 1000, 300), 1.7),
        (4.0, TruncatedPoisson(1.0, 110, 1000, 300), 1.8),
        (3.0, TruncatedPoisson(0.5, 3, 9, 20), 1.8),
        (1.1, TruncatedPoisson(256 / 60_000, 300, 60_000, 2000), 0.9),
    ],
)
def test_both_engines_agree(sigma: float, sampler: TruncatedPoisson, epsilon: float, adjacency: Adjacency) -> None:
    claim = Claim(epsilon, DELTA, [Phase(Gaussian(sigma), sampler=sampler)], adjacency)
    first, second = check(claim), rigorous_bracket(claim)
    assert isinstance(second, RigorousBracket)
    assert second.epsilon_upper == pytest.approx(first.epsilon_upper, rel=2e-3)
    assert second.epsilon_upper >= first.epsilon_lower
    assert 0.5 * epsilon < second.epsilon_lower <= first.epsilon_upper
    assert second.delta_lower <= first.delta_upper
    assert second.theorem == "cut-gaussian-grid"


def test_what_is_not_covered_is_told() -> None:
    sampler = TruncatedPoisson(0.1, 12, 100, 30)
    beside = [
        Phase(Gaussian(9.0), sampler=WithoutReplacement(0.1, 5)),
        Phase(Gaussian(9.0), 5, 0.1),
        Phase(Gaussian(9.0)),
    ]
    claim = Claim(2.0, DELTA, [Phase(Gaussian(9.0), sampler=sampler), *beside])
    verdict = check(claim)
    assert verdict.verdict == "certified"
    found = certificate(claim, verdict)
    assert isinstance(found, NotCovered)
    assert "beyond the checker" in found.reason
    bracket = rigorous_bracket(claim)
    assert isinstance(bracket, RigorousBracket)
    assert bracket.epsilon_upper == pytest.approx(verdict.epsilon_upper, rel=2e-3)
    other = rigorous_bracket(Claim(0.1, DELTA, [Phase(Laplace(9.0, dimension=1), sampler=sampler)]))
    assert isinstance(other, Unavailable) or other.delta_upper == 1.0
