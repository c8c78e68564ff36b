"""What must hold for every verdict, whatever the truth is: brackets that do not cross, and how truths are ordered."""

import math
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from wide_laws import Relation, guarantee_disorder, guarantee_faults, phase_laws, restated

from dpaudit.mechanisms import Laplace
from dpaudit.mechanisms.base import IIDCoordinates, Mechanism, ScaleMixture, at_clip
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import PLAIN_KINDS, Phase
from dpaudit.verify.results import DISAGREEMENT, Verdict

REFUSAL = re.compile(r"Expected [^\n]*\.")
ROUNDING = 1e-9  # relative; by how much a curve may rise where it should fall
FACTORS = (1.001, 1.1, 2.0, 10.0)

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What `check` said: a verdict, a refusal in one line, or a crash.

    Args:
        verdict: None where there is none.
        refusal: The sentence of a ValueError, "" if none.
        crash: Any other exception or a warning, "" if none.
        seconds: CPU time.
    """

    verdict: Verdict | None
    refusal: str
    crash: str
    seconds: float


def guarded(work: Callable[[], T]) -> tuple[T | None, str, str]:
    """(what the work returns, its refusal, its crash); a warning is a crash."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return work(), "", ""
    except ValueError as error:
        if type(error) is ValueError and REFUSAL.fullmatch(str(error)):
            return None, str(error), ""
        return None, "", _described(error)
    except Exception as error:
        return None, "", _described(error)


