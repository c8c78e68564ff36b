"""Crafted canaries in ONE training: records made to be noticed, put in by fair coins, told apart by the model alone.

Steinke, Nasr and Jagielski (2023), "Privacy Auditing with One (1) Training Run"; Nasr et al. (2023) for blank and
mislabelled canaries. One new model is trained by the recipe on all of its records and on the canaries whose coin said
in, a few reference models on the records alone. A canary's score is how much more the one model knows of it than the
references do, within its label: the references know what the records teach of a canary and nothing of the coins, and
what all canaries together teach of a label moves the scores of that label alike.

Every coin decides on one record, and the other canaries are data that both neighbours share. That the canaries change
the model costs power, as they drown each other, and not validity: they share a model, so only bounds hold here that
allow for every dependence (`verify/bounds/one_run.py`).

Scores, whatever the optimizer (any function of the model is valid):

- `loss`: the log-odds of the canary's label, from the model's outputs alone.
- `movement`: how much of the movement of the weights is along the canary's descent direction at the first weights, as
  a linear estimate that tells similar canaries apart; it sees the weights. Plain descent and momentum move the weights
  by a weighted sum of the released gradients, so that a canary moves them along its own; momentum changes the weights
  of the sum, and them alike for all canaries. Adam divides each coordinate by its own running scale, which no inner
  product undoes: the score stays valid and loses some power.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from dpaudit.audit.attacks.base import Array, Audit, check_places, spent_at
from dpaudit.audit.attacks.control import canary_control, controlled_training, with_noise
from dpaudit.audit.attacks.membership import one_run_findings, scored_result, within_class
from dpaudit.audit.attacks.shadow import log_odds
from dpaudit.audit.attacks.starts import flat_weights
from dpaudit.audit.canaries.crafting import blank, craft_labels
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.formats import fixed_order
from dpaudit.audit.trials.engine import Score, Scores, TrialSetup, trial_seed
from dpaudit.mechanisms.base import with_dimension
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.spec import DPSGDSpec, GradientSpec, Pool, TrainedModels
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.results import AttackResult, Control

CANARIES = 1000
REFERENCES = 8  # models without canaries: their spread adds an eighth to the variance of a score
_CRAFT, _COINS, _ONE, _REFERENCES = 6, 7, 8, 9  # streams of seeds beside those of the other attacks
_CONTROLS, _RESAMPLES = (12, 13), 14
DRAWS = 9  # noise vectors from which the spread of one coordinate is read
NORMAL_MEDIAN = 0.6745  # of |N(0, 1)|
_UNMOVED = 1e-30  # a step size that moves no float32 weight
Craft = Callable[[Audit, int, np.random.Generator], Pool]


def _nothing(_: Dataset) -> None:
    """Of any data."""


def crafted(audit: Audit, count: int, rng: np.random.Generator, *, kind: str) -> Pool:
    """Canaries of a kind made from features, see `canaries/crafting.py`; blank ones at most as many as features.

    Those of other kinds are test records, or training records where there are none of them, under other labels.
    """
    data, classes = audit.dataset, audit.spec.architecture.classes
    if kind == "blank":
        x = blank(data.x, min(count, data.x.shape[1]))
        return Pool(x, craft_labels(kind, np.zeros(len(x), np.int64), classes, rng))
    x, y = (data.x_test, data.y_test) if len(data.y_test) else (data.x, data.y)
    rows = fixed_order(len(y))[:count]
    return Pool(x[rows], craft_labels(kind, y[rows], classes, rng))


def loss_score(audit: Audit, spec: GradientSpec, canaries: Pool) -> Score:
    """Log-odds of every canary's label."""
    return partial(log_odds, x=canaries.x, y=canaries.y)


def movement_score(audit: Audit, spec: GradientSpec, canaries: Pool) -> Score:
    """How far every canary moved the weights from the first ones, which the seed fixes in the built-in training.

    A trainer that starts elsewhere is scored with the directions of another start: validly, and less well.

    A canary in T q batches moves them T q clip along its direction, in units of the step, and the noise sqrt(T) times
    its own spread in every direction; a fair coin has variance 1/4.
    """
    still = spec.first_step() if isinstance(spec, DPSGDSpec) else replace(spec, steps=1)
    still = replace(still, learning_rate=_UNMOVED)
    members = np.ones((1, len(canaries.y)), dtype=bool)
    first = train(still, canaries, members, [0], device=audit.settings.device)
    weights = flat_weights(first)[0]
    draws = with_dimension(spec.mechanism, len(weights)).sample(np.random.default_rng(audit.settings.seed), DRAWS)
    spread = float(np.median(np.abs(draws))) / NORMAL_MEDIAN  # some laws have no variance
    noise = 4.0 * spread**2 / (spec.steps * (spec.sampling_prob * float(spec.mechanism.clip)) ** 2)
    return partial(along_gradients, first=weights, x=canaries.x, y=canaries.y, noise=noise)


