"""Certificates: made, accepted by the independent checker, refused once a field is moved towards a false statement."""

import copy
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flint")

from dpaudit.mechanisms import GammaPLRV, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.gamma_plrv_iid import GammaPLRVIID
from dpaudit.mechanisms.gamma_scale_laplace import GammaScaleLaplace
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.rigorous import check_certificate
from dpaudit.verify.rigorous import check_sampled_certificate as checker
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket
from dpaudit.verify.rigorous.certificates import NotCovered, certificate
from dpaudit.verify.samplers import (
    SAMPLERS,
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)

Certificate = dict[str, Any]


def single(mechanism: Mechanism, epsilon: float, delta: float, **more: Any) -> Claim:
    return Claim.single(mechanism, epsilon=epsilon, delta=delta, **more)


CLAIMS: dict[str, Claim] = {
    "gaussian refuted": single(Gaussian(1.0), 1.0, 0.1),
    "gaussian sampled refuted": single(Gaussian(1.0), 0.4, 1e-5, steps=30, sampling_prob=0.05),
    "laplace refuted": single(Laplace(1.0, dimension=4), 0.9, 1e-5),
    "power refuted": single(GeneralizedGaussian(1.5, 2.0, dimension=4), 0.3, 1e-4),
    "plrv refuted": single(GammaPLRVIID(5.0, 0.2, dimension=2), 0.5, 1e-5),
    "scale laplace refuted": single(GammaScaleLaplace(9.0, 0.1, dimension=2), 0.5, 1e-5),
    "hidden refuted": single(GammaPLRV(50.0, 0.02, dimension=2), 0.3, 1e-5),
    "told scale refuted": single(GammaPLRV(30.0, 0.05, dimension=300), 1.0, 0.03, steps=20, sampling_prob=0.05),
    "shared scale refuted": single(GammaPLRV(50.0, 0.02, dimension=400), 1.0, 0.05),
    "product refuted": single(Product(3.0, dimension=40), 0.5, 1e-3),
    "product composed refuted": single(Product(3.0, dimension=3), 0.1, 1e-6, steps=2, sampling_prob=0.5),
    "replaced refuted": single(Gaussian(1.0), 1.0, 0.1, adjacency="replace-one"),
    "phases refuted": Claim(0.3, 1e-5, [Phase(Gaussian(2.0), 3), Phase(Laplace(2.0), 2)]),
    "gaussian certified": single(Gaussian(1.0), 1.0, 0.13),
    "gaussian phases certified": Claim(3.0, 1e-2, [Phase(Gaussian(2.0), 2), Phase(Gaussian(3.0), 4)]),
    "gaussian sampled certified": single(Gaussian(2.0), 1.0, 1e-5, steps=10, sampling_prob=0.05),
    "replaced sampled certified": single(
        Gaussian(2.0), 1.0, 9e-10, steps=10, sampling_prob=0.05, adjacency="replace-one"
    ),
    "laplace l1 certified": single(Laplace(1.0, clip_norm=1.0), 0.5, 0.23),
    "laplace l2 certified": single(Laplace(2.0, dimension=100), 1.0, 1e-5, steps=50, sampling_prob=0.01),
    "laplace smoothed certified": single(Laplace(1.5, dimension=100), 1.0, 2.5e-3, steps=20, sampling_prob=0.1),
    "hidden certified": single(GammaPLRV(500.0, 0.001, dimension=50), 1.0, 1e-5, steps=50, sampling_prob=0.01),
    "hidden smoothed certified": single(
        GammaPLRV(20_000.0, 3.35e-5, dimension=100), 1.0, 3e-3, steps=20, sampling_prob=0.1
    ),
    "passes refuted": Claim(1.0, 1e-5, [Phase(Laplace(2.0, dimension=4), sampler=Shuffled(5, 4))]),
    "swapped passes refuted": Claim(
        1.0, 1e-5, [Phase(Gaussian(2.5), sampler=Shuffled.of(26, 6, 4, reshuffle="once"))], "replace-one"
    ),
    "passes and releases refuted": Claim(
        0.7, 1e-5, [Phase(Gaussian(2.5), sampler=Shuffled(9, 4)), Phase(Gaussian(2.0), 20, 0.05)], "zero-out"
    ),
    "straddling refuted": Claim(
        3.01, 1e-5, [Phase(Gaussian(1.1), sampler=Shuffled.of(6000, 256, 20, last_batch="straddling"))], "zero-out"
    ),
    "bins refuted": Claim(0.4, 1e-5, [Phase(Gaussian(1.5), sampler=BallsInBins(8, 2))]),
    "allocation refuted": Claim(0.7, 1e-5, [Phase(Gaussian(1.5), sampler=RandomAllocation(8, 3))]),
    "fixed size refuted": Claim(0.7, 1e-5, [Phase(Gaussian(2.0), sampler=WithoutReplacement(0.1, 30))], "zero-out"),
    "fixed batches refuted": Claim(3.0, 1e-5, [Phase(Gaussian(2.0), sampler=Deterministic(7, 9))], "zero-out"),
    "bins certified": Claim(0.6, 1.44e-5, [Phase(Gaussian(3.0), sampler=BallsInBins(4, 1))], "zero-out"),
    "allocation certified": Claim(2.5, 1.61e-4, [Phase(Gaussian(1.5), sampler=RandomAllocation(4, 2))]),
    "revealed certified": Claim(6.0, 3e-5, [Phase(Gaussian(2.5), sampler=Shuffled(29, 9))], "zero-out"),
    "swapped shuffled certified": Claim(3.92, 1e-5, [Phase(Gaussian(10.0), sampler=Shuffled(12, 71))], "replace-one"),
    "shuffled certified": Claim(
        0.2,
        1e-5,
        [Phase(Gaussian(8.0), sampler=Shuffled.of(905, 10, 3)), Phase(Gaussian(12.0), sampler=Shuffled(30, 2))],
    ),
    "fixed size certified": Claim(0.42, 1e-5, [Phase(Gaussian(4.0), sampler=WithoutReplacement(0.05, 30))], "zero-out"),
    "swapped fixed size certified": Claim(
        0.9,
        1e-5,
        [Phase(Gaussian(4.0), sampler=WithoutReplacement(0.05, 30)), Phase(Gaussian(9.0), 9, 0.1)],
        "replace-one",
    ),
    "one dimension certified": single(GeneralizedGaussian(3.0, 3.0, dimension=1), 1.0, 5e-2),
}


