"""`dpaudit scores`: bounds from anybody's membership scores."""

import json as json_module
import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpaudit.audit.commands.console import REFUTED, Lost, one_of, written_apart

if TYPE_CHECKING:
    from dpaudit.audit.scores import Design
    from dpaudit.audit.threshold_rules import ThresholdRule


def scores(
    inside: Annotated[Path, typer.Option("--in", help="Scores with the record, higher = member: .npy or .csv.")],
    outside: Annotated[Path, typer.Option("--out", help="Scores without it.")],
    epsilon: Annotated[float | None, typer.Option(help="What was promised, with --delta.")] = None,
    delta: Annotated[float | None, typer.Option(help="In [0, 1); 1e-5 where nothing is promised.")] = None,
    claim: Annotated[Path | None, typer.Option(help="A claims file, in place of --epsilon and --delta.")] = None,
    only: Annotated[str | None, typer.Option(help="The id of its claim, where there are several.")] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="Scores of a line are of two trainings, no seed in common.")
    ] = False,
    one_run: Annotated[bool, typer.Option("--one-run", help="Canaries of one training, put in by fair coins.")] = False,
    threshold: Annotated[
        str, typer.Option(help="Of the bound from counts: bonferroni, split, or a number fixed in advance.")
    ] = "bonferroni",
    confidence: Annotated[float, typer.Option(help="Of each bound.")] = 0.95,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Fixed before the scores were seen; if absent, equal scores count as no evidence."),
    ] = None,
    json: Annotated[str | None, typer.Option(help="Write JSON here as well; - prints it alone.")] = None,
) -> None:
    """Tell what membership scores prove of epsilon, whoever computed them.

    Every score is of a training of its own, unless --paired or --one-run says how they came about.
    """
    if paired and one_run:
        raise typer.BadParameter("Expected --paired or --one-run, not both.")
    if threshold != "bonferroni" and (paired or one_run):
        raise typer.BadParameter("Expected --threshold for scores of trainings of their own, not of pairs or one run.")
    from dpaudit._files import write_whole
    from dpaudit.audit.claim_under_test import claim_under_test
    from dpaudit.audit.inputs.files import unfit_is_input
    from dpaudit.audit.inputs.score_files import read_scores
    from dpaudit.audit.scores import Scores
    from dpaudit.audit.scores_text import scores_text
    from dpaudit.verify.results import to_json

    written_apart(json, inside, outside, claim)
    promised = claim_under_test(epsilon, delta if epsilon is not None or claim is not None else None, claim, only)
    rule = _rule(threshold, seed)
    arms = read_scores(inside), read_scores(outside)
    design: Design = "paired" if paired else "one-run" if one_run else "independent"
    with unfit_is_input():
        judged = Scores(*arms, design=design).judge(
            promised, delta=1e-5 if delta is None else delta, confidence=confidence, seed=seed, threshold=rule
        )  # fmt: skip
    text = json_module.dumps(to_json(judged), indent=2)
    typer.echo(text if json == "-" else "\n".join(scores_text(judged)))
    lost = Lost(partial(typer.echo, err=True))
    if json not in (None, "-"):
        with lost:
            write_whole({str(json): (text + "\n").encode()})
    raise typer.Exit(REFUTED if judged["verdict"] == "refuted" else max(lost.statuses, default=0))


def _rule(text: str, seed: int | None) -> "ThresholdRule":
    from dpaudit.audit.threshold_rules import Bonferroni, Explicit, Split

    with suppress(ValueError):
        fixed = float(text)
        if math.isnan(fixed):
            raise typer.BadParameter(f"Expected --threshold={text} to be a number, 'bonferroni' or 'split'.")
        return Explicit(fixed)
    if one_of("threshold", text, ("bonferroni", "split")) == "bonferroni":
        return Bonferroni()
    if seed is None:
        raise typer.BadParameter("Expected --seed with --threshold split, fixed before the scores were seen.")
    return Split(seed)
