"""How figures are drawn: one style, logarithmic axes, and SVG that may stand inside a page. No global state is left."""

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpaudit.reports.wording import figure

Array = NDArray[np.float64]

INK, GREY, GRID = "#1b2330", "#5b6472", "#dfe3e8"
PROOF, ATTACK, BAD = "#1f5fa8", "#b4510b", "#fbe4e1"
NAME_LENGTH = 24  # longer names would not fit on a phone

_STYLE: dict[Any, Any] = {
    "figure.facecolor": "none",  # the page's own paper, light or dark
    "axes.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: small, searchable, and drawn in the page's own font
    "svg.hashsalt": "dpaudit",  # the same result gives the same page, byte for byte
    "text.parse_math": False,  # a name with a dollar sign is a name
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib, so the layout is the same everywhere
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure of this many inches (96 points of the page each), in this house's style whatever the user's is."""
    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")}
    with matplotlib.rc_context({**defaults, **_STYLE}), warnings.catch_warnings():
        # names may hold characters of no installed font; the reader's browser draws them, matplotlib only measures
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        drawing = Figure(figsize=(width, height), layout="constrained")
        yield drawing, drawing.add_subplot()


def svg(drawing: Figure, key: str, alternative: str) -> Markup:
    """The drawing as an <svg> element for a page: no prologue, no namespaces, and ids of its own.

    Args:
        drawing: The figure, still inside its `canvas`.
        key: Prefix of its ids, unique on the page.
        alternative: What it shows, in words, for readers who do not see it.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    drawing.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text, count=2).replace("xlink:href=", "href=")
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{key}-", text)
    opening = f'<svg role="img" aria-label="{escape(alternative)}"'
    return Markup(text.replace("<svg", opening, 1))  # matplotlib escapes the text it draws


def legend(drawing: Figure) -> None:
    """The legend, below the axes."""
    drawing.legend(loc="outside lower left", ncols=1, fontsize=9)


def log_axis(axes: Axes, *names: Literal["x", "y"]) -> None:
    """Logarithmic axes whose ticks are written like every other number, without mathematical typesetting."""
    for name in names:
        axes.set(**{f"{name}scale": "log"})
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_formatter(lambda value, _: figure(value))
        axis.set_minor_formatter(lambda value, _: "")


def percents(axes: Axes) -> None:
    """Ticks of both axes as percentages."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{figure(100.0 * value, 3)}%")


def log_floor(values: Sequence[float] | Array, *, tiny: float) -> float:
    """The power of ten just below the smallest value that exceeds `tiny`."""
    smallest = min((float(value) for value in values if value > tiny), default=1e-6)
    return float(10.0 ** math.floor(math.log10(smallest) - 1e-9))


def fraction(axes: Axes, value: float) -> float:
    """Where on the x axis a value is drawn, 0 left to 1 right."""
    return float((axes.transData + axes.transAxes.inverted()).transform((value, 0.0))[0])


def columns(table: Mapping[str, Any] | None, *names: str) -> list[Array] | None:
    """The named columns as arrays ("inf" read as infinity), or None if the table is absent or empty."""
    if not table or any(name not in table for name in names):
        return None
    arrays = [np.array([float(value) for value in table[name]], dtype=np.float64) for name in names]
    return arrays if arrays[0].size else None


def short(name: str) -> str:
    """An outside name, on one line and not too long."""
    clean = "".join(c if c.isprintable() else " " for c in name.encode("utf-8", "replace").decode("utf-8"))
    return clean if len(clean) <= NAME_LENGTH else clean[: NAME_LENGTH - 1] + "…"