def along_gradients(
    models: TrainedModels, first: Array, x: NDArray[np.float32], y: NDArray[np.int64], noise: float
) -> Array:
    """What share of the movement of the weights is each canary's: (G G^T + noise I)^-1 G (w - first).

    Row c of G is -g_c/|g_c|, g_c the gradient of the canary's loss at the first weights. It is the linear estimate of
    least variance of which canaries are in w - first = G^T coins + noise; without the inverse, canaries that resemble
    each other drown each other.

    Args:
        models: With weights w.
        first: The first weights, in torch's parameter order, shape (parameters,).
        x: Canaries, shape (canaries, inputs).
        y: Their labels.
        noise: Variance of a coordinate's noise over that of a coin, in units of a canary's movement, > 0.

    Returns:
        Shape (models, canaries).
    """
    weights = flat_weights(models) - first
    with torch.random.fork_rng(devices=[]):  # building draws weights, which are replaced
        module = build_module(models.architecture).eval()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    torch.nn.utils.vector_to_parameters(torch.from_numpy(first.astype(np.float32)), trained)
    directions = np.zeros((len(y), weights.shape[1]), dtype=np.float32)
    records, labels = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y))
    for canary in range(len(y)):
        module.zero_grad()
        loss = functional.cross_entropy(module(records[canary : canary + 1]), labels[canary : canary + 1])
        torch.autograd.backward(loss)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        gradient = torch.cat([g.flatten() for g in gradients]).numpy()
        directions[canary] = -gradient / (np.linalg.norm(gradient) or 1.0)
    gram = (directions @ directions.T).astype(np.float64) + noise * np.eye(len(y))
    return np.asarray(np.linalg.solve(gram, directions @ weights.T).T, dtype=np.float64)


