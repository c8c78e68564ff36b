"""Which bound on membership scores decides about a claim, by how the scores came about.

A decider takes scores, a claim or None, delta, a confidence and a seed, and tells the bound, whether the claim is
rejected, and the p-values of its curves; all of it shares one error probability.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from dpaudit.audit.claim_under_test import ClaimUnderTest
from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds import JointTest, Tradeoff, epsilon_one_run_curve, one_run_p_value, steinke_p_value
from dpaudit.verify.bounds.one_run import Method
from dpaudit.verify.results import CurveTest, LowerBound


class BoundedScores(Protocol):
    """Scores with the bounds of every design, as `dpaudit.audit.Scores` are."""

    def joint_test(self, claimed: Tradeoff, *, confidence: float, seed: int | None) -> JointTest:
        """The test of both arms against a claimed curve."""

    def epsilon_paired(self, *, delta: float, confidence: float) -> LowerBound:
        """The bound from which of each pair is higher."""

    def epsilon_one_run(self, *, delta: float, confidence: float, method: Method) -> LowerBound:
        """The bound from right guesses."""


def above_promise(bound: LowerBound, promised: float | None, rejects: Callable[[], bool]) -> LowerBound:
    """A bound that is above a promised epsilon wherever its test rejects that epsilon, by one unit in the last place.

    Inversions end at a tolerance, and have fewer draws than a verdict: they may stop at the promise or short of it.

    Proof. P(S) <= e^epsilon Q(S) + delta stays true where epsilon grows. So a training that does not keep
    (promised, delta) keeps (epsilon, delta) for no smaller epsilon: of all doubles the smallest that it keeps is the
    next one at least. That is wrong only where a true promise was rejected. For that and for the inversion a test has
    ONE error probability, as it rejects a larger curve only where it rejects the smaller one, and the curve of
    (epsilon, delta) grows with epsilon: `JointTest`, `epsilon_paired`, `one_run_p_value`; `steinke_p_value` by
    rejecting for many right guesses alone.

    Args:
        bound: By inversion of the test.
        promised: None for nothing.
        rejects: Whether the test rejects (promised, delta) itself, with the bound's error probability.

    >>> bound = LowerBound(2.4, 1e-5, 0.95, "paired", {}, "")
    >>> above_promise(bound, 2.5, lambda: True).epsilon_lower > 2.5, above_promise(bound, 2.5, lambda: False) == bound
    (True, True)
    """
    if promised is None or bound.epsilon_lower > promised or not rejects():
        return bound
    return replace(bound, epsilon_lower=math.nextafter(promised, math.inf))


def joint_bound(test: JointTest, delta: float, promised: float | None = None) -> LowerBound:
    """The largest epsilon that a joint test rejects at delta.

    Args:
        test: Of two arms.
        delta: In [0, 1).
        promised: An epsilon that is asked about for itself, with more draws than the search for the largest has.
    """
    bound = LowerBound(
        epsilon_lower=test.epsilon_lower(delta),
        delta=delta,
        confidence=test.confidence,
        method="joint-test",
        inputs={"trials_in": len(test.in_scores), "trials_out": len(test.out_scores), "seed": test.seed},
        source="Hsieh and Turnbull (1996), Theorem 2.2; see verify/bounds/joint_test.py",
    )
    return above_promise(
        bound, promised, lambda: promised is not None and test.rejects(Tradeoff.of_points([promised], [delta]))
    )


def guess_bounds(steinke: LowerBound, promised: float | None = None) -> list[LowerBound]:
    """Both bounds on right guesses in one run that assume nothing, each above what its own test rejects.

    Args:
        steinke: That of Steinke et al., which keeps the game.
        promised: An epsilon that is asked about for itself.
    """
    game, level, delta = guess_counts(steinke.inputs), 1.0 - steinke.confidence, steinke.delta
    curve = epsilon_one_run_curve(**game, delta=delta, confidence=steinke.confidence)
    if promised is None:
        return [steinke, curve]
    point = Tradeoff.of_points([promised], [delta])
    return [
        above_promise(steinke, promised, lambda: _steinke(promised, delta, **game) <= level),
        above_promise(curve, promised, lambda: one_run_p_value(**game, curve=point) <= level),
    ]


def guess_counts(inputs: Mapping[str, Any]) -> dict[str, int]:
    """The game among a one-run bound's inputs: how many canaries, guesses, and right ones."""
    return {name: int(inputs[name]) for name in ("canaries", "guesses", "correct")}


def _by_joint_test(
    scores: BoundedScores, claim: ClaimUnderTest | None, delta: float, confidence: float, seed: int | None
) -> dict[str, Any]:
    """Promise, certified curve and bound share one error probability."""
    certified = None if claim is None else claim.certified
    claimed = Tradeoff.of_points([1.0], [delta]) if claim is None else certified or claim.stated
    test = scores.joint_test(claimed, confidence=confidence, seed=seed)
    curves = _curves(claim)
    return {
        "bound": joint_bound(test, delta, None if claim is None else claim.epsilon),
        "rejected": any(test.rejects(curve) for curve in curves.values()),
        **{name: test.p_value(curve) for name, curve in curves.items()},
    }


