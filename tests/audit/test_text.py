"""Audits of text classifiers: sentences as token ids, canary sentences, and what an audit finds with them."""

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dpaudit.audit.attacks import control, pilot, text_canaries
from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.datasets import Dataset, load
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.formats import HashedTokens
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.runner import run
from dpaudit.audit.settings import Settings
from dpaudit.audit.trials.blocks import Trainer
from dpaudit.mechanisms.learning.spec import DPSGDSpec, Pool, TrainedModels
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify import check

textattack = pytest.mark.skipif(find_spec("textattack") is None, reason="the extra text is not installed")
NOUNS = ("film", "plot", "cast", "story", "score", "script", "camera", "ending", "director", "dialogue")
ADJECTIVES = (("dull", "awful", "tedious", "clumsy", "bleak"), ("great", "warm", "brilliant", "funny", "lovely"))


def sentences(records: int) -> list[tuple[str, int]]:
    """Sentences whose adjective decides on the label."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, records)
    return [
        (f"the {rng.choice(NOUNS)} is {rng.choice(ADJECTIVES[label])} and the {rng.choice(NOUNS)} too", int(label))
        for label in labels
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 60 sentences with labels."""
    home = tmp_path_factory.mktemp("sentences")
    rows = [f"{text}\t{label}" for text, label in sentences(60)]
    (home / "mine.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return home


def recipe(folder: Path, **changes: object) -> Recipe:
    table = {
        "algorithm": "dp-sgd",
        "steps": 4,
        "dataset": {"file": "mine.tsv", "tokens": {"length": 10}},
        "architecture": {"name": "bag-of-embeddings", "kwargs": {"vocabulary": 200, "width": 4}},
        "mechanism": {"name": "gaussian", "noise_multiplier": 2.0, "clip": 0.3},
        "sampling": {"kind": "none"},
        "optimizer": {"learning_rate": 3.0},
        "claim": {"epsilon": 4.4, "delta": 1e-5},
    }
    return Recipe.from_dict({**table, **changes}, folder=folder)


def specification(folder: Path, **changes: object) -> tuple[DPSGDSpec, Dataset]:
    made = recipe(folder, **changes)
    data = made.load_dataset()
    spec = made.spec(data)
    assert isinstance(spec, DPSGDSpec)
    return spec, data


def test_a_file_of_sentences_is_read_as_words_or_as_token_ids(folder: Path) -> None:
    words, ids = load(folder / "mine.tsv"), load(folder / "mine.tsv", tokens=HashedTokens(10), records=20)
    assert (words.x.shape, words.tokens, ids.x.shape, ids.tokens) == ((60, 1024), False, (20, 10), True)
    assert words.texts == tuple(text for text, _ in sentences(60))
    assert words.y.tolist() == [label for _, label in sentences(60)]
    assert ids.texts is not None
    assert ids.encode is not None
    assert np.array_equal(ids.encode(ids.texts), ids.x)
    spelled: dict[float, set[str]] = {}
    for text, row in zip(ids.texts, ids.x, strict=True):
        assert (row > 0).sum() == len(text.split())
        for word, number in zip(text.split(), row, strict=False):
            spelled.setdefault(float(number), set()).add(word)
    assert all(len(same) == 1 for same in spelled.values())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("sentence\tlabel\na film\tgood\na plot\t1\n", "integer labels from 0, not the label 'good'"),
        ("sentence\tlabel\na film\t1\n", "at least two records with integer labels from 0, not 1 records"),
        ("sentence\tlabel\na film\na plot\t1\n", "the columns sentence, label in every row"),
        ("text\tlabel\na film\t0\na plot\t1\n", "the columns sentence, label in every row"),
        ("", "the columns sentence, label in every row"),
    ],
)
def test_a_file_that_holds_no_sentences_is_refused(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "mine.tsv").write_text(content)
    with pytest.raises(InputError, match=reason):
        load(tmp_path / "mine.tsv")


def test_networks_of_features_and_of_tokens_are_told_apart(folder: Path) -> None:
    with pytest.raises(InputError, match="tokens only with sentences"):
        load("digits", tokens=HashedTokens(5))
    for changes, reason in (
        ({"architecture": {"name": "linear"}}, "'linear' to read features, not tokens"),
        ({"dataset": {"file": "mine.tsv"}}, r"'bag-of-embeddings' to have \[dataset.tokens\]"),
        ({"architecture": {"name": "encoder"}}, "Expected kwargs.folder"),
        ({"architecture": {"name": "transformer", "kwargs": {"width": 5}}}, "width=5 to be a multiple of heads=2"),
    ):
        with pytest.raises(InputError, match=reason):
            specification(folder, **changes)


