"""`dpaudit canaries plant` and `dpaudit canaries judge`: sealed one-run audits of trainings that we never see."""

import secrets
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpaudit._plain_text import printable
from dpaudit.audit.commands.console import LACKING, REFUTED, one_of, written_apart

if TYPE_CHECKING:
    from dpaudit.verify.results import AuditResult

canaries = typer.Typer(
    name="canaries",
    help="Audit a training that is never seen: plant canaries by sealed coins, judge its scores of them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Files = list[Path] | None


@canaries.command()
def plant(
    data: Annotated[
        str, typer.Argument(help=".npz, .csv, .tsv or .jsonl, a folder of images or of datasets, or digits, sst2, ...")
    ],
    out: Annotated[Path, typer.Option(help="Name of the planted data; <name>.queries goes beside it.")],
    sealed: Annotated[Path, typer.Option(help="The coins file to write; it stays with the auditor.")],
    count: Annotated[int, typer.Option(help="Canaries, a fair coin each.")] = 1000,
    kind: Annotated[
        str,
        typer.Option(
            help="mislabelled, random-label, out-of-distribution, blank; of text also text and rare-tokens; gradient.",
            metavar="KIND",
        ),
    ] = "mislabelled",
    runs: Annotated[int, typer.Option(help="Trainings, with coins of their own.")] = 1,
    group_size: Annotated[int, typer.Option(help="Records of a canary, in or out together: a user.")] = 1,
    every: Annotated[
        int | None, typer.Option(help="One canary in one of this many runs, in place of coins.", metavar="K")
    ] = None,
    parameters: Annotated[int | None, typer.Option(help="Of the model, for --kind gradient.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of labels.", metavar="COLUMN")] = None,
    text: Annotated[str | None, typer.Option(help="Column of sentences.", metavar="COLUMN")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="To repeat a planting. Who can guess it knows the coins.")
    ] = None,
) -> None:
    """Put canaries into data by fair coins, write what the trainer is given, and seal the coins."""
    from dpaudit.audit.canaries.planting import plant as plant_canaries
    from dpaudit.audit.canaries.power import MOST_GUESSES, epsilon_possible
    from dpaudit.audit.canaries.sealing import Draw, guesses_per_run
    from dpaudit.reports.wording import at_most

    if seed is not None:
        typer.echo("the coins follow from --seed: keep it secret until the scores are judged", err=True)
    draw = Draw(secrets.randbits(128) if seed is None else seed, runs, count, group_size, every)
    done = plant_canaries(
        data, out=out, sealed=sealed, draw=draw, kind=kind, label=label, text=text, parameters=parameters
    )
    shown = [(done.planted, "train on"), (done.queries, "score afterwards")]
    for paths, what in shown:
        more = f" ... {paths[-1]}" if len(paths) > 1 else ""
        typer.echo(printable(f"{paths[0]}{more}: {what}"))
    typer.echo(printable(f"{sealed}: the coins, for the auditor alone"))
    typer.echo(f"commitment {done.coins.commitment}")
    guesses = runs * guesses_per_run(draw)
    if 0 < guesses <= MOST_GUESSES:  # more take minutes
        most = at_most(epsilon_possible(runs * count, guesses, delta=1e-5, confidence=0.95))
        typer.echo(
            f"{guesses:,} guesses prove at most epsilon {most} at delta 1e-5 (95%); against a claim that names its "
            "mechanism they are held against its whole curve as well",
            err=True,
        )


@canaries.command()
def judge(
    coins: Annotated[Path, typer.Argument(help="The coins file that plant wrote.")],
    scores: Annotated[list[Path], typer.Argument(help="A file with columns id and score for each run, in order.")],
    epsilon: Annotated[float | None, typer.Option(help="What was promised, with --delta.")] = None,
    delta: Annotated[float | None, typer.Option(help="In [0, 1).")] = None,
    claim: Annotated[Path | None, typer.Option(help="A claims file, in place of --epsilon and --delta.")] = None,
    only: Annotated[str | None, typer.Option(help="The id of its claim, where there are several.")] = None,
    commitment: Annotated[str | None, typer.Option(help="SHA-256 of the coins as agreed.", metavar="HEX")] = None,
    data: Annotated[Files, typer.Option(help="The planted data, compared with what was sealed; repeatable.")] = None,
    queries: Annotated[Files, typer.Option(help="The queries, likewise; repeatable.")] = None,
    control: Annotated[
        Files, typer.Option(help="Scores by a training with less noise: the positive control; repeatable.")
    ] = None,
    control_noise: Annotated[
        float, typer.Option(help="Its noise, as a part of the claimed one; below 0.5 it shows no power.")
    ] = 0.5,
    reference: Annotated[
        Files, typer.Option(help="Scores by a model that saw no planted data, taken off all others; repeatable.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Level of the judgement.")] = 0.95,
    require: Annotated[
        str | None,
        typer.Option(help="power: exit with 5 unless a control with half the noise, or with more of it, is found."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default ./<coins>.audit/.")] = None,
    json: Annotated[
        str | None, typer.Option(help="Write the result here as well; - prints it and nothing else.")
    ] = None,
) -> None:
    """Tell what the scores of planted canaries prove, and whether they refute a claim."""
    lacking = LACKING if require is not None and one_of("require", require, ("power",)) else 0
    written_apart(json, coins, *scores, claim, *(data or ()), *(queries or ()), *(control or ()), *(reference or ()))
    from dpaudit.audit.canaries.judging import judge as judge_scores
    from dpaudit.audit.canaries.sealing import load_coins
    from dpaudit.audit.claim_under_test import claim_under_test

    promised = claim_under_test(epsilon, delta, claim, only)
    if promised is None:
        raise typer.BadParameter("Expected --epsilon and --delta, or --claim FILE.")
    sealed = load_coins(coins, commitment=commitment)
    if commitment is None:
        typer.echo("without --commitment nothing shows that these are the coins that were sealed", err=True)
    result = judge_scores(
        sealed, scores, promised, confidence=confidence, planted=data or (),
        queries=queries or (), control=control or (), control_noise=control_noise, reference=reference or (),
        command=shlex.join(["dpaudit", *sys.argv[1:]]),
    )  # fmt: skip
    from dpaudit.audit.delivery import deliver

    folder = out or Path(f"{coins.stem}.audit")
    deliver(result, folder, json, _lines(result), show=typer.echo, warn=partial(typer.echo, err=True))
    raise typer.Exit({"refuted": REFUTED, "inconclusive": lacking}.get(result.verdict, 0))


def _lines(result: "AuditResult") -> list[str]:
    """Verdict, bound and power."""
    from dpaudit.audit.canaries.judgement_result import UNSEEN
    from dpaudit.reports import verdict_sentence
    from dpaudit.reports.wording import at_most, control_sentence, proven_by

    attack, check = result.attacks[0], result.claim_check
    return [
        f"{result.verdict}: {verdict_sentence(result)}",
        *([] if check is None else [f"claim check: {check.verdict}: {check.reason}"]),
        f"{attack.name}: {proven_by(attack, result.epsilon_claimed)}, at most "
        f"{at_most(attack.best_possible_epsilon)} could have been proven; AUC {attack.auc:.3f}",
        *(note for note in result.notes if not note.startswith(UNSEEN)),
        f"positive control: {control_sentence(result.control)}",
    ]
