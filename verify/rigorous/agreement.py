"""A verdict held against the second engine: proven bounds that cross decide nothing, others tell how far both go."""

from dataclasses import replace

from dpaudit.verify.checking import DISAGREEMENT, decide
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Verdict
from dpaudit.verify.rigorous.balls import Unavailable
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket

RIGOROUS = "rigorous"
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
        return compared(claim, verdict, Unavailable(f"it judges an (epsilon, delta), and {claim.guarantee} is none"))
    return compared(claim, verdict, rigorous_bracket(claim, verdict.witness))


def compared(claim: Claim, verdict: Verdict, found: RigorousBracket | Unavailable) -> Verdict:
    """The same, from a bracket that is known.

    Args:
        claim: The claim.
        verdict: From `check`.
        found: From `rigorous_bracket`.
    """
    if isinstance(found, Unavailable):
        return replace(verdict, reason=f"{verdict.reason} In ball arithmetic there is no bound: {found.reason}.")
    both = replace(
        verdict,
        delta_lower=max(verdict.delta_lower, found.delta_lower),
        delta_upper=min(verdict.delta_upper, found.delta_upper),
        epsilon_lower=max(verdict.epsilon_lower, found.epsilon_lower),
        epsilon_upper=min(verdict.epsilon_upper, found.epsilon_upper),
        methods=[*verdict.methods, RIGOROUS],
    )
    if DISAGREEMENT in verdict.methods:
        return replace(both, reason=f"{verdict.reason} {_told('Ball arithmetic says', found)}")
    if not (_meet(both.delta_lower, both.delta_upper) and _meet(both.epsilon_lower, both.epsilon_upper)):
        return _crossed(verdict, found)
    name = decide(claim, both.delta_lower, both.delta_upper, both.epsilon_lower)
    if name != verdict.verdict:
        return replace(both, verdict=name, reason=_told("Ball arithmetic decides", found))
    alone = decide(claim, found.delta_lower, found.delta_upper, found.epsilon_lower)
    opening = "Ball arithmetic proves the same" if alone == name != "undecided" else "Ball arithmetic agrees"
    return replace(both, reason=f"{verdict.reason} {_told(opening, found)}")


def _meet(lower: float, upper: float) -> bool:
    return lower <= upper * (1 + READING)


def _told(opening: str, found: RigorousBracket) -> str:
    return (
        f"{opening}: delta is at least {found.delta_lower:.6g} ({found.witness}) and at most {found.delta_upper:.6g} "
        f"({found.theorem})."
    )


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
