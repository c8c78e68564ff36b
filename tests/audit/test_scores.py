"""Scores in, bounds out: each bound is the library's own, refused where it does not suit, and silent on true claims."""

import json
import re
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from dpaudit.audit import Bonferroni, Explicit, Scores, Split
from dpaudit.audit.claim_under_test import ClaimUnderTest
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.score_files import read_scored_ids, read_scores
from dpaudit.audit.scores_text import scores_text
from dpaudit.mechanisms import Gaussian
from dpaudit.verify.bounds import epsilon_from_counts, epsilon_gdp, epsilon_one_run, gaussian_delta
from dpaudit.verify.claims import Phase
from dpaudit.verify.guarantees import PrivacyCurve
from dpaudit.verify.implied import claim_stating

RNG = np.random.default_rng(1)
IN, OUT = RNG.normal(2.0, 1.0, 600), RNG.normal(0.0, 1.0, 500)


def test_an_explicit_threshold_is_the_counts_at_it() -> None:
    bound = Scores(IN, OUT).epsilon_from_counts(delta=1e-5, threshold=Explicit(1.5))
    tp, fp = int((IN > 1.5).sum()), int((OUT > 1.5).sum())
    wanted = epsilon_from_counts(tp=tp, fp=fp, tn=500 - fp, fn=600 - tp, delta=1e-5, confidence=0.95)
    assert bound.epsilon_lower == wanted.epsilon_lower
    assert bound.threshold == 1.5
    with pytest.raises(ValueError, match="threshold=nan"):
        Scores(IN, OUT).epsilon_from_counts(delta=1e-5, threshold=Explicit(float("nan")))


def test_a_split_counts_on_scores_that_did_not_choose_the_threshold() -> None:
    bound = Scores(IN, OUT).epsilon_from_counts(delta=1e-5, threshold=Split(seed=3, share=0.3))
    counted = {name: bound.inputs[name] for name in ("tp", "fp", "tn", "fn")}
    assert counted["tp"] + counted["fn"] == 420
    assert counted["fp"] + counted["tn"] == 350
    assert bound.epsilon_lower == epsilon_from_counts(**counted, delta=1e-5, confidence=0.95).epsilon_lower > 1.0
    shuffled = np.random.default_rng(7).permutation(IN), OUT[::-1]  # another order of lines is no second draw
    assert Scores(*shuffled).epsilon_from_counts(delta=1e-5, threshold=Split(seed=3, share=0.3)) == bound
    with pytest.raises(ValueError, match=r"share=0\.01"):
        Scores(IN[:20], OUT[:20]).epsilon_from_counts(delta=1e-5, threshold=Split(seed=3, share=0.01))


def test_the_other_bounds_are_those_of_the_library() -> None:
    scores = Scores(IN, OUT)
    gdp = epsilon_gdp(IN, OUT, delta=1e-5, confidence=0.9)
    assert scores.epsilon_gdp(delta=1e-5, confidence=0.9).to_dict() == gdp.to_dict()
    assert scores.epsilon_from_counts(delta=1e-5).method == "clopper-pearson-bonferroni"
    joint = scores.epsilon_joint(delta=1e-5, seed=0).epsilon_lower
    counted = scores.epsilon_from_counts(delta=1e-5, threshold=Bonferroni()).epsilon_lower
    assert 0.9 * counted < joint < gdp.epsilon_lower
    lower, upper = scores.auc_interval()
    estimate = scores.bootstrap(Scores.auc, seed=0, resamples=200)
    assert lower < estimate.lower < scores.auc() == estimate.value < estimate.upper < upper
    assert estimate.kind == "bootstrap estimate, no bound"
    assert scores.bootstrap(Scores.auc, seed=0, resamples=200) == estimate


def test_a_promised_curve_is_held_to_its_own_points() -> None:
    """Of which no grid of epsilons need have one."""
    points = ((0.1, 0.01), (1.0, 1e-5))
    claim = claim_stating(PrivacyCurve(points), [Phase(Gaussian(50.0))])
    rates = np.linspace(0.0, 1.0, 101)
    lines = [np.exp(e) * rates + d for e, d in points] + [1.0 - np.exp(-e) * (1.0 - rates - d) for e, d in points]
    allowed = np.clip(np.min(lines, axis=0), 0.0, 1.0)
    np.testing.assert_allclose(ClaimUnderTest(0.1, 0.01, claim=claim).stated(rates), allowed, atol=1e-12)