@cache
def made(name: str) -> str:
    claim = CLAIMS[name]
    found = certificate(claim, check(claim))
    assert isinstance(found, dict), (name, found)
    return json.dumps(found)


DEAR = (
    "scale laplace refuted",
    "product composed refuted",
    "plrv refuted",
    "power refuted",
    "gaussian sampled refuted",
    "product refuted",
    "swapped passes refuted",
    "passes and releases refuted",
    "straddling refuted",
    "bins refuted",
    "allocation refuted",
    "fixed size refuted",
    "bins certified",
    "allocation certified",
    "shuffled certified",
    "fixed size certified",
    "swapped fixed size certified",
)
MARKED = [pytest.param(name, marks=pytest.mark.slow) if name in DEAR else name for name in CLAIMS]


def needs_the_second_file(name: str) -> bool:
    claim = CLAIMS[name]
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    replaced = claim.adjacency == "replace-one" and sampled and "certified" in name
    return replaced or any(phase.sampler is not None for phase in claim.phases)


@pytest.mark.parametrize("name", MARKED)
def test_certificates_are_accepted(name: str) -> None:
    """By both files, and by the first one alone where that reads all."""
    found = checker.accepted(made(name))
    assert found.startswith(name.split()[-1])
    if needs_the_second_file(name):
        with pytest.raises(AssertionError, match=r"check_sampled_certificate\.py"):
            check_certificate.accepted(made(name))
    elif name not in DEAR:
        assert check_certificate.accepted(made(name)) == found


def scaled(text: str, factor: float) -> str:
    return repr(float(text) * factor)


Change = Callable[[Certificate], Any]


def worse(data: Certificate, draw: random.Random) -> Iterator[Change]:
    """Changes of one field, each of which makes the certificate say something it does not prove."""
    by = 1 + draw.uniform(0.02, 0.5)
    yield from worse_event(data, by) if data["verdict"] == "refuted" else worse_inputs(data, by)
    yield from worse_claim(data, by)
    yield lambda c: c.update(format="dpaudit-certificate/9")
    yield lambda c: c.update(kind="trust-me")


def worse_event(data: Certificate, by: float) -> Iterator[Change]:
    part, claim = data["event"]["phases"][0], data["claim"]["phases"][0]
    longest, shown = float(claim["mechanism"]["clip"]) * 2.0, data["event"]["window"]

    def of_part(**new: Any) -> Change:
        return lambda c: c["event"]["phases"][0].update(new)

    yield lambda c: c.update(P_lower=scaled(c["P_lower"], by))
    yield lambda c: c.update(Q_upper=scaled(c["Q_upper"], 1 / by))
    yield lambda c: c["claim"].update(delta=scaled(c["P_lower"], by))
    yield lambda c: c["claim"].update(epsilon=scaled(c["claim"]["epsilon"], 40 * by))
    yield lambda c: c.update(verdict="certified")
    yield lambda c: c["event"].update(window=1)
    yield lambda c: c["event"].update(bits=32)
    yield lambda c: c["event"].update(threshold=-shown)
    yield lambda c: c["event"].update(threshold=shown + 1)
    yield lambda c: c["event"]["phases"].pop()
    yield lambda c: c["pair"].update(direction={"add": "remove", "remove": "add"}[c["pair"]["direction"]])
    yield lambda c: c["pair"].update(direction="swap")
    yield of_part(value=scaled(part["value"], -by))
    yield of_part(value=repr(longest * by))
    yield of_part(value="0")
    yield of_part(labels=part["labels"][::-1])
    yield of_part(labels=part["labels"][1:])
    if "game" in part:
        yield of_part(scores=part["scores"][::-1])
        yield of_part(scores=[score + 1 for score in part["scores"]])
        yield of_part(value=scaled(part["value"], 0.5 / by))
        yield of_part(edges=[repr(float(edge) + longest) for edge in part["edges"]])
        yield of_part(labels=[-label for label in part["labels"]])
        yield lambda c: c["event"]["phases"].append(part)
        yield of_part(game=7)
        yield of_part(game=-1)
        yield of_part(scores=[part["scores"][0] - 10**6, *part["scores"][1:]])
        yield of_part(labels=[*part["labels"], part["labels"][-1]])
    if "scale" in part:
        yield from worse_scale(part["scale"], by, room=int(claim["mechanism"]["dimension"]) - part["count"])
        yield of_part(scale=None)
        yield of_part(scale={})
        yield of_part(scores=[part["scores"][1], part["scores"][0], *part["scores"][2:]])
        yield lambda c: c["pair"].update(direction="add")
    if "count" in part:
        yield of_part(count=10**7)
        yield of_part(count=0)
        yield of_part(window=1)
        yield of_part(edges=part["edges"][::-1])
        yield of_part(edges=[*part["edges"], part["edges"][0]])
        yield of_part(edges=[scaled(edge, 1e-3) for edge in part["edges"]])
        yield of_part(scores=part["scores"][1:])
        yield of_part(scores=part["scores"][::-1])
    else:
        yield of_part(level="-1")
        yield of_part(level=scaled(part["level"], 50 * by))
        yield of_part(places=[places[::-1] for places in part["places"]])
        yield of_part(places=[[places[0], places[-1]] for places in part["places"]])
        yield of_part(places=part["places"][1:])


