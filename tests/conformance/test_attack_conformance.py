"""Every attack in ATTACKS: silent on a correct twin, loud with next to no noise, within the shares it asked for.

The data are made to be memorised: fewer records than features, labels that are fair coins. Every other record is in or
out by a recorded coin, so that attacks on the model as given have a bound too. The claims are nearly tight, and a
correct twin may be refuted with probability 0.05 in one run of one seed; the seeds are fixed.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from dpaudit.audit.attacks import ATTACKS, canary_game, white_box
from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.canary_game import CanaryGame
from dpaudit.audit.attacks.shadow import ShadowAttack
from dpaudit.audit.attacks.text_one_run import SENTENCES
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.coins import draw_coins
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.runner import check_recipe, plan_audit, run
from dpaudit.audit.settings import Settings
from dpaudit.audit.trials.engine import TrialRunner
from dpaudit.mechanisms.defects import CORRECT, DEFECTS, Defect
from dpaudit.mechanisms.learning.spec import SPECS, Pool
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.bounds import joint_test
from dpaudit.verify.results import AttackResult

RECORDS, INPUTS, TRIALS = 150, 200, 60
CASES = [  # but for sentences, which these data are not: tests/audit/test_text.py
    (name, algorithm) for name, attack in ATTACKS.items() for algorithm in attack.algorithms if attack is not SENTENCES
]
# games that take seconds each: ClipBKD on DP-SGD and output perturbation stand for them among the fast tests
DEAR = {
    ("clipbkd", "dp-ftrl"),
    ("approximate-minima", "approximate-minima"),
    ("history", "dp-sgd"),
    ("white-box", "dp-sgd"),
}
WITH_MARKS = [pytest.param(*case, marks=[pytest.mark.slow] if case in DEAR else []) for case in CASES]
ON_GRADIENTS: dict[str, Any] = {
    "steps": 60,
    "architecture": {"name": "linear"},
    "mechanism": {"name": "gaussian", "noise_multiplier": 20.0},
    "optimizer": {"learning_rate": 30.0, "init": "zeros"},
    "claim": {"epsilon": 1.6, "delta": 1e-5},
}
ON_MINIMA: dict[str, Any] = {
    "regularization": 0.05,
    "architecture": {"name": "logistic"},
    "mechanism": {"name": "gaussian", "noise_multiplier": 2.5, "clip": 20.0},
    "claim": {"epsilon": 1.6, "delta": 1e-5},
}
RECIPES: dict[str, dict[str, Any]] = {
    "dp-sgd": {**ON_GRADIENTS, "sampling": {"kind": "none"}},
    "dp-ftrl": {**ON_GRADIENTS, "batches": 1},
    "output-perturbation": ON_MINIMA,
    "approximate-minima": {
        **ON_MINIMA,
        "loss": "logistic",
        "regularization": 5.0,
        "gradient_norm": 1e-5,
        "mechanism": {"name": "gaussian", "noise_multiplier": 4.0},
        "output_mechanism": {"name": "gaussian", "noise_multiplier": 20.0, "clip": 4e-6},
        "claim": {"epsilon": 1.1, "delta": 1e-5},
    },
}
NO_NOISE = Defect(noise_factor=0.0)


@pytest.fixture(scope="module", autouse=True)
def few_draws() -> Iterator[None]:
    """Bounds by inversion hold as they do with all draws, and are a few percent lower."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint_test, "INVERSION_DRAWS", 2**10)
        yield


