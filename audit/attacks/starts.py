"""Public weights that an audit's models may start from, and what the network says of possible canaries from there.

No guarantee of DP-SGD depends on the first weights: they are public, and whoever attacks may have chosen them. So an
audit fixes them, knows them, and looks for a canary that they and the data both find unlikely. Where the training
takes weights, worst-case ones replace the recipe's own: fitted to the audit's own records beforehand, without noise,
so that those records' gradients are small and do not carry the noise of one step into the next.
Annamalai and De Cristofaro (2024), "Nearly Tight Black-Box Auditing of Differentially Private Machine Learning".
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import Array, Audit
from dpaudit.audit.attacks.membership import negative_loss
from dpaudit.audit.trials.engine import Score, Scores, TrialSetup, trial_seed
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning.architectures import parameter_shapes
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, GradientSpec, Pool, TrainedModels
from dpaudit.mechanisms.learning.training import logits, resolve_device, train

FITTING_STEPS, FITTING_VISITS, FITTING_MOMENTUM = 200, 20, 0.9
OWN_MODELS = 10  # of an own loop, that tell what it finds unlikely
_STREAM = 100  # of seeds: batches of the training without noise
_NO_NOISE = Defect(noise_factor=0.0)


def with_first_weights(audit: Audit, spec: GradientSpec) -> GradientSpec:
    """The training from fitted first weights, where the built-in one is audited and they fit better than its own.

    An own loop draws its first weights itself. Where trials were stopped, the recipe's own stay.
    """
    if audit.settings.trainer is not train:
        return spec
    fitting = DPSGDSpec(
        architecture=spec.architecture,
        mechanism=spec.mechanism,
        steps=max(FITTING_STEPS, FITTING_VISITS * spec.visits),
        sampling_prob=1.0,
        expected_batch_size=float(len(audit.dataset.y)),
        learning_rate=spec.learning_rate,
        momentum=FITTING_MOMENTUM,
        init_seed=spec.init_seed,
    )
    pool = Pool(audit.dataset.x, audit.dataset.y)
    everyone = np.ones(len(pool.y), dtype=bool)
    flat = weights_without_noise(audit, fitting, pool, [everyone])
    if flat is None:
        return spec
    fitted = replace(spec, first_weights=_named(spec.architecture, flat[0]))
    score = partial(_mean_loss, x=pool.x, y=pool.y)
    losses = [_without_noise(audit, _one_step(start), score, pool, [~everyone]) for start in (spec, fitted)]
    return fitted if losses[0] is not None and losses[1] is not None and losses[1][0] < losses[0][0] else spec


def unlikely(audit: Audit, spec: GradientSpec, probes: NDArray[np.float32]) -> Array | None:
    """How likely a network finds each label at some inputs, at its first weights or after training, if that is more.

    A label that either of them finds likely has next to no gradient for part of the training. The trained network is
    one without noise, on the audit's records alone. An own loop has first weights of its own, so that only it can tell
    what it finds unlikely: a few models of it on those records do, their noise averaged out.

    Args:
        audit: Whose records.
        spec: The training, its first weights fixed.
        probes: Inputs, shape (probes, inputs).

    Returns:
        Log-odds, shape (probes, classes); None where the trials were stopped.
    """
    score = partial(_outputs, x=probes)
    pool = Pool(audit.dataset.x, audit.dataset.y)
    everyone = np.ones(len(pool.y), dtype=bool)
    if audit.settings.trainer is not train:
        trials = [(everyone, trial_seed(audit.settings.seed, _STREAM, 1 + model)) for model in range(OWN_MODELS)]
        (outputs,) = audit.trials.run(audit.trial_setup(spec, pool, score), trials, what="Choosing a canary")
        return log_odds(outputs.mean(axis=0).reshape(len(probes), -1)) if len(outputs) == OWN_MODELS else None
    before = _without_noise(audit, _one_step(spec), score, pool, [~everyone])
    after = _without_noise(audit, spec, score, pool, [everyone])
    if before is None or after is None:
        return None
    both = np.stack([before, after]).reshape(2, len(probes), -1)
    return np.asarray(log_odds(both).max(axis=0))


def log_odds(outputs: Array) -> Array:
    """log p_y - log(1 - p_y) of every label y, from logits along the last axis.

    >>> log_odds(np.array([0.0, 0.0])).tolist()
    [0.0, 0.0]
    """
    classes = outputs.shape[-1]
    others = np.where(np.eye(classes, dtype=bool), -np.inf, outputs[..., None, :])
    top = others.max(axis=-1)
    with np.errstate(invalid="ignore"):  # a model that is not finite has a score of NaN, which is told
        return np.asarray(outputs - top - np.log(np.exp(others - top[..., None]).sum(axis=-1)))


def weights_without_noise(
    audit: Audit, spec: GradientSpec, pool: Pool, members: Sequence[NDArray[np.bool_]]
) -> Array | None:
    """Flat weights of models trained on some members without noise, shape (models, weights); None if stopped."""
    return _without_noise(audit, spec, flat_weights, pool, members)


def flat_weights(models: TrainedModels) -> Scores:
    """All weights of each model in torch's order, shape (models, weights)."""
    flat = torch.cat([tensor.flatten(1) for tensor in models.parameters.values()], dim=1)
    return np.asarray(flat.numpy().astype(np.float64))


def _without_noise(
    audit: Audit, spec: GradientSpec, score: Score, pool: Pool, members: Sequence[NDArray[np.bool_]]
) -> Array | None:
    setup = TrialSetup(replace(spec, defect=_NO_NOISE), pool, score, train, resolve_device(audit.settings.device))
    trials = [(row, trial_seed(audit.settings.seed, _STREAM, 0)) for row in members]
    (scores,) = audit.trials.run(setup, trials, what="Choosing a canary")
    return scores if len(scores) == len(trials) else None


def _one_step(spec: GradientSpec) -> GradientSpec:
    """The training cut short: of nobody's records and without noise it ends where it begins."""
    return spec.first_step() if isinstance(spec, DPSGDSpec) else replace(spec, steps=1)


def _mean_loss(models: TrainedModels, x: NDArray[np.float32], y: NDArray[np.int64]) -> Scores:
    """Mean cross-entropy of each model at some records."""
    losses = [-negative_loss(outputs, y).mean() for outputs in logits(models, x).numpy()]
    return np.asarray(np.nan_to_num(np.array(losses), nan=np.inf))


def _outputs(models: TrainedModels, x: NDArray[np.float32]) -> Scores:
    return np.asarray(np.nan_to_num(logits(models, x).flatten(1).numpy().astype(np.float64)))


def _named(architecture: Architecture, flat: Array) -> Mapping[str, NDArray[np.float32]]:
    """The inverse of `flat_weights` for one model."""
    shapes = parameter_shapes(architecture)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(flat.astype(np.float32), ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