def test_a_bound_that_does_not_suit_the_design_is_refused() -> None:
    one_run, paired, independent = Scores(IN, OUT, "one-run"), Scores(OUT, OUT, "paired"), Scores(IN, OUT)
    refused: list[Callable[[], Any]] = [
        lambda: one_run.epsilon_from_counts(delta=0.0),
        lambda: one_run.epsilon_gdp(delta=1e-5),
        lambda: one_run.auc_interval(),
        lambda: one_run.roc_band(),
        lambda: one_run.epsilon_joint(delta=0.0, seed=0),
        lambda: paired.epsilon_one_run(delta=0.0),
        lambda: independent.epsilon_one_run(delta=0.0),
        lambda: independent.epsilon_paired(delta=0.0),
    ]
    for call in refused:
        with pytest.raises(ValueError, match="Expected design"):
            call()
    for delta in (-1.0, 1.0, 2.0, np.nan):  # it took any
        with pytest.raises(ValueError, match="Expected delta="):
            independent.epsilon_joint(delta=delta, seed=0)
    with pytest.raises(ValueError, match="Expected resamples=0"):
        independent.bootstrap(Scores.auc, seed=0, resamples=0)
    with pytest.raises(TypeError, match=r"statistic=0\.5 to be a function scores -> number"):
        independent.bootstrap(0.5, seed=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"threshold=0 to be a rule, such as Explicit\(1\.5\)"):
        independent.epsilon_from_counts(delta=0.0, threshold=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="inside=600"):
        Scores(IN, OUT, "paired")
    with pytest.raises(ValueError, match="design='lucky'"):
        Scores(IN, OUT, "lucky")  # type: ignore[arg-type]


def test_canaries_of_one_run_guess_half_of_themselves_and_ties_prove_nothing() -> None:
    scores = Scores(IN[:400], OUT[:400], "one-run")
    bound = scores.epsilon_one_run(delta=1e-5)
    values = np.append(IN[:400], OUT[:400])
    order = np.argsort(values)
    correct = int((order[:200] >= 400).sum() + (order[-200:] < 400).sum())
    wanted = epsilon_one_run(canaries=800, guesses=400, correct=correct, delta=1e-5, confidence=0.95)
    assert bound.epsilon_lower == wanted.epsilon_lower
    constant = Scores(np.zeros(30), np.zeros(30), "one-run").epsilon_one_run(delta=0.0)
    assert (constant.inputs["correct"], constant.epsilon_lower) == (0, 0.0)


def test_canaries_of_one_run_that_fail_together_are_no_evidence_of_more() -> None:
    """A model that publishes all coins with probability .05, else none: (0, .05) private. Counting would accuse it."""
    rng, alarms, wrong = np.random.default_rng(2), 0, 0
    claim = ClaimUnderTest(0.5, 0.05)
    for _ in range(150):
        coins = rng.random(60) < 0.5
        scores = coins * 9.0 * (rng.random() < 0.05) + rng.normal(size=60)
        judged = Scores(scores[coins], scores[~coins], "one-run").judge(claim, seed=0)
        alarms += judged["verdict"] == "refuted"
        bound = Scores(scores[coins], scores[~coins]).epsilon_from_counts(delta=0.05, confidence=0.99)
        wrong += bound.epsilon_lower > 0.5
    assert alarms <= binom.isf(1e-6, 150, 0.05)
    assert wrong > 1.5  # at a level of 1%, in 5% of the audits


@pytest.mark.parametrize("design", [pytest.param("independent", marks=pytest.mark.slow), "paired"])
def test_a_true_claim_is_not_refuted_and_a_false_one_is(design: Any) -> None:
    rng = np.random.default_rng(5)
    inside, outside = (rng.random(200) < expit(sign) for sign in (1.0, -1.0))  # randomised response: exactly epsilon 1
    jitter = rng.normal(0.0, 1e-3, (2, 200))
    scores = Scores(inside + jitter[0], outside + jitter[1], design)
    assert scores.judge(ClaimUnderTest(1.0, 0.0), seed=0)["verdict"] == "not_refuted"
    leaking = Scores(rng.normal(4.0, 1.0, 200), rng.normal(size=200), design)
    assert leaking.judge(ClaimUnderTest(1.0, 0.0), seed=0)["verdict"] == "refuted"


