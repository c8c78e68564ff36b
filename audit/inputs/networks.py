"""From the architecture a recipe names to one that can be trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.huggingface import folder_encoder
from dpaudit.audit.inputs.user_code import UserFunction, fault
from dpaudit.mechanisms.learning import architectures
from dpaudit.mechanisms.learning.spec import Architecture

if TYPE_CHECKING:
    from dpaudit.audit.inputs.recipe_tables import ArchitectureTable


@dataclass(frozen=True)
class UserBuild:
    """A function in a user's file that builds a network.

    Args:
        code: Where it is.
    """

    code: UserFunction

    def __call__(self, inputs: int, classes: int, **kwargs: Any) -> nn.Module:
        """Run the user's function.

        Raises:
            InputError: The code fails, or returns something else than a torch module.
        """
        build = self.code.load()
        try:
            module = build(inputs, classes, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise InputError(
                f"Expected {self.code.where} to build a module from ({inputs}, {classes}): {fault(error)}"
            ) from error
        if not isinstance(module, nn.Module):
            raise InputError(f"Expected {self.code.where} to return a torch.nn.Module, not {type(module).__name__}.")
        return module.train()  # else Opacus has no gradients of records


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
        rule = "code that only a model file names is not run" if table.code else "only a model file names its folder"
        raise InputError(
            f"architecture.name: Expected {table.name!r} to be named by a recipe that you give (--recipe): {rule}."
        )
    if not table.code:
        build = folder_encoder(folder / table.kwargs["folder"])
        kwargs = {key: value for key, value in table.kwargs.items() if key != "folder"}
        return Architecture(table.name, inputs, classes, kwargs, build)
    code = UserFunction.named(table.name, "architecture.name", folder)
    return Architecture(table.name, inputs, classes, table.kwargs, UserBuild(code))


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


def check_trainable(architecture: Architecture) -> None:
    """Refuse a user's network that has no gradient of each record, before anything is trained.

    Raises:
        InputError: It keeps statistics of batches (BatchNorm), does not take or return what it must, or fails.
    """
    if not isinstance(architecture.build, UserBuild):
        return
    from dpaudit.mechanisms.learning.opacus_path import check_architecture  # loads opacus

    try:
        check_architecture(architecture)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's own code runs in it
        text = str(error)
        advice = " GroupNorm and LayerNorm stay within a record." * ("BatchNorm" in text)
        ours = text.startswith("Expected architecture=")
        raise InputError((text if ours else f"architecture: {fault(error)}") + advice) from error
