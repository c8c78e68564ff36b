"""Sampled Gaussian noise: the worst pair of a release under replace-one, and of batches of fixed size.

Given what the others contribute to a release, its output is normal around y with probability 1 - g and around v (P, the
one data set) or w (Q, the other) with probability g. Poisson: y = 0, |v| <= C, and |w| <= C under replace-one. Batches
of fixed size: the record takes the place of one of the others, so given the rest y is the contribution of that one,
|y|, |v| <= C, and |w| <= C under replace-one, w = 0 under zero-out. Mixing over the others, who are the same on both
sides, only lowers an f-divergence (joint convexity). Lengths in units of sigma, mu = C/sigma, a = e^epsilon.

Lemma. Let a set S have mass Phi(-t) under N(y, I). Its mass under N(z, I) is at most Phi(|z - y| - t) and at least
Phi(-|z - y| - t), attained by the half-spaces of that mass towards z and away from it (Neyman-Pearson).

Poisson, replace-one. For every a >= 0 and S, of mass Phi(-t) around y = 0,

    P(S) - a Q(S) <= (1 - a)(1 - g) Phi(-t) + g Phi(mu - t) - a g Phi(-mu - t),

which is what {x > t} has on the line with v = mu, w = -mu. So that ONE pair, (1 - g) N(0) + g N(mu) against
(1 - g) N(0) + g N(-mu), dominates for every a, adaptively, in every dimension (Zhu, Dong and Wang 2022, Theorem 10); it
occurs, so its composition is exact. Its mirror image is itself.

Fixed size, a >= 1. Let S have mass Phi(-t) around v. Around y it has at least Phi(-|v - y| - t), around w at least
Phi(-|v - w| - t), and both count against it:

    P(S) - a Q(S) <= g Phi(-t) - (a - 1)(1 - g) Phi(-|v - y| - t) - a g Phi(-|v - w| - t).

|v - y| <= 2 mu. Replace-one: |v - w| <= 2 mu, attained by y = w = -v: (1 - g) N(0) + g N(2 mu) against N(0).
Zero-out: |v - w| = |v| <= mu, attained by y = -v: (1 - g) N(0) + g N(2 mu) against (1 - g) N(0) + g N(mu). In the other
order, the ghost w = 0 first: |y|, |v| <= mu, attained by y = v: (1 - g) N(0) + g N(mu) against N(0). So the supremum
over all of them is H(a), for a < 1 from the other order by the mirror rule. A supremum of profiles is convex, hence a
profile, and that pair dominates and composes. Each single value occurs; one choice of y for all a does not, so that
compositions of fixed-size batches may be sharper.

Poisson batches that are cut are of one or the other kind, which is told (`full_batches`): the mean of both profiles is
that of a pair, which dominates and composes.

All losses are those of half-lines (`verify/pld/half_lines.py`).
"""

import math
from functools import partial

from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.half_lines import HalfLineReleases, Halves, NormalMixtures, compose_halves
from dpaudit.verify.pld.pair_curve import worst_delta
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper.full_batches import THEOREM as CUT
from dpaudit.verify.upper.full_batches import CutPhase, read_cut
from dpaudit.verify.upper.gaussian_pld import LEAST_SHIFT, shift_over_sigma
from dpaudit.verify.upper.shift_norms import sampling_is_known

THEOREM = (
    "worst pair of half-lines by Neyman-Pearson for every epsilon (verify/upper/sampled_normal.py); composition by "
    "Zhu, Dong and Wang (2022), Theorem 10; rounded up by Doroshenko et al. (2022), Theorem 4.3"
)

MOST_SHIFT = 1e3  # longer ones leave nothing
LEAST_CUT = 1e-13  # rate of batches that are cut, below which losses are as small as what rounding does to them
LEAST_RATE = 2.0**-52  # of smaller ones 1 - g is no float; they mix the same pair with one law more, and cost less


