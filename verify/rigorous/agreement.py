"""A verdict held against the second engine: proven bounds that cross decide nothing, others tell how far both go."""

from collections.abc import Iterator
from dataclasses import replace

from dpaudit.verify.checking import decide
from dpaudit.verify.claims import Claim
from dpaudit.verify.guarantees import PrivacyCurve
from dpaudit.verify.results import DISAGREEMENT, Verdict, VerdictName, down, up
from dpaudit.verify.rigorous.balls import Unavailable
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket
from dpaudit.verify.rigorous.guarantees import GuaranteeBracket, guarantee_bracket

RIGOROUS = "rigorous"
Ends = tuple[float, float]
READING = 1e-12  # parameters are doubles to the first engine and decimals to the second


def confirmed(claim: Claim, verdict: Verdict) -> Verdict:
    """The verdict after both engines.

    Both brackets hold, so their intersection does and decides. Where they do not meet, one of them is wrong: the
    verdict is `undecided`, and "disagreement" stands among the methods. A sampled lower bound may be wrong by chance.

    Args:
        claim: The claim.
        verdict: From `check`.

    >>> from dpaudit.mechanisms import Laplace
    >>> from dpaudit.verify import check
    >>> claim = Claim.single(Laplace(scale=1.0, clip=1.0, clip_norm=1.0), epsilon=1.0, delta=0.0)
    >>> confirmed(claim, check(claim)).methods[-1]
    'rigorous'
    """
    if claim.guarantee is not None:
        return _kept(claim, verdict, guarantee_bracket(claim, verdict.witness))
    return compared(claim, verdict, rigorous_bracket(claim, verdict.witness))


def alone(claim: Claim, verdict: Verdict) -> tuple[VerdictName, str]:
    """What the second engine decides without the first one, and what it proves or why nothing.

    Args:
        claim: The claim.
        verdict: From `check`: its witness says where to look.
    """
    if claim.guarantee is not None:
        kept = guarantee_bracket(claim, verdict.witness)
        return ("undecided", kept.reason) if isinstance(kept, Unavailable) else (kept.verdict, _bounds_of(kept))
    found = rigorous_bracket(claim, verdict.witness)
    if isinstance(found, Unavailable):
        return "undecided", found.reason
    return _decided(claim, found), _bounds(found)


def compared(claim: Claim, verdict: Verdict, found: RigorousBracket | Unavailable) -> Verdict:
    """The same, from a bracket that is known.

    Args:
        claim: The claim.
        verdict: From `check`.
        found: From `rigorous_bracket`.
    """
    if isinstance(found, Unavailable):
        return _unconfirmed(verdict, found)
    both = replace(
        verdict,
        delta_lower=max(verdict.delta_lower, found.delta_lower),
        delta_upper=min(verdict.delta_upper, found.delta_upper),
        epsilon_lower=max(verdict.epsilon_lower, found.epsilon_lower),
        epsilon_upper=min(verdict.epsilon_upper, found.epsilon_upper),
        methods=[*verdict.methods, RIGOROUS],
    )
    if DISAGREEMENT in verdict.methods:
        return replace(both, reason=f"{verdict.reason} Ball arithmetic says: {_bounds(found)}.")
    if not (_meet(both.delta_lower, both.delta_upper) and _meet(both.epsilon_lower, both.epsilon_upper)):
        return _crossed(verdict, found)
    name = decide(claim, both.delta_lower, both.delta_upper, both.epsilon_lower)
    if name != verdict.verdict:
        opening = "The bounds meet at the claim itself" if name == "undecided" else "Ball arithmetic decides"
        return replace(both, verdict=name, reason=f"{opening}: {_bounds(found)}.")
    return replace(both, reason=f"{verdict.reason} {_opening(_decided(claim, found), name)}: {_bounds(found)}.")


