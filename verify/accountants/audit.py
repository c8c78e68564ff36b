"""Anyone's accountant put to the question: a setting whose epsilon lies below a certified lower bound refutes it.

Nothing statistical is involved: the lower bounds are proofs, so a contradiction is certain, and finding none after some
number of settings is evidence only. Laws that every sound accountant obeys are tried beside.
"""

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy

from dpaudit.mechanisms.base import SEED, usual_errors, validate_function
from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.accountants.laws import LawViolation, broken_laws, simplest
from dpaudit.verify.accountants.queries import CachedAccountant
from dpaudit.verify.claims import Claim
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.results import Witness, to_json
from dpaudit.verify.strategies import Setting, aim_at_violation, gaussian_settings

ROUNDING = 1e-9  # relative: an accountant computes in floating point; one that answers in float32 rounds to that


@dataclass(frozen=True)
class Contradiction:
    """A setting where the accountant's epsilon is below what a pair of neighbours proves.

    Args:
        setting: Mechanism, sampling_prob, steps, delta.
        epsilon_claimed: The accountant's answer.
        epsilon_lower: Certified lower bound on epsilon at delta.
        delta_lower: Certified lower bound on delta at the accountant's epsilon.
        witness: The pair of neighbours.
    """

    setting: Setting
    epsilon_claimed: float
    epsilon_lower: float
    delta_lower: float
    witness: Witness | None


@dataclass(frozen=True)
class AccountantAudit:
    """What was found about an accountant.

    Args:
        refuted: Whether a contradiction was found.
        witness: The simplest one found, None if none was.
        tried: Distinct settings at which its answer was compared with a certified lower bound.
        law_violations: One for every law broken.
        refusals: How often it said no, by its own words.
        seed: Of the search.
    """

    refuted: bool
    witness: Contradiction | None
    tried: int
    law_violations: list[LawViolation]
    refusals: dict[str, int]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; the witness and every law violation are flat, beside the fields of their settings."""
        data: dict[str, Any] = {"refuted": self.refuted, "witness": None, "tried": self.tried}
        if self.witness is not None:
            numbers = {key: value for key, value in asdict(self.witness).items() if key not in ("setting", "witness")}
            pair = self.witness.witness.to_dict() if self.witness.witness else None
            data["witness"] = {**self.witness.setting.to_dict(), **numbers, "neighbours": pair}
        data["law_violations"] = [
            {"law": item.law, **item.setting.to_dict(), "detail": item.detail} for item in self.law_violations
        ]
        return to_json({**data, "refusals": self.refusals, "seed": self.seed})  # type: ignore[no-any-return]


@usual_errors()
def audit_accountant(
    accountant: Accountant,
    strategy: SearchStrategy[Setting] | None = None,
    *,
    seed: int,
    examples: int = 200,
    law_examples: int = 25,
    tolerance: float = 1e-3,
) -> AccountantAudit:
    """Search for a setting that refutes an accountant, and for broken laws; shrink what is found.

    The accountant answers for add-remove adjacency. It is refuted where epsilon < epsilon_lower(delta), a certified
    lower bound of the same releases, by more than 1e-9 of it, or the rounding of a narrower type that it answers in:
    one that rounds its answers to some digits must round them up. The search climbs log(delta_lower(epsilon)/delta).

    The laws: an answer is a number that is not negative, and comes without a crash, at delta from 1e-300 to 0.99 too;
    more steps, less noise or a smaller delta never cost less; and, of a `HistoryAccountant`, n steps at once cost what
    n times one do. The same seed finds the same again, with the same release of Hypothesis and the same modules of the
    program loaded (Hypothesis mixes constants of the program's own source into its draws).

    Args:
        accountant: (mechanism, sampling_prob, steps, delta) -> epsilon. It says no by ValueError, TypeError,
            RuntimeError or MemoryError, which is counted and held against nobody; any other exception is a crash.
        strategy: Settings to draw; by default Gaussian DP-SGD in the declared typical ranges.
        seed: Of the search.
        examples: Settings drawn in search of a contradiction, at least 1.
        law_examples: Settings drawn for every law; 0 for none.
        tolerance: What answers may miss a law by: tolerance (1 + epsilon).

    Raises:
        TypeError: The accountant is no function, or the seed no number.
        ValueError: `examples` or `law_examples` is too small, `tolerance` is negative, or the seed is no integer of at
            least 0.

    Example:
        >>> audit = audit_accountant(lambda mechanism, q, steps, delta: 0.5, seed=1, examples=20, law_examples=0)
        >>> audit.refuted, audit.witness.setting.steps, audit.witness.setting.sampling_prob
        (True, 1, 1.0)
    """
    validate_function("accountant", accountant, "(mechanism, sampling_prob, steps, delta) -> epsilon")
    SEED.validate("seed", seed)
    if examples < 1 or law_examples < 0:
        raise ValueError(f"Expected examples={examples!r} at least 1 and law_examples={law_examples!r} at least 0.")
    if not tolerance >= 0:
        raise ValueError(f"Expected tolerance={tolerance!r} at least 0.")
    drawn = gaussian_settings() if strategy is None else strategy
    cached = CachedAccountant(accountant)
    witness, tried = _contradiction(cached, drawn, seed, examples)
    broken = broken_laws(cached, drawn, seed, law_examples, tolerance) if law_examples else []
    return AccountantAudit(witness is not None, witness, tried, broken, dict(cached.refusals), seed)


@lru_cache(maxsize=8192)
def _bounds(setting: Setting, epsilon: float) -> tuple[float, float, Witness | None]:
    """Certified (epsilon_lower, delta_lower) at the setting's delta and the claimed epsilon, and the witness."""
    claim = Claim.single(
        setting.mechanism,
        epsilon=epsilon,
        delta=setting.delta,
        steps=setting.steps,
        sampling_prob=setting.sampling_prob,
    )
    curve = certified_lower(claim)
    epsilon_lower = float(curve.epsilon(np.array([setting.delta]))[0])
    return epsilon_lower, float(curve.delta(np.array([epsilon]))[0]), curve.witness


def _contradiction(
    cached: CachedAccountant, drawn: SearchStrategy[Setting], seed: int, examples: int
) -> tuple[Contradiction | None, int]:
    compared: set[Setting] = set()

    def contradicted(setting: Setting) -> bool:
        answer = cached.ask(setting)
        if not answer.usable or math.isinf(answer.epsilon):
            return False
        compared.add(setting)
        epsilon_lower, delta_lower, _ = _bounds(setting, answer.epsilon)
        aim_at_violation(delta_lower, setting.delta)
        return answer.epsilon < epsilon_lower * (1 - max(ROUNDING, answer.rounding))

    setting = simplest(drawn, contradicted, seed, examples)
    if setting is None:
        return None, len(compared)
    epsilon = cached.ask(setting).epsilon
    return Contradiction(setting, epsilon, *_bounds(setting, epsilon)), len(compared)
