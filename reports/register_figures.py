"""The two small figures of a claim in the register, as SVG of a kilobyte each: hundreds of claims stand on few pages.

Drawn here and not by matplotlib, whose SVG is ten times as large and changes with its version and the fonts it finds.
Coordinates carry one decimal, so the same numbers give the same bytes anywhere.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from dpaudit.reports.drawing import ATTACK, BAD, GREY, GRID, INK, PROOF
from dpaudit.reports.wording import at_least, at_most, figure, stated

WIDTH, LEFT, RIGHT = 460.0, 44.0, 16.0
FLOOR = 1e-12  # deltas below are drawn on the lower edge


def bracket(claimed: float, lower: float, upper: float, sampled: float | None) -> Markup:
    """The claim and the certified bracket of the true epsilon on one axis, logarithmic where they are far apart.

    Args:
        claimed: Epsilon that was stated.
        lower: What is proved from below.
        upper: What is proved from above; may be infinite.
        sampled: Lower bound by Monte Carlo, None where none was made.
    """
    values = [value for value in (claimed, lower, upper, sampled or 0.0) if 1e-9 < value < math.inf]
    high, low = max(values, default=1.0) * 1.15, 0.0
    logarithmic = bool(values) and max(values) > 20 * min(values)
    if logarithmic:
        low, high = min(values) / 2, max(values) * 2

    def x(value: float) -> float:
        value = min(max(value, low), high)
        share = math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    start, end, promise = x(lower), x(upper), x(claimed)
    parts = [
        _rect(promise, 18, x(high) - promise, 44, BAD),
        _line(LEFT, 62, WIDTH - RIGHT, 62, GREY),
        *(_tick(x(value), 62, value) for value in _ticks(low, high, logarithmic)),
        _rect(start, 36, max(end - start, 3.0), 8, PROOF),
        _line(promise, 14, promise, 62, INK, 2),
        _text(
            promise, 11, f"stated {stated(claimed)}", "middle" if LEFT + 50 < promise < WIDTH - 70 else _side(promise)
        ),
    ]
    if sampled is not None:
        parts.append(f'<circle cx="{x(sampled):.1f}" cy="52" r="3.5" fill="{ATTACK}"/>')
    proved = f"at most {at_most(upper)}" if math.isfinite(upper) else "without a proven upper limit"
    words = f"Epsilon axis. Stated {stated(claimed)}; the true epsilon is at least {at_least(lower)}, {proved}."
    return _svg(parts, 84, words)


def curve(entry: Mapping[str, Any]) -> Markup:
    """Certified bounds on delta against epsilon, delta logarithmic, with the claim and the sampled points.

    Args:
        entry: {"curve": {"epsilon", "delta_lower", "delta_upper"}, "verdict", "ways"} of a claim.
    """
    table, verdict = entry["curve"], entry["verdict"]
    epsilons = table["epsilon"]
    right = max(epsilons[-1], 1e-9)
    smallest = min([d for d in (*table["delta_upper"], verdict["delta_claimed"]) if d > FLOOR], default=FLOOR)
    bottom = math.floor(math.log10(max(smallest, FLOOR)) - 1e-9)

    def place(epsilon: float, delta: float) -> tuple[float, float]:
        share = (math.log10(max(delta, 10.0**bottom)) - bottom) / -bottom if bottom < 0 else 1.0
        return LEFT + min(epsilon / right, 1.0) * (WIDTH - LEFT - RIGHT), 176 - share * 162

    upper = [place(e, d) for e, d in zip(epsilons, table["delta_upper"], strict=True)]
    lower = [place(e, d) for e, d in zip(epsilons, table["delta_lower"], strict=True)]
    band = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
    parts = [
        f'<polygon points="{band}" fill="{PROOF}" fill-opacity=".15"/>',
        _path(upper, PROOF, ""),
        _path(lower, PROOF, ' stroke-dasharray="3 3"'),
        _line(LEFT, 14, LEFT, 176, GREY),
        _line(LEFT, 176, WIDTH - RIGHT, 176, GREY),
        *(_tick(place(value, 1.0)[0], 176, value) for value in _ticks(0.0, right, False)),
        *(_level(place(0, 10.0**power)[1], power) for power in range(0, bottom - 1, -max(1, -bottom // 4))),
        _diamond(*place(verdict["epsilon_claimed"], verdict["delta_claimed"])),
    ]
    sampled = entry["ways"].get("monte-carlo", {})
    for epsilon, delta in sampled.get("points", ()):
        a, b = place(epsilon, delta)
        parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{ATTACK}"/>')
    words = (
        f"Delta against epsilon. At the stated epsilon {stated(verdict['epsilon_claimed'])} delta lies between "
        f"{at_least(_number(verdict['delta_lower']))} and {at_most(_number(verdict['delta_upper']))}; "
        f"{stated(verdict['delta_claimed'])} was stated."
    )
    return _svg(parts, 198, words)


def _number(value: Any) -> float:
    return float(value)  # "inf" is how JSON holds infinity


def _svg(parts: Sequence[str], height: int, words: str) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH:.0f} {height}" role="img" aria-label="{escape(words)}">'
    return Markup(head + "".join(parts) + "</svg>")


def _side(place: float) -> str:
    return "start" if place <= LEFT + 50 else "end"


def _line(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{color}" stroke-width="{width}"/>'


def _rect(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.0):.1f}" height="{height}" fill="{color}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _tick(x: float, y: float, value: float) -> str:
    return _line(x, y, x, y + 4, GREY) + _text(x, y + 16, figure(value), "middle")


def _level(y: float, power: int) -> str:
    label = "1" if power == 0 else f"1e{power}"
    return _line(LEFT, y, WIDTH - RIGHT, y, GRID) + _text(LEFT - 5, y + 4, label, "end")


def _path(points: Sequence[tuple[float, float]], color: str, style: str) -> str:
    steps = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    return f'<path d="M{steps}" fill="none" stroke="{color}" stroke-width="1.5"{style}/>'


def _diamond(x: float, y: float) -> str:
    return f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" fill="{INK}"/>'


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    """Three to six round values on an axis."""
    if logarithmic:
        powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
        return [10.0**power for power in powers][:: max(1, len(powers) // 5)]
    step = 10.0 ** math.floor(math.log10(high / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) < 6)
    return [index * step for index in range(int(high / step + 1e-9) + 1)]
