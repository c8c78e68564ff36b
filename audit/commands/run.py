"""`dpaudit run`: a trained model in, its audit and report out."""

import shlex
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpaudit.audit.commands.console import (
    GAVE_UP,
    LACKING,
    REFUTED,
    Device,
    Seed,
    audit_settings,
    one_of,
    painted,
    progress_bars,
    seconds_left,
    seed_or_drawn,
    users_words_aside,
    written_apart,
)

if TYPE_CHECKING:
    from dpaudit.audit.attacks.base import Audit
    from dpaudit.audit.attacks.canary_game import Design
    from dpaudit.audit.runner import AuditPlan
    from dpaudit.verify.results import AuditResult, Verdict


SHARED = "run.sqlite"  # the store of what is concluded, beside those of shards


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
    seconds_left(budget, began)
    written_apart(json, model, recipe, data, (trainer or "").rpartition(":")[0])
    lacking = LACKING if require is not None and one_of("require", require, ("power",)) else 0
    bundle = load_bundle(model, recipe=None if recipe is None else load_recipe(recipe))
    written_apart(json, *bundle.recipe.files)
    if dry_run and json is not None:
        raise typer.BadParameter("Expected --dry-run without --json: a plan is no result.")

    from dpaudit.audit import runner  # after the file: a bad one is refused before this loads
    from dpaudit.audit.exit_status import undisturbed
    from dpaudit.audit.trials.store import stored_seed

    folder = out or Path(f"{model.stem}.audit")
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        from dpaudit.audit.inputs.files import InputError

        what = "a file" if folder.exists() else "a link to none"
        raise InputError(f"Expected --out={folder} to be a folder, not {what}.")
    store = folder / "trials.sqlite" if shared is None else shared / SHARED
    before = None if fresh or seed is not None else stored_seed(store, shared=shared is not None)
    chosen = seed_or_drawn(seed, before)
    settings = audit_settings(
        chosen,
        attacks,
        trainer,
        trials=trials,
        confidence=confidence,
        budget=seconds_left(budget, began),
        device=device,
        workers=workers,
        engine=engine,
        store=None if dry_run else store,
        shared=shared is not None,
        fresh=fresh,
        command=_command(chosen),
    )
    warn = partial(typer.echo, err=True)
    with ExitStack() as ending:
        with progress_bars() as stage, users_words_aside():
            dataset = bundle.recipe.load_dataset(data, progress=stage)
            if dry_run:
                prepared = runner.prepare(bundle, dataset, settings, stage=stage)
                plan, as_run = runner.plan_audit(prepared), runner.check_as_run(prepared.bundle.recipe)
                designs = runner.designs(prepared, plan)
                text = _plan_text(prepared, plan, designs, as_run)
            else:  # from its end on until the report is written, nothing ends the command
                concluding = partial(ending.enter_context, undisturbed())
                result = runner.run(bundle, dataset, settings, stage=stage, warn=warn, concluding=concluding)
        if dry_run:
            typer.echo(text)
            checks = [prepared.claim_check, *([] if as_run is None else [as_run])]
            if any(found.verdict == "refuted" for found in checks):
                raise typer.Exit(REFUTED)
            raise typer.Exit(lacking if all(design.warning for design in designs) else 0)
        from dpaudit.audit.delivery import deliver

        try:
            deliver(
                result, folder, json, _lines(result), advice=_advice(result, store), show=typer.echo, warn=warn,
                written=ending.close,
            )  # fmt: skip
        except KeyboardInterrupt:  # while it is told: the report is there
            raise typer.Exit(REFUTED if result.verdict == "refuted" else GAVE_UP) from None
    statuses = {"refuted": REFUTED, "gave_up": GAVE_UP, "inconclusive": lacking, "not_refuted": 0}
    raise typer.Exit(statuses[result.verdict])


def _command(seed: int) -> str:
    """This command line, with the seed that was used."""
    words = ["dpaudit", *sys.argv[1:]]
    end = words.index("--") if "--" in words else len(words)  # no option stands behind it
    given = any(word.startswith("--seed") for word in words[:end])
    return shlex.join(words if given else [*words[:end], "--seed", str(seed), *words[end:]])


def _lines(result: "AuditResult") -> list[str]:
    """The verdict with its bounds."""
    from dpaudit.reports import verdict_sentence
    from dpaudit.reports.summary import untested
    from dpaudit.reports.wording import control_sentence, finished, proven_by

    lines = [f"{painted(result.verdict, result.verdict)}: {verdict_sentence(result)}"]
    check = result.claim_check
    if check is not None:
        lines.append(f"claim check: {check.verdict}: {check.reason}")
    if result.check_as_run is not None:
        lines.append(f"claim check, batches as run: {result.check_as_run.verdict}: {result.check_as_run.reason}")
    for attack in result.attacks:
        proven = proven_by(attack, result.epsilon_claimed)
        lines.append(f"{attack.name}: {proven}, AUC {attack.auc:.3f}, {attack.trials} trials")
    lines.append(f"positive control: {control_sentence(result.control, finished=finished(result))}")
    return [*lines, f"not tested: {' '.join(untested(result))}"]


def _advice(result: "AuditResult", store: Path) -> list[str]:
    """What stopped the audit, and how to go on."""
    stopped = result.reproduce.get("stopped")
    lines = [] if stopped in (None, "", "budget", "interrupted") else [f"dpaudit: {stopped}"]
    if stopped and stopped.startswith("Expected"):  # what models break they would break again
        lines.append("to go on: change the recipe or the loop; with the same seed the same models are trained")
    elif (result.verdict == "gave_up" or stopped) and not _keeps_seed(store):
        why = f"nothing could be kept in {store}" if store.exists() else f"{store} is gone, and what was kept in it"
        lines.append(f"{why}; --seed {result.seed} trains the same models again")
    elif result.verdict == "gave_up" or stopped:
        anew = " but without --fresh" if "--fresh" in str(result.reproduce.get("command")).split() else ""
        where = "--store" if store.name == SHARED else "--out"
        lines.append(f"to go on: repeat the command with the same {where}{anew}; finished trials and the seed are kept")
    return lines


def _keeps_seed(store: Path) -> bool:
    from dpaudit.audit.inputs.files import InputError
    from dpaudit.audit.trials.store import stored_seed

    try:
        return stored_seed(store) is not None
    except InputError:
        return False


def _plan_text(audit: "Audit", plan: "AuditPlan", designs: "list[Design]", as_run: "Verdict | None") -> str:
    from dpaudit.audit.power import DRAWS
    from dpaudit.reports.wording import duration

    verdict = audit.claim_check
    lines = [f"claim check: {verdict.verdict}: {verdict.reason}"]
    if as_run is not None:
        lines.append(f"claim check, batches as run: {as_run.verdict}: {as_run.reason}")
    for design in designs:
        arms = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in design.pilot.arms.description.items())
        lines += [
            f"{design.attack}: {arms}",
            f"models per arm: {design.models:,}; with {design.control_models:,} half the noise is found in "
            f"{design.forecast} of {DRAWS} audits, if scores are as far apart as the best of "
            f"{design.pilot.candidates} candidates' were; the control that comes first may ask for more",
            f"time: about {duration(design.seconds)} of training on one core for so many, the positive control's "
            "included; tests and report take seconds more",
        ]
        lines += [f"warning: {design.warning}"] if design.warning else []
    if not designs:
        lines.append("warning: no pilot was carried out: nothing is known of the power")
    spent = ", ".join(f"{test} {share:.3g}" for test, share in plan.shares.items())
    return "\n".join([*lines, f"error probability: {spent or 'none spent'}"])
