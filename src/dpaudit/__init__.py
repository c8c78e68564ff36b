"""Tells whether a differential-privacy claim holds: certified, refuted with a witness, or undecided."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attributes

if TYPE_CHECKING:
    from dpaudit._version import __version__
    from dpaudit.audit.runner import run
    from dpaudit.verify.calibration.noise import calibrate
    from dpaudit.verify.checking import check
    from dpaudit.verify.claims import Claim
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "_version": ["__version__"],
            "audit.runner": ["run"],
            "verify.calibration.noise": ["calibrate"],
            "verify.checking": ["check"],
            "verify.claims": ["Claim"],
        },
    )

__all__ = ["Claim", "__version__", "calibrate", "check", "run"]
