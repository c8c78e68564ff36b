"""Releases of a noisy minimiser: from which of two neighbouring data sets was it made?

The two data sets are chosen to move the minimiser nearly as far as the sensitivity bound allows. Output perturbation:
the two minimisers are computed once, every trial only draws the noise, and the score is the exact privacy loss of the
release, so no test of these two data sets is better. Approximate minima: every trial draws the noise in the objective,
minimises it and draws the output noise.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.arms import Arms, Candidate
from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.canary_game import CanaryGame
from dpaudit.audit.attacks.clipbkd import least_direction
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.approximate_minima import implied_noise
from dpaudit.mechanisms.learning.minimiser import minimise
from dpaudit.mechanisms.learning.spec import (
    ApproximateMinimaSpec,
    MinimumSpec,
    OutputPerturbationSpec,
    Pool,
    TrainedModels,
)
from dpaudit.verify.claims import Adjacency


def make_arms(x: NDArray[np.float32], y: NDArray[np.int64], spec: MinimumSpec, *, adjacency: Adjacency) -> Arms:
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


def privacy_loss_score(
    models: TrainedModels, mechanism: Mechanism, without: NDArray[np.float64], shift: NDArray[np.float64]
) -> NDArray[np.float64]:
    """log dP/dQ of each released weight vector, P the law around the minimiser with the canary."""
    released = next(iter(models.parameters.values())).numpy().reshape(-1, len(shift)).astype(np.float64)
    return np.asarray(mechanism.privacy_loss(released - without, shift))


def noise_score(
    models: TrainedModels,
    spec: ApproximateMinimaSpec,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    without: NDArray[np.bool_],
    with_canary: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """log f(b_with) / f(b_without) of each model: f the density of the noise in the objective, b(w) what w implies.

    The output noise, and the Hessians' determinants, are left out: any score is valid, and they are small.
    """
    weights = next(iter(models.parameters.values())).numpy()[:, 0].astype(np.float64)
    pairs = zip(*(implied_noise(weights, x[part], y[part], spec) for part in (without, with_canary)), strict=True)
    return np.array([float(spec.mechanism.privacy_loss(b, b - moved)) for b, moved in pairs])


def _output_perturbation(spec: OutputPerturbationSpec, audit: Audit) -> list[Candidate]:
    arms = make_arms(audit.dataset.x, audit.dataset.y, spec, adjacency=audit.bundle.recipe.claim.adjacency)
    without, with_canary = (
        minimise(arms.pool.x[members], arms.pool.y[members], spec.regularization)
        for members in (arms.without, arms.with_canary)
    )
    shift = with_canary - without
    distance = float(np.linalg.norm(shift))
    sensitivity = spec.mechanism.clip * (2.0 if audit.bundle.recipe.claim.adjacency == "replace-one" else 1.0)
    moved = {"minimiser_distance": distance, "sensitivity_share": distance / sensitivity}
    score = partial(privacy_loss_score, mechanism=spec.mechanism, without=without, shift=shift)
    arms = replace(arms, description={**arms.description, **moved})
    return [Candidate(spec, arms, {"privacy loss of the release": score})]


def _approximate_minima(spec: ApproximateMinimaSpec, audit: Audit) -> list[Candidate]:
    arms = make_arms(audit.dataset.x, audit.dataset.y, spec, adjacency=audit.bundle.recipe.claim.adjacency)
    x, y = arms.pool.x, arms.pool.y
    score = partial(noise_score, spec=spec, x=x, y=y, without=arms.without, with_canary=arms.with_canary)
    return [Candidate(spec, arms, {"likelihood ratio of the noise that the weights imply": score})]


OUTPUT_PERTURBATION = CanaryGame(
    "output-perturbation",
    ("output-perturbation",),
    _output_perturbation,
    title="Output perturbation",
    making="Drawing releases",
    note="Output perturbation was judged by new releases, noise on the minimisers of two data sets of the audit's own "
    "making: the release procedure of the recipe, not the model's file.",
)

APPROXIMATE_MINIMA = CanaryGame(
    "approximate-minima",
    ("approximate-minima",),
    _approximate_minima,
    title="Approximate minima",
    making="Drawing releases",
    note="Approximate minima were judged by new releases from two data sets of the audit's own making, with fresh "
    "noise in the objective and on the output: the release procedure of the recipe, not the model's file.",
)
