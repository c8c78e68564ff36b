"""Records of a torch data set as arrays, and the batches that a loader makes of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from dpaudit.audit.inputs.arrays import LARGEST_ARRAYS
from dpaudit.audit.inputs.datasets import Dataset, arrays_sha256
from dpaudit.audit.inputs.files import InputError

FIRST = 8  # records that are looked at more closely
LABELS = ("labels", "label")  # keys of a record that is a table
OTHERS = ("attention_mask", "token_type_ids")  # which follow from the ids in a network that an audit can train
UNION_SAMPLERS = ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler")  # Opacus's Poisson


@dataclass(frozen=True)
class Records:
    """The records of a torch data set.

    Args:
        x: Flat, shape (records, numbers), float32.
        y: Labels 0..classes-1, int64.
        shape: Of one record as the data set gives it.
        whole: Whether they are whole numbers there, such as token ids.
        key: What the records are called in a table; "" where a record is a pair.
        others: What else the tables of the first few records hold, such as attention masks.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    shape: tuple[int, ...]
    whole: bool = False
    key: str = ""
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    @property
    def sha256(self) -> str:
        """As in a bundle's recipe."""
        return arrays_sha256(self.x, self.y)

    def dataset(self, name: str) -> Dataset:
        """As an audit takes them, without test records."""
        return Dataset(name, self.x, self.y, self.classes, self.sha256, self.x[:0], self.y[:0])


def read_records(dataset: Any) -> Records:
    """All records of a torch data set of (features, label) pairs, or of tables with one feature array and a label.

    Raises:
        InputError: Records are no such pairs, of different shapes, too many, or different whenever they are read.
    """
    try:
        count = len(dataset)
    except TypeError:
        raise InputError(
            "Expected the loader's data set to have a length: batches of a stream have no theorem."
        ) from None
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        tensors = [tensor.detach().cpu() for tensor in dataset.tensors]  # numpy knows no bfloat16
        x, y = ((tensor.float() if tensor.is_floating_point() else tensor).numpy() for tensor in tensors)
        return _checked(x, y, "")
    rows = [_pair(dataset[index], index) for index in range(count)]
    first = [dataset[index] for index in range(min(FIRST, count))]
    for index, record in enumerate(first):
        if not np.array_equal(_pair(record, index)[1], rows[index][1], equal_nan=True):
            raise InputError("Expected the data set to give the same records every time: random transforms belong into "
                             "the training loop.")  # fmt: skip
    shapes = sorted({row[1].shape for row in rows})
    if len(shapes) > 1:
        raise InputError(f"Expected records of one shape, not {shapes[0]} and {shapes[1]}: pad them beforehand.")
    if rows and rows[0][1].size * 4 * count > LARGEST_ARRAYS:
        raise InputError(f"Expected the records to take at most {LARGEST_ARRAYS:,} bytes.")
    key = rows[0][0] if rows else ""
    records = _checked(np.stack([row[1] for row in rows]), np.array([row[2] for row in rows]), key)
    others = {name: np.stack([record[name] for record in first]) for name in first[0] if name in OTHERS} if key else {}
    return replace(records, others=others)


def _pair(record: Any, index: int) -> tuple[str, NDArray[Any], Any]:
    """Name of the features, features and label of one record."""
    if isinstance(record, Mapping):
        label = next((key for key in LABELS if key in record), None)
        keys = [key for key in record if key not in (*LABELS, *OTHERS)]
        if label is None or len(keys) != 1:
            raise InputError(f"Expected record {index} to have one array and a label, not {', '.join(record)}.")
        return keys[0], np.asarray(record[keys[0]]), int(record[label])
    if not isinstance(record, (tuple, list)) or len(record) != 2:
        raise InputError(f"Expected record {index} to be a pair of features and label, not {type(record).__name__}.")
    return "", np.asarray(record[0]), int(record[1])


