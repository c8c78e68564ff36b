"""Seconds for plrvo's Algorithm 2 over all coordinates of its largest model (Figure 9, N = 109,482,240).

The printed double loop runs over a part of the coordinates and is extrapolated, both as plain Python and with its
inner loop in numpy; the grouped sum runs over all of them, and is compared with the printed loop's terms where both
are there. Prints a line per order, then all as JSON.

    python benchmarks/published_at_scale.py
"""

import argparse
import json
import math
import time
from collections.abc import Callable

import numpy as np

from dpaudit.mechanisms.published.plrvo import algorithm_2

K, THETA, RATE, POPULATION = 414.2857, 2.4196e-4, 0.00977631, 109_482_240


def printed_loop(order: int, clip: float, count: int) -> float:
    """Algorithm 2 line by line, over the first `count` coordinates."""
    n, total = order + 1, 0.0
    for i in range(1, count + 1):
        g = math.sqrt(i) - math.sqrt(i - 1)
        terms = []
        for eta in range(n + 1):
            weight = math.lgamma(n + 1) - math.lgamma(eta + 1) - math.lgamma(n - eta + 1)
            weight += (n - eta) * math.log(1 - RATE) + eta * math.log(RATE)
            first, second = eta / (2 * eta - 1), (eta - 1) / (2 * eta - 1)
            one = math.log(first) - K * math.log(1 - clip * (eta - 1) * THETA * g) if first > 0 else -math.inf
            two = math.log(second) - K * math.log(1 + clip * eta * THETA * g) if second > 0 else -math.inf
            top = max(one, two)
            terms.append(weight + top + math.log(math.exp(one - top) + math.exp(two - top)))
        top = max(terms)
        total += top + math.log(sum(math.exp(term - top) for term in terms))
    return total


def vectorised_loop(order: int, clip: float, count: int) -> float:
    """The same sums with all orders eta of one coordinate at a time."""
    n, total = order + 1, 0.0
    eta = np.arange(n + 1.0)
    logs = [math.lgamma(n + 1) - math.lgamma(e + 1) - math.lgamma(n - e + 1) for e in eta]
    weights = np.exp(np.array(logs) + (n - eta) * math.log(1 - RATE) + eta * math.log(RATE))
    for i in range(1, count + 1):
        g = clip * THETA * (math.sqrt(i) - math.sqrt(i - 1))
        value = (eta * (1 - (eta - 1) * g) ** -K + (eta - 1) * (1 + eta * g) ** -K) / (2 * eta - 1)
        total += math.log(float(weights @ value))
    return total


def timed(call: Callable[[], object], repeats: int) -> float:
    """The median of a few runs, in seconds."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[repeats // 2]


def main() -> None:
    """Time both, and compare them on the part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, default=2000, help="coordinates that the printed loop runs over")
    parser.add_argument("--clip", type=float, default=1.0)
    arguments = parser.parse_args()
    part, clip = arguments.part, arguments.clip
    rows = []
    for order in (1, 10, 80):

        def grouped(population: int, order: int = order) -> tuple[float, float]:
            return algorithm_2(order, sampling_prob=RATE, k=K, theta=THETA, population=population, clip=clip)

        value, error = grouped(POPULATION)
        row = {
            "order": order, "log_moment": value, "relative_error": error / value,
            "seconds": timed(lambda call=grouped: call(POPULATION), 5),  # type: ignore[misc]
            "printed_loop_seconds_extrapolated": timed(
                lambda order=order: printed_loop(order, clip, part), 3  # type: ignore[misc]
            ) * POPULATION / part,
            "vectorised_loop_seconds_extrapolated": timed(
                lambda order=order: vectorised_loop(order, clip, part), 3  # type: ignore[misc]
            ) * POPULATION / part,
            "difference_on_the_part": abs(printed_loop(order, clip, part) / grouped(part)[0] - 1),
        }  # fmt: skip
        rows.append(row)
        print(
            f"order {order:>2}: {row['seconds'] * 1e3:7.1f} ms, relative error {row['relative_error']:.1e}; "
            f"printed loop {row['printed_loop_seconds_extrapolated'] / 3600:.1f} h, in numpy "
            f"{row['vectorised_loop_seconds_extrapolated'] / 3600:.2f} h",
            flush=True,
        )
    print(json.dumps({"population": POPULATION, "clip": clip, "part": part, "rows": rows}))


if __name__ == "__main__":
    main()
