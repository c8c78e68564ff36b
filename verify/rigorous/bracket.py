"""The rigorous bracket of a claim: delta and epsilon between balls' ends, with the theorem and the witness used."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from flint import arb

from dpaudit.mechanisms.base import Mechanism, ScaleMixture
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.claims import Adjacency, Claim, Phase, lets_another_in
from dpaudit.verify.float_range import beyond_floats
from dpaudit.verify.results import Witness
from dpaudit.verify.rigorous.allocation import allocated_passes, composed_curves
from dpaudit.verify.rigorous.balls import Unavailable, all_known, ball, float_above, float_below, precision, total
from dpaudit.verify.rigorous.choices import chosen_event, pass_statistics
from dpaudit.verify.rigorous.coordinates import CoordinateLaw, coordinate_law
from dpaudit.verify.rigorous.correlated_noise import independent_claim
from dpaudit.verify.rigorous.cut_batches import cut_rates, with_silent_others
from dpaudit.verify.rigorous.domination import (
    ShownScale,
    converted,
    dominating_mu,
    is_gaussian,
    laplace_shift,
    log_moment,
    radius,
    smoothed_delta,
)
from dpaudit.verify.rigorous.events import Event, ToldApart, event_probabilities
from dpaudit.verify.rigorous.gaussian import gaussian_delta
from dpaudit.verify.rigorous.hidden_scale_choices import most_coordinates, tells_scale
from dpaudit.verify.rigorous.pairs import (
    Grid,
    GridCurve,
    PairRelease,
    chosen_grid,
    composed_losses,
    fixed_size_tails,
    gaussian_tails,
    laplace_tails,
    replaced_tails,
)
from dpaudit.verify.rigorous.passes import LabelledPass
from dpaudit.verify.rigorous.radial import RadialNoise, radial_delta
from dpaudit.verify.rigorous.seams import straddled_curve
from dpaudit.verify.rigorous.shuffled_choices import shuffled_bound
from dpaudit.verify.rigorous.streams import stream_event
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper.met_releases import met_claim
from dpaudit.verify.upper.shift_norms import sampling_is_known

T = TypeVar("T")
ORDERS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 50, 62, 78, 97, 120, 150, 190, 240, 300, 380, 480, 600)
WIDTHS = ("0.01", "0.02", "0.03", "0.05", "0.1", "0.15", "0.2", "0.3", "0.45", "0.7", "1", "1.5", "2.5", "4", "7", "12")
SHARES = (1e-6, 1e-2, 0.2)  # of delta that may be spent on large hidden scales
SCALE_CELLS, ROUNDED = 60, 1e-2
BISECTIONS, TOLERANCE = 40, 1e-4
LARGEST = 1e5  # epsilon
FURTHER = 20  # nats below delta at which a smoothed curve's integral is cut
LOST = 1e-2  # of delta, at which the grid of a smoothed curve is chosen: what it loses is smoothed, too
UNREVEALED = Unavailable("no theorem reveals who is in these releases")
LONGEST = 200_000  # steps of a composition


@dataclass(frozen=True)
class UpperProof:
    """A theorem with its inputs and what it proves.

    Args:
        kind: Name of the theorem for certificates.
        delta: epsilon (a ball) -> a ball whose upper end is at least delta.
        inputs: What a checker needs to compute it again.
        exact: Whether delta is attained: the ball's lower end is a lower bound.
        dear: Whether delta takes seconds: it is not inverted, and epsilon is only told apart from the claimed one.
        pure: The epsilon at which delta is 0, where it is known exactly: a ball around it straddles an equal claim.
    """

    kind: str
    delta: Callable[[arb], arb]
    inputs: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    dear: bool = False
    pure: Fraction | None = None

    def at(self, epsilon: float) -> arb:
        """delta at an epsilon as it is written."""
        if self.pure is not None and self.pure <= Fraction(str(epsilon)):
            return arb(0)
        return self.delta(ball(epsilon))


@dataclass(frozen=True)
class RigorousBracket:
    """delta at the claimed epsilon and epsilon at the claimed delta, rounded outward.

    Args:
        delta_lower, delta_upper: Around the true delta.
        epsilon_lower, epsilon_upper: Around the true epsilon.
        theorem: Kind of the upper bound, or why there is none.
        witness: What the lower bound comes from, or why there is none.
    """

    delta_lower: float
    delta_upper: float
    epsilon_lower: float
    epsilon_upper: float
    theorem: str
    witness: str


def rigorous_bracket(claim: Claim, witness: Witness | None = None) -> RigorousBracket | Unavailable:
    """Bounds in ball arithmetic, independent of the first engine's numerics.

    Args:
        claim: The claim.
        witness: From a verdict: its number of coordinates and direction say where the lower bound looks.

    Returns:
        The bracket; `Unavailable` with both reasons where neither side has a bound.

    >>> from dpaudit.mechanisms import Gaussian
    >>> found = rigorous_bracket(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5))
    >>> round(found.delta_upper, 9)
    0.126936738
    """
    claim = claim.canonical()
    beyond = beyond_floats(claim)
    if beyond:  # where the bounds look is chosen in floats
        return Unavailable(beyond)
    if any(phase.correlation is not None for phase in claim.phases):
        return _of_independent_noise(claim, witness)
    with precision():
        upper = upper_proof(claim)
        exact = isinstance(upper, UpperProof) and upper.exact
        told = Unavailable("the longest shift attains it") if exact else told_apart(claim, witness, upper)
        if isinstance(upper, Unavailable) and isinstance(told, Unavailable):
            return Unavailable(f"{upper.reason}; {told.reason}")
        e, delta = ball(claim.epsilon), ball(claim.delta)
        delta_lower = epsilon_lower = 0.0
        if isinstance(told, ToldApart):
            p, q = told.p, told.q
            delta_lower = max(0.0, float_below(p - e.exp() * q))
            ratio = ((p - delta).lower() / q.upper()).log() if p > delta and q.upper() > 0 else arb(0)
            epsilon_lower = max(0.0, float_below(ratio))
        delta_upper, epsilon_upper = 1.0, math.inf
        if isinstance(upper, UpperProof):
            found = upper.at(claim.epsilon)
            delta_upper = min(1.0, max(0.0, float_above(found)))
            delta_lower = max(0.0, float_below(found)) if exact else delta_lower
            if upper.dear:
                epsilon_lower = claim.epsilon if exact and found > delta else epsilon_lower
                epsilon_upper = claim.epsilon if found <= delta else math.inf
            else:
                _, epsilon_upper = _crossing(lambda x: bool(upper.delta(x) <= delta), claim.epsilon)
            if exact and not upper.dear:
                epsilon_lower, _ = _crossing(lambda x: not upper.delta(x) > delta, claim.epsilon)
        return RigorousBracket(
            delta_lower,
            delta_upper,
            epsilon_lower,
            epsilon_upper,
            upper.kind if isinstance(upper, UpperProof) else upper.reason,
            told.witness if isinstance(told, ToldApart) else told.reason,
        )


def _of_independent_noise(claim: Claim, witness: Witness | None) -> RigorousBracket | Unavailable:
    """Each side by releases of independent noise in place of correlated ones."""
    low, high = independent_brackets(claim, partial(rigorous_bracket, witness=witness))
    if isinstance(low, Unavailable) and isinstance(high, Unavailable):
        return Unavailable(f"{high.reason}; {low.reason}")
    nothing = RigorousBracket(0.0, 1.0, 0.0, math.inf, "", "")
    below = replace(nothing, witness=low.reason) if isinstance(low, Unavailable) else low
    above = replace(nothing, theorem=high.reason) if isinstance(high, Unavailable) else high
    return replace(above, delta_lower=below.delta_lower, epsilon_lower=below.epsilon_lower, witness=below.witness)


def independent_brackets(
    claim: Claim, bracket: Callable[[Claim], T | Unavailable]
) -> tuple[T | Unavailable, T | Unavailable]:
    """Brackets of the claims with independent noise that cost at most and at least as much; one side of each holds."""
    with precision():
        low, high = independent_claim(claim, "lower"), independent_claim(claim, "upper")
    below = low if isinstance(low, Unavailable) else bracket(low)
    if low == high:
        return below, below
    return below, high if isinstance(high, Unavailable) else bracket(high)


def told_apart(
    claim: Claim, witness: Witness | None = None, upper: UpperProof | Unavailable | None = None
) -> ToldApart | Unavailable:
    """The event that the lower bound uses, with its probabilities.

    Args:
        claim: In canonical form.
        witness: From a verdict: its number of coordinates and direction say where to look.
        upper: A bound from above: gauges are looked at where neither it nor the event decides. None: they never are.
    """
    silent = with_silent_others(claim)
    event = lower_event(silent, witness) if upper is None else _open_event(silent, witness, upper)
    if isinstance(event, Event):
        return ToldApart(*event_probabilities(silent.phases, event), _described(event))
    stream = stream_event(claim)
    return event if isinstance(stream, Unavailable) else stream


def _described(event: Event) -> str:
    part = event.parts[0]
    if isinstance(part, LabelledPass):
        return f"passes in a random order, direction {event.direction}, labels' sum >= {event.threshold}"
    count = getattr(part, "count", 1)
    return f"{count} coordinate(s) moved by {part.value}, direction {event.direction}, labels' sum >= {event.threshold}"


def _open_event(claim: Claim, witness: Witness | None, upper: UpperProof | Unavailable) -> Event | Unavailable:
    """The event that the lower bound uses; gauges where neither it nor the upper bound decides."""
    event, delta = lower_event(claim, witness), ball(claim.delta)
    if not (isinstance(event, Event) and tells_scale(claim) and _excess(claim, event) <= claim.delta):
        return event
    if isinstance(upper, UpperProof) and upper.at(claim.epsilon) <= delta:
        return event
    sharper = lower_event(claim, witness, gauged=True)
    return max((event, sharper), key=partial(_excess, claim)) if isinstance(sharper, Event) else event


def lower_event(claim: Claim, witness: Witness | None = None, *, gauged: bool = False) -> Event | Unavailable:
    """An event after the witness, where there is one; `gauged` as in `chosen_event`."""
    count = min(witness.coordinates if witness is not None else 1, most_coordinates(claim, gauged=gauged))
    direction = "add" if witness is not None and witness.direction == "add" else "remove"
    found = [chosen_event(claim, count, direction, statistic=s, gauged=gauged) for s in pass_statistics(claim)]
    events = [event for event in found if isinstance(event, Event)]
    return max(events, key=partial(_excess, claim)) if events else found[0]


def _excess(claim: Claim, event: Event) -> float:
    """P - e^epsilon Q of the event."""
    p, q = event_probabilities(claim.phases, event)
    return float((p - ball(claim.epsilon).exp() * q).lower())


def _crossing(below: Callable[[arb], bool], start: float) -> tuple[float, float]:
    """(an epsilon where it is not below or 0, one where it is or inf beyond LARGEST)."""
    low, high = 0.0, max(start, 1e-3)
    while not below(ball(high)):
        low, high = high, 2 * high
        if high > LARGEST:
            return low, math.inf
    for _ in range(BISECTIONS):
        if high - low < TOLERANCE * high:
            break
        middle = (low + high) / 2
        low, high = (low, middle) if below(ball(middle)) else (middle, high)
    return low, high


@lru_cache(maxsize=1)
def upper_proof(claim: Claim) -> UpperProof | Unavailable:
    """The best upper bound at the claimed epsilon among the theorems that apply."""
    for phase in claim.phases:
        if phase.correlation is not None or not (phase.sampler is not None or sampling_is_known(phase)):
            return Unavailable(f"no theorem for sampling_kind={phase.sampling_kind!r}")
    if any(phase.sampler is not None for phase in claim.phases):
        return _sampler_proof(claim)
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    if all(is_gaussian(phase.mechanism) for phase in claim.phases):
        return gaussian_proof(claim)
    if sampled and claim.adjacency == "replace-one":
        return Unavailable("sampled replace-one has no rigorous upper bound for this noise")
    alone = len(claim.phases) == 1 and claim.phases[0].steps == 1 and not sampled
    found: list[UpperProof] = []
    reasons = []
    for proof in (pure_laplace_proof, _alone_proof if alone else None, hidden_scale_proof, dominated_proof):
        one = proof(claim) if proof is not None else None
        if isinstance(one, UpperProof):
            found.append(one)
        elif one is not None:
            reasons.append(one.reason)
    if not found:
        return Unavailable(reasons[-1])
    if not any(proof.at(claim.epsilon) <= ball(claim.delta) for proof in found):  # of the others there are certificates
        composed = laplace_grid_proof(claim)
        found += [composed] if isinstance(composed, UpperProof) else []
    return min(found, key=lambda proof: float_above(proof.at(claim.epsilon)))


def _sampler_proof(claim: Claim) -> UpperProof | Unavailable:
    """Balls in bins and random allocation by their own pair, shuffled batches by their theorem or an order revealed."""
    parts = allocated_passes(claim)
    if not isinstance(parts, Unavailable):
        curves, grid = composed_curves(parts, claim.epsilon, claim.delta)
        shown = {"units": [part.unit for part in parts], "sizes": [part.size for part in parts], **_shown(grid)}
        del shown["edges"]  # a lattice has cells of its own
        allocated = UpperProof("allocation-grid", partial(_grid_bound, curves), shown)
        return _sharper(allocated, _as_if_revealed, claim)
    if any(isinstance(phase.sampler, TruncatedPoisson) for phase in claim.phases):
        known = all(
            sampling_is_known(p) or isinstance(p.sampler, TruncatedPoisson | WithoutReplacement) for p in claim.phases
        )
        if not known or not all(is_gaussian(phase.mechanism) for phase in claim.phases):
            return Unavailable("batches that are cut have a rigorous upper bound for normal noise alone")
        return gaussian_proof(claim)
    proof = _as_if_revealed(claim)
    if isinstance(proof, Unavailable):
        return parts if proof is UNREVEALED else proof
    return _sharper(_sharper(proof, _straddled, claim), _shuffled, claim)


def _straddled(claim: Claim) -> UpperProof | Unavailable:
    curve = straddled_curve(claim)
    return curve if isinstance(curve, Unavailable) else UpperProof("straddling-mean", curve)


def _shuffled(claim: Claim) -> UpperProof | Unavailable:
    bound = shuffled_bound(claim)
    return bound if isinstance(bound, Unavailable) else UpperProof("shuffled-grid", bound.delta, bound.inputs)


def _as_if_revealed(claim: Claim) -> UpperProof | Unavailable:
    """As if it were known in which releases the record is, but for batches of fixed size that are drawn anew."""
    revealed, fixed = met_claim(claim), any(isinstance(phase.sampler, WithoutReplacement) for phase in claim.phases)
    if fixed and not all(is_gaussian(phase.mechanism) for phase in claim.phases):
        return Unavailable("batches of fixed size have a rigorous upper bound for normal noise alone")
    revealed = claim if fixed and revealed is None else revealed
    if revealed is None:
        return UNREVEALED
    proof = gaussian_proof(revealed) if fixed else upper_proof(revealed)
    # a known order attains it, one that is drawn need not
    return proof if isinstance(proof, Unavailable) else replace(proof, exact=False)


def _sharper(proof: UpperProof, other: Callable[[Claim], UpperProof | Unavailable], claim: Claim) -> UpperProof:
    """The other proof where the first does not suffice and the other says more."""
    e, bound = ball(claim.epsilon), proof.at(claim.epsilon)
    if bound <= ball(claim.delta):
        return proof
    found = other(claim)
    return found if isinstance(found, UpperProof) and found.delta(e) < bound else proof


def gaussian_proof(claim: Claim) -> UpperProof | Unavailable:
    """Normal noise: the exact curve, or connect-the-dots where something is sampled."""
    # a sampled record that is replaced has a pair of two shifts by one clip
    by_chance = WithoutReplacement | TruncatedPoisson
    drawn = [_rate(phase) < 1 or isinstance(phase.sampler, by_chance) for phase in claim.phases]
    ways: list[Adjacency] = ["add-remove" if some else claim.adjacency for some in drawn]
    known = all_known([dominating_mu(phase.mechanism, way) for phase, way in zip(claim.phases, ways, strict=True)])
    if isinstance(known, Unavailable):
        return known
    if not any(drawn):
        whole = total([phase.steps * mu * mu for phase, mu in zip(claim.phases, known, strict=True)]).sqrt()
        return UpperProof("gaussian-curve", lambda e: gaussian_delta(whole, e), exact=True)
    releases = gaussian_releases(claim, known)
    kind = "gaussian-grid" if all(one.chance is None for one in releases) else "cut-gaussian-grid"
    for finer in (0.25, 1.0):
        grid = chosen_grid(releases, claim.epsilon, claim.delta, finer)
        sides = composed_losses(releases, grid)
        curves = [GridCurve(masses, grid) for masses in sides]
        found = UpperProof(kind, partial(_grid_bound, curves), _shown(grid))
        bound = found.delta(ball(claim.epsilon))
        if bound <= ball(claim.delta) or bound > 1.1 * ball(claim.delta):
            return found
    return found


def _grid_bound(curves: Sequence[GridCurve], epsilon: arb) -> arb:
    return _largest([curve.delta(epsilon) for curve in curves])


def _largest(values: Sequence[arb]) -> arb:
    return max(value.upper() for value in values)


def _shown(grid: Grid) -> dict[str, Any]:
    return {"step": grid.step, "window": grid.window, "bits": grid.bits, "edges": [list(edges) for edges in grid.edges]}


def _rate(phase: Phase) -> float:
    """Probability of a record to be in a release."""
    return phase.sampler.prob if isinstance(phase.sampler, WithoutReplacement) else phase.sampling_prob


def gaussian_releases(claim: Claim, mus: Sequence[arb]) -> list[PairRelease]:
    """The releases of the Gaussian pairs of these mu; those of a sampled record that is replaced have their own."""
    swaps, found = claim.adjacency == "replace-one", list[PairRelease]()
    for phase, mu in zip(claim.phases, mus, strict=True):
        sampler = phase.sampler
        if not isinstance(sampler, TruncatedPoisson):
            fixed = isinstance(sampler, WithoutReplacement)
            found.append(_gaussian_release(mu, _rate(phase), phase.steps, swaps=swaps, fixed=fixed))
            continue
        rates, another = cut_rates(sampler), lets_another_in(claim, phase)
        # where another one has the record's place, it moves a release by two clips
        shift, g = (2 * mu if another else mu), rates.full_rate
        full = _gaussian_release(shift, g, phase.steps, swaps=swaps, fixed=not another)
        if sampler.prob < 1:
            uncut = _gaussian_release(mu, sampler.prob, phase.steps, swaps=swaps, fixed=False)
            found.append(replace(uncut, chance=1 - rates.full))
        found.append(replace(full, chance=rates.full, again=sampler.prob < 1))
    return found


def _gaussian_release(mu: arb, q: float, steps: int, *, swaps: bool, fixed: bool) -> PairRelease:
    swaps = swaps and (q < 1 or fixed)
    if fixed:
        tails = fixed_size_tails(mu, ball(q), swaps=swaps)
    else:
        tails = replaced_tails(mu, ball(q)) if swaps else gaussian_tails(mu)
    return PairRelease(tails, math.inf, float(mu) * (2 if fixed else 1), q, steps, swaps, fixed)


def pure_laplace_proof(claim: Claim) -> UpperProof | Unavailable:
    """Laplace noise under its l1 radius: the pure epsilon, and the one-coordinate pair's curve of one release."""
    shifts = _laplace_shifts(claim)
    if isinstance(shifts, Unavailable):
        return shifts
    first, known = claim.phases[0], [_exact_laplace_shift(phase.mechanism, claim.adjacency) for phase in claim.phases]
    pure = None
    if all(phase.sampling_prob == 1 for phase in claim.phases):
        budgets = [x * phase.steps for x, phase in zip(known, claim.phases, strict=True) if x is not None]
        pure = sum(budgets, Fraction(0)) if None not in known else None
    if len(claim.phases) == 1 and first.steps == 1 and first.sampling_prob == 1:
        attained = first.mechanism.clip_norm == 1 or first.mechanism.dimension == 1
        return UpperProof(
            "pure-laplace", lambda e: (-((e - shifts[0]) / 2).expm1()).max(arb(0)), exact=attained, pure=pure
        )
    spent = total(
        [
            phase.steps * (1 + ball(phase.sampling_prob) * shift.expm1()).log()
            for phase, shift in zip(claim.phases, shifts, strict=True)
        ]
    )
    return UpperProof("pure-laplace", lambda e: arb(0 if spent <= e else 1), pure=pure)


