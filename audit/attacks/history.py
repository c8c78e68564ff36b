"""History: who was in which batch, told from everything that a training releases.

DP-SGD promises its epsilon to whoever sees every noisy sum and knows all other records. So here: the recipe's own loop,
with its batches, clipping and noise, is run on data for which the order of the batches shows. All other records pull
against the canary, along one line (`opposed`; Annamalai et al. 2024, "To Shuffle or not to Shuffle: Auditing DP-SGD
with Shuffling", arXiv 2411.10614), or are silent where everybody is sampled by himself. The score is the log likelihood
ratio of all releases along that line, for the sampler that the recipe says its loop uses (`verify/sampling/games.py`):
where its laws are exact no test of that pair of data sets is better (Neyman and Pearson), and against any other loop it
is a score like another.

That ratio takes the noise of the steps for independent. Noise that is used again, in every step or in every pass, as by
a generator that is seeded anew, leaves the releases of one noise at few places, which independent noise has no chance
to do: the record is told by how far those that hold it lie from the rest, and that is added, times a number above all
ratios.

The data: every record has the same features, the others the label 0, the canary the label 1. The first weights leave
these two labels equally likely and the rest next to impossible, so that at the outputs the gradients of a record and of
the canary are opposite, hence in all layers; features are so long that both are clipped. The step size moves no weight.
First weights, step size and data are the attacker's to choose: the guarantee does not depend on them.

Told from the canary is a ghost in its place, or under replace-one a record with the label 0 in its place.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from dpaudit.audit.attacks.arms import Arms, Candidate
from dpaudit.audit.attacks.base import Array, Audit
from dpaudit.audit.attacks.canary_game import CanaryGame
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.user_code import trains_one_model
from dpaudit.mechanisms.base import Mechanism, NormalCoordinates
from dpaudit.mechanisms.learning.architectures import DENSE_NETWORKS, build_module, parameter_shapes
from dpaudit.mechanisms.learning.spec import Architecture, BatchSampler, DPSGDSpec, Pool, TrainedModels
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.samplers import Batches
from dpaudit.verify.sampling.games import HistoryGame, history_games, public_sizes

FEATURE = 100.0  # length of every record, in clips: gradients at probabilities of 1/2 are longer than the clip
IMPOSSIBLE = -60.0  # logit of a label that nothing has
UNMOVED = 1e-30  # a step size that moves no weight by a float32 of any account
TOGETHER = 1e-3  # in standard deviations of the noise: releases so near to each other have the same
LEAST_BATCHES = 4  # of a pass: a record is not in most releases, whose median is then that of those without it
LEAST_USES = 8  # of a noise: half of so many independent ones lie together with a probability below 1e-6
REUSED = 1e9  # a contribution's length that reused noise shows, in units of the log likelihood ratio


@dataclass(frozen=True)
class SharedPlace:
    """Batches of data whose first record and the one behind the last have one place: never are both members.

    Args:
        sampler: Draws the batches.
        records: Of the data, without the second one.
    """

    sampler: BatchSampler
    records: int

    @property
    def steps(self) -> int:
        """Batches of the whole training."""
        return self.sampler.steps

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """The sampler's, with both records wherever the first one is."""
        batches = self.sampler.draw(rng, self.records)
        return [np.append(batch, np.full(np.count_nonzero(batch == 0), self.records)) for batch in batches]


def games(audit: Audit) -> list[HistoryGame]:
    """The games of a history under the recipe's own sampler; [] where there are none."""
    if not isinstance(audit.spec, DPSGDSpec) or audit.spec.schedule:
        return []
    recipe = audit.bundle.recipe
    [phase] = recipe.as_run().phases()
    return history_games(phase, replace_one=recipe.claim.adjacency == "replace-one")


