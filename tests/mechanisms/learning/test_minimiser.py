"""Output perturbation: an exact minimiser, its proven sensitivity, and noise released once."""

import math
import pickle
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LogisticRegression

from dpaudit.mechanisms import Gaussian, Laplace, Product
from dpaudit.mechanisms.defects import CORRECT, Defect
from dpaudit.mechanisms.learning import minimiser
from dpaudit.mechanisms.learning.approximate_minima import LOSSES
from dpaudit.mechanisms.learning.minimiser import ToleranceError, find_minimum, minimise
from dpaudit.mechanisms.learning.spec import Architecture, OutputPerturbationSpec, Pool
from dpaudit.mechanisms.learning.training import train

INPUTS, LAMBDA = 30, 4.0
Data = tuple[NDArray[np.float64], NDArray[np.int64]]


def two_classes(seed: int, count: int = 200, inputs: int = INPUTS) -> Data:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    x = rng.normal(size=(count, inputs)) + np.outer(2 * y - 1, np.ones(inputs) * 0.3)
    return x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None] * rng.uniform(0.3, 1, (count, 1)), y


def specification(**changes: object) -> OutputPerturbationSpec:
    spec = OutputPerturbationSpec(
        architecture=Architecture("logistic", INPUTS, 2), mechanism=Product(0.5, clip=1 / LAMBDA),
        expected_batch_size=200.0, regularization=LAMBDA,
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


def pool_of(data: Data) -> Pool:
    return Pool(data[0].astype(np.float32), data[1])


@pytest.mark.parametrize("regularization", [1e-3, 0.1, 10.0])
def test_the_minimum_agrees_with_fifty_digits(regularization: float) -> None:
    x, y = two_classes(1, count=12, inputs=3)

    def gradient(*w: mpmath.mpf) -> list[mpmath.mpf]:
        total = [regularization * v for v in w]
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            sign = 2 * label - 1
            margin = sign * mpmath.fsum(a * b for a, b in zip(row, w, strict=True))
            total = [t - sign * a / (1 + mpmath.exp(margin)) for t, a in zip(total, row, strict=True)]
        return total

    found = find_minimum(x, y, regularization)
    with mpmath.workdps(50):
        exact = mpmath.findroot(gradient, [mpmath.mpf(v) for v in found.weights], tol=1e-80)
        error = float(
            mpmath.sqrt(mpmath.fsum((a - b) ** 2 for a, b in zip(exact, found.weights.tolist(), strict=True)))
        )
    size = float(np.linalg.norm(found.weights))
    assert error <= found.gradient_upper / regularization
    assert error < 1e-11 * (1 + size)


def test_the_minimum_agrees_with_scikit_learn() -> None:
    x, y = two_classes(2)
    expected = LogisticRegression(C=1 / LAMBDA, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(x, y).coef_[0]
    np.testing.assert_allclose(minimise(x, y, LAMBDA), expected, atol=1e-7)


def test_the_minimum_is_found_in_hundreds_of_dimensions_and_nearly_separable_data() -> None:
    x, y = two_classes(3, count=500, inputs=784)
    for regularization in (1e-4, 10.0):
        found = find_minimum(x, y, regularization)
        assert found.gradient_upper / regularization < 1e-7 * np.linalg.norm(
            found.weights
        )  # 1e-4 allows little: sums of 500 are rounded


def test_rows_longer_than_one_are_scaled_to_one_and_others_are_not() -> None:
    x, y = two_classes(4)
    long = x.copy()
    long[:50] *= 7 / np.linalg.norm(x[:50], axis=1)[:, None]
    unit = x.copy()
    unit[:50] /= np.linalg.norm(x[:50], axis=1)[:, None]
    np.testing.assert_allclose(minimise(long, y, LAMBDA), minimise(unit, y, LAMBDA), atol=1e-12)
    assert np.abs(minimise(x, y, LAMBDA) - minimise(unit, y, LAMBDA)).max() > 1e-3


def test_one_record_moves_the_minimum_by_at_most_its_sensitivity_and_nearly_that_far() -> None:
    x, y = two_classes(5, count=20)
    rng, base, moved = np.random.default_rng(6), minimise(x, y, LAMBDA), []
    for _ in range(40):
        other_x, other_y = x.copy(), y.copy()
        other_x[0] = rng.normal(size=INPUTS) * 10
        other_y[0] = rng.integers(0, 2)
        moved.append(np.linalg.norm(minimise(other_x, other_y, LAMBDA) - base))
    assert max(moved) <= 2 / LAMBDA
    # with huge weights a misclassified record has a gradient of length 1: here the bound is nearly attained
    axis = np.eye(INPUTS)
    many = np.vstack([np.repeat(axis[:1], 3000, axis=0), axis[:1], axis[:1]])
    labels = np.ones(3002, dtype=np.int64)
    phi = 0.35
    for row, sign in ((3000, 1), (3001, -1)):
        many[row] = -math.sin(phi) * axis[0] + sign * math.cos(phi) * axis[1]
    with_one, with_other = (
        minimise(np.delete(many, row, axis=0), np.delete(labels, row), LAMBDA * 10) for row in (3001, 3000)
    )
    shift = float(np.linalg.norm(with_one - with_other))
    assert 0.6 * 2 / (LAMBDA * 10) < shift <= 2 / (LAMBDA * 10)


def test_releases_are_the_minimum_plus_noise_of_the_stated_law() -> None:
    data, count = two_classes(7), 3000
    pool, spec = pool_of(data), specification()
    models = minimiser.train(spec, pool, np.ones((count, 200), dtype=bool), range(count))
    noise = models.parameters["weight"].double().numpy()[:, 0] - minimise(pool.x, pool.y, LAMBDA)
    radii = np.linalg.norm(noise, axis=1)
    law = stats.halfnorm(scale=0.5)  # alpha 1e-6 each, fixed seeds
    assert stats.kstest(radii, law.cdf).pvalue > 1e-6
    assert stats.kstest(radii * 1.2, law.cdf).pvalue < 1e-6
    assert np.abs((noise / radii[:, None]).mean(axis=0)).max() < 6 / math.sqrt(INPUTS * count)  # 30 means: P < 1e-7


def test_equal_members_share_one_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []

    def counted(*arguments: object) -> minimiser.Minimum:
        solved.append(1)
        return find_minimum(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(minimiser, "find_minimum", counted)
    monkeypatch.setattr(minimiser, "_SOLUTIONS", {})
    members = np.ones((500, 200), dtype=bool)
    members[::2, 3] = False
    pool, spec = pool_of(two_classes(8)), specification(mechanism=Gaussian(1e-6, clip=1 / LAMBDA))
    models = minimiser.train(spec, pool, members, range(500))
    again = minimiser.train(spec, pool, members[:3], range(3))
    assert len(solved) == 2
    for model in (0, 1, 498, 499):
        expected = minimise(pool.x[members[model]], pool.y[members[model]], LAMBDA)
        np.testing.assert_allclose(models.parameters["weight"][model, 0], expected, atol=5e-6)
    assert again.parameters["weight"].equal(models.parameters["weight"][:3])
    changed = Pool(pool.x.copy(), 1 - pool.y)
    assert (
        not minimiser.train(spec, changed, members[:3], range(3)).parameters["weight"].equal(again.parameters["weight"])
    )


def test_planted_faults_do_what_they_say() -> None:
    pool, everyone, base = pool_of(two_classes(9)), np.ones((2, 200), dtype=bool), specification()
    pool.x[:50] *= 5
    w = minimise(pool.x, pool.y, LAMBDA)

    def released(defect: Defect) -> NDArray[np.float64]:
        spec = replace(base, defect=defect)
        return minimiser.train(spec, pool, everyone, [1, 2]).parameters["weight"].double().numpy()[:, 0]

    noise = released(CORRECT) - w
    np.testing.assert_allclose(released(Defect(noise_factor=0.5)) - w, 0.5 * noise, atol=1e-6)
    np.testing.assert_allclose(released(Defect(divide_before_noise=True)) - w, noise / 200, atol=1e-6)
    fixed = released(Defect(fixed_seed=3))
    assert np.array_equal(fixed[0], fixed[1])
    assert not np.array_equal(*released(CORRECT))
    longest, lengths = np.abs(pool.x).max(axis=1), np.linalg.norm(pool.x, axis=1)
    for defect, sizes in (
        (Defect(clip_norm=math.inf), longest),
        (Defect(unclipped_class=1), np.where(pool.y == 1, 1, lengths)),
    ):
        scaled = pool.x.astype(np.float64) / np.maximum(1, sizes)[:, None]
        expected = find_minimum(scaled, pool.y, LAMBDA).weights
        np.testing.assert_allclose(released(defect) - noise, np.tile(expected, (2, 1)), atol=1e-5)
        assert np.abs(expected - w).max() > 1e-2


def test_the_ledger_says_what_happened() -> None:
    done: list[int] = []
    members = np.ones((3, 200), dtype=bool)
    members[0, :20] = False
    ledger = minimiser.train(specification(), pool_of(two_classes(10)), members, range(3), progress=done.append).ledger
    assert (ledger.noise_draws, ledger.batch_sizes, ledger.sampling_prob, sum(done)) == (1, (180,), 1.0, 3)
    assert (ledger.engine, ledger.device, ledger.clip, ledger.clip_norm) == ("minimiser", "cpu", 1 / LAMBDA, 2.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architecture": Architecture("linear", INPUTS, 2)}, "Expected architecture='linear' and algorithm="),
        ({"regularization": 0.0}, r"Expected regularization=0\.0 in \(0, inf\)"),
        ({"mechanism": Product(0.5, clip=0.9 / LAMBDA)}, r"mechanism\.clip: Expected 0\.225 to be at least 0\.25"),
        ({"mechanism": Laplace(0.5, clip=1.0, clip_norm=1.0)}, r"mechanism\.clip_norm: Expected 1\.0 to be at least 2"),
    ],
)
def test_what_was_not_accounted_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        train(specification(**changes), pool_of(two_classes(11)), np.ones((1, 200), dtype=bool), [1])


def test_a_gradient_that_rounding_keeps_away_from_zero_is_no_minimum() -> None:
    x, y = two_classes(13)
    reached = find_minimum(x, y, LAMBDA, accepted=math.inf)
    assert 0 < reached.gradient_upper < 1e-10
    with pytest.raises(
        ToleranceError, match=r"Expected a gradient of norm at most 1e-30 .* the least that can be vouched for is"
    ) as no:
        find_minimum(x, y, LAMBDA, accepted=1e-30)
    assert str(pickle.loads(pickle.dumps(no.value))) == str(no.value)  # workers hand it to the parent


@pytest.mark.parametrize("size", [0.0, 1.0, 1e5, 1e9])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_bound_on_the_gradient_holds_in_fifty_digits_and_is_not_far_off(loss: str, size: float) -> None:
    """At 1e9 the computed gradient is often exactly 0, when the true one is not."""
    rng, ratios = np.random.default_rng(14), []
    for _ in range(8):
        x, y = two_classes(int(rng.integers(1 << 30)), count=40, inputs=5)
        linear = size * rng.normal(size=5)
        found = find_minimum(x, y, LAMBDA, loss=LOSSES[loss], linear=linear, accepted=math.inf)
        with mpmath.workdps(50):
            total = [LAMBDA * mpmath.mpf(w) + mpmath.mpf(b) for w, b in zip(found.weights, linear, strict=True)]
            for row, label in zip(x.tolist(), y.tolist(), strict=True):
                sign = 2 * label - 1
                margin = sign * mpmath.fsum(mpmath.mpf(a) * w for a, w in zip(row, found.weights.tolist(), strict=True))
                if loss == "logistic":
                    slope = 1 / (1 + mpmath.exp(margin))
                else:
                    slope = min(max((mpmath.mpf("1.1") - margin) / mpmath.mpf("0.2"), 0), 1)
                total = [t - slope * sign * a for t, a in zip(total, row, strict=True)]
            true = float(mpmath.sqrt(mpmath.fsum(t * t for t in total)))
        assert true <= found.gradient_upper
        ratios.append(found.gradient_upper / max(true, 1e-300))
    assert min(ratios) < 1000


def test_other_labels_and_regularizations_are_refused() -> None:
    x, y = two_classes(12)
    with pytest.raises(ValueError, match=r"Expected labels \[1, 2\] to be 0 and 1"):
        minimise(x, y + 1, LAMBDA)
    with pytest.raises(ValueError, match=r"Expected regularization=-1\.0 in"):
        minimise(x, y, -1.0)
