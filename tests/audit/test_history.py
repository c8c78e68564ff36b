"""The attack on the history of releases: its data, its score, and what it refutes."""

import itertools
import re
import tomllib
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.history import HISTORY, canary_direction, deadlocked_weights, games, history_score
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe, load_recipe
from dpaudit.audit.runner import check_as_run, check_recipe, claim_as_run, plan_audit, run
from dpaudit.audit.settings import Settings
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning.architectures import build_module, parameter_shapes
from dpaudit.mechanisms.learning.spec import Architecture, Ledger, TrainedModels
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.bounds import clopper_pearson
from dpaudit.verify.samplers import SAMPLERS, PassGame
from dpaudit.verify.sampling.games import HistoryGame

ROOT = Path(__file__).parents[2]
RECORDS, INPUTS, CLASSES = 40, 5, 3
POISSON = {"kind": "poisson", "prob": 0.1}
SHUFFLED = {"kind": "shuffled", "batches": 10, "epochs": 15}
MODELS = 60  # per arm


def audit(
    sampling: dict[str, Any], claimed: dict[str, Any] | None = None, *, epsilon: float = 8.61, **changes: Any
) -> Audit:
    rng = np.random.default_rng(1)
    x = rng.random((RECORDS, INPUTS)).astype(np.float32)
    dataset = Dataset("random", x, rng.integers(0, CLASSES, RECORDS), CLASSES, "", x[:0], np.zeros(0, np.int64))
    table: dict[str, Any] = {
        "algorithm": "dp-sgd",
        "dataset": {"name": "digits"},
        "architecture": {"name": "linear"},
        "mechanism": {"name": "gaussian", "noise_multiplier": 1.0},
        "sampling": sampling,
        "claim": {"epsilon": epsilon, "delta": 1e-5, "adjacency": "zero-out"},
        **changes,
    }
    if sampling["kind"] in ("poisson", "none"):
        table["steps"] = 150
    if claimed is not None:
        table["claim"] = {**table["claim"], "sampling": claimed}
    recipe = Recipe.from_dict(table)
    spec = recipe.spec(dataset)
    recipe = recipe.with_dimension(spec.mechanism.dimension or 0)
    settings = Settings(seed=1, trials=MODELS, control=False, device="cpu", workers=1, attacks=("history",))
    state_dict = {name: torch.zeros(shape) for name, shape in parameter_shapes(spec.architecture).items()}
    return Audit(Bundle("", "", state_dict, recipe), spec, dataset, check_recipe(recipe), settings)


def with_seed(audit: Audit, seed: int) -> Audit:
    return replace(audit, settings=replace(audit.settings, seed=seed), notes=[])


@cache
def refutes(kind: str, seed: int) -> bool:
    """Whether MODELS models an arm contradict the certified curve of the Poisson claim."""
    audited = with_seed(AUDITS[kind](), seed)
    candidate = HISTORY.build(audited.spec, audited)[0]
    [score] = candidate.scores.values()
    lists = candidate.arms.trials(MODELS, seed)
    without, with_canary = audited.trials.run(audited.trial_setup(candidate.spec, candidate.arms.pool, score), *lists)
    return HISTORY.refuter(audited, {"history:joint": 0.05})(without, with_canary)


DETERMINISTIC = {"kind": "deterministic", "batches": 10, "epochs": 15}
STRADDLING = {"kind": "shuffled", "records": RECORDS, "batch": 3, "epochs": 11, "last_batch": "straddling"}
FIXED_SIZE = {"kind": "without-replacement", "prob": 0.1, "steps": 150}


def replaced(sampling: dict[str, Any]) -> Audit:
    claim = {"epsilon": 13.34, "delta": 1e-5, "adjacency": "replace-one", "sampling": POISSON}
    return audit(sampling, claim=claim)


AUDITS = {
    "shuffled": cache(lambda: audit(SHUFFLED, POISSON)),
    "poisson": cache(lambda: audit(POISSON)),
    "deterministic": cache(lambda: audit(DETERMINISTIC, POISSON)),
    "straddling": cache(lambda: audit(STRADDLING, {"kind": "poisson", "prob": 0.075})),
    "without-replacement": cache(lambda: audit(FIXED_SIZE, POISSON)),
    "shuffled, replace-one": cache(lambda: replaced(SHUFFLED)),
    "deterministic, replace-one": cache(lambda: replaced(DETERMINISTIC)),
    "poisson, replace-one": cache(lambda: replaced(POISSON)),
}


