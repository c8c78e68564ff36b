"""Sealed canaries: what is planted, what is refused, and what a judgement says where the truth is known."""

import csv
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from dpaudit.audit.canaries.judging import Guesses, _guess, _one_run, _two_arms, judge
from dpaudit.audit.canaries.planting import Planting, plant
from dpaudit.audit.canaries.power import (
    epsilon_possible,
    ideal_power,
    needed_canaries,
    needed_correct,
    one_run_bound,
    refutes,
)
from dpaudit.audit.canaries.sealing import Draw, SealedCoins, guesses_per_run, load_coins
from dpaudit.audit.claim_under_test import ClaimUnderTest, claim_under_test
from dpaudit.audit.commands.canaries import _lines
from dpaudit.audit.delivery import deliver
from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms import Gaussian
from dpaudit.reports import load_result, summary, write_report
from dpaudit.reports.wording import control_sentence, finding, verdict_sentence
from dpaudit.verify import Claim
from dpaudit.verify.bounds import epsilon_one_run, gaussian_epsilon

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "examples/trainer_without_dpaudit.py"


def write_scores(path: Path, ids: list[str], scores: NDArray[Any]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "score"), *zip(ids, np.asarray(scores).tolist(), strict=True)])
    return path


def planted_arrays(folder: Path, count: int = 40, *, seed: int = 3, **draw: Any) -> Planting:
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.random((60, 8)), y=np.arange(60) % 3)
    draw = {"runs": 1, "units": count, **draw}
    return plant(
        str(folder / "data.npz"), out=folder / "planted", sealed=folder / "coins.json", draw=Draw(seed, **draw)
    )


@pytest.fixture
def planting(tmp_path: Path) -> Planting:
    return planted_arrays(tmp_path)


def test_what_is_planted_is_the_data_and_the_canaries_whose_coin_says_in(tmp_path: Path, planting: Planting) -> None:
    coins = json.loads((tmp_path / "coins.json").read_text())
    with np.load(tmp_path / "data.npz") as data, np.load(planting.planted[0]) as found:
        with np.load(planting.queries[0]) as queries:
            assert queries["id"].tolist() == coins["ids"]
            assert len(set(coins["ids"])) == 40
            included = np.array(coins["included"])
            wanted = np.vstack([data["x"], queries["x"][included]])
            labels = np.append(data["y"], queries["y"][included])
            where = {row.tobytes(): label for row, label in zip(queries["x"], queries["y"], strict=True)}
            original = {row.tobytes(): label for row, label in zip(data["x"], data["y"], strict=True)}
        rows = np.lexsort(np.c_[found["x"], found["y"]].T), np.lexsort(np.c_[wanted, labels].T)
        assert np.array_equal(found["x"][rows[0]], wanted[rows[1]])
        assert np.array_equal(found["y"][rows[0]], labels[rows[1]])
        assert not np.array_equal(found["x"][:60], data["x"])  # mixed, not appended
    assert all(where[row] != original[row] for row in where)  # mislabelled
    content = (tmp_path / "coins.json").read_bytes()
    assert planting.coins.commitment == hashlib.sha256(content).hexdigest()
    assert coins["data_sha256"] == hashlib.sha256(planting.planted[0].read_bytes()).hexdigest()
    assert set(coins) >= {"format", "data_sha256", "queries_sha256", "kind", "ids", "included", "nonce"}


def test_the_same_seed_is_the_same_planting_byte_by_byte(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    first, again, other = (planted_arrays(f, seed=s) for f, s in zip(folders, (3, 3, 4), strict=True))
    assert first.planted[0].read_bytes() == again.planted[0].read_bytes()
    assert first.queries[0].read_bytes() == again.queries[0].read_bytes()
    assert other.coins.data_sha256 != first.coins.data_sha256
    ids = [json.loads((folder / "coins.json").read_text())["ids"] for folder in folders]
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])


def test_coins_are_fair_and_follow_from_the_seed_by_sha256_alone() -> None:
    coins = Draw(12, 2, 5000).included()
    by_hand = [bool(hashlib.sha256(f"12:coin:1:{unit}".encode()).digest()[-1] & 1) for unit in range(5000)]
    assert coins[1].tolist() == by_hand
    assert abs(int(coins.sum()) - 5000) <= binom.isf(1e-6, 10_000, 0.5) - 5000
    together = int((coins[0] == coins[1]).sum())
    assert abs(together - 2500) <= binom.isf(1e-6, 5000, 0.5) - 2500


