"""Canary sentences: training sentences whose words TextAttack has misspelled until no other record has them.

Morris et al. (2020), "TextAttack: A Framework for Adversarial Attacks, Data Augmentation, and Adversarial Training in
NLP". The one file that imports textattack, when sentences are asked for (extra `text`). It needs no network, leaves
the process as it was but for the loaded modules, and writes into a temporary folder alone.
"""

import functools
import logging
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.audit.inputs.datasets import Dataset, Encoder
from dpaudit.audit.inputs.files import InputError

NO_TEXTATTACK = "Expected the package textattack for canary sentences: pip install 'dpaudit[text]'."
CANDIDATES = 64  # sentences that the canary of a game is chosen from
_STREAM = 0x74657874  # keeps the choice of sentences apart from every other stream with the same root seed
# which textattack looks for in nltk's data when it is imported, and downloads where it may
STOPWORDS = ("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "in", "is", "it", "of", "on", "or", "the",
             "to", "was", "with")  # fmt: skip


def misspelled(sentences: Sequence[str], seed: int) -> list[str]:
    """The sentences with every word misspelled by chance, the same for the same seed.

    A letter is swapped with its neighbour, left out, put in, or replaced by another or by a neighbour on the keyboard;
    words of one letter, numbers and emoji may stay.
    TextAttack is asked word by word: for whole sentences it takes fifty times as long.

    Args:
        sentences: What is misspelled, each on its own.
        seed: Of the choices, at least 0.

    Raises:
        InputError: The extra `text` is not installed.
    """
    augmenter = _augmenter()
    with _own_random_state(seed):
        return [" ".join(str(augmenter.augment(word)[0]) for word in sentence.split()) for sentence in sentences]


def sentences_of(dataset: Dataset) -> tuple[tuple[str, ...], Encoder]:
    """The sentences that canaries are made of, and how they become rows.

    Raises:
        InputError: The data are no sentences, or the extra `text` is not installed.
    """
    if dataset.texts is None or dataset.encode is None:
        raise InputError(f"Expected dataset={dataset.name!r} to hold sentences for canary sentences.")
    if "textattack" not in sys.modules and find_spec("textattack") is None:
        raise InputError(NO_TEXTATTACK)
    return dataset.texts, dataset.encode


def text_canaries(dataset: Dataset, count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Misspelled training sentences with labels by fair dice, as rows such as those of the data set.

    Args:
        dataset: Of sentences.
        count: How many, at least 1.
        seed: Of sentences, misspellings and labels.

    Returns:
        Features or token ids, shape (count, inputs), and labels, shape (count,).

    Raises:
        InputError: The data are no sentences, or the extra `text` is not installed.
    """
    texts, encode = sentences_of(dataset)
    rng = np.random.default_rng([seed, _STREAM])
    chosen = rng.choice(len(texts), count, replace=count > len(texts))
    sentences = misspelled([texts[record] for record in chosen], int(rng.integers(1 << 32)))
    return encode(sentences), rng.integers(0, dataset.classes, count)


def sentence_canary(dataset: Dataset, seed: int) -> tuple[NDArray[np.float32], str]:
    """The canary of a game: of many misspelled sentences the one of the rarest words.

    Args:
        dataset: Of token ids.
        seed: Of the sentences.

    Returns:
        Its token ids, shape (inputs,), and the sentence.

    Raises:
        InputError: The data are no sentences, or the extra `text` is not installed.
    """
    texts, encode = sentences_of(dataset)
    rng = np.random.default_rng([seed, _STREAM])
    chosen = rng.choice(len(texts), min(CANDIDATES, len(texts)), replace=False)
    sentences = misspelled([texts[record] for record in chosen], int(rng.integers(1 << 32)))
    rows = encode(sentences)
    best = rarest(dataset, rows)
    return rows[best], sentences[best]


def rarest(dataset: Dataset, rows: NDArray[np.float32]) -> int:
    """Which of some rows of token ids shares the smallest part of its words with the training records.

    Of equal rows that with the fewest different words, whose gradient is spread over the fewest embeddings, is best.

    Args:
        dataset: Of token ids.
        rows: Shape (candidates, inputs).
    """
    used = np.unique(dataset.x)

    def order(row: NDArray[np.float32]) -> tuple[float, int]:
        words = row[row > 0]
        return (float(np.isin(words, used).mean()) if len(words) else 1.0, len(np.unique(words)))

    return min(range(len(rows)), key=lambda place: order(rows[place]))


@functools.lru_cache(maxsize=1)
def _augmenter() -> Any:
    """TextAttack's augmenter, imported with everything it keeps or looks up in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder, _own_random_state(0), _own_environment(), warnings.catch_warnings():
        # the libraries under textattack warn of each other: of SWIG's types, and of names and settings that are to go
        warnings.simplefilter("ignore")
        words, done = Path(folder, "corpora/stopwords/english"), Path(folder, "post_install_check_3")
        words.parent.mkdir(parents=True)
        words.write_text("\n".join(STOPWORDS) + "\n")
        done.touch()  # or textattack would download nltk's data
        os.environ.update(
            NLTK_DATA=folder, TA_CACHE_DIR=folder, FLAIR_CACHE_ROOT=folder, HF_HOME=folder, HF_HUB_OFFLINE="1"
        )
        if "nltk" in sys.modules:  # which has read its variable long since
            sys.modules["nltk"].data.path.insert(0, folder)
        try:
            from textattack.augmentation import Augmenter
            from textattack.transformations import (
                CompositeTransformation,
                WordSwapNeighboringCharacterSwap,
                WordSwapQWERTY,
                WordSwapRandomCharacterDeletion,
                WordSwapRandomCharacterInsertion,
                WordSwapRandomCharacterSubstitution,
            )
        except ImportError as error:
            raise InputError(NO_TEXTATTACK) from error
        jieba = sys.modules["jieba"]  # which textattack asks for Chinese words
        jieba.setLogLevel(logging.CRITICAL)
        jieba.dt.tmp_dir = folder  # where it finds no cache, and leaves none
        return Augmenter(
            CompositeTransformation(
                [
                    WordSwapNeighboringCharacterSwap(),
                    WordSwapRandomCharacterDeletion(),
                    WordSwapRandomCharacterInsertion(),
                    WordSwapRandomCharacterSubstitution(),
                    WordSwapQWERTY(),
                ]
            ),
            pct_words_to_swap=1.0,
            transformations_per_example=1,
        )


@contextmanager
def _own_environment() -> Iterator[None]:
    """Environment variables as they were before, whatever an import sets."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _own_random_state(seed: int) -> Iterator[None]:
    """The global generators seeded, for a library that draws from them, and afterwards as they were before."""
    state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed % (1 << 32))  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)  # noqa: NPY002