def applies(audit: Audit) -> bool:
    """Whether every release of this training can be seen, and there is a game for its batches.

    A loop of the user's own must tell what it released, which shows when it has run. It knows no `SharedPlace`, without
    which the places in an order change with the record that has them.
    """
    spec, sampler = audit.spec, audit.bundle.recipe.sampler
    places_are_kept = (
        audit.bundle.recipe.claim.adjacency != "replace-one"
        or audit.settings.trainer is train
        or sampler is None
        or sampler.keeps_others
    )
    return (
        isinstance(spec, DPSGDSpec)
        and not trains_one_model(audit.settings.trainer)  # which returns a module alone
        and spec.architecture.build is None
        and spec.architecture.name in DENSE_NETWORKS
        and isinstance(spec.mechanism.structure, NormalCoordinates)
        and places_are_kept
        and bool(games(audit))
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


def history_score(
    models: TrainedModels, mechanism: Mechanism, length: float, game: HistoryGame, others: Array, period: int
) -> Array:
    """The log likelihood ratio of all that each model's training released along the canary's line, shape (models,).

    Of releases that share their noise it is what `reused_noise` shows that decides.

    Args:
        models: With what every step showed along the watched direction.
        mechanism: The claimed noise; its law is the same along every line.
        length: Of a contribution along the line.
        game: Laws of the history.
        others: What a batch shows if all of its places are the other records', shape (steps,).
        period: Steps of a pass.

    Raises:
        InputError: The training function under audit did not tell.
    """
    if models.observed is None:
        raise InputError("Expected the trainer to return what every step released along spec.watched: see own-loop.md.")
    assert isinstance(mechanism.structure, NormalCoordinates)  # `applies`
    seen = models.observed.numpy()[..., 0].astype(np.float64) - others
    ratio = game.scores(mechanism, length, seen)
    if period < LEAST_BATCHES:
        return ratio
    return ratio + REUSED / length * reused_noise(seen, mechanism.structure.sigma, period)


def reused_noise(seen: Array, sigma: float, period: int) -> Array:
    """How far releases of the same noise lie from their median on average, shape (models,); 0 where noise is fresh.

    Args:
        seen: What each release showed along the line, shape (models, steps).
        sigma: Standard deviation of its noise.
        period: Steps after which noise may come again; that of the step before is looked for as well.

    >>> releases = np.random.default_rng(1).normal(size=(1, 3)).repeat(10, axis=0).reshape(1, 30)
    >>> releases[0, 4] += 3.0
    >>> reused_noise(releases, 1.0, 3).round(3).tolist(), reused_noise(releases, 1.0, 4).tolist()
    ([0.1], [0.0])
    """
    found = np.zeros(len(seen))
    for lag in (period, 1):  # what is equal in all steps is in all passes
        uses = seen.shape[1] // lag
        if uses < LEAST_USES:
            continue
        same = seen[:, : uses * lag].reshape(len(seen), uses, lag)
        away = same - np.median(same, axis=1, keepdims=True)
        together = (np.abs(away) < TOGETHER * sigma).mean(axis=(1, 2)) >= 0.5
        found = np.where(together, away.mean(axis=(1, 2)), found)
    return found


def _candidates(spec: DPSGDSpec, audit: Audit) -> list[Candidate]:
    """The recipe's loop on data whose batches show, a candidate for each way of the others to contribute."""
    records, inputs = audit.dataset.x.shape
    feature = FEATURE * max(1.0, float(spec.mechanism.clip))
    x = np.zeros((records, inputs), dtype=np.float32)
    x[:, 0] = feature
    weights = deadlocked_weights(spec.architecture, feature)
    direction = canary_direction(spec.architecture, weights, x[0])
    length = float(spec.mechanism.clip) / float(np.linalg.norm(direction, ord=float(spec.mechanism.clip_norm)))
    played = replace(
        spec, learning_rate=UNMOVED, momentum=0.0, update_rule=None, first_weights=weights,
        watched=direction.astype(np.float32),
    )  # fmt: skip
    sampler, found = audit.bundle.recipe.sampler, []
    if sampler is not None and audit.bundle.recipe.claim.adjacency == "replace-one" and audit.settings.trainer is train:
        played = replace(played, sampler=SharedPlace(sampler, records))
    for game in games(audit):
        sizes = np.zeros(spec.steps)
        if game.opposed and sampler is not None:
            sizes = public_sizes(sampler, records).astype(float)
        score = partial(
            history_score, mechanism=spec.mechanism, length=length, game=game, others=-length * sizes,
            period=round(1.0 / spec.sampling_prob),
        )  # fmt: skip
        name = f"likelihood ratio, from every release, others {'opposed' if game.opposed else 'silent'}"
        found.append(Candidate(played, _arms(audit, x, game), {name: score}))
    return found


def _arms(audit: Audit, x: NDArray[np.float32], game: HistoryGame) -> Arms:
    """The canary in the first place, or there a ghost or the record that replaces it, which is last in the pool."""
    records, recipe = len(x), audit.bundle.recipe
    replaced = recipe.claim.adjacency == "replace-one"
    places = np.arange(records + replaced)
    others = game.opposed & (places > 0) & (places < records)
    return Arms(
        Pool(x[places % records], (places == 0).astype(np.int64)),
        without=others | (places == records),
        with_canary=others | (places == 0),
        canary=x[0],
        label=1,
        description={
            "adjacency": recipe.claim.adjacency,
            "pair": f"{int(others.sum())} opposed records, with a canary or "
            + ("a record opposed to it" if replaced else "a ghost that contributes 0"),
            "batches": recipe.sampling.kind,
            "batches_claimed": recipe.claimed_sampling.kind,
            "releases": recipe.steps,
        },
    )


HISTORY = CanaryGame(
    "history",
    ("dp-sgd",),
    _candidates,
    title="History",
    making="Training models",
    note=(
        "History runs the recipe's loop on data of its own making and sees every release: it judges batches, clipping "
        "and noise, not the model's file. Its neighbours differ in one record, in whose place there is a ghost "
        "(zero-out) or its opposite (replace-one)."
    ),
    by_default=False,
    applies=applies,
    needs=(
        "History needs DP-SGD of a network of linear layers (linear, fnn), the same normal noise in every step, and, "
        "for a claim on replacing a record, the built-in training or batches that do not depend on who is there."
    ),
)