def worse_scale(scale: dict[str, Any], by: float, room: int) -> Iterator[Change]:
    """Fewer or coarser nodes, other gauges, and cells of their size that are none."""

    def of_scale(**new: Any) -> Change:
        return lambda c: c["event"]["phases"][0]["scale"].update(new)

    first, last = scale["nodes"]
    for nodes in ([first, 0], [0, last], [last, first], [first], ["0", last]):
        yield of_scale(nodes=nodes)
    for step in (scaled(scale["step"], 9 * by), scaled(scale["step"], 1 / (9 * by)), "-" + scale["step"], "0"):
        yield of_scale(step=step)
    for gauges in (room + 1, -1, "1"):
        yield of_scale(gauges=gauges)
    if scale["sizes"]:
        yield of_scale(gauges=0)
        yield of_scale(gauges=scale["gauges"] // 2)
        yield of_scale(sizes=scale["sizes"][::-1])
        yield of_scale(sizes=scale["sizes"][1:])
        yield of_scale(sizes=["-1", *scale["sizes"][1:]])
        yield of_scale(sizes=[scaled(size, by) for size in scale["sizes"]])


def worse_inputs(data: Certificate, by: float) -> Iterator[Change]:
    found = data["inputs"]

    def of_inputs(**new: Any) -> Change:
        return lambda c: c["inputs"].update(new)

    yield lambda c: c["claim"].update(delta=scaled(c["steps"][-1]["at_most"], 1 / by))
    yield lambda c: c["steps"][-1].update(at_most=scaled(c["steps"][-1]["at_most"], 1 / by))
    yield lambda c: c["steps"][-1].update(at_most=scaled(c["claim"]["delta"], by))
    yield lambda c: c["claim"].update(epsilon=scaled(c["claim"]["epsilon"], 1 / by**2))
    yield lambda c: c.update(verdict="refuted")
    yield lambda c: c["claim"]["phases"].append(c["claim"]["phases"][0])
    yield lambda c: c["claim"]["phases"][0].update(steps=10**6)
    if "order" in found:
        yield of_inputs(order=0)
        if "width" not in found:  # the smoothed curve asks of any order only what lies beyond its end
            yield of_inputs(order=1 if found["order"] > 1 else 9)
        yield of_inputs(order=f"{found['order']}.5")
    if "scales" in found:
        yield of_inputs(scales=found["scales"][:-1])
        if len(found["scales"]) > 1:
            yield of_inputs(scales=found["scales"][::-1])
        yield of_inputs(scales=[scaled(end, 0.5) for end in found["scales"]])
        yield of_inputs(scales=["-1", *found["scales"]])
        yield of_inputs(scales=[])
    if "edges" in found:
        yield of_inputs(edges=[edges[::9] for edges in found["edges"]])
        yield of_inputs(edges=[edges[::-1] for edges in found["edges"]])
        yield of_inputs(edges=[edges[len(edges) // 2 :] for edges in found["edges"]])
        yield of_inputs(edges=found["edges"][1:])
        yield of_inputs(step=scaled(found["step"], 1 / (2 * by)))
        yield of_inputs(step="-" + found["step"])
        yield of_inputs(window=1)
        yield of_inputs(bits=32)
    if "units" in found:
        yield of_inputs(units=found["units"][1:])
        yield of_inputs(units=[scaled(unit, 0.05) for unit in found["units"]])
        yield of_inputs(units=[scaled(unit, 40 * by) for unit in found["units"]])
        yield of_inputs(units=["-" + unit for unit in found["units"]])
        yield of_inputs(sizes=[size // 20 for size in found["sizes"]])
        yield of_inputs(sizes=[10**9 for _ in found["sizes"]])
        yield of_inputs(step=scaled(found["step"], 400 * by))
        yield of_inputs(step="-" + found["step"])
        yield of_inputs(window=1)
        yield of_inputs(bits=32)
    if "passes" in found:
        yield from worse_passes(found, by)
    if "width" in found:
        yield of_inputs(width="0")
        yield of_inputs(width=scaled(data["claim"]["epsilon"], by))
        yield of_inputs(width=scaled(found["width"], 0.1))
        yield of_inputs(end="0")
    if "low" in found:
        yield of_inputs(low=scaled(found["low"], by))
        yield of_inputs(low=scaled(found["low"], 1 / by))
        yield of_inputs(high=scaled(found["high"], by))
        yield of_inputs(high=scaled(found["high"], 1 / by))


def worse_passes(found: dict[str, Any], by: float) -> Iterator[Change]:
    """Lattices that are too coarse, too short or none, deltas that are less, and profiles that are none."""
    corners, one = found["passes"][0]["profile"], found["passes"][0]["lattices"][0]
    at = next(i for i, (place, *_) in enumerate(corners) if place == 0)

    def of_profile(profile: list[Any]) -> Change:
        return lambda c: c["inputs"]["passes"][0].update(profile=profile)

    def of_pass(**new: Any) -> Change:
        return lambda c: c["inputs"]["passes"][0]["lattices"][0].update(new)

    def of_corner(index: int, *corner: Any) -> Change:
        return of_profile([*corners[:index], *([list(corner)] if corner else []), *corners[index + 1 :]])

    def shown(index: int, factor: float) -> Change:
        place, value, look = corners[index]
        return of_corner(index, place, scaled(value, factor), look)

    yield lambda c: c["inputs"].update(passes=c["inputs"]["passes"][1:])
    yield lambda c: c["inputs"].update(passes=c["inputs"]["passes"] * 2)
    yield lambda c: c["inputs"].update(step=scaled(c["inputs"]["step"], 1 / by))
    yield lambda c: c["inputs"].update(step=scaled(c["inputs"]["step"], by))
    yield lambda c: c["inputs"].update(window=1)
    yield lambda c: c["inputs"].update(bits=32)
    yield lambda c: c["claim"]["phases"][0]["sampling"].update(reshuffle="once")
    yield of_pass(terms=one["terms"] + 1)
    yield of_pass(terms=max(1, one["terms"] // 2))
    yield of_pass(terms=10**6)
    yield of_pass(terms=0)
    yield of_pass(level="0.5")
    yield of_pass(cut="-" + one["cut"])
    yield of_corner(at, corners[at][0], corners[at][1], len(found["passes"][0]["lattices"]))
    yield of_corner(at, corners[at][0], corners[at][1], -1)
    yield lambda c: c["inputs"]["passes"][0].update(lattices=[])
    yield of_pass(unit=scaled(one["unit"], 9 * by))
    yield of_pass(unit=scaled(one["unit"], 0.1))
    yield of_pass(unit="-" + one["unit"])
    yield of_pass(knots=one["knots"][::9])
    yield of_pass(knots=one["knots"][: len(one["knots"]) // 2])
    yield of_pass(knots=one["knots"][len(one["knots"]) // 2 :])
    yield of_pass(knots=one["knots"][::-1])
    yield of_pass(size=one["top"] + 1)
    yield of_pass(top=one["top"] // 4)
    yield of_pass(top=one["size"])
    yield of_pass(tilt=scaled(one["tilt"], 1 / (one["top"] * float(one["tilt"]) * by)))
    yield of_pass(tilt=scaled(one["tilt"], 20 * by))
    yield of_pass(tilt="-" + one["tilt"])
    for index in (at - 2, at, at + 1, -2, -1):
        yield shown(index, 1 / by)
    yield shown(at, 1 + (by - 1) / 100)
    yield shown(at + 1, by)
    yield of_corner(at)
    yield of_profile(corners[::-1])
    yield of_profile(corners[: at + 1])
    yield of_profile([])


def worse_claim(data: Certificate, by: float) -> Iterator[Change]:
    phase, certified = data["claim"]["phases"][0], data["verdict"] == "certified"
    noise = phase["mechanism"]
    gaussian, one = noise["name"] == "gaussian", noise.get("dimension") == 1

    def of_noise(**new: Any) -> Change:
        return lambda c: c["claim"]["phases"][0]["mechanism"].update(new)

    yield lambda c: c["claim"].update(delta="-" + c["claim"]["delta"])
    yield lambda c: c["claim"]["phases"][0].update(sampling_kind="buffered-shuffle")
    if "sampling" in phase:
        yield from worse_sampler(phase["sampling"], by, certified=certified)
    yield lambda c: c["claim"]["phases"][0].update(sampling_prob="1.5")
    yield lambda c: c["claim"]["phases"][0].update(sampling_kind="none", sampling_prob="0.5")
    yield lambda c: c["claim"]["phases"][0].update(steps=0)
    yield lambda c: c["claim"].update(adjacency="nobody")
    yield of_noise(clip="-" + noise["clip"])
    yield of_noise(clip="0")
    yield of_noise(clip_norm="0.5")
    yield of_noise(name="no-noise")
    if certified:
        if data["claim"]["adjacency"] != "replace-one":
            yield lambda c: c["claim"].update(adjacency="replace-one")
        if not gaussian:
            yield of_noise(clip=scaled(noise["clip"], by))
        if not one:
            yield of_noise(clip_norm="inf")
    else:
        # one record in a billion moves nothing that is seen
        yield lambda c: c["claim"]["phases"][0].update(sampling_prob="1e-9", sampling_kind="poisson")
        if data["claim"]["adjacency"] == "replace-one":
            yield lambda c: c["claim"].update(adjacency="add-remove")
        if data["event"]["phases"][0].get("count", 1) > 1 or noise["name"] == "product":
            yield of_noise(dimension=1)
        if data["event"]["phases"][0].get("count", 1) > 1:
            yield of_noise(clip_norm="1")
        if phase["steps"] > 1:
            yield lambda c: c["claim"]["phases"][0].update(steps=1)
    if "beta" in noise:
        yield of_noise(beta="0.5")
    key, size = next((k, v) for k, v in noise.items() if k in ("noise_multiplier", "scale", "sigma", "theta"))
    sharper = certified == (key != "theta" or noise["name"] == "gamma-scale-laplace")
    # less noise for what is certified, far more for what is refuted
    factor = (by**2 if certified else 100.0 * by) ** (-1 if sharper else 1)
    yield of_noise(**{key: scaled(size, factor)})
    if "k" in noise:
        yield of_noise(k=scaled(noise["k"], factor))


def worse_sampler(keys: dict[str, Any], by: float, *, certified: bool) -> Iterator[Change]:
    """Fewer or more batches and passes, other samplers, and keys that do not fit each other."""

    def of_sampler(**new: Any) -> Change:
        return lambda c: c["claim"]["phases"][0]["sampling"].update(new)

    yield lambda c: c["claim"]["phases"][0].pop("sampling")
    yield lambda c: c["claim"]["phases"][0].update(sampling_kind="poisson", sampling_prob="1.0")
    yield lambda c: c["claim"]["phases"][0].update(sampling_kind="none")
    if "epochs" in keys:
        yield of_sampler(epochs=keys["epochs"] * 2 if certified else 0)
        yield of_sampler(epochs=-1)
        yield of_sampler(reshuffle="never")
        if keys["epochs"] > 1 and not certified:
            yield of_sampler(epochs=1)
    for key in [key for key in ("batches", "steps", "records") if key in keys]:
        yield of_sampler(**{key: 0})
        yield of_sampler(**{key: 1 if certified else keys[key] * 10**4})
        yield of_sampler(**{key: f"{keys[key]}.5"})
    if "last_batch" in keys:
        yield of_sampler(last_batch="lost")
        yield of_sampler(batch=keys["records"] + 1)
        yield of_sampler(records=keys["records"] * 2)
    if "times" in keys:
        yield of_sampler(times=10**6)
        yield of_sampler(times=keys["times"] + 2 if certified else 1)
        yield of_sampler(times=0)
    if "prob" in keys:
        yield of_sampler(prob=scaled(keys["prob"], by if certified else 0.1 / by))
        yield of_sampler(prob="0")
        yield of_sampler(prob="1.5")
        yield of_sampler(steps=1)
    # a part of a history, or more of it, is another history
    yield lambda c: c["claim"]["phases"][0].update(steps=c["claim"]["phases"][0]["steps"] + 1)
    yield lambda c: c["claim"]["phases"][0].update(sampling_prob="0.5")
    for kind in SAMPLERS:
        yield lambda c, kind=kind: c["claim"]["phases"][0].update(sampling_kind=other_than(c, kind))


def other_than(data: Certificate, kind: str) -> str:
    """Another sampler's name, one that claims more: of a known order everything is true that is of a random one."""
    known = data["claim"]["phases"][0]["sampling_kind"]
    return "no-sampler" if kind == known or (data["verdict"] == "certified" and known == "shuffled") else kind


def refused(data: Certificate) -> bool:
    try:
        checker.accepted(json.dumps(data))
    except Exception:
        return True
    return False


def mutated(rounds: int, seed: int, names: Sequence[str]) -> Iterator[tuple[str, int, Certificate]]:
    draw = random.Random(seed)
    for _ in range(rounds):
        for name in names:
            data = json.loads(made(name))
            for number, change in enumerate(worse(data, draw)):
                copied = copy.deepcopy(data)
                change(copied)
                yield name, number, copied


def some(part: int, seed: int, names: Sequence[str], first: int = 0) -> list[tuple[str, int, Certificate]]:
    """One of so many changes, others for every claim, so that every kind of change is made somewhere."""
    found = mutated(1, seed, names)
    return [item for item in found if (item[1] + names.index(item[0])) % part == first]


def test_several_coordinates_of_a_shared_scale_need_its_nodes() -> None:
    """The law of one coordinate says nothing of two that share a scale, though their scores add up."""
    data = json.loads(made("shared scale refuted"))
    part = data["event"]["phases"][0]
    assert part["count"] > 1
    assert part["scale"]["gauges"] == 0
    del part["scale"]
    with pytest.raises(AssertionError, match="shares a scale"):
        checker.accepted(json.dumps(data))


def test_gauges_tell_a_scale_and_are_other_coordinates() -> None:
    data = json.loads(made("told scale refuted"))
    part = data["event"]["phases"][0]
    assert part["scale"]["gauges"] + part["count"] == data["claim"]["phases"][0]["mechanism"]["dimension"]
    part["scale"]["gauges"] += 1
    with pytest.raises(AssertionError, match="is no integer from 0 to"):
        checker.accepted(json.dumps(data))


def accepted_of(changes: Iterable[tuple[str, int, Certificate]]) -> list[tuple[str, int]]:
    return [(name, number) for name, number, data in changes if not refused(data)]


@pytest.mark.slow
def test_mutated_certificates_are_refused() -> None:
    """A sixth of the changes; `benchmarks/mutated_certificates.py` makes them all, as often as wanted."""
    changes = some(6, 20, [name for name in CLAIMS if name not in DEAR])
    assert len(changes) > 50
    assert accepted_of(changes) == []


@pytest.mark.slow
def test_more_mutated_certificates_are_refused() -> None:
    """Another sixth of the changes, and a sixteenth of the dear ones: every kind on some claim, on six or seven cheap
    ones by this test and the last."""
    changes = some(6, 21, [name for name in CLAIMS if name not in DEAR], first=3) + some(16, 22, DEAR)
    assert len(changes) > 110
    assert accepted_of(changes) == []


@pytest.mark.slow
def test_undecided_verdicts_and_missing_theorems_say_why() -> None:
    claim = single(GeneralizedGaussian(3.0, 9.0, dimension=9), 2.0, 1e-3)
    found = certificate(claim, check(claim))
    assert isinstance(found, NotCovered)
    assert "generalized-gaussian" in found.reason


@pytest.mark.parametrize("delta", [2.2e-50, 2.1e-50, 0.0])
def test_no_certificate_is_written_of_more_digits_than_the_checker_takes(delta: float) -> None:
    claim = single(Product(2.0, dimension=3), 8.0, delta)
    found = certificate(claim, check(claim))
    if delta > 2**-165:
        assert checker.accepted(json.dumps(found)).startswith("refuted: (8")
    else:
        assert isinstance(found, NotCovered)
        assert "the checker's 256 bits" in found.reason


HOSTILE = [
    "",
    "[" * 100_000,
    "{}",
    "null",
    '{"format": "dpaudit-certificate/2"}',
    '{"format": NaN}',
    "1" * 10_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_certificate_exits_2(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    assert checker.main([str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, data = tmp_path / "good.json", tmp_path / "bad.json", json.loads(made("gaussian certified"))
    good.write_text(json.dumps(data))
    bad.write_text(json.dumps({**data, "kind": "trust me"}))
    assert checker.main([str(good)]) == 0
    assert checker.main([str(good), str(bad)]) == 3
    assert checker.main([str(tmp_path / "none.json"), str(good)]) == 2
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("claim", "phases", 0, "steps"), 10**30),
        (("claim", "epsilon"), "1e999"),
        (("claim", "epsilon"), "1/0"),
        (("event", "window"), 10**9),
        (("event", "phases", 0, "window"), 10**9),
        (("event", "phases", 0, "count"), 10**9),
        (("event", "phases", 0, "edges"), [str(i) for i in range(50_000)]),
        (("event", "phases", 0, "scores"), [10**18] * 5000),
        (("claim", "phases", 0, "mechanism", "name"), "laplace\n"),
        (("claim", "phases", 0, "mechanism", "clip_norm"), "1e999"),
        (("claim", "phases", 0, "mechanism", "noise_multiplier"), "1e-999"),
    ],
)
def test_hostile_fields_neither_hang_nor_raise(
    place: tuple[str | int, ...], value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(made("gaussian refuted"))
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(data))
    assert checker.main([str(path)]) in (2, 3)
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "sampler",
    [
        BallsInBins(1, 9, "once"),
        RandomAllocation(9, 9),
        Shuffled.of(5, 5, 9, last_batch="straddling"),
        TruncatedPoisson(1.0, 5, 5, 9),
        WithoutReplacement(1.0, 9),
    ],
)
def test_batches_of_everybody_are_certified_as_no_sampling(sampler: Sampler) -> None:
    """The truth is 7.0514; where a record can be left out, the same proof is refused."""
    for epsilon, verdict in ((7.06, "certified"), (7.0, "refuted")):
        claim = Claim(epsilon, 1e-5, [Phase(Gaussian(2.0), sampler=sampler)], "zero-out")
        found = certificate(claim, check(claim))
        assert isinstance(found, dict)
        assert checker.accepted(json.dumps(found)).startswith(verdict)
    phase = found["claim"]["phases"][0]
    less: dict[str, Any] = {"batches": 2, "times": 8, "batch": 4, "max_batch": 4, "prob": "0.9"}
    phase["sampling"] |= {key: value for key, value in less.items() if key in phase["sampling"]}
    phase["steps"] = 18 if sampler.kind == "balls-in-bins" else 9
    with pytest.raises((AssertionError, KeyError)):
        checker.accepted(json.dumps(found))


@pytest.mark.parametrize("sampler", [Shuffled.of(100, 30, 4), Shuffled.of(120, 30, 4), Shuffled.of(100, 30, 1)])
def test_a_certificate_of_straddling_batches_counts_what_can_straddle(sampler: Shuffled) -> None:
    """Four passes of 100 records in batches of 30 meet a record in one batch twice once at most: six releases."""
    straddling = Shuffled.of(sampler.records or 0, 30, sampler.epochs, last_batch="straddling")
    epsilon = {6: 9.0, 4: 7.0, 1: 3.0}[straddling.meetings]
    claim = Claim(epsilon, 1e-3, [Phase(Gaussian(1.2), sampler=straddling)], "zero-out")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert checker.accepted(json.dumps(found)).startswith("certified")
    found["claim"]["phases"][0] |= {"sampling": found["claim"]["phases"][0]["sampling"] | {"epochs": 6}, "steps": 20}
    with pytest.raises(AssertionError):
        checker.accepted(json.dumps(found))


def test_a_rate_beside_fixed_batches_puts_nobody_into_every_release() -> None:
    claim = Claim(3.0, 1e-5, [Phase(Gaussian(2.0), sampler=Deterministic(7, 9))], "zero-out")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert checker.accepted(json.dumps(found)).startswith("refuted")  # by 9 releases
    found["claim"]["phases"][0]["sampling"]["prob"] = 1
    with pytest.raises(AssertionError, match="a sampler's key is not its own"):
        checker.accepted(json.dumps(found))
    del found["claim"]["phases"][0]["sampling"]["prob"]
    found["claim"]["phases"][0]["sampling_kind"] = "buffered-shuffle"  # a kind of which no key is known
    with pytest.raises(AssertionError, match="the sampler is not covered"):
        checker.accepted(json.dumps(found))


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("noise", [Gaussian(20.0), Laplace(20.0, dimension=1)])
def test_no_certificate_is_written_of_a_buffer_that_the_checker_does_not_know(noise: Mechanism, epsilon: float) -> None:
    claim = Claim(epsilon, 1e-5, [Phase(noise, sampler=BufferedShuffle(100, 10, 30, epochs=10))], "zero-out")
    verdict = check(claim)
    assert verdict.verdict != "undecided"
    found = certificate(claim, verdict)
    assert isinstance(found, NotCovered)
    assert "beyond the checker" in found.reason
    bracket = rigorous_bracket(claim.canonical(), verdict.witness)
    assert isinstance(bracket, RigorousBracket)
    assert bracket.delta_lower <= verdict.delta_upper
    assert bracket.delta_lower > 0 or epsilon == 1


def test_the_checker_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    usage = "usage: dpaudit-check CERTIFICATE...\n"
    for words, status, printed in (([], 2, ("", usage)), (["--help"], 0, (usage, "")), (["-h"], 0, (usage, ""))):
        assert checker.main(words) == status
        assert capsys.readouterr() == printed


def redirected(
    words: str, *paths: Path | str, options: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """The checker run as its file alone, as a shell redirects it; stream 0 is a pipe without a reader."""
    command = ["sh", "-c", f'exec "$@" {words}', "sh", sys.executable, *options, checker.__file__, *map(str, paths)]
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        return subprocess.run(
            command, stdin=pipe, capture_output=True, text=True, check=False, env=os.environ | environment
        )


@pytest.mark.parametrize("nowhere", ["&0", "/dev/full", "&-"])
def test_an_output_that_cannot_be_written_changes_no_exit_status(nowhere: str, tmp_path: Path) -> None:
    """A certificate whose line met a pipe without a reader was "not a certificate"."""
    good, bad, none = (tmp_path / f"{name}.json" for name in ("good", "bad", "none"))
    good.write_text(made("gaussian certified"))
    bad.write_text(good.read_text().replace("add-remove", "replace-one"))
    for paths, status in (([good, good], 0), ([good, bad], 3), ([none, good], 2), ([], 2), (["-h"], 0)):
        known, heard, seen = (redirected(words, *paths) for words in ("", f">{nowhere}", f"2>{nowhere}"))
        assert [done.returncode for done in (known, heard, seen)] == [status] * 3
        assert (heard.stdout, heard.stderr) == ("", known.stderr)
        assert (seen.stdout, seen.stderr) == (known.stdout, "")
    assert redirected(f"2>{nowhere}", options=["-E", "-S"]).returncode == 2  # without python-flint


def test_a_name_that_the_encoding_lacks_is_spelt_out(tmp_path: Path) -> None:
    path = tmp_path / "\u00e4.json"
    path.write_text(made("gaussian certified"))
    done = redirected("", path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xe4.json: accepted certified" in done.stdout


def test_what_follows_the_longest_certificate_that_is_read_is_not_left_out(tmp_path: Path) -> None:
    claim = Claim(3.0, 1e-5, [Phase(Gaussian(2.0), sampler=Deterministic(7, 9))], "zero-out")
    text = json.dumps(certificate(claim, check(claim)))
    for tail, status in (("", 0), (" ", 2), ("and more", 2)):
        path = tmp_path / "long.json"
        path.write_text(text.ljust(check_certificate.MAX_BYTES) + tail)
        assert checker.main([str(path)]) == status


def code_and_imports(path: str) -> tuple[int, set[str]]:
    """Lines of code of a file, and what it imports that Python does not have."""
    import ast

    source = Path(path).read_text()
    tree = ast.parse(source)
    docstrings = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
    ]
    explained = sum((text.end_lineno or 0) - text.lineno + 1 for text in docstrings)
    blank = sum(not line.strip() for line in source.splitlines())
    names = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    return len(source.splitlines()) - explained - blank, {n.split(".")[0] for n in names} - sys.stdlib_module_names


def test_the_checker_is_one_short_file_that_imports_flint_alone() -> None:
    lines, imported = code_and_imports(check_certificate.__file__)
    assert lines <= 300
    assert imported == {"flint"}


def test_the_second_file_is_handed_out_with_the_first(tmp_path: Path) -> None:
    """Both run beside each other, and nothing of dpaudit is found."""
    name = "fixed batches refuted"
    assert code_and_imports(checker.__file__)[1] == {"flint", "check_certificate", "dpaudit"}
    (tmp_path / "a.json").write_text(made(name))
    for module in (check_certificate, checker):
        (tmp_path / Path(module.__file__).name).write_text(Path(module.__file__).read_text())
    (tmp_path / "dpaudit.py").write_text("raise SystemExit(1)")
    for module, status in ((check_certificate, 3), (checker, 0)):
        script = str(tmp_path / Path(module.__file__).name)
        done = subprocess.run(
            [sys.executable, script, "a.json"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == status
        assert ("accepted" in done.stdout) == (status == 0)
        assert ("check_sampled_certificate.py" in done.stderr) == (status == 3)
    script = str(tmp_path / Path(checker.__file__).name)
    command = [sys.executable, "-P", script, "a.json"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / Path(check_certificate.__file__).name).unlink()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


FIXED_SIZE = {"prob": "0.01", "steps": 3}


@pytest.mark.parametrize("more", [{"batches": 10**6}, {"epochs": 10**6}])
def test_a_sampler_is_counted_by_its_own_keys(more: dict[str, int]) -> None:
    claim = Claim(3.0, 1e-5, [Phase(Gaussian(1.0), sampler=WithoutReplacement(0.01, 3))], "zero-out")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert checker.accepted(json.dumps(found)).startswith("certified")
    sampling = found["claim"]["phases"][0]["sampling"] | more
    steps = sampling.get("batches", 3 * sampling.get("epochs", 1))
    found["claim"]["phases"][0] |= {"sampling": sampling, "steps": steps}
    with pytest.raises(AssertionError, match="not its own"):
        checker.accepted(json.dumps(found))


@pytest.mark.parametrize("place", ["claim", "phase", "sampling"])
def test_what_a_claim_says_is_what_is_read(place: str) -> None:
    claim = Claim(3.0, 1e-5, [Phase(Gaussian(1.0), sampler=WithoutReplacement(0.01, 3))], "zero-out")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    phase = found["claim"]["phases"][0]
    {"claim": found["claim"], "phase": phase, "sampling": phase["sampling"]}[place]["kind"] = "deterministic"
    with pytest.raises(AssertionError, match=r"a key is not read|not its own"):
        checker.accepted(json.dumps(found))


@pytest.mark.parametrize(
    ("place", "more"),
    [
        ("mechanism", {"sensitivity": "100"}),
        ("mechanism", {"scale": "0.01"}),
        ("sampling", {"epoch": 1000}),
        ("sampling", {"times": 1000}),
        ("sampling", {"batch": 64}),
    ],
)
def test_what_is_said_of_noise_and_sampler_is_what_is_read(place: str, more: dict[str, Any]) -> None:
    """A certificate of noise 1 and one pass is none of what further words say of them."""
    claim = Claim(3.0, 0.1, [Phase(Gaussian(1.0), sampler=Shuffled(10, 1))], "zero-out")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert checker.accepted(json.dumps(found)).startswith("certified")
    found["claim"]["phases"][0][place] |= more
    with pytest.raises(AssertionError, match=r"key is not|a batch is of records"):
        checker.accepted(json.dumps(found))


def test_digits_of_other_scripts_are_no_numbers() -> None:
    text = made("gaussian certified").replace('"epsilon": "1.0"', '"epsilon": "\uff11.\uff10"')
    assert "\uff11" in text
    with pytest.raises(TypeError):
        checker.accepted(text)


def test_many_moments_of_many_scales_take_no_longer_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 orders of 4,000 cells took a minute in which nobody looked at the clock."""
    import time

    claim = single(GammaPLRV(1000.0, 1e-3, dimension=10), 3.0, 1e-2, steps=10, sampling_prob=0.01)
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    found |= {"kind": "moments", "inputs": {"order": 2000, "scales": [f"{1 + i * 1e-4:.4f}" for i in range(4000)]}}
    monkeypatch.setattr(check_certificate, "SECONDS", 2)
    start = time.monotonic()
    with pytest.raises(AssertionError, match="takes more than 2 seconds"):
        checker.accepted(json.dumps(found))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("sampler", "adjacency", "meant"),
    [
        (None, "add-remove", "add-remove"),
        (None, "replace-one", "replace-one"),
        (BallsInBins(10, 1), "add-remove", "add-remove"),
        (Shuffled(10, 1), "add-remove", "zero-out"),
        (Shuffled(10, 1), "replace-one", "replace-one"),
    ],
)
def test_what_is_printed_says_who_the_neighbours_are(sampler: Sampler | None, adjacency: Any, meant: str) -> None:
    claim = Claim(3.0, 0.1, [Phase(Gaussian(2.0), sampler=sampler)], adjacency)
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert f" under {meant} of name gaussian, " in checker.accepted(json.dumps(found))


def test_what_is_printed_names_noise_batches_and_steps() -> None:
    claim = Claim(3.0, 1e-5, [Phase(Gaussian(2.0), steps=100, sampling_prob=0.01), Phase(Gaussian(4.0), steps=7)])
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    first, second = checker.accepted(json.dumps(found)).split("; ")
    assert "noise_multiplier 2.0" in first
    assert "steps 100" in first
    assert "sampling_prob 0.01" in first
    assert "noise_multiplier 4.0" in second
    assert "steps 7" in second


def test_a_key_that_stands_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text = tmp_path / "twice.json", made("gaussian certified")
    path.write_text(text.replace('"epsilon":', '"epsilon": "0.0", "epsilon":', 1))
    assert checker.main([str(path)]) == 2
    assert "twice" in capsys.readouterr().err


def test_what_is_printed_follows_from_what_is_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = single(Gaussian(1000.0), 1.0, 1e-5)
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    found["claim"] |= {"epsilon": "1.0000004", "delta": "1e-900"}  # no Gaussian has delta = 0
    found["steps"][-1]["at_most"] = "1e-900"
    path = tmp_path / "a.json: accepted certified: (1, 0) of gaussian\nb.json"
    path.write_text(json.dumps(found))
    assert checker.main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "accepted certified: (1.00001, 1e-900)" in printed
    assert len(printed.splitlines()) == 1


def test_a_ball_too_wide_to_be_a_mass_needs_no_memory() -> None:
    import resource

    claim = Claim(3.0, 1e-5, [Phase(Gaussian(1.0), sampler=WithoutReplacement(0.01, 3))], "zero-out")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    found["inputs"] = {"step": "1e6", "window": 1000, "bits": 64, "edges": [[-1000, -999, 0, 1]]}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AssertionError):
        checker.accepted(json.dumps(found))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB; it was 170 MB, at 1e8 a crash


@pytest.mark.parametrize(
    ("claim", "least"),
    [
        (Claim.single(Laplace(2.0, dimension=1), epsilon=9.0, delta=1e-5, steps=3), 1.5),
        (
            Claim.single(Laplace(2.0, dimension=1), epsilon=9.0, delta=1e-5, steps=6, sampling_prob=0.1),
            6 * math.log(1 + 0.1 * math.expm1(0.5)),
        ),
        (Claim.single(Laplace(2.0, dimension=1), epsilon=9.0, delta=1e-5, steps=3, adjacency="replace-one"), 3.0),
    ],
    ids=["several", "sampled", "replaced"],
)
def test_several_releases_of_laplace_noise_add_up(claim: Claim, least: float) -> None:
    """As the pure epsilon of each does, amplified: what is issued is accepted, and nothing below the sum."""
    found = certificate(claim, check(claim))
    assert not isinstance(found, NotCovered)
    assert found["kind"] == "pure-laplace"
    for epsilon, right in ((9.0, True), (least * (1 + 1e-6), True), (least * (1 - 1e-6), False)):
        found["claim"]["epsilon"] = repr(epsilon)
        if right:
            assert checker.accepted(json.dumps(found)).startswith("certified")
        else:
            with pytest.raises(AssertionError):
                checker.accepted(json.dumps(found))


def test_two_versions_of_a_sampled_record_are_not_amplified_as_one() -> None:
    """They are two contributions apart, of which the sum of amplified epsilons knows one."""
    claim = Claim.single(Laplace(1.0, 1.0, 1.0), epsilon=3.0, delta=0.0, sampling_prob=0.3)
    found = certificate(claim, check(claim))
    assert not isinstance(found, NotCovered)
    assert checker.accepted(json.dumps(found)).startswith("certified")
    found["claim"]["adjacency"] = "replace-one"
    with pytest.raises(AssertionError, match="sampled replace-one"):
        checker.accepted(json.dumps(found))


@pytest.mark.parametrize(
    ("scale", "clip", "steps", "epsilon", "adjacency"),
    [
        (1.0, 1.0, 1, 1.0, "add-remove"),
        (2.0, 1.0, 1, 1.0, "replace-one"),
        (10.0, 1.0, 10, 1.0, "add-remove"),
        (1.0, 0.3, 1, 0.3, "add-remove"),
        (1.0, 0.1, 3, 0.3, "add-remove"),
    ],
)
def test_a_pure_budget_that_is_spent_exactly_is_certified(
    scale: float, clip: float, steps: int, epsilon: float, adjacency: Any
) -> None:
    """As the decimals that are written; whatever lies below it, however little, is not."""
    claim = single(Laplace(scale, clip, 1.0), epsilon, 0.0, steps=steps, adjacency=adjacency)
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert checker.accepted(json.dumps(found)).startswith("certified")
    bracket = rigorous_bracket(claim)
    assert isinstance(bracket, RigorousBracket)
    assert bracket.delta_upper == 0.0
    found["claim"]["epsilon"] = f"{epsilon - 0.1:.1f}{'9' * 50}"
    with pytest.raises(AssertionError):
        checker.accepted(json.dumps(found))


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (single(Gaussian(0.003), 2e5, 1e-5), "epsilons below 100000"),
        (Claim(20.0, 1e-5, [Phase(Gaussian(8.0 + i)) for i in range(9)]), "at most 8 phases"),
        (single(Gaussian(2e5), 2.0, 1e-5, steps=10**9), "no integer from 1 to 100000000"),
        (single(Gaussian(20.0, clip=1e40), 2.0, 1e-5), "out of its domain"),
        (single(GeneralizedGaussian(2000.0, 9.0, dimension=1), 2.0, 1e-5), "out of its domain"),
    ],
)
def test_no_certificate_is_written_that_the_checker_would_not_read(claim: Claim, reason: str) -> None:
    found = certificate(claim, check(claim))
    assert isinstance(found, NotCovered)
    assert reason in found.reason


def test_one_coordinate_of_a_shared_scale_has_the_law_of_a_scale_of_its_own() -> None:
    """Two of one scale have none of the kind, and no Gaussian dominates them."""
    noise = GammaPLRV(50.0, 0.002, dimension=1)
    claim = single(noise, 1.24, 1e-3, steps=200, sampling_prob=0.001)
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert (found["kind"], found["claim"]["phases"][0]["mechanism"]["name"]) == ("moments", "gamma-plrv")
    assert check_certificate.accepted(json.dumps(found)).startswith("certified")
    noise_of = found["claim"]["phases"][0]["mechanism"]
    del noise_of["dimension"]
    for told in ({}, {"dimension": 2}, {"dimension": None}, {"dimension": 0}, {"dimension": "0"}, {"dimension": []}):
        found["claim"]["phases"][0]["mechanism"] = noise_of | told
        words = "no Gaussian dominates" if told in ({}, {"dimension": 2}) else "out of its domain"
        for accepted in (check_certificate.accepted, checker.accepted):
            with pytest.raises(AssertionError, match=words):
                accepted(json.dumps(found))


def test_a_bound_that_the_checker_adds_up_otherwise_is_stated_with_a_margin() -> None:
    """It composes both directions of two versions' loss, whose last digits differ."""
    claim = single(Gaussian(0.28), 27.0, 1e-5, sampling_prob=0.1, adjacency="replace-one")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert checker.accepted(json.dumps(found)).startswith("certified")
    found["steps"][-1]["at_most"] = scaled(found["steps"][-1]["at_most"], 1 - 2e-9)
    with pytest.raises(AssertionError, match="a bound is exceeded"):
        checker.accepted(json.dumps(found))


@pytest.mark.parametrize("name", ["gaussian certified", "gaussian refuted"])
def test_no_certificate_is_written_that_the_checker_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(text: str) -> str:
        raise AssertionError("for a reason of its own")

    monkeypatch.setattr("dpaudit.verify.rigorous.certificates.accepted", refuses)
    found = certificate(CLAIMS[name], check(CLAIMS[name]))
    assert isinstance(found, NotCovered)
    assert "for a reason of its own" in found.reason


def test_the_checkers_own_limits_are_those_that_are_told() -> None:
    text = json.loads(made("gaussian refuted"))
    for change in ({"epsilon": "100000"}, {"phases": text["claim"]["phases"] * 9}):
        with pytest.raises(AssertionError, match="not allowed"):
            checker.accepted(json.dumps({**text, "claim": {**text["claim"], **change}}))


def test_noise_of_other_kinds_may_stand_beside_batches_that_straddle() -> None:
    mixed = [
        Phase(Gaussian(1.2), sampler=Shuffled.of(100, 30, 2, last_batch="straddling")),
        Phase(Laplace(9.0, 1.0, 2.0)),
    ]
    claim = Claim(20.0, 1e-3, mixed, "zero-out")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert checker.accepted(json.dumps(found)).startswith("certified")
    found["claim"]["phases"][0]["mechanism"] = {"name": "laplace", "scale": "1.2", "clip": "1.0", "clip_norm": "2.0"}
    with pytest.raises(AssertionError, match="no theorem"):
        checker.accepted(json.dumps(found))


@pytest.mark.parametrize("change", [{"prob": "1e30"}, {"max_batch": 10**7}, {"records": 1}, {"records": None}])
def test_batches_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    claim = Claim(7.06, 1e-5, [Phase(Gaussian(2.0), sampler=TruncatedPoisson(1.0, 5, 5, 9))], "zero-out")
    found = certificate(claim, check(claim))
    assert isinstance(found, dict)
    assert checker.accepted(json.dumps(found)).startswith("certified")
    found["claim"]["phases"][0]["sampling"] |= change
    with pytest.raises(AssertionError):
        checker.accepted(json.dumps(found))
