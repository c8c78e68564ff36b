"""Verification without a density: two samplers that should be hard to tell apart, and a classifier that tries.

Bichsel, Steffen, Bogunovic and Vechev (2021), "DP-Sniper": learn an event that separates the outputs, then bound its
two probabilities on samples that the learning never saw. Here learning, choice of the threshold and counting use
three disjoint samples, and a single event is counted, so the whole error probability goes into its two rates.
"""

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpaudit.verify.bounds import auc, choose_threshold, epsilon_from_counts
from dpaudit.verify.results import Verdict

Array = NDArray[np.float64]
Sampler = Callable[[np.random.Generator, int], Array]
Score = Callable[[Array], Array]


def check_sampler(
    sample_p: Sampler,
    sample_q: Sampler,
    *,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    trials: int = 20_000,
    confidence: float = 0.95,
    loss: Score | None = None,
) -> Verdict:
    """Try to refute (epsilon, delta) between two output distributions known only by sampling.

    Args:
        sample_p: (rng, size) -> outputs with the record, shape (size, n) or (size,).
        sample_q: The same without it; both directions are tested.
        epsilon: Claimed, >= 0.
        delta: Claimed, in [0, 1).
        rng: Source of all randomness.
        trials: Outputs counted from each side; half as many again train the score, a quarter chooses the threshold.
        confidence: Level of the verdict "refuted".
        loss: Output -> privacy loss, where it is known; otherwise a classifier is trained.

    Returns:
        "refuted" with `epsilon_lower`, or "undecided": sampling proves no privacy.
    """
    began = time.monotonic()
    if trials < 100:
        raise ValueError(f"Expected trials={trials} to be at least 100.")
    if not (math.isfinite(epsilon) and epsilon >= 0.0 and 0.0 <= delta < 1.0):
        raise ValueError(f"Expected epsilon={epsilon} in [0, inf) and delta={delta} in [0, 1).")
    samplers = (sample_p, sample_q)
    score = loss or _learn(*(_draw(sampler, rng, trials // 2) for sampler in samplers), rng=rng)
    chosen_p, chosen_q = (score(_draw(sampler, rng, trials // 4)) for sampler in samplers)
    threshold = choose_threshold(
        chosen_p, chosen_q, delta=delta, confidence=confidence, trials_in=trials, trials_out=trials
    )
    counted_p, counted_q = (score(_draw(sampler, rng, trials)) for sampler in samplers)
    tp, fp = int((counted_p > threshold).sum()), int((counted_q > threshold).sum())
    bound = epsilon_from_counts(tp=tp, fp=fp, tn=trials - fp, fn=trials - tp, delta=delta, confidence=confidence)
    refuted = bound.epsilon_lower > epsilon
    event = f"score > {threshold:.6g}: {tp} of {trials} with the record, {fp} of {trials} without"
    return Verdict(
        id="", verdict="refuted" if refuted else "undecided",
        reason=(f"epsilon is at least {bound.epsilon_lower:.4g} at confidence {confidence:g} ({event})" if refuted else
                f"sampling showed no more than epsilon {bound.epsilon_lower:.4g} ({event}); a proof needs a density"),
        epsilon_claimed=epsilon, delta_claimed=delta, epsilon_lower=bound.epsilon_lower, epsilon_upper=math.inf,
        delta_lower=0.0, delta_upper=1.0, confidence=confidence, sensitivity_ratio=None, witness=None,
        published_epsilon=None, methods=["monte-carlo"],
        assumptions=["outputs are drawn independently by the two samplers", event], seconds=time.monotonic() - began,
    )


def _draw(sampler: Sampler, rng: np.random.Generator, size: int) -> Array:
    """`size` outputs as rows.

    Raises:
        ValueError: The sampler returned another number of outputs, or NaN.
    """
    outputs = np.asarray(sampler(rng, size), dtype=np.float64)
    if len(outputs) != size or np.isnan(outputs).any():
        raise ValueError(f"Expected the sampler to return {size} outputs without NaN, not shape {outputs.shape}.")
    return outputs.reshape(size, -1)


def _learn(outputs_p: Array, outputs_q: Array, *, rng: np.random.Generator) -> Score:
    """The better of a linear and a boosted classifier, by AUC on a held-out third."""
    x = np.vstack([outputs_p, outputs_q])
    y = np.repeat([1, 0], [len(outputs_p), len(outputs_q)])
    order = rng.permutation(len(x))
    held, used = np.split(order, [len(order) // 3])
    candidates = (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, random_state=int(rng.integers(2**31))),
    )
    fitted = [model.fit(x[used], y[used]) for model in candidates]
    scores = [(lambda outputs, model=model: np.asarray(model.decision_function(outputs))) for model in fitted]
    inside, outside = x[held][y[held] == 1], x[held][y[held] == 0]
    return max(scores, key=lambda score: auc(score(inside), score(outside)))
