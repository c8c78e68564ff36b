"""What a reader sees: one self-contained page and one JSON file for each audit, and for each check of claims."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpaudit.reports.rendering import load_result as load_result
    from dpaudit.reports.rendering import result_json as result_json
    from dpaudit.reports.rendering import write_report as write_report
    from dpaudit.reports.verdict_files import verdict_text as verdict_text
    from dpaudit.reports.verdict_files import verdicts_json as verdicts_json
    from dpaudit.reports.verdict_files import verdicts_junit as verdicts_junit
    from dpaudit.reports.verdict_files import verdicts_sarif as verdicts_sarif
    from dpaudit.reports.verdict_page import ClaimEntry as ClaimEntry
    from dpaudit.reports.verdict_page import shown_in_detail as shown_in_detail
    from dpaudit.reports.verdict_page import write_again as write_again
    from dpaudit.reports.verdict_page import write_verdicts as write_verdicts
    from dpaudit.reports.wording import verdict_sentence as verdict_sentence

_HOMES = {
    "load_result": "dpaudit.reports.rendering",
    "result_json": "dpaudit.reports.rendering",
    "write_report": "dpaudit.reports.rendering",
    "verdict_sentence": "dpaudit.reports.wording",
    "verdict_text": "dpaudit.reports.verdict_files",
    "verdicts_json": "dpaudit.reports.verdict_files",
    "verdicts_junit": "dpaudit.reports.verdict_files",
    "verdicts_sarif": "dpaudit.reports.verdict_files",
    "ClaimEntry": "dpaudit.reports.verdict_page",
    "shown_in_detail": "dpaudit.reports.verdict_page",
    "write_again": "dpaudit.reports.verdict_page",
    "write_verdicts": "dpaudit.reports.verdict_page",
}
__all__ = [
    "ClaimEntry",
    "load_result",
    "result_json",
    "shown_in_detail",
    "verdict_sentence",
    "verdict_text",
    "verdicts_json",
    "verdicts_junit",
    "verdicts_sarif",
    "write_again",
    "write_report",
    "write_verdicts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
