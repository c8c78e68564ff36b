"""Moments where a sampled record is replaced, or has its place taken: noise that has moments and no pair.

Either version is a shift from what the release is where the record is not drawn, made at the sampling rate, and
`rdp.between_versions` says how far two such mixtures are from each other. Poisson batches: both within one clip.
Batches of fixed size, in which another record is in where this one is not (`sampled_normal` has the releases): both
within two clips, but a ghost within one.

The others contribute the same whether the record is drawn; where batches of fixed size are read as Poisson ones
(`met_releases.takes_places`) they do not.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, LaplaceCoordinates
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.rdp import Moments, between_versions, rdp_curve, replaced_normal_moment
from dpaudit.verify.samplers import WithoutReplacement
from dpaudit.verify.upper import gamma_plrv_shared, mixed, sampled_normal
from dpaudit.verify.upper.gaussian_pld import shift_over_sigma
from dpaudit.verify.upper.shift_norms import moments_reach, sampling_is_known

THEOREM = (
    "moments of a sampled record's versions, each against the release where it is not drawn (verify/rdp.py); Balle et "
    "al. (2020), Theorem 21"
)


def carried(claim: Claim, phase: Phase, at: Callable[[Adjacency, float], Moments]) -> Moments:
    """Moments of a release of the phase, from those of the longest shift under an adjacency, made at a rate."""
    if isinstance(phase.sampler, WithoutReplacement):
        g = phase.sampler.prob
        if g == 1:
            return at(claim.adjacency, 1.0)
        far, ghost = at("replace-one", g), at(claim.adjacency, g)
        orders = between_versions(far, ghost, g), between_versions(ghost, far, g)
        return lambda lams: np.maximum(orders[0](lams), orders[1](lams))
    q = phase.sampling_prob
    if claim.adjacency == "add-remove" or q == 1:
        return at(claim.adjacency, q)
    mu = shift_over_sigma(phase, "add-remove")
    if mu is not None:
        return partial(replaced_normal, mu, q)
    version = at("add-remove", q)
    return between_versions(version, version, q)


def replaced_normal(mu: float, q: float, orders: Array) -> Array:
    """Moments of normal noise, by its own pair."""
    return np.array([replaced_normal_moment(mu, q, float(lam)) for lam in orders])


def _at(phase: Phase, adjacency: Adjacency, rate: float) -> Moments | None:
    return mixed.moments_of(Claim(0.0, 0.0, [Phase(phase.mechanism, 1)], adjacency), phase, rate)


def _known(phase: Phase, adjacency: Adjacency, rate: float) -> Moments:
    found = _at(phase, adjacency, rate)
    assert found is not None  # `applies` has asked
    return found


def applies(claim: Claim) -> bool:
    """Poisson batches whose record is replaced, or batches of fixed size; noise with moments that has no pair."""
    fixed = any(isinstance(phase.sampler, WithoutReplacement) for phase in claim.phases)
    if not all(sampling_is_known(phase) or isinstance(phase.sampler, WithoutReplacement) for phase in claim.phases):
        return False
    if (not fixed and moments_reach(claim)) or sampled_normal.applies(claim) or all(map(_on_line, claim.phases)):
        return False
    return _hidden_scale(claim) or all(_at(phase, "add-remove", 1.0) is not None for phase in claim.phases)


def _on_line(phase: Phase) -> bool:
    """Whether one shift is the worst, so that there is a pair and no need for moments."""
    noise = phase.mechanism
    laplace = isinstance(noise.structure, LaplaceCoordinates)
    return noise.dimension == 1 or noise.clip_norm == math.inf or (laplace and noise.clip_norm == 1)


def _hidden_scale(claim: Claim) -> bool:
    return all(gamma_plrv_shared.radius_of(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) by the moments.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to replace a sampled record, with noise that has moments.")
    if _hidden_scale(claim):
        found = gamma_plrv_shared.best_truncation(claim, smooth=False, carry=carried)
        return Curve.upper("rdp", f"{THEOREM}; {found.theorem}", found.delta, found.assumptions)
    parts = [(carried(claim, phase, partial(_known, phase)), phase.steps) for phase in claim.phases]
    return rdp_curve(claim, parts, sampled=True, method="rdp", theorem=THEOREM)
