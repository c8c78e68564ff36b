"""Scores in, bounds out: what anybody's membership scores prove, by every bound that suits how they came about."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.audit.claim_under_test import ClaimUnderTest, check_coins_decide
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.score_deciders import DECIDERS, joint_bound
from dpaudit.audit.threshold_rules import Bonferroni, ThresholdRule, rule_or_usual
from dpaudit.mechanisms.base import SEED, Array, Domain, validate_function
from dpaudit.verify.bounds import (
    JointTest,
    Tradeoff,
    auc,
    auc_interval,
    band_at,
    epsilon_gdp,
    epsilon_paired,
    one_run_from_scores,
    roc,
    roc_band,
    tpr_at_fpr,
)
from dpaudit.verify.bounds.one_run import Method
from dpaudit.verify.bounds.rates import SMALLEST_LEVEL, valid_confidence, valid_count, valid_scores
from dpaudit.verify.guarantees import DELTA
from dpaudit.verify.results import LowerBound, to_json

FORMAT = "dpaudit-scores/1"
Design = Literal["independent", "paired", "one-run"]
DESIGNS: dict[str, str] = {
    "independent": "every score is of a training of its own, with the record or without it",
    "paired": "scores of a place are of two trainings that differ in the record alone; all trainings are independent",
    "one-run": "scores are of canaries of one training, put in or left out by independent fair coins",
}
FPRS = (0.1, 0.01, 0.001)
GUESSED = (0.5,)  # of the canaries of one run, declared in advance
SAMPLES = Domain(2, math.inf, (100, 1000), "samples", closed_low=True, integer=True)
RESAMPLES, FEWEST, MOST_DRAWS = 1000, 40, 10**8  # fewer samples where they are of millions of scores


@dataclass(frozen=True)
class Estimate:
    """A number without a guarantee: quantiles of a statistic over samples drawn again from the scores.

    Args:
        value: On the scores themselves.
        lower, upper: Quantiles.
        confidence: Between them, of the samples.
        resamples: How many.
        seed: Of the samples.
        kind: Says that it is no bound.
    """

    value: float
    lower: float
    upper: float
    confidence: float
    resamples: int
    seed: int
    kind: str = "bootstrap estimate, no bound"


@dataclass(frozen=True, eq=False)
class Scores:
    """Membership scores of two arms, higher = with the record.

    Which bounds they allow depends on how they came about, and a bound that does not suit is refused:

    - "independent": every score is of a training of its own (or of canaries that cannot disturb each other).
    - "paired": `inside[i]` and `outside[i]` are of two independent trainings, with noise of their own each, that differ
      in the record alone.
    - "one-run": canaries of ONE training, each put in by its own fair coin. They share a model, and only bounds that
      allow for every dependence hold: counting them as trials of their own accuses correct trainings.

    Args:
        inside: Scores with the record, shape (n,); infinities allowed.
        outside: Scores without it, shape (m,).
        design: How they came about.

    Raises:
        ValueError: Empty scores, NaN, another design, or pairs of different numbers.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(3.0, 1.0, 1000), rng.normal(0.0, 1.0, 1000))
    >>> bound = scores.epsilon_from_counts(delta=1e-5)
    >>> print(f"{bound.epsilon_lower:.1f} {scores.epsilon_gdp(delta=1e-5).epsilon_lower:.1f}")
    4.3 14.5
    """

    inside: ArrayLike
    outside: ArrayLike
    design: Design = "independent"
    _in: Array = field(init=False, repr=False)
    _out: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.design not in get_args(Design):
            raise ValueError(f"Expected design={self.design!r} to be {', '.join(map(repr, get_args(Design)))}.")
        object.__setattr__(self, "_in", valid_scores("inside", self.inside))
        object.__setattr__(self, "_out", valid_scores("outside", self.outside))
        if self.design == "paired" and len(self._in) != len(self._out):
            raise ValueError(f"Expected as many scores inside={len(self._in)} as outside={len(self._out)} in pairs.")

    def epsilon_from_counts(
        self, *, delta: float, confidence: float = 0.95, threshold: ThresholdRule | None = None
    ) -> LowerBound:
        """Clopper-Pearson by a threshold rule, `Bonferroni` unless another is given. Assumes no family of noise."""
        self._needs("independent")
        return rule_or_usual(threshold).bound(self._in, self._out, delta=delta, confidence=confidence)

    def epsilon_gdp(self, *, delta: float, confidence: float = 0.95, threshold: float | None = None) -> LowerBound:
        """By the Gaussian trade-off curve, which it assumes (`verify.bounds.epsilon_gdp`)."""
        self._needs("independent")
        return epsilon_gdp(self._in, self._out, delta=delta, confidence=confidence, threshold=threshold)

    def joint_test(self, claimed: Tradeoff, *, confidence: float = 0.95, seed: int | None) -> JointTest:
        """The test of both arms at every threshold at once, most powerful against a claimed curve (`JointTest`)."""
        self._needs("independent")
        return JointTest(self._in, self._out, claimed, confidence, seed)

    def epsilon_joint(
        self, *, delta: float, confidence: float = 0.95, seed: int | None, claimed: Tradeoff | None = None
    ) -> LowerBound:
        """By the joint test of every threshold at once: the largest epsilon that it rejects; assumes no family.

        Args:
            delta: In [0, 1).
            confidence: Level.
            seed: Of the test, chosen before the scores were seen; None where none was (`JointTest`).
            claimed: The curve to be powerful against, chosen before the scores were seen; None for that of
                epsilon = 1.
        """
        DELTA.validate("delta", delta)
        test = self.joint_test(claimed or Tradeoff.of_points([1.0], [delta]), confidence=confidence, seed=seed)
        return joint_bound(test, delta)

    def epsilon_paired(self, *, delta: float, confidence: float = 0.95) -> LowerBound:
        """By which of each pair is higher (`verify.bounds.epsilon_paired`)."""
        self._needs("paired")
        return epsilon_paired(self._in, self._out, delta=delta, confidence=confidence)

    def epsilon_one_run(self, *, delta: float, confidence: float = 0.95, method: Method = "steinke") -> LowerBound:
        """By the right guesses on half of the canaries, the extremes (`verify.bounds.one_run_from_scores`)."""
        self._needs("one-run")
        scores, coins = self._with_coins()
        return one_run_from_scores(
            scores, coins, delta=delta, confidence=confidence, fractions=GUESSED, method=method
        )  # fmt: skip

    def auc(self) -> float:
        """Area under the ROC curve of these scores."""
        return auc(self._in, self._out)

    def auc_interval(self, *, confidence: float = 0.95) -> tuple[float, float]:
        """Interval for the true area, valid for every number of scores (`verify.bounds.auc_interval`)."""
        self._needs("independent")
        return auc_interval(self.auc(), np.size(self._in), np.size(self._out), confidence=confidence)

    def roc_band(self, *, confidence: float = 0.95) -> dict[str, Any]:
        """A band that holds the whole true ROC curve (`verify.bounds.roc_band`)."""
        self._needs("independent")
        return roc_band(self._in, self._out, confidence=confidence)

    def tpr_at_fpr(self, fpr: float) -> float:
        """The largest TPR of a threshold whose FPR is at most `fpr`, on these scores."""
        return tpr_at_fpr(self._in, self._out, fpr)

    def bootstrap(
        self, statistic: "Callable[[Scores], float]", *, seed: int, confidence: float = 0.95,
        resamples: int = RESAMPLES,
    ) -> Estimate:  # fmt: skip
        """Quantiles of a statistic over samples drawn again from each arm: an estimate, no bound.

        Args:
            statistic: Of scores such as these, for example `Scores.auc`.
            seed: Of the samples.
            confidence: Between the quantiles.
            resamples: How many, at least 2.
        """
        self._needs("independent")
        validate_function("statistic", statistic, "scores -> number")
        SEED.validate("seed", seed)
        resamples = valid_count("resamples", resamples, SAMPLES)
        rng, tail = np.random.default_rng(seed), (1.0 - valid_confidence(confidence)) / 2.0
        arms = np.sort(self._in), np.sort(self._out)  # in order, as statistics need them
        again = (Scores(_drawn_again(arms[0], rng), _drawn_again(arms[1], rng)) for _ in range(resamples))
        values = [statistic(scores) for scores in again]
        lower, upper = np.quantile(values, [tail, 1.0 - tail])
        return Estimate(float(statistic(self)), float(lower), float(upper), confidence, resamples, seed)

    def judge(
        self, claim: ClaimUnderTest | None = None, *, delta: float | None = None, confidence: float = 0.95,
        seed: int | None, threshold: ThresholdRule | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Every bound that suits the design, and what they say of a claim, as `dpaudit scores --json` prints it.

        One of them is the headline, known before the scores are seen, and alone decides: the joint test, the pairs, or
        the one-run bound. The others hold at the stated confidence each for itself, not all at once.

        Args:
            claim: What was promised; None for bounds alone.
            delta: At which, where there is no claim.
            confidence: Of each bound.
            seed: Of the joint test, chosen before the scores were seen, and of the bootstrap. None where none was: then
                equal scores count against the evidence.
            threshold: Rule of the bound from counts.

        Raises:
            InputError: Neither a claim nor a delta, a claim on another adjacency, or a level of less than 1e-9.
        """
        if not 0.0 < confidence <= 1.0 - SMALLEST_LEVEL:
            raise InputError(f"Expected confidence={confidence} in (0, 1 - {SMALLEST_LEVEL:g}].")
        at = claim.delta if claim is not None else delta
        if at is None or not 0.0 <= at < 1.0:
            raise InputError(f"Expected delta={at} in [0, 1), by itself or with the claim.")
        at, confidence = float(at), float(confidence)
        if self.design == "one-run" and claim is not None:
            check_coins_decide(claim)
        found = DECIDERS[self.design](self, claim, at, confidence, seed)
        decided = {found["bound"].method: found["bound"]}
        bounds = decided | self._others(at, confidence, threshold) | decided
        refuted = claim is not None and (found["rejected"] or found["bound"].epsilon_lower > claim.epsilon)
        calculated = None if claim is None or claim.verdict is None else claim.verdict.verdict
        return {
            "format": FORMAT,
            "design": self.design,
            "supposes": DESIGNS[self.design],
            "scores_in": len(self._in),
            "scores_out": len(self._out),
            "claim": None if claim is None else claim.summary(),
            "verdict": None if claim is None else "refuted" if refuted or calculated == "refuted" else "not_refuted",
            "claim_check": calculated,
            "epsilon_lower": found["bound"].epsilon_lower,
            "decided_by": found["bound"].method,
            "p_value": found.get("p_value"),
            "curve_p_value": found.get("curve_p_value"),
            "delta": at,
            "confidence": confidence,
            "bounds": {name: to_json(bound) for name, bound in bounds.items()},
            "auc": {"value": self.auc(), **self._intervals(confidence, 0 if seed is None else seed)},
            "tpr_at_fpr": self._rates(confidence),
            "roc": self._curve(confidence),
            "seed": seed,
        }

    def _others(self, delta: float, confidence: float, threshold: ThresholdRule | None) -> dict[str, LowerBound]:
        """Bounds beside the one that decides."""
        settings: dict[str, Any] = {"delta": delta, "confidence": confidence}
        bounds: list[LowerBound] = []
        if self.design == "independent":
            rules = dict.fromkeys([Bonferroni(), rule_or_usual(threshold)])
            bounds += [self.epsilon_from_counts(**settings, threshold=rule) for rule in rules]
            bounds += [self.epsilon_gdp(**settings)] if delta > 0 else []
        if self.design == "one-run":
            bounds += [self.epsilon_one_run(**settings)]
            bounds += [self.epsilon_one_run(**settings, method="f-dp")] if delta > 0 else []
        return {bound.method: bound for bound in bounds}

    def _intervals(self, confidence: float, seed: int) -> dict[str, Any]:
        if self.design != "independent":
            return {}
        lower, upper = self.auc_interval(confidence=confidence)
        resamples = max(FEWEST, min(RESAMPLES, MOST_DRAWS // (len(self._in) + len(self._out))))
        estimate = self.bootstrap(Scores.auc, seed=seed, confidence=confidence, resamples=resamples)
        return {"lower": lower, "upper": upper, "estimate": asdict(estimate)}

    def _rates(self, confidence: float) -> dict[str, dict[str, float]]:
        rates = {str(fpr): {"value": self.tpr_at_fpr(fpr)} for fpr in FPRS}
        if self.design == "independent":
            band = self.roc_band(confidence=confidence)
            for fpr in FPRS:
                lower, upper = band_at(band, fpr)
                rates[str(fpr)].update(lower=lower, upper=upper)
        return rates

    def _curve(self, confidence: float) -> dict[str, Any]:
        points = roc(self._in, self._out, confidence=confidence)
        observed = {"fpr": points["fpr"], "tpr": points["tpr"]}
        return observed if self.design != "independent" else {**observed, "band": self.roc_band(confidence=confidence)}

    def _with_coins(self) -> tuple[Array, Any]:
        """Ranks of all scores, and who was in; among equal scores those that were in rank lower, so ties prove nothing.

        Any other order of equal scores has at least as many right guesses, also one that knows nothing of the coins.
        """
        values, coins = np.append(self._in, self._out), np.arange(len(self._in) + len(self._out)) < len(self._in)
        ranks = np.empty(len(values))
        ranks[np.lexsort((~coins, values))] = np.arange(len(values))
        return ranks, coins

    def _needs(self, design: Design) -> None:
        if self.design != design:
            raise ValueError(f"Expected design={self.design!r} to be {design!r}: for this, {DESIGNS[design]}.")


def _drawn_again(arm: Array, rng: np.random.Generator) -> Array:
    """As many scores of an arm in order, each by chance; in order again."""
    return np.repeat(arm, np.bincount(rng.integers(len(arm), size=len(arm)), minlength=len(arm)))
