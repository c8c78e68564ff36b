"""Claims on correlated noise: files, verdicts, words; against mpmath, simulation and claims without correlation."""

import itertools
import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import Domain, Mechanism, with_noise_factor
from dpaudit.verify import Claim, check
from dpaudit.verify.claim_files import ClaimFileError, claim_from_dict, claim_to_dict, load_claims
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.correlated import (
    BLT,
    BandedToeplitz,
    Correlation,
    Identity,
    Matrix,
    Participation,
    SquareRootToeplitz,
    Tree,
    matrix_from_bytes,
)
from dpaudit.verify.correlated.correlation import Strategy
from dpaudit.verify.correlated.toeplitz import square_root_coefficients
from dpaudit.verify.lower import certified_lower, replayed_lower
from dpaudit.verify.lower.divergences import divergence_lower
from dpaudit.verify.results import Witness
from dpaudit.verify.upper import upper_curve

EPSILONS = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
EACH_PASS = Participation("fixed-order", separation=8)
TREE = Correlation(Tree(8), EACH_PASS)
TEXT = """
[[claim]]
id = "a"
epsilon = 1.0
delta = 1e-5
steps = 16
mechanism = {name = "gaussian", noise_multiplier = 6.0}
[claim.correlation]
strategy = "tree"
participation = {kind = "min-sep", separation = 4, times = 3}
"""


def claim(
    correlation: Correlation,
    steps: int = 80,
    noise: Mechanism | None = None,
    adjacency: Adjacency = "add-remove",
    epsilon: float = 4.66,
) -> Claim:
    phase = Phase(noise or Gaussian(6.0, dimension=3), steps, correlation=correlation)
    return Claim(epsilon, 1e-5, [phase], adjacency, id="a")


def bracket(of: Claim) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return certified_lower(of).delta(EPSILONS), upper_curve(of)(EPSILONS)


def gaussian_delta(mu: float, epsilon: float) -> float:
    with mpmath.workdps(40):
        mu, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu))


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_the_curve_is_that_of_one_release_of_the_sensitivity(adjacency: Adjacency) -> None:
    """sens^2 of the square root, the pattern 0, 20, ..., in 40 digits; replaced records are twice as far apart."""
    schema = Participation("min-sep", separation=20, times=10)
    with mpmath.workdps(40):
        rows = [
            mpmath.fsum(mpmath.binomial(2 * (t - s), t - s) / mpmath.mpf(4) ** (t - s) for s in range(0, t + 1, 20))
            for t in range(200)
        ]
        sens = float(mpmath.sqrt(mpmath.fsum(row**2 for row in rows)))
    mu = sens / 12.0 * (2.0 if adjacency == "replace-one" else 1.0)
    lower, upper = bracket(claim(Correlation(SquareRootToeplitz(), schema), 200, Gaussian(12.0), adjacency))
    for low, high, epsilon in zip(lower, upper, EPSILONS, strict=True):
        truth = gaussian_delta(mu, float(epsilon))
        assert low <= truth <= high
        assert high == pytest.approx(truth, rel=1e-9)
        assert low == pytest.approx(truth, rel=1e-2)


