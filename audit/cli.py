"""The `dpaudit` command: arguments, exit codes, progress bars. Everything heavy is imported inside a command."""

import errno
import os
import re
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dpaudit.audit.attacks.base import Audit
    from dpaudit.audit.attacks.canary_game import Design
    from dpaudit.audit.inputs.sources import Stage
    from dpaudit.audit.runner import AuditPlan
    from dpaudit.audit.settings import Settings
    from dpaudit.verify.results import AuditResult

BAD_INPUT, REFUTED, GAVE_UP, LACKING = 2, 3, 4, 5

app = typer.Typer(
    name="dpaudit",
    help="Tells whether a differential-privacy claim holds: audits trained models, and names what refutes a claim.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 nothing refuted, 2 bad usage or input, 3 a claim was refuted, 4 gave up, 5 what is required "
    "is missing.",
)

Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of everything random; drawn, printed and recorded if absent.")
]
Device = Annotated[str, typer.Option(help="Where models train: auto, cpu or cuda.", metavar="auto|cpu|cuda")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dpaudit {version('dpaudit')} (Python {sys.version.split()[0]}, torch {version('torch')})")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Versions.")] = False,
) -> None:
    """Options before the command."""


@app.command()
def run(
    model: Annotated[Path, typer.Argument(help="An audit bundle, or weights (.pt, .safetensors) with --recipe.")],
    recipe: Annotated[Path | None, typer.Option(help="Recipe of weights that carry none.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set name or .npz file, if not the recipe's.")] = None,
    attacks: Annotated[
        str | None, typer.Option(help="Which attacks, separated by commas; if absent, all that apply by default.")
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(help="Your own training loop, retrained in place of ours.", metavar="FILE.py:NAME")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Models per arm; default what finds half the noise.")] = None,
    confidence: Annotated[float, typer.Option(help="Level of all bounds together.")] = 0.95,
    budget: Annotated[str | None, typer.Option(help="Stop training after this time: 90s, 10m, 2h.")] = None,
    engine: Annotated[str, typer.Option(help="Where models train: local or ray.", metavar="local|ray")] = "local",
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Training processes; default one per core.")] = None,
    seed: Seed = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the claim, try canaries, print the plan.")] = False,
    require: Annotated[
        str | None, typer.Option(help="power: exit with 5 if half the noise would have been missed.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget trials of earlier runs.")] = False,
    shared: Annotated[
        Path | None, typer.Option("--store", help="Folder of trials that dpaudit trials trained.", metavar="DIR")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default ./<model>.audit/.")] = None,
    json: Annotated[
        str | None, typer.Option(help="Write the result here as well; - prints it and nothing else.")
    ] = None,
) -> None:
    """Audit a trained model: check its claim, attack it, write a report."""
    from dpaudit.audit.inputs.bundles import load_bundle
    from dpaudit.audit.inputs.recipes import load_recipe

    began = time.monotonic()
    _left(budget, began)
    lacking = LACKING if require is not None and _one_of("require", require, ("power",)) else 0
    bundle = load_bundle(model, recipe=None if recipe is None else load_recipe(recipe))

    from dpaudit.audit import runner  # after the file: a bad one is refused before this loads
    from dpaudit.audit.trials.store import stored_seed

    folder = out or Path(f"{model.stem}.audit")
    store = folder / "trials.sqlite" if shared is None else shared / "run.sqlite"
    before = None if fresh or seed is not None else stored_seed(store, shared=shared is not None)
    chosen = _seed(seed, before)
    settings = _settings(
        chosen,
        attacks,
        trainer,
        trials=trials,
        confidence=confidence,
        budget=_left(budget, began),
        device=device,
        workers=workers,
        engine=engine,
        store=None if dry_run else store,
        shared=shared is not None,
        fresh=fresh,
        command=_command(chosen),
    )
    with _progress() as stage:
        dataset = bundle.recipe.load_dataset(data, progress=stage)
        if dry_run:
            prepared = runner.prepare(bundle, dataset, settings, stage=stage)
            plan = runner.plan_audit(prepared)
            typer.echo(_plan_text(prepared, plan, runner.designs(prepared, plan)))
            return
        result = runner.run(bundle, dataset, settings, stage=stage, warn=partial(typer.echo, err=True))
    _deliver(result, folder, json)
    statuses = {"refuted": REFUTED, "gave_up": GAVE_UP, "inconclusive": lacking, "not_refuted": 0}
    raise typer.Exit(statuses[result.verdict])


@app.command("trials")
def train_trials(
    model: Annotated[Path, typer.Argument(help="As for run.")],
    shard: Annotated[str, typer.Option(help="Which share of the models: 1/4 is the first of four.", metavar="I/N")],
    store: Annotated[Path, typer.Option(help="Folder that all shares write to, a file each.", metavar="DIR")],
    recipe: Annotated[Path | None, typer.Option(help="Recipe of weights that carry none.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set name or .npz file, if not the recipe's.")] = None,
    attacks: Annotated[str | None, typer.Option(help="Which attacks, separated by commas.")] = None,
    trainer: Annotated[str | None, typer.Option(help="Your own training loop.", metavar="FILE.py:NAME")] = None,
    trials: Annotated[int | None, typer.Option(help="Models per arm, of all shares together.")] = None,
    confidence: Annotated[float, typer.Option(help="As for run: the default of --trials depends on it.")] = 0.95,
    budget: Annotated[str | None, typer.Option(help="Stop training after this time: 90s, 10m, 2h.")] = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Training processes; default one per core.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same for all shares.")] = None,
) -> None:
    """Train a part of an audit's models, for dpaudit run --store DIR; the same options as there."""
    began, share = time.monotonic(), _share(shard)
    _left(budget, began)
    from dpaudit.audit.inputs.bundles import load_bundle
    from dpaudit.audit.inputs.recipes import load_recipe

    bundle = load_bundle(model, recipe=None if recipe is None else load_recipe(recipe))

    from dpaudit.audit import runner
    from dpaudit.audit.trials.store import stored_seed

    file = store / f"shard-{share[0]}-of-{share[1]}.sqlite"
    chosen = seed if seed is not None else stored_seed(file, shared=True)
    if chosen is None:
        raise typer.BadParameter("Expected --seed, the same for all shares.")
    settings = _settings(
        chosen, attacks, trainer, trials=trials, confidence=confidence, device=device, workers=workers, store=file,
        shared=True, budget=_left(budget, began),
    )  # fmt: skip
    with _progress() as stage:
        done = runner.train_share(
            bundle, bundle.recipe.load_dataset(data, progress=stage), settings, share, stage=stage
        )
    rest = f"stopped: {done.stopped}" if done.stopped else "with the other shares' all are there"
    typer.echo(f"{file}: {done.trained:,} models trained here, {rest}")
    raise typer.Exit(GAVE_UP if done.stopped else 0)


@app.command()
def verify(
    claims: Annotated[list[Path], typer.Argument(help="Claims files, TOML.")],
    only: Annotated[str | None, typer.Option(help="Check the claim of this id alone.")] = None,
    method: Annotated[str, typer.Option(help="exact, monte-carlo or both.", metavar="METHOD")] = "exact",
    require: Annotated[str | None, typer.Option(help="certified: exit with 5 unless every claim is.")] = None,
    format: Annotated[str, typer.Option(help="text, junit or sarif.", metavar="FORMAT")] = "text",
    json: Annotated[str | None, typer.Option(help="Write the verdicts here as well; - prints them alone.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of a report: verdicts.html and verdicts.json.")] = None,
    rigorous: Annotated[
        bool, typer.Option("--rigorous", help="Judge every claim again by a second engine, in ball arithmetic.")
    ] = False,
    certificates: Annotated[
        Path | None,
        typer.Option(help="Folder of certificates, one per decided claim, for dpaudit-check.", metavar="DIR"),
    ] = None,
    seed: Seed = None,
) -> None:
    """Check claimed (epsilon, delta) of mechanisms: no model, no data."""
    from dpaudit.audit.claims_run import run_claims

    exact = _one_of("method", method, ("exact", "monte-carlo", "both")) == "exact"
    chosen = 0 if exact else _seed(seed)
    with _progress() as stage:
        status = run_claims(
            claims,
            only=only,
            method=method,
            require=None if require is None else _one_of("require", require, ("certified",)),
            form=_one_of("format", format, ("text", "junit", "sarif")),
            json_file=json,
            seed=chosen,
            out=out,
            rigorous=rigorous,
            certificates=certificates,
            stage=stage,
            show=typer.echo,
            warn=partial(typer.echo, err=True),
        )
    raise typer.Exit(status)


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, TOML.")],
    out: Annotated[Path, typer.Option(help="The audit bundle to write.")],
    seed: Seed = None,
    device: Device = "auto",
) -> None:
    """Train one model with a named mechanism and write the audit bundle."""
    from dpaudit.audit.inputs.recipes import load_recipe
    from dpaudit.audit.training_run import train_bundle

    loaded = load_recipe(recipe)
    chosen = _seed(loaded.seed if seed is None else seed)
    with _progress() as stage:
        summary = train_bundle(loaded, out, seed=chosen, device=device, stage=stage)
    typer.echo(summary)


@app.command()
def report(
    result: Annotated[Path, typer.Argument(help="The JSON of an audit, or of verdicts.")],
    out: Annotated[Path, typer.Option(help="Folder of the report.")],
) -> None:
    """Render the HTML report again from the JSON."""
    from dpaudit.reports import write_again

    try:
        page = write_again(result, out)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(str(page))


@app.command()
def calibrate(
    mechanism: Annotated[str, typer.Option(help="Its name; see dpaudit mechanisms.", metavar="NAME")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget to meet, at least 0.")],
    delta: Annotated[float, typer.Option(help="In [0, 1).")],
    parameters: Annotated[
        list[str] | None, typer.Option("--set", help="Noise parameter that is fixed; repeatable.", metavar="NAME=VALUE")
    ] = None,
    free: Annotated[str | None, typer.Option(help="Parameter to find; the missing one.", metavar="NAME")] = None,
    clip: Annotated[float, typer.Option(help="Bound on a record's contribution.")] = 1.0,
    clip_norm: Annotated[float, typer.Option(help="The p of its l_p norm, or inf.")] = 2.0,
    dimension: Annotated[int | None, typer.Option(help="Coordinates of the noise.")] = None,
    steps: Annotated[int, typer.Option(help="Releases.")] = 1,
    sampling_prob: Annotated[float, typer.Option(help="Poisson rate; 1 is no sampling.")] = 1.0,
    adjacency: Annotated[str, typer.Option(help="add-remove or replace-one.", metavar="NAME")] = "add-remove",
    json: Annotated[str | None, typer.Option(help="Write JSON here as well; - prints it alone.")] = None,
) -> None:
    """Find the least noise whose proven bound meets (epsilon, delta)."""
    from dpaudit.audit.calibrate_run import run_calibrate

    table = {"name": mechanism, "clip": clip, "clip_norm": clip_norm, "dimension": dimension}
    run_calibrate(
        table, parameters or [], json_file=json, show=typer.echo, epsilon=epsilon, delta=delta, steps=steps,
        sampling_prob=sampling_prob, adjacency=adjacency, free=free,
    )  # fmt: skip


@app.command()
def mechanisms() -> None:
    """List the mechanisms with their parameters, domains and units."""
    from dpaudit.mechanisms.registry import describe

    for row in describe():
        typer.echo(f"{row['name']}: {row['summary']}")
        for parameter in row["parameters"]:
            typer.echo("    {name} in {domain}, {unit}; typically {typical}".format(**parameter))


@app.command()
def selfcheck(
    trials: Annotated[int, typer.Option(min=100, help="Simulated audits per bound.")] = 1000,
    seed: Seed = None,
) -> None:
    """Measure the error rates of every statistical bound on mechanisms with known truth."""
    import numpy as np

    from dpaudit.verify.selfcheck import cases, measure_error_rates

    rng = np.random.default_rng(_seed(seed))
    with _progress() as stage:
        rows = measure_error_rates(rng, trials=trials, progress=stage("Simulating audits", trials * len(cases())))
    for row in rows:
        typer.echo(
            f"{'ok  ' if row.passed else 'FAIL'} {row.bound}; {row.mechanism}: {row.false_alarms} false alarms in "
            f"{row.trials} at level {1 - row.confidence:.2g}, {row.allowed} allowed"
        )
    if not all(row.passed for row in rows):
        raise typer.Exit(GAVE_UP)


def main() -> None:
    """Entry point: our errors become one line and exit status 2; a crash stays a crash."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        _fail("interrupted before anything was measured", GAVE_UP)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BAD_INPUT)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        _fail(_reason(error), GAVE_UP if full else BAD_INPUT)
    except ValueError as error:
        # named, not imported: --help stays quick
        if not {"InputError", "ToleranceError"} & {kind.__name__ for kind in type(error).__mro__}:
            raise
        _fail(" ".join(str(error).split()), BAD_INPUT)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise typer.BadParameter(f"Expected {name}={value!r} to be {' or '.join(allowed)}.")
    return value


def _reason(error: OSError) -> str:
    text = error.strerror or " ".join(map(str, error.args))
    return f"{text}: {error.filename}" if error.filename else text


def _share(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"Expected shard={text!r} to be I/N with I in 1..N, such as 2/4.")
    return int(match[1]), int(match[2])


def _settings(seed: int, attacks: str | None, trainer: str | None, **options: Any) -> "Settings":
    from dpaudit.audit.inputs.user_code import UserFunction, UserTrainer
    from dpaudit.audit.settings import Settings

    if trainer is not None:
        options["trainer"] = UserTrainer(UserFunction.named(trainer, "--trainer"))
    names = () if attacks is None else tuple(name.strip() for name in attacks.split(","))
    return Settings(seed=seed, attacks=names, **options)


def _fail(message: str, status: int) -> None:
    typer.echo(f"dpaudit: {message}", err=True)
    sys.exit(status)


def _seed(seed: int | None, before: int | None = None) -> int:
    if seed is not None:
        return seed
    drawn = secrets.randbits(31) if before is None else before
    typer.echo(f"seed {drawn}", err=True)
    return drawn


def _command(seed: int) -> str:
    """This command line, with the seed that was used."""
    words = ["dpaudit", *sys.argv[1:]]
    return shlex.join(words if any(word.startswith("--seed") for word in words) else [*words, "--seed", str(seed)])


def _left(budget: str | None, began: float) -> float | None:
    """Seconds that are left of the budget of a command that began then; None without one."""
    if budget is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", budget.strip())
    if match is None:
        raise typer.BadParameter(f"Expected budget={budget!r} such as 90s, 10m or 2h.")
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    return max(1e-9, began + seconds - time.monotonic()) if seconds else seconds


@contextmanager
def _progress() -> Iterator["Stage"]:
    """Progress bars with an estimate of the time left, on stderr, silent where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda what, total: lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def stage(what: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(what, total=total)
            return lambda done: bars.advance(task, done)

        yield stage


def _deliver(result: "AuditResult", folder: Path, json: str | None) -> None:
    """The report and the JSON into the folder; the verdict, or the JSON, on stdout."""
    _tell(result, json)
    failure = _write_report(result, folder, json)
    stopped = result.reproduce.get("stopped")
    if stopped not in (None, "", "budget", "interrupted"):
        typer.echo(f"dpaudit: {stopped}", err=True)
    if result.verdict == "gave_up" or stopped:
        typer.echo("to go on: repeat the command with the same --out; finished trials and the seed are kept", err=True)
    if failure is not None and result.verdict == "refuted":  # the exit status must say so
        typer.echo(f"dpaudit: {_reason(failure)}", err=True)
    elif failure is not None:
        raise failure


def _write_report(result: "AuditResult", folder: Path, json: str | None) -> OSError | None:
    """What kept the files from being written; what was measured is to be told all the same."""
    from dpaudit._files import write_whole
    from dpaudit.audit.delivery import report_folder
    from dpaudit.reports import result_json, write_report

    try:
        place = report_folder(result, folder)
        page = write_report(result, place)
        if json not in (None, "-"):
            write_whole({str(json): result_json(result).encode()})
    except OSError as error:
        return error
    if place != folder:
        typer.echo(f"the report in {folder} rests on more evidence and stays; this one is in {place}", err=True)
    if json != "-":
        typer.echo(f"report: {page}")
    return None


def _tell(result: "AuditResult", json: str | None) -> None:
    """The verdict with its bounds, or the JSON, on stdout."""
    from dpaudit.reports import result_json, verdict_sentence
    from dpaudit.reports.wording import control_sentence

    if json == "-":
        typer.echo(result_json(result))
        return
    typer.echo(f"{result.verdict}: {verdict_sentence(result)}")
    check = result.claim_check
    if check is not None:
        typer.echo(f"claim check: {check.verdict}: {check.reason}")
    for attack in result.attacks:
        proven = "no epsilon" if attack.epsilon_lower is None else f"epsilon >= {attack.epsilon_lower:.4g}"
        if attack.family_bound is not None:
            proven += f" ({attack.family_bound.epsilon_lower:.4g} if the noise is of the claimed family)"
        typer.echo(f"{attack.name}: {proven}, AUC {attack.auc:.3f}, {attack.trials} trials")
    typer.echo(f"positive control: {control_sentence(result.control)}")


def _plan_text(audit: "Audit", plan: "AuditPlan", designs: "list[Design]") -> str:
    from dpaudit.audit.power import DRAWS
    from dpaudit.reports.wording import duration

    verdict = audit.claim_check
    lines = [f"claim check: {verdict.verdict}: {verdict.reason}"]
    for design in designs:
        arms = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in design.pilot.arms.description.items())
        lines += [
            f"{design.attack}: {arms}",
            f"models per arm: {design.models:,}; with {design.control_models:,} half the noise is found in "
            f"{design.forecast} of {DRAWS} audits",
            f"time: about {duration(design.seconds)} on one core, the positive control included",
        ]
        lines += [f"warning: {design.warning}"] if design.warning else []
    if not designs:
        lines.append("warning: no pilot was carried out: nothing is known of the power")
    spent = ", ".join(f"{test} {share:.3g}" for test, share in plan.shares.items())
    return "\n".join([*lines, f"error probability: {spent or 'none spent'}"])


if __name__ == "__main__":
    main()