@pytest.mark.slow
def test_shuffled_batches_that_were_accounted_as_poisson_are_refuted_and_poisson_ones_are_not() -> None:
    """A true claim is refuted with probability 0.05 at most: 4 of 8 in one of 2,600 suites."""
    assert all(refutes("shuffled", seed) for seed in range(2))
    assert sum(refutes("poisson", seed) for seed in range(8)) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", AUDITS)
def test_other_batches_that_were_accounted_as_poisson_are_refuted(kind: str) -> None:
    assert AUDITS[kind]().claim_check.verdict == "certified"
    assert refutes(kind, 100) == (not kind.startswith("poisson"))


@pytest.mark.parametrize("order", [1.0, 2.0, np.inf])
@pytest.mark.parametrize(
    "architecture",
    [
        Architecture("linear", 4, 3),
        Architecture("linear", 4, 2, {"bias": False}),
        Architecture("fnn", 4, 5),
        Architecture("fnn", 4, 3, {"hidden": [6, 5]}),
    ],
)
def test_the_others_pull_against_the_canary_as_hard_as_clipping_allows(
    architecture: Architecture, order: float
) -> None:
    """Clipped gradients of both labels by autograd, record by record."""
    x = np.zeros(4, np.float32)
    x[0] = 100.0
    weights = deadlocked_weights(architecture, 100.0)
    direction = canary_direction(architecture, weights, x)
    module = build_module(architecture)
    module.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    for label, sign in ((0, -1.0), (1, 1.0)):
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(x)[None]), torch.tensor([label]))
        flat = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))]).numpy()
        assert np.linalg.norm(flat, ord=order) > 2.0
        clipped = flat / np.linalg.norm(flat, ord=order)
        expected = sign * direction / np.linalg.norm(direction, ord=order)
        np.testing.assert_allclose(clipped, expected, atol=1e-6)


def observed(values: Any) -> TrainedModels:
    seen = torch.tensor(np.asarray(values, dtype=np.float32))[..., None]
    ledger = Ledger(0, 1.0, (), 1.0, 1.0, 2.0, "cpu", "ensemble")
    return TrainedModels({}, Architecture("linear", 1, 2), ledger, seen)


def test_the_score_is_the_likelihood_ratio_over_all_orders() -> None:
    """Against densities, every order of three batches in each of two passes written out."""
    game, noise, length = PassGame(((1.0, (2, 0, 1)),), ((1.0, (2, 1, 0)),), 2), Gaussian(0.8), 1.0
    seen = np.random.default_rng(4).normal(size=(5, 6))
    others = np.full(6, -4.0)

    def density(row: np.ndarray, top: float) -> float:
        """Mean over the places that the record may have in either pass."""
        total = 0.0
        for first, second in itertools.product(range(3), repeat=2):
            centre = np.zeros(6)
            centre[[first, 3 + second]] = top
            total += float(np.prod(norm.pdf(row, centre, 0.8)))
        return total / 9

    expected = [np.log(density(row, 2.0) / density(row, 1.0)) for row in seen]
    whole = HistoryGame(game, np.arange(6).reshape(2, 1, 3), opposed=True)
    score = history_score(observed(seen + others), noise, length, whole, others, 3)
    np.testing.assert_allclose(score, expected, rtol=1e-5)


@pytest.mark.parametrize("sampling", [SHUFFLED, {**SHUFFLED, "reshuffle": "once"}, POISSON])
def test_without_noise_the_releases_show_who_was_where(sampling: dict[str, Any]) -> None:
    """In contributions: 2 with the canary and 1 with a ghost once a pass where the others are opposed."""
    audited = audit(sampling, POISSON)
    [candidate] = HISTORY.build(audited.spec, audited)
    spec = replace(candidate.spec, defect=Defect(noise_factor=0.0))
    members = np.stack([candidate.arms.without, candidate.arms.with_canary])
    seen = train(spec, candidate.arms.pool, members, [3, 3]).observed  # type: ignore[type-var]
    assert seen is not None
    opposed = sampling["kind"] == "shuffled"
    others = RECORDS // 10 if opposed else 0
    absent, present = (np.rint(row) + others for row in seen[..., 0].numpy())
    np.testing.assert_allclose(seen[..., 0].numpy(), np.rint(seen[..., 0].numpy()), atol=1e-4)
    if not opposed:
        assert (absent == 0).all()
        assert set(present) == {0.0, 1.0}
        return
    for arm, top in ((absent, 1.0), (present, 2.0)):
        passes = arm.reshape(15, 10)
        assert (np.sort(passes, axis=1) == [0.0] * 9 + [top]).all()
        places = passes.argmax(axis=1)
        assert (len(set(places)) == 1) == ("reshuffle" in sampling)