def _checked(x: NDArray[Any], y: NDArray[Any], key: str) -> Records:
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "iu" or y.ndim != 1 or len(x) != len(y):
        raise InputError(f"Expected numbers and an integer label for each record, not {x.dtype} {x.shape} and "
                         f"{y.dtype} {y.shape}.")  # fmt: skip
    present = np.unique(y)
    if len(present) < 2 or not np.array_equal(present, np.arange(len(present))):
        raise InputError(f"Expected labels 0, 1, ... that all occur, not {', '.join(map(str, present[:10]))}.")
    # a copy: memory of a tensor that a loop's processes share goes away, and a loop may write over its records
    flat = np.array(x.reshape(len(x), -1), dtype=np.float32, order="C")
    if not np.isfinite(flat).all():
        raise InputError("Expected finite records.")
    return Records(flat, y.astype(np.int64), x.shape[1:], x.dtype.kind in "biu", key)


@dataclass(frozen=True)
class LoaderBatches:
    """How a loader makes batches.

    Args:
        kind: "poisson", "shuffled" or "deterministic".
        records: Of the data set.
        rate: Of Poisson batches.
        batch: Size of others.
        drop_last: Whether a last batch that is smaller is dropped.
        split: Whether Opacus's BatchMemoryManager splits them up in memory.
    """

    kind: str
    records: int
    rate: float = 0.0
    batch: int = 0
    drop_last: bool = False
    split: bool = False

    @property
    def passes_batches(self) -> int:
        """Batches of one pass that is not Poisson's."""
        return self.records // self.batch if self.drop_last else -(-self.records // self.batch)

    def sampling(self, steps: int) -> dict[str, Any]:
        """The table [sampling] of a recipe with so many steps.

        Raises:
            InputError: Batches of a pass that was not finished.
        """
        if self.kind == "poisson":
            return {"kind": "poisson", "prob": self.rate} if self.rate < 1 else {"kind": "none"}
        if self.batch >= self.records:
            return {"kind": "none"}
        epochs, rest = divmod(steps, self.passes_batches)
        if rest:
            raise InputError(
                f"Expected steps={steps} to be whole passes of {self.passes_batches} {self.kind} batches: there is no "
                "theorem on parts of a pass."
            )
        if self.kind == "deterministic":
            return {"kind": self.kind, "batches": self.passes_batches, "epochs": epochs}
        last = "dropped" if self.drop_last else "kept"
        return {"kind": self.kind, "records": self.records, "batch": self.batch, "epochs": epochs, "last_batch": last}

    def __str__(self) -> str:
        """In words."""
        if self.kind == "poisson":
            return f"Poisson batches of rate {self.rate:g}"
        last = f", the last {'dropped' if self.drop_last else 'smaller'}" if self.records % self.batch else ""
        return f"{self.kind} batches of {self.batch} from {self.records} records{last}"


def read_batches(loader: DataLoader[Any]) -> LoaderBatches:
    """What a loader does, read from its samplers.

    Raises:
        InputError: A sampler with no theorem; it is named.
    """
    records = len(loader.dataset)  # type: ignore[arg-type]  # read_records refuses what has none
    sampler: Any = loader.batch_sampler
    split = type(sampler).__name__ == "BatchSplittingSampler"
    sampler = sampler.sampler if split else sampler
    if type(sampler).__name__ in UNION_SAMPLERS:
        return LoaderBatches("poisson", records, rate=float(sampler.sample_rate), split=split)
    while type(sampler) is not BatchSampler and isinstance(getattr(sampler, "batch_sampler", None), BatchSampler):
        sampler = sampler.batch_sampler  # accelerate's shard of a process
    if type(sampler) is not BatchSampler:
        raise InputError(f"Expected the loader's batches to be drawn by Opacus or by torch, not by {_name(sampler)}.")
    order: Any = sampler.sampler
    if type(order).__name__ == "SeedableRandomSampler" or type(order) is RandomSampler:
        if order.replacement or order.num_samples != records:
            raise InputError("Expected a RandomSampler of all records without replacement: there is no other theorem.")
        return LoaderBatches(
            "shuffled", records, batch=int(sampler.batch_size), drop_last=sampler.drop_last, split=split
        )
    if type(order) is SequentialSampler:
        return LoaderBatches(
            "deterministic", records, batch=int(sampler.batch_size), drop_last=sampler.drop_last, split=split
        )
    raise InputError(f"Expected the loader's order to be random or the file's, not that of {_name(order)}.")


def _name(sampler: Any) -> str:
    return f"{type(sampler).__module__}.{type(sampler).__qualname__}"