def _by_pairs(
    scores: BoundedScores, claim: ClaimUnderTest | None, delta: float, confidence: float, seed: int | None
) -> dict[str, Any]:
    """All of them reject for many wins alone, and so share one error probability, as `one_run_p_value`."""
    bound = scores.epsilon_paired(delta=delta, confidence=confidence)
    wins, pairs = bound.inputs["wins"], bound.inputs["pairs"]

    def p_value(curve: Tradeoff) -> float:
        return float(bdtrc(wins - 1, pairs, min(curve.area, 1.0)))

    if claim is not None:
        point = Tradeoff.of_points([claim.epsilon], [delta])
        bound = above_promise(bound, claim.epsilon, lambda: p_value(point) <= 1.0 - confidence)
    values = {name: p_value(curve) for name, curve in _curves(claim).items()}
    return {"bound": bound, "rejected": any(value <= 1.0 - confidence for value in values.values()), **values}


def _by_one_run(
    scores: BoundedScores, claim: ClaimUnderTest | None, delta: float, confidence: float, seed: int | None
) -> dict[str, Any]:
    """All of them reject for many right guesses alone, and so share one error probability (`one_run_p_value`)."""
    counts = guess_counts(scores.epsilon_one_run(delta=delta, confidence=confidence, method="steinke").inputs)
    on_both, allowed = judged(counts["canaries"]), 1.0 - confidence
    confidence += (1.0 - confidence) * (1.0 - on_both)
    steinke = scores.epsilon_one_run(delta=delta, confidence=confidence, method="steinke")
    bounds = guess_bounds(steinke, None if claim is None else claim.epsilon)
    values = {name: one_run_p_value(**counts, curve=curve) for name, curve in _curves(claim).items()}
    if claim is not None:
        values["p_value"] = promise_p_value(claim, **counts)
    values = {name: min(value / on_both, 1.0) for name, value in values.items()}
    return {
        "bound": max(bounds, key=lambda bound: bound.epsilon_lower),
        "rejected": any(value <= allowed for value in values.values()),
        **values,
    }


def judged(canaries: int) -> float:
    """The probability that the coins of so many canaries fall on both sides, and the game is judged.

    Else it is refused and played anew, until one is judged. P(A | judged) <= P(A)/P(judged): a level times this keeps
    the level of the game that is judged in the end.
    """
    return 1.0 - 2.0 ** (1 - canaries)


def promise_p_value(claim: ClaimUnderTest, *, canaries: int, guesses: int, correct: int) -> float:
    """Of so many right guesses under what is promised, by the better of the two tests that assume nothing else."""
    plain = _steinke(claim.epsilon, claim.delta, canaries=canaries, guesses=guesses, correct=correct)
    return min(plain, one_run_p_value(canaries, guesses, correct, claim.stated))


def _steinke(epsilon: float, delta: float, *, canaries: int, guesses: int, correct: int) -> float:
    with np.errstate(over="ignore"):  # the logarithm of a probability that is 0
        return steinke_p_value(canaries, guesses, correct, epsilon=epsilon, delta=delta)


def curve_test(test: JointTest, claimed: Tradeoff) -> CurveTest:
    """The verdict of a joint test on a curve, with the event that shows most."""
    p_value = test.p_value(claimed)
    threshold, tp, fp = test.strongest_event(claimed)
    m, n = len(test.in_scores), len(test.out_scores)
    return CurveTest(
        violated=p_value <= test.alpha,
        p_value=p_value,
        confidence=test.confidence,
        threshold=threshold,
        fpr=fp / n,
        tpr=tp / m,
        tpr_allowed=float(claimed(fp / n)),
        inputs={"tp": tp, "fp": fp, "tn": n - fp, "fn": m - tp},
    )


def guesses_against_curve(
    scores: Array,
    included: NDArray[np.bool_],
    game: Mapping[str, int],
    p_value: float,
    confidence: float,
    curve: Tradeoff,
) -> CurveTest:
    """The test of a mechanism's certified curve by right guesses; shown by the better of its two events.

    Args:
        scores: Higher = member, shape (runs, canaries).
        included: How the coins fell, bool, the same shape.
        game: "canaries", "guesses" and "correct", in all runs; in each the highest and lowest scores were guessed.
        p_value: Of the game under the curve, of all games that share the error probability.
        confidence: Level in (0, 1).
        curve: Certified.
    """
    runs, canaries = scores.shape
    k, ordered = game["guesses"] // (2 * runs), np.argsort(-scores, axis=1, kind="stable")
    members, points = int(included.sum()), []
    for above in (k, canaries - k):  # whoever is guessed in, and whoever is not guessed out
        top = ordered[:, :above]
        tp = int(np.take_along_axis(included, top, axis=1).sum())
        threshold = float(np.take_along_axis(scores, top[:, -1:], axis=1).min())
        points.append(((top.size - tp) / (scores.size - members), tp / members, threshold))
    fpr, tpr, threshold = max(points, key=lambda point: point[1] - float(curve(point[0])))
    return CurveTest(
        violated=p_value <= 1.0 - confidence,
        p_value=p_value,
        confidence=confidence,
        threshold=threshold,
        fpr=fpr,
        tpr=tpr,
        tpr_allowed=float(curve(fpr)),
        inputs=dict(game),
    )


def _curves(claim: ClaimUnderTest | None) -> dict[str, Tradeoff]:
    """The curves that are tested, by the name of their p-value."""
    if claim is None:
        return {}
    certified = claim.certified
    return {"p_value": claim.stated} | ({} if certified is None else {"curve_p_value": certified})


DECIDERS: dict[str, Callable[..., dict[str, Any]]] = {
    "independent": _by_joint_test,
    "paired": _by_pairs,
    "one-run": _by_one_run,
}
