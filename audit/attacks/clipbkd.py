"""ClipBKD: one poisoned record whose clipped gradient points where no other record's does.

Jagielski, Ullman and Oprea (2020), "Auditing Differentially Private Machine Learning", Algorithm 2. The canary
lies along the direction of least variance of the data, so that nothing but the noise hides whether it was
trained on; it is long, so that its gradient is clipped and moves the sum by the whole clip. Among sentences it is one
of words that no other record has (`text_canaries`).
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.canary_game import Arms, CanaryGame
from dpaudit.audit.attacks.text_canaries import sentence_canary
from dpaudit.audit.trials.engine import Score
from dpaudit.mechanisms.learning.spec import GradientSpec, Pool, TrainedModels
from dpaudit.mechanisms.learning.training import logits
from dpaudit.verify.claims import Adjacency


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


def canary_length(spec: GradientSpec) -> float:
    """The length at which the canary's gradient stays clipped for most of the training, a power of two.

    A short canary's gradient is not clipped to begin with; a long one is learned in a few steps, and its loss, and
    with it its gradient, vanishes. For softmax regression along a direction of its own the canary's log-odds z obey
    z' = z + length * step * min(clip, |gradient(z)|), which is followed here without noise; the length that moves
    the weights furthest is best. Other architectures use the same length: any length is a valid canary.
    """
    step = spec.learning_rate / (spec.expected_batch_size * (1.0 - spec.momentum))

    def moved(length: float) -> float:
        total = z = 0.0
        for _ in range(spec.visits):
            gradient = np.sqrt(2.0 * (1.0 + length**2)) / (1.0 + np.exp(min(z, 500.0)))
            push = min(spec.mechanism.clip, gradient)
            total += push
            z += np.sqrt(2.0) * length * step * push
        return total * length / float(np.hypot(1.0, length))  # the rest goes into the bias, which others share

    return float(max(2.0 ** np.arange(0, 11), key=moved))


def make_arms(x: NDArray[np.float32], y: NDArray[np.int64], spec: GradientSpec, *, adjacency: Adjacency) -> Arms:
    """Two data sets that are neighbours under the claim's own adjacency, and differ in one canary.

    Under add-remove: the records, and the records plus the canary. Under replace-one: the first record is replaced
    by the canary with one label, or by the same canary with another. Flipped labels are replace-one neighbours,
    so they test no add-remove claim.

    Args:
        x: Training records, shape (records, inputs).
        y: Labels, shape (records,), in 0..classes-1.
        spec: How the models are trained.
        adjacency: The claim's.
    """
    direction = least_direction(x)
    length = canary_length(spec)
    classes = spec.architecture.classes
    canary = (length * direction).astype(np.float32)
    order = _labels_by_likelihood(x, y, classes, canary)
    label, other = int(order[0]), int(order[-1])
    silent = not x[:, direction != 0].any()
    details = {
        "canary_length": length,
        "direction": "a feature that is zero in every record" if silent else "least second moment",
    }
    return neighbours(x, y, canary, (label, other), adjacency=adjacency, **details)


def neighbours(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    canary: NDArray[np.float32],
    labels: tuple[int, int],
    *,
    adjacency: Adjacency,
    **details: Any,
) -> Arms:
    """The two data sets that differ in one canary, as `make_arms` says.

    Args:
        x: Training records, shape (records, inputs).
        y: Their labels, shape (records,).
        canary: Shape (inputs,).
        labels: The canary's, and another.
        adjacency: The claim's.
        details: Of the canary, for the report.
    """
    n, (label, other) = len(x), labels
    common: dict[str, Any] = {"adjacency": adjacency, "records": n, "canary_label": label, **details}
    if adjacency == "add-remove":
        pool = Pool(np.vstack([x, canary]), np.append(y, label))
        without = np.append(np.ones(n, dtype=bool), False)
        return Arms(
            pool,
            without,
            np.ones(n + 1, dtype=bool),
            canary,
            label,
            {**common, "pair": "the training records, with and without one canary"},
        )
    pool = Pool(np.vstack([x, canary, canary]), np.append(y, [label, other]))
    keep = np.ones(n, dtype=bool)
    keep[0] = False
    return Arms(
        pool,
        np.append(keep, [False, True]),
        np.append(keep, [True, False]),
        canary,
        label,
        {**common, "other_label": other, "pair": "record 0 replaced by the canary with one label or the other"},
    )


def _labels_by_likelihood(
    x: NDArray[np.float32], y: NDArray[np.int64], classes: int, canary: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Labels from the least to the most likely at the canary, by a plain logistic regression on the records."""
    from sklearn.linear_model import LogisticRegression  # importing scikit-learn takes over a second

    model = LogisticRegression(max_iter=200, tol=1e-3).fit(x, y)
    likelihood = np.zeros(classes)
    likelihood[model.classes_] = model.predict_log_proba(canary[None, :])[0]
    likelihood[np.setdiff1d(np.arange(classes), model.classes_)] = -np.inf
    return np.argsort(likelihood, kind="stable")


def canary_score(models: TrainedModels, canary: NDArray[np.float32], label: int) -> NDArray[np.float64]:
    """Log-odds of the canary's label at the canary, one per model, from the models' outputs alone."""
    return margin(logits(models, canary[None, :])[:, 0, :].numpy(), label)


def margin(outputs: NDArray[np.float32], label: int) -> NDArray[np.float64]:
    """Score of each model: log-odds of `label` at the canary, log p_y - log(1 - p_y), higher = trained on it.

    Args:
        outputs: Logits, shape (models, classes).
        label: The canary's label.
    """
    values = outputs.astype(np.float64)
    others = np.delete(values, label, axis=1)
    top = others.max(axis=1)
    return np.asarray(values[:, label] - top - np.log(np.exp(others - top[:, None]).sum(axis=1)))


def _build(spec: GradientSpec, audit: Audit) -> tuple[Arms, Score]:
    data, adjacency = audit.dataset, audit.bundle.recipe.claim.adjacency
    if data.tokens:
        canary, labels, sentence = sentence_canary(data, spec, audit.settings.seed)
        arms = neighbours(data.x, data.y, canary, labels, adjacency=adjacency, sentence=sentence)
    else:
        arms = make_arms(data.x, data.y, spec, adjacency=adjacency)
    return arms, partial(canary_score, canary=arms.canary, label=arms.label)


CLIPBKD = CanaryGame(
    "clipbkd",
    ("dp-sgd", "dp-ftrl"),
    _build,
    title="ClipBKD",
    making="Training models",
    note="ClipBKD trains new models from the recipe: it judges the training procedure, on data sets of its own making.",
)
