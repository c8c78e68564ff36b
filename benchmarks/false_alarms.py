"""How often audits of exactly true claims refute them, looked at again and again as models come in.

Every audit is of normal scores mu apart, which is what one full-batch release of Gaussian noise allows exactly, with
mu that of the claimed epsilon at delta 1e-5. It is looked at 20 times, at 300 to 6,000 models per arm; the i-th look
spends alpha 6/(pi^2 i^2) of alpha = 5%. Both hypotheses of an audit are tested, the curve and (epsilon, delta).

    python benchmarks/false_alarms.py --audits 2000

Prints the number refuted, its binomial limits, and the share of the looks.
"""

import argparse
import math
import time

import numpy as np
from scipy.stats import binom

from dpaudit.verify.bounds import JointTest, Tradeoff, gaussian_delta, gaussian_epsilon

ALPHA, DELTA = 0.05, 1e-5
LOOKS = np.unique(np.geomspace(300, 6000, 20).astype(int))


def audit(mu: float, claimed: Tradeoff, point: Tradeoff, seed: int) -> int:
    """The look that refutes, from 1; 0 if none does."""
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(mu, 1.0, LOOKS[-1]), rng.normal(0.0, 1.0, LOOKS[-1])
    for look, models in enumerate(LOOKS, start=1):
        share = ALPHA * 6.0 / (math.pi * look) ** 2
        test = JointTest(inside[:models], outside[:models], claimed, confidence=1.0 - share, seed=seed)
        if test.rejects(claimed) or test.rejects(point):
            return look
    return 0


def main() -> None:
    """Simulate the audits and print how many refute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=200)
    parser.add_argument("--mu", type=float, default=0.92)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    claimed = Tradeoff.of(lambda epsilons: np.array([gaussian_delta(arguments.mu, float(e)) for e in epsilons]))
    point = Tradeoff.of_points([gaussian_epsilon(arguments.mu, DELTA)], [DELTA])
    began, looks = time.process_time(), []
    for number in range(arguments.audits):
        looks.append(audit(arguments.mu, claimed, point, arguments.seed * 1_000_000 + number))
    refuted = sum(look > 0 for look in looks)
    at = {int(look): looks.count(look) for look in sorted(set(looks)) if look}
    most = int(binom.ppf(0.999, arguments.audits, ALPHA))
    seconds = (time.process_time() - began) / arguments.audits
    print(f"{refuted} of {arguments.audits} refuted, by look {at}; at most {most} in 99.9% of runs at {ALPHA:g}")
    print(f"{seconds:.2f} CPU s an audit")


if __name__ == "__main__":
    main()
