"""Many claims at once: equal claims are computed once, and an interruption keeps what was done."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Verdict

Check = Callable[[Claim], Verdict]


def check_all(claims: Sequence[Claim], check: Check, progress: Callable[[int], None]) -> Iterator[Verdict]:
    """Verdicts in the order of the claims.

    Args:
        claims: From `load_claims`.
        check: Judges one claim.
        progress: Called with 1 after each claim.

    Yields:
        One verdict per claim, with the claim's own id.
    """
    known: dict[Claim, Verdict] = {}
    for claim in claims:
        question = replace(claim, id="", source="")
        if question not in known:
            known[question] = check(question)
        yield replace(known[question], id=claim.id)
        progress(1)
