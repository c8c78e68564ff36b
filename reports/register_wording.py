"""Sentences of the register, whose readers include those who made the claims.

What was claimed, what the bound shows, what would change the verdict, and as plainly where a claim holds.
"""

from collections.abc import Mapping
from typing import Any

from dpaudit.reports.wording import at_least, at_most, figure, stated

SAMPLERS = {
    "none": "full batches",
    "poisson": "Poisson batches",
    "deterministic": "fixed batches",
    "shuffled": "shuffled batches",
    "balls-in-bins": "balls in bins",
    "random-allocation": "random allocation",
    "without-replacement": "batches drawn without replacement",
    "truncated-poisson": "truncated Poisson batches",
    "buffered-shuffle": "a buffered shuffle",
}
# what stands behind the bounds of a sampler
SKETCHES = {
    "shuffled": (
        "Lower bound: all other records contribute -1 along one line and the record in question +1, which a linear "
        "loss can bring about. With the record one batch of each pass is moved by 2, without it by 1, and which one is "
        "uniform. The onlooker adds up, over a pass, a rounded log likelihood ratio of each batch, an integer whose "
        "law is known exactly; passes compose. Upper bound: as if the order were known, the record in one batch of "
        "each pass, or known but for one swap, which hides it among many batches."
    ),
    "buffered-shuffle": (
        "Of passes that empty the buffer: the last record of the file is in each of the last draws alike, as many as "
        "the buffer holds, and all others contribute against it; upper bound as of so many batches, or as if the order "
        "were known. Of one stream of passes: all other records contribute nothing. A record is drawn within a few "
        "buffers' worth of draws after it came in, so that it is known where to look, or the sum of all outputs tells "
        "of it. Upper bound: as if all draws were known, by how often copies of one record meet in one batch."
    ),
    "without-replacement": (
        "Lower bound: the others contribute -1, the record +1, so that a batch of fixed size is moved by 2 with the "
        "record and by 1 without it. Upper bound: composition of the single release's certified profile."
    ),
}
WAYS = {
    "numerics": "certified numerics",
    "balls": "ball arithmetic, or a certificate",
    "monte-carlo": "Monte Carlo of the training's own sampler",
    "numpy": "ten lines of numpy",
}


def samplers(claim: Mapping[str, Any]) -> list[str]:
    """The kinds of sampling of a claim, in the order of its phases; a Poisson rate of 1 is no sampling.

    Of noise that is correlated, it is who takes part when.
    """
    phases = claim.get("phase", [claim])
    tables = [p["correlation"]["participation"] if "correlation" in p else p["sampling"] for p in phases]
    everybody = {"kind": "poisson", "prob": 1.0}
    return list(dict.fromkeys("none" if table == everybody else table["kind"] for table in tables))


def mechanisms(claim: Mapping[str, Any]) -> list[str]:
    """The mechanisms of a claim, in the order of its phases."""
    return list(dict.fromkeys(phase["mechanism"]["name"] for phase in claim.get("phase", [claim])))


def reason(entry: Mapping[str, Any]) -> str:
    """A verdict in one or two sentences for somebody who knows what epsilon is, and no more.

    >>> claim = {"sampling": {"kind": "poisson"}, "mechanism": {"name": "gaussian"}}
    >>> verdict = {"verdict": "certified", "epsilon_claimed": 3.01, "delta_claimed": 1e-5, "epsilon_lower": 2.381,
    ...            "epsilon_upper": 2.382}
    >>> reason({"claim": claim, "verdict": verdict})
    'Holds for Poisson batches, with room: the true epsilon at delta = 1e-5 is at most 2.382, and 3.01 was stated.'
    """
    verdict = entry["verdict"]
    batches = " and ".join(SAMPLERS.get(kind, kind) for kind in samplers(entry["claim"]))
    if "guarantee" in entry["claim"]:
        begins = {"certified": "Holds", "refuted": "Does not hold"}.get(verdict["verdict"], "Not decided")
        return f"{begins} for {batches}: {verdict['reason']}"
    claimed, delta = verdict["epsilon_claimed"], stated(verdict["delta_claimed"])
    lower, upper = float(verdict["epsilon_lower"]), float(verdict["epsilon_upper"])
    if verdict["verdict"] == "certified":
        room = ", with room" if upper < 0.97 * claimed else ""
        return (
            f"Holds for {batches}{room}: the true epsilon at delta = {delta} is at most "
            f"{at_most(min(upper, claimed), within=claimed)}, and {stated(claimed)} was stated."
        )
    if verdict["verdict"] == "refuted":
        by = f", {figure(100 * (lower / claimed - 1), 2)}% more" if claimed and lower < 1.1 * claimed else ""
        return (
            f"Does not hold for {batches}: the true epsilon at delta = {delta} is at least "
            f"{at_least(lower, above=claimed)}{by}, and {stated(claimed, below=lower)} was stated."
        )
    if lower == 0 and upper == float("inf"):
        return f"Not decided: nothing is proved about {batches}."
    return f"Not decided for {batches}: the true epsilon lies between {at_least(lower)} and {at_most(upper)}."


def change(row: Mapping[str, Any], entries: list[Mapping[str, Any]]) -> str:
    """What would change the verdicts of a row; "" where nothing is disputed."""
    names = {entry["verdict"]["verdict"] for entry in entries}
    refuted = [entry for entry in entries if entry["verdict"]["verdict"] == "refuted"]
    if not refuted:
        return "A theorem about the sampler that runs." if "undecided" in names else ""
    kinds = {kind for entry in refuted for kind in samplers(entry["claim"])}
    if "shuffled" in kinds and "certified" in names:
        return "Drawing Poisson batches at the stated rate, or stating the epsilon of shuffled batches."
    if row["assumed"]:
        return "Another reading of what was assumed, from the source; or more noise."
    return "More noise, or a larger stated epsilon."


def sketch(entry: Mapping[str, Any]) -> list[str]:
    """How the verdict is proved: the theorem or the witness, and what stands behind the sampler's bounds."""
    known = [SKETCHES[kind] for kind in samplers(entry["claim"]) if kind in SKETCHES]
    return [entry["verdict"]["reason"], *known]
