"""The figures of the report. Everything drawn was computed elsewhere; only coordinates are chosen here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from dpaudit.reports.drawing import (
    ATTACK,
    BAD,
    GREY,
    INK,
    PROOF,
    canvas,
    columns,
    fraction,
    legend,
    log_axis,
    log_floor,
    short,
    svg,
)
from dpaudit.reports.wording import at_delta, at_least, at_most, claimed_delta, figure, stated
from dpaudit.verify.results import AttackResult, AuditResult

LOG_AXIS_FROM = 20.0  # a linear axis shows two values apart up to about this ratio
TINY = 1e-9  # an epsilon below this is drawn as 0
WIDE, NARROW = 9.6, 4.1  # inches of the bracket figure


def bracket_figure(result: AuditResult, *, wide: bool) -> Markup:
    """Claim, certified bracket and what each attack proved, on one epsilon axis.

    Args:
        result: The audit.
        wide: For screens and paper, with the labels beside the axis; otherwise for phones, with the labels in it.
    """
    rows = _rows(result)
    width = WIDE if wide else NARROW
    with canvas(width, 0.95 + (0.46 if wide else 0.52) * len(rows)) as (drawing, axes):
        low, high = _epsilon_axis(axes, [result.epsilon_claimed, *(value for row in rows for value in row.values)])
        claimed = min(max(result.epsilon_claimed, low), high)
        axes.axvspan(claimed, high, color=BAD, zorder=0, linewidth=0)
        axes.axvline(claimed, color=INK, linewidth=1.6, zorder=2)
        right = fraction(axes, claimed) > 0.6
        axes.annotate(
            f"promised {stated(result.epsilon_claimed)}",
            (claimed, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if right else 4, 5),
            textcoords="offset points",
            ha="right" if right else "left",
            weight="bold",
        )
        for height, row in zip(reversed(range(len(rows))), rows, strict=True):
            _label(axes, row, height, wide=wide)
            row.draw(axes, height if wide else height - 0.12, low, high)
        axes.set_ylim(-0.5, len(rows) - 0.45)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"epsilon{at_delta(result)}  (shaded: more than was promised)")
        return svg(drawing, "wide" if wide else "narrow", bracket_text(result))


def bracket_text(result: AuditResult) -> str:
    """The same figure in words."""
    rows = (f"{row.name}: {row.text}" for row in _rows(result))
    return ". ".join([f"Epsilon axis. Promised: {stated(result.epsilon_claimed)}", *rows])


def curve_figure(result: AuditResult) -> Markup | None:
    """The certified curve delta(epsilon), the claim as a point on it, and what attacks saw; None without a curve."""
    curve = columns(result.certified_curve, "epsilon", "delta_lower", "delta_upper")
    if curve is None:
        return None
    epsilon, lower, upper = curve
    claimed = claimed_delta(result)
    tests = [attack for attack in result.attacks if attack.curve_test is not None]
    floor = log_floor([*upper, *lower, claimed or 0.0], tiny=claimed * 1e-4 if claimed else 1e-12)
    with canvas(4.9, 3.7) as (drawing, axes):
        log_axis(axes, "y")
        axes.fill_between(
            epsilon,
            np.maximum(lower, floor),
            np.maximum(upper, floor),
            color=PROOF,
            alpha=0.18,
            linewidth=0,
            label="where the true curve lies",
        )
        axes.plot(epsilon, np.where(upper > floor, upper, np.nan), color=PROOF, label="certified upper bound")
        if np.any(lower > floor):
            axes.plot(
                epsilon,
                np.where(lower > floor, lower, np.nan),
                color=PROOF,
                linestyle=":",
                label="certified lower bound",
            )
        if claimed is not None:
            label = "the claim" if claimed > 0.0 else "the claim, at delta = 0"
            axes.plot([result.epsilon_claimed], [max(claimed, floor)], "D", color=INK, label=label, clip_on=False)
        for attack, marker in zip(tests, "o^sv*" * len(tests), strict=False):
            test = attack.curve_test
            if test is not None and test.delta_observed_lower > floor and test.epsilon <= epsilon[-1]:
                axes.plot(
                    [test.epsilon],
                    [test.delta_observed_lower],
                    marker,
                    color=ATTACK,
                    label=f"{short(attack.name)}: at least this was seen",
                )
        axes.set_xlim(0.0, max(float(epsilon[-1]), result.epsilon_claimed) or 1.0)
        axes.set_ylim(floor, 2.0)
        axes.set_xlabel("epsilon")
        axes.set_ylabel("delta")
        axes.grid(visible=True)
        legend(drawing)
        return svg(drawing, "curve", curve_text(result))


def curve_text(result: AuditResult) -> str:
    """The certified curve in words: both bounds at its ends."""
    table = columns(result.certified_curve, "epsilon", "delta_lower", "delta_upper")
    if table is None:
        return ""
    ends = (
        f"between {at_least(lower)} and {at_most(upper)} at epsilon {figure(epsilon)}"
        for epsilon, lower, upper in (tuple(float(column[i]) for column in table) for i in (0, -1))
    )
    return f"Certified bounds on delta against epsilon, delta on a logarithmic axis. Delta lies {' and '.join(ends)}."


def roc_figure(attack: AttackResult, tradeoff: Mapping[str, Any] | None, *, key: str) -> Markup | None:
    """True against false positives on log axes, with band, chance and what the mechanism allows; None without a ROC.

    Args:
        attack: One attack.
        tradeoff: `AuditResult.tradeoff`.
        key: Tells the figures of one page apart.
    """
    curve = columns(attack.roc, "fpr", "tpr", "tpr_lower", "tpr_upper")
    if curve is None:
        return None
    fpr, tpr, lower, upper = curve
    floor = min(log_floor([*fpr, 1.0 / max(attack.trials, 2)], tiny=1e-9), 0.1)
    with canvas(4.9, 4.4) as (drawing, axes):
        log_axis(axes, "x", "y")
        fpr = np.maximum(fpr, floor)  # a log axis has no 0: the left edge stands for it
        level = (attack.roc or {}).get("confidence")
        axes.fill_between(
            fpr,
            np.maximum(lower, floor),
            np.maximum(upper, floor),
            step="post",
            color=ATTACK,
            alpha=0.18,
            linewidth=0,
            label=f"{figure(100 * float(level))}% band at each point" if level else "band",
        )
        axes.step(
            fpr,
            np.maximum(tpr, floor),
            where="post",
            color=ATTACK,
            label=short(attack.name),
        )
        allowed = columns(tradeoff, "fpr", "tpr_max")
        if allowed is not None:
            axes.plot(
                allowed[0][allowed[0] > 0],
                allowed[1][allowed[0] > 0],
                color=PROOF,
                linestyle="--",
                label="most the certified mechanism allows",
            )
        axes.plot([floor, 1.0], [floor, 1.0], color=GREY, linestyle=":", label="guessing")
        axes.set_xlim(floor, 1.0)
        axes.set_ylim(floor, 1.25)
        axes.set_xlabel("false-positive rate")
        axes.set_ylabel("true-positive rate")
        axes.grid(visible=True)
        legend(drawing)
        return svg(drawing, key, roc_text(attack))


def roc_text(attack: AttackResult) -> str:
    """The ROC in words."""
    rates = ", ".join(f"{figure(tpr)} at false-positive rate {key}" for key, tpr in attack.tpr_at_fpr.items())
    return (
        f"ROC curve of {attack.name} on logarithmic axes with its confidence band, the chance diagonal and the "
        f"certified trade-off curve. Area {figure(attack.auc)}{f'; true-positive rate {rates}' if rates else ''}."
    )


@dataclass(frozen=True)
class _Row:
    """A row of the bracket figure: its label, the values its axis must hold, and how it is drawn."""

    name: str
    text: str
    values: tuple[float, ...]
    draw: Callable[[Axes, float, float, float], None]


def _rows(result: AuditResult) -> list[_Row]:
    rows = []
    check = result.claim_check
    if check is not None:
        low, high = check.epsilon_lower, check.epsilon_upper
        text = f"between {at_least(low)} and {at_most(high)}"
        rows.append(_Row(f"claim check ({check.verdict})", text, (low, high), _bracket(low, high)))
    for attack in result.attacks:
        proven, best = attack.epsilon_lower, attack.best_possible_epsilon
        text = "proves no epsilon" if proven is None else f"at least {at_least(proven)}"
        text += "" if best is None else f" (best possible {figure(best)})"
        values = tuple(value for value in (proven, best) if value is not None)
        rows.append(_Row(short(attack.name), text, values, _attack_row(proven, best)))
    return rows or [_Row("nothing was measured", "", (), lambda *_: None)]


def _label(axes: Axes, row: _Row, height: float, *, wide: bool) -> None:
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


def _attack_row(proven: float | None, best: float | None) -> Callable[[Axes, float, float, float], None]:
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
    shown = [float(value) for value in values if TINY < value < math.inf]
    low, high = 0.0, max(shown, default=1.0) * 1.15
    if shown and max(shown) / LOG_AXIS_FROM > min(shown):
        log_axis(axes, "x")
        low, high = min(shown) / 2.0, max(shown) * 3.0
    axes.set_xlim(low, high)
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)
    return low, high
