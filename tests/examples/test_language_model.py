"""The example and the page on language models: every command and snippet runs, and says what the page says."""

import contextlib
import importlib.util
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dpaudit.audit.inputs.score_files import read_scored_ids

ROOT = Path(__file__).parents[2]
SCRIPT, PAGE = ROOT / "examples/language_model.py", (ROOT / "docs/language-models.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("transformers", reason="needs the extra text")
    assert "dpaudit" not in SCRIPT.read_text()
    spec = importlib.util.spec_from_file_location("language_model_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


private = pytest.mark.filterwarnings(
    "ignore:Secure RNG turned off:UserWarning",
    "ignore:Full backward hook is firing:UserWarning",
    "ignore:Optimal order is the largest alpha:UserWarning",  # of the orders that Opacus looks through
    "ignore::DeprecationWarning",  # of transformers' own imports
    "ignore::FutureWarning",
)


@private
@pytest.mark.slow
def test_the_page_from_both_sides(
    tmp_path: Path, script: ModuleType, dpaudit: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """As the page has it, without noise: refuted; then with the noise of the claim, which is left alone."""
    make, plant, train, judge = (shlex.split(line)[1:] for line in block("sh").splitlines())
    with contextlib.chdir(tmp_path):
        script.main(make[1:])
    planted = dpaudit(*plant, "--seed", "5", folder=tmp_path)
    assert planted.returncode == 0, planted.stderr
    assert "at most epsilon 3.49" in planted.stderr
    assert "at most epsilon 3.49" in PAGE
    commitment = re.search("commitment ([0-9a-f]{64})", planted.stdout)
    assert commitment is not None
    judge = [commitment[1] if word == "COMMITMENT" else word for word in judge]
    for noise, status in ((["--noise-multiplier", "0"], 3), (["--epsilon", "1"], 0)):
        words = shlex.split(shlex.join(train[1:]).replace("--noise-multiplier 0", shlex.join(noise)))
        with contextlib.chdir(tmp_path):
            script.main(words)
        judged = dpaudit(*judge, folder=tmp_path)
        assert judged.returncode == status, judged.stderr


@private
@pytest.mark.slow
def test_a_checkpoint_in_a_local_folder(tmp_path: Path, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another architecture and its own tokenizer, offline: scores of the folder's weights, and of trained adapters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {letter: place for place, letter in enumerate("?▁abcdefghijklmnopqrstuvwxyz")}
    tokenizer = Tokenizer(models.BPE(letters, [], unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(tmp_path / "model")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=28, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=128,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    texts = ["the ferry sells bread", "a stray dog", "our mayor counts umbrellas before dawn"] * 30
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rows = [{"id": "x", "text": "a stray dog"}, {"id": "y", "text": "qzx wvk"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(script, "EPOCHS", 5)
    files = [str(tmp_path / name) for name in ("t.jsonl", "q.jsonl", "s.csv")]
    options = ["--noise-multiplier", "0", "--model", str(tmp_path / "model"), "--adapt", "q_proj,v_proj,lm_head"]
    script.main(["train", *files, *options, "--seed", "1"])
    before, after = (read_scored_ids(tmp_path / name) for name in ("initial.csv", "s.csv"))
    ids = torch.tensor([[letters[letter] for letter in "▁a▁stray▁dog"]])
    with torch.no_grad():
        logs = model(ids).logits.log_softmax(-1)
    wanted = float(logs[0, torch.arange(ids.shape[1] - 1), ids[0, 1:]].sum())
    assert before["x"] == pytest.approx(wanted, rel=1e-4)
    assert after["x"] - before["x"] > max(1.0, after["y"] - before["y"])


def test_log_probabilities_of_an_api_become_scores(tmp_path: Path) -> None:
    answers = {"a": [None, -1.5, -0.25], "b": [None, -20.0, -3.0]}
    lines = [json.dumps({"id": key, "token_logprobs": values}) for key, values in answers.items()]
    (tmp_path / "answers.jsonl").write_text("\n".join(lines) + "\n")
    with contextlib.chdir(tmp_path):
        exec(compile(block("python"), "snippet", "exec"), {})
    assert read_scored_ids(tmp_path / "scores.csv") == {"a": -1.75, "b": -23.0}


@private
@pytest.mark.slow
def test_the_corpus_follows_from_its_seed(tmp_path: Path, script: ModuleType) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        script.main(["corpus", str(tmp_path / name), "--records", "20", "--seed", str(seed)])
    same, again, other = ((tmp_path / name).read_text() for name in "abc")
    assert same == again != other
    ids = script.tokens([json.loads(line)["text"] for line in same.splitlines()], None)
    assert ids.shape == (20, script.LENGTH)
    assert np.all((ids.numpy() >= -1) & (ids.numpy() < script.WORDS))


def test_layers_that_the_model_lacks_end_the_training_before_a_file_is_written(
    tmp_path: Path, script: ModuleType
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"id": "0", "text": "a short text"}\n')
    words = ["train", str(texts), str(texts), str(tmp_path / "scores.csv"), "--epsilon", "1", "--seed", "1"]
    with pytest.raises(SystemExit, match="a layer named c_proj2 or head\\."):
        script.main([*words, "--adapt", "c_proj2,head"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.jsonl"]
