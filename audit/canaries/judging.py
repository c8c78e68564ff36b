"""`dpaudit canaries judge`: what the scores of sealed canaries prove of a training that nobody here has seen."""

import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.audit.canaries.judgement_result import NAME, hopeless_note, judgement_notes, judgement_result
from dpaudit.audit.canaries.power import IdealPower, Refuted, ideal_power, needed_canaries, one_run_bound, refutes
from dpaudit.audit.canaries.sealing import SealedCoins, files_sha256, guesses_per_run, unit_scores
from dpaudit.audit.claim_under_test import ClaimUnderTest, check_coins_decide
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.score_files import read_scored_ids
from dpaudit.audit.score_deciders import curve_test, guesses_against_curve, joint_bound, judged, promise_p_value
from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds import (
    auc,
    correct_guesses,
    epsilon_one_run,
    one_run_p_value,
    roc,
    tpr_at_fpr,
)
from dpaudit.verify.bounds.joint_test import JointTest
from dpaudit.verify.bounds.rates import SMALLEST_LEVEL
from dpaudit.verify.bounds.tradeoff import Tradeoff
from dpaudit.verify.results import PROMISED_POWER, AttackResult, AuditResult, Control, CurveTest, LowerBound

RESAMPLES = 200  # of a control's guesses
RATES = (0.1, 0.01, 0.001)  # those that so few trials can show
_SIMULATION_SEED = 0x5EA1


@dataclass(frozen=True)
class Guesses:
    """The game as it was played.

    Args:
        canaries: Coins thrown, in all runs.
        guesses: Fixed before any score was read.
        correct: How many were right.
    """

    canaries: int
    guesses: int
    correct: int


def judge(
    coins: SealedCoins,
    scores: Sequence[Path],
    claim: ClaimUnderTest,
    *,
    confidence: float = 0.95,
    planted: Sequence[Path] = (),
    queries: Sequence[Path] = (),
    control: Sequence[Path] = (),
    control_noise: float = 0.5,
    reference: Sequence[Path] = (),
    command: str = "",
) -> AuditResult:
    """Hold the scores of a planting against a claim.

    Every test rejects for many right guesses alone, so bound, claim and certified curve share one error probability
    (`one_run_p_value`). The number of guesses is half of the canaries, in every run as many in as out.

    A reference that does not depend on the coins changes no error probability: guesses by score less reference are a
    function of the training's output, as guesses by score are.

    Args:
        coins: From `load_coins`.
        scores: A file with the columns id and score for each run, in their order.
        claim: On adding or removing a record (with groups, all records of a user).
        confidence: Level in [0.5, 1 - 1e-9].
        planted: What the trainer was given, to be compared with what was sealed; () to go without.
        queries: What the trainer scored, likewise.
        control: Scores of the same queries by a training with less noise on the same data: the positive control.
        control_noise: Its noise, as a part of the claimed one.
        reference: Scores of the same queries by a model that saw none of what was planted, to be taken off all others;
            () to go without.
        command: How to repeat this, for the report.

    Raises:
        InputError: Scores of another planting or another run, an id twice or missing, files that are not those sealed,
            or a claim under whose adjacency the data with a canary and without it are no neighbours.
    """
    began = time.monotonic()
    if not 0.5 <= confidence <= 1.0 - SMALLEST_LEVEL:
        raise InputError(f"Expected confidence={confidence} in [0.5, 1 - {SMALLEST_LEVEL:g}].")
    check_coins_decide(claim)
    if coins.draw.group_size > 1 and claim.claim is not None and claim.claim.unit == "record":
        raise InputError("Expected a claim with unit = 'user': each canary is a user of several records.")
    if reference and coins.draw.every is not None:
        raise InputError("Expected a reference only with a coin for every canary.")
    for what, paths, sealed in (("data", planted, coins.data_sha256), ("queries", queries, coins.queries_sha256)):
        if paths and files_sha256(paths) != sealed:
            raise InputError(f"Expected the {what} {paths[0]} to be what was sealed, with SHA-256 {sealed}.")
    values = _scores(coins, scores, reference)
    game = _two_arms if coins.draw.every is not None else _one_run
    attack, rejected, hopeless = game(coins, values, claim, confidence)
    power = _power(coins, claim, confidence)
    positive = _control(coins, control, reference, claim, confidence, control_noise)
    notes = judgement_notes(coins, claim, attack, power)
    if hopeless:
        needed = None
        if coins.draw.every is None:
            needed = needed_canaries(_decider(claim, confidence))
        notes.append(hopeless_note(coins, claim, attack, needed))
    result = judgement_result(coins, scores, claim, confidence, attack, rejected, positive, notes, command, began)
    return _told_of_reference(result, reference)


def _scores(coins: SealedCoins, paths: Sequence[Path], reference: Sequence[Path]) -> Array:
    """Shape (runs, units), less the reference's where there is one."""
    values = _read_scores(coins, paths)
    if not reference:
        return values
    with np.errstate(invalid="ignore"):
        values = values - _read_scores(coins, reference)
    if np.isnan(values).any():
        raise InputError(f"Expected no canary to have the same infinite score in {paths[0]} and in {reference[0]}.")
    return values


