"""Plain laws that every sound accountant obeys, tried at drawn settings."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, TypeVar

import hypothesis
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.accountants.base import HistoryAccountant
from dpaudit.verify.accountants.queries import Answer, CachedAccountant
from dpaudit.verify.strategies import Setting

EXTREME_DELTAS = (0.1, 0.5, 0.9, 0.99, 1e-12, 1e-20, 1e-50, 1e-300)
Example = TypeVar("Example")
OrderedSettings = tuple[Setting, Setting]
Drawn = tuple[Setting, int]


@dataclass(frozen=True)
class LawViolation:
    """A plain law that the accountant breaks.

    Args:
        law: Which.
        setting: A simple setting where it does.
        detail: What it answered there.
    """

    law: str
    setting: Setting
    detail: str


def simplest(
    drawn: SearchStrategy[Example], condition: Callable[[Example], object], seed: int, examples: int
) -> Example | None:
    """The simplest drawn value that meets the condition, None if none did."""
    # no comments on which part of the example matters: they cost most of the time, and nobody reads them
    phases = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
    settings = hypothesis.settings(
        max_examples=examples, database=None, deadline=None, derandomize=False, phases=phases
    )

    # Hypothesis describes the condition in words: of a partial, everything it was given, and that took most of the time
    def meets(value: Example) -> bool:
        return bool(condition(value))

    try:
        return hypothesis.find(drawn, meets, settings=settings, random=Random(seed))
    except NoSuchExample:
        return None


def _noisier(mechanism: Mechanism, factor: int) -> Mechanism:
    """The same with more noise per contribution: every noise parameter but a multiplier of clip is absolute."""
    name = "noise_multiplier" if "noise_multiplier" in mechanism.domains else "clip"
    value = getattr(mechanism, name)
    change: Any = {name: value * factor if name == "noise_multiplier" else value / factor}
    return replace(mechanism, **change)  # type: ignore[type-var]  # the protocol's implementations are dataclasses


# from a setting and a whole factor to two settings, the first of which must not cost more
ORDERED: tuple[tuple[str, Callable[[Setting, int], OrderedSettings]], ...] = (
    ("more steps never cost less", lambda s, factor: (s, replace(s, steps=s.steps * factor))),
    ("more noise never costs more", lambda s, factor: (replace(s, mechanism=_noisier(s.mechanism, factor)), s)),
    ("a smaller delta never costs less", lambda s, factor: (s, replace(s, delta=s.delta / factor))),
)


def broken_laws(
    cached: CachedAccountant, drawn: SearchStrategy[Setting], seed: int, examples: int, tolerance: float
) -> list[LawViolation]:
    """The simplest violation found of every law that is broken.

    Args:
        cached: The accountant.
        drawn: Settings; each law is tried at every extreme delta too.
        seed: Of the search.
        examples: Settings drawn for every law, and as many again at the extreme deltas.
        tolerance: What answers may miss a law by: tolerance (1 + epsilon).
    """
    searches = [(drawn, examples)]
    few = math.ceil(examples / len(EXTREME_DELTAS))
    searches += [(drawn.map(partial(replace, delta=delta)), few) for delta in EXTREME_DELTAS]
    laws: list[tuple[str, Callable[[Drawn], str]]] = [
        ("an answer, not a crash", lambda x: cached.ask(x[0]).crash),
        ("a number that is not negative", lambda x: _bad_number(cached.ask(x[0]))),
        *((name, partial(_disorder, cached, pair, tolerance)) for name, pair in ORDERED),
    ]
    if isinstance(cached.accountant, HistoryAccountant):
        laws.append(("n steps at once cost what n times one do", partial(_unequal, cached, tolerance)))
    violations = []
    for name, detail in laws:
        for settings, count in searches:
            example = simplest(st.tuples(settings, st.integers(2, 8)), detail, seed, count)
            if example is not None:
                violations.append(LawViolation(name, example[0], detail(example)))
                break
    return violations


def _bad_number(answer: Answer) -> str:
    said = not answer.crash and not answer.refused
    return f"epsilon = {answer.epsilon!r}" if said and not answer.epsilon >= 0 else ""


def _disorder(
    cached: CachedAccountant, pair: Callable[[Setting, int], OrderedSettings], tolerance: float, drawn: Drawn
) -> str:
    """What is said if the first of the pair costs more than the second, "" if not."""
    cheaper, dearer = pair(*drawn)
    low, high = cached.ask(cheaper), cached.ask(dearer)
    if not low.usable or not high.usable or low.epsilon <= high.epsilon + tolerance * (1 + high.epsilon):
        return ""
    return f"epsilon = {low.epsilon!r} at {cheaper.to_dict()}, {high.epsilon!r} at {dearer.to_dict()}"


def _unequal(cached: CachedAccountant, tolerance: float, drawn: Drawn) -> str:
    """What is said if as many releases as the factor cost something else one by one, "" if not."""
    setting = replace(drawn[0], steps=drawn[1])
    once, singly = cached.ask(setting), cached.ask(setting, one_by_one=True)
    if not once.usable or not singly.usable or once.epsilon == singly.epsilon:
        return ""
    far = not abs(once.epsilon - singly.epsilon) <= tolerance * (1 + once.epsilon)
    return f"{drawn[1]} releases: epsilon = {once.epsilon!r} at once, {singly.epsilon!r} one by one" if far else ""