def laplace_grid_proof(claim: Claim) -> UpperProof | Unavailable:
    """Laplace noise under its l1 radius: the composed one-coordinate pair, which dominates."""
    shifts = _laplace_shifts(claim)
    if isinstance(shifts, Unavailable):
        return shifts
    if sum(phase.steps for phase in claim.phases) > LONGEST:
        return Unavailable("too many steps")
    releases = [
        PairRelease(laplace_tails(shift), float_above(shift), float(shift), phase.sampling_prob, phase.steps)
        for phase, shift in zip(claim.phases, shifts, strict=True)
    ]
    grid = chosen_grid(releases, claim.epsilon, claim.delta)
    curves = [GridCurve(masses, grid) for masses in composed_losses(releases, grid)]
    return UpperProof("laplace-grid", partial(_grid_bound, curves))


def _exact_laplace_shift(mechanism: Mechanism, adjacency: Adjacency) -> Fraction | None:
    """The l1 radius over the scale as the fraction that is written; None where a root of the dimension is in it."""
    if mechanism.clip_norm != 1 and mechanism.dimension != 1:
        return None
    lengths = 1 if adjacency == "add-remove" else 2  # as `radius`
    return lengths * Fraction(str(mechanism.clip)) / Fraction(str(to_dict(mechanism)["scale"]))


