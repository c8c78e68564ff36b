"""product: the sigma_M that Algorithm 1 prescribes, and the one that really meets the target."""

from dataclasses import dataclass

from dpaudit.mechanisms.product import Product
from dpaudit.mechanisms.published.product import algorithm_1
from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.accountants.published_adapter import Published
from dpaudit.verify.calibration.costs import Target
from dpaudit.verify.calibration.noise import Calibration, calibrate
from dpaudit.verify.checking import check
from dpaudit.verify.results import Verdict


@dataclass(frozen=True)
class ProductCalibration:
    """Three ways to meet one target under one l2 bound.

    The root mean square of the noise vector's length is sigma_M for product noise and sigma sqrt(M) for Gaussian noise.

    Args:
        published_sigma: The paper's sigma_M.
        published_k: Its tuning parameter, None for a history, where Theorem 5 is inverted instead.
        published_verdict: What that sigma_M really costs.
        honest: The sigma_M that meets the target, certified.
        gaussian: The Gaussian noise that meets it, certified.
        published_factor: Length of the paper's noise over the Gaussian's.
        honest_factor: Length of the honest product noise over the Gaussian's.
    """

    published_sigma: float
    published_k: float | None
    published_verdict: Verdict
    honest: Calibration
    gaussian: Calibration
    published_factor: float
    honest_factor: float


def compare_sigmas(
    target: Target, *, dimension: int, clip: float = 1.0, k: float = 100.0, factor: float = 1.1
) -> ProductCalibration:
    """sigma_M by the paper and by the valid bound, beside the Gaussian (product, Algorithm 1 and Theorem 8).

    One unsampled release follows Algorithm 1, which raises k by `factor` until eq. (13) is at most delta, with
    Delta = clip, or 2 clip under replace-one. A history inverts Theorems 4, 5 and 8 together, which always take
    Delta = 2 clip (Corollary 5).

    Args:
        target: What is to be met; epsilon and delta > 0.
        dimension: M, above 3.
        clip: l2 bound on a contribution.
        k: Where Algorithm 1 starts, at least 1.
        factor: Its step, > 1.

    Raises:
        TypeError, ValueError: A value outside its domain.
        InfeasibleError: No noise meets the target, by the paper or in truth.
    """
    table = {"name": "product", "clip": clip, "clip_norm": 2.0, "dimension": dimension}
    if target.steps == 1 and target.sampling_prob == 1:
        sensitivity = clip * (2.0 if target.adjacency == "replace-one" else 1.0)
        sigma, found_k = algorithm_1(
            dimension=dimension, sensitivity=sensitivity, epsilon=target.epsilon, delta=target.delta, k=k, factor=factor
        )
        published_k: float | None = found_k
        verdict = check(target.claim(Product(sigma=sigma, clip=clip, dimension=dimension)))
    else:
        theirs = _solved(table, target, Published("product-theorem-8"))
        sigma, published_k, verdict = theirs.value, None, theirs.verdict
    honest = _solved(table, target, None)
    gaussian = _solved({**table, "name": "gaussian"}, target, None)
    length = gaussian.value * clip * dimension**0.5
    return ProductCalibration(
        sigma, published_k, verdict, honest, gaussian, sigma / length, honest.value / length
    )  # fmt: skip


def _solved(table: dict[str, object], target: Target, accountant: Accountant | None) -> Calibration:
    return calibrate(
        table, epsilon=target.epsilon, delta=target.delta, steps=target.steps,
        sampling_prob=target.sampling_prob, adjacency=target.adjacency, accountant=accountant,
    )  # fmt: skip
