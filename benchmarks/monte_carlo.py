"""What sampling alone proves about the claims that exact numerics refute: the table of docs/monte-carlo.md.

    python benchmarks/monte_carlo.py [--only REGEX] [--seed 1]

Every claim of reports/claims whose id matches is checked exactly; where that refutes it, it is checked again with
method="monte-carlo" at 95%, with the seed for each claim. Prints one row as soon as it is known; seconds are of one
core's time (process time), so that a busy machine does not change them much. All rows take about ten minutes.
"""

import argparse
import re
import time
from dataclasses import replace
from pathlib import Path

from dpaudit.verify import Claim, Verdict, check
from dpaudit.verify.claim_files import load_claims

CLAIMS = Path(__file__).parents[1] / "reports" / "claims"


def row(claim: Claim, exact: Verdict, seed: int) -> str:
    """The line of one claim."""
    started = time.process_time()
    sampled = check(claim, method="monte-carlo", rng=seed)
    seconds = time.process_time() - started
    cells = [
        claim.id,
        f"{claim.epsilon:g}",
        f"{exact.epsilon_lower:.4g}",
        f"{sampled.epsilon_lower:.4g}",
        f"{sampled.delta_lower:.3g}",
        sampled.verdict,
        f"{seconds:.0f}" if seconds >= 1 else f"{seconds:.1g}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that the ids must match")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("| claim | epsilon | exact: at least | sampled: at least | delta at least | sampling alone | CPU seconds |")
    print("|---|---|---|---|---|---|---|")
    known: set[Claim] = set()
    for path in sorted(CLAIMS.glob("*.toml")):
        for claim in load_claims(path):
            question = replace(claim, id="", source="")
            if not re.search(arguments.only, claim.id) or question in known:
                continue
            known.add(question)
            exact = check(claim)
            if exact.verdict == "refuted":
                print(row(claim, exact, arguments.seed), flush=True)


if __name__ == "__main__":
    main()
