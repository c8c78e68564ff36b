"""Shuffled batches under normal noise: many batches hide where the record is, at every batch size.

A pass cuts a uniformly random order of the records into batches. All lengths are in units of sigma, and mu is the
clip. P is the law of a pass with the record, Q without it (a ghost that contributes 0, or another value), a =
e^epsilon >= 1.

1. One swap. A uniform order is one with the record in the first batch and the others in a uniform order, after a swap
of the record with whoever is at the place K, uniform. Let K_t be uniform in batch t, independent, and K = K_J: batch J
is drawn with probability p_J, its size over that of all. The order before the swap and the K_t have the same law on
both sides, and delta is jointly convex: it is at most that for the worst of them, revealed. Then release 1 holds,
beside what is known, the record (J = 1) or the displaced one, and release J >= 2 the record in place of the displaced
one. Let N(x) be the law of a release that is moved by x from what is known given the past, and R_t(x) its likelihood
ratio against N(0) at release t. With u_t the contribution of the displaced record of batch t to release 1, b_t minus
that to release t (plus that of the other value), and a_t = b_t + v_t,

    P = p_1 N(v) known + sum_(J>=2) p_J N(u_J) R_J(a_J) known,    Q the same with b_J for a_J and N(w) for N(v),

where shifts after release 1 may depend on the past; against a ghost |b_t| <= mu, |a_t| <= 2 mu, |a_t - b_t| <= mu and
w = 0, against another value all three are at most 2 mu. Q against P is the same with the two exchanged.

2. Release 1. Let M = sum_(J>=2) p_J N(u_J)/(1 - p_1), and c_J = p_J N(u_J)/M, so that sum c_J = 1 - p_1. Then

    delta = E_M E (D + sum_J c_J Y_J)_+,    Y_J = R_J(a_J) - a R_J(b_J),    D = p_1 (N(v) - a N(w))/M.

D is the conditional mean, given release 1, of p_1 (N(v) - a N(w))/N(u_J) under N(u_J), which is p_1 times a term Y
with the shifts v - u_J and w - u_J from N(0): by Jensen's inequality D is convexly smaller.

3. Worst terms. All Y have the mean 1 - a. Let Y* be the variable with E (Y* - k)_+ = sup E (Y - k)_+ over all shifts
that occur, at every k: a supremum of convex functions, in closed form in `shuffled_pass.excess`. It is convexly larger
than any Y, and backwards over the releases E phi(x + sum c_J Y_J) is at most that of independent Y*_J, phi convex.

4. Large weights. Beside J = 1 let w_J = c_J/(1 - p_1), a distribution, and r(tau) = sum (w_J - tau)_+. For v >= 0
let [v] = E (sum v_J Y*_J)_+. It is convex and homogeneous, so that [v + v'] <= [v] + [v'], and symmetric, so that it
grows in the order of majorisation. Let F(k) be E (mean of k Y*)_+, and S(n) = [1, ..., 1, n - floor n] of n ones: a v
of entries at most t whose sum is s has [v] <= t S(s/t). S is nF(n) at whole n, and at most n F(k) for k <= n. d is the
delta of N(v) against N(w), which is F(1) and the largest of all E (Y_J)_+. Let k be whole, k tau < 1. If r(tau) <= 1 -
k tau, w is a mixture, with the chances 1 - r and r, of one with weights of at most 1/k and another one; else let it be
the other one: the mean of its chance is at most rho = E_M r(tau)/(1 - k tau) in either case. Four bounds follow.

Known. Of the mixture's first, whatever D is, the largest of all such w is one of 1/k each, which release 1 has no part
in: D is averaged after that, and with p_1 <= 1/k a symmetric convex function of the weights, p_1 and (1 - p_1) w, is at
most that of k equal ones. As (1 - p_1) w need be at most 1/k only, (1 - p_1) tau stands for tau in rho. Of the other
one all E (Y_J)_+ are at most d, and the positive part of D is left: as in 2, at most p_1 times the mass of (N(v) - a
N(w))_+ where w is the other one. That is at most g M and what lies above it, whose mass is at most the worst with N(u)
for M, by joint convexity. In all, at every g > 0,

    delta <= F(k) + rho d + firsts,    firsts = p_1 min(d, g rho + E (Y* - g)_+).

Layers. For levels tau = t_0 < t_1 < ... the part of w above tau is the sum of its layers between t_i and t_(i+1), with
entries of at most t_(i+1) - t_i and the sum r(t_i) - r(t_(i+1)). With S^ nondecreasing, concave and at least S,

    E_M [(w - tau)_+] <= L(tau) = sum (t_(i+1) - t_i) S^((R_i - R_(i+1))/(t_(i+1) - t_i)),    R_i = E_M r(t_i),

by Jensen's inequality. L is concave in all R_i, and where R is convex it falls in none of them: the lower layer holds
no less. So R may be any convex upper bound that is 1 at 0. At tau = 0 this is delta <= p_1 d + (1 - p_1) L(0).

Few. Take the layers above tau from w, by subadditivity, at their price. What is left is at most tau, its sum 1 - r. If
r <= 1 - k tau it is 1 - r times a distribution of weights of at most 1/k, so that r D_+ and F(k) bound it; else D_+ and
(1 - p_1) tau S^(1/tau). Since r <= r/(1 - k tau), delta <= F(k) + rho (1 - p_1) tau S^(1/tau) + (1 - p_1) L(tau) +
firsts.

Filled. Of every c_J let 1/k count, and give what is missing to terms of the constant 1 - a, convexly smaller than Y*:
that is at most F(k). What is above 1/k has Y_J - (1 - a) in place of Y_J, and costs E (Y* - (1 - a))_+ times E_M of its
sum, at most delta of N(2 mu) against N(0) at log(1/(k max p)); or (1 - p_1) L'(tau), with L' as L for Y* - (1 - a).

Where layers are let all p_J be 1/k', k' the whole part of 1/max p: p is a mixture of such laws, and which of them it
is, given the batch of the record, has one law on both sides, so that it may be revealed. Release 1 is then the first of
the batches that are left.

Rare weights. q_J = p_J/(1 - p_1) is at most q = 1/(1/max p - 1), and w_J = q_J N(u_J)/M: at tau = c q, E_M r is at most
the mean over J, by q_J, of delta of N(u_J) against M at log c, which that of N(2 mu) against N(0) bounds. Normal noise
has more: by Jensen's inequality M/N(0), a mean of likelihood ratios, is at least e^(-V/2) N(mean of the u_J)/N(0), V
their variance, so that E_M r is at most the mean of delta of N(d_J) against N(0) at log c - V/2, d_J the distances from
the mean. V is the mean of their squares, at most mu^2, and none is above mu + (mu^2 - V)^(1/2): the mean is at most the
height, at V, of a chord of delta as a function of the square.

5. Passes. The bound on a pass holds at every a, given whatever came before. With that in the other order for a < 1 it
is a profile, taken at whole multiples of a step in epsilon, joined by chords and made convex, and profiles compose
(Zhu, Dong and Wang 2022, Theorem 10). At each place the deterministic bound, N(mu) against N(0), counts where it is
less.

6. Buffers. In a pass through a buffer of B records the record comes in when B are held. Every later draw takes a random
place of those that are filled, so that the law of what is drawn is the same whichever way the B records lie in their
places: let it be a uniform one. The draws at which the places come up are independent of that, and known; then the
record is in the place that comes up first, after a swap with whoever is at the place K, uniform. That is the swap of 1,
J the batch in which place K comes up, p_J at most batch/B, or batch/(B - what is dropped) given that it is not dropped.
Records that come later have places of their own.

7. Batches that straddle. Reveal for every pass whether the record is in the batch that the pass before began, in that
which the next one ends, left over at the very end, or in one of the whole batches, at least `whole_batches`: that has
one law for both sides. In the whole ones a uniform place is left for it, so that 1 holds of these. Batches that
straddle and hold it k times are known releases moved by k contributions, so that all together cost one of the root of
the sum S of the k^2; delta is at most the mean over S, whose law is known (`Shuffled.seam_chances`). Every pass counts
as one with the record in a whole batch. Unsampled releases of other phases are known ones, too: all have the profile of
one normal pair, which composes like the others.

Out of a buffer at most 2 (batch - 1) of its places come up in batches that straddle, or at the very end in none. Given
that the record is in a whole one, K is a uniform place of the others, p_J at most batch/(B - 2 (batch - 1)). It is in
the first s draws of a pass with probability at most 1 - (1 - 1/B)^s, as the first record of the file, in the last s
with at most s/B, as the last: S, of events that exclude each other, is stochastically largest where both hold.

8. Streams. Where passes go through a buffer as one stream, cut time where a copy of the record comes in. The order in
which the records that are held then lie in their places is uniform again, whatever came before, and so are the places
of the copies among them. Reveal, beside the draws, which copies stay until the next one comes, leave in the batch in
which one comes, or in the whole batches between. If one copy alone leaves in the latter, its place is uniform among the
W that come up in these first: that is the swap of 6 with p_J at most batch/W, and after it everything is held that
would be otherwise. All other copies are known: as in 7 they cost one release of the root of S, of whose law, as of W,
`stream_meetings` has bounds.

Some hundred batches hide much where mu is at most 1/2, and less where it is 1: what release 1 tells of the displaced
record is then most of the price. A last batch that is dropped: a record in it is nowhere, and else a pass is one over
whole batches. Orders that are drawn once are not covered, nor are batches that straddle and have more than half of the
records.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtri

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve, mean_delta
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.pld.pair_curve import worst_delta
from dpaudit.verify.pld.shuffled_pass import CurvePass, ShuffledPass
from dpaudit.verify.results import Direction
from dpaudit.verify.samplers import BufferedShuffle, Shuffled
from dpaudit.verify.upper.gaussian_pld import analytic_delta, shift_over_sigma
from dpaudit.verify.upper.known_releases import NONE_KNOWN, KnownReleases, known_releases
from dpaudit.verify.upper.shift_norms import sampling_is_known
from dpaudit.verify.upper.stream_meetings import LEAST_DELTA, costs_beside, hiding_windows
from dpaudit.verify.upper.weight_layers import PassCost, lower_hull, pass_cost

THEOREM = (
    "shuffled batches: one swap of a random order, worst terms by Neyman-Pearson (verify/upper/shuffled_batches.py); "
    "profiles composed by Zhu, Dong and Wang (2022), Theorem 10"
)
MIRRORED: dict[Direction, Direction] = {"remove": "add", "add": "remove", "swap": "swap"}
FINENESS = 0.1  # step of epsilon in deviations of a pass's loss: chords of two add 1% to its variance at most
NEGLIGIBLE = 1e-3  # of the claimed delta, for all passes: what hidden batches cost where it is not looked at further
HIDDEN = 0.99  # of a known release, at epsilon 0: a pass that costs more counts as one
TAIL = 1e-18  # of a pass: mass of an infinite loss
LEAST_DEVIATION = 1e-9  # of a pass's loss, which guides the grid
LEAST_SHIFT, MOST_SHIFT = 1e-5, 6.0  # shorter ones count as that, and no number of batches helps longer ones
MOST_LOSS = 600.0  # of a pass, beyond which losses count as infinite: their growth is no float
LONGEST_STEP = 1.0  # nats of the grid, whatever guides it
COARSE = 0.01  # as `FINENESS`, of the loss of known releases: chords add 25e-6 to its variance
REACH = 200.0  # deviations of a pass's loss, beyond which it need not fall
NEAREST, SPARSE = 2, 1.1  # places between neighbouring epsilons of a pass, and ratio of these in its tail
FINE = 1.01  # as `SPARSE`, of a known release
STRAY = 1e-3  # of the claimed delta: the chance that batches that straddle cost more than is looked at


def shuffled_passes(claim: Claim) -> tuple[list[ShuffledPass], KnownReleases] | None:
    """The passes of a claim, and what is beside; None where a phase has no bound, or no bound would be better."""
    passes, known, hiding = list[ShuffledPass](), list[float](), list[tuple[float, Phase]]()
    for phase in claim.phases:
        mu, own = shift_over_sigma(phase, claim.adjacency), normal_pass(phase, claim)
        if mu is None:
            return None
        if own is not None:
            passes.append(own)
            hiding.append((mu * mu, phase))
        elif phase.sampler is not None or phase.sampling_prob != 1.0 or not sampling_is_known(phase):
            return None
        else:
            known.append(phase.steps * mu * mu)
    if not passes or not gained(claim, passes):
        return None
    seams = list[tuple[float, Array]]()
    for square, phase in hiding:
        sampler = phase.sampler
        if isinstance(sampler, BufferedShuffle) and sampler.passes is None:
            law = costs_beside(sampler, claim.delta or LEAST_DELTA)
        else:
            law = sampler.seam_chances if isinstance(sampler, (Shuffled, BufferedShuffle)) else None
        if law is not None:
            seams.append((square, law))
    tail = STRAY * (claim.least_delta or LEAST_DELTA) / max(len(seams), 1)
    return passes, known_releases(math.fsum(known), seams, tail)


def gained(claim: Claim, parts: Sequence[ShuffledPass | CurvePass]) -> bool:
    """Whether so many batches hide anything."""
    direction: Direction = "swap" if claim.adjacency == "replace-one" else "remove"
    return all(_at_zero(part, direction)[0] is not None for part in parts)


def normal_pass(phase: Phase, claim: Claim) -> ShuffledPass | None:
    """The passes of a phase of a claim, with normal noise; None where it has another sampler or other noise."""
    mu, passes = shift_over_sigma(phase, "add-remove"), hiding_batches(phase) or _whole_batches(phase, claim)
    if mu is None or mu > MOST_SHIFT or passes is None:
        return None
    batches, epochs = passes
    return ShuffledPass(batches, max(mu, LEAST_SHIFT) * (1.0 + 4.0 * UNIT), epochs)


def _whole_batches(phase: Phase, claim: Claim) -> tuple[float, int] | None:
    """As `hiding_batches`, of those between batches that straddle, or between copies of one record in a stream."""
    sampler = phase.sampler
    if isinstance(sampler, Shuffled) and sampler.seam_chances is not None and not sampler.has_passes_without_a_batch:
        return float(sampler.whole_batches), sampler.epochs
    if not isinstance(sampler, BufferedShuffle):
        return None
    if sampler.passes is None:
        windows = hiding_windows(sampler, claim.delta or LEAST_DELTA)
        return None if windows is None else (windows.batches, windows.count)
    batches = (min(sampler.buffer, sampler.records) - 2 * (sampler.batch - 1)) / sampler.batch * (1.0 - 4.0 * UNIT)
    return (batches, sampler.passes.epochs) if batches >= 1 and sampler.seam_chances is not None else None


def hiding_batches(phase: Phase) -> tuple[float, int] | None:
    """Among how many batches a pass hides a record, and how many passes there are; None for other samplers."""
    sampler = phase.sampler
    passes = sampler.passes if isinstance(sampler, BufferedShuffle) else sampler
    if not isinstance(passes, Shuffled):
        return None
    if passes.straddles or passes.reshuffle == "once":
        return None
    batches = float(passes.batches)
    if passes.records is not None and passes.batch is not None:
        held = sampler.buffer if isinstance(sampler, BufferedShuffle) else passes.records
        left_out = passes.records % passes.batch if passes.last_batch != "kept" else 0
        batches = (min(held, passes.records) - left_out) / passes.batch
        if batches < 1:
            return None
    return batches, passes.epochs


def _apart(part: ShuffledPass | CurvePass, contributions: float, epsilon: Array) -> Array:
    """delta of a release moved by so many contributions against one that is not."""
    if isinstance(part, ShuffledPass):
        return analytic_delta(contributions * part.shift, epsilon)
    return (part.once if contributions == 1.0 else part.twice).delta(epsilon)


@lru_cache(64)
def _at_zero(part: ShuffledPass | CurvePass, direction: Direction) -> tuple[PassCost | None, float]:
    """What a pass costs at epsilon 0, None where nothing is hidden, and the deviation of a normal loss that says so."""
    known = float(_apart(part, _contributions(direction), np.zeros(1))[0])
    if part.batches < 3:
        return None, _normal_deviation(known)
    cost = pass_cost(part, direction, 0.0, known)
    hides = cost.delta < HIDDEN * known
    return cost if hides else None, _normal_deviation(cost.delta if hides else known)


def _normal_deviation(delta: float) -> float:
    """Distance of two normal laws with such a delta at epsilon 0, neither 0 nor infinite."""
    return max(2.0 * float(ndtri(min((1.0 + delta) / 2.0, 1.0 - UNIT))), LEAST_DEVIATION)


def _contributions(direction: Direction) -> float:
    """Of how many contributions a known release is moved."""
    return 2.0 if direction == "swap" else 1.0


def applies(claim: Claim) -> bool:
    """Normal noise in every phase, in many shuffled batches, an order for every pass, or without sampling."""
    return shuffled_passes(claim) is not None


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon), directed rounding throughout.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    found = shuffled_passes(claim)
    if found is None:
        raise ValueError(f"Expected claim {claim.id!r} to have normal noise, in many shuffled batches or unsampled.")
    return passes_curve(claim, found[0], THEOREM, known=found[1])


def passes_curve(
    claim: Claim,
    parts: Sequence[ShuffledPass | CurvePass],
    theorem: str,
    assumptions: tuple[str, ...] = (),
    known: KnownReleases = NONE_KNOWN,
) -> Curve:
    """Upper bound on delta(epsilon) of such passes.

    Args:
        claim: Where tightness matters.
        parts: All its passes.
        theorem: What proves it.
        assumptions: What the reader must accept.
        known: Releases beside them.
    """
    count = sum(part.count for part in parts)
    ways: tuple[Direction, ...] = ("swap",) if claim.adjacency == "replace-one" else ("remove", "add")
    variance = sum(part.count * _at_zero(part, ways[0])[1] ** 2 for part in parts)
    coarse = COARSE * 2.0 ** (math.frexp(known.shifts.min())[1] - 1) if known.shifts.all() else 0.0  # few of them
    fine = max(FINENESS * math.sqrt(variance), coarse)
    step = min(fine / math.sqrt(count), LONGEST_STEP)  # the variance is a guide, and can be any number
    least = NEGLIGIBLE * (claim.delta or LEAST_DELTA) / count
    profiles = [{way: _profile(part, way, step, least) for way in ways} for part in parts]
    beside = [_known_loss(shift, step) for shift in known.shifts]
    composed: list[list[Composed]] = [[] for _ in beside]
    for way in ways:
        losses = [_losses(own[way], own[MIRRORED[way]], step) for own in profiles]
        grids = [(lattice, part.count) for (lattice, _), part in zip(losses, parts, strict=True)]
        infinite = sum(part.count * lost for (_, lost), part in zip(losses, parts, strict=True))
        for block, (lattices, lost) in zip(composed, beside, strict=True):
            block.append(Composed([*grids, *lattices], step, infinite + lost, 0.0))
    return Curve.upper("pld", theorem, partial(_mean_delta, composed, known), assumptions)


def _mean_delta(composed: Sequence[Sequence[Composed]], known: KnownReleases, epsilon: Array) -> Array:
    """The mean over what known releases cost."""
    return mean_delta(np.array([worst_delta(block, epsilon) for block in composed]), known.chances, known.lost)


def _known_loss(shift: float, step: float) -> tuple[list[tuple[Lattice, int]], float]:
    """The loss of one normal pair so far apart, and its infinite mass; no lattice where they are the same."""
    if not shift:
        return [], 0.0
    places = [0]
    while analytic_delta(shift, np.array([places[-1] * step]))[0] > TAIL and places[-1] * step <= MOST_LOSS:
        places.append(max(places[-1] + 1, round(places[-1] * FINE)))
    profile = np.array(places, dtype=np.float64), analytic_delta(shift, np.array(places) * step * (1.0 - 4.0 * UNIT))
    lattice, lost = _losses(profile, profile, step)
    return [(lattice, 1)], lost


@lru_cache(64)  # blocks of one claim ask for the same
def _profile(part: ShuffledPass | CurvePass, direction: Direction, step: float, least: float) -> tuple[Array, Array]:
    """(multiples of the step, upper bounds on delta there), from 0 to where nothing is left."""

    def known(places: Array) -> Array:
        return _apart(part, _contributions(direction), places * step * (1.0 - 4.0 * UNIT))

    cost, deviation = _at_zero(part, direction)
    places, bounds = [0], list[float]()
    while cost is not None:
        once = float(known(np.array([float(places[-1])]))[0])
        cost = pass_cost(part, direction, places[-1] * step, once, cost) if bounds else cost
        bounds.append(cost.delta)
        far = REACH * min(deviation, part.spread(direction) / math.sqrt(cost.terms))  # of what is hidden
        falls = cost.delta < once and least < cost.hidden
        if not falls or _following(places[-1]) * step > min(MOST_LOSS, far):
            break
        places.append(_following(places[-1]))
    end = MOST_LOSS  # beyond it, or the end of a curve, it falls no further
    if isinstance(part, CurvePass):
        end = min(end, float((part.twice if direction == "swap" else part.once).losses[-1]))
    while float(known(np.array([float(places[-1])]))[0]) > TAIL and places[-1] * step <= end:
        places.append(_following(places[-1]))
    found = np.array(places, dtype=np.float64)
    once_each = known(found)
    beyond = once_each[len(bounds) :]
    rest = beyond if cost is None else cost.hidden + cost.revealed * beyond
    passes = np.append(bounds, rest) * (1.0 + 4.0 * UNIT)
    return found, np.minimum.accumulate(np.minimum(passes, once_each))


def _following(place: int) -> int:
    return max(place + NEAREST, round(place * SPARSE))


def _losses(own: tuple[Array, Array], other: tuple[Array, Array], step: float) -> tuple[Lattice, float]:
    """The loss whose profile is that of the one direction above 0 and of the other, mirrored, below."""
    shrunk = np.exp(-other[0][:0:-1] * step)
    places = np.concatenate([-other[0][:0:-1], own[0]])
    values = np.concatenate([1.0 - shrunk + shrunk * other[1][:0:-1] + 4.0 * UNIT, own[1]])
    growths = np.concatenate([[0.0], np.exp(places * step)])
    kept = lower_hull(growths, np.concatenate([[1.0], values]))
    slopes = np.append(np.diff(np.concatenate([[1.0], values])[kept]) / np.diff(growths[kept]), 0.0)
    masses, at = growths[kept][1:] * np.maximum(np.diff(slopes), 0.0), kept[1:] - 1
    # what these masses have, against what is wanted, at the corners and at growth 0
    gaps = np.minimum((places[at][:, None] - places[at][None, :]) * step, 0.0)
    reached = -np.expm1(gaps) @ masses * (1.0 - 2.0 * UNIT * (len(masses) + 8)) + values[-1]
    short = max(0.0, float((values[at] - reached).max()), 1.0 - float(masses.sum()) - float(values[-1]))
    grid = np.zeros(int(places[-1] - places[0]) + 1)
    grid[(places[at] - places[0]).astype(np.int64)] = masses
    return Lattice(grid, int(places[0])), float(values[-1]) + short * (1.0 + 1e-12) + len(masses) * UNIT