def small_data(folder: Path) -> Dataset:
    return load(folder / "mine.tsv", tokens=HashedTokens(10))


def test_without_the_extra_one_line_says_what_to_install(folder: Path) -> None:
    text_canaries._augmenter.cache_clear()
    with (
        mock.patch.dict(sys.modules, {"textattack": None, "textattack.augmentation": None}),
        pytest.raises(InputError, match=r"Expected the package textattack .*pip install 'dpaudit\[text\]'") as error,
    ):
        text_canaries.misspelled(["a film"], 1)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="'digits' to hold sentences"):
        text_canaries.text_canaries(load("digits"), 2, 1)


@textattack
def test_misspelling_is_a_function_of_the_seed_and_leaves_the_process_alone(tmp_path: Path) -> None:
    texts = [text for text, _ in sentences(12)]
    text_canaries._augmenter.cache_clear()

    def states() -> list[object]:
        numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
        return [random.getstate(), str(numpy_state), torch.get_rng_state().tolist(), dict(os.environ)]

    with mock.patch.dict(os.environ, {"HOME": str(tmp_path)}):
        before = states()
        first = text_canaries.misspelled(texts, 1)
        assert states() == before
    random.random()
    assert text_canaries.misspelled(texts, 1) == first
    assert text_canaries.misspelled(texts, 2) != first
    pairs = [(old.split(), new.split()) for old, new in zip(texts, first, strict=True)]
    assert all(len(old) == len(new) and not any(map(str.__eq__, old, new)) for old, new in pairs)
    assert {path.name for path in tmp_path.iterdir()} <= {".config"}  # matplotlib's
    assert text_canaries.misspelled(["", "?"], 1) == ["", "?"]
    with mock.patch.dict(os.environ, {"TMPDIR": str(tmp_path)}), mock.patch("tempfile.tempdir", None):
        text_canaries.misspelled(["\u597d\u7535\u5f71"], 1)
    assert not (tmp_path / "jieba.cache").exists()


@textattack
def test_canary_sentences_have_words_of_their_own_and_labels_by_chance(folder: Path) -> None:
    data = small_data(folder)
    x, y = text_canaries.text_canaries(data, 200, 1)
    again, other = text_canaries.text_canaries(data, 200, 1), text_canaries.text_canaries(data, 200, 2)
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])
    assert not np.array_equal(x, other[0])
    assert (x.shape, x.dtype, y.shape) == ((200, 10), np.float32, (200,))
    # 200 fair coins: 5 standard deviations are 35
    assert abs(int(y.sum()) - 100) < 36
    known = np.isin(x, data.x) | (x == 0)
    assert known[:, :8].mean() < 0.2
    features = load(folder / "mine.tsv")
    assert text_canaries.text_canaries(features, 3, 1)[0].shape == (3, 1024)


@textattack
def test_the_canary_of_a_game_is_rare(folder: Path) -> None:
    data = small_data(folder)
    for seed in (1, 2, 3):
        canary, sentence = text_canaries.sentence_canary(data, seed)
        assert not np.isin(canary[canary > 0], data.x).any()
        assert data.encode is not None
        assert np.array_equal(data.encode([sentence])[0], canary)


def sure_of(label: int) -> Trainer:
    """A loop whose first weights, and all later ones, are sure of a label."""

    def loop(spec: Any, *args: Any, noise_factor: float = 1.0, **named: Any) -> TrainedModels:
        models = train(replace(spec, learning_rate=1e-30), *args, **named)
        [bias] = [weight for weight in models.parameters.values() if weight.shape[1:] == (2,)]
        bias[:, label] += 6.0
        return models

    return loop


@textattack
def test_its_label_is_one_that_the_training_finds_unlikely(folder: Path) -> None:
    """The recipe's first weights chose it, which are not those of an own loop: half of its noise went unseen."""
    made = recipe(folder, architecture={"name": "transformer", "kwargs": {"vocabulary": 200, "width": 4}})
    data = made.load_dataset()
    verdict = check(made.with_dimension(10).claim_object())
    rare = replace(data, y=np.where(np.arange(len(data.y)) % 20 == 0, 0, 1))
    for trainer, dataset, expected in ((sure_of(0), data, {1}), (sure_of(1), data, {0}), (train, rare, {0})):
        spec = replace(made.spec(dataset), steps=100 if trainer is train else 4, init_seed=1)
        settings = Settings(seed=1, device="cpu", workers=1, trainer=trainer)
        audit = Audit(Bundle("", "", {}, made), spec, dataset, verdict, settings)
        built = CLIPBKD.build(spec, audit)
        assert len(built) == 5
        assert {candidate.arms.label for candidate in built} == expected


