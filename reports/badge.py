"""A badge of the verdicts on a file of claims: one small SVG that needs nothing beside it."""

from collections import Counter
from collections.abc import Sequence
from xml.sax.saxutils import escape

from dpaudit.verify.results import Verdict

LABEL = "privacy claims"
INK, GOOD, OPEN, BAD = "#1b2330", "#1b7040", "#8a5a00", "#b3261e"  # white text on each has a contrast above 4.5
LETTER, MARGIN, HEIGHT = 6.6, 7, 20  # pixels, at a size of 11


def verdicts_badge(verdicts: Sequence[Verdict], *, left: int = 0) -> str:
    """An SVG image that counts the claims: red if one is refuted, amber if one is undecided or left, else green.

    Texts are as wide as they are drawn here, whatever font the reader has.

    Args:
        verdicts: What was found.
        left: How many claims a run that was ended did not come to.
    """
    counts = Counter[str](verdict.verdict for verdict in verdicts)
    shown, colour = ["certified"], GOOD
    if counts["refuted"]:
        shown, colour = ["refuted"], BAD
    elif counts["undecided"] or not verdicts:
        shown, colour = ["certified", "undecided"], OPEN
    if left:
        counts["not checked"] = left
        shown, colour = [*shown, "not checked"], colour if counts["refuted"] else OPEN
    return _badge(LABEL, ", ".join(f"{counts[kind]} {kind}" for kind in shown), colour)


def _badge(label: str, message: str, colour: str) -> str:
    left, right = (len(text) * LETTER + 2 * MARGIN for text in (label, message))
    parts = [_part(label, 0.0, left, INK), _part(message, left, right, colour)]
    title = escape(f"{label}: {message}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.1f}" height="{HEIGHT}" role="img" '
        f'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="#fff"><title>{title}</title>'
        + "".join(parts)
        + "</svg>\n"
    )


def _part(text: str, start: float, width: float, colour: str) -> str:
    drawn = f'x="{start + MARGIN:.1f}" y="14" textLength="{width - 2 * MARGIN:.1f}" lengthAdjust="spacingAndGlyphs"'
    box = f'<rect x="{start:.1f}" width="{width:.1f}" height="{HEIGHT}" fill="{colour}"/>'
    return f"{box}<text {drawn}>{escape(text)}</text>"
