"""The figures show the numbers: marks are read back off the drawn ticks, without the code that placed them."""

import math
import re
from dataclasses import replace
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.reports.drawing import ATTACK, GREY, INK, PROOF
from dpaudit.reports.plots import bracket_figure, curve_figure, roc_figure
from dpaudit.verify.results import AuditResult

Marks = list[tuple[float, float]]


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def marks(root: ElementTree.Element, colour: str, *, filled: bool = True) -> Marks:
    key = f"fill: {colour}" if filled else f"fill: #ffffff; stroke: {colour}"
    return [
        (float(use.get("x", "")), float(use.get("y", ""))) for use in root.iter("use") if key in use.get("style", "")
    ]


def scale(root: ElementTree.Element, axis: str, *, log: bool) -> tuple[float, float]:
    """Slope and offset from coordinates to (the logarithm of) values, by least squares through the labelled ticks."""
    places, values = [], []
    for group in root.iter("g"):
        if re.search(rf"-{axis}tick_\d+$", group.get("id", "")):
            label = "".join(text.text or "" for text in group.iter("text")).replace(",", "").replace("−", "-")
            use = next(iter([*group.iter("use")][-1:]), None)
            if label and use is not None:
                places.append(float(use.get(axis, "")))
                values.append(math.log(float(label)) if log else float(label))
    assert len(places) >= 3
    slope, offset = np.polyfit(places, values, 1)
    assert np.allclose(np.polyval((slope, offset), places), values, atol=1e-3 * np.ptp(values))
    return float(slope), float(offset)


def read(place: float, slope: float, offset: float, *, log: bool) -> float:
    value = slope * place + offset
    return math.exp(value) if log else value


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(("kind", "log"), [("refuted", False), ("claim_check", True)])
def test_dots_and_diamonds_stand_at_their_values(kind: str, log: bool, wide: bool, samples: ModuleType) -> None:
    result = samples.make_result(kind)
    root = parse(bracket_figure(result, wide=wide))
    along = scale(root, "x", log=log)
    proven = [read(x, *along, log=log) for x, _ in marks(root, ATTACK)]
    best = [read(x, *along, log=log) for x, _ in marks(root, ATTACK, filled=False)]
    assert proven == pytest.approx([attack.epsilon_lower for attack in result.attacks], rel=0.01, abs=0.01)
    assert best == pytest.approx([attack.best_possible_epsilon for attack in result.attacks], rel=0.01)


def shaded_from(root: ElementTree.Element) -> float:
    """The left edge of the region of broken promises."""
    path = next(path for path in root.iter("path") if "fill: #fbe4e1" in path.get("style", ""))
    return min(float(x) for x in re.findall(r"[ML] ([\d.]+)", path.get("d", "")))


def test_a_dot_is_shaded_exactly_if_it_exceeds_the_promise(samples: ModuleType) -> None:
    for kind in ("refuted", "not_refuted"):
        result = samples.make_result(kind)
        root = parse(bracket_figure(result, wide=True))
        edge = shaded_from(root)
        shaded = [x > edge for x, _ in marks(root, ATTACK)]
        assert shaded == [attack.epsilon_lower > result.epsilon_claimed for attack in result.attacks]


def test_an_unknown_end_is_an_arrow_at_the_edge(samples: ModuleType) -> None:
    result = samples.make_result("claim_check")
    root = parse(bracket_figure(result, wide=True))
    (arrow,) = marks(root, PROOF)
    assert read(arrow[0], *scale(root, "x", log=True), log=True) > 2 * result.claim_check.epsilon_lower
    known = replace(result, claim_check=replace(result.claim_check, epsilon_upper=9000.0))
    assert marks(parse(bracket_figure(known, wide=True)), PROOF) == []


def test_a_bracket_too_short_to_see_is_a_square_at_its_place(samples: ModuleType) -> None:
    result = samples.make_result()
    root = parse(bracket_figure(result, wide=True))
    (square,) = marks(root, PROOF)
    assert read(square[0], *scale(root, "x", log=False), log=False) == pytest.approx(2.4449, abs=0.03)


def test_the_sample_is_true(samples: ModuleType) -> None:
    """Its bracket holds the exact delta of the Gaussian mechanism, so that what the figures show is consistent."""
    check = samples.make_verdict()
    at_lower, at_claim, at_upper = samples.gaussian_delta(np.array([check.epsilon_lower, 2.445, check.epsilon_upper]))
    assert at_lower > check.delta_claimed > at_upper
    assert check.delta_lower < at_claim < check.delta_upper


def test_the_claim_stands_on_the_certified_curve(samples: ModuleType) -> None:
    root = parse(curve_figure(samples.make_result()))
    x, y = marks(root, INK)[0]
    assert read(x, *scale(root, "x", log=False), log=False) == pytest.approx(2.445, abs=0.02)
    assert read(y, *scale(root, "y", log=True), log=True) == pytest.approx(1e-5, rel=0.02)


def polyline(root: ElementTree.Element, colour: str) -> np.ndarray:
    """The longest open line of a colour."""
    lines = (path.get("d", "") for path in root.iter("path") if f"stroke: {colour}" in path.get("style", ""))
    longest = max(lines, key=len)
    return np.array([[float(x), float(y)] for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", longest)])


def roc_lines(result: AuditResult, index: int) -> tuple[np.ndarray, np.ndarray]:
    """(rates allowed, rates seen) as drawn, each of shape (points, 2): FPR, TPR."""
    root = parse(roc_figure(result.attacks[index], result.tradeoff, key="roc"))
    axes = [scale(root, axis, log=True) for axis in "xy"]
    return tuple(  # type: ignore[return-value]
        np.exp([[slope * value + offset for value, (slope, offset) in zip(point, axes, strict=True)] for point in line])
        for line in (polyline(root, PROOF), polyline(root, ATTACK))
    )


def test_the_roc_of_a_broken_training_leaves_the_trade_off_curve(samples: ModuleType) -> None:
    for kind, mu in (("refuted", 1.2), ("not_refuted", 0.6)):
        allowed, seen = roc_lines(samples.make_result(kind), 1)
        allowed = allowed[allowed[:, 0] < 0.99]
        assert len(allowed) > 50
        assert allowed[:, 1] == pytest.approx(norm.cdf(norm.ppf(allowed[:, 0]) + samples.MU), rel=0.02)
        middle = seen[(seen[:, 0] > 0.01) & (seen[:, 0] < 0.3)]
        assert len(middle) > 20
        # the attack's own curve Phi(Phi^-1(fpr) + mu), up to the steps between neighbouring points and sampling
        assert np.all(np.abs(norm.ppf(middle[:, 1]) - norm.ppf(middle[:, 0]) - mu) < 0.25)


def test_no_curve_no_figure(samples: ModuleType) -> None:
    result = samples.make_result()
    assert curve_figure(replace(result, certified_curve=None)) is None
    assert roc_figure(replace(result.attacks[0], roc=None), result.tradeoff, key="roc") is None
    assert GREY in roc_figure(result.attacks[0], None, key="roc")