def test_a_mechanisms_curve_refutes_where_its_epsilon_does_not() -> None:
    """Half of the noise of mu = 1: 400 trainings per arm show it on the curve, not against its epsilon at 1e-5."""
    from dpaudit.mechanisms import Gaussian
    from dpaudit.verify.claims import Claim

    claim = ClaimUnderTest(4.38, 1e-5, claim=Claim.single(Gaussian(1.0), epsilon=4.38, delta=1e-5, id="a"))
    rng = np.random.default_rng(0)
    judged = Scores(rng.normal(2.0, 1.0, 400), rng.normal(size=400)).judge(claim, seed=0)
    assert judged["verdict"] == "refuted"
    assert judged["epsilon_lower"] < 4.38
    assert judged["curve_p_value"] < 0.01 < judged["p_value"]
    silent = Scores(rng.normal(1.0, 1.0, 400), rng.normal(size=400)).judge(claim, seed=0)
    assert silent["verdict"] == "not_refuted"
    assert gaussian_delta(1.0, 4.38) <= 1e-5


def test_the_p_value_of_the_promise_is_that_of_the_test_which_refutes() -> None:
    """3,708 of 5,000 guesses on 10,000 canaries: the sharper of the two one-run tests decides, and is told."""
    from dpaudit.verify.bounds import steinke_p_value

    right, half = np.linspace(10, 11, 1854), np.linspace(-1, 1, 2500)
    inside = np.concatenate([right, np.linspace(-11, -10, 646), half])
    judged = Scores(inside, -inside + 1e-6, "one-run").judge(ClaimUnderTest(1.0, 1e-6), seed=0)
    assert (judged["verdict"], judged["decided_by"]) == ("refuted", "one-run-steinke")
    assert judged["p_value"] == steinke_p_value(10_000, 5000, 3708, epsilon=1.0, delta=1e-6) < 0.05


def test_the_p_value_of_the_promise_is_no_less_than_the_probability_of_as_many_right_guesses() -> None:
    """In the lower tail, too: 3 coins of which all wrong happens with 1/8 - .1 only, else all guesses evenly."""
    from dpaudit.audit.score_deciders import promise_p_value

    claim = ClaimUnderTest(0.0, 0.8 / 7)
    assert promise_p_value(claim, canaries=3, guesses=3, correct=1) >= 7 / 8 + 0.1


@pytest.mark.parametrize(
    ("design", "size", "seed"), [("independent", 30, 7), ("paired", 60, 4), ("one-run", 30, 5), ("one-run", 60, 4)]
)
def test_a_claim_is_refuted_if_and_only_if_the_bound_is_above_it(design: Any, size: int, seed: int) -> None:
    """Also one that lies within the tolerance of the inversion, and in what is printed."""
    rng = np.random.default_rng(seed)
    scores = Scores(rng.normal(2.5, 1.0, size), rng.normal(size=size), design)
    alone = scores.judge(None, delta=1e-5, seed=3)["epsilon_lower"]
    alone = scores.judge(ClaimUnderTest(alone, 1e-5), seed=3)["epsilon_lower"]  # most powerful against about itself
    refuted = 0
    for above in (0.0, 1e-8, 1e-7, 1e-5, 1e-3, 1.0):
        judged = scores.judge(ClaimUnderTest(alone + above, 1e-5), seed=3)
        assert (judged["verdict"] == "refuted") == (judged["epsilon_lower"] > alone + above)
        assert judged["bounds"][judged["decided_by"]]["epsilon_lower"] == judged["epsilon_lower"]
        printed = re.search(r"claimed epsilon (\S+) .* at least (\S+) ", scores_text(judged)[0])
        assert printed is not None
        assert (float(printed[2]) > float(printed[1])) == (judged["verdict"] == "refuted")
        refuted += judged["verdict"] == "refuted"
    assert 3 <= refuted < 6


