"""Both engines on every claim of reports/claims, in Markdown: brackets of delta, overlap, seconds, certificates.

Run: python benchmarks/rigorous.py [WORD ...]     (files whose name contains a word; all without one)
"""

import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from dpaudit.verify import Claim, check
from dpaudit.verify.checking import DISAGREEMENT
from dpaudit.verify.claim_files import load_claims
from dpaudit.verify.rigorous.agreement import compared
from dpaudit.verify.rigorous.balls import Unavailable
from dpaudit.verify.rigorous.bracket import rigorous_bracket
from dpaudit.verify.rigorous.certificates import NotCovered, certificate
from dpaudit.verify.rigorous.check_certificate import accepted

CLAIMS = Path(__file__).parents[1] / "reports" / "claims"


@dataclass(frozen=True)
class Row:
    """What both engines say on one claim.

    Args:
        verdict: Of the first.
        fast, rigorous: (lower, upper) of delta; None without a bound.
        agree: Whether the brackets overlap.
        alone: The verdict of the rigorous bracket alone.
        seconds: Of the first engine, of the second, of certificate and checker, on one core.
        proof: The kind of the accepted certificate, or why there is none.
    """

    verdict: str
    fast: tuple[float, float]
    rigorous: tuple[float, float] | None
    agree: bool
    alone: str
    seconds: tuple[float, float, float]
    proof: str


def judged(claim: Claim) -> Row:
    """Both engines and the checker on one claim."""
    marks = [time.process_time()]
    verdict = check(claim)
    marks.append(time.process_time())
    found = rigorous_bracket(claim, verdict.witness)
    marks.append(time.process_time())
    made = certificate(claim, verdict)
    proof = f"none: {made.reason}" if isinstance(made, NotCovered) else made["kind"]
    if not isinstance(made, NotCovered):
        assert accepted(json.dumps(made)).startswith(verdict.verdict)
    marks.append(time.process_time())
    seconds = (marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2])
    pair, alone = None, "undecided"
    if not isinstance(found, Unavailable):
        pair = (found.delta_lower, found.delta_upper)
        alone = "refuted" if pair[0] > claim.delta else "certified" if pair[1] <= claim.delta else "undecided"
    agree = DISAGREEMENT not in compared(claim, verdict, found).methods
    return Row(verdict.verdict, (verdict.delta_lower, verdict.delta_upper), pair, agree, alone, seconds, proof)


def main(words: list[str]) -> None:
    """Print a line for every claim, then the counts."""
    claims = [
        claim
        for path in sorted(CLAIMS.glob("*.toml"))
        if not words or any(word in path.stem for word in words)
        for claim in load_claims(path)
    ]
    unnamed = [replace(claim, id="", source="") for claim in claims]
    different = list(dict.fromkeys(unnamed))
    started = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        known = dict(zip(different, pool.map(judged, different), strict=True))
    print("| claim | verdict | delta, first engine | delta, balls | agree | by balls alone | s, s, s | certificate |")
    print("|---|---|---|---|---|---|---|---|")
    for claim, key in zip(claims, unnamed, strict=True):
        row = known[key]
        balls = "-" if row.rigorous is None else f"{row.rigorous[0]:.4g} to {row.rigorous[1]:.4g}"
        seconds = ", ".join(f"{x:.1f}" for x in row.seconds)
        print(
            f"| {claim.id} | {row.verdict} | {row.fast[0]:.4g} to {row.fast[1]:.4g} | {balls} "
            f"| {'yes' if row.agree else 'NO'} | {row.alone} | {seconds} | {row.proof} |"
        )
    rows = [known[key] for key in unnamed]
    decided = [row for row in rows if row.verdict != "undecided"]
    kinds = Counter(row.proof for row in decided if not row.proof.startswith("none"))
    print(f"\n{len(rows)} claims, {sum(not row.agree for row in rows)} on which the engines disagree")
    print(f"{len(decided)} decided, {sum(row.alone == row.verdict for row in decided)} of them by balls alone as well")
    print(f"{sum(kinds.values())} accepted certificates: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}")
    longest, whole = max(row.seconds[1] for row in rows), time.perf_counter() - started
    print(f"longest in balls: {longest:.1f} s; all of it {whole:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
