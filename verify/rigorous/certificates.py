"""Certificates of verdicts, format "dpaudit-certificate/1": what an independent checker needs to prove them again.

Numbers that matter are strings. `refuted`: kind "integer-score-event", with `pair`, `event`, `P_lower`, `Q_upper`.
`certified`: the theorem's kind with `inputs`, and `steps`, the last of which bounds delta. A certificate is handed out
only where its inequality has been proved in balls, and the checker accepts it.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from dpaudit.mechanisms.base import Radial, ScaleMixture
from dpaudit.mechanisms.registry import from_dict, to_dict
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.results import Verdict
from dpaudit.verify.rigorous import check_certificate
from dpaudit.verify.rigorous.balls import Unavailable, ball, decimal_above, decimal_below, precision
from dpaudit.verify.rigorous.bracket import upper_proof
from dpaudit.verify.rigorous.check_sampled_certificate import SampledPhase, accepted
from dpaudit.verify.rigorous.choices import chosen_event, pass_statistics
from dpaudit.verify.rigorous.events import Event, event_probabilities
from dpaudit.verify.rigorous.hidden_scale_choices import most_coordinates, tells_scale
from dpaudit.verify.rigorous.scores import resolution
from dpaudit.verify.samplers import BufferedShuffle, sampler_to_dict

FORMAT = "dpaudit-certificate/1"
COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16_384)
CELLS = (60, 400, 1500)  # of the radius
RADIAL_BITS = 256  # of an event's masses: the checker computes no Beta law to more
PHASES, EPSILONS = 8, 1e5  # that the checker reads
MARGIN = 1e-9  # of a bound that the checker adds up in another order
CHECKED = (
    "gaussian-curve",
    "gaussian-grid",
    "allocation-grid",
    "shuffled-grid",
    "smoothed-grid",
    "moments",
    "pure-laplace",
    "one-dimensional",
)


@dataclass(frozen=True)
class NotCovered:
    """Why there is no certificate, in one sentence.

    Args:
        reason: What is missing.
    """

    reason: str


def certificate(claim: Claim, verdict: Verdict) -> dict[str, Any] | NotCovered:
    """The certificate of a verdict, ready for JSON.

    Args:
        claim: The claim.
        verdict: Certified or refuted; its witness says where to look for an event.

    >>> from dpaudit.mechanisms import Gaussian
    >>> from dpaudit.verify import check
    >>> claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=0.2)
    >>> certificate(claim, check(claim))["kind"]
    'gaussian-curve'
    """
    if verdict.verdict == "undecided":
        return NotCovered("an undecided claim has nothing to certify")
    if claim.guarantee is not None:
        return NotCovered(f"certificates are of an (epsilon, delta), and {claim.guarantee} is none")
    if any(phase.correlation is not None for phase in claim.phases):
        return NotCovered("correlated noise is beyond the checker")
    if any(isinstance(phase.sampler, BufferedShuffle) for phase in claim.phases):
        return NotCovered(f"sampling_kind={BufferedShuffle.kind!r} is beyond the checker")
    with precision():
        reason = _beyond(claim)
        if reason:
            return NotCovered(reason)
        return _refuted(claim, verdict) if verdict.verdict == "refuted" else _certified(claim)


def _beyond(claim: Claim) -> str:
    """Why the checker would not read a claim's numbers; empty where it does."""
    if claim.epsilon >= EPSILONS or len(claim.phases) > PHASES:
        return f"the checker reads at most {PHASES} phases, and epsilons below {EPSILONS:g}"
    check_certificate.deadline[0] = math.inf
    try:
        for phase in claim.phases:
            SampledPhase(check_certificate.parsed(_phase(phase)), claim.adjacency == "replace-one")
    except AssertionError as error:
        return f"the claim is beyond the checker: {error}"
    return ""


def _head(claim: Claim, verdict: str, kind: str) -> dict[str, Any]:
    phases = [_phase(phase) for phase in claim.phases]
    table = {"id": claim.id, "epsilon": repr(float(claim.epsilon)), "delta": repr(float(claim.delta))}
    return {
        "format": FORMAT,
        "claim": {**table, "adjacency": claim.adjacency, "phases": phases},
        "verdict": verdict,
        "kind": kind,
    }