def test_independent_noise_of_cyclic_batches_is_poisson_sampling() -> None:
    noise = Gaussian(1.0, dimension=2)
    cyclic = Correlation(Identity(), Participation("cyclic-poisson", groups=1, prob=0.05))
    for mine, theirs in zip(
        bracket(claim(cyclic, 100, noise)), bracket(Claim(1, 1e-5, [Phase(noise, 100, 0.05)])), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    groups = Correlation(Identity(), Participation("cyclic-poisson", groups=10, prob=0.5))
    np.testing.assert_allclose(
        bracket(claim(groups, 95, noise)), bracket(Claim(1, 1e-5, [Phase(noise, 10, 0.5)])), rtol=1e-9
    )


@pytest.mark.parametrize("noise", [Gaussian(2.0), Laplace(2.0, dimension=2)])
def test_a_diagonal_in_cyclic_batches_is_poisson_sampling_of_noise_divided_by_it(noise: Mechanism) -> None:
    """Of the groups [3, 1, 0.5] and [1, 2, 2] either can be the record's: at most [3, 2, 1], at least the first."""
    batches = Participation("cyclic-poisson", groups=2, prob=0.3)
    diagonal = Matrix("D.npy", "", np.diag([3.0, 1.0, 1.0, 2.0, 0.5, 2.0]))
    lower, upper = bracket(claim(Correlation(diagonal, batches), 6, noise))
    curves = [
        bracket(Claim(1, 1e-5, [Phase(with_noise_factor(noise, 1.0 / part), 1, 0.3) for part in parts]))
        for parts in ((3.0, 2.0, 1.0), (3.0, 1.0, 0.5))
    ]
    np.testing.assert_allclose(upper, curves[0][1], rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(lower, curves[1][0], rtol=1e-3, atol=1e-9)
    alone = claim(Correlation(diagonal, replace(batches, groups=1)), 6, noise)
    parts = [
        Phase(with_noise_factor(noise, 1.0 / part), n, 0.3) for part, n in ((3.0, 1), (2.0, 2), (1.0, 2), (0.5, 1))
    ]
    for mine, theirs in zip(bracket(alone), bracket(Claim(1, 1e-5, parts)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-9)


def test_the_heaviest_pattern_of_other_noise_can_start_late() -> None:
    """Of few participations at least a step apart any columns can be the record's."""
    for entries, size in (([[0.0, 0.0], [0.0, 1.0]], 1.0), ([[1.0, 0.0], [0.0, 2.0]], 2.0)):
        once = Correlation(
            Matrix("C.npy", str(size), np.array(entries)), Participation("min-sep", separation=1, times=1)
        )
        lower, upper = bracket(claim(once, 2, Laplace(1.0, dimension=1)))
        truth = np.maximum(-np.expm1((EPSILONS - size) / 2.0), 0.0)
        assert (lower <= truth + 1e-12).all()
        assert (upper >= truth).all()
        np.testing.assert_allclose(lower, upper, atol=1e-3)


def test_cyclic_sampling_of_two_bands_against_simulation() -> None:
    """All releases of the whole training, their likelihood ratio summed over the coins; three standard errors."""
    steps, prob, sigma, draws = 6, 0.4, 0.8, 200_000
    rng = np.random.default_rng(5)
    of = claim(
        Correlation(BandedToeplitz(2), Participation("cyclic-poisson", groups=2, prob=prob)), steps, Gaussian(sigma)
    )
    columns = (np.eye(steps) + 0.5 * np.eye(steps, k=-1))[:, ::2]  # of the first group
    coins = np.array(list(itertools.product((0, 1), repeat=3)))
    weights = prob ** coins.sum(1) * (1 - prob) ** (3 - coins.sum(1))
    means = coins @ columns.T
    lower, upper = bracket(of)
    for with_record in (True, False):
        drawn = means[rng.choice(8, draws, p=weights)] if with_record else 0.0
        seen = drawn + sigma * rng.normal(size=(draws, steps))
        ratio = np.log(np.exp((seen @ means.T - 0.5 * (means**2).sum(1)) / sigma**2) @ weights)
        loss = ratio if with_record else -ratio
        for low, high, epsilon in zip(lower, upper, EPSILONS, strict=True):
            gains = np.maximum(-np.expm1(epsilon - loss), 0.0)
            error = 3 * gains.std() / math.sqrt(draws)
            assert gains.mean() <= high + error
            if with_record:  # the worse direction
                assert low - error <= gains.mean()
                assert gains.mean() == pytest.approx(high, rel=0.02, abs=2 * error)


def test_contributions_that_follow_the_releases_cost_no_more() -> None:
    """An adversary turns each contribution by what it saw; events of the exact likelihood ratio, three errors."""
    steps, sigma, draws = 6, 1.5, 200_000
    rng, entries = np.random.default_rng(6), np.tril(np.random.default_rng(7).normal(size=(6, 6)))
    data = _npy_bytes(entries)
    strategy = matrix_from_bytes(data, "C.npy")
    _, upper = bracket(claim(Correlation(strategy, Participation("min-sep", separation=1)), steps, Gaussian(sigma)))
    seen, moved, loss = np.zeros((draws, steps)), np.zeros((draws, steps)), np.zeros(draws)
    for step in range(steps):
        turn = np.sign(seen[:, :step].sum(1) + 1e-9)
        moved += turn[:, None] * entries[:, step]
        noise = sigma * rng.normal(size=draws)
        seen[:, step] = moved[:, step] + noise
        loss += (moved[:, step] * seen[:, step] - 0.5 * moved[:, step] ** 2) / sigma**2
    for high, epsilon in zip(upper, EPSILONS, strict=True):
        gains = np.maximum(-np.expm1(epsilon - loss), 0.0)
        assert gains.mean() <= high + 3 * gains.std() / math.sqrt(draws)
    assert gains.mean() > 0


def test_other_noise_has_a_theorem_where_no_two_participations_meet() -> None:
    noise = Laplace(20.0, clip_norm=1.0, dimension=4)
    plain = check(Claim(4.66, 1e-5, [Phase(noise, 40, 1.0, "none")]))
    found = check(claim(TREE, noise=noise))
    assert (found.verdict, found.epsilon_lower, found.epsilon_upper) == (
        plain.verdict, plain.epsilon_lower, plain.epsilon_upper,
    )  # fmt: skip
    assert "a record enters at most 40 of the releases, each once" in found.assumptions
    coins = Correlation(BandedToeplitz(2), Participation("cyclic-poisson", groups=8, prob=0.5))
    found = check(claim(coins, noise=noise))
    assert (found.verdict, found.epsilon_upper) == ("undecided", math.inf)
    assert "laplace noise with correlation 'banded-toeplitz'" in found.reason


@pytest.mark.parametrize(
    ("strategy", "schema", "columns"),
    [
        (BandedToeplitz(diagonals=(1.0, -0.5, 0.25)), Participation("single"), [(1.0, 0.5, 0.25)]),
        (
            BandedToeplitz(diagonals=(1.0, -0.5, 0.25)),
            Participation("min-sep", separation=4, times=2),
            [(1.0, 0.5, 0.25)] * 2,
        ),
        (SquareRootToeplitz(), Participation("single"), [tuple(square_root_coefficients(9)[0])]),
    ],
)
def test_of_other_noise_a_record_enters_releases_with_the_entries_of_its_columns(
    strategy: Strategy, schema: Participation, columns: list[tuple[float, ...]]
) -> None:
    """One coordinate of Laplace noise: draws of the loss with the record in step 0, three standard errors."""
    scale, draws, epsilon = 2.0, 200_000, 0.6
    found = replace(claim(Correlation(strategy, schema), 9, Laplace(scale, dimension=1), epsilon=epsilon), delta=1e-3)
    rng, shifts = np.random.default_rng(5), np.concatenate([np.array(column) for column in columns])
    loss = np.zeros(draws)
    for shift in shifts:
        noise = rng.laplace(scale=scale, size=draws)
        loss += (np.abs(noise + shift) - np.abs(noise)) / scale
    gains = np.maximum(-np.expm1(epsilon - loss), 0.0)
    verdict, slack = check(found), 3 * gains.std() / math.sqrt(draws)
    assert verdict.delta_lower - slack < gains.mean() < verdict.delta_upper + slack
    assert verdict.delta_upper < 1.05 * verdict.delta_lower
    assert f"a record enters at most {len(shifts)} of the releases, each once and with a part of its contribution" in (
        verdict.assumptions
    )
    pure = check(replace(found, delta=0.0))
    assert pure.epsilon_upper == pytest.approx(shifts.sum() / scale, rel=1e-9)


def test_replaced_records_of_sampled_rounds_are_those_of_poisson_batches() -> None:
    """Of two bands a round has a column of 1 and 1/2; with coins that always fall alike it is a fixed order."""
    noise = Gaussian(1.0, dimension=1)
    cyclic = Correlation(BandedToeplitz(2), Participation("cyclic-poisson", groups=2, prob=0.1))
    rounds = Phase(Gaussian(1.0 / math.sqrt(1.25), dimension=1), 5, 0.1)
    found = bracket(claim(cyclic, 11, noise, adjacency="replace-one"))
    low, high = bracket(Claim(1, 1e-5, [rounds], "replace-one"))
    assert np.all(low <= found[1] * (1 + 1e-9))  # the sixth round, of one row, costs less
    assert np.all(found[0] <= bracket(Claim(1, 1e-5, [replace(rounds, steps=6)], "replace-one"))[1] * (1 + 1e-9))
    assert np.all(high * (1 - 1e-3) <= found[1])
    sure = Correlation(BandedToeplitz(2), Participation("cyclic-poisson", groups=2, prob=1.0))
    known = Correlation(BandedToeplitz(2), Participation("fixed-order", separation=2))
    both = (bracket(claim(c, 10, noise, adjacency="replace-one")) for c in (sure, known))
    for mine, theirs in zip(*both, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_sampling_refutes_too_and_the_witness_alone_suffices() -> None:
    of = claim(TREE, epsilon=2.0)
    sampled = check(of, method="monte-carlo", rng=1, confidence=0.999)
    assert sampled.verdict == "refuted"
    exact = check(of)
    assert exact.verdict == "refuted"
    assert exact.witness is not None
    again = replayed_lower(of, Witness.from_dict(exact.witness.to_dict()))
    assert float(again.delta(np.array([2.0]))[0]) == exact.delta_lower


def test_the_words_name_the_user_and_what_is_assumed() -> None:
    of = claim(TREE)
    user = check(Claim(of.epsilon, of.delta, of.phases, unit="user", id="a"))
    text = " ".join([user.reason, *user.assumptions])
    assert "record" not in text
    for words in (
        "the presence of one user",
        "the unit is a user",
        "a user takes part in every 8-th step",
        "adaptivity costs nothing with normal noise: Denisov et al. (2022)",
        "before any normalising of C",
        "sensitivity 6.32456 clips in 80 steps, met by taking part in steps 0, 8, 16, 24, ...",
    ):
        assert words in text
    assert "record" in " ".join(check(of).assumptions)


@pytest.mark.parametrize(
    "strategy",
    [Identity(), SquareRootToeplitz(), BandedToeplitz(3), BandedToeplitz(diagonals=(1.0, 0.4)), BLT((0.9,), (0.2,)),
     Tree(), Tree(8, "all")],
    ids=lambda strategy: json.dumps(str(strategy)),
)  # fmt: skip
def test_claims_go_to_a_file_and_back(strategy: Strategy) -> None:
    of = claim(Correlation(strategy, Participation("min-sep", separation=3, times=2)))
    of = Claim(of.epsilon, of.delta, of.phases, unit="user", id="a")
    assert claim_from_dict(json.loads(json.dumps(claim_to_dict(of)))) == of


def _npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    import io

    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def written(folder: Path, data: bytes, strategy: str = "C.npy") -> Path:
    (folder / "C.npy").write_bytes(data)
    path = folder / "claims.toml"
    path.write_text(TEXT.replace('"tree"', f'"{strategy}"'))
    return path


def test_a_matrix_beside_the_claims_is_read(tmp_path: Path) -> None:
    entries = np.tril(np.ones((16, 16)))
    (found,) = load_claims(written(tmp_path, _npy_bytes(np.asfortranarray(entries.astype(np.float32)))))
    (same,) = load_claims(written(tmp_path, _npy_bytes(entries)))
    (phase,) = same.phases
    assert phase.correlation is not None
    assert phase.correlation.sensitivity(16).exact
    assert found.phases != same.phases  # two files
    given = json.loads(json.dumps(claim_to_dict(same)))
    assert claim_from_dict(given, folder=tmp_path) == same
    with pytest.raises(ClaimFileError, match="only in a claims file"):
        claim_from_dict(given)
    (tmp_path / "C.npy").write_bytes(_npy_bytes(2 * entries))
    with pytest.raises(ClaimFileError, match=r"C\.npy with sha256"):
        claim_from_dict(given, folder=tmp_path)


class _Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_npy_bytes(np.array([_Payload()], dtype=object)), "of dtype object to hold integers, or floats"),
        (_npy_bytes(np.ones((16, 16)))[:-8], "to hold a matrix of 2048 bytes"),
        (_npy_bytes(np.ones(16)), "to hold a matrix"),
        (_npy_bytes(np.ones((16, 16), dtype=complex)), "of dtype complex128"),
        (_npy_bytes(np.ones((8, 8))), "steps=16 to be the columns of C.npy, 8"),
        (b"PK\x03\x04" + bytes(100), "in version 1.0 or 2.0 of the .npy format"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99999999, 99999999), }", "format"),
        (b"", "in version 1.0 or 2.0 of the .npy format"),
        (b"\x93NUMPY\x01\x00\x03\x00(((", "in version 1.0 or 2.0 of the .npy format"),
    ],
)
def test_hostile_matrices_are_refused(
    data: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClaimFileError, match=reason):
        load_claims(written(tmp_path, data))
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ("../C.npy", "to be a path below the claims file's folder"),
        ("/etc/C.npy", "to be a path below the claims file's folder"),
        ("missing.npy", r"missing\.npy: No such file"),
        ("folder.npy", r"folder\.npy to be a regular file"),
        ("pipe.npy", r"pipe\.npy to be a regular file"),
        ("oak", r"correlation\.strategy='oak' among identity, square-root-toeplitz, banded-toeplitz, blt, tree, or an"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(strategy: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(ClaimFileError, match=reason):
        load_claims(written(tmp_path, b"", strategy))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('strategy = "tree"', "", r"correlation\.strategy=None among identity"),
        ('strategy = "tree"', 'strategy = "tree"\nbands = 2', r"unknown key 'correlation\.bands': expected strategy"),
        ('strategy = "tree"', 'strategy = "blt"', r"correlation\.decays and correlation\.scales"),
        ("participation =", "schema =", r"correlation\.participation to be a table with a kind"),
        ("times = 3", "often = 3", r"unknown key 'participation\.often'"),
        ("times = 3", 'times = "3"', r"participation\.times='3' to be a number"),
        ("steps = 16", "steps = 16\nsampling_prob = 0.1", "no sampling besides"),
        ("steps = 16", "steps = 1000000", "steps=1000000 to be at most 100000 with correlated noise"),
        ('kind = "min-sep", separation = 4, times = 3', 'kind = "cyclic-poisson", groups = 2, prob = 0.1',
         r"at most participation\.groups=2 diagonals with kind 'cyclic-poisson': 'tree' has 16 diagonals"),
        ('delta = 1e-5', 'delta = 1e-5\nunit = "household"', "unit"),
    ],
)  # fmt: skip
def test_mistakes_are_named(old: str, new: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ClaimFileError, match=reason) as error:
        load_claims(path)
    assert "\n" not in str(error.value)
    assert "claim 'a'" in str(error.value)


