"""The canary game: two neighbouring data sets, many models of each, and what their scores prove."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import FEWEST, Audit, operating_points
from dpaudit.audit.power import SELECTION
from dpaudit.audit.trials.engine import Score, Scores, Trial, TrialSetup, trial_seed
from dpaudit.mechanisms.learning.spec import MinimumSpec, Pool
from dpaudit.verify.bounds import (
    best_possible_epsilon,
    choose_curve_threshold,
    choose_threshold,
    curve_violation,
    epsilon_from_counts,
)
from dpaudit.verify.results import AttackResult


@dataclass(frozen=True)
class Arms:
    """Two neighbouring data sets, as subsets of one pool.

    Args:
        pool: The records of both data sets.
        without: Members of the first, bool, shape (records,): the neighbour P is told apart from.
        with_canary: Members of the second.
        canary: The record whose presence is tested, x of shape (inputs,).
        label: Its label.
        description: The pair, for the report.
    """

    pool: Pool
    without: NDArray[np.bool_]
    with_canary: NDArray[np.bool_]
    canary: NDArray[np.float32]
    label: int
    description: dict[str, Any]

    def trials(self, models: int, seed: int) -> list[list[Trial]]:
        """Members and seed of every model, first those without the canary."""
        return [
            [(members, trial_seed(seed, arm, trial)) for trial in range(models)]
            for arm, members in enumerate((self.without, self.with_canary))
        ]


@dataclass(frozen=True)
class CanaryGame:
    """An attack that trains models on two neighbouring data sets and tells from a score which was used.

    Args:
        name: What its result and its tests are called.
        algorithms: Training algorithms that it applies to.
        build: From a specification and an audit to the two data sets, under the claim's own adjacency, and the score of
            a model, higher = with the canary.
        title: The name in a sentence.
        making: What is made of each data set, such as "Training models".
        note: What the result does and does not speak of, in a sentence.
        by_default: Whether it is carried out where the settings name no attacks.
    """

    name: str
    algorithms: tuple[str, ...]
    build: Callable[..., tuple[Arms, Score]]
    title: str
    making: str
    note: str
    by_default: bool = True

    def tests(self, audit: Audit) -> tuple[str, ...]:
        """The claimed (epsilon, delta), and the mechanism's whole curve."""
        if audit.spec.algorithm not in self.algorithms:
            return ()
        return f"{self.name}:epsilon_lower", f"{self.name}:curve_violation"

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """Play the game; None if it does not apply, or was stopped before there were models to judge by."""
        tests = self.tests(audit)
        if not tests:
            return None
        arms, setup = self.setup(audit)
        trials = arms.trials(audit.models_per_arm(min(shares[test] for test in tests)), audit.settings.seed)
        without, with_canary = audit.trials.run(setup, *trials, what=self.making)
        audit.notes.append(self.note)
        if len(without) < FEWEST:
            made = self.making.split()[-1]
            audit.notes.append(f"{self.title} was stopped after {len(without)} {made} per arm: too few for a bound.")
            return None
        return self.judge(audit, shares, arms, without, with_canary)

    def setup(self, audit: Audit) -> tuple[Arms, TrialSetup]:
        """The two data sets, and how their models are trained, from the same initial weights, and scored."""
        spec = audit.spec
        if not isinstance(spec, MinimumSpec):
            spec = replace(spec, init_seed=audit.settings.seed)
        arms, score = self.build(spec, audit)
        return arms, audit.trial_setup(spec, arms.pool, score)

    def judge(
        self, audit: Audit, shares: Mapping[str, float], arms: Arms, without: Scores, with_canary: Scores
    ) -> AttackResult:
        """Bounds from the scores of two arms: thresholds from the first part, counts from the rest."""
        delta, total = audit.claim_check.delta_claimed, len(without)
        chosen = max(2, int(SELECTION * total))
        counted = total - chosen
        selection, (inside, outside) = (
            (with_canary[part], without[part]) for part in (slice(None, chosen), slice(chosen, None))
        )
        sizes = {"trials_in": counted, "trials_out": counted}
        headline, curve = (1.0 - shares[test] for test in self.tests(audit))
        threshold = choose_threshold(*selection, delta=delta, confidence=headline, **sizes)
        tp, fp = (int((scores > threshold).sum()) for scores in (inside, outside))
        bound = replace(
            epsilon_from_counts(tp=tp, fp=fp, tn=counted - fp, fn=counted - tp, delta=delta, confidence=headline),
            threshold=threshold,
        )
        upper = audit.delta_upper
        curve_threshold = choose_curve_threshold(*selection, delta_upper=upper, confidence=curve, **sizes)
        test = curve_violation(inside, outside, threshold=curve_threshold, delta_upper=upper, confidence=curve)
        return AttackResult(
            name=self.name,
            epsilon_lower=bound.epsilon_lower,
            curve_violation=test if test.violated else None,
            arms=arms.description,
            confidence_spent=(1.0 - headline) + (1.0 - curve),
            trials=total,
            best_possible_epsilon=best_possible_epsilon(counted, counted, delta=delta, confidence=headline),
            bound=bound,
            curve_test=test,
            **operating_points(
                with_canary,
                without,
                confidence=audit.settings.confidence,
                selection_trials=chosen,
                counted_trials=counted,
            ),
        )
