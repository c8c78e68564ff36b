"""Where a model's randomness comes from: one stream per purpose, and fast noise on any device.

Every model has a seed, and its bits depend on that seed alone: not on the models trained beside it, nor on how the
work is cut up. Samplers are looked up by the mechanism's name; a mechanism without one here is drawn by NumPy.
"""

import math
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms.base import Mechanism, with_dimension
from dpaudit.mechanisms.defects import Defect

Sampler = Callable[[Any, torch.Generator, Tensor], None]  # (mechanism, generator, out): fills out

WORDS = 624  # 32-bit words in the state of the Mersenne twister


class Streams:
    """The independent random streams of one model.

    `init` draws the first weights, `sampling` Poisson batches, `batches` those of other samplers, `noise` the noise.
    Each is made when first used.

    Args:
        seed: The model's seed, a nonnegative integer of any size.
        device: Where the numbers are drawn; CPU and GPU give different numbers.

    >>> a, b = Streams(7, torch.device("cpu")), Streams(7, torch.device("cpu"))
    >>> bool(torch.rand(2, generator=a.noise).equal(torch.rand(2, generator=b.noise)))
    True
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed, self._device = int(seed), device

    @cached_property
    def init(self) -> torch.Generator:
        """Draws the first weights."""
        return _generator(self._seed, 0, self._device)

    @cached_property
    def sampling(self) -> torch.Generator:
        """Draws the Poisson batches."""
        return _generator(self._seed, 1, self._device)

    @cached_property
    def batches(self) -> np.random.Generator:
        """Draws the batches of a sampler, the same on any device."""
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(3,)))

    @cached_property
    def noise(self) -> torch.Generator:
        """Draws the noise."""
        return _generator(self._seed, 2, self._device)


@cache
def _fresh_state() -> NDArray[np.uint8]:
    """The state of a newly seeded generator: seed, counters, WORDS words in 64 bits each, what normal_ keeps."""
    state = cast(NDArray[np.uint8], torch.Generator().manual_seed(0).get_state().numpy())
    expected = np.random.RandomState(0).get_state(legacy=False)["state"]["key"]
    if not np.array_equal(state[24 : 24 + 8 * WORDS].view(np.uint64), expected):
        raise RuntimeError(
            f"Expected torch={torch.__version__} to keep the state of its CPU generator in the known form."
        )
    return state


def _generator(seed: int, stream: int, device: torch.device) -> torch.Generator:
    """A generator that is a function of (seed, stream) alone.

    torch's CPU generator uses 32 bits of a seed: of 100,000 models two would share their noise with probability 0.7.
    So its whole state is filled. On a GPU 64 bits count, where that probability is 3e-10.
    """
    # [seed, stream] as entropy would not do: SeedSequence([7, 1]) is SeedSequence([2**32 + 7, 0])
    sequence = np.random.SeedSequence(seed, spawn_key=(stream,))
    if device.type != "cpu":
        return torch.Generator(device).manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
    raw = np.random.SFC64(sequence).random_raw(WORDS // 2 + 1)
    state = _fresh_state().copy()
    words = state.view(np.uint64)  # numbers of the state begin at multiples of 8 bytes
    words[0] = raw[-1]  # what initial_seed() returns
    words[3 : 3 + WORDS] = raw[:-1].view(np.uint32)
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(state))
    return generator


def noise_stream(streams: Streams, defect: Defect) -> torch.Generator:
    """What draws a model's next noise vector; seeded anew before each where the planted fault is one fixed seed."""
    if defect.fixed_seed is not None:
        streams.noise.manual_seed(defect.fixed_seed)
    return streams.noise


def draw(
    mechanism: Mechanism, generator: torch.Generator, size: int, device: torch.device, *, out: Tensor | None = None
) -> Tensor:
    """One noise vector of the mechanism.

    Args:
        mechanism: Its law; `mechanism.dimension` is `size` or None.
        generator: Of the same device.
        size: Length of the vector, at least 1.
        device: Where it is drawn.
        out: float32, shape (size,), contiguous: filled and returned where given.

    Returns:
        float32, shape (size,).

    Raises:
        ValueError: The mechanism has another dimension.
    """
    if mechanism.dimension not in (None, size):
        raise ValueError(
            f"Expected {mechanism.name}.dimension={mechanism.dimension} to be the {size} numbers released."
        )
    noise = torch.empty(size, device=device) if out is None else out
    SAMPLERS.get(mechanism.name, from_numpy)(mechanism, generator, noise)
    return noise


