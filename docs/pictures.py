"""The drawings of the concept pages: `python docs/pictures.py` writes docs/pictures/*.svg again."""

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dpaudit.mechanisms import Gaussian
from dpaudit.reports.drawing import ATTACK, BAD, GREY, INK, PROOF, canvas, log_axis
from dpaudit.verify import Claim, check
from dpaudit.verify.bounds import best_possible_epsilon, epsilon_from_counts, gaussian_epsilon
from dpaudit.verify.bounds.rates import rate_lower, rate_upper

FOLDER = Path(__file__).with_name("pictures")
DELTA, LEVEL = 1e-5, 0.95


def bracket(folder: Path) -> None:
    """Three claims on the epsilon axis of one history, and what becomes of each."""
    verdict = check(Claim.single(Gaussian(1.0), epsilon=2.0, delta=DELTA, steps=50, adjacency="add-remove"))
    low, high = verdict.epsilon_lower, verdict.epsilon_upper
    middle, width = (low + high) / 2, max(high - low, 1e-9)
    with canvas(6.4, 2.3) as (drawing, axes):
        left, right = middle - 3 * width, middle + 3 * width
        axes.axvspan(left, low, color=BAD, linewidth=0)
        axes.plot([low, high], [0, 0], color=PROOF, linewidth=10, solid_capstyle="butt")
        for place, name in ((middle - 2 * width, "refuted"), (middle, "undecided"), (middle + 2 * width, "certified")):
            axes.plot([place, place], [-0.4, 0.75], color=INK, linewidth=1.6)
            axes.annotate(f"a claim here\nis {name}", (place, 0.8), ha="center", va="bottom")
        for place, name in ((low, "epsilon_lower"), (high, "epsilon_upper")):
            axes.annotate(name, (place, -0.18), ha="right" if place == low else "left", va="top", color=PROOF)
        axes.set(xlim=(left, right), ylim=(-0.6, 1.9), yticks=[], xticks=[], xlabel="epsilon")
        axes.spines["left"].set_visible(False)
        write(drawing, folder / "bracket.svg")


def evidence(folder: Path) -> None:
    """One event's rates with their confidence bounds, and the line that the bound on epsilon rests on."""
    tp, fp, trials = 90, 10, 100
    bound = epsilon_from_counts(tp=tp, fp=fp, tn=trials - fp, fn=trials - tp, delta=0.0, confidence=LEVEL)
    tail = (1 - LEVEL) / 2
    tpr = rate_lower(tp, trials, confidence=1 - tail)
    fpr = rate_upper(fp, trials, confidence=1 - tail)
    with canvas(4.8, 4.4) as (drawing, axes):
        x = np.linspace(0.0, 1.0, 400)
        for epsilon, colour, style in ((bound.epsilon_lower, PROOF, "-"), (np.log(tp / fp), GREY, "--")):
            # the largest true-positive rate that (epsilon, 0)-differential privacy allows, in both directions
            y = np.minimum(np.exp(epsilon) * x, 1 - np.exp(-epsilon) * (1 - x))
            axes.plot(x, y, style, color=colour, linewidth=1.6, label=f"most that epsilon = {epsilon:.2f} allows")
        axes.add_patch(Rectangle((0, tpr), fpr, 1 - tpr, facecolor="#f6e3d3", edgecolor=ATTACK, linewidth=0.8))
        axes.plot([fp / trials], [tp / trials], "o", color=ATTACK, label="seen: 90 of 100 against 10 of 100")
        axes.plot([fpr], [tpr], "s", color=PROOF, label="what 95% confidence leaves of it")
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="false-positive rate", ylabel="true-positive rate")
        axes.legend(loc="lower right", fontsize=8.5)
        write(drawing, folder / "evidence.svg")


