"""Approximate minima: the perturbed minimum against scipy's, its density against a simulation, the sensitivities."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import optimize, stats

from dpaudit.mechanisms import Gaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.clipping import clip_records
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning.approximate_minima import HALF_WIDTH, LOSSES, implied_noise, jacobian_loss
from dpaudit.mechanisms.learning.minimiser import ToleranceError, find_minimum
from dpaudit.mechanisms.learning.noise import Streams, draw
from dpaudit.mechanisms.learning.spec import ApproximateMinimaSpec, Architecture, Pool
from dpaudit.mechanisms.learning.training import train

INPUTS, RECORDS, LAMBDA, GAMMA = 6, 80, 3.0, 1e-6
CPU = torch.device("cpu")
Array = NDArray[np.float64]


def pool(seed: int = 1, records: int = RECORDS, inputs: int = INPUTS) -> Pool:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, records)
    x = rng.normal(size=(records, inputs)) + (2 * y - 1)[:, None] * 0.4
    return Pool((x / 2).astype(np.float32), y)


def specification(**changes: object) -> ApproximateMinimaSpec:
    spec = ApproximateMinimaSpec(
        architecture=Architecture("logistic", INPUTS, 2), mechanism=Gaussian(2.0), expected_batch_size=RECORDS,
        regularization=LAMBDA, gradient_norm=GAMMA, output_mechanism=Gaussian(2.0, clip=2 * GAMMA / LAMBDA),
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


def plain_loss(name: str, margin: float) -> float:
    """As printed, but for the factor 1/h of the square, without which the Huber loss would jump at 1 - h."""
    if name == "logistic":
        return float(mpmath.log(1 + mpmath.exp(-margin)))
    if 1 - margin > HALF_WIDTH:
        return 1 - margin
    if 1 - margin < -HALF_WIDTH:
        return 0.0
    return (1 - margin) ** 2 / (4 * HALF_WIDTH) + (1 - margin) / 2 + HALF_WIDTH / 4


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("margin", [-40.0, -1.0, 0.85, 0.95, 1.0, 1.07, 1.2, 30.0])
def test_losses_and_their_derivatives(loss: str, margin: float) -> None:
    own, at = LOSSES[loss], np.array([margin])
    assert own.value(at)[0] == pytest.approx(plain_loss(loss, margin), rel=1e-12, abs=1e-15)
    slope, bend = (mpmath.diff(lambda m: plain_loss(loss, m), margin, k, h=1e-4) for k in (1, 2))
    assert own.descent(at)[0] == pytest.approx(-float(slope), abs=1e-6)
    assert own.curvature(at)[0] == pytest.approx(float(bend), abs=1e-3)
    assert own.curvature(at)[0] <= own.smoothness


def test_the_huber_loss_as_printed_jumps() -> None:
    """product, Appendix E.1, prints (1-z)^2/4 in the middle: at 1 - z = h it misses the line by h/4 - h^2/4."""
    printed = HALF_WIDTH**2 / 4 + HALF_WIDTH / 2 + HALF_WIDTH / 4
    assert printed == pytest.approx(HALF_WIDTH - 0.0225)
    for end in (1 - HALF_WIDTH, 1 + HALF_WIDTH):
        near = LOSSES["huber"].value(np.array([end - 1e-9, end + 1e-9]))
        assert near[0] == pytest.approx(near[1], abs=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("mechanism", [Gaussian(2.0), Laplace(4.0), Product(3.0)], ids=lambda m: m.name)
def test_what_is_released_is_scipys_minimum_plus_the_second_noise(loss: str, mechanism: Mechanism) -> None:
    spec, data = specification(loss=loss, mechanism=mechanism), pool()
    released = train(spec, data, np.ones((1, RECORDS), dtype=bool), [5]).parameters["weight"][0, 0].double().numpy()
    stream = Streams(5, CPU)
    first, second = (draw(m, stream.noise, INPUTS, CPU).double().numpy() for m in (mechanism, spec.output_mechanism))
    signed = clip_records(data.x, 1.0, 2.0) * (2.0 * data.y - 1)[:, None]

    def objective(w: Array) -> float:
        losses = sum(plain_loss(loss, float(m)) for m in signed @ w)
        return losses + LAMBDA / 2 * float(w @ w) + float(first @ w)

    expected = optimize.minimize(objective, np.zeros(INPUTS), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(released, expected.x + second, atol=3e-5)
    assert objective(released - second) <= expected.fun + 1e-9
    implied = implied_noise(released[None] - second, data.x, data.y, spec)[0]
    np.testing.assert_allclose(implied, first, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_at_what_is_found_is_within_the_bound(loss: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        data = pool(int(rng.integers(1 << 30)), records=int(rng.integers(1, 200)))
        linear = rng.normal(size=INPUTS) * 10 ** rng.uniform(-2, 3)
        regularization = 10 ** rng.uniform(-1, 3)
        x = clip_records(data.x, 1.0, 2.0)
        w = find_minimum(x, data.y, regularization, loss=LOSSES[loss], linear=linear, accepted=GAMMA).weights
        signed = x * (2.0 * data.y - 1)[:, None]
        slopes = [float(mpmath.diff(lambda m: plain_loss(loss, m), m, h=1e-6)) for m in (signed @ w).tolist()]
        assert np.linalg.norm(np.array(slopes) @ signed + regularization * w + linear) <= 1e-4
        exact = regularization * w + linear - LOSSES[loss].descent(signed @ w) @ signed
        assert np.linalg.norm(exact) <= GAMMA


@pytest.mark.parametrize("loss", LOSSES)
def test_one_record_moves_the_implied_noise_by_one_and_the_determinant_by_the_jacobian_loss(loss: str) -> None:
    data, rng = pool(records=12), np.random.default_rng(4)
    weights = rng.normal(size=(400, INPUTS)) * 1.5
    spec = specification(loss=loss)
    fewer = Pool(data.x[1:], data.y[1:])
    moved = implied_noise(weights, data.x, data.y, spec) - implied_noise(weights, fewer.x, fewer.y, spec)
    assert np.linalg.norm(moved, axis=1).max() <= 1 + 1e-12

    def log_determinant(part: Pool, w: Array) -> float:
        signed = clip_records(part.x, 1.0, 2.0) * (2.0 * part.y - 1)[:, None]
        hessian = signed.T @ (LOSSES[loss].curvature(signed @ w)[:, None] * signed) + LAMBDA * np.eye(INPUTS)
        return float(np.linalg.slogdet(hessian)[1])

    changes = [log_determinant(data, w) - log_determinant(fewer, w) for w in weights]
    assert min(changes) >= -1e-12
    assert 0 < max(changes) <= jacobian_loss(loss, LAMBDA)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_the_released_minimum_has_the_density_of_its_implied_noise(loss: str) -> None:
    """One coordinate: P(w <= t) = P(b(t) <= b), as b(w) falls; a Kolmogorov-Smirnov test of 2,000 releases."""
    data = pool(6, records=5, inputs=1)
    spec = specification(loss=loss, architecture=Architecture("logistic", 1, 2), mechanism=Gaussian(2.0))
    released = train(spec, data, np.ones((2000, 5), dtype=bool), range(2000)).parameters["weight"][:, 0, 0].numpy()

    def law(t: Array) -> Array:
        return np.asarray(stats.norm.sf(implied_noise(np.asarray(t)[:, None], data.x, data.y, spec)[:, 0] / 2.0))

    assert stats.kstest(released, law).pvalue > 1e-3
    assert stats.kstest(released, lambda t: law(np.asarray(t) * 1.3)).pvalue < 1e-6


def test_two_neighbours_approximate_minima_can_be_twice_the_papers_sensitivity_apart() -> None:
    """Records that are 0 leave J = Lambda/2 |w|^2 on both sides: points Gamma/Lambda either way are both accepted."""
    spec, direction = specification(gradient_norm=1e-2), np.eye(INPUTS)[0]
    points = []
    for sign, records in ((1, 3), (-1, 4)):
        x, y = np.zeros((records, INPUTS), np.float32), np.zeros(records, np.int64)
        at = sign * spec.gradient_norm / LAMBDA * direction
        assert np.linalg.norm(implied_noise(at[None], x, y, spec)) == pytest.approx(spec.gradient_norm, rel=1e-12)
        points.append(at)
    assert np.linalg.norm(points[0] - points[1]) == pytest.approx(2 * spec.gradient_norm / LAMBDA)


def test_ledger_defects_and_seeds() -> None:
    data, members = pool(), np.ones((3, RECORDS), dtype=bool)
    models = train(specification(), data, members, [1, 2, 3])
    assert models.ledger.releases == (1, 1)
    assert models.ledger.noise_draws == 2
    again = train(specification(), data, members[:1], [2])
    assert again.parameters["weight"][0].equal(models.parameters["weight"][1])
    none = train(specification(defect=Defect(noise_factor=0.0)), data, members, [1, 2, 3]).parameters["weight"]
    exact = find_minimum(clip_records(data.x, 1.0, 2.0), data.y, LAMBDA).weights
    np.testing.assert_allclose(none[:, 0].numpy(), np.tile(exact, (3, 1)), atol=1e-6)
    fixed = train(specification(defect=Defect(fixed_seed=7)), data, members, [1, 2, 3]).parameters["weight"]
    assert fixed[0].equal(fixed[2])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gradient_norm": 1e-9}, r"Expected gradient_norm=1e-09 >= 8e-09"),
        ({"mechanism": Gaussian(1e60)}, "Expected the noise of mechanism and output_mechanism to be finite"),
        ({"regularization": 0.0}, r"Expected regularization=0\.0 in \(0, inf\)"),
        ({"mechanism": Gaussian(2.0, clip=0.9)}, r"mechanism\.clip: Expected 0\.9 to be at least 1"),
        ({"mechanism": Gaussian(2.0, clip_norm=1.0)}, r"mechanism\.clip_norm: Expected 1\.0 to be at least 2"),
        (
            {"output_mechanism": Gaussian(2.0, clip=1e-7)},
            r"output_mechanism\.clip: Expected 1e-07 to be at least 3\.33333e-07",
        ),
        ({"loss": "hinge"}, "Expected loss='hinge' to be one of logistic, huber"),
        ({"architecture": Architecture("linear", INPUTS, 2)}, "Expected architecture='linear' and algorithm="),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        train(specification(**changes), pool(), np.ones((1, RECORDS), dtype=bool), [1])  # type: ignore[arg-type]


def test_a_gradient_norm_below_rounding_is_refused_with_one_that_is_not() -> None:
    """Noise of 1e9 in the objective: gradients are sums of such numbers, known to 1e-7 or so."""
    loud = {"mechanism": Gaussian(1e9), "gradient_norm": 1e-8}
    members = np.ones((1, RECORDS), dtype=bool)
    with pytest.raises(ToleranceError, match=r"Expected gradient_norm=1e-08 to be at least \S+: ") as caught:
        train(specification(**loud), pool(), members, [1])
    named = float(str(caught.value).split("at least ")[1].split(":")[0])
    output = Gaussian(2.0, clip=2 * named / LAMBDA)
    train(specification(**{**loud, "gradient_norm": named, "output_mechanism": output}), pool(), members, [1])
    with pytest.raises(ToleranceError, match="to be at least"):
        train(
            specification(**{**loud, "gradient_norm": named / 1.03, "output_mechanism": output}), pool(), members, [1]
        )


def test_the_jacobian_loss_is_below_the_papers_bound() -> None:
    """log(1 + beta/Lambda) against -log(1 - r beta/Lambda), r = 2 (Iyengar et al., Lemma IV.2)."""
    for loss, own in LOSSES.items():
        assert jacobian_loss(loss, 20.0) < -math.log(1 - 2 * own.smoothness / 20.0)
