"""One claim of the register: its verdict, its curve, and the independent ways in which a verdict stands."""

import math
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context
from typing import Any

import numpy as np

from dpaudit.audit.inputs.files import InputError
from dpaudit.reports.register_snippets import program
from dpaudit.verify.checking import check
from dpaudit.verify.claim_files import claim_to_dict
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Verdict, to_json

DIGITS = 6  # of every number in the register: as many as every machine agrees on
POINTS = 21  # of a curve
PROGRAM_SECONDS = 300.0
HISTORIES, MORE_HISTORIES, CONFIDENCE = 10_000, 200_000, 0.95  # of a Monte Carlo check
CLOSE = 1.1  # certified delta over the claimed one below which a check takes more of them
KEPT = (  # keys of a verdict
    "verdict", "reason", "epsilon_claimed", "delta_claimed", "epsilon_lower", "epsilon_upper", "delta_lower",
    "delta_upper", "witness", "published_epsilon", "methods", "assumptions",
)  # fmt: skip
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:e[+-]?\d+)?")
LARGEST_CERTIFICATE = 2**17  # bytes; larger ones are left to `dpaudit verify --certificates`


def judged(claim: Claim, *, seed: int, sampled: bool = True) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Everything the register holds on one claim, and its certificate if there is one that is not too large.

    Args:
        claim: The claim.
        seed: Of the Monte Carlo check; the same for a claim alone and among others.
        sampled: Whether a refuted claim is also checked by Monte Carlo, which takes ten seconds or more.
    """
    verdict = check(replace(claim, id="", source=""))
    verdict = replace(verdict, id=claim.id)
    table = claim_to_dict(claim)
    entry: dict[str, Any] = {"claim": to_json(table), "verdict": _verdict(verdict), "curve": _curve(verdict)}
    # one pair of neighbours shows that a claim is false, and never that it is true
    witness = verdict.witness if verdict.verdict == "refuted" else None
    code, lacking = program(table, None if witness is None else witness.to_dict())
    entry["program"] = code
    ways: dict[str, dict[str, Any]] = {}
    document = None
    if verdict.verdict != "undecided":
        ways["numerics"] = {"holds": True, "note": _proof(verdict) if claim.guarantee is None else verdict.reason}
        ways["balls"], document = _certified(claim, verdict)
        if verdict.verdict == "refuted" and sampled:
            ways["monte-carlo"] = _monte_carlo(claim, seed, _histories(claim, verdict))
        ways["numpy"] = _numpy(code, lacking, verdict)
    entry["ways"] = ways
    return entry, document


def _proof(verdict: Verdict) -> str:
    if verdict.verdict == "refuted" and not verdict.delta_lower > verdict.delta_claimed:
        at = f"at delta={verdict.delta_claimed:g}"
        return f"epsilon is at least {_down(verdict.epsilon_lower)} {at} ({', '.join(verdict.methods)})"
    bound = ("at least", _down(verdict.delta_lower)) if verdict.verdict == "refuted" else (
        "at most", _up(verdict.delta_upper)
    )  # fmt: skip
    return f"delta is {bound[0]} {bound[1]} at the stated epsilon ({', '.join(verdict.methods)})"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON: bounds rounded to the safe side, no time."""
    data: dict[str, Any] = {key: to_json(getattr(verdict, key)) for key in KEPT}
    sides = {"epsilon_lower": _down, "delta_lower": _down, "epsilon_upper": _up, "delta_upper": _up}
    data |= {key: to_json(rounded(getattr(verdict, key))) for key, rounded in sides.items()}
    if verdict.published_epsilon is not None:
        data["published_epsilon"] = _nearest(verdict.published_epsilon)
    if verdict.witness is not None:
        shift = [[_nearest(value), count] for value, count in verdict.witness.shift]
        data["witness"] |= {"norm": _nearest(verdict.witness.norm), "shift": shift}
    return data


def _curve(verdict: Verdict) -> dict[str, list[float]]:
    """Bounds on delta at epsilons around the claim."""
    claimed = verdict.epsilon_claimed
    known = min(1.3 * verdict.epsilon_lower, 4.0 * claimed if claimed else 10.0)
    top = max(1.5 * claimed, known, 0.1)
    epsilons = np.array([_nearest(value) for value in np.linspace(0.0, top, POINTS)])
    lower, upper = verdict.delta(epsilons)
    return {
        "epsilon": epsilons.tolist(),
        "delta_lower": [_down(value) for value in lower.tolist()],
        "delta_upper": [_up(value) for value in upper.tolist()],
    }


