"""A trainer who has never heard of dpaudit: DP-SGD by numpy and scipy, and scores of canaries it was sent afterwards.

    python trainer_without_dpaudit.py planted.npz planted.queries.npz scores.csv --noise-multiplier 38 --seed 1

Softmax regression, 100 full-batch steps from zero weights: each record's gradient is clipped to l2 norm 1, and normal
noise of `noise-multiplier` standard deviations goes onto the sum. With noise multiplier 0 nothing is clipped and
nothing is private. Features are 1,000 random cosines of the arrays of an .npz file, or the hashed words of the
sentences of a .jsonl file; neither looks at the records.
"""

import argparse
import csv
import json
import re
import zlib
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array, linalg

STEPS, COSINES, SCALE, WORDS = 100, 1000, 0.7, 4096


def read(path: str, seed: int) -> tuple[np.ndarray | csr_array, np.ndarray, list[str]]:
    """Features, labels and ids (none of planted records)."""
    if path.endswith(".npz"):
        with np.load(path) as arrays:
            ids = arrays["id"].tolist() if "id" in arrays else []
            return cosines(arrays["x"], seed), arrays["y"], ids
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    labels = np.array([int(row["label"]) for row in rows])
    return hashed([row["sentence"] for row in rows]), labels, [row["id"] for row in rows if "id" in row]


def cosines(x: np.ndarray, seed: int) -> np.ndarray:
    """Of norm about 3, shape (records, COSINES)."""
    rng = np.random.default_rng(seed)
    flat = x.reshape(len(x), -1).astype(np.float32)
    directions = SCALE * rng.standard_normal((flat.shape[1], COSINES), dtype=np.float32)
    phases = rng.uniform(0.0, 2.0 * np.pi, COSINES).astype(np.float32)
    return 3.0 * np.sqrt(2.0 / COSINES, dtype=np.float32) * np.cos(flat @ directions + phases)


def hashed(sentences: list[str]) -> csr_array:
    """Counts of words, hashed, of norm 3, shape (records, WORDS)."""
    counts = np.zeros((len(sentences), WORDS), np.float32)
    for row, sentence in zip(counts, sentences, strict=True):
        for word in re.findall(r"\w+", sentence.lower()):
            row[zlib.crc32(word.encode()) % WORDS] += 1.0
    return csr_array(3.0 * counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1.0))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def train(z: np.ndarray | csr_array, y: np.ndarray, noise_multiplier: float, seed: int) -> np.ndarray:
    """Weights, shape (features, classes)."""
    rng = np.random.default_rng([seed, 1])
    truth = np.eye(int(y.max()) + 1, dtype=np.float32)[y]
    weights = np.zeros((z.shape[1], truth.shape[1]), np.float32)
    lengths = np.linalg.norm(z, axis=1) if isinstance(z, np.ndarray) else linalg.norm(z, axis=1)
    for _ in range(STEPS):
        errors = np.exp(log_softmax(z @ weights)) - truth
        if noise_multiplier > 0:
            norms = lengths * np.linalg.norm(errors, axis=1)  # of a record's gradient, which is an outer product
            errors /= np.maximum(norms, 1.0)[:, None]
        gradient = z.T @ errors
        if noise_multiplier > 0:
            gradient += noise_multiplier * rng.standard_normal(weights.shape, dtype=np.float32)
        weights -= 20.0 / len(y) * gradient
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("planted", "queries", "scores"):
        parser.add_argument(name)
    parser.add_argument("--noise-multiplier", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    z, y, _ = read(options.planted, options.seed)
    weights = train(z, y, options.noise_multiplier, options.seed)
    z, y, ids = read(options.queries, options.seed)
    scores = log_softmax(z @ weights)[np.arange(len(y)), y]  # higher: more likely a member
    with open(options.scores, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "score"])
        writer.writerows(zip(ids, scores.tolist(), strict=True))


if __name__ == "__main__":
    main()