def _laplace_shifts(claim: Claim) -> list[arb] | Unavailable:
    """The l1 radius of every phase over the scale of its noise."""
    return all_known([laplace_shift(phase.mechanism, claim.adjacency) for phase in claim.phases])


def _alone_proof(claim: Claim) -> UpperProof | Unavailable:
    """One unsampled release: radial noise, or a log-concave law in one dimension."""
    mechanism = claim.phases[0].mechanism
    data = to_dict(mechanism)
    distance = 1 if claim.adjacency == "add-remove" else 2
    if data["name"] == "product":
        length = radius(mechanism, 2, claim.adjacency)
        if isinstance(length, Unavailable) or data.get("dimension", 1) < 2:
            return Unavailable("radial noise needs a dimension of at least 2")
        noise = RadialNoise(int(data["dimension"]), ball(data["sigma"]), length)
        if claim.epsilon <= 0:
            return Unavailable("radial noise has a bound at a positive epsilon only")
        return UpperProof("radial", partial(radial_delta, noise), exact=True, dear=True)
    if data["name"] != "generalized-gaussian" or data.get("dimension") != 1 or data["beta"] == 1:
        return Unavailable("no theorem for one release of this noise in this dimension")
    law, scale, shift = coordinate_law(mechanism), ball(data["scale"]), distance * ball(data["clip"])
    assert isinstance(law, CoordinateLaw)
    decimals = one_dimensional_ends(ball(data["beta"]), scale, shift, ball(claim.epsilon))
    if isinstance(decimals, Unavailable):
        return decimals

    def delta(e: arb) -> arb:
        ends = one_dimensional_ends(ball(data["beta"]), scale, shift, e)
        if isinstance(ends, Unavailable):
            return arb(0).union(arb(1))
        low, high = map(ball, ends)

        def value(moved: arb, still: arb) -> arb:  # P(t > moved) - e^epsilon Q(t > still)
            left = moved - shift
            return (law.tail(left) if left >= 0 else 1 - law.tail(-left)) - e.exp() * law.tail(still)

        return value(low, high).union(value(high, low))  # the upper and the lower end

    return UpperProof("one-dimensional", delta, dict(zip(("low", "high"), decimals, strict=True)), exact=True)


