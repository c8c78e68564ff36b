"""Verification without a density: two samplers that should be hard to tell apart, and a classifier that tries.

Bichsel, Steffen, Bogunovic and Vechev (2021), "DP-Sniper": learn an event that separates the outputs, then bound its
two probabilities on samples that the learning never saw. Here learning, choice of the threshold and counting use
three disjoint samples, and a single event is counted, so the whole error probability goes into its two rates.
"""

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dpaudit.mechanisms.base import Array, Domain, generator, usual_errors, validate_function
from dpaudit.verify.bounds import choose_threshold, epsilon_from_counts
from dpaudit.verify.bounds.rates import valid_confidence, valid_count, valid_scores
from dpaudit.verify.guarantees import DELTA, EPSILON
from dpaudit.verify.results import Verdict, down

Sampler = Callable[[np.random.Generator, int], Array]
Score = Callable[[Array], Array]

OUTPUTS = Domain(100, math.inf, (1_000, 100_000), "outputs from each side", closed_low=True, integer=True)
LARGEST_INTEGER = 2.0**53  # below which float64 holds every one
BLOCK = 5_000  # outputs held at a time while they are counted
REPEATED, VARYING = 64, 10  # outputs asked for twice; how many differ from the most frequent where that tells
QUARTILE_DISTANCE = 50.0  # quartile distances from the median beyond which the linear classifier sees no difference