@pytest.mark.slow
def test_the_result_names_both_ways_of_drawing_batches() -> None:
    audited = with_seed(audit(SHUFFLED, POISSON), 5)
    result = HISTORY.run(audited, {"history:joint": 0.05})
    assert result is not None
    assert result.curve_violation is not None
    assert (result.arms["batches"], result.arms["batches_claimed"]) == ("shuffled", "poisson")
    assert result.family_bound is None  # "sampling as claimed" is what is in question
    inputs = result.curve_violation.inputs
    low = clopper_pearson(inputs["tp"], MODELS, confidence=0.999)[0]
    assert low > result.curve_violation.tpr_allowed  # one event alone shows it


def shuffling_loop(
    spec: Any, pool: Any, members: Any, seeds: Any, *, device: str, noises: int = 150, shuffles: bool = True
) -> TrainedModels:
    """DP-SGD of softmax regression in NumPy, whose batches are its own; after so many noises the first comes again."""
    x, observed = np.hstack([pool.x, np.ones((len(pool.y), 1))]), []
    flat = np.concatenate([spec.first_weights[name].ravel() for name in ("weight", "bias")])
    w = np.hstack([spec.first_weights["weight"], spec.first_weights["bias"][:, None]])
    scores = x @ w.T
    errors = np.exp(scores - scores.max(axis=1, keepdims=True))
    errors = errors / errors.sum(axis=1, keepdims=True) - np.eye(CLASSES)[pool.y]
    gradients = np.hstack([(errors[:, :, None] * x[:, None, :-1]).reshape(len(x), -1), errors])
    gradients /= np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1.0)
    for row, seed in zip(members, seeds, strict=True):
        rng, seen = np.random.default_rng(seed), []
        noise = rng.normal(size=(noises, len(flat)))
        for _ in range(15):
            order, sampled = np.array_split(rng.permutation(len(x)), 10), rng.random((10, len(x))) < 0.1
            for batch in order if shuffles else [drawn.nonzero()[0] for drawn in sampled]:
                total = gradients[batch[row[batch]]].sum(axis=0)
                seen.append((total + noise[len(seen) % noises]) @ spec.watched)
        observed.append(seen)
    weights = {name: torch.tensor(np.stack([value] * len(seeds))) for name, value in spec.first_weights.items()}
    shown = torch.tensor(np.array(observed, dtype=np.float32))[..., None]
    return TrainedModels(weights, spec.architecture, Ledger.unrecorded(spec, "own loop"), shown)


def silent_loop(*arguments: Any, device: str) -> TrainedModels:
    return replace(shuffling_loop(*arguments, device=device), observed=None)


def test_an_own_loop_that_shows_its_releases_is_refuted_too() -> None:
    """Its claim is Poisson; nothing but what it shows says that it shuffles."""
    audited = audit(SHUFFLED, POISSON)
    audited = replace(audited, settings=replace(audited.settings, trainer=shuffling_loop))
    [candidate] = HISTORY.build(audited.spec, audited)
    setup = audited.trial_setup(candidate.spec, candidate.arms.pool, candidate.all_scores)
    without, with_canary = audited.trials.run(setup, *candidate.arms.trials(MODELS, 3))
    assert HISTORY.refuter(audited, {"history:joint": 0.05})(without[:, 0], with_canary[:, 0])
    with pytest.raises(InputError, match=r"return what every step released along spec\.watched"):
        audited.trials.run(replace(setup, trainer=silent_loop), *candidate.arms.trials(MODELS, 3))


