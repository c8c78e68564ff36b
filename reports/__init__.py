"""What a reader sees: one self-contained page and one JSON file for each audit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpaudit.reports.rendering import load_result as load_result
    from dpaudit.reports.rendering import result_json as result_json
    from dpaudit.reports.rendering import write_report as write_report
    from dpaudit.reports.wording import verdict_sentence as verdict_sentence

_HOMES = {
    "load_result": "dpaudit.reports.rendering",
    "result_json": "dpaudit.reports.rendering",
    "write_report": "dpaudit.reports.rendering",
    "verdict_sentence": "dpaudit.reports.wording",
}
__all__ = ["load_result", "result_json", "verdict_sentence", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
