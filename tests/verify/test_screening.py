"""Screens against slow plain oracles, against `check`, and at the ends of their ranges."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.stats import binom as binomial
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify import Claim, Phase, check
from dpaudit.verify.claim_columns import ClaimColumns
from dpaudit.verify.screening import ORDERS, SCREENS, columns_of, one_release_moments, screen

# noise multiplier, rate, steps, delta: many small rates, nearly no noise, few releases, hardly any participation
HISTORIES = [
    (1.0, 0.01, 1000, 1e-5), (0.6, 0.001, 13_000, 4e-5), (3.0, 0.08, 20_000, 1e-6), (0.7, 4e-3, 16, 3.5e-6),
    (2.0, 1.0, 30, 1e-5), (0.5, 0.1, 10, 1e-8), (4.0, 3e-4, 15_000, 2e-6),
]  # fmt: skip


def columns(*rows: tuple[float, ...]) -> ClaimColumns:
    return ClaimColumns(np.arange(len(rows)).astype(str), *(np.array(part, float) for part in zip(*rows, strict=True)))


def moments(noise: float, rate: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return one_release_moments(columns((noise, rate, 1, 0.0, 1.0)))[0]


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.7, 0.05), (5.0, 1e-4), (0.5, 0.3)])
def test_moments_are_the_binomial_sums_or_above(noise: float, rate: float) -> None:
    found = moments(noise, rate)
    for a, value in zip(ORDERS[:45:8], found[:45:8], strict=True):
        with mpmath.workdps(40):
            q, s = mpmath.mpf(rate), mpmath.mpf(noise)
            exact = mpmath.fsum(
                mpmath.binomial(int(a), k) * q**k * (1 - q) ** (int(a) - k) * mpmath.expm1(k * (k - 1) / (2 * s * s))
                for k in range(2, int(a) + 1)
            )
            assert value >= exact
            if a <= 32:
                assert value <= exact * (1 + 1e-8) or value == math.inf


def test_long_sums_are_tight_where_the_tail_is_short() -> None:
    a = ORDERS[ORDERS > 100][0]
    k = np.arange(2, int(a) + 1)
    exact = float((binomial.pmf(k, int(a), 0.01) * np.expm1(k * (k - 1) / 2 / 25.0)).sum())
    found = moments(5.0, 0.01)[np.searchsorted(ORDERS, a)]
    assert exact <= found <= exact * 1.0001


@pytest.mark.slow
def test_no_screen_decides_against_the_true_epsilon() -> None:
    """Claims a thousandth of the way beside the certified bracket: each screen may only decide on the right side."""
    decided = 0
    for noise, rate, steps, delta in HISTORIES:
        claim = Claim.single(
            Gaussian(noise_multiplier=noise), epsilon=1.0, delta=delta, steps=steps, sampling_prob=rate
        )
        verdict = check(claim)
        below, above = verdict.epsilon_lower * (1 - 1e-6), verdict.epsilon_upper * (1 + 1e-6)
        rows = columns(*((noise, rate, steps, delta, epsilon) for epsilon in (below * 0.3, below * 0.9, below)))
        over = columns(*((noise, rate, steps, delta, epsilon) for epsilon in (above, above * 1.1, above * 3)))
        with np.errstate(all="ignore"):
            for decision, name, decides in SCREENS:
                wrong = rows if decision == "certified" else over
                assert not decides(wrong).any(), (name, noise, rate, steps)
        far = columns((noise, rate, steps, delta, above * 3), (noise, rate, steps, delta, below / 3))
        decided += int((screen(far).verdict != "left").sum())
    assert decided >= 12  # of 14


def test_without_sampling_the_exact_curve_decides_both_ways() -> None:
    mu, epsilon = math.sqrt(30) / 2, 12.0
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    found = screen(columns((2.0, 1.0, 30, exact * (1 + 1e-6), epsilon), (2.0, 1.0, 30, exact * (1 - 1e-6), epsilon)))
    assert found.verdict.tolist() == ["certified", "refuted"]
    assert found.bound.tolist() == ["unsampled", "sum"]


def test_extremes_are_decided_rightly_or_left() -> None:
    rows = [
        (1e-150, 0.5, 10, 1e-5, 1.0), (1e150, 0.5, 10, 1e-5, 1.0), (1.0, 1e-300, 10, 1e-5, 0.0),
        (1.0, 0.5, 1e12 - 1, 0.1, 1.0), (1.0, 0.95, 1, 0.0, 0.0), (1.0, 0.01, 10, 0.0, 1e300),
        (1e-3, 1 - 1e-16, 10, 0.5, 1.0), (5.0, 0.5, 1, 0.999, 0.0),
    ]  # fmt: skip
    found = screen(columns(*rows)).verdict.tolist()
    wrong = ["certified", "refuted", "refuted", "certified", "certified", "certified", "certified", "refuted"]
    assert all(verdict != bad for verdict, bad in zip(found, wrong, strict=True)), found
    assert found[1] == "certified"
    assert found[6] == "refuted"


def test_claims_outside_the_screens_are_left() -> None:
    covered = Claim.single(Gaussian(noise_multiplier=2.0, clip=0.5), epsilon=1.0, delta=1e-5, steps=10, id="a")
    phase = Phase(Gaussian(noise_multiplier=2.0), 10, 0.1)
    table, others = columns_of(
        [
            covered,
            replace(covered, adjacency="replace-one", id="b"),
            Claim.single(Laplace(scale=1.0, clip=1.0, clip_norm=1.0), epsilon=1.0, delta=0.0, id="c"),
            Claim(1.0, 1e-5, (phase, phase), id="d"),
            Claim(1.0, 1e-5, (phase,), "replace-one", id="e"),
            Claim(1.0, 1e-5, (phase,), "zero-out", id="f"),
            Claim.single(Gaussian(2.0, clip=3e-323), epsilon=0.2, delta=1e-5, id="g"),  # out of reach
        ]
    )
    assert table.ids.tolist() == ["a", "b", "f"]
    assert table.noise_multiplier.tolist() == [2.0, 1.0, 2.0]
    assert others == ["c", "d", "e", "g"]
    assert len(columns_of([])[0]) == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0.0, 0.1, 10, 1e-5, 1.0), r"Expected noise_multiplier=0 in"),
        ((1.0, 1.3, 10, 1e-5, 1.0), r"Expected sampling_prob=1\.3 in \[1e-300, 1\]"),
        ((1.0, 1e-301, 10, 1e-5, 1.0), r"Expected sampling_prob=1e-301 in \[1e-300, 1\]"),
        ((1.0, 0.1, 1.5, 1e-5, 1.0), r"Expected steps=1\.5 in"),
        ((1.0, 0.1, 10, math.nan, 1.0), r"Expected delta=nan in"),
    ],
)
def test_values_outside_their_domain_are_refused(row: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        columns(row)
