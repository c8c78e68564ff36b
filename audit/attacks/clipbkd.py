"""ClipBKD: one poisoned record whose clipped gradient points where no other record's does.

Jagielski, Ullman and Oprea (2020), "Auditing Differentially Private Machine Learning", Algorithm 2. The canary
lies along the direction of least variance of the data, so that nothing but the noise hides whether it was trained on.
Its label and sign are those that the network finds least likely, at the first weights, which the audit knows, and
after training on the other records: a canary that is learned already has no gradient. Its length is tried out by a
pilot: a short one is not clipped, a long one is learned in a few steps. So are canaries whose features are all of one
size: where records are clipped in another norm than was accounted, they are the longest that pass. And so is the label
that moves a few models most: where one class is not clipped, only a canary of that class shows it. Among sentences a
canary is one of words that no other record has (`text_canaries`), and the pilot chooses one of a few.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.arms import Arms, Candidate
from dpaudit.audit.attacks.base import Audit, check_places
from dpaudit.audit.attacks.canary_game import CanaryGame
from dpaudit.audit.attacks.control import piloted, takes_noise_factor
from dpaudit.audit.attacks.released_steps import StepCount, StepWatch, can_watch, released_ratio
from dpaudit.audit.attacks.starts import flat_weights, log_odds, unlikely, weights_without_noise, with_first_weights
from dpaudit.audit.attacks.text_canaries import sentence_canary
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.user_code import trains_one_model
from dpaudit.audit.trials.engine import Score, trial_seed
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.spec import DPFTRLSpec, DPSGDSpec, GradientSpec, Pool, TrainedModels
from dpaudit.mechanisms.learning.training import logits
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.results import CONTROLLED_NOISE

PAIRS = {
    "add-remove": "the training records, with and without one canary",
    "zero-out": "record 0 replaced by the canary or by a ghost that contributes 0",
    "replace-one": "record 0 replaced by the canary with one label or the other",
}
LENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0)  # of canaries, times the clip where that is above 1
SPREAD_LENGTHS = LENGTHS[1:4]  # of those with all features of one size
LARGEST_CLIP = float(np.sqrt(np.finfo(np.float32).max)) / LENGTHS[-1]
RELEASES = "likelihood ratio, from every release"
SCREENED_LENGTH, SCREENED_LABELS, SCREENED_PAIRS = LENGTHS[1], 10, 3  # of canaries, the least likely; models per arm
_SENTENCES, _STEPS, _LABELS = 108, 109, 110  # streams of seeds


def least_direction(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The unit direction of least second moment of the rows of x, shape (inputs,).

    A feature that is zero in every record is such a direction exactly, and is preferred: the right singular
    vectors of a null space differ from one linear-algebra library to the next, a unit vector does not.

    >>> least_direction(np.array([[1.0, 0.0], [2.0, 0.0]], dtype=np.float32))
    array([0., 1.])
    """
    silent = np.flatnonzero(~x.any(axis=0))
    direction = np.zeros(x.shape[1])
    if silent.size:
        direction[silent[0]] = 1.0
        return direction
    gram = x.astype(np.float64).T @ x.astype(np.float64)
    direction = np.linalg.eigh(gram)[1][:, 0]
    return np.asarray(direction * np.sign(direction[np.argmax(np.abs(direction))]))


def spread_direction(x: NDArray[np.float32], least: NDArray[np.float64]) -> NDArray[np.float64]:
    """A unit direction of equal sizes in all features, of little second moment of the rows of x, shape (inputs,).

    Of all directions of one l2 norm it has the least l_p norm for every p above 2, and so the longest gradient that
    clipping in such a norm lets through. Its signs are those of the direction of least second moment, each turned where
    that lowers the second moment until none does.

    >>> x = np.array([[1.0, 1.0], [2.0, 2.0]], dtype=np.float32)
    >>> spread_direction(x, least_direction(x)).round(3).tolist()
    [0.707, -0.707]
    """
    gram = x.astype(np.float64).T @ x.astype(np.float64)
    signs = np.where(least < 0, -1.0, 1.0)
    along, diagonal = gram @ signs, np.diag(gram)
    for _ in range(100 * len(signs)):  # each turn lowers the moment; rounding alone could go on
        gain = signs * along - diagonal
        turned = int(gain.argmax())
        if gain[turned] <= 1e-9 * diagonal.sum():
            break
        signs[turned] *= -1.0
        along += 2.0 * signs[turned] * gram[:, turned]
    return np.asarray(signs / np.sqrt(len(signs)))


