"""What is certain: upper bounds from proofs, lower bounds from witnesses, bounds from counts, the verdict."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attributes

if TYPE_CHECKING:
    from dpaudit.verify.accountants.audit import audit_accountant as audit_accountant
    from dpaudit.verify.accountants.dp_accounting_adapter import claim_from_dp_event as claim_from_dp_event
    from dpaudit.verify.accountants.dp_accounting_adapter import dp_event_from_claim as dp_event_from_claim
    from dpaudit.verify.accountants.table import cross_check as cross_check
    from dpaudit.verify.black_box import check_sampler as check_sampler
    from dpaudit.verify.calibration.noise import calibrate as calibrate
    from dpaudit.verify.checking import check as check
    from dpaudit.verify.claims import Claim as Claim
    from dpaudit.verify.claims import Phase as Phase
    from dpaudit.verify.guarantees import ApproximateDP as ApproximateDP
    from dpaudit.verify.guarantees import GaussianDP as GaussianDP
    from dpaudit.verify.guarantees import PrivacyCurve as PrivacyCurve
    from dpaudit.verify.guarantees import PureDP as PureDP
    from dpaudit.verify.guarantees import RenyiDP as RenyiDP
    from dpaudit.verify.guarantees import ZeroConcentratedDP as ZeroConcentratedDP
    from dpaudit.verify.implied import claim_stating as claim_stating
    from dpaudit.verify.results import Verdict as Verdict
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "accountants.audit": ["audit_accountant"],
            "accountants.dp_accounting_adapter": ["claim_from_dp_event", "dp_event_from_claim"],
            "accountants.table": ["cross_check"],
            "black_box": ["check_sampler"],
            "calibration.noise": ["calibrate"],
            "checking": ["check"],
            "claims": ["Claim", "Phase"],
            "guarantees": ["ApproximateDP", "GaussianDP", "PrivacyCurve", "PureDP", "RenyiDP", "ZeroConcentratedDP"],
            "implied": ["claim_stating"],
            "results": ["Verdict"],
        },
    )

__all__ = [
    "ApproximateDP",
    "Claim",
    "GaussianDP",
    "Phase",
    "PrivacyCurve",
    "PureDP",
    "RenyiDP",
    "Verdict",
    "ZeroConcentratedDP",
    "audit_accountant",
    "calibrate",
    "check",
    "check_sampler",
    "claim_from_dp_event",
    "claim_stating",
    "cross_check",
    "dp_event_from_claim",
]
