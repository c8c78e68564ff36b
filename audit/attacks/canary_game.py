"""The canary game: two neighbouring data sets, many models of each, and what their scores prove."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import FEWEST, Audit, operating_points
from dpaudit.audit.trials.engine import Score, Scores, Trial, TrialSetup, trial_seed
from dpaudit.mechanisms.learning.spec import MinimumSpec, Pool
from dpaudit.verify.bounds import JointTest, Tradeoff
from dpaudit.verify.checking import check
from dpaudit.verify.results import AttackResult, CurveTest, LowerBound
from dpaudit.verify.upper import upper_curve

METHOD = "joint-test"
SOURCE = "quantile coupling with the least favourable pair of a trade-off curve (verify/bounds/joint_test.py)"


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
        """One: the claimed (epsilon, delta) and the mechanism's whole curve share its error probability."""
        if audit.spec.algorithm not in self.algorithms:
            return ()
        return (f"{self.name}:joint",)

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
        """What the scores of two arms prove, by one joint test with the attack's whole error probability."""
        ((_, share),) = ((test, shares[test]) for test in self.tests(audit))
        claimed, delta = audit.tradeoff(), audit.claim_check.delta_claimed
        test = JointTest(with_canary, without, claimed, confidence=1.0 - share, seed=audit.settings.seed)
        curve = curve_test(test, claimed)
        bound = lower_bound(test, delta)
        best = JointTest(np.ones(len(with_canary)), np.zeros(len(without)), claimed, test.confidence, test.seed)
        return AttackResult(
            name=self.name,
            epsilon_lower=bound.epsilon_lower,
            curve_violation=curve if curve.violated else None,
            arms=arms.description,
            confidence_spent=share,
            trials=len(without),
            best_possible_epsilon=best.epsilon_lower(delta),
            bound=bound,
            family_bound=family_bound(audit, test),
            curve_test=curve,
            **operating_points(with_canary, without, confidence=audit.settings.confidence),
        )


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


def lower_bound(test: JointTest, delta: float) -> LowerBound:
    """The largest epsilon whose (epsilon, delta) a joint test rejects, whatever made the scores."""
    return LowerBound(
        epsilon_lower=test.epsilon_lower(delta),
        delta=delta,
        confidence=test.confidence,
        method=METHOD,
        inputs={"trials_in": len(test.in_scores), "trials_out": len(test.out_scores)},
        source=SOURCE,
    )


def family_bound(audit: Audit, test: JointTest) -> LowerBound | None:
    """The same if the noise is of the claimed family: at most so much of it, so epsilon at least; None if none follows.

    The claim with every noise scale multiplied by one factor is rejected for all factors from some number on; the
    certified lower bound of the claim at that number is then a lower bound on epsilon.
    """
    scaled = audit.scaled_claim
    if scaled is None or audit.trials.stopped:
        return None
    factor = test.factor_upper(lambda factor: Tradeoff.of(upper_curve(scaled(factor))))
    if factor == np.inf:
        return None
    lower = check(scaled(factor)).epsilon_lower
    names = ", ".join(sorted({phase.mechanism.name for phase in scaled(1.0).phases}))
    return LowerBound(
        epsilon_lower=lower,
        delta=audit.claim_check.delta_claimed,
        confidence=test.confidence,
        method=METHOD,
        inputs={"noise_factor_upper": factor},
        source=SOURCE,
        assumes=f"noise of the claimed family ({names}) and sampling as claimed; only its scale is in question",
    )
