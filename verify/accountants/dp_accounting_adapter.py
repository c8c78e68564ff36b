"""Google's dp-accounting (0.5 and later): its accountants for normal and Laplace noise, its events read and written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import LaplaceCoordinates
from dpaudit.verify.accountants.base import PackageAccountant, gaussian_multiplier, laplace_multiplier, quiet
from dpaudit.verify.claims import PLAIN_KINDS, Adjacency, Claim, Phase
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement

REFUSED = {
    "DiscreteLaplaceDpEvent": "discrete noise is no mechanism here",
    "MixtureOfGaussiansDpEvent": "no mechanism here has shifts of its own probabilities",
    "NonPrivateDpEvent": "it meets no finite epsilon",
    "RandomizedResponseDpEvent": "randomized response is no mechanism here",
    "RepeatAndSelectDpEvent": "there is no theorem on selection here",
    "SampledWithReplacementDpEvent": "there is no theorem on sampling with replacement here",
    "UnsupportedDpEvent": "it says itself that nobody knows what it costs",
    "ZCDpEvent": "it is a guarantee, and names no mechanism",
}


@dataclass(frozen=True)
class DPAccounting(PackageAccountant):
    """One of dp-accounting's accountants, at its default settings, under add-or-remove-one.

    Args:
        kind: "rdp", or "pld" (Doroshenko et al. 2022; pessimistic).
        interval: Width of the grid of privacy losses ("pld").

    Raises:
        ImportError: dp-accounting is not installed.
    """

    package: ClassVar[str] = "dp_accounting"
    kind: Literal["rdp", "pld"]
    interval: float = 1e-4

    def history(self, phases: Sequence[Phase], delta: float) -> float:
        events = [event_of_phase(phase) for phase in phases]
        with quiet():
            accountant = self._accountant()
            for phase, event in zip(phases, events, strict=True):
                if not accountant.supports(event):
                    raise NotImplementedError(
                        f"Expected mechanism={phase.mechanism.name!r} to be known to {self.kind}."
                    )
                accountant.compose(event)
            return float(accountant.get_epsilon(delta))

    def _accountant(self) -> Any:
        if self.kind == "rdp":
            from dp_accounting.rdp import RdpAccountant

            return RdpAccountant()
        from dp_accounting.pld import PLDAccountant

        return PLDAccountant(value_discretization_interval=self.interval)


def claim_from_dp_event(
    event: Any, *, epsilon: float, delta: float, adjacency: Adjacency = "add-remove", id: str = "", source: str = ""
) -> Claim:
    """The claim that what a `DpEvent` of dp-accounting describes meets (epsilon, delta).

    Noise is read with clip 1, which is what a noise multiplier of an event is relative to: l2 for normal noise, l1 for
    Laplace noise. A tree of a single epoch shows each record in as many normal releases as the tree has levels,
    floor(log2(steps)) + 1. Nested compositions are one history; its order costs nothing.

    Args:
        event: Of Gaussian and Laplace noise, Poisson-sampled, sampled without replacement or truncated, trees of one
            epoch, and compositions of those; events that do nothing are left out.
        epsilon: Finite, at least 0.
        delta: In [0, 1).
        adjacency: dp-accounting's ADD_OR_REMOVE_ONE is "add-remove", REPLACE_SPECIAL "zero-out", REPLACE_ONE
            "replace-one".
        id, source: As `Claim`.

    Raises:
        ValueError: An event that is no mechanism here, by name; or it releases nothing; or a parameter is outside its
            domain.

    >>> from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    >>> event = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)), 100)
    >>> claim_from_dp_event(event, epsilon=1.0, delta=1e-5).phases[0].steps
    100
    """
    if adjacency == "add-remove" and "SingleEpochTreeAggregationDpEvent" in str(event):
        raise ValueError(
            "Expected adjacency='add-remove' to be 'zero-out' or 'replace-one' with SingleEpochTreeAggregationDpEvent."
        )
    phases = tuple(_phases(event, 1))
    if not phases:
        raise ValueError(f"Expected event={type(event).__name__} to release something.")
    return Claim(epsilon, delta, phases, adjacency, id, source=source)


def dp_event_from_claim(claim: Claim) -> Any:
    """The `DpEvent` of dp-accounting that describes what a claim's mechanisms release.

    Args:
        claim: Normal or Laplace noise, every record, Poisson-sampled, sampled without replacement or truncated.

    Returns:
        A ComposedDpEvent where there are several phases. Batches without replacement are of the smallest data that have
        the claim's rate.

    Raises:
        ValueError: Noise or a sampler that no event describes.
    """
    import dp_accounting

    try:
        events = [event_of_phase(phase) for phase in claim.canonical().phases]
    except NotImplementedError as error:
        raise ValueError(str(error)) from error
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def event_of_phase(phase: Phase) -> Any:
    """The event of one phase: a count of sampled noise.

    Raises:
        NotImplementedError: Noise or a sampler that no event describes.
    """
    import dp_accounting

    normal = not isinstance(phase.mechanism.structure, LaplaceCoordinates)
    multiplier = gaussian_multiplier(phase.mechanism) if normal else laplace_multiplier(phase.mechanism)
    noise = dp_accounting.GaussianDpEvent(multiplier) if normal else dp_accounting.LaplaceDpEvent(multiplier)
    match phase.sampler:
        case None if phase.sampling_kind in PLAIN_KINDS:
            rate = phase.sampling_prob
            sampled = dp_accounting.PoissonSampledDpEvent(rate, noise) if rate < 1 else noise
        case WithoutReplacement(prob=prob):
            ratio = Fraction(prob).limit_denominator(10**9)
            if float(ratio) != prob:
                raise NotImplementedError(f"Expected sampling.prob={prob!r} to be a ratio of sizes below 10^9.")
            sampled = dp_accounting.SampledWithoutReplacementDpEvent(ratio.denominator, ratio.numerator, noise)
        case TruncatedPoisson(prob=prob, max_batch=most, records=records) if normal:
            sampled = dp_accounting.TruncatedSubsampledGaussianDpEvent(records, prob, most, multiplier)
        case _:
            raise NotImplementedError(
                f"Expected sampling.kind={phase.sampling_kind!r} with mechanism={phase.mechanism.name!r} to have a "
                "DpEvent: poisson, none, without-replacement, and truncated-poisson with normal noise do."
            )
    return dp_accounting.SelfComposedDpEvent(sampled, phase.steps)


def _phases(event: Any, count: int) -> Iterator[Phase]:
    """The releases of an event that happens `count` times."""
    match type(event).__name__:
        case "NoOpDpEvent":
            return
        case "ComposedDpEvent":
            for part in event.events:
                yield from _phases(part, count)
        case "SelfComposedDpEvent":
            if event.count:
                yield from _phases(event.event, count * event.count)
        case "SingleEpochTreeAggregationDpEvent":
            leaves = event.step_counts if isinstance(event.step_counts, Sequence) else [event.step_counts]
            levels = max(int(leaf).bit_length() for leaf in leaves)
            yield Phase(Gaussian(event.noise_multiplier), count * levels, 1.0, "none")
        case "PoissonSampledDpEvent":
            yield Phase(_noise(event.event, event), count, event.sampling_probability)
        case "SampledWithoutReplacementDpEvent":
            rate = event.sample_size / event.source_dataset_size
            yield Phase(_noise(event.event, event), sampler=WithoutReplacement(rate, count))
        case "TruncatedSubsampledGaussianDpEvent":
            most = min(event.truncated_batch_size, event.dataset_size)
            sampler = TruncatedPoisson(event.sampling_probability, most, event.dataset_size, count)
            yield Phase(Gaussian(event.noise_multiplier), sampler=sampler)
        case _:
            yield Phase(_noise(event, event), count, 1.0, "none")


def _noise(event: Any, around: Any) -> Gaussian | Laplace:
    """The mechanism of an event that releases noise.

    Raises:
        ValueError: Another event, by name.
    """
    name, outer = type(event).__name__, type(around).__name__
    if name == "GaussianDpEvent":
        return Gaussian(event.noise_multiplier)
    if name == "LaplaceDpEvent":
        return Laplace(event.noise_multiplier, clip_norm=1.0)
    inside = "" if event is around else f" inside {outer}"
    reason = REFUSED.get(name, "it is not known here" if event is around else "only noise can be sampled there")
    raise ValueError(f"Expected event={name}{inside} to be an event of normal or Laplace noise: {reason}.")
