"""CPU seconds to check a claim on Gaussian noise, against dp-accounting's own PLD, interleaved, in one run.

    python benchmarks/checking.py [--repeats 9] [--claims] [--json FILE]

Both are asked for epsilon at delta 1e-5 of Poisson-sampled steps. dp-accounting composes one pessimistic law, which
proves an upper bound; here that is asked for alone, and then the whole verdict: both bounds, and what decides.
With --claims it prints the slowest of the committed claims too, once each.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import check
from dpaudit.verify.claim_files import load_claims
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.upper import upper_curves

SETTINGS = [(1.0, 0.01, 1000), (1.0, 0.01, 10_000), (0.6, 0.001, 100_000), (5.0, 1.0, 100)]
DELTA = 1e-5
CLAIMS = Path(__file__).parents[1] / "reports/claims"


def theirs(noise: float, rate: float, steps: int) -> float:
    """Epsilon by dp-accounting."""
    law = pld.from_gaussian_mechanism(noise, sampling_prob=rate)
    return float(law.self_compose(steps).get_epsilon_for_delta(DELTA))


def ours(claim: Claim) -> float:
    """Epsilon by the upper bounds alone."""
    return min(float(curve.epsilon(np.array([DELTA]))[0]) for curve in upper_curves(claim))


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def compare(noise: float, rate: float, steps: int, repeats: int) -> dict[str, float]:
    """Ratios to dp-accounting's time, medians; claimed epsilons differ, so that nothing is remembered."""
    epsilon = theirs(noise, rate, steps)
    claim = Claim(epsilon, DELTA, [Phase(Gaussian(noise), steps, rate)])
    check(claim)
    rows = []
    for index in range(repeats):
        other = replace(claim, epsilon=epsilon * (0.999 + 1e-4 * index))
        rows.append(
            (
                seconds(lambda: theirs(noise, rate, steps)),
                seconds(lambda asked=other: ours(asked)),  # type: ignore[misc]
                seconds(lambda asked=other: check(asked)),  # type: ignore[misc]
            )
        )
    base, upper, whole = (statistics.median(column) for column in zip(*rows, strict=True))
    return {"dp-accounting, s": base, "upper bound": upper / base, "whole check": whole / base}


def main() -> None:
    """Compare, and time the committed claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--claims", action="store_true", help="time the committed claims too")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, object] = {}
    for noise, rate, steps in SETTINGS:
        row = compare(noise, rate, steps, args.repeats)
        found[f"noise {noise:g}, rate {rate:g}, {steps} steps"] = row
        print(f"noise {noise:g}, rate {rate:g}, {steps} steps: " + ", ".join(f"{k} {v:.3g}" for k, v in row.items()))
    if args.claims:
        files = sorted([*CLAIMS.glob("*.toml"), *CLAIMS.glob("repositories/*.toml")])
        claims = [claim for path in files for claim in load_claims(path)]
        times = sorted(((seconds(lambda asked=claim: check(asked)), claim.id) for claim in claims), reverse=True)  # type: ignore[misc]
        found["claims"] = {name: spent for spent, name in times}
        print(f"{len(times)} claims, {sum(spent > 3 for spent, _ in times)} over 3 s; the slowest:")
        print("\n".join(f"  {spent:.2f} s  {name}" for spent, name in times[:10]))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