def _phase(phase: Phase) -> dict[str, Any]:
    noise = {key: repr(value) if isinstance(value, float) else value for key, value in to_dict(phase.mechanism).items()}
    sampling: dict[str, Any] = {"sampling_prob": repr(float(phase.sampling_prob)), "sampling_kind": phase.sampling_kind}
    if phase.sampler is not None:
        keys = {key: repr(x) if isinstance(x, float) else x for key, x in sampler_to_dict(phase.sampler).items()}
        sampling["sampling"] = keys
    return {"mechanism": noise, "steps": int(phase.steps), **sampling}


def _refuted(claim: Claim, verdict: Verdict) -> dict[str, Any] | NotCovered:
    """The event of the fewest coordinates, and cells, that contradicts the claim, up to those of the witness."""
    witness = verdict.witness
    most = min(witness.coordinates if witness is not None else 1, most_coordinates(claim, gauged=True))
    direction = "add" if witness is not None and witness.direction == "add" else "remove"
    counts: list[tuple[int, int]] = [(m, CELLS[0]) for m in sorted({*(m for m in COUNTS if m < most), most})]
    whole, what = claim.canonical(), f"equal shifts of at most {most} coordinates"
    if any(isinstance(phase.mechanism.structure, Radial) for phase in claim.phases):
        if resolution(whole.delta, whole.epsilon) > RADIAL_BITS:
            return NotCovered(f"so large an e^epsilon / delta takes more than the checker's {RADIAL_BITS} bits")
        counts, what = [(1, cells) for cells in CELLS], f"one level of the loss and {CELLS[-1]} cells of the radius"
    # one coordinate of a shared scale has the law of one with a scale of its own
    one, refusal = replace(whole, phases=tuple(map(_alone, whole.phases))), ""
    for (count, cells), statistic in product(counts, pass_statistics(whole)):
        shown = one if count == 1 else whole
        # gauges take their time, and tell most where many coordinates are moved
        event = chosen_event(shown, count, direction, cells, statistic, gauged=count == most and tells_scale(shown))
        if isinstance(event, Unavailable):
            return NotCovered(event.reason)
        p, q = event_probabilities(shown.phases, event)
        low, high = decimal_below(p), decimal_above(q)
        if ball(low) - ball(claim.epsilon).exp() * ball(high) > ball(claim.delta):
            bounds = {"P_lower": low, "Q_upper": high}
            made = {**_head(claim, "refuted", "integer-score-event"), **_event(event), **bounds}
            refusal = _refusal(made)
            if not refusal:
                return made
    return NotCovered(refusal or f"no event of {what} contradicts it in ball arithmetic")


def _alone(phase: Phase) -> Phase:
    if not isinstance(phase.mechanism.structure, ScaleMixture):
        return phase
    return replace(phase, mechanism=from_dict({**to_dict(phase.mechanism), "name": "gamma-plrv-iid"}))


def _event(event: Event) -> dict[str, Any]:
    parts = []
    for part in event.parts:
        table = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(part).items()}
        parts.append({key: value for key, value in table.items() if value not in ([], None) and key != "swaps"})
    shown = {"phases": parts, "window": event.window, "bits": event.bits, "threshold": event.threshold}
    return {"pair": {"direction": event.direction}, "event": shown}


def _certified(claim: Claim) -> dict[str, Any] | NotCovered:
    proof = upper_proof(claim.canonical())
    if isinstance(proof, Unavailable):
        return NotCovered(proof.reason)
    bound = proof.at(claim.epsilon)
    if not bound <= ball(claim.delta):
        return NotCovered(f"the theorems in ball arithmetic ({proof.kind}) do not reach delta")
    if proof.kind not in CHECKED:
        return NotCovered(f"the theorem {proof.kind!r} is proved in ball arithmetic, but beyond the checker")
    refusal = ""
    for most in (bound, bound * ball(1 + MARGIN)):
        stated = decimal_above(most.upper()) if most > 0 else "0"
        if ball(stated) > ball(claim.delta):
            stated = repr(float(claim.delta))
        made = {
            **_head(claim, "certified", proof.kind),
            "theorem": proof.kind,
            "inputs": proof.inputs,
            "steps": [{"name": "delta", "at_most": stated}],
        }
        refusal = _refusal(made)
        if not refusal:
            return made
    return NotCovered(refusal)


def _refusal(made: dict[str, Any]) -> str:
    """Why the checker refuses a certificate; empty where it accepts it."""
    try:
        with precision():  # the checker chooses its own
            accepted(json.dumps(made))
    except Exception as error:  # whatever it meets is told as a refusal, and nothing is written
        return f"the checker refuses one of kind {made['kind']!r}: {type(error).__name__} {error}"
    return ""
