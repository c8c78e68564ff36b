"""Valid upper bounds, a file per theorem: `applies(claim)` and `bound(claim)`; the best one that applies counts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import FEW_COORDINATES, Claim, coordinate_by_coordinate
from dpaudit.verify.curves import Curve
from dpaudit.verify.samplers import SAMPLERS
from dpaudit.verify.upper import (
    balls_in_bins,
    bounded_loss,
    buffered_streams,
    coordinate_products,
    cut_batches,
    cut_pairs,
    envelope,
    fixed_size_batches,
    gamma_plrv_shared,
    gaussian_pld,
    laplace_gaussian_domination,
    laplace_pure,
    met_twice,
    mixed,
    never_sampled,
    one_dimensional,
    pass_by_pass,
    phase_by_phase,
    radial_pld,
    replaced_coins,
    replaced_moments,
    replaced_records,
    sampled_normal,
    shuffled_batches,
    shuffled_by_curve,
    through_a_ghost,
)
from dpaudit.verify.upper.met_releases import (
    DRAWN,
    carried_over,
    met_claim,
    revealed_claim,
    takes_places,
)
from dpaudit.verify.upper.shift_norms import sampling_is_known

APART = "no coordinate is moved by more than the clip: boundary lemma"


class UpperBound(Protocol):
    """A theorem that bounds delta(epsilon) of a claim from above."""

    __name__: str

    def applies(self, claim: Claim) -> bool:
        """Whether the theorem's conditions hold for the whole history."""
        ...

    def bound(self, claim: Claim) -> Curve:
        """The curve it proves."""
        ...


class BoundByParts(Protocol):
    """A theorem that bounds delta(epsilon) of a claim by upper bounds of simpler ones."""

    def parts(self, claim: Claim) -> list[Claim]:
        """The simpler claims; empty where the theorem does not apply or would gain nothing."""
        ...

    def bound(self, claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve | None:
        """The curve that bounds of each of them prove; None where it says nothing."""
        ...


UPPER_BOUNDS: tuple[UpperBound, ...] = (
    gaussian_pld,
    sampled_normal,
    balls_in_bins,
    shuffled_batches,
    buffered_streams,
    laplace_pure,
    laplace_gaussian_domination,
    one_dimensional,
    radial_pld,
    envelope,
    gamma_plrv_shared,
    bounded_loss,
    mixed,
    never_sampled,
    replaced_coins,
    coordinate_products,
    replaced_records,
    fixed_size_batches,
    cut_pairs,
    replaced_moments,
)
BY_PARTS: tuple[BoundByParts, ...] = (
    pass_by_pass,
    shuffled_by_curve,
    met_twice,
    cut_batches,
    through_a_ghost,
    phase_by_phase,
)
# false of batches of fixed size that are read as Poisson ones: where the record is not in, another one is
OF_COINS: tuple[UpperBound, ...] = (replaced_coins, replaced_moments, replaced_records)


def upper_curves(
    claim: Claim, theorems: Sequence[UpperBound] = UPPER_BOUNDS, known: dict[Claim, list[Curve]] | None = None
) -> list[Curve]:
    """Upper bounds on delta(epsilon) of a claim, one for every theorem that applies.

    Args:
        claim: The claim.
        theorems: Which to try.
        known: What was found of parts of it, which have parts of their own in common; more is put there.
    """
    known = {} if known is None else known
    read = claim.canonical("upper")
    curves = _own_curves(read, theorems)
    unfit = OF_COINS if takes_places(read) else ()
    apart = [theorem for theorem in theorems if theorem not in unfit]
    for met, fit in {met_claim(read): apart, met_claim(read, kept=True): theorems}.items():
        if met is not None:
            curves += [carried_over(read, met, curve) for curve in _own_curves(met, fit)]
    for whole in BY_PARTS:
        of_parts = [_of_part(part, theorems, known) for part in whole.parts(read)]
        found = whole.bound(read, of_parts) if of_parts and all(of_parts) else None
        curves += [] if found is None else [found]
    reductions = [p.correlation.theorem(p.mechanism, p.steps) for p in claim.phases if p.correlation is not None]
    if reductions:
        curves = [replace(curve, theorem="; ".join(dict.fromkeys([*reductions, curve.theorem]))) for curve in curves]
        within = laplace_pure.clipped_in_l1(claim) if laplace_pure in theorems else None
        curves += [] if within is None else upper_curves(within, [laplace_pure])
    return curves


def _of_part(part: Claim, theorems: Sequence[UpperBound], known: dict[Claim, list[Curve]]) -> list[Curve]:
    try:
        found = known.get(part)
    except TypeError:  # parameters that are arrays have no hash
        return upper_curves(part, theorems, known)
    return known.setdefault(part, upper_curves(part, theorems, known)) if found is None else found


def _own_curves(claim: Claim, theorems: Sequence[UpperBound]) -> list[Curve]:
    """Of every theorem that applies to a claim, or to its coordinates one by one; with coins revealed for moments."""
    curves = [*_applying(claim, theorems), *_coordinates_apart(claim, theorems)]
    shown = revealed_claim(claim)
    if shown is None:
        return curves
    # a theorem that covers hidden coins proves no less of them than of known ones
    others = [theorem for theorem in theorems if not theorem.applies(claim)]
    known = [*_applying(shown, others), *_coordinates_apart(shown, theorems)]
    return [*curves, *(replace(curve, theorem=f"{DRAWN}; {curve.theorem}") for curve in known)]


def _applying(claim: Claim, theorems: Sequence[UpperBound]) -> list[Curve]:
    return [theorem.bound(claim) for theorem in theorems if theorem.applies(claim)]


def _coordinates_apart(claim: Claim, theorems: Sequence[UpperBound]) -> list[Curve]:
    """Of the claim's coordinates one by one, none of which is moved further than the whole; none where that is it."""
    phases = [coordinate_by_coordinate(phase, FEW_COORDINATES) for phase in claim.phases]
    if all(one.mechanism == phase.mechanism for one, phase in zip(phases, claim.phases, strict=True)):
        return []
    curves = _applying(replace(claim, phases=phases), theorems)
    return [replace(curve, theorem=f"{APART}; {curve.theorem}") for curve in curves]


def upper_curve(claim: Claim) -> Callable[[Array], Array]:
    """The least of the upper bounds on delta(epsilon) of a claim, 1 where no theorem applies."""
    curves = upper_curves(claim)
    return lambda epsilon: np.minimum.reduce([np.ones(np.shape(epsilon)), *(curve.delta(epsilon) for curve in curves)])


def obstacle(claim: Claim) -> str:
    """Why no theorem here covers a claim, and what would."""
    for phase in claim.canonical("upper").phases:
        if phase.correlation is not None:
            what = f"{phase.mechanism.name} noise with correlation {phase.correlation.strategy.name!r}"
            return f"no theorem here covers {what} and participation {phase.sampling_kind!r}; normal noise is covered"
        if phase.sampler is None and not sampling_is_known(phase):
            if phase.sampling_kind in SAMPLERS:
                return (
                    f"a rate alone does not say how sampling_kind={phase.sampling_kind!r} cuts batches: give its keys"
                )
            kind = f"sampling_kind={phase.sampling_kind!r} with sampling_prob={phase.sampling_prob:g}"
            return f"no theorem here covers {kind}; Poisson sampling, none, and {', '.join(SAMPLERS)} are covered"
    if any(phase.mechanism.dimension is None for phase in claim.phases):
        return "no theorem here covers the noise in every dimension; setting dimension may give one"
    return "no theorem here covers this noise with this clip_norm"