@dataclass(frozen=True)
class OneRunCanaries:
    """Canaries of one make in one training of the recipe.

    Args:
        name: What its result and its test are called.
        craft: From an audit, a number and a generator to at most so many canaries.
        scored: From an audit, a specification and the canaries to the score of a model, a number per canary.
        description: The canaries, in words.
        algorithms: Training algorithms that it applies to.
        by_default: Whether it is carried out where the settings name no attacks: it shares the error probability,
            which would weaken the tests of the attacks that do.
        requires: Raises InputError of data that such canaries cannot be made of.
    """

    name: str
    craft: Craft
    scored: Callable[[Audit, GradientSpec, Pool], Score]
    description: str
    algorithms: tuple[str, ...] = ("dp-sgd", "dp-ftrl")
    by_default: bool = False
    requires: Callable[[Dataset], object] = _nothing

    def tests(self, audit: Audit) -> tuple[str, ...]:
        """The one-run bound, where the claim is on adding or removing a record.

        Raises:
            InputError: Such canaries cannot be made of these data, or here.
        """
        if not self._applies(audit):
            return ()
        self.requires(audit.dataset)
        return (f"{self.name}:epsilon_lower",)

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """Train one model with canaries and some without; None if it does not apply, or was stopped too early."""
        spec, seed, data = audit.spec, audit.settings.seed, audit.dataset
        if not self._applies(audit) or not isinstance(spec, GradientSpec):
            if spec.algorithm in self.algorithms:
                audit.notes.append(f"{self.name} tests claims on adding or removing a record, and this is none.")
            return None
        check_places(audit)
        spec = replace(spec, init_seed=seed)
        wanted = CANARIES if audit.settings.trials is None else 2 * audit.settings.trials
        canaries = self.craft(audit, wanted, np.random.default_rng(trial_seed(seed, _CRAFT, 0)))
        coins = np.random.default_rng(trial_seed(seed, _COINS, 0)).integers(0, 2, len(canaries.y)) == 1
        if len(set(coins.tolist())) < 2:
            audit.notes.append(f"{self.name}: of {len(coins)} canaries the coins put all in or none: too few.")
            return None
        share, score = shares[self.tests(audit)[0]], self.scored(audit, spec, canaries)
        pool = Pool(np.vstack([data.x, canaries.x]), np.append(data.y, canaries.y))
        setup, streams = audit.trial_setup(spec, pool, score), (_ONE, _REFERENCES)
        one = (np.append(np.ones(len(data.y), dtype=bool), coins), trial_seed(seed, _ONE, 0))
        look = partial(audit.look, self.name, setup, [one], trials=len(coins))
        if audit.settings.control:
            level = spent_at(share, look(count=False))
            control = self._control(audit, level, spec, score, canaries, coins)
            audit.controls.extend([] if control is None else [control])
        scores = _coin_scores(audit, setup, canaries, coins, streams=streams)
        if scores is None:
            audit.notes.append(f"{self.name} was stopped after 0 comparisons of models: it needs one.")
            return None
        audit.notes.append(
            f"{self.name} trains one new model with {len(coins)} canaries from the recipe: it judges the training "
            "procedure."
        )
        arms = {"pair": f"{self.description} that fair coins put in, and those they left out", "coins": len(coins)}
        return scored_result(self.name, audit, share, scores, coins, arms, look=look(), references=REFERENCES)

    def _control(
        self, audit: Audit, share: float, spec: GradientSpec, score: Score, canaries: Pool, coins: NDArray[np.bool_]
    ) -> Control | None:
        """The same canaries and coins in trainings with half of the noise and with none, held against the claim."""
        data, claimed = audit.dataset, audit.claim_check.epsilon_claimed
        pool = Pool(np.vstack([data.x, canaries.x]), np.append(data.y, canaries.y))

        def scored(factor: float) -> Scores | None:
            setup, what = with_noise(audit, factor)(spec, pool, score), f"Positive control, {factor:g} of the noise"
            return _coin_scores(audit, setup, canaries, coins, streams=_CONTROLS, what=what)

        def refutes(without: Scores, with_canary: Scores) -> bool:
            scores, members = np.append(without, with_canary), np.arange(len(coins)) >= len(without)
            bound, test = one_run_findings(audit, scores, members, share)
            return bound.epsilon_lower > claimed or test.violated

        seed = trial_seed(audit.settings.seed, _RESAMPLES, 0)
        return canary_control(self.name, controlled_training(audit), scored, coins, refutes, seed=seed)

    def _applies(self, audit: Audit) -> bool:
        return audit.spec.algorithm in self.algorithms and audit.bundle.recipe.claim.adjacency != "replace-one"


def _coin_scores(
    audit: Audit,
    setup: TrialSetup,
    canaries: Pool,
    coins: NDArray[np.bool_],
    *,
    streams: tuple[int, int],
    what: str = "Training with and without canaries",
) -> Scores | None:
    """How much more the one model knows of each canary than models of the records alone; None where it was stopped.

    Args:
        audit: Whose trials and seed.
        setup: Of records and canaries.
        canaries: Last in its pool.
        coins: Which of them the one model is trained on.
        streams: Of seeds, of the one model and of the others.
        what: What progress is shown as.
    """
    seed, records = audit.settings.seed, np.ones(len(setup.pool.y) - len(coins), dtype=bool)
    without = np.append(records, np.zeros_like(coins))
    one, references = audit.trials.run(
        setup,
        [(np.append(records, coins), trial_seed(seed, streams[0], 0))],
        [(without, trial_seed(seed, streams[1], trial)) for trial in range(REFERENCES)],
        what=what,
    )
    if not len(one) or len(references) < REFERENCES:
        return None
    return within_class(one[0] - references.mean(axis=0), canaries.y)


BLANK = OneRunCanaries(
    "one-run-blank", partial(crafted, kind="blank"), loss_score, "empty records but for a feature each"
)
RANDOM_LABEL = OneRunCanaries(
    "one-run-random-label", partial(crafted, kind="random-label"), loss_score, "records with random labels"
)
MISLABELLED = OneRunCanaries(
    "one-run-mislabelled", partial(crafted, kind="mislabelled"), loss_score, "records with wrong labels"
)
MOVEMENT = replace(MISLABELLED, name="one-run-movement", scored=movement_score)
