"""What an accountant is to us, and what the adapters share."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from dpaudit.mechanisms.base import LaplaceCoordinates, Mechanism, NormalCoordinates
from dpaudit.verify.claims import Phase
from dpaudit.verify.upper.shift_norms import radius


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


def number_and_rounding(answer: object) -> tuple[float, float]:
    """An accountant's answer as a float, and what its type may have rounded it by, relative.

    Numbers are int, float, NumPy's scalars, and arrays and tensors of no dimension.

    Raises:
        TypeError: It is no number.

    >>> number_and_rounding(np.float32(0.1))
    (0.10000000149011612, 5.960464477539063e-08)
    """
    value: Any = answer
    if not isinstance(value, np.generic) and getattr(value, "ndim", None) == 0:
        with suppress(TypeError, ValueError, RuntimeError):  # as of a tensor with a gradient
            value = np.asarray(value)[()]
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"returned {answer!r}, which is not a number")
    return float(value), float(np.finfo(type(value)).eps) / 2 if isinstance(value, np.floating) else 0.0


class PackageAccountant:
    """An accountant of another package, which is told about histories.

    Raises:
        ImportError: The package is not installed; the message says how to install it.
    """

    package: ClassVar[str]

    def __post_init__(self) -> None:
        if find_spec(self.package) is None:
            raise ImportError(f"Expected the package {self.package} to be installed: pip install {self.package}.")

    def __call__(self, mechanism: Mechanism, sampling_prob: float, steps: int, delta: float, /) -> float:
        """epsilon at delta of `steps` releases.

        Raises:
            NotImplementedError: The accountant does not know the noise.
        """
        return self.history([Phase(mechanism, steps, sampling_prob)], float(delta))

    def history(self, phases: Sequence[Phase], delta: float) -> float:
        """epsilon at delta of all phases together, in order.

        Raises:
            NotImplementedError: The accountant does not know the noise.
        """
        raise NotImplementedError


def gaussian_multiplier(mechanism: Mechanism) -> float:
    """Standard deviation of normal noise in units of the largest l2 norm of a contribution.

    Raises:
        NotImplementedError: Other noise.
        ValueError: The l2 norm is unbounded as the dimension is not set.
    """
    structure = mechanism.structure
    if not isinstance(structure, NormalCoordinates):
        raise NotImplementedError(f"Expected mechanism={mechanism.name!r} to have normal noise.")
    return structure.sigma / _bounded(mechanism, 2.0)


def laplace_multiplier(mechanism: Mechanism) -> float:
    """Scale of Laplace noise in units of the largest l1 norm of a contribution.

    Raises:
        NotImplementedError: Other noise.
        ValueError: The l1 norm is unbounded as the dimension is not set.
    """
    structure = mechanism.structure
    if not isinstance(structure, LaplaceCoordinates):
        raise NotImplementedError(f"Expected mechanism={mechanism.name!r} to have Laplace noise.")
    return structure.scale / _bounded(mechanism, 1.0)


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