def make_arms(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    canary: NDArray[np.float32],
    label: int,
    other: int,
    *,
    adjacency: Adjacency,
    same_size: bool = False,
) -> Arms:
    """Two data sets that are neighbours under the claim's own adjacency, and differ in one canary.

    Under add-remove: the records, and the records plus the canary; where the size of the data set matters, the records
    but the first, and those plus the canary. Under zero-out the canary takes the place of the
    first record, or a ghost does, which contributes nothing and keeps the place. Under replace-one: the first record is
    replaced by the canary with one label, or by the same canary with another. Flipped labels are replace-one
    neighbours, so they test no add-remove claim.

    Args:
        x: Training records, shape (records, inputs).
        y: Labels, shape (records,), in 0..classes-1.
        canary: Shape (inputs,).
        label: Of the canary.
        other: Its label in the data set that it is told apart from, under replace-one.
        adjacency: The claim's.
        same_size: Whether the data set with the canary has as many records as there are, as a loader of the user's own
            needs: one more would give a pass of 200 records in batches of 100 a third batch.
    """
    n, common = len(x), _described(x, canary, label, adjacency)
    if adjacency == "add-remove" and not same_size:
        pool = Pool(np.vstack([x, canary]), np.append(y, label))
        without = np.append(np.ones(n, dtype=bool), False)
        return Arms(
            pool,
            without,
            np.ones(n + 1, dtype=bool),
            canary,
            label,
            {**common, "pair": PAIRS[adjacency]},
        )
    if adjacency != "replace-one":
        pool = Pool(np.vstack([canary, x[1:]]), np.append(label, y[1:]))
        removed = "the training records but record 0, with and without one canary"
        described = {**common, "pair": removed if same_size else PAIRS["zero-out"]}
        return Arms(pool, np.arange(n) > 0, np.ones(n, dtype=bool), canary, label, described)
    pool = Pool(np.vstack([x, canary, canary]), np.append(y, [label, other]))
    keep = np.ones(n, dtype=bool)
    keep[0] = False
    return Arms(
        pool,
        np.append(keep, [False, True]),
        np.append(keep, [True, False]),
        canary,
        label,
        {**common, "other_label": other, "pair": PAIRS[adjacency]},
    )


def arms_in_order(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    canary: NDArray[np.float32],
    label: int,
    other: int,
    *,
    adjacency: Adjacency,
    batches: int,
) -> Arms:
    """Two neighbours as of `make_arms`, for batches in a fixed public order: the canary is in the first of a pass.

    That one enters most nodes of a tree. Records are repeated until their rounds are whole; the canary comes behind
    them, and what replaces it a round later, nobody between: no other record moves, whether a loop counts the places of
    the pool or of those that train.

    Args:
        x, y, canary, label, other, adjacency: As of `make_arms`.
        batches: Of one pass, at least 1: record i is in batch i mod `batches`.
    """
    replaced = adjacency == "replace-one"
    kept = np.arange(adjacency != "add-remove", len(x))
    kept = np.append(kept, np.resize(kept, -len(kept) % batches))
    rest, behind = len(kept), 1 + (batches if replaced else 0)
    labels = np.full(behind, label)
    labels[-1] = other if replaced else label
    pool = Pool(np.vstack([x[kept], np.repeat(canary[None], behind, axis=0)]), np.append(y[kept], labels))
    without = np.arange(len(pool.y)) < rest
    with_canary = without.copy()
    with_canary[rest], without[-1] = True, replaced
    described = {**_described(x, canary, label, adjacency), "records": rest, "pair": PAIRS[adjacency]}
    return Arms(pool, without, with_canary, canary, label, described | ({"other_label": other} if replaced else {}))


