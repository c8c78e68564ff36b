"""Opacus's accountants (Yousefpour et al. 2021): Gaussian noise only. Imports opacus, and with it torch, when asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dpaudit.verify.accountants.base import PackageAccountant, gaussian_multiplier, quiet
from dpaudit.verify.claims import Phase


@dataclass(frozen=True)
class Opacus(PackageAccountant):
    """One of Opacus's accountants.

    Args:
        kind: "rdp" (Mironov, Talwar and Zhang 2019), "gdp" (the central limit theorem of Bu et al. 2020, no bound),
            or "prv" (Gopi, Lee and Wutschitz 2021; its upper end at Opacus's default errors).

    Raises:
        ImportError: opacus is not installed.
    """

    package: ClassVar[str] = "opacus"
    kind: Literal["rdp", "gdp", "prv"]

    def history(self, phases: Sequence[Phase], delta: float) -> float:
        multipliers = [gaussian_multiplier(phase.mechanism) for phase in phases]
        with quiet():
            from opacus.accountants import create_accountant

            accountant = create_accountant(self.kind)
            for multiplier, phase in zip(multipliers, phases, strict=True):
                # step() is meant to be called once per release; its record of the run holds a count
                accountant.step(noise_multiplier=multiplier, sample_rate=phase.sampling_prob)
                if phase.steps > 1:
                    last, rate, count = accountant.history[-1]
                    accountant.history[-1] = (last, rate, count + phase.steps - 1)
            return float(accountant.get_epsilon(delta))
