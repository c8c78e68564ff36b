"""What is certain: upper bounds from proofs, lower bounds from witnesses, bounds from counts, the verdict."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpaudit.verify.accountants.audit import audit_accountant as audit_accountant
    from dpaudit.verify.accountants.table import cross_check as cross_check
    from dpaudit.verify.calibration.noise import calibrate as calibrate
    from dpaudit.verify.checking import check as check
    from dpaudit.verify.claims import Claim as Claim
    from dpaudit.verify.claims import Phase as Phase
    from dpaudit.verify.results import Verdict as Verdict

_HOMES = {
    "Claim": "dpaudit.verify.claims",
    "Phase": "dpaudit.verify.claims",
    "Verdict": "dpaudit.verify.results",
    "audit_accountant": "dpaudit.verify.accountants.audit",
    "calibrate": "dpaudit.verify.calibration.noise",
    "check": "dpaudit.verify.checking",
    "cross_check": "dpaudit.verify.accountants.table",
}
__all__ = ["Claim", "Phase", "Verdict", "audit_accountant", "calibrate", "check", "cross_check"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