TOML = """
algorithm = "dp-sgd"
steps = 4
dataset = {file = "mine.tsv", tokens = {length = 10}}
architecture = {name = "NAME", kwargs = {vocabulary = 200, width = 4}}
mechanism = {name = "gaussian", noise_multiplier = 2.0, clip = 0.3}
sampling = {kind = "none"}
optimizer = {learning_rate = 3.0}
claim = {epsilon = 4.4, delta = 1e-5}
"""


@textattack
@pytest.mark.slow
@pytest.mark.parametrize("name", ["bag-of-embeddings", "transformer"])
def test_a_text_classifier_is_trained_and_audited_from_the_command_line(
    name: str, folder: Path, dpaudit: Callable[..., CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot, "PAIRS", 3)
    monkeypatch.setattr(control, "NO_NOISE_MODELS", 10)
    (folder / f"{name}.toml").write_text(TOML.replace("NAME", name))
    model = folder / f"{name}.pt"
    assert dpaudit("train", folder / f"{name}.toml", "--out", model, "--seed", "1").returncode == 0
    result = dpaudit(
        "run", model, "--trials", "10", "--seed", "1", "--json", "-", "--out", folder / name, folder=folder
    )
    assert result.returncode == 0, result.stderr
    (attack,) = [attack for attack in json.loads(result.stdout)["attacks"] if attack["name"] == "clipbkd"]
    assert attack["trials"] == 10
    assert attack["arms"]["sentence"].split()


@textattack
@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_clipbkd_by_a_sentence_sees_nearly_all_there_is_and_only_that(
    adjacency: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mu is 1 for one record in or out, 2 for one replaced; of 60 + 60 scores it is known to about 0.25."""
    monkeypatch.setattr(pilot, "PAIRS", 4)
    monkeypatch.setattr(control, "NO_NOISE_MODELS", 10)
    size, epsilon = {"add-remove": (1.0, 4.4), "replace-one": (2.0, 10.0)}[adjacency]
    claim = {"epsilon": epsilon, "delta": 1e-5, "adjacency": adjacency}
    for defect in ("noise-for-the-mean-on-the-sum", None):
        made = recipe(folder, claim=claim, **({} if defect is None else {"planted_defect": defect}))
        data = made.load_dataset()
        spec = made.spec(data)
        made = made.with_dimension(spec.mechanism.dimension or 0)
        models = train(spec, Pool(data.x, data.y), np.ones((1, len(data.y)), dtype=bool), [1])
        bundle = Bundle("", "", models.state_dict(0), made, None, models.ledger)
        silent = defect is None  # what refutes needs no control
        trials = 60 if silent else 20
        settings = Settings(seed=1, trials=trials, device="cpu", workers=1, attacks=("clipbkd",), control=silent)
        result = run(bundle, data, settings)
        assert result.verdict == ("not_refuted" if defect is None else "refuted"), defect
    assert result.attacks[0].auc is not None
    assert np.sqrt(2.0) * norm.ppf(result.attacks[0].auc) == pytest.approx(size, abs=0.5 * size)


@pytest.mark.slow
@textattack
def test_canary_sentences_in_one_run_are_loud_without_noise_and_silent_with_it(folder: Path) -> None:
    """The claim is nearly tight; the bound of a correct twin exceeds it with probability 0.05."""
    noisy = {
        "mechanism": {"name": "gaussian", "noise_multiplier": 8.0, "clip": 0.3},
        "claim": {"epsilon": 1.0, "delta": 1e-5},
    }
    for defect, verdict in (
        ("noise-for-the-mean-on-the-sum", "refuted"),
        (None, "inconclusive"),
    ):  # one run of 50 canaries says nothing by its silence
        made = recipe(folder, **noisy, **({} if defect is None else {"planted_defect": defect}))
        data = made.load_dataset()
        spec = made.spec(data)
        made = made.with_dimension(spec.mechanism.dimension or 0)
        models = train(spec, Pool(data.x, data.y), np.ones((1, len(data.y)), dtype=bool), [1])
        bundle = Bundle("", "", models.state_dict(0), made, None, models.ledger)
        settings = Settings(seed=1, trials=50, device="cpu", workers=1, attacks=("one-run-sentences",))
        result = run(bundle, data, settings)
        assert (result.verdict, result.attacks[0].arms["coins"]) == (verdict, 100)
        assert result.claim_check.verdict == "certified"