@cache
def twin(algorithm: str, defect: Defect) -> Audit:
    """A model of this algorithm under audit, trained as its recipe says but for the defect."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(2 * RECORDS, INPUTS)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[:, -1] = 0.0  # a feature that is zero in every record: where canaries lie
    y = rng.integers(0, 2, 2 * RECORDS)
    dataset = Dataset("random", x[:RECORDS], y[:RECORDS], 2, "", x[RECORDS:], y[RECORDS:])
    table = {"algorithm": algorithm, "dataset": {"name": "digits"}, "audit_records": RECORDS, **RECIPES[algorithm]}
    recipe = Recipe.from_dict(table)
    spec = replace(recipe.spec(dataset), defect=defect)
    recipe = recipe.with_dimension(spec.mechanism.dimension or 0)
    coins = draw_coins(recipe, RECORDS, 1)
    models = train(spec, Pool(dataset.x, dataset.y), coins.members(RECORDS)[None], [1])
    bundle = Bundle("", "", models.state_dict(0), recipe, coins, models.ledger)
    settings = Settings(seed=1, trials=TRIALS, control=False, device="cpu", workers=1)
    return Audit(bundle, spec, dataset, check_recipe(recipe), settings)


@cache
def attacked(name: str, algorithm: str, *, defect: Defect = CORRECT) -> AttackResult:
    """The result with shares for nothing but what the attack asked for.

    How many models it would need is simulated for one of its results alone, and so is what follows if the noise is of
    the claimed family: TRIALS are trained whatever it says, and neither refutes.
    """
    audit = twin(algorithm, defect)
    audit = replace(audit, settings=replace(audit.settings, attacks=(name,)), notes=[])
    tests = ATTACKS[name].tests(audit)
    with pytest.MonkeyPatch.context() as patch:
        if defect != CORRECT:
            patch.setattr(canary_game, "models_needed", lambda *_, **__: (TRIALS, 50))
            for module in (canary_game, white_box):
                patch.setattr(module, "family_bound", lambda *_: None)
        result = ATTACKS[name].run(audit, {test: 0.05 / len(tests) for test in tests})
    assert result is not None
    return result


def refutes(result: AttackResult, algorithm: str) -> bool:
    claimed = twin(algorithm, CORRECT).claim_check.epsilon_claimed
    return result.curve_violation is not None or (result.epsilon_lower or 0.0) > claimed


@pytest.mark.parametrize("algorithm", SPECS)
def test_the_claims_are_true_and_nearly_tight(algorithm: str) -> None:
    verdict = twin(algorithm, CORRECT).claim_check
    assert verdict.verdict == "certified"
    assert verdict.epsilon_upper > 0.8 * verdict.epsilon_claimed


@pytest.mark.parametrize(("name", "algorithm"), WITH_MARKS)
def test_an_attack_is_silent_on_a_correct_twin(name: str, algorithm: str) -> None:
    assert not refutes(attacked(name, algorithm), algorithm)


@pytest.mark.parametrize(("name", "algorithm"), WITH_MARKS)
@pytest.mark.parametrize(
    "defect", [NO_NOISE, pytest.param(DEFECTS["noise-for-the-mean-on-the-sum"], marks=pytest.mark.slow)]
)
def test_an_attack_is_loud_where_there_is_next_to_no_noise(name: str, algorithm: str, defect: Defect) -> None:
    result = attacked(name, algorithm, defect=defect)
    assert refutes(result, algorithm)
    assert result.auc > attacked(name, algorithm).auc


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        pytest.param(*case, marks=[] if case[0] == "output-perturbation" else pytest.mark.slow)
        for case in CASES
        if isinstance(ATTACKS[case[0]], CanaryGame)
    ],
)
def test_a_game_on_two_data_sets_is_loud_where_every_model_draws_the_same_noise(name: str, algorithm: str) -> None:
    assert refutes(attacked(name, algorithm, defect=DEFECTS["fixed-seed"]), algorithm)


@pytest.mark.parametrize(("name", "algorithm"), WITH_MARKS)
def test_a_result_is_named_after_its_attack_and_spends_what_it_asked_for(name: str, algorithm: str) -> None:
    audit = twin(algorithm, CORRECT)
    tests = ATTACKS[name].tests(replace(audit, settings=replace(audit.settings, attacks=(name,))))
    assert tests
    assert all(test.startswith(f"{name}:") for test in tests)
    result = attacked(name, algorithm)
    assert result.name == name
    assert result.confidence_spent == pytest.approx(0.05)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_not_there_where_it_does_not_apply(name: str) -> None:
    assert ATTACKS[name].name == name
    for algorithm in set(SPECS) - set(ATTACKS[name].algorithms):
        assert ATTACKS[name].tests(twin(algorithm, CORRECT)) == ()
        assert ATTACKS[name].run(twin(algorithm, CORRECT), {}) is None


@pytest.mark.parametrize("name", ["membership", "lira"])
def test_without_coins_training_records_are_told_from_test_records_and_nothing_is_proven(name: str) -> None:
    audit = twin("dp-sgd", NO_NOISE)
    audit = replace(audit, bundle=replace(audit.bundle, coins=None), notes=[])
    assert ATTACKS[name].tests(audit) == ()
    result = ATTACKS[name].run(audit, {})
    assert result is not None
    assert (result.epsilon_lower, result.confidence_spent, result.trials) == (None, 0.0, RECORDS)
    x, y = audit.dataset.x_test[:0], audit.dataset.y_test[:0]
    assert ATTACKS[name].run(replace(audit, dataset=replace(audit.dataset, x_test=x, y_test=y)), {}) is None
    assert "nobody" in audit.notes[-1]


@pytest.mark.parametrize("algorithm", SPECS)
def test_the_canary_game_has_the_whole_error_probability_unless_tests_of_coins_are_asked_for(algorithm: str) -> None:
    audit = twin(algorithm, CORRECT)
    ((test, share),) = plan_audit(audit).shares.items()
    assert test.endswith(":joint")
    assert share == pytest.approx(0.05)
    game = test.removesuffix(":joint")
    asked = replace(audit, settings=replace(audit.settings, attacks=("membership", game)))
    assert plan_audit(asked).shares == pytest.approx({"membership:epsilon_lower": 0.025, test: 0.025})


@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_an_audit_without_time_trains_nothing_and_gives_up_in_good_order(
    name: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit, asked, real = twin(algorithm, CORRECT), list[Any](), TrialRunner.run

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(TrialRunner, "run", counted)
    settings = replace(audit.settings, attacks=(name,), budget=1e-9)
    result = run(audit.bundle, audit.dataset, settings)
    if not asked and not result.reproduce["stopped"]:  # on the model as given
        assert (result.verdict, [attack.name for attack in result.attacks]) == ("inconclusive", [name])
    else:
        assert result.reproduce["stopped"] == "budget"
        assert (result.verdict, result.attacks) == ("gave_up", [])
        assert "was stopped after 0" in result.notes[-1]


@pytest.mark.parametrize(("noise", "verdict"), [(20.0, "inconclusive"), (2.0, "not_refuted")])
def test_a_white_box_audit_that_is_silent_says_whether_it_would_have_found_half_the_noise(
    noise: float, verdict: str
) -> None:
    """400 canaries tell twice a mu of 0.39 from it in some samples only, twice a mu of 3.9 in all."""
    audit = twin("dp-sgd", CORRECT)
    table = {**audit.bundle.recipe.to_dict(), "claim": {"epsilon": 40.0, "delta": 1e-5}, "audit_records": 0}
    recipe = Recipe.from_dict({**table, "mechanism": {"name": "gaussian", "noise_multiplier": noise}})
    settings = replace(audit.settings, attacks=("white-box",), control=True, trials=20 if noise > 10 else 200)
    result = run(replace(audit.bundle, recipe=recipe, coins=None), audit.dataset, settings)
    assert result.verdict == verdict
    assert result.control is not None
    assert result.control.no_noise_found
    assert result.control.found == (verdict == "not_refuted")


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if isinstance(attack, ShadowAttack)])
def test_shadow_models_of_one_attack_are_those_of_all(name: str) -> None:
    """After LiRA no time is left to train any, and none need be."""
    attacked("lira", "dp-sgd")
    audit = twin("dp-sgd", CORRECT)
    late = replace(audit, trials=replace(audit.trials, deadline=0.0))
    assert ATTACKS[name].run(late, dict.fromkeys(ATTACKS[name].tests(audit), 0.05)) is not None
