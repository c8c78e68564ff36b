"""Samplers as training loops run them, a file each: keys, releases, pairs of neighbours, and a simulator."""

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from inspect import Parameter, signature
from typing import Any, cast

from dpaudit.verify.samplers.balls_in_bins import BallsInBins
from dpaudit.verify.samplers.base import Batches, PassGame, Sampler
from dpaudit.verify.samplers.buffered_shuffle import BufferedShuffle
from dpaudit.verify.samplers.deterministic import Deterministic
from dpaudit.verify.samplers.random_allocation import RandomAllocation
from dpaudit.verify.samplers.shuffled import Shuffled
from dpaudit.verify.samplers.truncated_poisson import GhostPoisson, TruncatedPoisson
from dpaudit.verify.samplers.without_replacement import Refilled, WithoutReplacement

SAMPLERS: dict[str, type[Sampler]] = {
    sampler.kind: sampler
    for sampler in (
        Deterministic,
        Shuffled,
        BallsInBins,
        RandomAllocation,
        WithoutReplacement,
        TruncatedPoisson,
        BufferedShuffle,
    )
}


def sampler_keys(kind: str) -> dict[str, Field[Any]]:
    """The keys of a sampler's table with the field that each one fills; none for a kind that is no class here.

    >>> list(sampler_keys("random-allocation"))
    ['steps', 'times']
    """
    found = fields(cast(Any, SAMPLERS[kind])) if kind in SAMPLERS else ()
    return {field.metadata.get("key", field.name): field for field in found}


def required_keys(kind: str) -> list[str]:
    """The keys without which a sampler's table says nothing; none for a kind that is no class here.

    >>> required_keys("without-replacement")
    ['prob', 'steps']
    """
    parameters = signature(_builder(kind)).parameters if kind in SAMPLERS else {}
    return [key for key, field in sampler_keys(kind).items() if parameters[field.name].default is Parameter.empty]


def takes_steps(kind: str, given: Mapping[str, Any]) -> bool:
    """Whether steps beside a sampler's table are a key of it: not where they follow, nor beside a rate alone.

    >>> takes_steps("buffered-shuffle", {"records": 9, "batch": 2, "buffer": 3, "epochs": 4})
    False
    """
    keys = sampler_keys(kind)
    return "steps" in keys and "epochs" not in given and ("prob" in keys or set(given) != {"prob"})


def _builder(kind: str) -> Callable[..., Sampler]:
    return cast(Callable[..., Sampler], getattr(SAMPLERS[kind], "from_keys", SAMPLERS[kind]))


def sampler_from_dict(kind: str, keys: Mapping[str, Any]) -> Sampler:
    """A sampler from the keys of a `[claim.sampling]` table, without its kind.

    Raises:
        ValueError: A key is missing, unknown to this kind, or outside its domain.

    >>> sampler_from_dict("balls-in-bins", {"batches": 4, "epochs": 2}).steps
    8
    """
    names = sampler_keys(kind)
    unknown = sorted(set(keys) - set(names))
    if unknown:
        raise ValueError(f"unknown key 'sampling.{unknown[0]}': expected {', '.join(names)} with kind {kind!r}.")
    for key in required_keys(kind):
        if key not in keys:
            raise ValueError(f"expected sampling.{key} to be given with kind {kind!r}.")
    return _builder(kind)(**{names[key].name: value for key, value in keys.items()})


def sampler_to_dict(sampler: Sampler) -> dict[str, Any]:
    """The keys of its `[claim.sampling]` table without the kind; what is left at its default is left out.

    >>> sampler_to_dict(Shuffled(4, 2))
    {'batches': 4, 'epochs': 2}
    """
    named = {field: getattr(sampler, field.name) for field in fields(cast(Any, sampler))}
    return {field.metadata.get("key", field.name): value for field, value in named.items() if value != field.default}


__all__ = [
    "SAMPLERS",
    "BallsInBins",
    "Batches",
    "BufferedShuffle",
    "Deterministic",
    "GhostPoisson",
    "PassGame",
    "RandomAllocation",
    "Refilled",
    "Sampler",
    "Shuffled",
    "TruncatedPoisson",
    "WithoutReplacement",
    "required_keys",
    "sampler_from_dict",
    "sampler_keys",
    "sampler_to_dict",
    "takes_steps",
]