def _described(x: NDArray[np.float32], canary: NDArray[np.float32], label: int, adjacency: Adjacency) -> dict[str, Any]:
    """The canary in the words of a report."""
    direction = "least second moment"
    if len(canary) > 1 and np.ptp(np.abs(canary)) == 0:
        direction = "all features of one size"
    elif not x[:, canary != 0].any():
        direction = "a feature that is zero in every record"
    return {
        "adjacency": adjacency,
        "records": len(x),
        "canary_length": float(np.linalg.norm(canary)),
        "canary_label": label,
        "direction": direction,
    }


def canary_score(
    models: TrainedModels, canary: NDArray[np.float32], label: int, other: int | None = None
) -> NDArray[np.float64]:
    """Log-odds of the canary's label at the canary, one per model, from the models' outputs alone.

    Args:
        models: Trained with the canary or not.
        canary: Shape (inputs,).
        label: Its label.
        other: The label that it has in the other data set; its log-odds are subtracted.
    """
    outputs = logits(models, canary[None, :])[:, 0, :].numpy()
    return margin(outputs, label) - (0.0 if other is None else margin(outputs, other))


def margin(outputs: NDArray[np.float32], label: int) -> NDArray[np.float64]:
    """Score of each model: log-odds of `label` at the canary, log p_y - log(1 - p_y), higher = trained on it.

    Args:
        outputs: Logits, shape (models, classes).
        label: The canary's label.
    """
    return np.asarray(log_odds(outputs.astype(np.float64))[:, label])


def release_score(
    models: TrainedModels, mechanism: Mechanism, without: NDArray[np.float64], shift: NDArray[np.float64], unit: float
) -> NDArray[np.float64]:
    """log dP/dQ of the one noisy sum that the final weights reveal, P with the canary: no score is better.

    Args:
        models: After one step on all members, so that weights = weights without noise - unit noise.
        mechanism: The noise.
        without: The weights without canary and noise, flat.
        shift: What the canary adds to the sum.
        unit: Learning rate over expected batch size.
    """
    return np.asarray(mechanism.privacy_loss((without - flat_weights(models)) / unit, shift))


def _candidates(spec: GradientSpec, audit: Audit) -> list[Candidate]:
    """The least likely label and sign for every direction and length."""
    _check_removal(audit, spec)
    if audit.dataset.tokens:
        return _sentences(spec, audit)
    architecture = spec.architecture
    if architecture.build is not None and getattr(build_module(architecture), "largest_id", None) is not None:
        raise InputError(
            f"Expected data of sentences for architecture {architecture.name!r}, whose module reads token ids: a "
            "canary is a sentence. Of token ids alone the claim can be checked (dpaudit verify)."
        )
    x = audit.dataset.x
    least = least_direction(x)
    directions = [(least, LENGTHS), *([(spread_direction(x, least), SPREAD_LENGTHS)] if x.shape[1] > 1 else [])]
    unit = max(1.0, float(spec.mechanism.clip))
    if spec.mechanism.clip > LARGEST_CLIP:
        raise InputError(
            f"Expected mechanism.clip={spec.mechanism.clip:g} to be at most {LARGEST_CLIP:.2g}: no canary of "
            f"{LENGTHS[-1]:g} times that has a finite norm in float32."
        )
    lines = np.concatenate([np.outer(lengths, direction) for direction, lengths in directions]) * unit
    probes = np.stack([lines, -lines], axis=1).astype(np.float32)  # (directions and lengths, signs, inputs)
    start = with_first_weights(audit, spec)
    odds = unlikely(audit, start, probes.reshape(-1, x.shape[1]))
    if odds is None:
        return []
    by_line = odds.reshape(*probes.shape[:2], -1)
    played = [_unlikely_arms(audit, start, *line) for line in zip(probes, by_line, strict=True)]
    screened = LENGTHS.index(SCREENED_LENGTH)
    labels = by_line[screened].min(axis=0).argsort(kind="stable")[:SCREENED_LABELS]
    labelled = [_unlikely_arms(audit, start, probes[screened], by_line[screened], int(label)) for label in labels]
    telling = _most_telling(audit, start, labelled)
    if telling is not None and telling.label != played[screened].label:
        played.append(telling)
    return [_candidate(audit, start, arms) for arms in played]


