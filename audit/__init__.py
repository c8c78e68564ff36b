"""What was measured by attack: inputs, attacks, trials, and the audit that joins them with the claim check."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attributes

if TYPE_CHECKING:
    from dpaudit.audit.inputs.bundles import load_bundle, save_bundle
    from dpaudit.audit.runner import run
    from dpaudit.audit.settings import Settings
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "inputs.bundles": ["load_bundle", "save_bundle"],
            "runner": ["run"],
            "settings": ["Settings"],
        },
    )

__all__ = ["Settings", "load_bundle", "run", "save_bundle"]
