"""Claims drawn over every registered mechanism, from hardly any noise to enormous; most are not decided at a glance."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dpaudit.mechanisms import Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.registry import MECHANISMS
from dpaudit.verify import Claim, PureDP
from dpaudit.verify.claim_files import claim_to_dict
from dpaudit.verify.claims import Phase
from dpaudit.verify.results import Verdict

LARGEST_DIMENSION, MOST_STEPS = 1e9, 1e6
EPSILONS, DELTAS, RATES = (1e-3, 1e4), (1e-300, 0.5), (1e-6, 1.0)
DIGITS = 6


def generator(seed: int, index: int) -> np.random.Generator:
    """The randomness of one claim, whatever was drawn before it."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))


def spread(rng: np.random.Generator, low: float, high: float) -> float:
    """A log-uniform number of few digits in [low, high]."""
    value = math.exp(rng.uniform(math.log(low), math.log(high)))
    return min(max(float(f"{value:.{DIGITS}g}"), low), high)


def plain_phase(rng: np.random.Generator, mu: float) -> Phase:
    """Poisson-sampled or unsampled releases that cost about mu in all.

    Raises:
        ValueError: The parameters drawn are refused.
    """
    rate = 1.0 if rng.random() < 0.45 else spread(rng, *RATES)
    steps = 1 if rng.random() < 0.5 else int(spread(rng, 1.0, MOST_STEPS))
    strength = drawn_strength(rng, mu, rate, steps)
    unsampled = rate == 1.0 and rng.random() < 0.5
    return Phase(drawn_mechanism(rng, strength), steps, rate, "none" if unsampled else "poisson")


def drawn_strength(rng: np.random.Generator, mu: float, rate: float, steps: float) -> float:
    """Standard deviations of noise that a release is moved by, so that all cost about mu, or any at all."""
    ratio = mu / (rate * math.sqrt(steps))
    strength = math.sqrt(min(math.log1p(ratio * ratio), ratio * ratio)) if ratio < 1e100 else ratio
    kind = rng.random()
    if kind < 0.2:
        strength = spread(rng, 1e-6, 1e3)
    elif kind < 0.23:
        strength = spread(rng, 1e-300, 1e300)
    return max(strength, 1e-300)


def plain_claim(
    rng: np.random.Generator, index: int = 0, phase: Callable[[np.random.Generator, float], Phase] = plain_phase
) -> Claim:
    """A claim of one to four phases.

    Three in four aim at a total of .01 to 30 times the noise, as the Gaussian's mu; of them most claim an epsilon near
    what that costs.

    Args:
        rng: The claim's own.
        index: For its name.
        phase: Draws releases that cost about so much.

    Raises:
        ValueError: The parameters drawn are refused.
    """
    adjacency = "replace-one" if rng.random() < 0.35 else "add-remove"
    delta = 0.0 if rng.random() < 0.05 else spread(rng, *(DELTAS if rng.random() < 0.35 else (1e-12, 0.1)))
    count = 1 if rng.random() < 0.75 else int(rng.integers(2, 5))
    mu = spread(rng, 0.01, 30.0)
    phases = [phase(rng, mu / math.sqrt(count)) for _ in range(count)]
    if count > 1 and rng.random() < 0.5:  # one mechanism throughout
        phases = [replace(other, mechanism=phases[0].mechanism) for other in phases]
    if delta == 0.0 and rng.random() < 0.5:  # noise whose pure epsilon is known in closed form
        clip = phases[0].mechanism.clip
        phases = [replace(other, mechanism=Laplace(clip * spread(rng, 0.1, 1e6), clip, 1.0)) for other in phases]
    kind = rng.random()
    cost = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta or 1e-12))
    near = min(max(float(f"{cost * spread(rng, 0.1, 5.0):.6g}"), EPSILONS[0]), EPSILONS[1])
    epsilon = 0.0 if kind < 0.05 else spread(rng, *EPSILONS) if kind < 0.35 else near
    return Claim(epsilon, delta, tuple(phases), adjacency, id=f"drawn-{index}")


