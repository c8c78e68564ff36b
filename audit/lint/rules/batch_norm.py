"""Batch normalisation in a model that is trained privately."""

from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.names import last_name
from dpaudit.audit.lint.script import Script

LAYERS = ("BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "BatchNormalization")
REPLACING = ("fix", "fix_and_validate", "convert_batchnorm_modules", "convert_bn_to_gn")


def _find(script: Script) -> Iterator[Hit]:
    if any(script.calls(*REPLACING)):
        return
    for call in script.calls(*LAYERS):
        yield Hit(call, f"{last_name(call.func)} computes a record's output from the other records of its batch")


RULE = Rule(
    name="batch-norm",
    level="warning",
    summary="Batch normalisation in private training",
    reason="A record moves the gradients of all others in its batch, so clipping each does not bound what it can do to "
    "their sum; running averages are released without noise.",
    source="Yousefpour et al. (2021), Opacus: User-Friendly Differential Privacy Library in PyTorch, "
    "https://arxiv.org/abs/2109.12298",
    fix="Normalise within a record: GroupNorm, LayerNorm (Opacus: ModuleValidator.fix).",
    in_script=_find,
)
