"""From the architecture a recipe names to one that can be trained; the only place where a user's own code is run."""

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.mechanisms.learning import architectures
from dpaudit.mechanisms.learning.spec import Architecture

if TYPE_CHECKING:
    from dpaudit.audit.inputs.recipe_tables import ArchitectureTable

LARGEST_CODE = 1 << 20  # bytes


@dataclass(frozen=True)
class UserBuild:
    """A function in a user's file that builds a network; as data, so that worker processes can load it again.

    Args:
        path: The file.
        function: Name of the function in it.
        sha256: Of the file when it was named; another content is refused.
    """

    path: str
    function: str
    sha256: str

    def __call__(self, inputs: int, classes: int, **kwargs: Any) -> nn.Module:
        """Run the user's function.

        Raises:
            InputError: The code fails, or returns something else than a torch module.
        """
        where = f"{self.path}:{self.function}"
        try:
            module = _function(self.path, self.function, self.sha256)(inputs, classes, **kwargs)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"Expected {where} to build a module from ({inputs}, {classes}): {type(error).__name__}: {error}"
            ) from error
        if not isinstance(module, nn.Module):
            raise InputError(f"Expected {where} to return a torch.nn.Module, not {type(module).__name__}.")
        return module


@functools.lru_cache(maxsize=8)
def _function(path: str, function: str, sha256: str) -> Callable[..., Any]:
    if hashlib.sha256(read_regular(path, limit=LARGEST_CODE)).hexdigest() != sha256:
        raise InputError(f"Expected {path} not to change during an audit.")
    name = f"_dpaudit_user_{sha256[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"Expected {path} to be a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    try:
        spec.loader.exec_module(module)
        build = getattr(module, function)
    except BaseException:
        del sys.modules[name]
        raise
    if not callable(build):
        raise InputError(f"Expected {path}:{function} to be a function.")
    return build  # type: ignore[no-any-return]


def build_architecture(table: "ArchitectureTable", inputs: int, classes: int, folder: Path | None) -> Architecture:
    """The architecture of a recipe, for data of this many features and classes.

    Args:
        table: The recipe's [architecture].
        inputs: Features of one record.
        classes: Number of classes.
        folder: Where the path of a user's file begins; None: no permission to run any.

    Raises:
        InputError: The architecture does not fit the data, or is code that nobody here asked to run.
    """
    if not table.custom:
        if table.name == "logistic" and classes != 2:
            raise InputError(f"architecture.name: Expected 'logistic' with two classes, not {classes}.")
        return Architecture(table.name, inputs, classes, table.kwargs)
    if folder is None:
        raise InputError(
            f"architecture.name: Expected {table.name!r} to be named by a recipe that you give (--recipe): "
            "code that only a model file names is not run."
        )
    file, _, function = table.name.rpartition(":")
    path = folder / file
    if path.suffix != ".py" or not function.isidentifier():
        raise InputError(f"architecture.name: Expected {table.name!r} in the form 'my_model.py:build'.")
    digest = hashlib.sha256(read_regular(path, limit=LARGEST_CODE)).hexdigest()
    return Architecture(table.name, inputs, classes, table.kwargs, UserBuild(str(path), function, digest))


def parameter_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the trained parameters, in torch's order; named architectures take no memory for them.

    Raises:
        InputError: The architecture cannot be built for these data.
    """
    try:
        return architectures.parameter_shapes(architecture)
    except InputError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"architecture: {error}") from error
