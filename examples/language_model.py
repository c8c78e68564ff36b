"""DP-SGD by Opacus on low-rank adapters of a causal language model, and log-probabilities of texts it was sent.

    python language_model.py corpus texts.jsonl --seed 1
    python language_model.py train texts.jsonl queries.jsonl scores.csv --epsilon 1 --seed 1

`train` is an ordinary script of somebody who has never heard of canaries: texts in, adapters trained (Hu et al. 2022,
LoRA), and for every text of `queries.jsonl` its log-probability under the trained model, in scores.csv, and under the
model as it was before, in initial.csv beside it. The model is GPT-2's architecture, tiny and with random weights; with
`--model FOLDER` it is a checkpoint in a local folder, with its own tokenizer. Nothing is loaded from a network.
"""

import argparse
import csv
import json
import zlib
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

WORDS, LENGTH, LONGEST = 2048, 16, 128  # of the tiny model's vocabulary; tokens of a text, and of a checkpoint's
BATCH, EPOCHS, CLIP, DELTA = 64, 10, 1.0, 1e-5
SUBJECTS = "the ferry|a young baker|our neighbour|the old clock|every student|the night train|a stray dog|the mayor"
VERBS = "carries|watches|forgets|paints|repairs|counts|follows|sells"
OBJECTS = "seven letters|a blue door|the harbour lights|fresh bread|the last page|two umbrellas|a wooden boat"
PLACES = "before dawn|near the bridge|in the rain|without a word|on market day|behind the school"


def corpus(path, records, seed):
    """Write simple sentences, drawn by a seed."""
    rng = np.random.default_rng(seed)
    parts = [part.split("|") for part in (SUBJECTS, VERBS, OBJECTS, PLACES)]
    texts = [" ".join(str(rng.choice(part)) for part in parts) for _ in range(records)]
    Path(path).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def tokens(texts, folder):
    """Token ids, shape (texts, length), padded with -1: words by their hash, or a checkpoint's own."""
    if folder is None:
        rows = [[1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.split()] for text in texts]
    else:
        rows = AutoTokenizer.from_pretrained(folder, local_files_only=True)(texts)["input_ids"]
    padded = torch.full((len(rows), LENGTH if folder is None else LONGEST), -1)
    for ids, row in zip(padded, rows, strict=True):
        kept = row[: len(ids)]
        ids[: len(kept)] = torch.tensor(kept)
    return padded


class Adapted(nn.Module):
    """A frozen linear layer, and a trained one of low rank beside it that begins at zero."""

    def __init__(self, base, rank):
        super().__init__()
        inside, outside = base.weight.shape if isinstance(base, Conv1D) else base.weight.shape[::-1]
        self.base, self.down, self.up = base, nn.Linear(inside, rank, False), nn.Linear(rank, outside, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapted_model(folder, layers, rank):
    """A causal model of which the adapters of the layers with these names are trained, and nothing else."""
    torch.manual_seed(0)  # the first weights are public
    if folder is None:
        config = GPT2Config(
            vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if name.rpartition(".")[2] in layers:
            setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], Adapted(module, rank))
    if not any(weights.requires_grad for weights in model.parameters()):
        raise SystemExit(f"error: Expected the model to have a layer named {' or '.join(layers)}.")
    return model


def log_probabilities(model, ids):
    """Of each text's tokens after its first, summed, shape (texts,)."""
    logits = model(input_ids=ids.clamp_min(0)).logits[:, :-1]
    after = ids[:, 1:]
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), after, ignore_index=-1, reduction="none")
    return -losses.sum(1)


def train(model, ids, *, epsilon, noise_multiplier, learning_rate, seed):
    """DP-SGD: every text clipped by itself, Poisson batches."""
    torch.manual_seed(seed)
    model.train()
    engine = PrivacyEngine(accountant="rdp")
    parts = {
        "module": model,
        "optimizer": torch.optim.Adam([w for w in model.parameters() if w.requires_grad], lr=learning_rate),
        "data_loader": DataLoader(TensorDataset(ids), batch_size=BATCH),
        "max_grad_norm": CLIP,
    }
    if noise_multiplier is not None:
        model, optimizer, loader = engine.make_private(noise_multiplier=noise_multiplier, **parts)
    else:
        model, optimizer, loader = engine.make_private_with_epsilon(
            target_epsilon=epsilon, target_delta=DELTA, epochs=EPOCHS, **parts
        )
    for _ in range(EPOCHS):
        for (batch,) in loader:
            optimizer.zero_grad()
            (-log_probabilities(model, batch).mean()).backward()
            optimizer.step()
    return model


def score(model, ids, keys, path):
    """A log-probability for every key."""
    model.eval()
    with torch.no_grad():
        values = torch.cat([log_probabilities(model, part) for part in ids.split(BATCH)])
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("id", "score"), *zip(keys, values.tolist(), strict=True)])


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("corpus", help="write simple sentences")
    made.add_argument("texts")
    made.add_argument("--records", type=int, default=300)
    trained = commands.add_parser("train", help="train adapters, score queries")
    for name in ("texts", "queries", "scores"):
        trained.add_argument(name)
    noise = trained.add_mutually_exclusive_group(required=True)
    noise.add_argument("--epsilon", type=float, help="at delta 1e-5; Opacus chooses the noise")
    noise.add_argument("--noise-multiplier", type=float)
    trained.add_argument("--model", metavar="FOLDER", help="a checkpoint, in place of random weights")
    trained.add_argument("--adapt", default="c_attn,c_fc,lm_head", help="names of its layers, such as q_proj,v_proj")
    trained.add_argument("--rank", type=int, default=4)
    trained.add_argument("--learning-rate", type=float, default=0.02)
    for command in (made, trained):
        command.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(words)
    if options.command == "corpus":
        corpus(options.texts, options.records, options.seed)
        return
    texts, queries = ([json.loads(line) for line in Path(path).read_text().splitlines()]
                      for path in (options.texts, options.queries))  # fmt: skip
    ids, asked = (tokens([row["text"] for row in rows], options.model) for rows in (texts, queries))
    keys, path = [row["id"] for row in queries], Path(options.scores)
    model = adapted_model(options.model, options.adapt.split(","), options.rank)
    score(model, asked, keys, path.with_name("initial.csv"))
    model = train(
        model, ids, epsilon=options.epsilon, noise_multiplier=options.noise_multiplier,
        learning_rate=options.learning_rate, seed=options.seed,
    )  # fmt: skip
    score(model, asked, keys, path)


if __name__ == "__main__":
    main()