def from_numpy(mechanism: Mechanism, generator: torch.Generator, out: Tensor) -> None:
    """The mechanism's own NumPy sampler, seeded from the torch generator: for a mechanism without a torch sampler."""
    seed = torch.randint(2**63 - 1, (2,), generator=generator, device=out.device).tolist()
    out.copy_(torch.from_numpy(with_dimension(mechanism, out.numel()).sample(np.random.default_rng(seed), 1)[0]))


def _gaussian(mechanism: Any, generator: torch.Generator, out: Tensor) -> None:
    out.normal_(0.0, mechanism.noise_multiplier * mechanism.clip, generator=generator)


def _standard_laplace(generator: torch.Generator, out: Tensor) -> None:
    """sign(V) E with V uniform on [-1, 1) and E = -log(1 - U): finite for every value that U takes."""
    out.uniform_(generator=generator).neg_().log1p_()
    out.copysign_(torch.empty_like(out).uniform_(-1.0, 1.0, generator=generator))


def _laplace(mechanism: Any, generator: torch.Generator, out: Tensor) -> None:
    _standard_laplace(generator, out)
    out.mul_(mechanism.scale)


def _gamma(shape: float, generator: torch.Generator, device: torch.device) -> float:
    """One Gamma(shape, 1) number in float64: a hidden scale multiplies the whole vector, so its rounding would show."""
    return float(torch._standard_gamma(torch.tensor([shape], dtype=torch.float64, device=device), generator=generator))


def _gamma_plrv(mechanism: Any, generator: torch.Generator, out: Tensor) -> None:
    """Laplace of scale 1/u for the whole vector, u ~ Gamma(k, theta); for k < 1 by Gamma(k) = Gamma(k+1) U^(1/k)."""
    log_u = math.log(_gamma(mechanism.k + 1.0, generator, out.device) * mechanism.theta)
    uniform = torch.rand(1, dtype=torch.float64, generator=generator, device=out.device)
    log_u += math.log1p(-float(uniform)) / mechanism.k
    _standard_laplace(generator, out)
    out.mul_(math.exp(min(-log_u, 700.0)))  # past it the vector is infinite in float32 anyway


def _gamma_plrv_iid(mechanism: Any, generator: torch.Generator, out: Tensor) -> None:
    """|x| = ((1-U)^(-1/k) - 1)/theta, the inverse of P(|x| > t) = (1 + theta t)^-k: no Gamma needs to be drawn."""
    _standard_laplace(generator, out)
    sign = out.sign()
    out.abs_().mul_(1.0 / mechanism.k).expm1_().mul_(1.0 / mechanism.theta).mul_(sign)


def _product(mechanism: Any, generator: torch.Generator, out: Tensor) -> None:
    """sigma |N(0,1)| g/|g|, g a standard normal vector; its norm summed in float64."""
    radius = torch.randn(1, dtype=torch.float64, generator=generator, device=out.device)
    out.normal_(generator=generator)
    length = torch.linalg.vector_norm(out, dtype=torch.float64)
    out.mul_(mechanism.sigma * abs(float(radius)) / float(length))


def _generalized_gaussian(mechanism: Any, generator: torch.Generator, out: Tensor) -> None:
    """scale V Gamma(1 + 1/beta)^(1/beta), V uniform on (-1, 1).

    |x|/scale is Gamma(1/beta)^(1/beta), and Gamma(a) is Gamma(a+1) U^(1/a) in law; drawn directly, Gamma(1/beta)
    underflows in float32 for large beta.
    """
    shape = torch.full_like(out, 1.0 + 1.0 / mechanism.beta)
    out.uniform_(-mechanism.scale, mechanism.scale, generator=generator)
    out.mul_(torch._standard_gamma(shape, generator=generator).pow_(1.0 / mechanism.beta))


def _gamma_scale_laplace(mechanism: Any, generator: torch.Generator, out: Tensor) -> None:
    """theta G E with E standard Laplace and G ~ Gamma(k), k > 2, for every coordinate."""
    scale = torch._standard_gamma(torch.full_like(out, mechanism.k), generator=generator)
    _standard_laplace(generator, out)
    out.mul_(scale.mul_(mechanism.theta))


SAMPLERS: dict[str, Sampler] = {
    "gaussian": _gaussian,
    "laplace": _laplace,
    "gamma-plrv": _gamma_plrv,
    "gamma-plrv-iid": _gamma_plrv_iid,
    "product": _product,
    "generalized-gaussian": _generalized_gaussian,
    "gamma-scale-laplace": _gamma_scale_laplace,
}