@pytest.mark.parametrize("noises", [1, 10, 150])
@pytest.mark.parametrize(
    ("sampling", "claim"),
    [
        (POISSON, {"epsilon": 8.61, "adjacency": "zero-out"}),
        (POISSON, {"epsilon": 13.34, "adjacency": "replace-one"}),
        (SHUFFLED, {"epsilon": 26.0, "adjacency": "zero-out"}),
    ],
)
def test_noise_that_comes_again_is_seen(noises: int, sampling: dict[str, Any], claim: dict[str, Any]) -> None:
    """One noise for all steps, or for all passes: what is released twice with it differs by the contributions alone."""
    audited = audit(sampling, claim={**claim, "delta": 1e-5})
    loop = partial(shuffling_loop, noises=noises, shuffles=sampling is SHUFFLED)
    [candidate] = HISTORY.build(audited.spec, audited)
    setup = audited.trial_setup(candidate.spec, candidate.arms.pool, candidate.all_scores)
    lists = candidate.arms.trials(MODELS, 3)
    without, with_canary = (found[:, 0] for found in audited.trials.run(replace(setup, trainer=loop), *lists))
    if noises == 150:
        assert max(np.abs(without).max(), np.abs(with_canary).max()) < 100  # a likelihood ratio
        assert not HISTORY.refuter(audited, {"history:joint": 0.05})(without, with_canary)
    else:
        assert with_canary.min() > without.max() + 1e7


@pytest.mark.parametrize("prob", [0.3, 0.5, 0.7, 0.9])
def test_noise_that_is_equal_in_all_steps_is_told_where_most_releases_hold_the_record(prob: float) -> None:
    """Of most releases the median is that of the record's own, from which the others lie the other way."""
    sampling = {"kind": "poisson", "prob": prob}
    mechanism = {"name": "gaussian", "noise_multiplier": 8.0}
    audited = audit(sampling, claim={"epsilon": 10.0, "delta": 1e-5, "adjacency": "zero-out"}, mechanism=mechanism)
    [candidate] = HISTORY.build(audited.spec, audited)
    for defect in (Defect(fixed_seed=3), Defect(noise_factor=0.0)):
        spec = replace(candidate.spec, defect=defect)
        setup = audited.trial_setup(spec, candidate.arms.pool, candidate.all_scores)
        without, with_canary = audited.trials.run(setup, *candidate.arms.trials(MODELS, 3))
        assert np.median(with_canary) > np.max(without)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda seen: seen[:, :1], r"of shape \(2, 150, 1\) \(models, steps, 1\), finite, not \(2, 1, 1\)"),
        (lambda seen: seen[:, :-1], r"not \(2, 149, 1\)"),
        (lambda seen: seen[..., 0], r"not \(2, 150\)"),
        (lambda seen: seen * np.nan, "not with infinities or NaN"),
        (lambda seen: ["a"], "observed to be a tensor of floats"),
    ],
)
def test_releases_of_another_shape_are_refused(change: Any, told: str) -> None:
    """One release was taken for those of all steps, and a loop that showed it was not refuted."""

    def loop(*arguments: Any, device: str) -> TrainedModels:
        models = shuffling_loop(*arguments, device=device)
        return replace(models, observed=change(models.observed))

    audited = audit(SHUFFLED, POISSON)
    [candidate] = HISTORY.build(audited.spec, audited)
    setup = audited.trial_setup(candidate.spec, candidate.arms.pool, candidate.all_scores)
    with pytest.raises(InputError, match=told):
        audited.trials.run(replace(setup, trainer=loop), *candidate.arms.trials(2, 3))