def _described(error: Exception) -> str:
    """Type, message and the innermost place in dpaudit."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "dpaudit" in file or "/verify/" in file or "/mechanisms/" in file:
            place = f"{file.split('dpaudit/')[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {str(error)[:200]} ({place})"


def asked(claim: Claim) -> Answer:
    """Ask `check` about a claim."""
    started = time.process_time()
    verdict, refusal, crash = guarded(lambda: check(claim))
    return Answer(verdict, refusal, crash, time.process_time() - started)


def points(claim: Claim) -> tuple[np.ndarray, np.ndarray]:
    """Epsilons and deltas about the claimed ones and far away, ascending."""
    e, d = claim.epsilon, claim.delta
    epsilons = {0.0, 1e-3, 0.5 * e, 0.999 * e, e, 1.001 * e, 2.0 * e, e + 1.0, e + 30.0, 1e3, 1e5}
    deltas = {0.0, 1e-300, 1e-30, d * d, 0.5 * d, d, min(2.0 * d, 0.9), math.sqrt(d), 0.5, 0.999}
    return np.array(sorted(epsilons)), np.array(sorted(deltas))


def faults(claim: Claim, verdict: Verdict) -> list[str]:
    """What is wrong with one verdict by itself."""
    found = []
    numbers = (verdict.delta_lower, verdict.delta_upper, verdict.epsilon_lower, verdict.epsilon_upper)
    if any(math.isnan(number) for number in numbers):
        return [f"NaN in the bracket {numbers}"]
    if DISAGREEMENT in verdict.methods:
        found.append(f"two bounds disagree: {verdict.reason}")
    epsilons, deltas = points(claim)
    if claim.guarantee is not None:
        wrong, refusal, crash = guarded(lambda: guarantee_faults(claim, verdict, epsilons))
        found += [f"crash of a guarantee's curve: {crash or refusal}"] if wrong is None else wrong
    elif verdict.verdict == "refuted" and not (
        verdict.delta_lower > claim.delta or verdict.epsilon_lower > claim.epsilon
    ):
        found.append("refuted without a lower bound above the claim")
    elif verdict.verdict == "certified" and not verdict.delta_upper <= claim.delta:
        found.append("certified without an upper bound at most delta")
    curves, refusal, crash = guarded(lambda: (verdict.delta(epsilons), verdict.epsilon(deltas)))
    if curves is None:
        return [*found, f"crash of a curve: {crash or refusal}"]
    for name, at, (lower, upper) in (("delta", epsilons, curves[0]), ("epsilon", deltas, curves[1])):
        if np.isnan(lower).any() or np.isnan(upper).any():
            found.append(f"NaN in the curve of {name}")
            continue
        # the truth falls: what is at least `lower` further right is at least that here
        best = np.maximum.accumulate(lower[::-1])[::-1]
        for i in np.flatnonzero(best > upper)[:1]:
            found.append(f"{name} at {at[i]:.17g} is at least {best[i]:.17g} and at most {upper[i]:.17g}")
        for side, values in (("lower", lower), ("upper", upper)):
            before = np.minimum.accumulate(values)[:-1]
            for i in np.flatnonzero(values[1:] > before * (1 + ROUNDING))[:1]:
                found.append(
                    f"{side} bound on {name} rises to {values[i + 1]:.17g} at {at[i + 1]:.17g} from {before[i]:.17g}"
                )
    return found + _duality(verdict, deltas, curves[1]) + _pure_fault(claim, verdict)


def _pure_fault(claim: Claim, verdict: Verdict) -> list[str]:
    """A bracket at delta = 0 that leaves out the pure epsilon: all largest losses of Laplace noise can come at once."""
    exact = pure_epsilon(claim)
    if exact is None or not 0.0 < exact < math.inf:
        return []
    low, high = (float(end) for end in verdict.epsilon(0.0))
    if not low * (1.0 - ROUNDING) <= exact <= high * (1.0 + ROUNDING):
        return [f"epsilon at delta=0 is in [{low:.17g}, {high:.17g}], and is {exact:.17g}"]
    before = exact * (1.0 - 1e-6)
    return [f"delta is 0 at {before:.17g}, before {exact:.17g}"] if float(verdict.delta(before)[1]) == 0.0 else []


def pure_epsilon(claim: Claim) -> float | None:
    """The sum of log(1 + q (e^s - 1)) over releases of Laplace noise, None for anything else."""
    replaced, total = claim.adjacency == "replace-one", 0.0
    for phase in claim.phases:
        noise, rate = phase.mechanism, phase.sampling_prob
        plain = phase.sampler is None and phase.correlation is None and phase.sampling_kind in PLAIN_KINDS
        if not plain or not isinstance(noise, Laplace) or (replaced and rate < 1.0):
            return None
        shift = noise.clip / noise.scale * (1 + replaced)
        if shift > 700.0 or not (noise.clip_norm == 1.0 or noise.dimension == 1):
            return None
        total += phase.steps * math.log1p(rate * math.expm1(shift))
    return total


def _duality(verdict: Verdict, deltas: np.ndarray, curve: tuple[np.ndarray, np.ndarray]) -> list[str]:
    """The curve of epsilon against that of delta: at an upper bound delta is reached, before a lower one it is not."""
    found = []
    for delta, low, high in zip(deltas, *curve, strict=True):
        if math.isfinite(high) and float(verdict.delta(high)[0]) > delta:
            found.append(f"epsilon is at most {high:.17g} at delta={delta:.17g}, where delta is at least more")
        if low > 0 and math.isfinite(low) and float(verdict.delta(low * (1 - 1e-9))[1]) < delta * (1 - ROUNDING):
            found.append(f"epsilon is at least {low:.17g} at delta={delta:.17g}, before which delta is at most less")
    return found[:1]


def disorder(claim: Claim, cheap: Verdict, dear: Verdict) -> str:
    """Where `cheap` is proven to cost more than `dear`, "" if nowhere."""
    epsilons, deltas = points(claim)
    for name, at, lower, upper in (
        ("delta", epsilons, cheap.delta(epsilons)[0], dear.delta(epsilons)[1]),
        ("epsilon", deltas, cheap.epsilon(deltas)[0], dear.epsilon(deltas)[1]),
    ):
        for i in np.flatnonzero(lower > upper)[:1]:
            return f"{name} at {at[i]:.17g}: at least {lower[i]:.17g} for one, at most {upper[i]:.17g} for the other"
    return guarantee_disorder(cheap, dear)


def order_fault(claim: Claim, verdict: Verdict, other: Verdict, relation: Relation) -> str:
    """Where two brackets contradict the relation of the other claim to the first one, "" if nowhere."""
    found = ""
    if relation in ("dearer", "equal"):
        found = disorder(claim, verdict, other)
    if relation in ("cheaper", "equal") and not found:
        found = disorder(claim, other, verdict)
    return found


@dataclass(frozen=True)
class Law:
    """Another claim whose cost compares with a claim's in a known way.

    Args:
        name: What was changed.
        other: The claim changed.
        relation: How it costs, against the first one.
    """

    name: str
    other: Claim
    relation: Relation


def with_noise(mechanism: Mechanism, factor: float) -> Mechanism:
    """The same noise, magnified: moved by v it is the old one moved by v/factor (boundary lemma)."""
    if mechanism.name == "gaussian":
        return replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)  # type: ignore[type-var,attr-defined]
    changed = at_clip(mechanism, float(mechanism.clip) * factor)
    return replace(changed, clip=mechanism.clip)


def _each(claim: Claim, change: Callable[[Mechanism], Mechanism]) -> Claim:
    return replace(claim, phases=tuple(replace(phase, mechanism=change(phase.mechanism)) for phase in claim.phases))


def _one(claim: Claim, place: int, *new: Phase) -> Claim:
    return replace(claim, phases=(*claim.phases[:place], *new, *claim.phases[place + 1 :]))


def laws(claim: Claim, verdict: Verdict, rng: np.random.Generator) -> list[Law]:
    """The laws that apply to a claim; `wide_laws` has those of samplers and of correlated noise.

    Sampling is monotone: rate q is q/q' of rate q', and hockey-stick divergences are jointly convex. More coordinates
    of independent or hidden-scale noise can be dropped by post-processing; a smaller norm's ball lies in a larger
    one's. Replace-one with one empty contribution is add-remove, as is zero-out. Phases may change places since lower
    bounds come from pairs that are fixed beforehand.
    """
    factor = float(rng.choice(FACTORS))
    place = int(rng.integers(len(claim.phases)))
    phase = claim.phases[place]
    more = max(phase.steps + 1, int(phase.steps * factor))
    found = [
        Law("more noise", _each(claim, lambda m: with_noise(m, factor)), "cheaper"),
        Law(
            "another unit",
            _each(claim, lambda m: at_clip(m, float(m.clip) * 2.0 ** int(rng.integers(-9, 10)))),
            "equal",
        ),
        Law("another claimed epsilon", replace(claim, epsilon=claim.epsilon * factor + 1e-3), "equal"),
        Law("another claimed delta", replace(claim, delta=min(claim.delta * factor + 1e-15, 0.9)), "equal"),
        Law("a larger ball", _each(claim, _larger_norm), "dearer"),
    ]
    plain = phase.sampling_kind in PLAIN_KINDS
    if plain:
        found.append(Law("more steps", _one(claim, place, replace(phase, steps=more)), "dearer"))
    if plain and phase.sampling_prob < 1:
        rate = min(1.0, phase.sampling_prob * factor)
        found.append(Law("a larger rate", _one(claim, place, replace(phase, sampling_prob=rate)), "dearer"))
    if plain and phase.steps > 1:
        first = int(rng.integers(1, phase.steps))
        parts = replace(phase, steps=first), replace(phase, steps=phase.steps - first)
        found.append(Law("releases in two phases", _one(claim, place, *parts), "equal"))
    if len(claim.phases) > 1:
        found.append(Law("phases in another order", replace(claim, phases=tuple(claim.phases[::-1])), "equal"))
        found.append(Law("a phase less", _one(claim, place), "cheaper"))
    if claim.adjacency != "replace-one":
        found.append(Law("replace-one", replace(claim, adjacency="replace-one"), "dearer"))
    if all(isinstance(p.mechanism.structure, IIDCoordinates | ScaleMixture) for p in claim.phases):
        found.append(Law("more coordinates", _each(claim, lambda m: _more_coordinates(m, factor)), "dearer"))
    if not plain or claim.guarantee is not None:
        found.append(Law("another kind of guarantee", restated(claim, verdict, rng), "equal"))
    if not plain:  # these are what is new there: four of them for one of the others
        own = [Law(name, _one(claim, place, *new), how) for name, new, how in phase_laws(phase, claim, rng)]
        found = own * max(1, 4 * len(found) // max(len(own), 1)) + found
    return found


def _larger_norm(mechanism: Mechanism) -> Mechanism:
    norm = float(mechanism.clip_norm)
    return replace(mechanism, clip_norm=math.inf if norm >= 3 else norm + 1.0)  # type: ignore[type-var]


def _more_coordinates(mechanism: Mechanism, factor: float) -> Mechanism:
    if mechanism.dimension is None:
        return mechanism
    return replace(mechanism, dimension=max(mechanism.dimension + 1, int(mechanism.dimension * factor)))  # type: ignore[type-var]


def group_fault(claim: Claim, verdict: Verdict, replaced: Verdict) -> str:
    """Replace-one is two steps of add-remove: delta(2 e) <= (1 + e^e) delta(e) (group privacy); "" where that holds."""
    for e in (0.5 * claim.epsilon, claim.epsilon):
        most = (1 + math.exp(min(e, 700.0))) * float(verdict.delta(e)[1]) * (1 + ROUNDING)
        least = float(replaced.delta(2 * e)[0])
        if least > most:
            return f"replace-one: delta at {2 * e:.17g} is at least {least:.17g}, at most {most:.17g} by group privacy"
    return ""
