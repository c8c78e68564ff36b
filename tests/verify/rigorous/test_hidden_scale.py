"""A shared scale summed at nodes: below integrals over the scale, near them, and a claim that is false by 1%."""

import math
from itertools import product
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import integrate, special, stats

pytest.importorskip("flint")

from dpaudit.mechanisms import GammaPLRV
from dpaudit.verify.claim_files import load_claims
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.rigorous.balls import ball, precision
from dpaudit.verify.rigorous.choices import chosen_event
from dpaudit.verify.rigorous.events import Event, LabelledSum, event_probabilities, sum_masses
from dpaudit.verify.rigorous.hidden_scale import SharedScale, node_error

K, THETA, VALUE, COUNT, GAUGES, BITS = 3.0, 0.5, 0.8, 2, 2, 128
EDGES, SCORES, SIZES = ("0.2", "0.6"), (-1, 0, 1), ("0.9", "2.5")
FINE, COARSE = SharedScale("0.3", (-100, 13), GAUGES, SIZES), SharedScale("1.1", (-30, 4), GAUGES, SIZES)


@pytest.mark.parametrize(("order", "step"), [(1.5, 0.6), (7.0, 1.1), (300.0, 0.08), (25_000.0, 0.0053)])
def test_the_error_of_the_nodes_is_more_than_the_sum_of_the_series(order: float, step: float) -> None:
    """Of |Gamma(K + 2 pi i j/h)|/Gamma(K), j from -30 to 30 without 0."""
    mpmath.mp.dps = 30
    waves = (mpmath.mpc(order, 2 * mpmath.pi * j / step) for j in range(1, 31))
    series = 2 * sum(mpmath.exp(mpmath.re(mpmath.loggamma(z)) - mpmath.loggamma(order)) for z in waves)
    with precision():
        bound = float(node_error(ball(order), ball(step)))
    assert float(series) <= bound <= 10 * float(series)


def integrals(centre: float) -> list[float]:
    """P(cell of the gauges' size, sum of two scores) by quadrature over the scale, as `sum_masses` lists them."""
    edges, sizes = np.array([-np.inf, *map(float, EDGES), np.inf]), np.array([0.0, *map(float, SIZES), np.inf])

    def given(u: float, cell: int, total: int) -> float:
        chances = dict(zip(SCORES, np.diff(stats.laplace.cdf(edges, centre, 1 / u)), strict=True))
        scores = sum(chances[a] * chances[b] for a, b in product(SCORES, repeat=2) if a + b == total)
        size = np.diff(special.gammainc(GAUGES, u * sizes))[cell]
        return float(stats.gamma.pdf(u, K, scale=THETA) * scores * size)

    places = product(range(3), range(-2, 3))
    return [integrate.quad(given, 0, 30, place, epsabs=0, epsrel=1e-11, limit=200)[0] for place in places]


def masses(scale: SharedScale) -> list[list[float]]:
    phase = Phase(GammaPLRV(K, THETA, dimension=COUNT + GAUGES, clip=2.0), 1)
    part = LabelledSum(repr(VALUE), COUNT, EDGES, SCORES, 2, (), scale)
    return [[int(mass) / 2**BITS for mass in side] for side in sum_masses(phase, part, BITS)]


def test_masses_lie_below_the_integrals_over_the_scale() -> None:
    """Closely at a fine step; at a coarse one by the error, without which some would lie above them."""
    truth = [integrals(VALUE), integrals(0.0)]
    for side, exact in zip(masses(FINE), truth, strict=True):
        assert all((1 - 1e-7) * x < mass < x for mass, x in zip(side, exact, strict=True))
    with precision():
        error = float(node_error(ball(K) + COUNT + GAUGES, ball(COARSE.step)))
    assert 0.001 < error < 0.3
    coarse = [(mass, x) for found in zip(masses(COARSE), truth, strict=True) for mass, x in zip(*found, strict=True)]
    assert all(mass < x for mass, x in coarse)
    assert any(mass * (1 + error) > x for mass, x in coarse)


def known_scale_deltas(*epsilons: float) -> list[float]:
    """delta of 250 sampled releases of the 85,000,000 coordinates' table row, the scale shown and the shift in
    infinitely many coordinates: given u the sum of their signs is N(+-5 u, 1). By FFT, to some 1e-9."""
    q, steps, size = 0.01024, 250, 2**18
    law, unit = stats.gamma(141.06, scale=0.000832), 2e-4
    x, w = np.polynomial.legendre.leggauss(60)
    low, high = law.ppf(1e-9), law.isf(1e-9)
    us, points = (low + high) / 2 + (high - low) / 2 * x, np.arange(-12, 12, 0.004)
    weights = w * law.pdf(us) / (w @ law.pdf(us))
    with_it, plain = (np.array([stats.norm.pdf(points, s * 5 * u) * 0.004 for u in us]) for s in (1, -1))
    p, r = (weights[:, None] * side for side in (with_it, plain))
    mixed = q * p + (1 - q) * r
    loss = np.rint(np.log1p(q * np.expm1(10 * us[:, None] * points)) / unit).astype(int)
    first, second = (np.bincount((loss % size).ravel(), side.ravel(), size) for side in (mixed, r))
    one, other = (np.fft.irfft(np.fft.rfft(side) ** steps, size) for side in (first, second))
    place = np.arange(size)
    losses = np.where(place < size // 2, place, place - size) * unit
    return [float(one[losses > e].sum() - math.exp(e) * other[losses > e].sum()) for e in epsilons]


def table_row() -> Claim:
    path = Path(__file__).parents[3] / "reports" / "claims" / "plrvo-table-2.toml"
    return next(claim for claim in load_claims(path) if claim.id == "plrvo-table2-row1-shared")


def excesses(claim: Claim, event: Event, *epsilons: float) -> list[float]:
    with precision():
        p, q = event_probabilities(claim.phases, event)
        return [float((p - ball(epsilon).exp() * q).lower()) for epsilon in epsilons]


def test_without_gauges_the_scale_stays_hidden_and_the_claim_stands() -> None:
    """However many nodes there are: less than 5.83e-6, what infinitely many moved coordinates alone tell."""
    event = chosen_event(table_row().canonical(), 1024, "remove")
    assert isinstance(event, Event)
    [found] = excesses(table_row(), event, 1.7)
    assert 4.4e-6 < found < 5.83e-6


@pytest.mark.slow
def test_a_claim_that_is_false_by_little_is_refuted_and_no_truth_is() -> None:
    """The event's delta lies below that of a known scale at every epsilon, and above the claim's at 1.7."""
    claim = table_row().canonical()
    event = chosen_event(claim, 8_192, "remove", gauged=True)
    assert isinstance(event, Event)
    epsilons = (1.5, 1.7, 1.73, 1.88)
    found, truth = excesses(claim, event, *epsilons), known_scale_deltas(*epsilons)
    assert found[1] > claim.delta
    assert all(ours < exact for ours, exact in zip(found, truth, strict=True))
    assert truth[2] < claim.delta  # so from there on a refutation would be wrong
