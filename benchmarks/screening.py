"""How many of a million random claims on Gaussian noise the cheap screens decide, how fast, and whether `check` agrees.

Noise, rate, steps and delta are log-uniform, and the claimed epsilon is log-uniform within a factor of 10 of the truth.
For the million the truth is an estimate, the geometric middle of what the screens themselves can prove (the share that
is decided hardly depends on where between its ends the middle lies); histories that are proven to have less than the
smallest epsilon, where delta alone pays for nearly everything, are drawn again, and every other one gets
CLAIMS_PER_HISTORY claims. For other histories, drawn by themselves, the truth is the bracket of `check`, so that the
screens have no say in what is asked of them: each gets one claim around that, and one around the estimate. Prints a
JSON object; `estimate_over_truth` holds quartiles over the claims checked.

    python benchmarks/screening.py --claims 1000000 --checked 2000 --seed 1    # a check takes .7 s of one core
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence

import joblib
import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.base import Array
from dpaudit.verify import Claim, check
from dpaudit.verify.claim_columns import ClaimColumns
from dpaudit.verify.screening import BLOCK, CERTIFIED, LEFT, REFUTED, Screening, screen

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


def random_histories(rng: np.random.Generator, size: int) -> list[Array]:
    """Noise multipliers, rates, steps and deltas, log-uniform in RANGES."""
    columns = [np.exp(rng.uniform(*np.log(ends), size)) for ends in RANGES.values()]
    columns[2] = np.rint(columns[2])
    return columns


def drawn(rng: np.random.Generator, size: int) -> ClaimColumns:
    """Random claims, CLAIMS_PER_HISTORY of every random history."""
    parts: list[list[Array]] = []
    found = 0
    while found < size:
        columns = random_histories(rng, BLOCK // 2)
        truth = epsilon_estimate(columns)
        kept = np.isfinite(truth)
        known = [np.repeat(column[kept], CLAIMS_PER_HISTORY) for column in (*columns, truth)]
        parts.append([*known[:-1], known[-1] * FACTOR ** rng.uniform(-1, 1, len(known[-1]))])
        found += len(known[-1])
    return ClaimColumns(
        np.arange(size).astype(str), *(np.concatenate(part)[:size] for part in zip(*parts, strict=True))
    )


def bracket(history: Sequence[float]) -> tuple[float, float]:
    """The bracket of epsilon by `check`."""
    noise, rate, steps, delta = history
    claim = Claim.single(
        Gaussian(noise_multiplier=noise), epsilon=1.0, delta=delta, steps=int(steps), sampling_prob=rate
    )
    verdict = check(claim)
    return verdict.epsilon_lower, verdict.epsilon_upper


def compared(rng: np.random.Generator, size: int, workers: int) -> dict[str, object]:
    """What screens and `check` say of one claim on each of so many histories, under both readings of the truth."""
    histories = random_histories(rng, size)
    calls = (joblib.delayed(bracket)(row) for row in zip(*(column.tolist() for column in histories), strict=True))
    lower, upper = np.array(joblib.Parallel(n_jobs=workers)(calls)).T
    estimate = epsilon_estimate(histories)
    factor = FACTOR ** rng.uniform(-1, 1, size)
    found: dict[str, object] = {}
    for name, truth in (("truth_of_check", np.sqrt(lower * upper)), ("truth_of_screens", estimate)):
        rows = np.flatnonzero((upper > 1.1 * ENDS[0]) & np.isfinite(estimate))
        columns = [column[rows] for column in (*histories, truth * factor)]
        result = screen(ClaimColumns(rows.astype(str), *columns))
        found[name] = agreement(result, lower[rows], upper[rows])
        ratio = estimate[rows] / upper[rows]
    found["estimate_over_truth"] = np.quantile(ratio, [0, 0.25, 0.5, 0.75, 1]).round(3).tolist()
    return found


def agreement(result: Screening, lower: Array, upper: Array) -> dict[str, object]:
    """The share decided, and the claims that the bracket decides otherwise, or does not decide."""
    certified, refuted = result.verdict == CERTIFIED, result.verdict == REFUTED
    epsilon = result.claims.epsilon
    wrong = (certified & (epsilon < lower)) | (refuted & (epsilon >= upper))
    open_rows = (certified | refuted) & (epsilon >= lower) & (epsilon < upper)
    return {
        "claims": len(result.claims),
        "decided_share": round(float((certified | refuted).mean()), 4),
        "contradicted": result.claims.ids[wrong].tolist(),
        "undecided_by_check": result.claims.ids[open_rows].tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=1_000_000)
    parser.add_argument("--checked", type=int, default=100, help="histories that `check` judges as well")
    parser.add_argument("--workers", type=int, default=1, help="processes of `check`")
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
    checked = compared(rng, options.checked, options.workers) if options.checked else {}
    counts = result.counts()
    summary = {
        "claims": len(claims),
        **counts,
        "decided_share": 1 - counts[LEFT] / len(claims),
        "bounds": result.deciding(),
        "seconds_drawing": round(drawing, 1),
        "seconds_screening": round(seconds, 1),
        "checked": checked,
        "seconds_checking": round(time.process_time() - started, 1),
    }
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
