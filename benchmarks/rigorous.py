"""How long balls take, and both engines on every claim of reports/claims, in Markdown.

Run: python benchmarks/rigorous.py product lap2     (the files whose names hold a word; all of them without one)
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from flint import arb

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import Claim, check
from dpaudit.verify.claim_files import load_claims
from dpaudit.verify.results import DISAGREEMENT
from dpaudit.verify.rigorous.agreement import compared
from dpaudit.verify.rigorous.balls import Unavailable, ball, precision
from dpaudit.verify.rigorous.bracket import UpperProof, gaussian_proof, rigorous_bracket
from dpaudit.verify.rigorous.certificates import NotCovered, certificate
from dpaudit.verify.rigorous.check_sampled_certificate import accepted
from dpaudit.verify.rigorous.gaussian import gaussian_delta
from dpaudit.verify.rigorous.radial import RadialNoise, radial_delta

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "reports" / "claims"


def timed(name: str, work: Callable[[], object], repeats: int = 1) -> None:
    """Print the mean seconds of a piece of work on one core, and what it gave."""
    started, found = time.process_time(), None
    for _ in range(repeats):
        found = work()
    print(f"{name:40s} {(time.process_time() - started) / repeats:12.6f} s   {found}", flush=True)


def sampled_history() -> str:
    """The upper bound of (noise 1, q .01, T 1000) at epsilon 1.83, by connect-the-dots masses."""
    claim = Claim.single(Gaussian(1.0), epsilon=1.83, delta=1e-5, steps=1000, sampling_prob=0.01)
    with precision():
        proof = gaussian_proof(claim)
        assert isinstance(proof, UpperProof)
        return str(proof.delta(ball(claim.epsilon)).str(12))


def speeds() -> None:
    """Print a line for one enclosure of every kind."""
    timed("Gaussian delta", lambda: gaussian_delta(arb(1), arb(1)), 1000)
    for dimension, sigma, epsilon in ((26_010, "461.84595493997756", "0.3"), (10**6, "4288.994", "0.1")):
        noise = RadialNoise(dimension, ball(sigma), arb(1))
        timed(f"product, n = {dimension}", lambda n=noise, e=epsilon: radial_delta(n, ball(e)).str(12))  # type: ignore[misc]
    timed("Gaussian, q = .01, 1,000 steps, upper", sampled_history)
    claim = Claim.single(Gaussian(1.0), epsilon=1.83, delta=1e-5, steps=1000, sampling_prob=0.01)
    timed("the same, both sides", lambda: rigorous_bracket(claim))


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


def line(claim: Claim, row: Row) -> str:
    """A row of the table."""
    balls = "-" if row.rigorous is None else f"{row.rigorous[0]:.4g} to {row.rigorous[1]:.4g}"
    seconds = ", ".join(f"{x:.1f}" for x in row.seconds)
    return (
        f"| {claim.id} | {row.verdict} | {row.fast[0]:.4g} to {row.fast[1]:.4g} | {balls} "
        f"| {'yes' if row.agree else 'NO'} | {row.alone} | {seconds} | {row.proof} |"
    )


def main() -> int:
    """Print speeds, a line for every claim, and counts; 3 where the engines disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="files whose name contains one; all without any")
    words = parser.parse_args().words
    files = sorted([*CLAIMS.glob("*.toml"), *CLAIMS.glob("repositories/*.toml")])
    paths = [path for path in files if not words or any(word in path.stem for word in words)]
    if not paths:
        parser.error(f"Expected a word in the name of a file of {CLAIMS}, got {' '.join(words)!r}")
    claims = [claim for path in paths for claim in load_claims(path)]
    speeds()
    unnamed = [replace(claim, id="", source="") for claim in claims]
    started = time.perf_counter()
    print("| claim | verdict | delta, first engine | delta, balls | agree | by balls alone | s, s, s | certificate |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        known = {key: pool.submit(judged, key) for key in dict.fromkeys(unnamed)}
        for claim, key in zip(claims, unnamed, strict=True):
            rows.append(known[key].result())
            print(line(claim, rows[-1]), flush=True)
    decided = [row for row in rows if row.verdict != "undecided"]
    kinds = Counter(row.proof for row in decided if not row.proof.startswith("none"))
    print(f"\n{len(rows)} claims, {sum(not row.agree for row in rows)} on which the engines disagree")
    print(f"{len(decided)} decided, {sum(row.alone == row.verdict for row in decided)} of them by balls alone as well")
    print(f"{sum(kinds.values())} accepted certificates: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}")
    longest, whole = max(row.seconds[1] for row in rows), time.perf_counter() - started
    print(f"longest in balls: {longest:.1f} s; all of it {whole:.0f} s")
    pairs = zip(claims, rows, strict=True)
    missing = [claim.id for claim, row in pairs if row.verdict != "undecided" and row.proof.startswith("none")]
    print(f"decided, without a certificate: {', '.join(missing) or 'none'}")
    return 0 if all(row.agree for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
