"""Many claims at once: equal claims are computed once, and an interruption keeps what was done."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Verdict


def check_all(
    claims: Sequence[Claim], check: Callable[[Claim], Verdict], progress: Callable[[int], None]
) -> Iterator[Verdict]:
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
        unnamed = replace(claim, id="", source="")
        if unnamed not in known:
            known[unnamed] = check(unnamed).settled()  # curves are megabytes each
        yield replace(known[unnamed], id=claim.id)
        progress(1)