def _certified(claim: Claim, verdict: Verdict) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What the second engine says, and its certificate."""
    try:
        from dpaudit.verify.rigorous.agreement import alone
        from dpaudit.verify.rigorous.certificates import NotCovered, certificate
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "flint":
            raise
        raise InputError("Expected python-flint to be installed for the register: pip install python-flint") from error
    unnamed = replace(claim, id="", source="")
    found = certificate(unnamed, verdict)
    if isinstance(found, NotCovered):
        name, proved = alone(unnamed, verdict)
        holds = name == verdict.verdict
        return {"holds": holds, "note": f"{proved}; no certificate: {found.reason}" if holds else found.reason}, None
    return {"holds": True, "note": f"certificate of kind {found['kind']}"}, {
        **found, "claim": {**found["claim"], "id": claim.id}
    }  # fmt: skip


def _histories(claim: Claim, verdict: Verdict) -> int:
    """More where the claim is false by little.

    The certified bound decides, before anything is drawn, so that the level stays what it is.
    """
    close = verdict.delta_lower < CLOSE * claim.delta
    return MORE_HISTORIES if close else HISTORIES


def _monte_carlo(claim: Claim, seed: int, histories: int) -> dict[str, Any]:
    """Whether sampling alone refutes the claim, and the two points that it bounds."""
    from dpaudit.verify.monte_carlo import monte_carlo_lower  # costs a second

    unnamed = replace(claim, id="", source="")
    try:
        bound = monte_carlo_lower(unnamed, rng=np.random.default_rng(seed), samples=histories, confidence=CONFIDENCE)
    except ValueError as error:
        return {"holds": False, "note": str(error)}
    delta = _down(float(bound.delta(np.array([claim.epsilon]))[0]))
    epsilon = _down(float(bound.epsilon(np.array([claim.delta]))[0]))
    return {
        "holds": delta > claim.delta or epsilon > claim.epsilon,  # both points are proved at once
        "epsilon_lower": epsilon,
        "points": [[claim.epsilon, delta], [epsilon, claim.delta]],
        "note": f"delta is at least {delta}, and epsilon at least {epsilon}, at {CONFIDENCE:.0%} confidence: "
        f"{histories:,} histories at most, seed {seed}",
    }


def _numpy(code: str | None, lacking: str, verdict: Verdict) -> dict[str, Any]:
    """Whether the short program's delta lies on the verdict's side of the claim."""
    if code is None:
        return {"holds": False, "note": lacking}
    value = run_program(code)
    refuted = value > verdict.delta_claimed
    return {"holds": refuted == (verdict.verdict == "refuted"), "value": value, "note": f"prints {value:.4g}"}


def run_program(code: str) -> float:
    """What a short program prints, run by a fresh interpreter that does not see this package's folder.

    Raises:
        RuntimeError: It fails, or prints no number.
    """
    command = [sys.executable, "-I", "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
    try:
        return float(f"{float(done.stdout):.4g}")
    except ValueError:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise RuntimeError(f"Expected the program to print a number: {''.join(last)}") from None


def difference(stored: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Where an entry computed again differs from the register's, "" if nowhere; what was not computed is not compared.

    Numbers agree to 1%, or are 1e-12 apart (a better bound moves them by less); verdicts agree to the letter.
    """
    return next(_differences("", stored, found), "")


def _differences(where: str, stored: Any, found: Any) -> Any:
    if isinstance(found, Mapping) and isinstance(stored, Mapping):
        for key in found:
            yield from _differences(f"{where}.{key}".lstrip("."), stored.get(key), found[key])
    elif isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        for index, (one, other) in enumerate(zip(stored, found, strict=True)):
            yield from _differences(f"{where}[{index}]", one, other)
    elif isinstance(found, float) and isinstance(stored, (int, float)):
        if not math.isclose(stored, found, rel_tol=1e-2, abs_tol=1e-12):
            yield f"{where}: {stored} in the register, {found} now"
    elif where.endswith("program") and isinstance(stored, str) and isinstance(found, str):
        if not _same_program(stored, found):
            yield f"{where}: not the one that the claim gives"
    elif found != stored and not where.endswith(("reason", "note", "event")):
        yield f"{where}: {stored!r} in the register, {found!r} now"


def _same_program(stored: str, found: str) -> bool:
    """Whether programs are the same but for numbers that differ by at most 1%."""
    words = [_NUMBER.split(text) for text in (stored, found)]
    numbers = [[float(number) for number in _NUMBER.findall(text)] for text in (stored, found)]
    return words[0] == words[1] and all(math.isclose(a, b, rel_tol=1e-2) for a, b in zip(*numbers, strict=True))


def _rounded(value: float, how: str) -> float:
    if not math.isfinite(value) or value == 0.0:
        return value
    return float(Context(prec=DIGITS, rounding=how).create_decimal_from_float(value))


def _down(value: float) -> float:
    return _rounded(float(value), ROUND_FLOOR)


def _up(value: float) -> float:
    return _rounded(float(value), ROUND_CEILING)


def _nearest(value: float) -> float:
    return _rounded(float(value), ROUND_HALF_EVEN)
