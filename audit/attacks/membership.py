"""Black-box membership inference on one model by the loss of each record.

Yeom, Giacomelli, Fredrikson and Jha (2018), "Privacy Risk in Machine Learning": records a model was trained on
tend to have a smaller loss. On a single model this proves an epsilon only where membership was drawn by fair,
recorded coins; otherwise it describes, and proves nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import Array, Audit, operating_points, spent_at
from dpaudit.audit.claim_under_test import ClaimUnderTest
from dpaudit.audit.score_deciders import above_promise, guess_counts, guesses_against_curve, promise_p_value
from dpaudit.mechanisms.base import NormalCoordinates
from dpaudit.mechanisms.learning.spec import SPECS, ApproximateMinimaSpec
from dpaudit.mechanisms.learning.training import logits
from dpaudit.verify.bounds import auc, one_run_from_scores, one_run_p_value, tpr_at_fpr
from dpaudit.verify.results import AttackResult, CurveTest, LowerBound

NOBODY = "Without coins or test records there was nobody to tell members of the model's training from."


def negative_loss(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> Array:
    """Score of each record: log p_y, the negative cross-entropy, higher = member.

    Args:
        logits: Shape (records, classes).
        labels: Shape (records,).
    """
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    picked = values[np.arange(len(labels)), labels]
    return np.asarray(picked - np.log(np.exp(values).sum(axis=1)))


def one_run_tests(name: str, audit: Audit) -> tuple[str, ...]:
    """The test that an attack of this name makes on the model as given: one where fair coins allow a bound.

    Only where the settings name the attack: the error probability is better spent on the canary game, which trains as
    many models as it needs.
    """
    return (f"{name}:epsilon_lower",) if audit.bundle.one_run and name in audit.settings.attacks else ()


def is_gaussian(audit: Audit) -> bool:
    """Whether the claimed history has a Gaussian trade-off curve, which is what the f-DP bound supposes.

    Releases with independent normal noise and all records have one together.
    """
    recipe = audit.bundle.recipe
    normal = all(
        isinstance(phase.mechanism.structure, NormalCoordinates) and phase.sampling_prob == 1 and phase.sampler is None
        for phase in recipe.phases()
    )
    # there the noise is not on what is released
    released = recipe.algorithm != ApproximateMinimaSpec.algorithm
    return normal and released and audit.claim_check.delta_claimed > 0


def one_model_result(
    name: str,
    audit: Audit,
    shares: Mapping[str, float],
    scores: Array,
    members: NDArray[np.bool_],
    *,
    missing: int = 0,
    **details: Any,
) -> AttackResult:
    """What the scores of some records of one model show, and prove where fair coins decided who is a member.

    Args:
        name: The attack's.
        audit: Of the model.
        shares: Error probability of `one_run_tests`.
        scores: Higher = member, shape (records,); with coins those of the coins' records, in their order.
        members: Which of them the model was trained on, bool, shape (records,).
        missing: How many shadow models there was no time for.
        details: Kept in the result.
    """
    coins = audit.bundle.coins
    pair = "audit records that fair coins put in, and those they left out"
    arms = {
        "pair": pair if coins else "training records, and test records the model never saw",
        "coins": len(coins.records) if coins else 0,
    }
    tests = one_run_tests(name, audit)
    share, look = sum(shares[test] for test in tests), audit.look_at_coins(missing) if tests else 1
    return scored_result(name, audit, share, scores, members, arms, look=look, **details)


def _one_run_bound(audit: Audit, scores: Array, members: NDArray[np.bool_], share: float) -> LowerBound:
    """Above the claimed epsilon where a test of right guesses that assumes nothing rejects that itself."""
    promise = ClaimUnderTest(audit.claim_check.epsilon_claimed, audit.claim_check.delta_claimed)
    bound = one_run_from_scores(scores, members, delta=promise.delta, confidence=1.0 - share)

    def rejects() -> bool:
        games = _games(bound)
        return any(len(games) * promise_p_value(promise, **game) <= 1.0 - bound.confidence for game in games)

    return above_promise(bound, promise.epsilon, rejects)


def family_of_guesses(audit: Audit, scores: Array, members: NDArray[np.bool_], bound: LowerBound) -> LowerBound | None:
    """What the same guesses prove of a training with a Gaussian trade-off curve, as the claimed one; None if no more.

    It rejects for many right guesses alone, and so shares the error probability of the other tests. A training that
    keeps its promise in another way may not have such a curve: it contradicts the mechanism, not the promise.
    """
    if not is_gaussian(audit):
        return None
    settings: dict[str, Any] = {"delta": bound.delta, "confidence": bound.confidence, "method": "f-dp"}
    family = one_run_from_scores(scores, members, **settings)
    return family if family.epsilon_lower > bound.epsilon_lower else None


def _games(bound: LowerBound) -> list[dict[str, int]]:
    """Each number of guesses that share the error probability of a bound."""
    return [guess_counts(game) for game in bound.inputs["family"]]


def one_run_findings(
    audit: Audit, scores: Array, members: NDArray[np.bool_], share: float
) -> tuple[LowerBound, CurveTest]:
    """A bound on epsilon, and the test of the mechanism's certified curve, by guesses of fair coins.

    Each number of guesses has its part of the error probability for both: every test of it rejects for many right
    guesses alone (`one_run_p_value`).

    Args:
        audit: What is attacked.
        scores: Higher = member, shape (records,).
        members: How the coins fell, bool, shape (records,).
        share: Error probability.
    """
    bound = _one_run_bound(audit, scores, members, share)
    games = _games(bound)
    values = [one_run_p_value(**game, curve=audit.tradeoff) for game in games]
    best = int(np.argmin(values))
    p_value = min(len(games) * values[best], 1.0)
    test = guesses_against_curve(scores[None], members[None], games[best], p_value, 1.0 - share, audit.tradeoff)
    return bound, test


def scored_result(
    name: str,
    audit: Audit,
    share: float,
    scores: Array,
    members: NDArray[np.bool_],
    arms: dict[str, Any],
    *,
    look: int = 1,
    **details: Any,
) -> AttackResult:
    """Operating points of the scores of one model, and what they prove where there is error probability for it.

    Args:
        name: The attack's.
        audit: What is attacked.
        share: Error probability, over all looks together; 0 for none. Positive only where `members` fell by fair coins.
        scores: Higher = member, shape (records,).
        members: Which of them the model was trained on, bool, shape (records,).
        arms: Who is told from whom.
        look: How often these coins have been guessed, this time included.
        details: Kept in the result.
    """
    bound = family = best = test = None
    if share:
        bound, test = one_run_findings(audit, scores, members, spent_at(share, look))
        family = family_of_guesses(audit, scores, members, bound)
        best = _one_run_bound(audit, members.astype(np.float64), members, spent_at(share, look)).epsilon_lower
        details["look"] = look
    inside, outside = scores[members], scores[~members]
    return AttackResult(
        name=name,
        epsilon_lower=None if bound is None else bound.epsilon_lower,
        curve_violation=test if test is not None and test.violated else None,
        arms=arms,
        confidence_spent=share,
        trials=min(len(inside), len(outside)),
        best_possible_epsilon=best,
        bound=bound,
        family_bound=family,
        curve_test=test,
        **operating_points(
            inside,
            outside,
            confidence=audit.settings.confidence,
            members=len(inside),
            non_members=len(outside),
            **details,
        ),
    )


def loss_scores(audit: Audit) -> tuple[Array, NDArray[np.int64], NDArray[np.bool_]] | None:
    """Score, label and membership of every audit record, or of all training and test records where there are no coins.

    None, and a note, where there is nobody to tell members from.
    """
    data, coins = audit.dataset, audit.bundle.coins
    models = audit.bundle.models(audit.spec)
    scores = negative_loss(logits(models, data.x)[0].numpy(), data.y)
    if coins is not None:
        coins.check_sides()
        return scores[coins.records], data.y[coins.records], coins.included
    if not len(data.y_test):
        audit.notes.append(NOBODY)
        return None
    others = negative_loss(logits(models, data.x_test)[0].numpy(), data.y_test)
    members = np.arange(len(scores) + len(others)) < len(scores)
    return np.append(scores, others), np.append(data.y, data.y_test), members


@dataclass(frozen=True)
class LossThreshold:
    """Membership inference by the loss of each record, on the model as given."""

    name: str = "membership"
    algorithms: tuple[str, ...] = tuple(SPECS)
    by_default: bool = True

    def tests(self, audit: Audit) -> tuple[str, ...]:
        """The one-run bound, where coins were recorded."""
        return one_run_tests(self.name, audit)

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """Score every audit record, or all training and test records where there are no coins; None without either."""
        found = loss_scores(audit)
        if found is None:
            return None
        scores, _, members = found
        return one_model_result(self.name, audit, shares, scores, members)


def within_class(scores: Array, labels: NDArray[np.int64]) -> Array:
    """Scores less the median of their class, over the median distance from it where that is not 0.

    So one threshold for all is a threshold per class. Median and distance are those of all records in question,
    whoever is a member: what they say of the coins, the model's outputs say.

    Args:
        scores: Higher = member, shape (records,).
        labels: Shape (records,).

    >>> within_class(np.array([1.0, 3.0, 10.0, 14.0]), np.array([0, 0, 1, 1]))
    array([-1.,  1., -1.,  1.])
    """
    centred = np.zeros(len(scores))
    for label in np.unique(labels):
        part = labels == label
        centred[part] = scores[part] - np.median(scores[part])
        spread = np.median(np.abs(centred[part]))
        centred[part] /= spread if spread > 0 else 1.0
    return centred


def class_rates(scores: Array, labels: NDArray[np.int64], members: NDArray[np.bool_]) -> dict[str, dict[str, Any]]:
    """AUC and TPR at 1% FPR of every class that has members and others, by its label."""
    rates = {}
    for label in np.unique(labels):
        inside, outside = (scores[(labels == label) & side] for side in (members, ~members))
        if len(inside) and len(outside):
            points = {"auc": auc(inside, outside), "tpr_at_0.01": tpr_at_fpr(inside, outside, 0.01)}
            rates[str(label)] = {**points, "members": len(inside), "non_members": len(outside)}
    return rates


@dataclass(frozen=True)
class ClassLossThreshold(LossThreshold):
    """Membership inference by the loss with a threshold for each class (Song and Mittal 2021, Section 3.1)."""

    name: str = "class-loss"
    by_default: bool = False  # it shares the error probability, which would weaken the tests of the attacks that do

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """Score records by their losses within their class; rates of every class are in the details."""
        found = loss_scores(audit)
        if found is None:
            return None
        scores, labels, members = found
        classes = class_rates(scores, labels, members)
        return one_model_result(self.name, audit, shares, within_class(scores, labels), members, classes=classes)


MEMBERSHIP = LossThreshold()
CLASS_LOSS = ClassLossThreshold()
