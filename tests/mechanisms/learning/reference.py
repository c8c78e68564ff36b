"""The oracle of every training path: one model, one record at a time, autograd in float64. Never made clever."""

import math
import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.noise import Streams, draw
from dpaudit.mechanisms.learning.poisson import draws
from dpaudit.mechanisms.learning.spec import GradientSpec, Pool, TrainedModels

DEVICE = torch.device(os.environ.get("DPAUDIT_TEST_DEVICE", "cpu"))  # where the networks under test are trained


def noise_vector(mechanism: Mechanism, streams: Streams, size: int) -> NDArray[np.float64]:
    """One noise vector."""
    return draw(mechanism, streams.noise, size, DEVICE).double().cpu().numpy()


def first_module(spec: GradientSpec, seed: int) -> nn.Module:
    """The module with its first weights, drawn in float32."""
    source = Streams(seed if spec.init_seed is None else spec.init_seed, DEVICE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(source.init.initial_seed())
        module = build_module(spec.architecture)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if spec.init == "zeros" or (parameter.dim() == 1 and name.endswith("bias")):
                parameter.fill_(0.0)
            elif parameter.dim() >= 2:
                fresh = torch.empty_like(parameter, device=DEVICE)
                parameter.copy_(nn.init.xavier_normal_(fresh, generator=source.init))
    return module


def flat(models: TrainedModels, model: int) -> NDArray[np.float32]:
    """All parameters of one trained model."""
    return torch.cat([tensor[model].flatten() for tensor in models.parameters.values()]).numpy()


def record_gradient(module: nn.Module, x: Tensor, y: Tensor) -> NDArray[np.float64]:
    """The gradient of one record's cross-entropy, flat, in torch's parameter order."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    loss = nn.functional.cross_entropy(module(x[None]), y[None])
    gradients = torch.autograd.grad(loss, parameters)
    return np.concatenate([gradient.reshape(-1).numpy() for gradient in gradients])


def poisson_batch(streams: Streams, records: int, q: float) -> list[int]:
    """Who is in one Poisson batch: after each of them follow as many who are not as fail before a success.

    A failure has probability 1 - q.
    """
    batch, at = list[int](), -1
    while True:
        uniform = torch.rand(draws(q, records), dtype=torch.float64, generator=streams.sampling, device=DEVICE)
        for u in uniform.tolist():
            at += 1 + math.floor(math.log1p(-u) / math.log1p(-q))
            batch.append(at)
        if at >= records:
            return [i for i in batch if i < records]


def clipped(gradient: NDArray[np.float64], clip: float, order: float) -> NDArray[np.float64]:
    """gradient * min(1, clip / |gradient|_p)."""
    size = max(abs(gradient)) if math.isinf(order) else sum(abs(gradient) ** order) ** (1 / order)
    return gradient if size <= clip else gradient * (clip / size)


class Adam:
    """Kingma and Ba (2015), Algorithm 1, but for the step size."""

    def __init__(self, size: int, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        self.betas, self.eps, self.step = betas, eps, 0
        self.first, self.second = np.zeros(size), np.zeros(size)

    def __call__(self, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        """m / (sqrt(v) + eps), both without their bias to 0."""
        (a, b), self.step = self.betas, self.step + 1
        self.first = a * self.first + (1 - a) * gradient
        self.second = b * self.second + (1 - b) * gradient**2
        return np.asarray(self.first / (1 - a**self.step) / (np.sqrt(self.second / (1 - b**self.step)) + self.eps))


def train_one(spec: GradientSpec, pool: Pool, members: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    """The parameters of one model after all steps, flat, in torch's parameter order."""
    defect = spec.defect
    order = spec.mechanism.clip_norm if defect.clip_norm is None else defect.clip_norm
    streams = Streams(seed, DEVICE)
    module = first_module(spec, seed).double()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    x, y = torch.from_numpy(pool.x).double(), torch.from_numpy(pool.y)
    weights = nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    velocity = np.zeros_like(weights)
    adam = None if spec.update_rule is None else Adam(len(weights), **spec.update_rule.kwargs)
    sampler = getattr(spec, "sampler", None)
    history = None if sampler is None else sampler.draw(streams.batches, len(members))
    for step in range(spec.steps):
        batch = np.flatnonzero(members).tolist()
        if history is not None:
            batch = [i for i in history[step].tolist() if members[i]]
        elif spec.sampling_prob < 1:
            batch = [i for i in poisson_batch(streams, len(members), spec.sampling_prob) if members[i]]
        total = np.zeros_like(weights)
        for i in batch:
            gradient = record_gradient(module, x[i], y[i])
            exempt = defect.unclipped_class is not None and int(y[i]) == defect.unclipped_class
            total += gradient if exempt else clipped(gradient, spec.mechanism.clip, order)
        if defect.fixed_seed is not None:
            streams.noise.manual_seed(defect.fixed_seed)
        noise = noise_vector(spec.mechanism, streams, len(weights)) * defect.noise_factor
        if defect.divide_before_noise:
            noise = noise / spec.expected_batch_size
        velocity = spec.momentum * velocity + (total + noise) / spec.expected_batch_size
        moved = velocity if adam is None else adam((total + noise) / spec.expected_batch_size)
        weights = weights - spec.learning_rate * moved
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.from_numpy(weights), parameters)
    return weights
