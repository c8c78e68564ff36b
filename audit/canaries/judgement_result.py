"""What a judgement on sealed canaries comes to in a report: the result, and what its reader must know besides."""

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.canaries.power import IdealPower
from dpaudit.audit.canaries.sealing import SealedCoins, files_sha256
from dpaudit.audit.claim_under_test import ClaimUnderTest
from dpaudit.reports.wording import at_most, stated
from dpaudit.verify.bounds import tradeoff_curve
from dpaudit.verify.results import AttackResult, AuditResult, AuditVerdict, Control

NAME = "sealed-canaries"
DEVIATIONS = 4.0  # of the AUC of scores that know nothing, below 1/2, from which on the scores are asked about
UNSEEN = "The training was not seen."  # how the note begins that belongs to the report alone
PACKAGES = ("dpaudit", "numpy", "scipy")


def judgement_notes(
    coins: SealedCoins, claim: ClaimUnderTest, attack: AttackResult, power: IdealPower | None
) -> list[str]:
    """What a reader must know of the game and of its power.

    Args:
        coins: What was sealed.
        claim: What was promised.
        attack: What the scores show.
        power: Of less noise, where that is known.
    """
    draw = coins.draw
    known = "is the one that was agreed upon" if coins.agreed else "was compared with none that was agreed upon"
    notes = [
        f"{UNSEEN} The scores prove something of whatever produced them, by coins that were sealed "
        f"before. Their commitment {coins.commitment} {known}.",
    ]
    if draw.group_size > 1:
        notes.append(f"A canary is a user of {draw.group_size} records, in or out together: the claim is on users.")
    if claim.adjacency == "zero-out":
        notes.append(
            "The claim leaves a ghost in the record's place; here a canary that is left out is not there at all, which "
            "comes to the same as long as every record is drawn by itself, as the claim says."
        )
    if draw.runs > 1:
        notes.append(f"The {draw.runs} trainings are taken to be independent: noise that is used twice breaks that.")
    counted = attack.trials if draw.every is None else 2 * attack.trials
    if attack.auc < 0.5 - DEVIATIONS / math.sqrt(3.0 * counted):
        notes.append(
            f"Scores of canaries that were in are lower than those of others (AUC {attack.auc:.3f}): are they losses?"
        )
    if power is not None:
        attack.details["ideal_power"] = asdict(power)
        notes.append(
            f"A training with {power.noise_factor:g} of the claimed noise would have been refuted in "
            f"{100 * power.power:.0f}% of {power.draws} simulated audits with canaries that nothing disturbs (median "
            f"bound {power.epsilon_median:.3g}); real canaries show less."
        )
    return notes


def hopeless_note(coins: SealedCoins, claim: ClaimUnderTest, attack: AttackResult, needed: int | None) -> str:
    """That no scores could refute the claim, and what it takes.

    Args:
        coins: What was sealed.
        claim: What was promised.
        attack: With the most that could have been proved.
        needed: Canaries of one run that suffice, where a number does.
    """
    most, draw = f"prove at most epsilon = {at_most(attack.best_possible_epsilon)}", coins.draw
    cannot = f"they cannot refute {stated(claim.epsilon)}, which needs"
    if draw.every is not None:
        inside = int(draw.included().sum())
        models = f"{inside:,} models with the canary and {draw.runs - inside:,} without it"
        return f"Whatever the scores, {models} {most}: {cannot} more models."
    wanted = f"at least {needed:,} canaries" if needed else "more canaries than are practical"
    return f"Whatever the scores, {attack.trials:,} canaries {most}: {cannot} {wanted}, or several runs."


def judgement_result(
    coins: SealedCoins, scores: Sequence[Path], claim: ClaimUnderTest, confidence: float, attack: AttackResult,
    rejected: list[str], control: Control | None, notes: list[str], command: str, began: float,
) -> AuditResult:  # fmt: skip
    """The verdict and all that belongs to it.

    Args:
        coins: What was sealed.
        scores: The files.
        claim: What was promised.
        confidence: Level of every test.
        attack: What the scores show.
        rejected: The tests that speak against the claim.
        control: The positive control, if there was one.
        notes: For the reader.
        command: How to repeat this.
        began: Monotonic time.
    """
    verdict = claim.verdict
    refuted_by = [f"{NAME}:{name}" for name in rejected]
    if verdict is not None and verdict.verdict == "refuted":
        refuted_by.insert(0, "claim-check")
    quiet: AuditVerdict = "not_refuted" if control is not None and control.gives_power else "inconclusive"
    last = min(max(2.0 * claim.epsilon, 1.0), float(np.finfo(np.float64).max))
    epsilons = np.unique(np.append(np.linspace(0.0, last, 101), claim.epsilon))
    curve = None if verdict is None else verdict.delta(epsilons)
    digest = hashlib.sha256("".join(files_sha256([path]) for path in scores).encode()).hexdigest()
    fpr: NDArray[np.float64] = np.append(0.0, np.geomspace(1e-5, 1.0, 121))
    return AuditResult(
        model={"path": ", ".join(map(str, scores[:3])) + (", ..." if len(scores) > 3 else ""),
               "sha256": files_sha256(scores) if len(scores) == 1 else digest},
        claim={**claim.summary(), "unit": "record" if coins.draw.group_size == 1 else "user"},
        verdict="refuted" if refuted_by else quiet,
        refuted_by=refuted_by,
        epsilon_lower=attack.epsilon_lower,
        confidence=confidence,
        epsilon_claimed=claim.epsilon,
        claim_check=verdict,
        attacks=[attack],
        seed=coins.draw.seed,
        versions={name: version(name) for name in PACKAGES},
        seconds=time.monotonic() - began,
        certified_curve=None if curve is None else
        {"epsilon": epsilons, "delta_lower": curve[0], "delta_upper": curve[1]},
        tradeoff=None if claim.certified is None or verdict is None else
        {"fpr": fpr, "tpr_max": tradeoff_curve(verdict.delta_at_most, fpr)},
        budget={NAME: 1.0 - confidence},
        reproduce={"command": command, "data_sha256": coins.data_sha256, "queries_sha256": coins.queries_sha256,
                   "commitment": coins.commitment},
        notes=notes,
        control=control,
    )  # fmt: skip