def test_noise_whose_domains_do_not_say_how_it_scales_is_refused() -> None:
    """Divided by the sensitivity it stayed as it was, and so did the bound."""

    @dataclass(frozen=True)
    class Undeclared(Gaussian):
        domains: ClassVar[dict[str, Domain]] = {"noise_multiplier": Domain(0.0, math.inf, (1.0, 9.0), "deviation")}

    with pytest.raises(ValueError, match="length_power"):
        with_noise_factor(Undeclared(1.0), 0.5)
    with pytest.raises(ValueError, match="length_power"):
        check(claim(TREE, 16, Undeclared(6.0, dimension=3)))


def test_the_rows_of_one_participation_are_moved_by_one_contribution() -> None:
    """Noise .2 under an l1.5 bound: one coordinate tells most of the first row, two of the others, never both at once.

    Truth over contributions (w, 1 - w)^(1/1.5): delta by losses rounded up to a grid, divergences in closed form.
    """
    rows, scale, p, orders = (1.0, *[0.1] * 10), 0.2, 1.5, np.array([1.5, 2.0, 3.0, 4.0])
    once = Correlation(BandedToeplitz(diagonals=rows), Participation("single"))
    told = claim(once, 20, Laplace(scale, dimension=2, clip_norm=p), epsilon=4.0)
    step, delta, divergence = 2e-3, 0.0, np.zeros(len(orders))
    for w in np.linspace(0.5, 1.0, 6):
        shifts = [row * value ** (1 / p) / scale for row in rows for value in (w, 1.0 - w) if value > 0]
        first = [
            (orders * np.exp((orders - 1) * t) + (orders - 1) * np.exp(-orders * t)) / (2 * orders - 1) for t in shifts
        ]
        divergence = np.maximum(divergence, np.log(first).sum(axis=0) / (orders - 1))
        masses, last = np.ones(1), 0
        for t in shifts:
            reach = math.ceil(t / step)
            losses = step * np.arange(-reach, reach + 1)
            below = np.where(losses < t, 0.5 * np.exp((np.clip(losses, -t, t) - t) / 2), 1.0)  # P(L <= loss)
            masses, last = np.convolve(masses, np.diff(np.append(0.0, below))), last + reach
        losses = step * (np.arange(len(masses)) - last)
        delta = max(delta, float(masses @ np.maximum(-np.expm1(4.0 - losses), 0.0)))
    found = certified_lower(told).delta(np.array([4.0]))[0]
    assert 0.98 * delta < found <= delta
    np.testing.assert_allclose(divergence_lower(told.canonical("lower"), orders), divergence, rtol=1e-6)
    assert (divergence_lower(told.canonical("lower"), orders) <= divergence).all()
