"""Every accountant on one claim, side by side, against the certified lower bound.

A valid accountant can only be loose. One that is not proven can be anything; where it lies below the certified lower
bound it is wrong for this claim, and marked.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from dpaudit.mechanisms.base import Radial, usual_errors
from dpaudit.mechanisms.published import ACCOUNTANTS, PublishedValue
from dpaudit.verify.accountants.base import Accountant, HistoryAccountant, number_and_rounding, quiet
from dpaudit.verify.accountants.values import (
    AccountantValue,
    NotApplicable,
    advanced,
    domination,
    gdp,
    naive,
    pld,
    rdp,
    require_known_sampling,
)
from dpaudit.verify.claims import Claim
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.results import to_json

ROUNDING = 1e-9  # relative: an accountant may round its answer
# published theorems that speak about something other than the whole noisy vector
ONE_COORDINATE = ("plrvo-theorem-4.2", "plrvo-theorem-4.8", "lap2-theorem-iii.2")
OF_THE_ARGMAX = ("gg-theorem-2",)


class OtherNoise(NotApplicable):
    """It speaks about other noise altogether."""


@dataclass(frozen=True)
class AccountantRow:
    """What one accountant says about a claim.

    Args:
        accountant: Its name.
        epsilon: Its value at the claimed delta, in [0, inf] if it is sane; None where it has none.
        valid: Whether a theorem known here makes the value an upper bound.
        epsilon_lower: The certified lower bound on the true epsilon at that delta.
        note: Its theorem, or why it has no value.
    """

    accountant: str
    epsilon: float | None
    valid: bool
    epsilon_lower: float
    note: str

    @property
    def gap(self) -> float | None:
        """epsilon minus the certified lower bound; None where there is no value."""
        if self.epsilon is None:
            return None
        return 0.0 if self.epsilon == self.epsilon_lower else self.epsilon - self.epsilon_lower

    @property
    def contradicted(self) -> bool:
        """Whether the value lies below the certified lower bound."""
        return self.epsilon is not None and self.epsilon < self.epsilon_lower * (1 - ROUNDING)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this row; an absent value is null, and `note` says why."""
        return to_json({**asdict(self), "gap": self.gap, "contradicted": self.contradicted})  # type: ignore[no-any-return]


@usual_errors()
def cross_check(
    claim: Claim, accountants: Mapping[str, Accountant] | None = None, *, epsilon_lower: float | None = None
) -> list[AccountantRow]:
    """All accountants' epsilon at the claimed delta: published formula, PLD, RDP, and so on, then the given ones.

    Args:
        claim: The history, its delta, and the published accountant to recompute; where it names none, every published
            formula that speaks about the mechanism is.
        accountants: More of them by name, such as {"opacus gdp": Opacus("gdp")}; asked under add-remove.
        epsilon_lower: A certified lower bound on epsilon at the claimed delta, >= 0, where one is known already.

    Returns:
        A row per accountant, also where it has no value.

    >>> from dpaudit.mechanisms import Gaussian
    >>> rows = cross_check(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5, steps=1000, sampling_prob=0.01))
    >>> [(row.accountant, round(row.epsilon, 2), row.valid, row.contradicted) for row in rows if row.epsilon][:3]
    [('PLD', 1.83, True, False), ('RDP', 2.1, True, False), ('GDP/CLT', 1.62, False, True)]
    """
    if epsilon_lower is None:
        epsilon_lower = float(certified_lower(claim).epsilon(np.array([claim.delta]))[0])
    if any(phase.correlation is not None for phase in claim.phases):
        claim = claim.canonical("upper")  # accountants know independent noise, which costs at least as much
    routes: list[tuple[str, Callable[[Claim], AccountantValue]]] = [
        *((f"published: {name}", partial(_published, name)) for name in _published_names(claim)),
        ("PLD", pld),
        ("RDP", rdp),
        ("Gaussian domination", domination),
        ("GDP/CLT", gdp),
        ("naive composition", naive),
        ("advanced composition", advanced),
        *((name, partial(_foreign, accountant)) for name, accountant in (accountants or {}).items()),
    ]
    rows = []
    for name, route in routes:
        try:
            value = route(claim)
            rows.append(AccountantRow(name, value.epsilon, value.valid, epsilon_lower, value.note))
        except NotApplicable as reason:
            if claim.accountant is not None or not isinstance(reason, OtherNoise):
                rows.append(AccountantRow(name, None, False, epsilon_lower, str(reason)))
    return rows


def _published_names(claim: Claim) -> list[str]:
    """The one that the claim names, or those that speak about the noisy vector."""
    if claim.accountant is not None:
        return [claim.accountant]
    one_coordinate = all(phase.mechanism.dimension == 1 for phase in claim.phases)
    return [name for name in ACCOUNTANTS if name not in OF_THE_ARGMAX + (() if one_coordinate else ONE_COORDINATE)]


def _published(name: str, claim: Claim) -> AccountantValue:
    if name not in ACCOUNTANTS:
        raise NotApplicable(f"Expected accountant={name!r} to be one of {', '.join(ACCOUNTANTS)}.")
    phase = claim.phases[0]
    try:
        with quiet():  # a formula that is printed with a fault may overflow
            value: PublishedValue = ACCOUNTANTS[name](
                phase.mechanism, sampling_prob=phase.sampling_prob, steps=phase.steps, delta=claim.delta
            )
    except TypeError as error:
        raise OtherNoise(f"{error}") from error
    except (ValueError, ArithmeticError) as error:
        raise NotApplicable(f"{error}") from error
    require_known_sampling(claim)
    if len(claim.phases) > 1:
        raise NotApplicable("it speaks about one phase only.")
    if math.isnan(value.epsilon):
        raise NotApplicable("it gives no number.")
    # the product paper takes 2 clip for the sensitivity, the others take clip
    if claim.adjacency == "replace-one" and not isinstance(phase.mechanism.structure, Radial):
        raise NotApplicable("it accounts for add-remove adjacency.")
    settings = ", ".join(
        f"{key} = {item:.6g}" if isinstance(item, float) else f"{key} = {item}" for key, item in value.settings.items()
    )
    # to its credit: the formula's own numerical error
    return AccountantValue(value.epsilon + value.error, False, f"as printed{f': {settings}' if settings else ''}")


def _foreign(accountant: Accountant, claim: Claim) -> AccountantValue:
    require_known_sampling(claim)
    if claim.adjacency == "replace-one":
        raise NotApplicable("it is asked about add-remove adjacency only.")
    if len(claim.phases) > 1 and not isinstance(accountant, HistoryAccountant):
        raise NotApplicable("it speaks about one phase only.")
    phase = claim.phases[0]
    try:
        if len(claim.phases) > 1 and isinstance(accountant, HistoryAccountant):
            value, _ = number_and_rounding(accountant.history(claim.phases, claim.delta))
        else:
            answer = accountant(phase.mechanism, phase.sampling_prob, phase.steps, claim.delta)
            value, _ = number_and_rounding(answer)
    except Exception as error:  # somebody else's code: whatever it raises is its answer
        raise NotApplicable(f"{type(error).__name__}: {error}") from error
    if math.isnan(value):
        raise NotApplicable("it gives no number.")
    return AccountantValue(value, False, "not vouched for here")
