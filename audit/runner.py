"""One audit, read from top to bottom: claim check, plan, attacks, one combined bound, verdict."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version

import joblib
import numpy as np

from dpaudit.audit.attacks import ATTACKS
from dpaudit.audit.attacks.base import Attack, Audit, no_warning
from dpaudit.audit.attacks.canary_game import CanaryGame, Design
from dpaudit.audit.exit_status import keep_what_is_done
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.networks import check_trainable
from dpaudit.audit.inputs.recipes import ApproximateMinimaRecipe, Recipe
from dpaudit.audit.inputs.sources import Stage
from dpaudit.audit.inputs.user_code import trainer_name
from dpaudit.audit.settings import Settings
from dpaudit.audit.trials.engine import TrialRunner, no_progress
from dpaudit.audit.trials.store import StorageError, TrialStore
from dpaudit.mechanisms.learning.approximate_minima import jacobian_loss
from dpaudit.mechanisms.learning.training import train
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.bounds import tradeoff_curve
from dpaudit.verify.checking import check
from dpaudit.verify.perturbed_objective import check_perturbed_objective
from dpaudit.verify.results import AttackResult, AuditResult, AuditVerdict, Verdict, down, up

PACKAGES = ("dpaudit", "numpy", "scipy", "torch", "statsmodels", "dp-accounting", "opacus", "scikit-learn")


def run(
    bundle: Bundle,
    dataset: Dataset,
    settings: Settings,
    *,
    stage: Stage = no_progress,
    warn: Callable[[str], None] = no_warning,
    concluding: Callable[[], object] = lambda: None,
) -> AuditResult:
    """Audit a trained model: check its claim, attack it, and combine what the evidence proves.

    Args:
        bundle: The model with its recipe, claim and coins, from `load_bundle`.
        dataset: The data of its recipe, from `inputs.datasets.load`.
        settings: How.
        stage: Told what begins and how long it is; returns the function told of progress.
        warn: Told what a user should know before hours are spent.
        concluding: Called when all that is left is to put the result together.

    Returns:
        Everything found; `verdict` is "refuted" if the claim check or any attack refutes the claim.

    Raises:
        TypeError: As `prepare`.
        InputError: As `prepare`, or an attack is refused before anything was found.
    """
    began = time.monotonic()
    audit = replace(prepare(bundle, dataset, settings, stage=stage), warn=warn)
    plan = plan_audit(audit)
    audit.notes.extend(bundle.notes)
    if bundle.recipe.planted_defect is not None:
        audit.notes.append(f"The recipe plants the defect {bundle.recipe.planted_defect!r}: a positive control.")
    as_run = check_as_run(bundle.recipe)
    if as_run is not None:
        audit.notes.append(claim_as_run(bundle.recipe, as_run))
    with TrialStore(settings.store, fresh=settings.fresh, shared=settings.shared) as store:
        trials = _trials(audit, store, began)
        attacks = list[AttackResult]()
        for attack in plan.attacks:
            result = _attack(attack, audit, trials, plan.shares, after=attacks)
            attacks += [] if result is None else [result]
        concluding()
        trials.stopped = trials.stopped or store.unwritten  # without a look nothing can be refuted
    if settings.trainer is not train:
        audit.notes.append(
            f"Models were trained by {trainer_name(settings.trainer)}, not by this package's own training."
        )
    audit.notes.extend(trials.notes)
    return _conclude(audit, plan, attacks, as_run, trials, time.monotonic() - began)


def train_share(
    bundle: Bundle, dataset: Dataset, settings: Settings, share: tuple[int, int], *, stage: Stage = no_progress
) -> TrialRunner:
    """Train one share of an audit's models into the store of `settings`, and after it what other processes have not.

    Attacks go through what they would do with all models, so that those that depend on earlier ones are trained too;
    nothing is concluded, and no look counted.

    Args:
        bundle, dataset, settings, stage: As `run`; `settings.shared` reads the stores of the other shares.
        share: (i, n): the i-th of n, from 1.

    Returns:
        What was trained here, and why it ended early.
    """
    began = time.monotonic()
    audit = prepare(bundle, dataset, settings, stage=stage)
    plan = plan_audit(audit)
    with TrialStore(settings.store, shared=settings.shared) as store:
        trials = _trials(replace(audit, trials=replace(audit.trials, share=share, concludes=False)), store, began)
        for attack in plan.attacks:
            _attack(attack, audit, trials, plan.shares)
    return trials


def _trials(audit: Audit, store: TrialStore, began: float) -> TrialRunner:
    settings = audit.settings
    trials = replace(
        audit.trials,
        store=store,
        workers=settings.workers or joblib.cpu_count(),
        engine=settings.engine,
        deadline=None if settings.budget is None else began + settings.budget,
    )
    try:
        store.put_seed(settings.seed)  # a repeated command goes on with it
    except StorageError as error:
        trials.stopped = str(error.strerror)
    return trials


def _attack(
    attack: Attack, audit: Audit, trials: TrialRunner, shares: dict[str, float], *, after: Sequence[AttackResult] = ()
) -> AttackResult | None:
    """What an attack found; None after the trials ended, and where it has too few models to judge by.

    What others proved before is not lost where it is refused: that ends the audit.
    """
    if trials.stopped:
        return None
    said = len(audit.notes)
    keep_what_is_done()
    try:
        result = attack.run(replace(audit, trials=trials), shares)
    except KeyboardInterrupt:  # between trials, which end by themselves
        trials.stopped = "interrupted"
        return None
    except InputError as error:
        if not any(found.bound or found.curve_test for found in after):
            raise
        trials.stopped = str(error)
        return None
    if result is None and attack.name in audit.settings.attacks and not attack.tests(audit):
        for note in audit.notes[said:]:  # it was asked for, and does not apply
            audit.warn(note)
    if result is None and not trials.stopped and attack.tests(audit):
        trials.stopped = f"too few models for {attack.name}"
    return result


def prepare(bundle: Bundle, dataset: Dataset, settings: Settings, *, stage: Stage = no_progress) -> Audit:
    """What attacks are given, the claim checked: the first part of `run`, and all that a plan needs.

    Raises:
        TypeError: The bundle, the data set or the settings are none, such as a path.
        InputError: Model, data and recipe do not fit each other, or the network cannot be trained privately.
    """
    given: tuple[tuple[str, object, type], ...] = (
        ("bundle", bundle, Bundle), ("dataset", dataset, Dataset), ("settings", settings, Settings)
    )  # fmt: skip
    for name, value, kind in given:
        if not isinstance(value, kind):
            raise TypeError(f"Expected {name}={shown(value)} to be of type {kind.__module__}.{kind.__name__}.")
    advance = stage("Checking the claim", 1)
    verdict = check_recipe(bundle.recipe)
    advance(1)
    network = bundle.recipe.network(dataset)
    bundle.check_fit(network)  # names and shapes are refused before anything is trained
    spec = bundle.recipe.spec(dataset, network)
    if settings.trainer is train:
        check_trainable(spec.architecture)
    if bundle.coins is not None and bundle.coins.records.max(initial=-1) >= len(dataset.y):
        raise InputError(
            f"meta.coins: Expected records in 0..{len(dataset.y) - 1}, those of the data, not "
            f"{bundle.coins.records.max()}."
        )
    return Audit(bundle, spec, dataset, verdict, settings, TrialRunner(stage=stage))


def check_recipe(recipe: Recipe) -> Verdict:
    """The claim of a recipe, its mechanisms' dimension filled in, checked by calculation.

    It is the history's own; where noise goes into an objective, the bound derived from it.
    """
    claim = recipe.claim_object()
    if not isinstance(recipe, ApproximateMinimaRecipe):
        return check(claim)
    return check_perturbed_objective(claim, jacobian=jacobian_loss(recipe.loss or "logistic", recipe.regularization))


def check_as_run(recipe: Recipe) -> Verdict | None:
    """The verdict on the claim with the batches that the training draws; None where it accounts for no others."""
    return None if recipe.claim.sampling is None else check(recipe.as_run().claim_object())


def claim_as_run(recipe: Recipe, verdict: Verdict) -> str:
    """What calculation says of the batches that the training draws, where the claim accounts for others; a sentence."""
    claimed, run = recipe.claimed_sampling.kind, recipe.sampling.kind
    return (
        f"The claim accounts for batches of kind {claimed!r}, which the claim check judges, and the training draws "
        f"{run!r} ones: two claims. The second is {verdict.verdict} by calculation, its epsilon in "
        f"[{down(verdict.epsilon_lower, 4)}, {up(verdict.epsilon_upper, 4)}] at delta={verdict.delta_claimed:.12g}."
    )


@dataclass(frozen=True)
class AuditPlan:
    """What an audit will do, known before it starts.

    Args:
        attacks: What will be carried out, in this order.
        shares: Error probability of each test, by its name.
    """

    attacks: tuple[Attack, ...]
    shares: dict[str, float]


def plan_audit(audit: Audit) -> AuditPlan:
    """The plan that follows from a checked claim.

    Every test gets an equal share of 1 - confidence (Bonferroni): whatever the dependence between the tests, all
    bounds hold together with probability at least `confidence`. Tests that are planned but not carried out keep their
    share: it is not handed on once data were seen.

    Raises:
        InputError: The settings name an attack that there is not, or that does not apply to what is audited.
    """
    attacks = choose_attacks(audit)
    tests = [test for attack in attacks for test in attack.tests(audit)]
    shares = {test: (1.0 - audit.settings.confidence) / len(tests) for test in tests}
    return AuditPlan(attacks, shares)


def designs(audit: Audit, plan: AuditPlan) -> list[Design]:
    """What the pilots of the planned games decide, for `--dry-run`; none for a game that was stopped."""
    budget = audit.settings.budget
    trials = replace(audit.trials, deadline=None if budget is None else time.monotonic() + budget)
    games = [attack for attack in plan.attacks if isinstance(attack, CanaryGame) and attack.tests(audit)]
    found = [game.design(replace(audit, trials=trials), plan.shares) for game in games]
    return [design for design in found if design is not None]


def choose_attacks(audit: Audit) -> tuple[Attack, ...]:
    """The attacks that the settings name, or all that apply by default, in the order of ATTACKS."""
    algorithm, names = audit.spec.algorithm, audit.settings.attacks
    applying = [attack for attack in ATTACKS.values() if algorithm in attack.algorithms]
    if not set(names) <= {attack.name for attack in applying}:
        raise InputError(
            f"Expected attacks={','.join(names)!r} among {', '.join(attack.name for attack in applying)}, which apply "
            f"to algorithm={algorithm!r}."
        )
    return tuple(attack for attack in applying if (attack.name in names if names else attack.by_default))


def machine() -> str:
    """The computer in a line: system, processor, cores, Python."""
    processor = platform.processor() or platform.machine()
    return f"{platform.platform()}, {processor}, {joblib.cpu_count()} cores, Python {platform.python_version()}"


def _conclude(
    audit: Audit,
    plan: AuditPlan,
    attacks: list[AttackResult],
    as_run: Verdict | None,
    trials: TrialRunner,
    seconds: float,
) -> AuditResult:
    """One combined bound and the verdict; the promise is about the batches that are drawn, accounted or not."""
    bundle, verdict, settings = audit.bundle, audit.claim_check, audit.settings
    claimed = verdict.epsilon_claimed
    calculated = {"as-run": as_run, "claim-check": verdict}
    refuted_by = [name for name, found in calculated.items() if found is not None and found.verdict == "refuted"]
    for attack in attacks:
        refuted_by += attack.refuting(claimed)
    lowers = [attack.epsilon_lower for attack in attacks if attack.epsilon_lower is not None]
    control = max(audit.controls, key=lambda control: (control.gives_power, control.power), default=None)
    quiet: AuditVerdict = "not_refuted" if control is not None and control.gives_power else "inconclusive"
    stopped = trials.stopped or ("budget" if trials.control_cut and quiet == "inconclusive" else "")
    outcome: AuditVerdict = "refuted" if refuted_by else "gave_up" if stopped else quiet
    epsilons = np.unique(np.concatenate([np.linspace(0.0, max(2.0 * claimed, 1.0), 101), [claimed]]))
    lower, upper = verdict.delta(epsilons)
    fpr = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 121)])
    return AuditResult(
        model=bundle.describe(),
        claim=bundle.recipe.claim_summary(),
        verdict=outcome,
        refuted_by=refuted_by,
        epsilon_lower=max(lowers, default=None),
        confidence=settings.confidence,
        epsilon_claimed=claimed,
        claim_check=verdict,
        attacks=attacks,
        seed=settings.seed,
        versions={name: version(name) for name in PACKAGES},
        seconds=seconds,
        certified_curve={"epsilon": epsilons, "delta_lower": lower, "delta_upper": upper},
        tradeoff={"fpr": fpr, "tpr_max": tradeoff_curve(audit.delta_upper, fpr)},
        budget=plan.shares,
        reproduce={
            "command": settings.command,
            "data_sha256": audit.dataset.sha256,
            "recipe": bundle.recipe.to_dict(),
            "trainer": None if settings.trainer is train else trainer_name(settings.trainer),
            "trials": settings.trials,
            "stopped": stopped,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
        },
        notes=audit.notes,
        control=control,
        check_as_run=as_run,
    )
