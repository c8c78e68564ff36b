"""Encoders and tokenizers from a local folder are data, and train privately; no network, nothing unpickled."""

import json
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.huggingface import folder_encoder, folder_tokens
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.trials.keys import evidence_key, fingerprint
from dpaudit.mechanisms.learning.spec import DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import logits, train

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="the extra text is not installed")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "plot", "a", "the"]
SENTENCES = ["a good film", "the bad plot", "good plot", "bad film", "the film", "a bad bad film"]
LABELS = [1, 0, 1, 0, 1, 0]


@pytest.fixture(scope="module")
def transformers() -> Any:
    """The package: a second that no other test should wait for."""
    return import_module("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Path:
    """A tiny random BERT and its tokenizer, as `save_pretrained` leaves them, and sentences beside them."""
    home = tmp_path_factory.mktemp("encoder")
    (home / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(vocab_file=str(home / "vocab.txt")).save_pretrained(home / "bert")
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.BertModel(config).save_pretrained(home / "bert")
    rows = [f"{sentence}\t{label}" for sentence, label in zip(SENTENCES, LABELS, strict=True)]
    (home / "mine.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    return home


def recipe(folder: Path | None, **kwargs: int) -> Recipe:
    table = {
        "algorithm": "dp-sgd",
        "steps": 3,
        "dataset": {"file": "mine.tsv", "tokens": {"length": 6, "folder": "bert"}},
        "architecture": {"name": "encoder", "kwargs": {"folder": "bert", **kwargs}},
        "mechanism": {"name": "gaussian", "noise_multiplier": 0.5, "clip": 0.1},
        "sampling": {"kind": "none"},
        "optimizer": {"learning_rate": 0.5, "init": "built"},
        "claim": {"epsilon": 8.0, "delta": 1e-5},
    }
    return Recipe.from_dict(table, folder=folder)


def specification(folder: Path, **kwargs: int) -> tuple[DPSGDSpec, Pool]:
    made = recipe(folder, **kwargs)
    data = made.load_dataset()
    spec = made.spec(data)
    assert isinstance(spec, DPSGDSpec)
    return spec, Pool(data.x, data.y)


def test_ids_are_those_of_its_tokenizer_moved_by_one(folder: Path) -> None:
    _, pool = specification(folder)
    assert [WORDS[int(i) - 1] for i in pool.x[0] if i] == ["[CLS]", "a", "good", "film", "[SEP]"]
    assert [WORDS[int(i) - 1] for i in pool.x[5]] == ["[CLS]", "a", "bad", "bad", "film", "[SEP]"]


@pytest.mark.parametrize("trained_layers", [None, 0, 1])
def test_it_trains_from_its_weights_and_what_is_frozen_is_no_part_of_the_state(
    folder: Path, transformers: Any, trained_layers: int | None
) -> None:
    kwargs = {} if trained_layers is None else {"trained_layers": trained_layers}
    spec, pool = specification(folder, **kwargs)
    before = transformers.BertModel.from_pretrained(folder / "bert").state_dict()
    still = replace(spec, learning_rate=1e-30)
    everyone = np.ones((1, len(pool.y)), dtype=bool)
    first, models = train(still, pool, everyone, [1]), train(spec, pool, everyone, [1])
    trained = {name.removeprefix("encoder.") for name in models.parameters if name.startswith("encoder.")}
    expected = {None: "", 0: "none", 1: "encoder.layer.1."}[trained_layers]
    assert trained == {name for name in before if name.startswith(expected) and not name.startswith("pooler.")}
    for name in trained:
        torch.testing.assert_close(first.parameters[f"encoder.{name}"][0], before[name], atol=1e-25, rtol=0)
        assert not torch.equal(models.parameters[f"encoder.{name}"][0], before[name])
    # outputs are the encoder's own at the first token, by the library's own call, and the new layer
    rows = transformers.BertTokenizerFast.from_pretrained(folder / "bert")(SENTENCES, padding=True, return_tensors="pt")
    states = transformers.BertModel.from_pretrained(folder / "bert").eval()(**rows).last_hidden_state[:, 0]
    weight, bias = first.parameters["classifier.weight"][0], first.parameters["classifier.bias"][0]
    torch.testing.assert_close(logits(first, pool.x)[0], (states @ weight.T + bias).detach(), atol=1e-5, rtol=1e-4)


def test_what_is_no_such_folder_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    def copy(name: str, *, without: str = "", **files: str) -> Path:
        home = tmp_path / name
        (home / "bert").mkdir(parents=True)
        (home / "mine.tsv").write_bytes((folder / "mine.tsv").read_bytes())
        for file in (folder / "bert").iterdir():
            if file.name != without:
                (home / "bert" / file.name).write_bytes(file.read_bytes())
        for file_name, text in files.items():
            (home / "bert" / file_name.replace("_json", ".json")).write_text(text)
        return home

    config = json.loads((folder / "bert/config.json").read_text())
    remote = json.dumps({**config, "model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}})
    more = json.dumps({**config, "num_hidden_layers": 3})
    elsewhere = json.dumps({**config, "transformers_weights": str(folder / "bert/model.safetensors")})
    for home, reason in (
        (copy("weights", without="model.safetensors"), "model.safetensors to be a file: it does not exist"),
        (copy("tokenizer", without="tokenizer.json"), "tokenizer.json to be a file: it does not exist"),
        (copy("code", config_json=remote), "to hold an encoder: .*contains custom code"),
        (copy("more", config_json=more), "model.safetensors to hold encoder.layer.2.attention"),
        (copy("broken", tokenizer_json="{"), "to hold a fast tokenizer: JSONDecodeError"),
        (copy("elsewhere", config_json=elsewhere), "config.json without transformers_weights: model.safetensors alone"),
        (copy("deep", config_json=json.dumps({**config, "num_hidden_layers": 10**8})), "=100000000 in .* at most 1000"),
        (copy("wide", config_json=json.dumps({**config, "vocab_size": 2 * 10**10})), "weights of config.json: it has"),
        (copy("adapter", adapter_config_json="{}"), "bert without adapter_config.json: merge the adapter"),
    ):
        with pytest.raises(InputError, match=reason) as error:
            specification(home)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="trained_layers=3 to be at most the encoder's 2"):
        specification(folder, trained_layers=3)
    made = recipe(None)
    with pytest.raises(InputError, match=r"'bert' to be named by a recipe that you give \(--recipe\)"):
        made.load_dataset(str(folder / "mine.tsv"))


@pytest.mark.parametrize("key", ["_attn_implementation", "_attn_implementation_internal"])
def test_no_kernel_is_fetched_that_a_configuration_names(
    folder: Path, tmp_path: Path, transformers: Any, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Where the package `kernels` is installed the library runs compiled code from the network for such a name."""
    monkeypatch.setattr(transformers.modeling_utils, "load_and_register_kernel", lambda name: pytest.fail(name))
    copytree(folder / "bert", tmp_path / "bert")
    config = json.loads((folder / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps({**config, key: "somebody/kernel"}))
    encoder = folder_encoder(tmp_path / "bert")(6, 2)
    assert encoder(torch.ones(1, 6)).shape == (1, 2)


def test_a_tokenizer_of_more_tokens_than_the_encoder_has_is_refused(folder: Path) -> None:
    encoder = folder_encoder(folder / "bert")(6, 2)
    encoder(torch.full((1, 6), float(len(WORDS))))
    with pytest.raises(InputError, match=f"a tokenizer of the encoder's {len(WORDS)} tokens: it gives id {len(WORDS)}"):
        encoder(torch.full((1, 6), len(WORDS) + 1.0))


def test_sentences_are_no_longer_than_positions_that_begin_after_the_padding(tmp_path: Path, transformers: Any) -> None:
    config = transformers.RobertaConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=10, pad_token_id=1,
    )  # fmt: skip
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    encoder = folder_encoder(tmp_path)
    assert encoder(8, 2)(torch.ones(1, 8)).shape == (1, 2)
    with pytest.raises(InputError, match="length=9 to be at most the encoder's 8"):
        encoder(9, 2)


def test_weights_that_are_no_numbers_are_named(tmp_path: Path, transformers: Any) -> None:
    model = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    )
    model.encoder.layer[0].output.dense.weight.data[0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"finite numbers, unlike encoder.layer.0.output.dense.weight"):
        folder_encoder(tmp_path)


def test_evidence_is_the_same_wherever_the_folder_lies(folder: Path, tmp_path: Path) -> None:
    """Looks were counted anew in every folder, and trials kept in one were not found in another."""
    copytree(folder, tmp_path / "moved")
    here, moved = (specification(home)[0] for home in (folder, tmp_path / "moved"))
    for key in (fingerprint, evidence_key):
        assert key({"spec": here}) == key({"spec": moved})
    weights = tmp_path / "moved/bert/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert evidence_key({"spec": here}) != evidence_key({"spec": specification(tmp_path / "moved")[0]})


def test_a_configuration_may_ask_for_tuples(folder: Path, tmp_path: Path) -> None:
    copytree(folder / "bert", tmp_path / "bert")
    config = json.loads((folder / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps({**config, "return_dict": False}))
    assert folder_encoder(tmp_path / "bert")(6, 2)(torch.ones(1, 6)).shape == (1, 2)


def test_a_model_whose_first_token_sees_itself_alone_is_no_encoder(tmp_path: Path, transformers: Any) -> None:
    """All sentences were one to it, and every audit of it silent."""
    sizes = {"vocab_size": 8, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    transformers.GPT2Model(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="whose first token sees the others, not a causal 'gpt2'"):
        folder_encoder(tmp_path)


def test_a_tokenizer_pads_and_cuts_on_the_right_and_leaves_room_for_words(folder: Path, tmp_path: Path) -> None:
    copytree(folder / "bert", tmp_path / "bert")
    path = tmp_path / "bert/tokenizer.json"
    document = json.loads(path.read_text())
    document["padding"] = {
        "strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }  # fmt: skip
    document["truncation"] = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(document))
    rows = folder_tokens(tmp_path / "bert", 4)(["good", "a bad film"])
    words = [[WORDS[int(i) - 1] if i else "" for i in row] for row in rows]
    assert words == [["[CLS]", "good", "[SEP]", ""], ["[CLS]", "a", "bad", "[SEP]"]]
    with pytest.raises(InputError, match=r"tokens.length=2 to be above the 2 special tokens of "):
        folder_tokens(tmp_path / "bert", 2)
