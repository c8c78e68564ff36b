"""Microsoft's prv_accountant (Gopi, Lee and Wutschitz 2021): normal noise, and Laplace noise without sampling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpaudit.mechanisms.base import IIDCoordinates, Mechanism
from dpaudit.verify.accountants.base import gaussian_multiplier, laplace_multiplier, quiet, require_package
from dpaudit.verify.claims import Phase

DELTA_SHARE = 1e-3  # of delta that may be lost to truncation, as the package advises


@dataclass(frozen=True)
class PRVAccountant:
    """The upper end of the package's bracket.

    Args:
        eps_error: Its stated error in epsilon.

    Raises:
        ImportError: prv_accountant is not installed.
    """

    eps_error: float = 0.01

    def __post_init__(self) -> None:
        require_package("prv_accountant")

    def __call__(self, mechanism: Mechanism, sampling_prob: float, steps: int, delta: float, /) -> float:
        """epsilon at delta of `steps` releases.

        Raises:
            NotImplementedError: The package has no such privacy random variable.
        """
        return self.history([Phase(mechanism, steps, sampling_prob)], delta)

    def history(self, phases: Sequence[Phase], delta: float) -> float:
        """epsilon at delta of all phases together.

        Raises:
            NotImplementedError: The package has no such privacy random variable.
        """
        counts = [int(phase.steps) for phase in phases]
        with quiet():
            from prv_accountant import PRVAccountant as Package

            accountant = Package(
                prvs=[_variable(phase) for phase in phases],
                max_self_compositions=counts,
                eps_error=self.eps_error,
                delta_error=delta * DELTA_SHARE,
            )
            _, _, upper = accountant.compute_epsilon(delta, counts)
            return float(upper)


def _variable(phase: Phase) -> Any:
    from prv_accountant import GaussianMechanism, LaplaceMechanism, PoissonSubsampledGaussianMechanism

    structure, q = phase.mechanism.structure, phase.sampling_prob
    if isinstance(structure, IIDCoordinates) and structure.laplace_scale is not None:
        if q < 1:
            raise NotImplementedError("Expected sampling_prob=1 for Laplace noise.")
        return LaplaceMechanism(mu=1.0 / laplace_multiplier(phase.mechanism))
    multiplier = gaussian_multiplier(phase.mechanism)
    if q < 1:
        return PoissonSubsampledGaussianMechanism(noise_multiplier=multiplier, sampling_probability=q)
    return GaussianMechanism(noise_multiplier=multiplier)
