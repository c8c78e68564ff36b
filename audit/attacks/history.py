"""History: who was in which batch, told from everything that a training releases.

DP-SGD promises its epsilon to whoever sees every noisy sum and knows all other records. So here: the recipe's own loop,
with its batches, clipping and noise, is run on data for which the order of the batches shows. All other records pull
against the canary, along one line (`opposed`; Annamalai et al. 2024, "To Shuffle or not to Shuffle: Auditing DP-SGD
with Shuffling", arXiv 2411.10614), or are silent where everybody is sampled by himself. The score is the log likelihood
ratio of all releases along that line, for the sampler that the recipe says its loop uses (`verify/sampling/passes.py`):
no test of that pair of data sets is better (Neyman and Pearson), and against any other loop it is a score like another.

The data: every record has the same features, the others the label 0, the canary the label 1. The first weights leave
these two labels equally likely and the rest next to impossible, so that at the outputs the gradients of a record and of
the canary are opposite, hence in all layers; features are so long that both are clipped. The step size moves no weight.
First weights, step size and data are the attacker's to choose: the guarantee does not depend on them.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from dpaudit.audit.attacks.arms import Arms, Candidate
from dpaudit.audit.attacks.base import Array, Audit
from dpaudit.audit.attacks.canary_game import CanaryGame
from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms.base import Mechanism, NormalCoordinates, with_dimension
from dpaudit.mechanisms.learning.architectures import DENSE_NETWORKS, build_module, parameter_shapes
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool, TrainedModels
from dpaudit.verify.samplers import PassGame
from dpaudit.verify.sampling.passes import log_likelihood_ratios

FEATURE = 100.0  # length of every record, in clips: gradients at probabilities of 1/2 are longer than the clip
IMPOSSIBLE = -60.0  # logit of a label that nothing has
UNMOVED = 1e-30  # a step size that moves no weight by a float32 of any account


def pass_game(audit: Audit) -> PassGame | None:
    """The laws of a pass with the canary and without, under the recipe's own sampler; None where there is no game."""
    spec = audit.spec
    if not isinstance(spec, DPSGDSpec):
        return None
    sampler = audit.bundle.recipe.sampler
    if sampler is None:
        q = spec.sampling_prob
        absent = ((1.0 - q, (1, 0, 0)),) if q < 1 else ()
        return PassGame((*absent, (q, (0, 1, 0))), ((1.0, (1, 0, 0)),), spec.steps)
    games = sampler.games(replace_one=False)
    return games[0] if games and spec.steps % sum(games[0].first[0][1]) == 0 else None


def applies(audit: Audit) -> bool:
    """Whether every release of this training can be seen, and there is a game for its batches.

    A loop of the user's own must tell what it released, which shows when it has run.
    """
    spec = audit.spec
    return (
        isinstance(spec, DPSGDSpec)
        and spec.architecture.build is None
        and spec.architecture.name in DENSE_NETWORKS
        and not spec.schedule
        and isinstance(spec.mechanism.structure, NormalCoordinates)
        and audit.bundle.recipe.claim.adjacency != "replace-one"
        and pass_game(audit) is not None
    )


def deadlocked_weights(architecture: Architecture, feature: float) -> dict[str, NDArray[np.float32]]:
    """Weights under which labels 0 and 1 are equally likely for records of one feature, and all others impossible.

    Args:
        architecture: "linear" or "fnn".
        feature: The first feature of every record, > 0; the others are 0.
    """
    shapes = parameter_shapes(architecture)
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    *hidden, last = [name for name, shape in shapes.items() if len(shape) == 2]
    reach = feature
    for name in hidden:  # every unit repeats the feature
        weights[name][:, 0] = 1.0
    if hidden:
        reach = feature * shapes[last][1]
        weights[last][2:] = IMPOSSIBLE / reach
    else:
        weights[last][2:, 0] = IMPOSSIBLE / reach
    return weights