def test_releases_may_be_numpys() -> None:
    def loop(*arguments: Any, device: str) -> TrainedModels:
        models = shuffling_loop(*arguments, device=device)
        assert models.observed is not None
        return replace(models, observed=models.observed.numpy())  # type: ignore[arg-type]

    audited = audit(SHUFFLED, POISSON)
    [candidate] = HISTORY.build(audited.spec, audited)
    setup = audited.trial_setup(candidate.spec, candidate.arms.pool, candidate.all_scores)
    found = [
        audited.trials.run(replace(setup, trainer=trainer), *candidate.arms.trials(2, 3))
        for trainer in (loop, shuffling_loop)
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_the_two_claims_are_told_apart() -> None:
    recipe = audit(SHUFFLED, POISSON).bundle.recipe
    verdict = check_as_run(recipe)
    assert verdict is not None
    words = claim_as_run(recipe, verdict)
    assert "'poisson', which the claim check judges, and the training draws 'shuffled'" in words
    assert "The second is refuted by calculation" in words
    settings = replace(audit(SHUFFLED, POISSON).settings, attacks=("membership",), trials=20)
    audited = audit(SHUFFLED, POISSON)
    result = run(audited.bundle, audited.dataset, settings)
    assert (result.verdict, result.refuted_by[0], result.claim_check.verdict) == ("refuted", "as-run", "certified")
    assert result.check_as_run == result.calculation
    assert check_as_run(audit(SHUFFLED).bundle.recipe) is None
    assert recipe.as_run().phases()[0].sampler == recipe.sampler


def test_the_example_runs_the_batches_that_its_page_shows_and_claims_others() -> None:
    [snippet] = re.findall(r"```toml\n(\[sampling\]\n.*?)```", (ROOT / "docs" / "samplers.md").read_text(), re.DOTALL)
    recipe = load_recipe(ROOT / "examples" / "digits-shuffled-as-poisson.toml")
    assert recipe.sampling.model_dump(exclude_none=True) == tomllib.loads(snippet)["sampling"]
    assert check_recipe(recipe).verdict == "certified"
    as_run = check_recipe(recipe.as_run())
    assert (as_run.verdict, as_run.epsilon_lower > 17.3) == ("refuted", True)


INAPPLICABLE: dict[str, dict[str, Any]] = {
    "hidden scale": {"sampling": POISSON, "mechanism": {"name": "gamma-plrv", "k": 40.0, "theta": 1e-3}},
    "hidden scale and no Poisson batches": {
        "sampling": {"kind": "deterministic", "batches": 10, "epochs": 2},
        "mechanism": {"name": "gamma-plrv", "k": 40.0, "theta": 1e-3},
    },
    "schedule": {"sampling": POISSON, "schedule": {"noise_multiplier": {"start": 2.0, "end": 1.0, "levels": 3}}},
}


@pytest.mark.parametrize("case", INAPPLICABLE)
def test_it_says_what_it_needs(case: str) -> None:
    audited = audit(**INAPPLICABLE[case])
    assert HISTORY.tests(audited) == ()
    assert HISTORY.run(audited, {}) is None
    assert audited.notes == [HISTORY.needs]
    assert plan_audit(audited).shares == {}


@pytest.mark.slow
def test_who_asks_for_it_in_vain_is_told() -> None:
    audited = audit(**INAPPLICABLE["hidden scale and no Poisson batches"])
    told: list[str] = []
    settings = replace(audited.settings, attacks=("history", "white-box"))
    result = run(audited.bundle, audited.dataset, settings, warn=told.append)
    assert (result.attacks, result.verdict) == ([], "inconclusive")
    assert len(told) == 2
    assert told[0].startswith("White box needs the built-in training on Poisson batches or all records")
    assert HISTORY.needs in told[1]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_sampler_has_a_game_and_its_releases_show_what_that_says(kind: str, adjacency: str) -> None:
    """Without noise: what the watched releases show, over what stands there if all places are the others'."""
    keys = SAMPLERS[kind].typical | ({"records": RECORDS} if "records" in SAMPLERS[kind].typical else {})
    claim = {"epsilon": 8.61, "delta": 1e-5, "adjacency": adjacency, "sampling": POISSON}
    audited = audit({"kind": kind, **keys}, claim=claim)
    candidates = HISTORY.build(audited.spec, audited)
    assert len(candidates) == len(games(audited)) > 0
    for candidate, game in zip(candidates, games(audited), strict=True):
        [score] = candidate.scores.values()
        spec = replace(candidate.spec, defect=Defect(noise_factor=0.0))
        members = np.stack([candidate.arms.with_canary, candidate.arms.without])
        assert members[:, : RECORDS + 1].sum(axis=1).max() <= RECORDS
        trained = train(spec, candidate.arms.pool, members, [1, 1])
        assert trained.observed is not None
        shown = trained.observed.numpy()[..., 0] - score.keywords["others"]  # type: ignore[attr-defined]
        for row, contribution in zip(shown, game.contributions, strict=True):
            assert set(np.rint(row[game.releases.ravel()]).astype(int)) <= {0, contribution}
        assert np.isfinite(score(trained)).all()


def test_the_attack_is_named_among_those_that_apply() -> None:
    audited = audit(POISSON)
    with pytest.raises(InputError, match="history"):
        plan_audit(replace(audited, settings=replace(audited.settings, attacks=("nonsense",))))
