"""Sampled records that are replaced, against the largest ratio of the mixtures on a grid of outputs and shifts."""

import math
from itertools import product

import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, GammaScaleLaplace, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim, PureDP, check, claim_stating
from dpaudit.verify.claims import Phase
from dpaudit.verify.samplers import WithoutReplacement
from dpaudit.verify.upper import replaced_coins


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.3, 0.5, 0.9, 1.0 - 1e-9])
@pytest.mark.parametrize(
    "noise",
    [
        Laplace(0.6, dimension=1),
        Laplace(3.0, dimension=1),
        GammaPLRVIID(5.0, 0.1, dimension=1),
        GammaScaleLaplace(6.0, 0.4, dimension=1),
    ],
    ids=lambda noise: f"{noise.name}-{noise.structure.lipschitz:.3g}",
)
def test_no_ratio_of_the_mixtures_is_larger_and_a_laplace_one_reaches_it(noise: Mechanism, q: float) -> None:
    outputs, shifts = np.linspace(-6.0, 6.0, 1201), np.linspace(-1.0, 1.0, 21)
    with_one = {v: np.logaddexp(math.log1p(-q) + noise.structure.logpdf(outputs),
                                math.log(q) + noise.structure.logpdf(outputs - v)) for v in shifts}  # fmt: skip
    largest = max(float((with_one[v] - with_one[w]).max()) for v, w in product(shifts, shifts))
    phase = Phase(noise, 1, q)
    claim = Claim(1.0, 0.0, [phase], "replace-one")
    found = replaced_coins.release_epsilon(claim, phase)
    assert found is not None
    assert largest <= found * (1 + 1e-9) + 1e-14
    if noise.name == "laplace":
        assert found == pytest.approx(largest, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(Laplace(2.0, dimension=1), 0.5, 1), (Laplace(5.0, clip_norm=1.0, dimension=3), 0.1, 4)],
)
def test_pure_claims_of_sampled_replaced_records_are_decided_around_the_largest_ratio(
    noise: Laplace, rate: float, steps: int
) -> None:
    s = 1.0 / noise.scale
    exact = steps * math.log((1 - rate + rate * math.exp(s)) / (1 - rate + rate * math.exp(-s)))
    for factor, verdict in ((1.0001, "certified"), (0.999, "refuted")):
        claim = claim_stating(PureDP(exact * factor), [Phase(noise, steps, rate)], "replace-one")
        assert check(claim).verdict == verdict


def test_batches_of_fixed_size_do_not_have_that_epsilon() -> None:
    """Of two records one is drawn: f_v or f_u against f_w or f_u, u the other record, at their largest ratio."""
    noise, s = Laplace(2.0, dimension=1), 0.5
    worst = math.log1p(0.5 * math.expm1(2 * s))  # u = w: half of e^(2s) and a half
    found = check(claim_stating(PureDP(1.0), [Phase(noise, sampler=WithoutReplacement(0.5, 1))], "replace-one"))
    assert found.guarantee is not None
    assert found.guarantee["upper"] >= worst > replaced_coins.between_versions(s, 0.5)


def test_losses_beyond_the_exponential_of_a_float() -> None:
    for shift, q in ((800.0, 0.25), (701.0, 1e-303), (5000.0, 1.0 - 1e-12)):
        whole = shift + np.logaddexp(math.log(q), math.log1p(-q) - shift)
        assert replaced_coins.between_versions(shift, q) == pytest.approx(
            whole - np.logaddexp(math.log1p(-q), math.log(q) - shift), rel=1e-12
        )


def test_hidden_scales_are_covered() -> None:
    phase = Phase(GammaPLRV(5.0, 0.1, dimension=4), 3, 0.2)
    claim = Claim(1.0, 0.0, [phase], "replace-one")
    s = 9 * math.log1p(0.1 * 2.0)  # l1 radius of the l2 ball in 4 coordinates
    assert replaced_coins.release_epsilon(claim, phase) == pytest.approx(
        replaced_coins.between_versions(s, 0.2), rel=1e-9
    )
