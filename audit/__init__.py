"""What was measured by attack: inputs, attacks, trials, and the audit that joins them with the claim check."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attributes

if TYPE_CHECKING:
    from dpaudit.audit.frameworks.huggingface_trainer import bundle_from_trainer, opacus_callback
    from dpaudit.audit.frameworks.opacus import bundle_from_opacus, claim_from_opacus
    from dpaudit.audit.frameworks.opacus_loop import audit_opacus
    from dpaudit.audit.inputs.bundles import load_bundle, save_bundle
    from dpaudit.audit.inputs.recipes import load_recipe
    from dpaudit.audit.runner import run
    from dpaudit.audit.scores import Scores
    from dpaudit.audit.settings import Settings
    from dpaudit.audit.threshold_rules import Bonferroni, Explicit, Split
    from dpaudit.mechanisms.learning.spec import Pool, TrainedModels
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "frameworks.huggingface_trainer": ["bundle_from_trainer", "opacus_callback"],
            "frameworks.opacus": ["bundle_from_opacus", "claim_from_opacus"],
            "frameworks.opacus_loop": ["audit_opacus"],
            "inputs.bundles": ["load_bundle", "save_bundle"],
            "inputs.recipes": ["load_recipe"],
            "runner": ["run"],
            "scores": ["Scores"],
            "settings": ["Settings"],
            "threshold_rules": ["Bonferroni", "Explicit", "Split"],
            "trials.blocks": ["Pool", "TrainedModels"],
        },
    )

__all__ = [
    "Bonferroni",
    "Explicit",
    "Pool",
    "Scores",
    "Settings",
    "Split",
    "TrainedModels",
    "audit_opacus",
    "bundle_from_opacus",
    "bundle_from_trainer",
    "claim_from_opacus",
    "load_bundle",
    "load_recipe",
    "opacus_callback",
    "run",
    "save_bundle",
]