def _unlikely_arms(
    audit: Audit,
    start: GradientSpec,
    signs: NDArray[np.float32],
    likelihood: NDArray[np.float64],
    label: int | None = None,
) -> Arms:
    """With and without a canary of one length with its least likely sign and, where none is asked for, label.

    Args:
        audit: Whose records it joins.
        start: The training from its first weights.
        signs: The canary with either sign, shape (2, inputs).
        likelihood: Log-odds of every label, shape (2, classes).
        label: Of the canary.
    """
    labels = np.arange(likelihood.shape[1])
    asked = likelihood if label is None else np.where(labels == label, likelihood, np.inf)
    sign, label = (int(index) for index in np.unravel_index(int(asked.argmin()), asked.shape))
    other = int(np.where(labels == label, -np.inf, likelihood[sign]).argmax())
    x, y, one_model = audit.dataset.x, audit.dataset.y, trains_one_model(audit.settings.trainer)
    pair, adjacency = (signs[sign], label, other), neighbours(audit)
    if isinstance(start, DPFTRLSpec) and not one_model:
        arms = arms_in_order(x, y, *pair, adjacency=adjacency, batches=start.batches)
    else:
        arms = make_arms(x, y, *pair, adjacency=adjacency, same_size=one_model)
    begins = "fitted to the records" if start.first_weights is not None else start.init
    return replace(arms, description={**arms.description, "first_weights": begins})


def _candidate(audit: Audit, start: GradientSpec, arms: Arms) -> Candidate:
    """The game on two data sets, with all scores that there are."""
    trainer, scores, watch = audit.settings.trainer, _scores(start, arms, audit), None
    # a loop that takes no noise_factor is piloted by the built-in training, whose steps nobody watches
    if takes_noise_factor(trainer) and can_watch(trainer, start):
        watch = StepWatch.of(arms.pool, arms.without, arms.with_canary, CONTROLLED_NOISE)
        scores = scores | {RELEASES: released_ratio}
    return Candidate(start, arms, scores, watch)


def _most_telling(audit: Audit, start: GradientSpec, labelled: Sequence[Arms]) -> Arms | None:
    """Of canaries that differ in their label the one that moves a few models most; None where it was stopped.

    With half of the noise, and clipped as the training under audit clips, or by a loop that takes no `noise_factor` as
    it is. The two models of a pair share their noise, so that few pairs tell a class that is not clipped from the
    others.
    """
    (_, setup), moved = piloted(audit)[-1], []
    for arms in labelled:
        lists = arms.trials(SCREENED_PAIRS, audit.settings.seed, (_LABELS, _LABELS))
        trials = setup(start, arms.pool, _from_outputs(arms))
        without, with_canary = audit.trials.run(trials, *lists, what="Trying labels")
        if len(without) < SCREENED_PAIRS:
            return None
        moved.append(float(np.nan_to_num(with_canary - without).mean()))
    return labelled[int(np.argmax(moved))]


def _check_removal(audit: Audit, spec: GradientSpec) -> None:
    """Refuse a loop that a record can only be taken from, where more would change than the record.

    Where the record has the last batch of a pass to itself, a loop that goes through its loader would take fewer steps
    than are claimed. A true claim could be refuted.
    """
    check_places(audit)
    if not trains_one_model(audit.settings.trainer) or audit.bundle.recipe.claim.adjacency == "replace-one":
        return
    count = len(audit.dataset.y)
    pool, seed = Pool(audit.dataset.x, audit.dataset.y), trial_seed(audit.settings.seed, _STEPS, 0)
    setup = audit.trial_setup(spec, pool, released_ratio, StepCount())
    lists = [[(np.arange(count) >= taken, seed)] for taken in (0, 1)]
    steps = [int(taken[0]) for taken in audit.trials.run(setup, *lists, what="Counting steps") if len(taken)]
    if len(steps) == 2 and steps[0] == spec.steps != steps[1]:
        raise InputError(
            f"Expected the loop to take {spec.steps} steps with {count - 1} of the {count} records too, not "
            f"{steps[1]}: the claim is on as many. Leave out records until it does, or claim 'replace-one'."
        )