def halves(phase: Phase, adjacency: Adjacency) -> Halves | None:
    """The worst losses of a phase's release; None for other noise, an unknown radius or another sampler.

    Args:
        phase: Poisson, none, or batches of fixed size.
        adjacency: "add-remove" (for batches of fixed size it stands for zero-out) or "replace-one".
    """
    known, fixed = shift_over_sigma(phase, "add-remove"), isinstance(phase.sampler, WithoutReplacement)
    if known is None or known > MOST_SHIFT or not (fixed or sampling_is_known(phase)):
        return None
    mu = max(known, LEAST_SHIFT)
    g = phase.sampler.prob if isinstance(phase.sampler, WithoutReplacement) else phase.sampling_prob
    g = max(g, LEAST_RATE)
    present = NormalMixtures(mu, (0.0, 1.0 - g, g), (0.0, 1.0, 0.0))
    if adjacency == "replace-one":
        opposite = NormalMixtures(mu, (0.0, 1.0 - g, g), (g, 1.0 - g, 0.0))
        moved = NormalMixtures(2.0 * mu, present.first, present.second)
        worst = moved if fixed or g == 1 else opposite
        return Halves(worst, worst)
    if fixed:
        return Halves(NormalMixtures(mu, (1.0 - g, 0.0, g), (1.0 - g, g, 0.0)), present)
    absent = NormalMixtures(mu, (0.0, 0.0, 1.0), (0.0, g, 1.0 - g))
    return Halves(present, absent)


def _kinds(adjacency: Adjacency, phase: Phase, cut: CutPhase | None) -> list[tuple[float, Halves]] | None:
    """Probabilities of the kinds of a phase's releases, and their worst losses; None where one has none."""
    if cut is not None and cut.sampler.prob < LEAST_CUT:
        return None
    kinds = [(1.0, phase)] if cut is None else cut.kinds
    found = [(chance, halves(kind, adjacency)) for chance, kind in kinds]
    known = [(chance, kind) for chance, kind in found if kind is not None]
    return known if len(known) == len(found) else None


def _history(claim: Claim) -> list[HalfLineReleases] | None:
    """Every phase's, unsampled ones merged; None where one has none."""
    read, cuts = read_cut(claim)
    swaps, sampled, square = read.adjacency == "replace-one", list[HalfLineReleases](), 0.0
    for phase, cut in zip(read.phases, cuts, strict=True):
        found = _kinds(read.adjacency, phase, cut)
        if found is None:
            return None
        if phase.sampler is None and phase.sampling_prob == 1:
            [(_, kind)] = found
            square += phase.steps * (kind.above.distance) ** 2
        else:
            sampled.append(HalfLineReleases(found, phase.steps))
    if not sampled:
        return None
    if not swaps and not any(phase.sampler for phase in claim.phases):
        return None  # Poisson batches under add-remove have one pair for all epsilons: `gaussian_pld`
    whole = NormalMixtures(math.sqrt(square), (0.0, 0.0, 1.0), (0.0, 1.0, 0.0)) if square else None
    return sampled + ([HalfLineReleases([(1.0, Halves(whole, whole))], 1)] if whole else [])


def applies(claim: Claim) -> bool:
    """Gaussian noise throughout, and a phase sampled under replace-one, with batches of fixed size, or that are cut."""
    return _history(claim) is not None


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon): exact for Poisson batches, but for its grid.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    history = _history(claim)
    if history is None:
        raise ValueError(f"Expected claim {claim.id!r} to have sampled Gaussian noise and a known l2 radius.")
    composed = [compose_halves(history, claim.least_delta)]
    if claim.adjacency != "replace-one":
        composed.append(compose_halves([part.mirrored() for part in history], claim.least_delta))
    cut = any(isinstance(phase.sampler, TruncatedPoisson) for phase in claim.phases)
    return Curve.upper("pld", f"{CUT}; {THEOREM}" if cut else THEOREM, partial(worst_delta, composed))