def _read_scores(coins: SealedCoins, paths: Sequence[Path]) -> Array:
    """Shape (runs, units)."""
    draw = coins.draw
    if len(paths) != draw.runs:
        raise InputError(f"Expected a file of scores for each of {draw.runs} runs, not {len(paths)}.")
    ids = draw.ids()
    return np.stack(
        [unit_scores(read_scored_ids(path), ids[run], draw.group_size, str(path)) for run, path in enumerate(paths)]
    )


def _one_run(
    coins: SealedCoins, scores: Array, claim: ClaimUnderTest, confidence: float
) -> tuple[AttackResult, list[str], bool]:
    """Fair coins for every canary of every run: all runs together are one run with as many canaries.

    The trainings are independent, so flipping a coin changes the output of its run alone, and the exchange inequality
    of `verify/bounds/one_run.py` holds for the canaries of all of them.
    """
    included = coins.draw.included()
    if included.all() or not included.any():  # another planting costs no confidence: see `judged`
        raise InputError("Expected canaries on both sides of the coins: with so few, plant anew.")
    game = _guess(coins, scores)
    bound, best = _bound(game, claim, confidence), _bound(_all_right(game), claim, confidence)
    p_value, test = min(promise_p_value(claim, **asdict(game)) / judged(game.canaries), 1.0), None
    if claim.certified is not None:
        value = min(one_run_p_value(**asdict(game), curve=claim.certified) / judged(game.canaries), 1.0)
        test = guesses_against_curve(scores, included, asdict(game), value, confidence, claim.certified)
    inside, outside = scores[included], scores[~included]
    attack = _attack(
        coins, inside, outside, confidence,
        bound=bound, family=_family_bound(game, claim, confidence, bound), best=best.epsilon_lower, test=test,
        trials=game.canaries, p_value=p_value, **asdict(game),
    )  # fmt: skip
    rejected = _findings(bound, claim, p_value <= 1.0 - confidence)
    hopeless = not _decider(claim, confidence)(*astuple(_all_right(game)))
    return attack, rejected + ["curve_violation"] * (test is not None and test.violated), hopeless


def _findings(bound: LowerBound, claim: ClaimUnderTest, rejected: bool) -> list[str]:
    """What speaks against the promise: the bound where it is larger, else the test of the promise's whole curve."""
    return ["epsilon_lower"] if bound.epsilon_lower > claim.epsilon else ["p_value"] * rejected


def _two_arms(
    coins: SealedCoins, scores: Array, claim: ClaimUnderTest, confidence: float
) -> tuple[AttackResult, list[str], bool]:
    """One canary in some of many runs: the runs with it and those without are trials of their own."""
    included = coins.draw.included()[:, 0]
    inside, outside = scores[included, 0], scores[~included, 0]
    chosen = claim.certified or claim.stated
    seed = coins.draw.seed  # puts equal scores in an order: drawn, and before the scores, as it was sealed
    test = JointTest(inside, outside, chosen, confidence, seed)
    perfect = JointTest(np.ones(len(inside)), np.zeros(len(outside)), chosen, confidence, seed)
    bound, largest = (joint_bound(t, claim.delta, claim.epsilon) for t in (test, perfect))
    best = largest.epsilon_lower
    of_mechanism = None if claim.certified is None else curve_test(test, claim.certified)
    attack = _attack(
        coins, inside, outside, confidence,
        bound=bound, best=best, test=of_mechanism, trials=min(len(inside), len(outside)),
        p_value=test.p_value(claim.stated),
    )  # fmt: skip
    rejected = _findings(bound, claim, test.rejects(claim.stated))
    rejected += ["curve_violation"] * (of_mechanism is not None and of_mechanism.violated)
    possible = any(perfect.rejects(curve) for curve in _curves(claim))
    return attack, rejected, not possible and best <= claim.epsilon