def test_a_delta_just_below_1_is_not_told_as_1() -> None:
    told = scores_text(Scores(IN, OUT).judge(ClaimUnderTest(5.0, 1 - 1e-7), seed=1))
    assert "at delta 0.9999999;" in told[0]


def test_right_guesses_of_normal_noise_refute_no_claim_that_their_bound_does_not_exceed() -> None:
    """A claim is rejected where the bound is above it, and nowhere else, within the inversion's tolerance too."""
    from dpaudit.verify.claims import Claim

    rng = np.random.default_rng(4)
    scores = Scores(rng.normal(2.0, 1.0, 60), rng.normal(size=60), "one-run")

    def judged(epsilon: float) -> dict[str, Any]:
        history = Claim.single(Gaussian(30.0), epsilon=epsilon, delta=1e-5, id="a")
        return scores.judge(ClaimUnderTest(epsilon, 1e-5, claim=history), seed=0)

    edge = judged(3.0)["epsilon_lower"]
    for epsilon, exceeded in ((edge - 1e-7, True), (edge, None), (edge + 1e-7, None), (edge + 0.01, False)):
        found = judged(epsilon)
        assert (found["epsilon_lower"] > epsilon) == (found["p_value"] <= 0.05)
        assert exceeded in (None, found["epsilon_lower"] > epsilon)


def test_a_promise_that_is_kept_in_another_way_than_by_normal_noise_is_not_refuted() -> None:
    """Coins told by randomized response, purely private at 3: their curve is not Gaussian, and 3 is what they keep."""
    from dpaudit.verify.claims import Claim

    rng = np.random.default_rng(11)
    coins = rng.random(1000) < 0.5
    told = np.where(rng.random(1000) < 1.0 / (1.0 + np.exp(-3.0)), coins, ~coins) + rng.random(1000)
    claim = ClaimUnderTest(3.99, 1e-5, claim=Claim.single(Gaussian(1.09), epsilon=3.99, delta=1e-5, id="a"))
    judged = Scores(told[coins], told[~coins], "one-run").judge(claim, seed=0)
    assert judged["bounds"]["one-run-f-dp"]["epsilon_lower"] > 3.99
    assert judged["epsilon_lower"] < 3.0
    assert judged["curve_p_value"] < 0.01 < 0.5 < judged["p_value"]  # the mechanism is another one
    assert scores_text(judged)[0].startswith("refuted by the mechanism's certified curve, which the scores break: ")


@pytest.mark.parametrize("canaries", [2, 3, 4, 6])
def test_few_canaries_of_which_one_side_may_be_empty_keep_the_level(canaries: int) -> None:
    """Scores that know nothing, in every way in which the coins fall: a game of one side is played anew."""
    scores, claim = np.arange(canaries, dtype=np.float64), ClaimUnderTest(0.0, 0.0)
    for confidence in (0.6, 0.8, 0.9):
        judged = [
            Scores(scores[coins], scores[~coins], "one-run").judge(claim, confidence=confidence, seed=0)
            for coins in map(np.array, product((False, True), repeat=canaries))
            if 0 < coins.sum() < canaries
        ]
        refuted = [one["verdict"] == "refuted" for one in judged]
        above = [one["epsilon_lower"] > 0 for one in judged]
        assert max(np.mean(refuted), np.mean(above)) <= 1.0 - confidence + 1e-9
        assert any(refuted) or canaries < 6


def test_what_a_bound_assumes_and_what_calculation_says_is_told() -> None:
    from dpaudit.mechanisms import Gaussian
    from dpaudit.verify.claims import Claim

    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(1.0, 1.0, 500), rng.normal(size=500), "one-run")
    claim = ClaimUnderTest(3.0, 1e-5, claim=Claim.single(Gaussian(2.0), epsilon=3.0, delta=1e-5, id="a"))
    judged = scores.judge(claim, seed=0)
    assert judged["bounds"][judged["decided_by"]]["assumes"] == ""
    assert judged["bounds"]["one-run-f-dp"]["epsilon_lower"] > judged["epsilon_lower"]
    assert any(line.endswith("assumes gaussian-tradeoff") for line in scores_text(judged))
    false = ClaimUnderTest(0.1, 1e-5, claim=Claim.single(Gaussian(2.0), epsilon=0.1, delta=1e-5, id="a"))
    silent = Scores(rng.normal(size=30), rng.normal(size=30), "one-run").judge(false, seed=0)
    assert (silent["verdict"], silent["claim_check"]) == ("refuted", "refuted")
    assert "by calculation the claim is refuted" in scores_text(silent)
    assert scores_text(silent)[0].startswith("refuted by calculation: claimed epsilon ")


