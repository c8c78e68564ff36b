"""What is certain: upper bounds from proofs, lower bounds from witnesses, bounds from counts, the verdict."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attributes

if TYPE_CHECKING:
    from dpaudit.verify.accountants.audit import audit_accountant as audit_accountant
    from dpaudit.verify.accountants.table import cross_check as cross_check
    from dpaudit.verify.calibration.noise import calibrate as calibrate
    from dpaudit.verify.checking import check as check
    from dpaudit.verify.claims import Claim as Claim
    from dpaudit.verify.claims import Phase as Phase
    from dpaudit.verify.results import Verdict as Verdict
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "accountants.audit": ["audit_accountant"],
            "accountants.table": ["cross_check"],
            "calibration.noise": ["calibrate"],
            "checking": ["check"],
            "claims": ["Claim", "Phase"],
            "results": ["Verdict"],
        },
    )

__all__ = ["Claim", "Phase", "Verdict", "audit_accountant", "calibrate", "check", "cross_check"]