def _guess(coins: SealedCoins, scores: Array) -> Guesses:
    draw, included = coins.draw, coins.draw.included()
    each = guesses_per_run(draw)
    correct = sum(correct_guesses(s, c, each // 2) for s, c in zip(scores, included, strict=True))
    return Guesses(draw.runs * draw.units, draw.runs * each, correct)


def _all_right(game: Guesses) -> Guesses:
    return Guesses(game.canaries, game.guesses, game.guesses)


def _bound(game: Guesses, claim: ClaimUnderTest, confidence: float) -> LowerBound:
    return one_run_bound(**asdict(game), delta=claim.delta, confidence=_level(game, confidence), promised=claim.epsilon)


def _family_bound(game: Guesses, claim: ClaimUnderTest, confidence: float, bound: LowerBound) -> LowerBound | None:
    """What they prove of a training with a Gaussian trade-off curve, as the claimed one; None if no more."""
    if not claim.gaussian:
        return None
    family = epsilon_one_run(**asdict(game), delta=claim.delta, confidence=_level(game, confidence), method="f-dp")
    return family if family.epsilon_lower > bound.epsilon_lower else None


def _level(game: Guesses, confidence: float) -> float:
    return confidence + (1.0 - confidence) * (1.0 - judged(game.canaries))  # the error probability times `judged`


def _curves(claim: ClaimUnderTest) -> list[Tradeoff]:
    """What the claim allows, each a reason to refute it: its promise, and the curve of its mechanism."""
    return [claim.stated] + ([] if claim.certified is None else [claim.certified])


def _attack(
    coins: SealedCoins, inside: Array, outside: Array, confidence: float, *, bound: LowerBound, best: float,
    test: CurveTest | None, trials: int, family: LowerBound | None = None, **details: Any,
) -> AttackResult:  # fmt: skip
    draw = coins.draw
    unit = "canary" if draw.group_size == 1 else f"user of {draw.group_size} canaries"
    pair = f"{unit} ({coins.kind}) put in by a fair coin, or left out"
    if draw.every is not None:
        pair = f"{unit} ({coins.kind}) in one of {draw.every} of {draw.runs} runs, or in the others"
    return AttackResult(
        name=NAME,
        epsilon_lower=bound.epsilon_lower,
        curve_violation=test if test is not None and test.violated else None,
        arms={"pair": pair, **({"coins": draw.runs * draw.units} if draw.every is None else {}), "runs": draw.runs},
        confidence_spent=1.0 - confidence,
        auc=auc(inside, outside),
        tpr_at_fpr={str(rate): tpr_at_fpr(inside, outside, rate) for rate in RATES if rate * len(outside) >= 1},
        trials=trials,
        best_possible_epsilon=best,
        bound=bound,
        family_bound=family,
        curve_test=test,
        roc=roc(inside, outside, confidence=confidence),
        details={"kind": coins.kind, "planted_in": coins.source, "commitment": coins.commitment, **details},
    )


def _power(coins: SealedCoins, claim: ClaimUnderTest, confidence: float) -> IdealPower | None:
    draw = coins.draw
    if draw.every is not None:
        return None
    return ideal_power(
        draw.units, guesses_per_run(draw), draw.runs, claim.epsilon, claim.delta, seed=_SIMULATION_SEED,
        refuted=_decider(claim, confidence),
        bound=lambda *counts: _bound(Guesses(*counts), claim, confidence),
    )  # fmt: skip


def _control(
    coins: SealedCoins, paths: Sequence[Path], reference: Sequence[Path], claim: ClaimUnderTest, confidence: float,
    noise_factor: float,
) -> Control | None:  # fmt: skip
    """The same judgement on a training known to lack noise; its right guesses are drawn again for the power."""
    if not paths:
        return None
    began = time.monotonic()
    if coins.draw.every is not None:
        raise InputError("Expected a control only with a coin for every canary.")
    if not 0.0 <= noise_factor < 1.0:
        raise InputError(f"Expected control noise={noise_factor} in [0, 1).")
    game = _guess(coins, _scores(coins, paths, reference))
    rng = np.random.default_rng(_SIMULATION_SEED)
    counts = rng.binomial(game.guesses, game.correct / game.guesses, RESAMPLES)
    refuted = _decider(claim, confidence)
    refuting = {int(c): refuted(game.canaries, game.guesses, int(c)) for c in set(counts)}
    power = float(np.mean([refuting[int(count)] for count in counts]))
    return Control(
        attack=NAME,
        training=f"the trainer's own {'with less' if noise_factor else 'without'} noise, on the same planted data",
        noise_factor=noise_factor,
        models=coins.draw.runs,
        trials=coins.draw.runs,
        resamples=RESAMPLES,
        power=power,
        found=power >= PROMISED_POWER,
        no_noise_trials=0,
        no_noise_found=refuted(*astuple(_all_right(game))),
        seed=_SIMULATION_SEED,
        seconds=time.monotonic() - began,
        unit="training",
    )


def _decider(claim: ClaimUnderTest, confidence: float) -> Refuted:
    """Whether counts refute the promise, or the curve of its mechanism."""
    curves = _curves(claim)

    def refuted(canaries: int, guesses: int, correct: int) -> bool:
        level = _level(Guesses(canaries, guesses, correct), confidence)
        return refutes(
            canaries, guesses, correct, epsilon=claim.epsilon, delta=claim.delta, confidence=level, curves=curves
        )

    return refuted


def _told_of_reference(result: AuditResult, reference: Sequence[Path]) -> AuditResult:
    """The result with the reference's hash, and what it must be."""
    if not reference:
        return result
    digest = files_sha256(reference)
    note = (
        f"Scores are less those of a reference, {reference[0]} (SHA-256 {digest}): what is found holds if that model "
        "saw neither the planted data nor the coins."
    )
    return replace(result, notes=[*result.notes, note], reproduce={**result.reproduce, "reference_sha256": digest})
