"""Canaries of a named kind, made from records: what is unusual enough to be remembered.

Kinds by Nasr et al. (2023) and Steinke et al. (2023): empty records, wrong and random labels, records from another law;
for text misspelled sentences (`audit/attacks/text_canaries.py`) and sentences of invented words (Carlini et al. 2019).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs.files import InputError

Records = NDArray[Any]
Labels = NDArray[np.int64]
KINDS = ("mislabelled", "random-label", "out-of-distribution", "blank", "text", "rare-tokens", "gradient")
TEXT_KINDS = ("text", "rare-tokens")
WORDS, LETTERS = 12, "abcdefghijklmnopqrstuvwxyz"  # of a sentence of invented words
_WORD = 9  # letters: 26^9 words, so that no two canaries share one


def craft_labels(kind: str, labels: Labels, classes: int, rng: np.random.Generator) -> Labels:
    """Labels of canaries: from the wrong classes for "mislabelled", by fair dice for all other kinds.

    Args:
        kind: One of KINDS.
        labels: Of the records that the canaries are made from, 0..classes-1.
        classes: At least 2.
        rng: Of the choice.
    """
    if kind == "mislabelled":
        return np.asarray((labels + rng.integers(1, classes, len(labels))) % classes, np.int64)
    return rng.integers(0, classes, len(labels))


def craft_arrays(kind: str, records: Records, rng: np.random.Generator, *, channels: int = 0) -> Records:
    """Arrays of canaries made from as many records.

    Args:
        kind: One of KINDS.
        records: Shape (canaries, ...); an axis is a feature, a pixel or the like.
        rng: Of the choice.
        channels: How many of the last axes belong to one pixel: they stay together.

    Raises:
        InputError: The kind is for text, or there are more blank canaries than features.
    """
    if kind in TEXT_KINDS:
        raise InputError(f"Expected kind={kind!r} only with sentences.")
    if kind == "blank":
        return blank(records)
    if kind == "out-of-distribution":
        return np.stack([scrambled(record, rng, channels=channels) for record in records])
    return records.copy()


def blank(records: Records, count: int | None = None) -> Records:
    """Empty records but for one feature each, as long as the median record; no two share a feature.

    Features that the records use least come first. In bytes the feature is as bright as a byte can be.

    Args:
        records: What is usual among them, shape (records, ...).
        count: Of canaries; None for as many as records.

    Raises:
        InputError: More canaries than features.
    """
    flat = records.reshape(len(records), -1).astype(np.float64)
    count, features = len(flat) if count is None else count, flat.shape[1]
    if count > features:
        raise InputError(f"Expected count={count} to be at most {features}: blank canaries have a feature each.")
    with np.errstate(over="ignore"):
        order = np.argsort((flat**2).sum(axis=0), kind="stable")[:count]
        length = float(np.median(np.linalg.norm(flat, axis=1))) or 1.0
    if not math.isfinite(length):
        raise InputError("Expected records for blank canaries whose length is a number: the median one is infinite.")
    if records.dtype.kind in "iu":
        length = min(round(length), np.iinfo(records.dtype).max)
    canaries = np.zeros((count, features))
    canaries[np.arange(count), order] = length
    return canaries.astype(records.dtype).reshape(count, *records.shape[1:])


def scrambled(record: Records, rng: np.random.Generator, *, channels: int = 0) -> Records:
    """A record with its features or pixels in random order: values as ever, and no likeness to any record.

    >>> sorted(scrambled(np.array([[1, 2], [3, 4]]), np.random.default_rng(0)).ravel().tolist())
    [1, 2, 3, 4]
    """
    pixels = math.prod(record.shape[: record.ndim - channels])
    flat = record.reshape(pixels, -1)
    return flat[rng.permutation(pixels)].reshape(record.shape)


def craft_sentences(kind: str, sentences: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Sentences of canaries made from as many sentences.

    "text" misspells every word (TextAttack), "rare-tokens" invents them, "out-of-distribution" draws words from all
    sentences; the other kinds leave sentences as they are.

    Raises:
        InputError: Another kind, or the extra `text` is not installed where it is needed.
    """
    if kind in ("mislabelled", "random-label"):
        return list(sentences)
    if kind == "rare-tokens":
        return [" ".join(_invented(rng) for _ in range(WORDS)) for _ in sentences]
    if kind == "out-of-distribution":
        words = [word for sentence in sentences for word in sentence.split()] or ["?"]
        return [" ".join(rng.choice(words, max(1, len(sentence.split())))) for sentence in sentences]
    if kind == "text":
        from dpaudit.audit.attacks.text_canaries import misspelled

        return misspelled(sentences, int(rng.integers(1 << 32)))
    raise InputError(f"Expected kind={kind!r} with sentences to be {', '.join(kind_names(text=True))}.")


def kind_names(*, text: bool) -> list[str]:
    """The kinds that apply to sentences, or to features and images."""
    return [kind for kind in KINDS if (kind not in ("blank", "gradient") if text else kind not in TEXT_KINDS)]


def _invented(rng: np.random.Generator) -> str:
    return "".join(LETTERS[letter] for letter in rng.integers(0, len(LETTERS), _WORD))