def _kept(claim: Claim, verdict: Verdict, found: GuaranteeBracket | Unavailable) -> Verdict:
    """The same of a guarantee that is no (epsilon, delta), of whose number both engines have a bracket."""
    if isinstance(found, Unavailable):
        return _unconfirmed(verdict, found)
    known = verdict.guarantee
    if known is None:  # the first engine's own bounds cross
        return verdict
    bounds, methods = _bounds_of(found), [*verdict.methods, RIGOROUS]
    lower, upper = max(known["lower"], found.lower), min(known["upper"], found.upper)
    if DISAGREEMENT in verdict.methods:
        return replace(verdict, reason=f"{verdict.reason} Ball arithmetic says: {bounds}.", methods=methods)
    number = found.parameter, (known["lower"], known["upper"]), (found.lower, found.upper)
    for what, ours, balls in (number, *_on_a_curve(claim, verdict, found)):
        if not (_meet(ours[0], balls[1]) and _meet(balls[0], ours[1])):
            reason = (
                f"Two bounds disagree, please report: {what} is in [{ours[0]:.9g}, {ours[1]:.9g}] in floating point, "
                f"and in [{balls[0]:.9g}, {balls[1]:.9g}] by {found.theorem} and {found.witness} in ball arithmetic."
            )
            return replace(verdict, verdict="undecided", reason=reason, methods=[*methods, DISAGREEMENT])
    both = replace(verdict, guarantee={**known, "lower": lower, "upper": upper}, methods=methods)
    if verdict.verdict == "undecided" != found.verdict:
        return replace(both, verdict=found.verdict, reason=f"Ball arithmetic decides: {bounds}.")
    return replace(both, reason=f"{verdict.reason} {_opening(found.verdict, verdict.verdict)}: {bounds}.")


def _on_a_curve(claim: Claim, verdict: Verdict, found: GuaranteeBracket) -> Iterator[tuple[str, Ends, Ends]]:
    """(delta at a point, the first engine's bounds, the second's), where both have a curve."""
    if isinstance(claim.guarantee, PrivacyCurve) and found.deltas and verdict.delta_curve is not None:
        epsilons = [epsilon for epsilon, _ in claim.guarantee.points]
        for epsilon, low, high, balls in zip(epsilons, *verdict.delta(epsilons), found.deltas, strict=True):
            yield f"delta at epsilon={epsilon:g}", (float(low), float(high)), balls


def _unconfirmed(verdict: Verdict, found: Unavailable) -> Verdict:
    return replace(verdict, reason=f"{verdict.reason} In ball arithmetic there is no bound: {found.reason}.")


def _decided(claim: Claim, found: RigorousBracket) -> VerdictName:
    return decide(claim, found.delta_lower, found.delta_upper, found.epsilon_lower)


def _opening(alone: VerdictName, name: VerdictName) -> str:
    return "Ball arithmetic proves the same" if alone == name != "undecided" else "Ball arithmetic agrees"


def _meet(lower: float, upper: float) -> bool:
    return lower <= upper * (1 + READING)


def _bounds(found: RigorousBracket) -> str:
    return _between("delta", found.delta_lower, found.witness, found.delta_upper, found.theorem)


def _bounds_of(found: GuaranteeBracket) -> str:
    if found.parameter == "points":
        return f"{found.lower:g} points are broken ({found.witness}), {found.upper:g} are not proved ({found.theorem})"
    return _between(found.parameter, found.lower, found.witness, found.upper, found.theorem)


def _between(what: str, lower: float, witness: str, upper: float, theorem: str) -> str:
    return f"{what} is at least {down(lower, 6)} ({witness}) and at most {up(upper, 6)} ({theorem})"


def _crossed(verdict: Verdict, found: RigorousBracket) -> Verdict:
    """Nothing is decided, and the bounds stay as the first engine has them."""
    by_chance = verdict.confidence < 1 and found.delta_lower <= verdict.delta_upper
    opening = (
        f"The sampled lower bound, which may be wrong with probability {1 - verdict.confidence:.2g}, exceeds a proven "
        "upper one"
        if by_chance
        else "Two bounds disagree, please report"
    )
    return replace(
        verdict,
        verdict="undecided",
        reason=(
            f"{opening}: delta is in [{verdict.delta_lower:.9g}, {verdict.delta_upper:.9g}] by "
            f"{' and '.join(verdict.methods)} in floating point, and in [{found.delta_lower:.9g}, "
            f"{found.delta_upper:.9g}] by {found.theorem} and {found.witness} in ball arithmetic; epsilon in "
            f"[{verdict.epsilon_lower:.9g}, {verdict.epsilon_upper:.9g}] and [{found.epsilon_lower:.9g}, "
            f"{found.epsilon_upper:.9g}]."
        ),
        methods=[*verdict.methods, RIGOROUS, *([] if by_chance else [DISAGREEMENT])],
    )
