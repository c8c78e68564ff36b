"""One search run twice: with a published accountant and with the valid bound."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dpaudit.verify.accountants.base import Accountant

Found = TypeVar("Found")


@dataclass(frozen=True)
class Comparison(Generic[Found]):
    """What a paper's accountant makes of a target, and what is true.

    Args:
        published: The optimum by the paper's accountant; its verdict is what that really costs.
        valid: The optimum by the valid bound.
    """

    published: Found
    valid: Found


def compare(search: Callable[[Accountant | None], Found], accountant: Accountant) -> Comparison[Found]:
    """Run a search with a published accountant and with the valid bound.

    Args:
        search: Takes an accountant, None for the valid bound.
        accountant: The published one.
    """
    return Comparison(search(accountant), search(None))