def neighbours(audit: Audit) -> Adjacency:
    """The claim's adjacency; add-remove is read as zero-out where batches depend on who is there, as in claims.

    From a loop of one model a record is taken: `_check_removal` has asked whether the claim is on that.
    """
    sampler, adjacency = audit.bundle.recipe.sampler, audit.bundle.recipe.claim.adjacency
    places = sampler is not None and not sampler.keeps_others and not trains_one_model(audit.settings.trainer)
    return "zero-out" if adjacency == "add-remove" and places else adjacency


def _places_are_kept(audit: Audit) -> bool:
    """Whether both values of a replaced record can have its place: in a pool of both, each has one of its own.

    A loop of one model is given the members alone, with one value or the other in the last place.
    """
    sampler, trainer = audit.bundle.recipe.sampler, audit.settings.trainer
    members_alone = trains_one_model(trainer) and takes_noise_factor(trainer)  # else others train pilot and control
    return (
        sampler is None or sampler.keeps_others or audit.bundle.recipe.claim.adjacency != "replace-one" or members_alone
    )


def _sentences(spec: GradientSpec, audit: Audit) -> list[Candidate]:
    """Misspelled sentences with their least likely labels, as many as there are lengths of another canary."""
    data, adjacency, one_model = audit.dataset, neighbours(audit), trains_one_model(audit.settings.trainer)
    seeds = [trial_seed(audit.settings.seed, _SENTENCES, index) for index in range(len(LENGTHS))]
    rows, sentences = zip(*(sentence_canary(data, seed) for seed in seeds), strict=True)
    odds = unlikely(audit, spec, np.stack(rows))
    candidates = []
    for canary, sentence, likelihood in zip(rows, sentences, () if odds is None else odds, strict=odds is not None):
        label, other = int(likelihood.argmin()), int(likelihood.argmax())
        arms = make_arms(data.x, data.y, canary, label, other, adjacency=adjacency, same_size=one_model)
        kept = {key: value for key, value in arms.description.items() if key not in ("canary_length", "direction")}
        arms = replace(arms, description={**kept, "sentence": sentence})
        candidates.append(Candidate(spec, arms, _scores(spec, arms, audit)))
    return candidates


def _from_outputs(arms: Arms) -> Score:
    """The log-odds of the canary's label."""
    other = arms.description.get("other_label")
    return partial(canary_score, canary=arms.canary, label=arms.label, other=other)


def _scores(spec: GradientSpec, arms: Arms, audit: Audit) -> dict[str, Score]:
    """The log-odds, from outputs alone; and the likelihood ratio of the weights where one step on everybody made them.

    After more steps the weights' projection on what the canary moves was tried: it is weaker than the log-odds.
    """
    scores: dict[str, Score] = {"log-odds, from outputs": _from_outputs(arms)}
    if not (isinstance(spec, DPSGDSpec) and spec.steps == 1 and spec.sampling_prob == 1):
        return scores
    weights = weights_without_noise(audit, spec, arms.pool, [arms.without, arms.with_canary])
    if weights is not None:
        unit = spec.learning_rate / spec.expected_batch_size
        scores["likelihood ratio, from weights"] = partial(
            release_score,
            mechanism=spec.mechanism_at(0),
            without=weights[0],
            shift=(weights[0] - weights[1]) / unit,
            unit=unit,
        )
    return scores


CLIPBKD = CanaryGame(
    "clipbkd",
    ("dp-sgd", "dp-ftrl"),
    _candidates,
    title="ClipBKD",
    making="Training models",
    note="ClipBKD trains new models from the recipe: it judges the training procedure, on data sets of its own making.",
    applies=_places_are_kept,
    needs="ClipBKD needs batches that do not depend on who is there for a claim on replacing a record.",
)
