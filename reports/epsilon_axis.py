"""Claim and findings on one epsilon axis: rows of brackets and points, the part beyond the claim shaded."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from dpaudit.reports.drawing import ATTACK, BAD, GREY, INK, PROOF, canvas, fraction, log_axis, svg
from dpaudit.reports.wording import at_least, at_most, figure, stated
from dpaudit.verify.results import Verdict

LOG_AXIS_FROM = 20.0  # a linear axis shows two values apart up to about this ratio
TINY = 1e-9  # an epsilon below this is drawn as 0
HUGE = 1e300  # and one from here on as infinite
WIDE, NARROW = 9.6, 4.1  # inches of the bracket figure


@dataclass(frozen=True)
class Row:
    """A row of the bracket figure: its label, the values its axis must hold, and how it is drawn."""

    name: str
    text: str
    values: tuple[float, ...]
    draw: Callable[[Axes, float, float, float], None]


def verdict_figure(verdict: Verdict, *, key: str, wide: bool) -> Markup:
    """A claim, its certified bracket and what its published formula gives, on one epsilon axis.

    Args:
        verdict: On one claim.
        key: Tells the figures of one page apart.
        wide: As of `bracket_figure`.
    """
    rows = [check_row("true epsilon", verdict)]
    if verdict.published_epsilon is not None:
        published = verdict.published_epsilon
        rows.append(Row("published formula", f"gives {figure(published)}", (published,), _point(published)))
    where = f" at delta = {stated(verdict.delta_claimed)}"
    if verdict.guarantee is not None:  # the epsilon is one that the promise implies
        return axis_figure(verdict.epsilon_claimed, where, rows, key=key, wide=wide, word="implied")
    return axis_figure(verdict.epsilon_claimed, where, rows, key=key, wide=wide)


def axis_figure(
    claimed: float, where: str, rows: Sequence[Row], *, key: str, wide: bool, word: str = "promised"
) -> Markup:
    """Rows on one epsilon axis.

    Args:
        claimed: Epsilon of the claim.
        where: What the axis label adds, such as " at delta = 1e-5".
        rows: From top to bottom.
        key: Tells the figures of one page apart.
        wide: With the labels beside the axis; otherwise in it.
        word: What the claim did: it "promised" or "implied" this epsilon.
    """
    with canvas(WIDE if wide else NARROW, 0.95 + (0.46 if wide else 0.52) * len(rows)) as (drawing, axes):
        low, high = _epsilon_axis(axes, [claimed, *(value for row in rows for value in row.values)])
        place = min(max(claimed, low), high)
        axes.axvspan(place, high, color=BAD, zorder=0, linewidth=0)
        axes.axvline(place, color=INK, linewidth=1.6, zorder=2)
        right = fraction(axes, place) > 0.6
        axes.annotate(
            f"{word} {stated(claimed) if word == 'promised' else figure(claimed)}",
            (place, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if right else 4, 5),
            textcoords="offset points",
            ha="right" if right else "left",
            weight="bold",
        )
        for height, row in zip(reversed(range(len(rows))), rows, strict=True):
            _label(axes, row, height, wide=wide)
            row.draw(axes, height if wide else height - 0.12, low, high)
        label = f"epsilon{where}  (shaded: more than was {word})"
        axes.set(ylim=(-0.5, len(rows) - 0.45), yticks=[], xlabel=label)
        axes.spines["left"].set_visible(False)
        findings = [f"{row.name}: {row.text}" for row in rows]
        return svg(drawing, key, ". ".join([f"Epsilon axis. Promised: {stated(claimed)}", *findings]))


def check_row(name: str, check: Verdict) -> Row:
    """The certified bracket of a verdict."""
    low, high = check.epsilon_lower, check.epsilon_upper
    text = f"between {at_least(low)} and {at_most(high)}" if math.isfinite(high) else f"at least {at_least(low)}"
    return Row(name, text, (low, high), _bracket(low, high))


def _label(axes: Axes, row: Row, height: float, *, wide: bool) -> None:
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    if wide:
        axes.text(-0.02, height + 0.17, row.name, ha="right", weight="bold", **place)
        axes.text(-0.02, height - 0.19, row.text, ha="right", color=GREY, **place)
    else:
        paper = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.0}
        axes.text(0.008, height + 0.27, f"{row.name}: {row.text}", zorder=6, bbox=paper, **place)


def _bracket(lower: float, upper: float) -> Callable[[Axes, float, float, float], None]:
    def draw(axes: Axes, y: float, low: float, high: float) -> None:
        start, end = min(max(lower, low), high), min(max(upper, low), high)
        axes.plot([start, end], [y, y], color=PROOF, linewidth=6, solid_capstyle="butt", zorder=4)
        if fraction(axes, end) - fraction(axes, start) < 0.015:  # too short to be seen
            axes.plot([start], [y], "s", color=PROOF, markersize=8, zorder=4, clip_on=False)
            return
        for value, marker, known in ((start, "<", lower >= low), (end, ">", upper <= high)):
            if known:
                axes.plot([value, value], [y - 0.15, y + 0.15], color=PROOF, linewidth=2, zorder=4)
            else:
                axes.plot([value], [y], marker, color=PROOF, markersize=9, clip_on=False, zorder=5)

    return draw


def _point(value: float) -> Callable[[Axes, float, float, float], None]:
    def draw(axes: Axes, y: float, low: float, high: float) -> None:
        marker, beyond = ("D", False) if value <= high else (">", True)
        axes.plot([high if beyond else max(value, low)], [y], marker, color=INK, markersize=7, zorder=5, clip_on=False)

    return draw


def attack_row(proven: float | None, best: float | None) -> Callable[[Axes, float, float, float], None]:
    """How an attack's lower bound is drawn, and the most that it could have proven."""

    def draw(axes: Axes, y: float, low: float, high: float) -> None:
        start = low if proven is None else min(max(proven, low), high)
        if best is not None:
            end = min(max(best, low), high)
            axes.plot([start, end], [y, y], color=ATTACK, linewidth=1, linestyle=(0, (2, 3)), zorder=3)
            axes.plot([end], [y], "D", color="white", markeredgecolor=ATTACK, markersize=6, zorder=5, clip_on=False)
        if proven is not None:
            axes.plot([low, start], [y, y], color=ATTACK, linewidth=3, solid_capstyle="butt", zorder=4, alpha=0.55)
            axes.plot([start], [y], "o", color=ATTACK, markersize=7, zorder=5, clip_on=False)

    return draw


def _epsilon_axis(axes: Axes, values: Sequence[float]) -> tuple[float, float]:
    """Set scale and limits so that every finite value is on the axis; the limits."""
    shown = [float(value) for value in values if TINY < value < HUGE]
    low, high = 0.0, max(shown, default=1.0) * 1.15
    if shown and max(shown) / LOG_AXIS_FROM > min(shown):
        log_axis(axes, "x")
        low, high = min(shown) / 2.0, max(shown) * 3.0
    axes.set_xlim(low, high)
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)
    return low, high
