"""Update rules beside plain gradient descent: any of torch's optimizers that treats every coordinate by itself.

What it is given is the noisy sum of clipped gradients divided by a public number, which is released already: whatever
is computed from it, moments and step sizes included, is post-processing and costs no privacy (Dwork and Roth (2014),
"The Algorithmic Foundations of Differential Privacy", Proposition 2.1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ELEMENTWISE = {
    name.lower(): name
    for name in (
        "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
    )
}  # fmt: skip
REFUSED = {
    "lbfgs": "it asks for the gradient again, without noise",
    "sparseadam": "it is for sparse gradients, and noise is dense",
    "adafactor": "it mixes the coordinates of a row and of a column, hence models that train together",
    "muon": "it mixes all coordinates of a matrix, hence models that train together",
}


@dataclass(frozen=True)
class UpdateRule:
    """How the noisy averaged gradient moves the weights.

    Args:
        name: That of a class of torch.optim, in small letters, one of ELEMENTWISE.
        kwargs: Its arguments but the learning rate: numbers, truth values and lists of numbers.

    Raises:
        ValueError: Another name, or another kind of argument.

    >>> UpdateRule("adam", {"betas": [0.9, 0.99]}).name
    'adam'
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in ELEMENTWISE:
            reason = f" ({REFUSED[self.name]})" if self.name in REFUSED else ""
            raise ValueError(f"Expected name={self.name!r}{reason} among {', '.join(ELEMENTWISE)}.")
        for key, value in self.kwargs.items():
            parts = value if isinstance(value, (list, tuple)) else [value]
            if not parts or not all(isinstance(part, (bool, int, float)) for part in parts):
                raise ValueError(f"Expected kwargs.{key}={value!r} to be a number, a truth value or a list of numbers.")

    def check(self, learning_rate: float) -> None:
        """Refuse arguments that torch's optimizer does not take.

        Raises:
            ValueError: The message names it and them.
        """
        import torch

        self.build([torch.zeros(1)], learning_rate)

    def build(self, weights: Sequence["torch.Tensor"], learning_rate: float) -> "torch.optim.Optimizer":
        """The optimizer of these weights.

        Raises:
            ValueError: It does not take the arguments.
        """
        import torch  # recipes are read without it

        kind = getattr(torch.optim, ELEMENTWISE[self.name])
        arguments = {key: tuple(item) if isinstance(item, list) else item for key, item in self.kwargs.items()}
        try:
            made: torch.optim.Optimizer = kind(list(weights), lr=learning_rate, **arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Expected kwargs={dict(self.kwargs)} to fit torch.optim.{kind.__name__}: {error}."
            ) from None
        return made


def take_step(optimizer: "torch.optim.Optimizer", gradients: Sequence["torch.Tensor"]) -> None:
    """Move the weights, in place, by the noisy averaged gradients of one step.

    Args:
        optimizer: From `UpdateRule.build`.
        gradients: One of the shape of each of its weights.
    """
    for weight, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        weight.grad = gradient
    optimizer.step()