def power(folder: Path) -> None:
    """What so many models can prove: at best, and by the best attack on a training with half of its noise."""
    claimed, true = gaussian_epsilon(0.5, DELTA), gaussian_epsilon(1.0, DELTA)
    models = np.unique(np.geomspace(5, 20_000, 28).astype(int))
    best = [best_possible_epsilon(int(n), int(n), delta=DELTA, confidence=LEVEL) for n in models]
    ideal = [proven_by_the_best_threshold(int(n), shift=1.0) for n in models]
    with canvas(6.4, 3.9) as (drawing, axes):
        axes.plot(models, best, color=GREY, linewidth=1.6, linestyle="--")
        axes.plot(models, ideal, color=ATTACK, linewidth=2)
        axes.axhline(claimed, color=INK, linewidth=1.4)
        axes.axhline(true, color=PROOF, linewidth=1.4)
        log_axis(axes, "x")
        for height, text, colour in ((claimed, "claimed", INK), (true, "true: half of the noise is missing", PROOF)):
            axes.annotate(f"{text}, {height:.2f}", (6, height), (0, 4), textcoords="offset points", color=colour)
        axes.annotate("every model told apart", (models[-9], best[-9]), (-8, 3), textcoords="offset points",
                      ha="right", color=GREY)  # fmt: skip
        axes.annotate("best attack, by counts", (models[-5], ideal[-5]), (0, -30), textcoords="offset points",
                      ha="center", color=ATTACK)  # fmt: skip
        axes.set(ylim=(0, 8), xlabel="models per arm", ylabel="epsilon proven at 95%")
        axes.grid(visible=True, axis="y")
        write(drawing, folder / "power.svg")


def proven_by_the_best_threshold(models: int, *, shift: float) -> float:
    """What the expected counts of N(shift, 1) against N(0, 1) prove, at the threshold that proves most."""
    from scipy.stats import norm

    found = 0.0
    for threshold in np.linspace(-1.0, 4.0, 51):
        tp, fp = round(models * norm.sf(threshold - shift)), round(models * norm.sf(threshold))
        counts = {"tp": tp, "fp": fp, "tn": models - fp, "fn": models - tp}
        found = max(found, epsilon_from_counts(**counts, delta=DELTA, confidence=LEVEL).epsilon_lower)
    return found


def neighbours(folder: Path) -> None:
    """A data set and its neighbour under each of the three adjacencies, cut into batches of two."""
    rows = [
        ("add-remove", "the record is gone,\nthose behind it move up", ["a", "b", "d", "e", "f", None]),
        ("zero-out", "a ghost of contribution 0\ntakes its place", ["a", "b", "", "d", "e", "f"]),
        ("replace-one", "another record\ntakes its place", ["a", "b", "x", "d", "e", "f"]),
    ]
    with canvas(7.2, 3.1) as (drawing, axes):
        data(axes, 3.3, "the data", "in batches of two", list("abcdef"))
        for place, (name, meaning, records) in enumerate(rows):
            data(axes, 2.0 - place, name, meaning, records)
        axes.set(xlim=(-5.4, 7.4), ylim=(-0.5, 4.1), xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
        write(drawing, folder / "neighbours.svg")


def data(axes: Axes, height: float, name: str, meaning: str, records: list[str | None]) -> None:
    """One data set as a row of squares: the record in question is c; None is no record, "" a ghost."""
    axes.text(-5.3, height + 0.35, name, weight="bold", va="center")
    axes.text(-3.2, height + 0.35, meaning, va="center", color=GREY)
    for place, record in enumerate(records):
        if record is None:
            continue
        left = place + 0.5 * (place // 2)
        moved = record != "abcdef"[place]
        edge, style = (ATTACK, "--" if record == "" else "-") if moved or record == "c" else (GREY, "-")
        paper = "#f6e3d3" if record in ("c", "x") else "none"
        axes.add_patch(Rectangle((left, height), 0.8, 0.7, facecolor=paper, edgecolor=edge, linestyle=style))
        axes.text(left + 0.4, height + 0.35, record or "0", ha="center", va="center")


def write(drawing: Figure, path: Path) -> None:
    """The drawing on white paper, which shows on a page of any colour."""
    path.parent.mkdir(exist_ok=True)
    drawing.savefig(path, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")), facecolor="white")
    print(path)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for draw in (bracket, evidence, power, neighbours):
        draw(folder)
