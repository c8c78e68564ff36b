"""How long balls take: one Gaussian enclosure, product noise in many dimensions, a sampled history of 1,000 steps.

Run: python benchmarks/rigorous.py
"""

import time
from collections.abc import Callable

from flint import arb

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import Claim
from dpaudit.verify.rigorous.balls import ball, precision
from dpaudit.verify.rigorous.bracket import gaussian_proof, rigorous_bracket
from dpaudit.verify.rigorous.domination import dominating_mu
from dpaudit.verify.rigorous.gaussian import gaussian_delta
from dpaudit.verify.rigorous.radial import RadialNoise, radial_delta


def timed(name: str, work: Callable[[], object], repeats: int = 1) -> None:
    """Print the mean seconds of a piece of work, and what it gave."""
    started, found = time.perf_counter(), None
    for _ in range(repeats):
        found = work()
    print(f"{name:45s} {(time.perf_counter() - started) / repeats:12.6f} s   {found}")


def sampled_history() -> str:
    """The upper bound of (noise 1, q .01, T 1000) at epsilon 1.83, by connect-the-dots masses as balls."""
    claim = Claim.single(Gaussian(1.0), epsilon=1.83, delta=1e-5, steps=1000, sampling_prob=0.01)
    assert isinstance(dominating_mu(claim.phases[0].mechanism, "add-remove"), arb)
    with precision():
        proof = gaussian_proof(claim)
        return str(proof.delta(ball(claim.epsilon)).str(20))  # type: ignore[union-attr]


def main() -> None:
    """Print a line for every kind."""
    timed("Gaussian delta", lambda: gaussian_delta(arb(1), arb(1)), 1000)
    for dimension, sigma, epsilon in ((26_010, "461.84595493997756", "0.3"), (10**6, "4288.994", "0.1")):
        noise = RadialNoise(dimension, ball(sigma), arb(1))
        timed(f"product, n = {dimension}", lambda n=noise, e=epsilon: radial_delta(n, ball(e)).str(8))  # type: ignore[misc]
    timed("Gaussian, q = .01, 1,000 steps, upper", sampled_history)
    claim = Claim.single(Gaussian(1.0), epsilon=1.83, delta=1e-5, steps=1000, sampling_prob=0.01)
    timed("the same, both sides", lambda: rigorous_bracket(claim))


if __name__ == "__main__":
    main()
