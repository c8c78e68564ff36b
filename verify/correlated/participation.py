"""In which steps of a training with correlated noise one record may take part."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from dpaudit.mechanisms.base import Domain, keep_as_python_numbers
from dpaudit.mechanisms.quoting import shown

Kind = Literal["single", "fixed-order", "min-sep", "cyclic-poisson"]
SEPARATION = Domain(1, 10**9, (1, 1000), "steps between two participations", closed_low=True, integer=True)
TIMES = Domain(1, 10**9, (1, 100), "participations", closed_low=True, integer=True)
PROB = Domain(1e-300, 1.0, (1e-3, 1.0), "probability", closed_low=True, closed_high=True)
DOMAINS = {"separation": SEPARATION, "times": TIMES, "groups": SEPARATION, "prob": PROB}
REQUIRED: dict[str, tuple[str, ...]] = {
    "single": (),
    "fixed-order": ("separation",),
    "min-sep": ("separation",),
    "cyclic-poisson": ("groups", "prob"),
}
OPTIONAL: dict[str, tuple[str, ...]] = {"min-sep": ("times",)}


@dataclass(frozen=True)
class Participation:
    """A participation schema: the sets of steps in which one record may contribute.

    Choquette-Choo et al. (2023), "Multi-Epoch Matrix Factorization Mechanisms" (arXiv 2211.06530), Section 2, and
    "(Amplified) Banded Matrix Factorization" (arXiv 2306.08153), Sections 2 and 4.

    Args:
        kind: "single": one step, any. "fixed-order": every `separation`-th step, from any of the first `separation`
            on. "min-sep": any steps that are at least `separation` apart, at most `times` of them. "cyclic-poisson":
            records are split into `groups` beforehand, independently of the data; steps visit the groups in turn, and
            every record of the group is in with probability `prob`, independently.
        separation: b, at least 1.
        times: k, at least 1; None: as often as the separation allows.
        groups: b, at least 1.
        prob: In [1e-300, 1].

    Raises:
        TypeError, ValueError: A field is missing, unknown to the kind, or outside its domain.

    >>> Participation("min-sep", separation=3, times=9).spacing(10)
    (3, 4)
    """

    kind: Kind
    separation: int | None = None
    times: int | None = None
    groups: int | None = None
    prob: float | None = None

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        if self.kind not in get_args(Kind):
            raise ValueError(
                f"Expected participation.kind={shown(self.kind)} among {', '.join(map(repr, get_args(Kind)))}."
            )
        known = (*REQUIRED[self.kind], *OPTIONAL.get(self.kind, ()))
        for name, domain in DOMAINS.items():
            value = getattr(self, name)
            if value is None:
                if name in REQUIRED[self.kind]:
                    raise ValueError(f"expected participation.{name} to be given with kind {self.kind!r}.")
                continue
            if name not in known:
                raise ValueError(f"unknown key 'participation.{name}': kind {self.kind!r} does not have it.")
            domain.validate(f"participation.{name}", value)

    @property
    def sampled(self) -> bool:
        """Whether coins decide who takes part."""
        return self.kind == "cyclic-poisson"

    @property
    def summary(self) -> str:
        """The schema in words."""
        match self.kind:
            case "single":
                return "a record takes part in one step at most"
            case "fixed-order":
                return f"a record takes part in every {self.separation}-th step, from one that is fixed beforehand on"
            case "min-sep":
                often = "" if self.times is None else f"at most {self.times} times and "
                return f"a record takes part {often}in steps at least {self.separation} apart"
        return (
            f"records are in {self.groups} group(s) fixed beforehand; steps visit them in turn, and each record of "
            f"a group is in with probability {self.prob:g}, independently and secretly"
        )

    def spacing(self, steps: int) -> tuple[int, int]:
        """(b, k): participations are at least b apart, and at most k in so many steps."""
        apart = int(self.separation or self.groups or 1)
        most = -(-steps // apart)
        times = most if self.times is None else min(int(self.times), most)
        alone = self.kind == "single" or (self.kind == "min-sep" and times == 1)
        return (steps, 1) if alone else (apart, times)

    def to_dict(self) -> dict[str, Any]:
        """The keys of its table."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def participation_from_dict(keys: Mapping[str, Any]) -> Participation:
    """A schema from its table.

    Raises:
        TypeError, ValueError: As `Participation`, or a key is unknown.
    """
    known = ("kind", *DOMAINS)
    unknown = sorted(set(keys) - set(known))
    if unknown:
        raise ValueError(f"unknown key 'participation.{unknown[0]}': expected {', '.join(known)}.")
    if "kind" not in keys:
        raise ValueError(f"expected participation.kind among {', '.join(map(repr, get_args(Kind)))}.")
    return Participation(**keys)