@usual_errors()
def check_sampler(
    sample_p: Sampler,
    sample_q: Sampler,
    *,
    epsilon: float,
    delta: float,
    rng: np.random.Generator | int,
    trials: int = 20_000,
    confidence: float = 0.95,
    loss: Score | None = None,
) -> Verdict:
    """Try to refute (epsilon, delta) between two output distributions known only by sampling.

    For one event S = {score > t}, whose score and threshold come from other samples, epsilon_lower is the larger of
    log((P(S)_lower - delta)/Q(S)_upper) and the same for the complement in the other direction; delta_lower likewise
    from P(S)_lower - e^epsilon Q(S)_upper.

    A pair that does meet (epsilon, delta) in both directions is called refuted with probability at most
    1 - confidence: given score and threshold, the counts are binomial, and outside an event of that probability both
    Clopper-Pearson bounds hold, from which everything reported follows (see `epsilon_from_counts`).

    Args:
        sample_p: (rng, size) -> outputs with the record, independent of each other, shape (size, n) or (size,).
        sample_q: The same without it.
        epsilon: Claimed, >= 0.
        delta: Claimed, in [0, 1).
        rng: Source of all randomness, handed on to the samplers: a generator, or the seed of one.
        trials: Outputs counted from each side, at least 100; half as many again train the score, a quarter chooses the
            threshold.
        confidence: Level of the verdict "refuted" and of the lower bounds, in (0, 1).
        loss: Outputs of shape (size, n) -> privacy losses of shape (size,), where they are known; otherwise a
            classifier is trained.

    Returns:
        "refuted" with `epsilon_lower` and `delta_lower`, or "undecided": sampling proves no privacy.

    Raises:
        TypeError: A parameter is not a number, or a sampler or loss is no function.
        ValueError: A parameter is out of range, or a sampler or score returns another number of values, NaN, or
            integers that float64 does not hold; or a sampler returns the same outputs again.

    Source: Bichsel et al. (2021), "DP-Sniper"; Clopper and Pearson (1934).

    >>> def no_noise(rng, size): return np.ones(size)
    >>> def constant(rng, size): return np.zeros(size)
    >>> check_sampler(no_noise, constant, epsilon=5.0, delta=0.01, rng=np.random.default_rng(1)).verdict
    'refuted'
    """
    began = time.monotonic()
    EPSILON.validate("epsilon", epsilon)
    DELTA.validate("delta", delta)
    trials = valid_count("trials", trials, OUTPUTS)
    valid_confidence(confidence)
    for name, sampler in (("sample_p", sample_p), ("sample_q", sample_q)):
        validate_function(name, sampler, "(rng, size) -> outputs")
    if loss is not None:
        validate_function("loss", loss, "outputs -> privacy losses")
    rng = generator("rng", rng)
    samplers = (sample_p, sample_q)
    for sampler in samplers:
        _check_fresh(sampler, copy.deepcopy(rng), min(REPEATED, trials // 4))
    score = loss or _learn(*(_draw(s, rng, trials // 2) for s in samplers), delta=delta, rng=rng)
    chosen_p, chosen_q = (_scores(score, sampler, rng, trials // 4) for sampler in samplers)
    threshold = _cautious_threshold(chosen_p, chosen_q, delta, confidence)
    tp, fp = (int((_scores(score, sampler, rng, trials) > threshold).sum()) for sampler in samplers)
    bound = epsilon_from_counts(tp=tp, fp=fp, tn=trials - fp, fn=trials - tp, delta=delta, confidence=confidence)
    delta_lower = _delta_lower(bound.inputs["tpr_lower"], bound.inputs["fpr_upper"], epsilon)
    refuted = bound.epsilon_lower > epsilon
    event = f"score > {threshold:.6g}: {tp} of {trials} with the record, {fp} of {trials} without"
    proven = f"epsilon {down(bound.epsilon_lower, 4)} at delta {delta:g} and confidence {confidence:g} ({event})"
    reason = f"sampling proves at least {proven}"
    if not refuted:
        reason = f"sampling proves no more than {proven}; a proof of privacy needs a density"
    return Verdict(
        id="",
        verdict="refuted" if refuted else "undecided",
        reason=reason,
        epsilon_claimed=epsilon,
        delta_claimed=delta,
        epsilon_lower=bound.epsilon_lower,
        epsilon_upper=math.inf,
        delta_lower=delta_lower,
        delta_upper=1.0,
        confidence=confidence,
        sensitivity_ratio=None,
        witness=None,
        published_epsilon=None,
        methods=["monte-carlo"],
        assumptions=["each sampler's outputs are independent draws of one distribution", event],
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _delta_lower(tpr_lower: float, fpr_upper: float, epsilon: float) -> float:
    """The larger of P - e^epsilon Q for the event and for its complement in the other direction."""
    factor = math.exp(min(epsilon, 700.0))
    return max(0.0, tpr_lower - factor * fpr_upper, (1.0 - fpr_upper) - factor * (1.0 - tpr_lower))


def _check_fresh(sampler: Sampler, rng: np.random.Generator, size: int) -> None:
    """Refuse a sampler that seeds itself: the same outputs again are no evidence.

    Independent outputs of any one law come again, so many of them different, with probability below 1e-6.
    """
    first, again = (_draw(sampler, rng, size) for _ in range(2))
    varying = size - np.unique(first, axis=0, return_counts=True)[1].max()
    if varying >= VARYING and np.array_equal(first, again):
        raise ValueError("Expected the sampler to draw from rng: it returned the same outputs again.")


def _draw(sampler: Sampler, rng: np.random.Generator, size: int) -> Array:
    """`size` outputs as rows, a copy: the sampler may use its memory again.

    Raises:
        ValueError: The sampler returned another number of outputs, NaN, or integers that float64 does not hold.
    """
    returned: Any = sampler(rng, size)
    given = np.asanyarray(returned)
    masked = np.ma.is_masked(given) or (isinstance(returned, (list, tuple)) and any(map(np.ma.is_masked, returned)))
    if given.dtype.kind not in "biufO" or masked:
        what = "masked ones" if masked else f"outputs of type {given.dtype}"
        raise ValueError(f"Expected the sampler to return real numbers, not {what}.")
    outputs = np.array(given, dtype=np.float64)
    if outputs.ndim == 0 or len(outputs) != size or np.isnan(outputs).any():
        raise ValueError(f"Expected the sampler to return {size} outputs without NaN, not shape {outputs.shape}.")
    largest = float(np.abs(outputs).max(initial=0.0))
    if given.dtype.kind in "iuO" and largest >= LARGEST_INTEGER:
        raise ValueError(
            f"Expected the sampler to return integers below 2^53 in size, which float64 holds, not {largest:.0f}."
        )
    return outputs.reshape(size, -1)


def _scores(score: Score, sampler: Sampler, rng: np.random.Generator, size: int) -> Array:
    """Scores of `size` fresh outputs, a block of them at a time."""
    scores = np.concatenate(
        [np.ravel(score(_draw(sampler, rng, min(BLOCK, size - start)))) for start in range(0, size, BLOCK)]
    )
    if len(scores) != size:
        raise ValueError(f"Expected {size} scores of {size} outputs, one each, not {len(scores)}.")
    return valid_scores("scores", scores)


def _learn(outputs_p: Array, outputs_q: Array, *, delta: float, rng: np.random.Generator) -> Score:
    """The better of a linear and a boosted classifier, by the epsilon that it would prove, on a held-out third."""
    # imported here: a second that `import dpaudit.verify` need not take
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    x, y = np.vstack([outputs_p, outputs_q]), np.repeat([1, 0], [len(outputs_p), len(outputs_q)])
    largest = np.finfo(np.float32).max  # what the boosted trees can hold
    order = rng.permutation(len(x))
    held, used = np.split(order, [len(order) // 3])
    low, middle, high = np.quantile(np.clip(x[used], -largest, largest), [0.25, 0.5, 0.75], axis=0)
    width = np.where(high > low, high - low, 1.0)

    def scaled(outputs: Array) -> Array:
        return np.asarray(
            np.clip((np.clip(outputs, -largest, largest) - middle) / width, -QUARTILE_DISTANCE, QUARTILE_DISTANCE)
        )

    boosted = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, random_state=int(rng.integers(2**31)))
    scores: list[Score] = [
        make_pipeline(FunctionTransformer(scaled), model).fit(x[used], y[used]).decision_function
        for model in (LogisticRegression(max_iter=500), boosted)
    ]

    def promise(score: Score) -> float:
        inside, outside = score(x[held][y[held] == 1]), score(x[held][y[held] == 0])
        threshold = _cautious_threshold(inside, outside, delta, 0.95)
        tp, fp = (int((side > threshold).sum()) for side in (inside, outside))
        fn, tn = len(inside) - tp, len(outside) - fp
        return epsilon_from_counts(tp=tp, fp=fp, tn=tn, fn=fn, delta=delta, confidence=0.95).epsilon_lower

    return max(scores, key=promise)


def _cautious_threshold(inside: Array, outside: Array, delta: float, confidence: float) -> float:
    """The threshold with the best bound as if these very samples were counted, and not the larger ones that will be.

    The wider bounds weigh the tails by how little is known about them here; those of the larger sample would make the
    luckiest of many empty tails look best.
    """
    sizes = {"trials_in": len(inside), "trials_out": len(outside)}
    return choose_threshold(inside, outside, delta=delta, confidence=confidence, **sizes)
