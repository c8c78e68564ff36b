"""What a reader sees: one self-contained page and one JSON file for each audit, and for each check of claims."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attributes

if TYPE_CHECKING:
    from dpaudit.reports.rendering import load_result, result_json, write_report
    from dpaudit.reports.verdict_files import verdict_text, verdicts_json, verdicts_junit, verdicts_sarif
    from dpaudit.reports.verdict_page import (
        ClaimEntry,
        data_beside,
        page_beside,
        shown_in_detail,
        write_again,
        write_verdicts,
    )
    from dpaudit.reports.wording import verdict_sentence
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "rendering": ["load_result", "result_json", "write_report"],
            "verdict_files": ["verdict_text", "verdicts_json", "verdicts_junit", "verdicts_sarif"],
            "verdict_page": [
                "ClaimEntry",
                "data_beside",
                "page_beside",
                "shown_in_detail",
                "write_again",
                "write_verdicts",
            ],
            "wording": ["verdict_sentence"],
        },
    )

__all__ = [
    "ClaimEntry",
    "data_beside",
    "load_result",
    "page_beside",
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