@pytest.mark.parametrize("change", ["coin", "id", "nonce", "seed", "count"])
def test_a_changed_coin_file_is_refused_with_and_without_the_commitment(
    tmp_path: Path, planting: Planting, change: str
) -> None:
    path = tmp_path / "coins.json"
    load_coins(path, commitment=planting.coins.commitment.upper())
    data = json.loads(path.read_text())
    if change == "coin":
        data["included"][7] = not data["included"][7]
    elif change == "id":
        data["ids"][:2] = data["ids"][1::-1]
    elif change == "nonce":
        data["nonce"] = "0" * 64
    else:
        data[change] += 1
    path.write_text(json.dumps(data) + "\n")
    with pytest.raises(InputError, match="it was changed"):
        load_coins(path, commitment=planting.coins.commitment)
    with pytest.raises(InputError, match="it was changed"):
        load_coins(path)


def test_another_plantings_coins_are_not_those_committed_to(tmp_path: Path, planting: Planting) -> None:
    (tmp_path / "other").mkdir()
    other = planted_arrays(tmp_path / "other", seed=9)
    with pytest.raises(InputError, match="to have the commitment"):
        load_coins(tmp_path / "other/coins.json", commitment=planting.coins.commitment)
    assert load_coins(tmp_path / "other/coins.json").commitment == other.coins.commitment


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": "dpaudit-coins/9"}, "format"),
        ({"nonce": "no"}, "nonce"),
        ({"ids": 3}, "ids"),
        ({"group_size": 0}, r"coins\.json: .*group size=0"),
        ({"count": 10**9}, r"coins\.json: .* at most"),
        ({"count": 10**7}, r"coins\.json to have 10,000,000 ids"),
    ],
)
def test_what_is_no_coins_file_is_refused_in_one_line(
    tmp_path: Path, planting: Planting, change: dict[str, Any], named: str
) -> None:
    path = tmp_path / "coins.json"
    whole = path.read_text()
    path.write_text(json.dumps({**json.loads(whole), **change}))
    with pytest.raises(InputError, match=named):
        load_coins(path)
    path.write_text(whole[:40])
    with pytest.raises(InputError, match=r"coins\.json: expected sealed coins: Expected it to be JSON: EOF [^{]*$"):
        load_coins(path)


def test_scores_of_another_planting_or_not_of_all_are_refused(tmp_path: Path, planting: Planting) -> None:
    coins, claim = load_coins(tmp_path / "coins.json"), ClaimUnderTest(1.0, 1e-5)
    ids, values = coins.draw.ids()[0], np.arange(40.0)
    other = Draw(8, 1, 40).ids()[0]
    path = tmp_path / "scores.csv"
    for wrong, named in (
        (other, "to be one of this planting"),
        (ids[:-1], "a score for every id"),
        ([*ids[:-1], ids[0]], "every id .* once"),
        ([*ids, "stranger"], "'stranger'"),
    ):
        write_scores(path, wrong, values[: len(wrong)] if len(wrong) <= 40 else np.append(values, 0.0))
        with pytest.raises(InputError, match=named):
            judge(coins, [path], claim)
    write_scores(path, ids, np.where(values == 3, np.nan, values))
    with pytest.raises(InputError, match=r"line 5 .* not NaN"):
        judge(coins, [path], claim)
    write_scores(path, ids, values)
    with pytest.raises(InputError, match="1 runs, not 2"):
        judge(coins, [path, path], claim)
    with pytest.raises(InputError, match=r"confidence=0\.9999999999999999 in"):
        judge(coins, [path], claim, confidence=1.0 - 1e-16)
    with pytest.raises(InputError, match="adding or removing"):
        judge(coins, [path], ClaimUnderTest(1.0, 1e-5, "replace-one"))
    with pytest.raises(InputError, match="what was sealed"):
        judge(coins, [path], claim, planted=planting.queries)
    assert judge(coins, [path], claim, planted=planting.planted, queries=planting.queries).verdict == "inconclusive"