def drawn_mechanism(rng: np.random.Generator, strength: float, names: Collection[str] = tuple(MECHANISMS)) -> Mechanism:
    """A mechanism whose loss at one clip is about `strength` standard deviations of noise.

    Raises:
        ValueError: The parameters drawn are refused.
    """
    name = str(rng.choice(list(names)))
    clip = float(rng.choice([1.0, spread(rng, 1e-3, 1e3), spread(rng, 1e-30, 1e30)], p=[0.5, 0.47, 0.03]))
    few, many = spread(rng, 1.0, 64.0), spread(rng, 1.0, LARGEST_DIMENSION)
    dimension: int | None = int(rng.choice([1.0, few, many], p=[0.2, 0.35, 0.45]))
    if name == "product":
        dimension = max(int(dimension or 2), 2)
    beta = float(rng.choice([spread(rng, 1.0, 4.0), spread(rng, 1.0, 100.0), rng.integers(1, 5)]))
    other = float(rng.choice([3.0, beta, spread(rng, 1.0, 4.0), spread(rng, 1.0, 100.0)]))
    norm = float(rng.choice([2.0, 1.0, math.inf, other], p=[0.5, 0.15, 0.15, 0.2]))
    n = float(dimension or 1)
    reach = clip * n ** max(0.0, 0.5 - 1.0 / norm)  # l2 norm of the longest shift
    k = spread(rng, 0.01, 1e5)
    noises: dict[str, Mapping[str, float]] = {
        "gaussian": {"noise_multiplier": reach / clip / strength},
        "laplace": {"scale": reach / strength},
        "gamma-plrv": {"k": k, "theta": strength / reach / k},
        "gamma-plrv-iid": {"k": k, "theta": strength / reach / (k + 1.0)},
        "product": {"sigma": reach * math.sqrt(n) / strength},
        "generalized-gaussian": {"beta": beta, "scale": reach * math.sqrt(beta) / strength},
        "gamma-scale-laplace": {"k": 2.0 + k, "theta": reach / strength / (2.0 + k)},
    }
    typical = {key: spread(rng, *domain.typical) for key, domain in MECHANISMS[name].domains.items()}
    noise = {key: float(f"{value:.{DIGITS}g}") for key, value in noises.get(name, typical).items()}
    if rng.random() < 0.03:
        dimension = None
    mechanism: Mechanism = MECHANISMS[name](**noise, clip=clip, clip_norm=norm, dimension=dimension)
    return mechanism


def nearer(rng: np.random.Generator, claim: Claim, verdict: Verdict) -> Claim:
    """The same history with a claim at, beside or between the ends of its bracket."""
    by_delta = rng.random() < 0.3
    low, high = (
        (verdict.delta_lower, verdict.delta_upper) if by_delta else (verdict.epsilon_lower, verdict.epsilon_upper)
    )
    ends = [end for end in (low, high) if 0 < end < (1 if by_delta else math.inf)]
    if not ends:
        return claim
    place = ends[int(rng.integers(len(ends)))] * float(
        rng.choice([1 - 1e-3, 1.0, 1 + 1e-3, 1 - 1e-9, 1 + 1e-9, 0.5, 2])
    )
    if len(ends) == 2 and rng.random() < 0.4:
        place = ends[0] ** (share := rng.random()) * ends[1] ** (1 - share)
    if isinstance(claim.guarantee, PureDP):
        return claim if by_delta else replace(claim, guarantee=PureDP(place))
    return replace(claim, delta=min(place, 0.999)) if by_delta else replace(claim, epsilon=place)


def as_toml(claim: Claim) -> str:
    """One [[claim]] table that reproduces the claim."""
    data = claim_to_dict(claim)
    phases = data.pop("phase", None)
    lines = ["[[claim]]", *(f"{key} = {_text(value)}" for key, value in data.items())]
    for phase in phases or []:
        lines += ["[[claim.phase]]", *(f"{key} = {_text(value)}" for key, value in phase.items())]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_text(item)}" for key, item in value.items()) + "}"
    return json.dumps(value) if isinstance(value, str) else repr(value)