def test_coins_judge_no_claim_of_batches_that_a_removal_changes() -> None:
    from dpaudit.mechanisms import Gaussian
    from dpaudit.verify.claims import Claim, Phase
    from dpaudit.verify.samplers import Shuffled

    claim = Claim(3.0, 1e-5, [Phase(Gaussian(2.0), 4, sampler=Shuffled(4, 1))], id="a")
    with pytest.raises(InputError, match="batches that stay as they are without a canary"):
        Scores(IN, OUT, "one-run").judge(ClaimUnderTest(3.0, 1e-5, claim=claim), seed=0)


def test_a_printed_bound_is_still_a_bound() -> None:
    """Lower ends are rounded down and upper ends up; a refuting one is shown to exceed the claim."""
    judged = Scores(IN, OUT).judge(ClaimUnderTest(1.0, 1e-5), seed=0)
    bounds = {name: {**bound, "epsilon_lower": 0.71875} for name, bound in judged["bounds"].items()}
    judged |= {"epsilon_lower": 1.00001, "bounds": bounds}
    judged["auc"] |= {"lower": 0.71875, "upper": 0.81234}
    text = "\n".join(scores_text(judged))
    assert "prove at least 1.00001 (" in text
    assert "epsilon >= 0.7187" in text
    assert "in [0.7187, 0.8124]" in text
    bare = Scores(IN, OUT).judge(None, delta=1e-5, seed=0) | {"epsilon_lower": 0.71875}
    assert scores_text(bare)[0].startswith("epsilon >= 0.7187 at delta")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", IN)
    np.save(tmp_path / "b.npy", OUT)
    return tmp_path


