"""Microsoft's prv_accountant (Gopi, Lee and Wutschitz 2021): normal noise, and Laplace noise without sampling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dpaudit.mechanisms.base import LaplaceCoordinates
from dpaudit.verify.accountants.base import PackageAccountant, gaussian_multiplier, laplace_multiplier, quiet
from dpaudit.verify.claims import Phase

DELTA_SHARE = 1e-3  # of delta that may be lost to truncation, as the package advises


@dataclass(frozen=True)
class PRVAccountant(PackageAccountant):
    """The upper end of the package's bracket.

    Args:
        eps_error: Its stated error in epsilon.

    Raises:
        ImportError: prv_accountant is not installed.
    """

    package: ClassVar[str] = "prv_accountant"
    eps_error: float = 0.01

    def history(self, phases: Sequence[Phase], delta: float) -> float:
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
    if isinstance(structure, LaplaceCoordinates):
        if q < 1:
            raise NotImplementedError("Expected sampling_prob=1 for Laplace noise.")
        return LaplaceMechanism(mu=1.0 / laplace_multiplier(phase.mechanism))
    multiplier = gaussian_multiplier(phase.mechanism)
    if q < 1:
        return PoissonSubsampledGaussianMechanism(noise_multiplier=multiplier, sampling_probability=q)
    return GaussianMechanism(noise_multiplier=multiplier)