@pytest.mark.parametrize("name", ["planted.npz", "planted.queries.npz", "elsewhere/../planted.npz", "nowhere/a.json"])
def test_coins_that_cannot_be_sealed_leave_nothing_planted(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    np.savez(tmp_path / "data.npz", x=np.ones((60, 8)), y=np.arange(60) % 3)
    before = sorted(tmp_path.iterdir())
    with pytest.raises((InputError, OSError), match=Path(name).name):
        plant(str(tmp_path / "data.npz"), out=tmp_path / "planted", sealed=tmp_path / name, draw=Draw(3, 1, 10))
    assert sorted(tmp_path.iterdir()) == before


def test_a_disk_that_is_full_for_the_coins_leaves_nothing_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data whose coins are lost can be trained on and never judged, and stood in the way of the next planting."""

    def full(self: SealedCoins) -> bytes:
        raise OSError(28, "No space left on device")

    np.savez(tmp_path / "data.npz", x=np.ones((60, 8)), y=np.arange(60) % 3)
    monkeypatch.setattr(SealedCoins, "to_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        plant(str(tmp_path / "data.npz"), out=tmp_path / "planted", sealed=tmp_path / "coins.json", draw=Draw(3, 2, 10))
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def sealed(draw: Draw) -> SealedCoins:
    return SealedCoins(draw, "mislabelled", "0" * 64, "0" * 64, "nothing")


def files_of_scores(folder: Path, draw: Draw, scores: NDArray[Any]) -> list[Path]:
    """A file for each run of scores of shape (runs, units), repeated for the records of a unit."""
    ids = draw.ids()
    values = np.repeat(scores, draw.group_size, axis=1)
    return [write_scores(folder / f"scores-{run}.csv", ids[run], values[run]) for run in range(draw.runs)]


def test_the_number_of_guesses_is_half_of_the_canaries_and_the_bound_is_that_of_steinke(tmp_path: Path) -> None:
    draw = Draw(5, 1, 400)
    scores = np.random.default_rng(0).normal(2.0 * draw.included(), 1.0)
    result = judge(sealed(draw), files_of_scores(tmp_path, draw, scores), ClaimUnderTest(0.5, 1e-5))
    order = np.argsort(scores[0])
    right = int((~draw.included()[0][order[:100]]).sum() + draw.included()[0][order[-100:]].sum())
    bound = result.attacks[0].bound
    assert bound is not None
    assert {key: bound.inputs[key] for key in ("canaries", "guesses", "correct")} == {
        "canaries": 400, "guesses": 200, "correct": right,
    }  # fmt: skip
    steinke = epsilon_one_run(canaries=400, guesses=200, correct=right, delta=1e-5, confidence=0.95)
    assert bound.epsilon_lower >= steinke.epsilon_lower > 1.0
    assert (result.verdict, result.refuted_by) == ("refuted", ["sealed-canaries:epsilon_lower"])


@pytest.mark.parametrize(("runs", "units"), [(1, 80), (10, 12)])
def test_false_alarms_at_randomised_response(runs: int, units: int) -> None:
    """Each coin is published, wrong with probability 1/(1 + e): exactly epsilon 1, the hardest case."""
    rng, counts = np.random.default_rng(3), []
    for audit in range(400):
        draw = Draw(audit, runs, units)
        scores = np.where(rng.random((runs, units)) < expit(1.0), draw.included(), ~draw.included()).astype(float)
        counts.append(_guess(sealed(draw), scores + rng.normal(0.0, 1e-3, scores.shape)).correct)
    guesses = runs * guesses_per_run(draw)
    needed = needed_correct(runs * units, guesses, partial(refutes, epsilon=1.0, delta=1e-5, confidence=0.95))
    alarms = sum(needed is not None and count >= needed for count in counts)
    assert 0 < alarms <= binom.isf(1e-6, 400, 0.05)


@pytest.mark.parametrize(("units", "alarms"), [(2, 1 / 2), (3, 1 / 3), (5, 4 / 15)])
def test_planting_anew_where_all_coins_are_alike_keeps_the_level(tmp_path: Path, units: int, alarms: float) -> None:
    rng, seed, judged, right = np.random.default_rng(17), 0, 0, 0
    while judged < 2000:
        draw, seed = Draw(seed, 1, units), seed + 1
        scores, included = rng.random((1, units)), draw.included()
        if included.all() or not included.any():
            continue  # what `judge` refuses
        judged += 1
        right += _guess(sealed(draw), scores).correct == 2
    # what guesses by chance do: binomial, five standard deviations
    assert abs(right - 2000 * alarms) <= 5.0 * math.sqrt(2000 * alarms * (1.0 - alarms))
    draw = next(draw for draw in (Draw(i, 1, units) for i in range(99)) if 0 < draw.included().sum() < units)
    paths = files_of_scores(tmp_path, draw, draw.included().astype(float))
    result = judge(sealed(draw), paths, ClaimUnderTest(0.0, 0.0), confidence=0.7)
    assert (result.verdict == "refuted") is (alarms <= 0.3)
    assert result.attacks[0].details["p_value"] == pytest.approx(alarms)


def test_users_are_judged_as_one_canary_each(tmp_path: Path) -> None:
    """Noise that hides one record of five is averaged away: as many coins as users."""
    draw = Draw(5, 1, 100, group_size=5)
    rng = np.random.default_rng(0)
    ids, included = draw.ids()[0], np.repeat(draw.included()[0], 5)
    path = write_scores(tmp_path / "s.csv", ids, rng.normal(2.0 * included, 1.0))
    result = judge(sealed(draw), [path], ClaimUnderTest(1.0, 1e-5))
    assert result.attacks[0].details["canaries"] == 100
    assert result.attacks[0].auc > 0.99
    assert result.verdict == "refuted"
    assert any("user of 5 records" in note for note in result.notes)


def test_a_reference_takes_away_what_is_the_canaries_own_from_scores_and_control(tmp_path: Path) -> None:
    """Scores of 20 times their shift in spread say nothing; less what a model without canaries gives them, all."""
    draw, rng = Draw(5, 1, 200), np.random.default_rng(0)
    own = rng.normal(0.0, 20.0, (1, 200))
    for name in ("reference", "other"):
        (tmp_path / name).mkdir()
    scores = files_of_scores(tmp_path, draw, own + rng.normal(3.0 * draw.included(), 1.0))
    reference = files_of_scores(tmp_path / "reference", draw, own)
    claim = ClaimUnderTest(1.0, 1e-5)
    alone = judge(sealed(draw), scores, claim, control=scores)
    less = judge(sealed(draw), scores, claim, control=scores, reference=reference)
    assert (alone.verdict, less.verdict) == ("inconclusive", "refuted")
    assert alone.control is not None
    assert less.control is not None
    assert (alone.control.found, less.control.found) == (False, True)
    assert less.reproduce["reference_sha256"] == hashlib.sha256(reference[0].read_bytes()).hexdigest()
    assert "saw neither the planted data nor the coins" in less.notes[-1]
    same = judge(sealed(draw), reference, claim, reference=reference)  # all scores equal: no guess is worth anything
    assert same.verdict == "inconclusive"
    other = files_of_scores(tmp_path / "other", Draw(6, 1, 200), own)
    with pytest.raises(InputError, match="to be one of this planting"):
        judge(sealed(draw), scores, claim, reference=other)
    infinite = files_of_scores(tmp_path / "other", draw, np.where(own == own.max(), np.inf, own))
    with pytest.raises(InputError, match="the same infinite score"):
        judge(sealed(draw), infinite, claim, reference=infinite)
    with pytest.raises(InputError, match="a reference only with a coin"):
        judge(sealed(Draw(5, 60, 1, every=2)), [], claim, reference=reference)


def test_several_runs_prove_more_than_one(tmp_path: Path) -> None:
    bounds = []
    for runs in (1, 20):
        draw = Draw(5, runs, 40)
        paths = files_of_scores(tmp_path, draw, draw.included().astype(float))
        bounds.append(judge(sealed(draw), paths, ClaimUnderTest(3.0, 1e-5)))
    assert bounds[0].verdict == "inconclusive"
    assert any("cannot refute 3" in note for note in bounds[0].notes)
    assert bounds[1].verdict == "refuted"
    assert "independent" in " ".join(bounds[1].notes)


def test_what_models_could_have_proven_is_not_less_than_what_they_prove(tmp_path: Path) -> None:
    draw = Draw(5, 40, 1, every=2)
    paths = files_of_scores(tmp_path, draw, draw.included().astype(float))
    for epsilon in (1.8, 4.0):
        result = judge(sealed(draw), paths, ClaimUnderTest(epsilon, 1e-5))
        attack, notes = result.attacks[0], " ".join(result.notes)
        assert attack.epsilon_lower is not None
        assert attack.best_possible_epsilon == attack.epsilon_lower > 1.8
        assert (result.verdict == "refuted", "cannot refute" in notes) == (epsilon == 1.8, epsilon == 4.0)
    assert "20 models with the canary and 20 without it prove at most" in notes
    assert "needs more models" in notes
    assert "coins" not in attack.arms
    assert (
        summary.evidence(attack) == "40 trainings that nobody here saw; with the canary and without it at least 20 each"
    )


@pytest.mark.slow
def test_one_canary_in_every_second_run_is_a_game_of_two_arms(tmp_path: Path) -> None:
    draw = Draw(5, 60, 1, every=2)
    included = draw.included()
    assert included.shape == (60, 1)
    assert included.sum() == 30
    rng = np.random.default_rng(0)
    leaking = judge(
        sealed(draw), files_of_scores(tmp_path, draw, rng.normal(5.0 * included, 1.0)), ClaimUnderTest(1.0, 1e-5)
    )
    silent = judge(
        sealed(draw), files_of_scores(tmp_path, draw, rng.normal(0.5 * included, 1.0)), ClaimUnderTest(1.0, 1e-5)
    )
    assert (leaking.verdict, silent.verdict) == ("refuted", "inconclusive")
    losses = judge(
        sealed(draw), files_of_scores(tmp_path, draw, rng.normal(-5.0 * included, 1.0)), ClaimUnderTest(1.0, 1e-5)
    )
    told = [any(note.endswith("are they losses?") for note in one.notes) for one in (leaking, silent, losses)]
    assert told == [False, False, True]
    assert leaking.attacks[0].bound is not None
    assert leaking.attacks[0].bound.method == "joint-test"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"units": 1}, "every"),
        ({"units": 2, "runs": 8, "every": 2}, "one at a time"),
        ({"units": 1, "runs": 3, "every": 2}, "at most half of runs=3"),
        ({"units": 0}, "units=0"),
    ],
)
def test_games_that_prove_nothing_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Draw(1, **{"runs": 1, **settings})


CLAIM = """
[[claim]]
id = "{id}"
epsilon = {epsilon}
delta = 1e-5
steps = {steps}
sampling_prob = {prob}
[claim.mechanism]
name = "gaussian"
noise_multiplier = {noise}
"""


@pytest.mark.slow
def test_a_claim_with_its_mechanism_is_judged_by_its_curve_and_its_gaussian_bound(tmp_path: Path) -> None:
    """mu = 1 claimed, mu = 2.5 run: with the mechanism's own curve the canaries show more than against the epsilon."""
    path = tmp_path / "claims.toml"
    path.write_text(CLAIM.format(id="a", epsilon=4.38, steps=1, prob=1.0, noise=1.0))
    draw = Draw(5, 1, 1000)
    scores = np.random.default_rng(0).normal(2.5 * draw.included(), 1.0)
    paths = files_of_scores(tmp_path, draw, scores)
    claim = claim_under_test(None, None, path)
    assert claim is not None
    assert claim.gaussian
    known = judge(sealed(draw), paths, claim)
    bare = judge(sealed(draw), paths, ClaimUnderTest(4.38, 1e-5))
    assert bare.verdict == "inconclusive"
    assert known.refuted_by == ["sealed-canaries:curve_violation"]
    (attack,) = known.attacks
    assert attack.bound is not None
    assert attack.family_bound is not None
    assert attack.bound.assumes == ""
    assert attack.bound.epsilon_lower < 4.38 < attack.family_bound.epsilon_lower < gaussian_epsilon(2.5, 1e-5)
    page = write_report(known, tmp_path / "report")
    assert "sealed-canaries" in page.read_text()
    silent = judge(sealed(draw), files_of_scores(tmp_path, draw, scores - 1.5 * draw.included()), claim)
    assert silent.verdict == "inconclusive"
    assert silent.claim_check is not None
    assert silent.claim_check.verdict == "certified"


@pytest.mark.slow
def test_the_power_of_a_gaussian_claim_is_by_the_tests_that_judge_it(tmp_path: Path) -> None:
    """Half the noise, 1,000 canaries, 4.38: found nearly always by the mechanism's curve, never without it."""
    path = tmp_path / "claims.toml"
    path.write_text(CLAIM.format(id="a", epsilon=4.38, steps=1, prob=1.0, noise=1.0))
    draw, rng = Draw(5, 1, 1000), np.random.default_rng(0)
    paths = files_of_scores(tmp_path, draw, rng.normal(2.0 * draw.included(), 1.0))
    claim = claim_under_test(None, None, path)
    assert claim is not None
    known, bare = (judge(sealed(draw), paths, one).attacks[0] for one in (claim, ClaimUnderTest(4.38, 1e-5)))
    assert bare.details["ideal_power"]["power"] == 0.0
    needed = known.details["ideal_power"]["needed"]
    found = [
        bool(_one_run(sealed(game), rng.normal(2.0 * game.included(), 1.0), claim, 0.95)[1])
        for game in (Draw(seed, 1, 1000) for seed in range(30))
    ]
    assert known.details["ideal_power"]["power"] > 0.9 <= np.mean(found)
    coins = sealed(Draw(0, 1, 1000))
    put_in = coins.draw.included()[0]
    for correct in (needed - 1, needed):
        scores = np.full((1, 1000), 0.5)
        scores[0, np.flatnonzero(put_in)[:250]] = 1.0
        scores[0, np.flatnonzero(~put_in)[: correct - 250]] = 0.0
        scores[0, np.flatnonzero(put_in)[250 : 250 + 500 - correct]] = 0.0
        assert _guess(coins, scores) == Guesses(1000, 500, correct)
        assert bool(_one_run(coins, scores, claim, 0.95)[1]) == (correct == needed)


def test_a_curve_alone_refutes_by_its_own_p_value(tmp_path: Path) -> None:
    """It was told as "evidence as strong as this has probability at most 1" under the promise, which is loose."""
    draw = Draw(5, 200, 1, every=2)
    claim = Claim.single(Gaussian(10.0), epsilon=20.0, delta=1e-5)
    scores = np.random.default_rng(0).normal(1.0 * draw.included(), 1.0)
    result = judge(
        sealed(draw), files_of_scores(tmp_path, draw, scores), ClaimUnderTest(20.0, 1e-5, "add-remove", claim)
    )
    assert (result.verdict, result.refuted_by) == ("refuted", ["sealed-canaries:curve_violation"])
    [attack] = result.attacks
    assert attack.curve_violation is not None
    assert attack.details["p_value"] > 0.5
    assert "the training does not do what is described" in verdict_sentence(result)
    write_report(result, tmp_path / "report")
    assert load_result(tmp_path / "report" / "result.json").verdict == "refuted"


def test_equal_scores_of_every_second_run_refute_no_claim_more_often_than_the_level_says() -> None:
    """Equal scores are put in an order by the coins' seed; by a constant one they refuted 0 with 216 runs, always."""
    claim, refuted = ClaimUnderTest(0.0, 1e-5), 0
    for seed in range(100):
        _, rejected, _ = _two_arms(sealed(Draw(seed, 216, 1, every=2)), np.full((216, 1), 0.5), claim, 0.95)
        refuted += bool(rejected)
    assert refuted <= binom.isf(1e-6, 100, 0.05)


@pytest.mark.slow
def test_a_sampled_mechanism_is_judged_by_its_certified_curve_without_a_gaussian_assumption(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(CLAIM.format(id="a", epsilon=8.0, steps=100, prob=0.1, noise=2.0))
    claim = claim_under_test(None, None, path)
    assert claim is not None
    draw = Draw(5, 1, 1000)
    perfect = judge(sealed(draw), files_of_scores(tmp_path, draw, draw.included().astype(float)), claim)
    assert perfect.refuted_by == ["sealed-canaries:curve_violation"]
    assert perfect.attacks[0].bound is not None
    assert perfect.attacks[0].bound.assumes == ""
    assert not any("cannot refute" in note for note in perfect.notes)
    assert "of the canaries that were in" in verdict_sentence(perfect)


def test_a_control_with_less_than_half_of_the_noise_is_told_and_is_no_power(tmp_path: Path) -> None:
    draw = Draw(5, 1, 400)
    rng = np.random.default_rng(0)
    (tmp_path / "control").mkdir()
    scores = files_of_scores(tmp_path, draw, rng.normal(0.3 * draw.included(), 1.0))
    seeing = files_of_scores(tmp_path / "control", draw, draw.included().astype(float))
    claim = ClaimUnderTest(1.0, 1e-5)
    for noise, verdict in ((0.0, "inconclusive"), (0.49, "inconclusive"), (0.5, "not_refuted"), (0.9, "not_refuted")):
        assert judge(sealed(draw), scores, claim, control=seeing, control_noise=noise).verdict == verdict
    result = judge(sealed(draw), scores, claim, control=seeing, control_noise=0.0)
    told = control_sentence(result.control)
    assert told.startswith("This audit would have found a training without any noise: yes (200 of 200). ")
    assert "after 1 training (the trainer's own without noise" in told
    assert "models" not in told
    assert "is not to say that it would have found half the noise" in verdict_sentence(result)
    assert "half the noise is asked for" in summary.decision(result).note
    assert summary.tested(result) == [
        "sealed-canaries: 1 training that nobody here saw; 400 canaries, each in or out by a coin; the attacker sees "
        "scores of the canaries, by whoever has the model."
    ]
    assert not any("trained anew" in line for line in summary.untested(result))
    assert list(summary.rates_shown(result.attacks[0])) == ["0.1"]  # of 200 canaries that are out, 2 false alarms at 1%


@pytest.mark.slow
def test_a_control_tells_silence_from_blindness(tmp_path: Path) -> None:
    draw = Draw(5, 1, 400)
    rng = np.random.default_rng(0)
    (tmp_path / "control").mkdir()
    scores = files_of_scores(tmp_path, draw, rng.normal(0.3 * draw.included(), 1.0))
    claim = ClaimUnderTest(1.0, 1e-5)
    seeing = files_of_scores(tmp_path / "control", draw, rng.normal(3.0 * draw.included(), 1.0))
    result = judge(sealed(draw), scores, claim, control=seeing)
    assert result.verdict == "not_refuted"
    assert result.control is not None
    assert result.control.power == 1.0
    blind = judge(sealed(draw), scores, claim, control=scores)
    assert blind.verdict == "inconclusive"


def test_the_power_that_is_told_is_the_power_that_ideal_canaries_have() -> None:
    settings: dict[str, Any] = {"delta": 1e-5, "confidence": 0.95}
    refuted = partial(refutes, epsilon=0.1, **settings)
    bound = partial(one_run_bound, **settings)
    power = ideal_power(400, 200, 1, 0.1, 1e-5, refuted=refuted, bound=bound, noise_factor=0.1, seed=1)
    assert power is not None
    assert gaussian_epsilon(power.mu, 1e-5) == pytest.approx(0.1)
    rng, needed = np.random.default_rng(9), needed_correct(400, 200, refuted)
    assert needed == power.needed
    found = 0
    for _ in range(300):
        coins = rng.random(400) < 0.5
        scores = rng.normal(coins * power.mu / 0.1, 1.0)
        order = np.argsort(scores)
        found += int((~coins[order[:100]]).sum() + coins[order[-100:]].sum()) >= (needed or 0)
    assert 0.2 < power.power < 0.95
    assert abs(found / 300 - power.power) < 0.12
    assert guesses_per_run(Draw(0, 1, 401)) == 200


@pytest.mark.parametrize("epsilon", [0.0, 1e100, 1e308])
def test_claims_of_any_size_are_judged(tmp_path: Path, epsilon: float) -> None:
    draw = Draw(5, 1, 40)
    paths = files_of_scores(tmp_path, draw, draw.included().astype(float))
    result = judge(sealed(draw), paths, ClaimUnderTest(epsilon, 1e-5))
    assert result.verdict == ("inconclusive" if epsilon else "refuted")
    assert result.attacks[0].best_possible_epsilon == epsilon_possible(40, 20, delta=1e-5, confidence=0.95)
    assert gaussian_epsilon(1e200, 1e-5) == np.inf


def test_the_report_is_there_whether_or_not_the_verdict_can_be_printed(tmp_path: Path) -> None:
    draw = Draw(5, 1, 40)
    paths = files_of_scores(tmp_path, draw, draw.included().astype(float))
    result = judge(sealed(draw), paths, ClaimUnderTest(1.0, 1e-5))
    attack = replace(result.attacks[0], epsilon_lower=1.66459, best_possible_epsilon=1.66462)
    lines = _lines(replace(result, attacks=[attack]))
    assert "epsilon >= 1.664, at most 1.665 could have been proven" in lines[1]
    assert not any("The training was not seen" in line for line in lines)

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        deliver(result, tmp_path / "unread", str(tmp_path / "result.json"), lines, show=full, warn=full)
    assert (tmp_path / "unread/report.html").exists()
    assert (tmp_path / "result.json").exists()


def test_a_judgement_with_less_evidence_says_that_the_report_before_it_stays(tmp_path: Path) -> None:
    draw, said, shown = Draw(5, 1, 40), [], []
    paths = files_of_scores(tmp_path, draw, draw.included().astype(float))
    for confidence in (0.95, 0.99):
        result = judge(sealed(draw), paths, ClaimUnderTest(2.0, 1e-5), confidence=confidence)
        deliver(result, tmp_path / "audit", None, _lines(result), show=shown.append, warn=said.append)
    before, later = tmp_path / "audit", tmp_path / "audit/run-2"
    assert said == [f"the report in {before} rests on more evidence and stays; this one is in {later}"]
    assert [line for line in shown if line.startswith("report: ")] == [
        f"report: {before}/report.html", f"report: {later}/report.html",
    ]  # fmt: skip


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_as_many_canaries_as_are_needed_suffice_and_fewer_do_not(epsilon: float) -> None:
    refuted = partial(refutes, epsilon=epsilon, delta=1e-6, confidence=0.95)
    count = needed_canaries(refuted)
    assert count is not None
    assert needed_correct(count, count // 2, refuted) is not None
    assert needed_correct(count - 8, count // 2 - 4, refuted) is None


def run_trainer(place: Path, noise_multiplier: float, scores: str = "scores.csv") -> None:
    words = [sys.executable, str(TRAINER), "planted.npz", "planted.queries.npz", scores]
    subprocess.run(
        [*words, "--noise-multiplier", str(noise_multiplier), "--seed", "1"], check=True, cwd=place, timeout=120
    )


@pytest.mark.slow
def test_a_trainer_without_dpaudit_is_found_without_noise_and_left_alone_with_it(
    tmp_path: Path, dpaudit: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """The whole way on digits; epsilon 1 at delta 1e-5 needs a noise multiplier of 37.31 for 100 full steps."""
    assert "dpaudit" not in TRAINER.read_text().split('"""', 2)[2]
    done = dpaudit("canaries", "plant", "digits", "--count", "500", "--out", "planted", "--sealed", "coins.json",
                   "--seed", "5", folder=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    commitment = hashlib.sha256((tmp_path / "coins.json").read_bytes()).hexdigest()
    assert f"commitment {commitment}" in done.stdout
    said = ["--epsilon", "1", "--delta", "1e-5", "--commitment", commitment, "--data", "planted.npz"]
    for noise, status, verdict in ((0.0, 3, "refuted"), (37.31, 0, "inconclusive")):
        run_trainer(tmp_path, noise)
        judged = dpaudit("canaries", "judge", "coins.json", "scores.csv", *said, "--json", "-", folder=tmp_path)
        assert judged.returncode == status, judged.stderr
        assert json.loads(judged.stdout)["verdict"] == verdict
    again = dpaudit("canaries", "plant", "digits", "--out", "planted", "--sealed", "coins.json", folder=tmp_path)
    assert again.returncode == 2
    assert "no planting is overwritten" in again.stderr
    lacking = dpaudit("canaries", "judge", "coins.json", "scores.csv", *said, "--require", "power", folder=tmp_path)
    assert lacking.returncode == 5
    page = (tmp_path / "coins.audit/report.html").read_text()
    assert "is the one that was agreed upon" in page
    again = dpaudit("report", "coins.audit/result.json", "--out", "again", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "at most 4.419 could have been proven" in lacking.stdout
    assert "250 guesses prove at most epsilon 4.419 at delta" in done.stderr


def test_claims_on_records_are_not_held_against_users_and_other_kinds_have_their_own_curve(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    text = CLAIM.format(id="a", epsilon=1.0, steps=1, prob=1.0, noise=5.0)
    path.write_text(text)
    users = Draw(5, 1, 40, group_size=2)
    scores = files_of_scores(tmp_path, users, np.zeros((1, 40)))
    claim = claim_under_test(None, None, path)
    assert claim is not None
    with pytest.raises(InputError, match="unit = 'user'"):
        judge(sealed(users), scores, claim)
    promised = '[claim.guarantee]\nkind = "gdp"\nmu = 1.0\n[claim.mechanism]'
    path.write_text(text.replace("epsilon = 1.0\ndelta = 1e-5\n", "").replace("[claim.mechanism]", promised))
    gaussian = claim_under_test(None, None, path)
    assert gaussian is not None
    assert float(gaussian.stated(0.5)) == pytest.approx(0.8413, abs=1e-3)  # Phi(1)
    assert float(ClaimUnderTest(gaussian.epsilon, 1e-5).stated(0.5)) > 0.99


MOVED = """
[[claim]]
id = "a"
epsilon = 1.0
delta = 1e-5
adjacency = "{adjacency}"
mechanism = {{name = "gaussian", noise_multiplier = 100.0}}
{history}
"""
SHUFFLED = 'sampling = {kind = "shuffled", records = 1438, batch = 719, epochs = 1}'
POISSON = 'steps = 2\nsampling = {kind = "poisson", prob = 0.5}'
RATE_ALONE = 'steps = 2\nsampling = {kind = "buffered-shuffle", prob = 0.5}'
TREE = 'steps = 4\ncorrelation = {{strategy = "identity", participation = {{{}}}}}'


@pytest.mark.parametrize(
    ("adjacency", "history", "refused"),
    [
        ("zero-out", SHUFFLED, True),
        ("add-remove", SHUFFLED, True),
        ("zero-out", RATE_ALONE, True),
        ("zero-out", TREE.format('kind = "fixed-order", separation = 2'), True),
        ("zero-out", TREE.format('kind = "fixed-order", separation = 1'), False),
        ("add-remove", 'sampling = {kind = "balls-in-bins", batches = 2, epochs = 1}', False),
        ("zero-out", POISSON, False),
        ("zero-out", "steps = 2", False),
    ],
)
def test_claims_whose_neighbours_have_other_batches_without_a_canary_are_refused(
    tmp_path: Path, adjacency: str, history: str, refused: bool
) -> None:
    """A score of how many steps a training took would refute a true claim on a ghost that keeps its place."""
    path = tmp_path / "claims.toml"
    path.write_text(MOVED.format(adjacency=adjacency, history=history))
    claim = claim_under_test(None, None, path)
    assert claim is not None
    named = "batches that stay as they are without a canary" if refused else "a file of scores for each"
    with pytest.raises(InputError, match=named):
        judge(sealed(Draw(5, 40, 1, every=2)), [], claim)
    with pytest.raises(InputError, match="how its batches are drawn"):
        judge(sealed(Draw(5, 40, 1, every=2)), [], ClaimUnderTest(1.0, 1e-5, "zero-out"))


def test_a_promise_that_is_refuted_is_below_the_bound_that_is_told(tmp_path: Path) -> None:
    """Eleven runs told apart: an inversion with fewer draws ends at 0.742, and a promise of 0.77 is refuted."""
    draw = Draw(5, 11, 1, every=2)
    paths = [tmp_path / f"{run}.csv" for run in range(draw.runs)]
    for path, [name], [included] in zip(paths, draw.ids(), draw.included(), strict=True):
        path.write_text(f"id,score\n{name},{float(included)}\n")
    result = judge(SealedCoins(draw, "blank", "0" * 64, "0" * 64, "x"), paths, ClaimUnderTest(0.77, 1e-5))
    assert result.refuted_by == ["sealed-canaries:epsilon_lower"]
    assert result.epsilon_lower == np.nextafter(0.77, 1.0)
    assert "at least epsilon = 0.7700000000000001 at" in finding(result, result.refuted_by[0])
    assert "has probability at most 0.047 where that holds" in finding(result, "sealed-canaries:p_value")
