"""How many of a million random claims on Gaussian noise the cheap screens decide, how fast, and whether `check` agrees.

Noise, rate, steps and delta are log-uniform; the claimed epsilon is log-uniform within a factor of 10 of an estimate of
the truth, the geometric middle of what the screens themselves can prove (the share that is decided hardly depends on
where between its ends the middle lies). Histories that are proven to have less than the smallest epsilon, where delta
alone pays for nearly everything, are drawn again; every other one gets CLAIMS_PER_HISTORY claims. Prints a JSON object;
`estimate_over_truth` holds quartiles over the claims checked.

    python benchmarks/screening.py --claims 1000000 --checked 100 --seed 1
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.base import Array
from dpaudit.verify import Claim, check
from dpaudit.verify.screening import BLOCK, CERTIFIED, LEFT, REFUTED, ClaimColumns, Screening, screen

RANGES = {"noise_multiplier": (0.5, 5.0), "sampling_prob": (1e-4, 0.1), "steps": (10, 20_000), "delta": (1e-8, 1e-4)}
ENDS, HALVINGS = (1e-3, 1e4), 11  # of epsilon
FACTOR = 10.0
CLAIMS_PER_HISTORY = 10  # the estimate costs twenty times what screening one claim does


def epsilon_estimate(history: Sequence[Array]) -> Array:
    """The geometric middle of what the screens prove about epsilon(delta), nan where that is next to nothing."""
    upper = _crossing(history, lambda result: result.verdict == CERTIFIED)
    lower = _crossing(history, lambda result: result.verdict != REFUTED)
    return np.where(upper > np.log(ENDS[0]) + 0.1, np.exp((upper + lower) / 2), np.nan)


def _crossing(history: Sequence[Array], above: Callable[[Screening], NDArray[np.bool_]]) -> Array:
    """log of the epsilon from which on `above` holds, by bisection between ENDS."""
    size = len(history[0])
    low, high = (np.full(size, np.log(end)) for end in ENDS)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = above(screen(ClaimColumns(np.zeros(size, str), *history, np.exp(middle))))
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    return np.asarray(high)


def drawn(rng: np.random.Generator, size: int) -> ClaimColumns:
    """Random claims, CLAIMS_PER_HISTORY of every random history."""
    parts: list[list[Array]] = []
    found = 0
    while found < size:
        columns = [np.exp(rng.uniform(*np.log(ends), BLOCK // 2)) for ends in RANGES.values()]
        columns[2] = np.rint(columns[2])
        truth = epsilon_estimate(columns)
        kept = np.isfinite(truth)
        known = [np.repeat(column[kept], CLAIMS_PER_HISTORY) for column in (*columns, truth)]
        parts.append([*known[:-1], known[-1] * FACTOR ** rng.uniform(-1, 1, len(known[-1]))])
        found += len(known[-1])
    return ClaimColumns(
        np.arange(size).astype(str), *(np.concatenate(part)[:size] for part in zip(*parts, strict=True))
    )


def compared(result: Screening, rows: NDArray[np.int64]) -> dict[str, object]:
    """What `check` says of some claims: those decided otherwise, and how good the estimate is."""
    wrong, undecided, decided, ratios = [], [], 0, []
    for row in rows:
        one = result.claims.take(np.array([row]))
        claim = Claim.single(
            Gaussian(noise_multiplier=float(one.noise_multiplier[0])), id=str(one.ids[0]),
            epsilon=float(one.epsilon[0]), delta=float(one.delta[0]), steps=int(one.steps[0]),
            sampling_prob=float(one.sampling_prob[0]),
        )  # fmt: skip
        verdict = check(claim)
        estimate = epsilon_estimate([one.noise_multiplier, one.sampling_prob, one.steps, one.delta])[0]
        ratios.append(estimate / max(verdict.epsilon_upper, ENDS[0]))
        if result.verdict[row] == LEFT:
            continue
        decided += 1
        if verdict.verdict == "undecided":
            undecided.append(claim.id)
        elif verdict.verdict != result.verdict[row]:
            wrong.append(claim.id)
    quartiles = np.quantile(ratios, [0, 0.25, 0.5, 0.75, 1]).round(3).tolist()
    return {"decided": decided, "contradicted": wrong, "undecided": undecided, "estimate_over_truth": quartiles}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=1_000_000)
    parser.add_argument("--checked", type=int, default=100, help="claims that `check` judges as well")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    started = time.process_time()
    claims = drawn(rng, options.claims)
    drawing = time.process_time() - started
    started = time.process_time()
    result = screen(claims)
    seconds = time.process_time() - started
    started = time.process_time()
    agreement = compared(result, rng.choice(len(claims), options.checked, replace=False))
    counts = result.counts()
    summary = {
        "claims": len(claims),
        **counts,
        "decided_share": 1 - counts[LEFT] / len(claims),
        "bounds": result.deciding(),
        "seconds_drawing": round(drawing, 1),
        "seconds_screening": round(seconds, 1),
        "checked": {**agreement, "seconds": round(time.process_time() - started, 1)},
    }
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