def one_dimensional_ends(beta: arb, scale: arb, shift: arb, epsilon: arb) -> tuple[str, str] | Unavailable:
    """Decimals around the output at which the loss |x|^beta - |x - shift|^beta (growing: beta > 1) is epsilon."""

    def loss(x: arb) -> arb:
        return (x / scale) ** beta - (abs(x - shift) / scale) ** beta

    low, high = shift / 2, 2 * shift + scale
    while not loss(high) > epsilon:
        if not loss(high) < epsilon:  # undecided, and no less so further out
            return Unavailable("the loss is too flat to be told from epsilon")
        high *= 2
    for _ in range(110):
        middle = ((low + high) / 2).mid()
        low, high = (low, middle) if loss(middle) > epsilon else (middle, high)
    for bits in (90, 70, 50, 30):  # a loss far below its two powers has fewer digits of its own
        rest = arb(2) ** -bits
        ends = (low * (1 - rest)).str(40, radius=False), (high * (1 + rest)).str(40, radius=False)
        if loss(ball(ends[0])) <= epsilon <= loss(ball(ends[1])):
            return ends
    return Unavailable("the loss is too flat to be told from epsilon")


def hidden_scale_proof(claim: Claim) -> UpperProof | Unavailable:
    """Laplace noise of one hidden scale: shown, rounded up on cells, truncated; moments of whole orders."""
    if any(phase.mechanism.name != "gamma-plrv" for phase in claim.phases):
        return Unavailable("the noise has no hidden scale")
    structure, data = claim.phases[0].mechanism.structure, to_dict(claim.phases[0].mechanism)
    same = {(to_dict(phase.mechanism)["k"], to_dict(phase.mechanism)["theta"]) for phase in claim.phases}
    if len(same) > 1 or not isinstance(structure, ScaleMixture):
        return Unavailable("several hidden scales have no rigorous bound")
    steps, e = sum(phase.steps for phase in claim.phases), ball(claim.epsilon)
    best: UpperProof | None = None
    lengths = all_known([radius(phase.mechanism, 2, claim.adjacency) for phase in claim.phases])
    if isinstance(lengths, Unavailable):
        return lengths
    for share in SHARES:
        u_max = float(structure.scale_isf(np.array([share * max(claim.delta, 1e-30) / steps]))[0])
        inner = structure.scale_ppf(np.linspace(0.0, 1.0, SCALE_CELLS)[1:-1])
        tail = np.linspace(float(inner[-1]), u_max, SCALE_CELLS // 3)
        ends = sorted({f"{float(u):.12g}" for u in [*inner, *tail]}, key=float)
        scale = ShownScale(ball(data["k"]), ball(data["theta"]), tuple(ends))
        masses, beyond = scale.masses()
        weights = [mass / total(masses) for mass in masses]
        parts = [(phase, [ball(u) * length for u in ends]) for phase, length in zip(claim.phases, lengths, strict=True)]
        moment = partial(log_moment, parts, weights=[weights] * len(parts))
        order = _best_order(moment, e)
        bound = partial(_converted_bound, moment(order), order, steps * beyond)
        proof = UpperProof("moments", bound, {"order": order, "scales": ends})
        if best is None or proof.delta(e).upper() < best.delta(e).upper():
            best = proof
        if best.delta(e) <= ball(claim.delta) / 2:
            break
    assert best is not None
    if best.delta(e) <= ball(claim.delta):
        return best
    # every scale rounded up to the largest: less sharp than cells, but in delta itself
    top = f"{float(structure.scale_isf(np.array([ROUNDED * max(claim.delta, 1e-30) / steps]))[0]):.12g}"
    _, beyond = ShownScale(ball(data["k"]), ball(data["theta"]), (top,)).masses()
    mus = [ball(top) * length for length in lengths]
    return min(best, _dominated(claim, mus, {"scales": [top]}, steps * beyond), key=lambda x: float_above(x.delta(e)))


def _converted_bound(alpha: arb, order: int, spent: arb, epsilon: arb) -> arb:
    return converted(alpha, order, epsilon) + spent


def _best_order(alpha: Callable[[int], arb], epsilon: arb) -> int:
    """The order that converts best, by walking up while it improves."""
    best, order = arb("inf"), 1
    for lam in ORDERS:
        with precision(64):
            value = converted(alpha(lam), lam, epsilon).log().upper()
        if not value.is_finite() or value > best:
            break
        best, order = value, lam
    return order


def dominated_proof(claim: Claim) -> UpperProof | Unavailable:
    """A Lipschitz log-density: the dominating Gaussian's moments, or its smoothed curve where they fall short."""
    mus = all_known([dominating_mu(phase.mechanism, claim.adjacency) for phase in claim.phases])
    return mus if isinstance(mus, Unavailable) else _dominated(claim, mus, {}, arb(0))


def _dominated(claim: Claim, known: Sequence[arb], inputs: dict[str, Any], spent: arb) -> UpperProof:
    """The same from the values of mu, with a delta that is spent before."""
    e, parts = ball(claim.epsilon), [(phase, [mu]) for phase, mu in zip(claim.phases, known, strict=True)]
    order = _best_order(partial(log_moment, parts), e)
    alpha = log_moment(parts, order)
    moments = UpperProof("moments", partial(_converted_bound, alpha, order, spent), {**inputs, "order": order})
    bound = moments.delta(e)
    if bound <= ball(claim.delta) or claim.epsilon <= 0 or sum(phase.steps for phase in claim.phases) > LONGEST:
        return moments
    releases = gaussian_releases(claim, known)
    grid = chosen_grid(releases, claim.epsilon, LOST * claim.delta, 0.5)
    curve = GridCurve(composed_losses(releases, grid)[0], grid)
    end = ((alpha + FURTHER - ball(max(claim.delta, 1e-300)).log()) / order).mid()

    def rest(place: arb) -> arb:
        return (alpha - order * place).exp() / order

    def smoothed(width: str, x: arb) -> arb:
        return smoothed_delta(curve, x, ball(width), end, rest) + spent if x > ball(width) else arb(1)

    shown = {**inputs, **_shown(grid), "end": end.str(30, radius=False), "order": order}
    widths = [width for width in WIDTHS if float(width) < claim.epsilon]
    found = [UpperProof("smoothed-grid", partial(smoothed, width), {**shown, "width": width}) for width in widths]
    return min([moments, *found], key=lambda proof: float_above(proof.delta(e)))
