"""Output perturbation: from which of two minimisers was this noisy release made?

The minimisers of two neighbouring data sets are computed once; every trial only draws the noise. The score is the
exact privacy loss of the release, so no test of these two data sets is better. The two data sets are chosen to
move the minimiser nearly as far as the sensitivity bound allows.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.clipbkd import Arms, least_direction
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.minimiser import minimise
from dpaudit.mechanisms.learning.spec import Pool, TrainedModels, TrainingSpec
from dpaudit.verify.claims import Adjacency


def make_arms(x: NDArray[np.float32], y: NDArray[np.int64], spec: TrainingSpec, *, adjacency: Adjacency) -> Arms:
    """Two neighbouring data sets whose regularised logistic regressions lie far apart.

    A record at angle phi to a direction u that is absent from the data, and misclassified through its remaining
    part along the minimiser w, has a gradient of length sigmoid(sin(phi) |w|), of which cos(phi) is along u.
    Replacing record 0 by such a record at +u or at -u moves the minimiser by 2 L/Lambda times
    cos(phi) sigmoid(sin(phi) |w|), to first order; phi is chosen to make that largest.

    Args:
        x: Training records of l2 norm at most 1, shape (records, inputs).
        y: Labels 0 or 1.
        spec: How the minimiser is released.
        adjacency: The claim's; under add-remove the second canary is left out.
    """
    w = minimise(x, y, spec.regularization)
    u = least_direction(x)
    w_across = w - (w @ u) * u
    size = float(np.linalg.norm(w_across))
    phi = np.linspace(0.0, np.pi / 2, 1001)[:-1]
    attained = np.cos(phi) / (1.0 + np.exp(-np.sin(phi) * size))
    best = int(np.argmax(attained))
    across = -np.sin(phi[best]) * (w_across / size if size > 0 else w_across)
    plus, minus = ((sign * np.cos(phi[best]) * u + across) for sign in (1.0, -1.0))
    canaries = np.stack([plus, minus]) / max(1.0, float(np.linalg.norm(plus))) * (1.0 - 1e-6)
    n = len(x)
    pool = Pool(np.vstack([x, canaries]).astype(np.float32), np.append(y, [1, 1]))
    keep = np.ones(n, dtype=bool)
    if adjacency == "add-remove":
        pair, arms = "the training records, with and without one canary", ([False, False], [True, False])
    else:
        keep[0] = False
        pair, arms = "record 0 replaced by one of two opposite canaries", ([False, True], [True, False])
    description: dict[str, Any] = {
        "adjacency": adjacency,
        "records": n,
        "pair": pair,
        "angle_degrees": float(np.degrees(phi[best])),
        "sensitivity_share_predicted": float(attained[best]),
    }
    return Arms(pool, np.append(keep, arms[0]), np.append(keep, arms[1]), pool.x[n], 1, description)


def release_score(arms: Arms, spec: TrainingSpec) -> tuple[partial[NDArray[np.float64]], float]:
    """The score of a release, and the distance of the two minimisers it tells apart.

    Returns:
        A picklable function from models to the privacy loss of each, and |w_with - w_without|_2.
    """
    without, with_canary = (
        minimise(arms.pool.x[members], arms.pool.y[members], spec.regularization)
        for members in (arms.without, arms.with_canary)
    )
    shift = with_canary - without
    return (
        partial(privacy_loss_score, mechanism=spec.mechanism, without=without, shift=shift),
        float(np.linalg.norm(shift)),
    )


def privacy_loss_score(
    models: TrainedModels, mechanism: Mechanism, without: NDArray[np.float64], shift: NDArray[np.float64]
) -> NDArray[np.float64]:
    """log dP/dQ of each released weight vector, P the law around the minimiser with the canary."""
    released = next(iter(models.parameters.values())).numpy().reshape(-1, len(shift)).astype(np.float64)
    return np.asarray(mechanism.privacy_loss(released - without, shift))
