"""What an accountant is to us, and what the adapters share."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import numpy as np

from dpaudit.mechanisms.base import IIDCoordinates, Mechanism
from dpaudit.verify.claims import Phase
from dpaudit.verify.upper.numerics.radii import radius


class Accountant(Protocol):
    """Any callable that says what `steps` Poisson-sampled releases cost under add-remove adjacency.

    It says no by raising ValueError, TypeError, RuntimeError or MemoryError; any other exception is a crash.
    """

    def __call__(self, mechanism: Mechanism, sampling_prob: float, steps: int, delta: float, /) -> float: ...


@runtime_checkable
class HistoryAccountant(Protocol):
    """An accountant that can also be told about every release by itself."""

    def history(self, phases: Sequence[Phase], delta: float) -> float:
        """epsilon at delta of all phases together, in order."""
        ...


def require_package(name: str) -> None:
    """Refuse to go on without an optional package.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    if find_spec(name) is None:
        raise ImportError(f"Expected the package {name} to be installed: pip install {name}.")


def gaussian_multiplier(mechanism: Mechanism) -> float:
    """Standard deviation of normal noise in units of the largest l2 norm of a contribution.

    Raises:
        NotImplementedError: Other noise.
        ValueError: The l2 norm is unbounded as the dimension is not set.
    """
    structure = mechanism.structure
    if not isinstance(structure, IIDCoordinates) or structure.gaussian_sigma is None:
        raise NotImplementedError(f"Expected mechanism={mechanism.name!r} to have normal noise.")
    return structure.gaussian_sigma / _bounded(mechanism, 2.0)


def laplace_multiplier(mechanism: Mechanism) -> float:
    """Scale of Laplace noise in units of the largest l1 norm of a contribution.

    Raises:
        NotImplementedError: Other noise.
        ValueError: The l1 norm is unbounded as the dimension is not set.
    """
    structure = mechanism.structure
    if not isinstance(structure, IIDCoordinates) or structure.laplace_scale is None:
        raise NotImplementedError(f"Expected mechanism={mechanism.name!r} to have Laplace noise.")
    return structure.laplace_scale / _bounded(mechanism, 1.0)


def _bounded(mechanism: Mechanism, order: float) -> float:
    length = radius(mechanism, order, "add-remove")
    if length is None:
        raise ValueError(f"Expected {mechanism.name}.dimension to be set: it bounds the l{order:g} norm.")
    return length


@contextmanager
def quiet() -> Iterator[None]:
    """Silence a package's warnings and log lines: its answer is what is judged."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before
