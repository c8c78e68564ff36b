"""Data sets that Hugging Face's `datasets` saved with save_to_disk: the one file that imports datasets (extra `text`).

Arrow files hold numbers and text; nothing in them is run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs.files import InputError

MARKS = ("dataset_info.json", "dataset_dict.json")
IDS = "id"


def is_dataset_folder(folder: Path) -> bool:
    """Whether save_to_disk wrote it."""
    return any((folder / mark).is_file() for mark in MARKS)


def read_dataset_folder(folder: Path) -> Any:
    """Its records, those of the split "train" where it has splits.

    Raises:
        InputError: The folder cannot be read, has splits and none of them is "train", or `datasets` is not installed.
    """
    module = _datasets()
    try:
        loaded = module.load_from_disk(str(folder))
    except Exception as error:  # whatever the library raises over a folder
        raise InputError(f"Expected {folder} to hold a data set: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, module.DatasetDict):
        return loaded
    if "train" not in loaded:
        raise InputError(f"Expected {folder} to hold a split train: it has {', '.join(loaded)}.")
    return loaded["train"]


def with_rows(records: Any, rows: Sequence[dict[str, Any]], order: NDArray[np.int64]) -> Any:
    """The records and some more rows of the same columns, in an order."""
    module = _datasets()
    added = module.Dataset.from_list(list(rows), features=records.features)
    return module.concatenate_datasets([records, added]).select(order)


def query_rows(records: Any, rows: Sequence[dict[str, Any]], ids: Sequence[str]) -> Any:
    """The rows alone, with a column of ids in front."""
    module = _datasets()
    features = module.Features({IDS: module.Value("string"), **records.features})
    with_ids = [{IDS: name, **row} for name, row in zip(ids, rows, strict=True)]
    return module.Dataset.from_list(with_ids, features=features)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            "Expected the package datasets for a folder of save_to_disk: pip install 'dpaudit[text]'."
        ) from error
    datasets.disable_progress_bars()
    return datasets
