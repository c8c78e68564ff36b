"""What was measured by attack: inputs, attacks, trials, and the audit that joins them with the claim check."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpaudit.audit.inputs.bundles import load_bundle as load_bundle
    from dpaudit.audit.inputs.bundles import save_bundle as save_bundle
    from dpaudit.audit.plan import Settings as Settings
    from dpaudit.audit.runner import run as run

_HOMES = {
    "save_bundle": "dpaudit.audit.inputs.bundles",
    "load_bundle": "dpaudit.audit.inputs.bundles",
    "Settings": "dpaudit.audit.plan",
    "run": "dpaudit.audit.runner",
}
__all__ = ["Settings", "load_bundle", "run", "save_bundle"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
