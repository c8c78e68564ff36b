"""Google's dp-accounting (0.5 and later): normal and Laplace noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dpaudit.mechanisms.base import LaplaceCoordinates
from dpaudit.verify.accountants.base import PackageAccountant, gaussian_multiplier, laplace_multiplier, quiet
from dpaudit.verify.claims import Phase


@dataclass(frozen=True)
class DPAccounting(PackageAccountant):
    """One of dp-accounting's accountants, at its default settings, under add-or-remove-one.

    Args:
        kind: "rdp", or "pld" (Doroshenko et al. 2022; pessimistic).
        interval: Width of the grid of privacy losses ("pld").

    Raises:
        ImportError: dp-accounting is not installed.
    """

    package: ClassVar[str] = "dp_accounting"
    kind: Literal["rdp", "pld"]
    interval: float = 1e-4

    def history(self, phases: Sequence[Phase], delta: float) -> float:
        events = [_event(phase) for phase in phases]
        with quiet():
            accountant = self._accountant()
            for phase, event in zip(phases, events, strict=True):
                if not accountant.supports(event):
                    raise NotImplementedError(
                        f"Expected mechanism={phase.mechanism.name!r} to be known to {self.kind}."
                    )
                accountant.compose(event)
            return float(accountant.get_epsilon(delta))

    def _accountant(self) -> Any:
        if self.kind == "rdp":
            from dp_accounting.rdp import RdpAccountant

            return RdpAccountant()
        from dp_accounting.pld import PLDAccountant

        return PLDAccountant(value_discretization_interval=self.interval)


def _event(phase: Phase) -> Any:
    import dp_accounting

    structure = phase.mechanism.structure
    if isinstance(structure, LaplaceCoordinates):
        noise = dp_accounting.LaplaceDpEvent(laplace_multiplier(phase.mechanism))
    else:
        noise = dp_accounting.GaussianDpEvent(gaussian_multiplier(phase.mechanism))
    sampled = dp_accounting.PoissonSampledDpEvent(phase.sampling_prob, noise) if phase.sampling_prob < 1 else noise
    return dp_accounting.SelfComposedDpEvent(sampled, phase.steps)