def canary_direction(architecture: Architecture, weights: dict[str, NDArray[np.float32]], x: Array) -> Array:
    """The direction of the gradient of a record with label 1, of l2 norm 1, flat in torch's order."""
    with torch.random.fork_rng(devices=[]):  # building draws weights, which are replaced
        module = build_module(architecture)
    module.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    loss = functional.cross_entropy(module(torch.tensor(x, dtype=torch.float32)[None]), torch.tensor([1]))
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    flat = torch.cat([gradient.flatten() for gradient in gradients]).double().numpy()
    return np.asarray(flat / np.linalg.norm(flat))


def history_score(models: TrainedModels, mechanism: Mechanism, length: float, game: PassGame, others: Array) -> Array:
    """The log likelihood ratio of all that each model's training released along the canary's line, shape (models,).

    Args:
        models: With what every step showed along the watched direction.
        mechanism: The claimed noise; its law is the same along every line.
        length: Of a contribution along the line.
        game: Laws of a pass.
        others: What the other records contribute if all places of a batch are theirs, shape (steps,).

    Raises:
        InputError: The training function under audit did not tell.
    """
    if models.observed is None:
        raise InputError("Expected the trainer to return what every step released along spec.watched: see own-loop.md.")
    seen = models.observed.numpy()[..., 0].astype(np.float64) - others
    releases = sum(game.first[0][1])
    if game.stretch != 1.0:  # one order in all passes: what they show together is one pass of longer contributions
        seen = seen.reshape(len(seen), -1, releases).sum(axis=1) / game.stretch
    noise = with_dimension(mechanism, 1)
    losses = log_likelihood_ratios(noise, length * game.stretch, game, seen.reshape(-1, releases))
    return np.asarray(losses.reshape(len(seen), -1).sum(axis=1))


def _candidates(spec: DPSGDSpec, audit: Audit) -> list[Candidate]:
    """One: the recipe's loop on data whose batches show."""
    game, sampler = pass_game(audit), audit.bundle.recipe.sampler
    assert game is not None  # where the attack applies
    records, inputs = audit.dataset.x.shape
    feature = FEATURE * max(1.0, float(spec.mechanism.clip))
    x = np.zeros((records, inputs), dtype=np.float32)
    x[:, 0] = feature
    weights = deadlocked_weights(spec.architecture, feature)
    direction = canary_direction(spec.architecture, weights, x[0])
    length = float(spec.mechanism.clip) / float(np.linalg.norm(direction, ord=float(spec.mechanism.clip_norm)))
    opposed = any(twos for _, (_, _, twos) in game.first)
    sizes = [0] * spec.steps
    if opposed and sampler is not None:
        sizes = [len(batch) for batch in sampler.draw(np.random.default_rng(0), records)]
    with_canary = np.full(records, opposed)
    with_canary[0] = True
    arms = Arms(
        Pool(x, (np.arange(records) == 0).astype(np.int64)),
        without=with_canary & (np.arange(records) > 0),
        with_canary=with_canary,
        canary=x[0],
        label=1,
        description={
            "adjacency": audit.bundle.recipe.claim.adjacency,
            "pair": f"{records - 1 if opposed else 0} opposed records, with a canary or a ghost that contributes 0",
            "batches": audit.bundle.recipe.sampling.kind,
            "batches_claimed": audit.bundle.recipe.claimed_sampling.kind,
            "releases": spec.steps,
        },
    )
    played = replace(
        spec, learning_rate=UNMOVED, momentum=0.0, update_rule=None, first_weights=weights,
        watched=direction.astype(np.float32),
    )  # fmt: skip
    score = partial(
        history_score, mechanism=spec.mechanism, length=length, game=game, others=-length * np.array(sizes, dtype=float)
    )
    return [Candidate(played, arms, {"likelihood ratio, from every release": score})]


HISTORY = CanaryGame(
    "history",
    ("dp-sgd",),
    _candidates,
    title="History",
    making="Training models",
    note=(
        "History runs the recipe's loop on data of its own making and sees every release: it judges batches, clipping "
        "and noise, not the model's file. Its neighbours differ in one record or a ghost in its place (zero-out)."
    ),
    by_default=False,
    applies=applies,
    needs=(
        "History needs DP-SGD of a network of linear layers (linear, fnn), the same normal noise in every step, a "
        "claim on adding or removing a record, and batches with a game (docs/attacks.md)."
    ),
)
