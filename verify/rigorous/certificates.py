"""Certificates of verdicts, format "dpaudit-certificate/1": what an independent checker needs to prove them again.

Numbers that matter are strings. `refuted`: kind "integer-score-event", with `pair`, `event`, `P_lower`, `Q_upper`.
`certified`: the theorem's kind with `inputs`, and `steps`, the last of which bounds delta. A certificate is handed out
only where its inequality has been proved in balls.
"""

from dataclasses import asdict, dataclass
from typing import Any

from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.results import Verdict
from dpaudit.verify.rigorous.balls import Unavailable, ball, decimal_above, decimal_below, precision
from dpaudit.verify.rigorous.bracket import MAX_COORDINATES, upper_proof
from dpaudit.verify.rigorous.choices import chosen_event
from dpaudit.verify.rigorous.events import Event, LabelledLoss, event_probabilities

FORMAT = "dpaudit-certificate/1"
COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16_384)
CHECKED = ("gaussian-curve", "gaussian-grid", "moments", "pure-laplace", "one-dimensional")


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
    with precision():
        return _refuted(claim, verdict) if verdict.verdict == "refuted" else _certified(claim)


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
    sampling = {"sampling_prob": repr(float(phase.sampling_prob)), "sampling_kind": phase.sampling_kind}
    return {"mechanism": noise, "steps": int(phase.steps), **sampling}


def _refuted(claim: Claim, verdict: Verdict) -> dict[str, Any] | NotCovered:
    """The event of the fewest coordinates that contradicts the claim, up to those of the witness."""
    witness = verdict.witness
    most = min(witness.coordinates if witness is not None else 1, MAX_COORDINATES)
    direction = "add" if witness is not None and witness.direction == "add" else "remove"
    for count in sorted({*(m for m in COUNTS if m < most), most}):
        event = chosen_event(claim, count, direction)
        if isinstance(event, Unavailable):
            return NotCovered(event.reason)
        p, q = event_probabilities(claim.phases, event)
        # radii are halved where doubles say so: room for another machine's
        growth = ball(claim.epsilon).exp()
        room = (p - growth * q - ball(claim.delta)).lower() / 1000
        radial = any(isinstance(part, LabelledLoss) for part in event.parts) and room > 0
        low, high = decimal_below(p - room * radial), decimal_above(q + room / growth * radial)
        if ball(low) - growth * ball(high) > ball(claim.delta):
            return {**_head(claim, "refuted", "integer-score-event"), **_event(event), "P_lower": low, "Q_upper": high}
    return NotCovered(f"no event of equal shifts of at most {most} coordinates contradicts it in ball arithmetic")


def _event(event: Event) -> dict[str, Any]:
    parts = []
    for part in event.parts:
        table = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(part).items()}
        parts.append({key: value for key, value in table.items() if value != []})
    shown = {"phases": parts, "window": event.window, "threshold": event.threshold}
    return {"pair": {"direction": event.direction}, "event": shown}


def _certified(claim: Claim) -> dict[str, Any] | NotCovered:
    proof = upper_proof(claim)
    if isinstance(proof, Unavailable):
        return NotCovered(proof.reason)
    bound = proof.delta(ball(claim.epsilon))
    if not bound <= ball(claim.delta):
        return NotCovered(f"the theorems in ball arithmetic ({proof.kind}) do not reach delta")
    distance = ball(claim.phases[0].mechanism.clip) * (1 if claim.adjacency == "add-remove" else 2)
    inside = proof.kind == "one-dimensional" and ball(proof.inputs["low"]) <= distance  # between the centres
    if proof.kind not in CHECKED or inside:
        return NotCovered(f"the theorem {proof.kind!r} is proved in ball arithmetic, but beyond the checker")
    stated = decimal_above(bound.upper()) if bound > 0 else "0"
    if ball(stated) > ball(claim.delta):
        stated = repr(float(claim.delta))
    return {
        **_head(claim, "certified", proof.kind),
        "theorem": proof.kind,
        "inputs": proof.inputs,
        "steps": [{"name": "delta", "at_most": stated}],
    }
