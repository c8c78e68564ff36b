"""How often sealed canaries accuse a correct training, and how often they find one without noise.

    python benchmarks/sealed_canaries.py digits --count 500 --kind mislabelled --correct 100 --without 20
    python benchmarks/sealed_canaries.py sentences.jsonl --kind rare-tokens --correct 25 --without 20 --reference

The training is examples/trainer_without_dpaudit.py in a process of its own. A correct one adds the noise that its claim
of epsilon at delta 1e-5 needs exactly: 100 full steps are one Gaussian release of mu = 10/noise multiplier. With
--reference, scores are less those of the same script, without noise, on the file as it was before the planting.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy.optimize import brentq

from dpaudit.audit.canaries.judging import judge
from dpaudit.audit.canaries.planting import plant
from dpaudit.audit.canaries.sealing import Draw, load_coins
from dpaudit.audit.claim_under_test import ClaimUnderTest
from dpaudit.verify.bounds import gaussian_epsilon

TRAINER = Path(__file__).resolve().parents[1] / "examples/trainer_without_dpaudit.py"
DELTA = 1e-5


def train(data: Path, queries: Path, scores: Path, noise_multiplier: float, seed: int) -> None:
    words = [sys.executable, str(TRAINER), str(data), str(queries), str(scores)]
    words += ["--noise-multiplier", str(noise_multiplier), "--seed", str(seed)]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": ""})


def bound_of_one(
    data: str, kind: str, count: int, noise_multiplier: float, claimed: float, seed: int, *, with_reference: bool
) -> float:
    """Plant, train, judge: the bound, negative where the claim was not refuted."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        done = plant(data, out=place / "planted", sealed=place / "coins.json", draw=Draw(seed, 1, count), kind=kind)
        train(done.planted[0], done.queries[0], place / "scores.csv", noise_multiplier, seed)
        reference = [place / "reference.csv"] if with_reference else []
        if with_reference:
            train(Path(data), done.queries[0], reference[0], 0.0, seed)
        coins = load_coins(place / "coins.json", commitment=done.coins.commitment)
        claim = ClaimUnderTest(claimed, DELTA)
        result = judge(coins, [place / "scores.csv"], claim, planted=done.planted, reference=reference)
        assert (result.verdict == "refuted") == bool(result.refuted_by)
        return float(result.epsilon_lower or 0.0) * (1.0 if result.refuted_by else -1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--kind", default="mislabelled")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--correct", type=int, default=100)
    parser.add_argument("--without", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first audit; the others follow")
    parser.add_argument("--reference", action="store_true", help="for data that are a file")
    options = parser.parse_args()
    mu = brentq(lambda mu: gaussian_epsilon(mu, DELTA) - options.epsilon, 1e-6, 100.0)
    for name, noise, times in (("correct", 10.0 / mu, options.correct), ("no noise", 0.0, options.without)):
        found = [
            bound_of_one(
                options.data,
                options.kind,
                options.count,
                noise,
                options.epsilon,
                seed,
                with_reference=options.reference,
            )
            for seed in range(options.first, options.first + times)
        ]
        bounds = sorted(abs(value) for value in found)
        refuted = sum(value > 0 for value in found)
        if times:
            print(
                f"{options.data}, {options.count} {options.kind}, {name} (noise multiplier {noise:.4g}): {refuted} of "
                f"{times} refute epsilon {options.epsilon:g}; bounds {bounds[0]:.2f} to {bounds[-1]:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