def test_the_command(files: Path, dpaudit: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    arms = ("scores", "--in", "a.npy", "--out", "b.npy", "--seed", "1")
    told = dpaudit(*arms, "--epsilon", "1", "--delta", "1e-5", "--threshold", "1.5", folder=files)
    assert told.returncode == 3
    assert told.stdout.startswith("refuted: claimed epsilon 1 at delta 1e-5")
    assert "clopper-pearson: epsilon >=" in told.stdout
    data = json.loads(dpaudit(*arms, "--json", "-", folder=files).stdout)
    assert (data["format"], data["verdict"], data["design"]) == ("dpaudit-scores/1", None, "independent")
    (files / "made").mkdir()
    early = dpaudit(*arms, "--epsilon", "1", "--delta", "1e-5", "--json", "made", folder=files)
    assert (early.returncode, early.stdout) == (2, "")  # before the work
    assert early.stderr == "dpaudit: Expected --json=made to be a file, not a folder.\n"
    assert len(data["roc"]["band"]["fpr"]) == len(data["roc"]["band"]["tpr_lower"])
    assert dpaudit(*arms, "--one-run", "--epsilon", "9", "--delta", "1e-5", folder=files).returncode == 0
    for words, named in (
        (("--epsilon", "1"), "--delta"),
        (("--paired",), "in pairs"),
        (("--paired", "--one-run"), "not both"),
        (("--paired", "--threshold", "1"), "not of pairs"),
        (("--threshold", "lucky"), "threshold='lucky'"),
        (("--threshold", "nan"), "--threshold=nan"),
        (("--confidence", "2"), "confidence=2"),
        (("--confidence", "0.9999999999999999"), "confidence=0.9999999999999999"),
        (("--claim", "none.toml"), "none.toml"),
    ):
        refused = dpaudit(*arms, *words, folder=files)
        assert refused.returncode == 2, words
        assert named in " ".join(refused.stderr.split()), refused.stderr


def test_no_second_draw_for_equal_scores(
    tmp_path: Path, dpaudit: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Without --seed nothing is drawn, and equal scores count against the evidence."""
    rng = np.random.default_rng(0)
    inside, outside = (rng.binomial(1, p, 100).astype(np.float64) for p in (0.9, 0.1))
    told = set[str]()
    for variant in (lambda x: x, lambda x: x[::-1], lambda x: 3.0 * x + 1.0, lambda x: np.where(x == 0, -0.0, x)):
        for name, arm in (("a.npy", inside), ("b.npy", outside)):
            np.save(tmp_path / name, variant(arm))
        found = dpaudit("scores", "--in", "a.npy", "--out", "b.npy", "--epsilon", "1", "--delta", "0", folder=tmp_path)
        told.add(found.stderr + found.stdout.splitlines()[0])
    assert len(told) == 1
    assert told.pop().startswith("refuted: claimed epsilon 1 at delta 0; ")
    split = ("scores", "--in", "a.npy", "--out", "b.npy", "--threshold", "split")
    assert "Expected --seed with --threshold split" in " ".join(dpaudit(*split, folder=tmp_path).stderr.split())
    assert dpaudit(*split, "--seed", "1", folder=tmp_path).returncode == 0
    same = Scores(np.ones(9), np.ones(9)).judge(None, delta=0.0, seed=None)
    assert (same["seed"], same["epsilon_lower"]) == (None, 0.0)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '|O'  }", "npy file of numbers"),
        ("a.npy", b"nothing", "npy file of numbers"),
        ("a.npy", b"\x93NUMPY\x01\x00\x28\x23" + b"-" * 8999 + b"1", "npy file of numbers"),
        ("a.csv", b"score\n1\nred\n", "line 3 .* 'red'"),
        ("a.csv", b"1\nnan\n", "NaN"),
        ("a.csv", b"", "vector of scores"),
        ("a.csv", b"1,2\n3,4\n", "one number in a line"),
        ("a.csv", b"score\n0,5\n1,7\n", "line 2 .* 1 columns, not 2"),
        ("a.csv", b"3\n1,5\n", "line 2 .* 1 columns, not 2"),
        ("a.csv", b"1\n\n2\n", "line 2 .* 1 columns, not 0"),
        ("a.csv", b"\n1\n", "line 1 .* not ''"),
        ("a.csv", b"0x10\n1\n", "line 1 .* not '0x10'"),
        ("a.csv", b"1_000\n1\n", "line 1 .* not '1_000'"),
        ("a.csv", b"score,score\n1,2\n", "one column score"),
        ("a.csv", b"N/A\n1.5\n", "line 1 .* not 'N/A'"),
        ("a.csv", b"<NA>\n1.5\n", "line 1 .* not '<NA>'"),
        ("a.csv", b"#DIV/0!\n1.5\n", "line 1 .* not '#DIV/0!'"),
        ("a.csv", b"True\nFalse\n", "line 1 .* not 'True'"),
        ("a.csv", b"0\n1.5\n-2.5e-3\n", "header that pandas writes"),
        ("a.csv", b'score\n1\n"2', "unexpected end of data"),
    ],
)
def test_files_that_hold_no_scores_are_refused(tmp_path: Path, name: str, content: bytes, named: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=named):
        read_scores(tmp_path / name)


def test_files_of_scores(tmp_path: Path) -> None:
    for content in ("1\n2.5\n-inf\n", "score\n1\n2.5\n-inf\n", "id,score\na,1\nb,2.5\nc,-inf\n"):
        (tmp_path / "a.csv").write_text(content)
        assert read_scores(tmp_path / "a.csv").tolist() == [1.0, 2.5, -np.inf]
    (tmp_path / "zero.csv").write_text("0\n1\n2.5\n")
    assert read_scores(tmp_path / "zero.csv").tolist() == [0.0, 1.0, 2.5]
    assert read_scored_ids(tmp_path / "a.csv") == {"a": 1.0, "b": 2.5, "c": -np.inf}
    (tmp_path / "a.csv").write_text("id,score,score\na,1,2\n")
    with pytest.raises(InputError, match="each once"):
        read_scored_ids(tmp_path / "a.csv")
    np.save(tmp_path / "b.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match="shape"):
        read_scores(tmp_path / "b.npy")
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="npy file of numbers"):
        read_scores(tmp_path / "o.npy")
