"""The figures of the report. Everything drawn was computed elsewhere; only coordinates are chosen here."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from dpaudit.reports.drawing import (
    ATTACK,
    BAD,
    GREY,
    INK,
    PROOF,
    canvas,
    columns,
    legend,
    log_axis,
    log_floor,
    percents,
    short,
    svg,
)
from dpaudit.reports.epsilon_axis import Row, attack_row, axis_figure, check_row
from dpaudit.reports.summary import curve_finding, rates_shown
from dpaudit.reports.wording import at_delta, at_least, at_most, claimed_delta, figure, percent
from dpaudit.verify.results import AttackResult, AuditResult, CurveTest


def bracket_figure(result: AuditResult, *, wide: bool) -> Markup:
    """Claim, certified bracket and what each attack proved, on one epsilon axis.

    Args:
        result: The audit.
        wide: For screens and paper, with the labels beside the axis; otherwise for phones, with the labels in it.
    """
    key = "wide" if wide else "narrow"
    return axis_figure(result.epsilon_claimed, at_delta(result), _rows(result), key=key, wide=wide)


def curve_figure(result: AuditResult) -> Markup | None:
    """The certified curve delta(epsilon), and the claim as a point on it; None without a curve."""
    curve = columns(result.certified_curve, "epsilon", "delta_lower", "delta_upper")
    if curve is None:
        return None
    epsilon, lower, upper = curve
    claimed = claimed_delta(result)
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
        widest = max(float(epsilon[-1]), result.epsilon_claimed) or 1.0
        axes.set(xlim=(0.0, widest), ylim=(floor, 2.0), xlabel="epsilon", ylabel="delta")
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


def finding_figure(result: AuditResult) -> Markup | None:
    """Rates that a certified curve does not allow, on axes around the event that shows it; None without such a finding.

    Args:
        result: The audit.
    """
    finding = curve_finding(result)
    allowed = columns(result.tradeoff, "fpr", "tpr_max")
    if finding is None or allowed is None:
        return None
    attack, test = finding
    curve = columns(attack.roc, "fpr", "tpr", "tpr_lower", "tpr_upper")
    right = min(1.0, max(3.0 * test.fpr, 4.0 / max(attack.trials, 4)))
    with canvas(5.6, 4.3) as (drawing, axes):
        if curve is not None:
            fpr, tpr, lower, upper = curve
            axes.fill_between(fpr, lower, upper, step="post", color=ATTACK, alpha=0.18, linewidth=0)
            axes.step(fpr, tpr, where="post", color=ATTACK, label=f"seen by {short(attack.name)}")
        axes.fill_between(allowed[0], allowed[1], 1.0, color=BAD, alpha=0.5, linewidth=0, zorder=0)
        axes.plot(*allowed, color=PROOF, linestyle="--", label="most that the mechanism allows")
        axes.plot([0.0, 1.0], [0.0, 1.0], color=GREY, linestyle=":", label="guessing")
        axes.plot([test.fpr] * 2, [test.tpr_allowed, test.tpr], color=INK, linewidth=1.2, zorder=5)
        marks = (
            (test.tpr, ATTACK, f"seen {percent(test.tpr)}", 9),
            (test.tpr_allowed, PROOF, f"at most {percent(test.tpr_allowed, up=True)} allowed", -9),
        )
        for place, colour, text, rise in marks:
            axes.plot([test.fpr], [place], "o", color=colour, markersize=7, zorder=6)
            axes.annotate(text, (test.fpr, place), xytext=(9, rise), textcoords="offset points", va="center",
                          color=colour, weight="bold", zorder=7,
                          bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.0})  # fmt: skip
        top = min(1.02, max(1.35 * test.tpr, 1.15 * float(np.interp(right, allowed[0], allowed[1]))))
        axes.set(xlim=(0.0, right), ylim=(0.0, top))
        axes.set(xlabel="false alarms: models without the record that are accused", ylabel="models with it, recognised")
        percents(axes)
        axes.grid(visible=True)
        legend(drawing)
        return svg(drawing, "finding", finding_text(attack, test))


def finding_text(attack: AttackResult, test: CurveTest) -> str:
    """The figure of a finding in words."""
    return (
        f"ROC curve of {attack.name} above the most that the mechanism allows: at {percent(test.fpr)} false "
        f"alarms it recognises {percent(test.tpr)}, and at most {percent(test.tpr_allowed, up=True)} are allowed."
    )


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
        axes.set(xlim=(floor, 1.0), ylim=(floor, 1.25), xlabel="false-positive rate", ylabel="true-positive rate")
        axes.grid(visible=True)
        legend(drawing)
        return svg(drawing, key, roc_text(attack))


def roc_text(attack: AttackResult) -> str:
    """The ROC in words."""
    rates = ", ".join(f"{figure(tpr)} at false-positive rate {key}" for key, tpr in rates_shown(attack).items())
    return (
        f"ROC curve of {attack.name} on logarithmic axes with its confidence band, the chance diagonal and the "
        f"certified trade-off curve. Area {figure(attack.auc)}{f'; true-positive rate {rates}' if rates else ''}."
    )


def _rows(result: AuditResult) -> list[Row]:
    rows = []
    check = result.claim_check
    if check is not None:
        rows.append(check_row(f"claim check ({check.verdict})", check))
    for attack in result.attacks:
        proven, best = attack.epsilon_lower, attack.best_possible_epsilon
        if proven is None and best is None:
            continue  # it has no place on this axis
        text = "proves no epsilon" if proven is None else f"at least {at_least(proven)}"
        text += "" if best is None else f" (best possible {figure(best)})"
        values = tuple(value for value in (proven, best) if value is not None)
        rows.append(Row(short(attack.name), text, values, attack_row(proven, best)))
    return rows or [Row("nothing was measured", "", (), lambda *_: None)]
