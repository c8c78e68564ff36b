"""Files made to hurt: one clear line, in under 5 seconds and 1 GB, and no code of theirs is run.

One process imports the loaders once and forks for every case, so that time and memory of each are its own. What counts
is processor time, the import included, so that a busy machine fails nothing; whoever waits is stopped by an alarm.
"""

import gzip
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.audit import save_bundle
from dpaudit.audit.inputs.datasets import load
from dpaudit.audit.inputs.recipes import Recipe

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits-headline.toml"
GIB = 1 << 30
SECONDS, BYTES = 5.0, 10**9  # of processor time, after the imports

DRIVER = """
import json, os, resource, signal, sys
from dpaudit.audit.inputs.bundles import load_bundle
from dpaudit.audit.inputs.datasets import load
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe, load_recipe
import sklearn.datasets
recipe = load_recipe(sys.argv[1])

def one(kind, path):
    if kind == "bundle":
        load_bundle(path)
    elif kind == "weights":
        load_bundle(path, recipe=recipe)
    elif kind == "data":
        load(path)
    elif kind == "recipe":
        load_recipe(path)
    else:
        bytearray(10**9)

for name, kind, path in json.load(sys.stdin):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        signal.alarm(60)
        try:
            one(kind, path)
            outcome = ["accepted", ""]
        except InputError as error:
            outcome = ["InputError", str(error)]
        except BaseException as error:
            outcome = [type(error).__name__, str(error)]
        os.write(write, json.dumps(outcome).encode()[:60000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        outcome = json.loads(pipe.read() or b'["died", ""]')
    usage = os.wait4(child, 0)[2]
    print(json.dumps([name, *outcome, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024]), flush=True)
"""

Make = Callable[[Path], None]
CASES: dict[str, tuple[str, str, Make, str]] = {}  # name -> kind, file name, how to make it, what the message says


def case(kind: str, file: str, message: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CASES[make.__name__] = (kind, file, make, message)
        return make

    return register


@cache
def good_bytes() -> bytes:
    """A valid bundle."""
    digits = load("digits", classes=[0, 1])
    recipe = Recipe.from_dict(tomllib.loads(EXAMPLE.read_text())).filled(digits, dimension=130, seed=1)
    state = {"weight": torch.zeros(2, 64), "bias": torch.zeros(2)}
    architecture = recipe.spec(digits).architecture
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "good.pt"
        save_bundle(
            path, state_dict=state, architecture=architecture, recipe=recipe, claim=recipe.claim_object(), coins=None
        )
        return path.read_bytes()


def good(path: Path, **content: Any) -> None:
    """A valid bundle, or one with some top-level values replaced (None: left out)."""
    path.write_bytes(good_bytes())
    if content:
        changed = {**torch.load(path, weights_only=True), **content}
        torch.save({key: value for key, value in changed.items() if value is not None}, path)


def with_meta(path: Path, change: Callable[[str], str]) -> None:
    good(path)
    good(path, meta=change(torch.load(path, weights_only=True)["meta"]))


def torch_zip(path: Path, data: bytes, records: dict[str, bytes] | None = None, **options: Any) -> None:
    """A file as torch.save lays it out, around any pickle."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("m/data.pkl", data)
        archive.writestr("m/byteorder", b"little")
        for name, content in (records or {}).items():
            archive.writestr(f"m/data/{name}", content)
        archive.writestr("m/version", b"3\n")


class _Tensor:
    """Pickles as a torch tensor of float32 with any declared sizes."""

    def __init__(self, key: str, stored: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.key, self.stored, self.shape, self.stride = key, stored, shape, stride

    def __reduce__(self) -> Any:
        rebuild = torch._utils._rebuild_tensor_v2  # type: ignore[attr-defined]
        return rebuild, (_Storage(self.key, self.stored), 0, self.shape, self.stride, False, {})


class _Storage:
    def __init__(self, key: str, stored: int) -> None:
        self.persistent = ("storage", torch.FloatStorage, key, "cpu", stored)


class _Pickler(pickle.Pickler):
    def persistent_id(self, item: Any) -> Any:
        return item.persistent if isinstance(item, _Storage) else None


def pickled(content: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=2).dump(content)
    return buffer.getvalue()


def bundle_with(weight: _Tensor, path: Path, records: dict[str, bytes]) -> None:
    good(path)
    meta = torch.load(path, weights_only=True)["meta"]
    torch_zip(path, pickled({"state_dict": {"weight": weight}, "meta": meta}), records)


class _Code:
    def __init__(self, path: Path) -> None:
        self.command = f"touch {path}.ran"

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


class _Repeated:
    """A compressor for zipfile that compresses what it is given again and again once: parts that stand alone."""

    def __init__(self) -> None:
        self.compress = cache(self.part)

    @staticmethod
    def part(data: bytes) -> bytes:
        raw = zlib.compressobj(1, zlib.DEFLATED, -15)
        return raw.compress(data) + raw.flush(zlib.Z_FULL_FLUSH)

    @staticmethod
    def flush() -> bytes:
        return zlib.compressobj(1, zlib.DEFLATED, -15).flush()


def gigabyte_of_zeros(record: Any, header: bytes = b"") -> None:
    """Into a member of a zip archive that is being written, after a header."""
    zeros = bytes(16 << 20)
    record._compressor = _Repeated()
    for part in (header, *[zeros] * 64):
        record.write(part)


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


# --- bundles -------------------------------------------------------------------------------------------------------


@case("bundle", "a.pt", "whole zip archive")
def truncated(path: Path) -> None:
    good(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@case("bundle", "a.pt", "whole zip archive")
def last_byte_missing(path: Path) -> None:
    good(path)
    path.write_bytes(path.read_bytes()[:-1])


@case("bundle", "a.pt", "not empty")
def zero_bytes(path: Path) -> None:
    path.touch()


@case("bundle", "a.pt", r"nothing but tensors; it names posix\.system")
def pickled_code(path: Path) -> None:
    torch_zip(path, pickle.dumps({"state_dict": _Code(path), "meta": "{}"}, protocol=2))


@case("bundle", "a.pt", "pickled with protocol 2")
def pickled_code_by_stack(path: Path) -> None:
    torch_zip(path, pickle.dumps({"state_dict": _Code(path), "meta": "{}"}, protocol=4))


@case("bundle", "a.pt", "zip archive")
def pickled_code_without_zip(path: Path) -> None:
    path.write_bytes(pickle.dumps(_Code(path)))


@case("bundle", "a.pt", r"names builtins\.bytearray|names __builtin__\.bytearray")
def pickled_gigabytes(path: Path) -> None:
    torch_zip(path, b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x02\x85R.")


@case("bundle", "a.pt", "zip archive")
def text(path: Path) -> None:
    path.write_text("this is not a model\n" * 100)


@case("bundle", "a.pt", "zip archive")
def png(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10)


@case("bundle", "a.pt", "zip archive")
def tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.add(EXAMPLE, "model")


@case("bundle", "a.pt", "zip archive")
def two_gigabytes_of_zeros(path: Path) -> None:
    sparse(path, 2 * GIB)


@case("bundle", "a.pt", "is compressed")
def zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("m/data.pkl", b"\x80\x02}.")
        with archive.open("m/data/0", "w", force_zip64=True) as record:
            gigabyte_of_zeros(record)


@case("bundle", "a.pt", "is compressed")
def compressed_pickle_bomb(path: Path) -> None:
    torch_zip(path, b"\x80\x02" + b"]" * (64 << 20) + b".", compression=zipfile.ZIP_DEFLATED, compresslevel=1)


@case("bundle", "a.pt", "at most 1,000,000 opcodes")
def pickle_of_fifteen_million_lists(path: Path) -> None:
    torch_zip(path, b"\x80\x02" + b"]" * 15_000_000 + b".")


@case("bundle", "a.pt", r"data\.pkl of .* at most 16,777,216 bytes")
def pickle_of_seventeen_megabytes(path: Path) -> None:
    torch_zip(path, b"\x80\x02X" + struct.pack("<I", 17 << 20) + bytes(17 << 20) + b".")


@case("bundle", "a.pt", "to be a pickle")
def pickle_that_ends_early(path: Path) -> None:
    torch_zip(path, b"\x80\x02}q\x00")


@case("bundle", "a.pt", r"of shape \(1000000000000,\) to own all its 4,000,000,000,000 bytes")
def stride_zero_tensor_of_four_terabytes(path: Path) -> None:
    bundle_with(_Tensor("0", 1, (10**12,), (0,)), path, {"0": bytes(4)})


@case("bundle", "a.pt", "torch file of tensors|to own all its|to be its records")
def storage_larger_than_its_record(path: Path) -> None:
    bundle_with(_Tensor("0", 10**9, (10**9,), (1,)), path, {"0": bytes(4)})


@case("bundle", "a.pt", "to be its records")
def storage_that_reads_its_neighbours(path: Path) -> None:
    bundle_with(_Tensor("0", 2, (2,), (1,)), path, {"0": bytes(4)})


@case("bundle", "a.pt", "to be its records")
def tensors_that_share_memory(path: Path) -> None:
    weight = torch.zeros(2, 64)
    good(path, state_dict={"weight": weight, "again": weight})


@case("bundle", "a.pt", "to own all its")
def view_of_a_larger_tensor(path: Path) -> None:
    good(path, state_dict={"weight": torch.zeros(2, 128)[:, :64], "bias": torch.zeros(2)})


@case("bundle", "a.pt", r"state_dict\['bias'\] to be finite")
def nan_weights(path: Path) -> None:
    good(path, state_dict={"weight": torch.zeros(2, 64), "bias": torch.tensor([0.0, torch.nan])})


@case("bundle", "a.pt", "to be float32")
def wrong_dtype(path: Path) -> None:
    good(path, state_dict={"weight": torch.zeros(2, 64, dtype=torch.complex64), "bias": torch.zeros(2)})


@case("bundle", "a.pt", "nothing but tensors")
def sparse_tensor(path: Path) -> None:
    good(path, state_dict={"weight": torch.zeros(2, 64).to_sparse(), "bias": torch.zeros(2)})


@case("bundle", "a.pt", "exactly state_dict and meta")
def meta_missing(path: Path) -> None:
    good(path, meta=None)


@case("bundle", "a.pt", "exactly state_dict and meta")
def one_key_too_many(path: Path) -> None:
    good(path, more="text")


@case("bundle", "a.pt", "map names to tensors")
def no_tensors(path: Path) -> None:
    good(path)
    meta = torch.load(path, weights_only=True)["meta"]
    torch_zip(path, pickled({"state_dict": {}, "meta": meta}))


@case("bundle", "a.pt", "to have the architecture's parameters: it lacks bias")
def parameter_missing(path: Path) -> None:
    good(path, state_dict={"weight": torch.zeros(2, 65)})


@case("bundle", "a.pt", "meta of .* to be JSON")
def meta_not_json(path: Path) -> None:
    good(path, meta="{format: dpaudit")


@case("bundle", "a.pt", "one JSON string")
def meta_not_text(path: Path) -> None:
    good(path, meta=3)


@case("bundle", "a.pt", "meta of .* to be JSON")
def meta_nested_a_million_deep(path: Path) -> None:
    good(path, meta="[" * 1_000_000)


@case("bundle", "a.pt", r"NaN is not a number of JSON")
def meta_with_nan_noise(path: Path) -> None:
    with_meta(path, lambda meta: meta.replace("1.6666666666666667", "NaN"))


@case("bundle", "a.pt", r"mechanism\.noise_multiplier: Expected noise_multiplier=inf")
def meta_with_infinite_noise(path: Path) -> None:
    with_meta(path, lambda meta: meta.replace("1.6666666666666667", "1e999"))


@case("bundle", "a.pt", "directory of at most")
def zip_directory_of_five_megabytes(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(1000):
            archive.writestr(f"m/data/{index:05000}", b"")


@case("bundle", "a.pt", "no larger than|not to overlap")
def zip_records_that_overlap(path: Path) -> None:
    good(path)
    content = bytearray(path.read_bytes())
    directory = struct.unpack_from("<I", content, len(content) - 6)[0]
    second = content.index(b"PK\x01\x02", directory + 4)
    struct.pack_into("<I", content, second + 42, 0)  # the second record begins where the first does
    path.write_bytes(bytes(content))


@case("bundle", "a.pt", "not to overlap")
def zip_behind_other_bytes(path: Path) -> None:
    good(path)
    path.write_bytes(b"PK\x03\x04" + path.read_bytes())


@case("bundle", "a.pt", "is a regular|to be a regular file")
def directory_instead(path: Path) -> None:
    path.mkdir()


@case("bundle", "a.pt", "to be a regular file")
def pipe_instead(path: Path) -> None:
    os.mkfifo(path)


@case("bundle", "a.pt", "to be a regular file")
def link_to_endless_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@case("bundle", "a.pt", "it does not exist")
def absent(path: Path) -> None:
    assert not path.exists()


@case("bundle", "a.pt", "readable file")
def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


# --- bare weights --------------------------------------------------------------------------------------------------


@case("weights", "a.safetensors", "its header cannot have")
def safetensors_header_of_exabytes(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 1 << 60) + b'{"a": 1}')


@case("weights", "a.safetensors", "safetensors file")
def safetensors_that_declares_terabytes(path: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))


@case("weights", "a.pt", "map names to tensors")
def weights_that_are_a_list(path: Path) -> None:
    torch.save([torch.zeros(2)], path)


@case("weights", "a.pt", "to be a tensor under a name")
def weights_with_a_number_among_them(path: Path) -> None:
    torch.save({"weight": torch.zeros(2, 64), "epoch": 3}, path)


# --- recipes -------------------------------------------------------------------------------------------------------


@case("recipe", "a.toml", r"mechanism\.noise_multiplier: Expected noise_multiplier=nan")
def recipe_with_nan_noise(path: Path) -> None:
    path.write_text(EXAMPLE.read_text().replace("1.6666666666666667", "nan"))


@case("recipe", "a.toml", "at most 1,048,576 bytes")
def recipe_of_two_gigabytes(path: Path) -> None:
    sparse(path, 2 * GIB)


@case("recipe", "a.toml", "to be a regular file")
def recipe_from_endless_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@case("recipe", "a.toml", "to be a regular file")
def recipe_from_a_pipe(path: Path) -> None:
    os.mkfifo(path)


# --- data ----------------------------------------------------------------------------------------------------------


def arrays(path: Path, **changes: Any) -> None:
    content = {"x": np.random.default_rng(0).random((20, 3)), "y": np.arange(20) % 2, **changes}
    np.savez(path, **{name: value for name, value in content.items() if value is not None})


@case("data", "a.npz", r"at least two classes, not 1 \(7\)")
def one_class(path: Path) -> None:
    arrays(path, y=np.full(20, 7))


@case("data", "a.npz", "objects and text are refused")
def pickled_objects(path: Path) -> None:
    arrays(path, y=np.array([_Code(path)] * 20, dtype=object))


@case("data", "a.npz", "objects and text are refused")
def text_labels(path: Path) -> None:
    arrays(path, y=np.array(["a", "b"] * 10))


@case("data", "a.npz", "integer labels")
def float_labels(path: Path) -> None:
    arrays(path, y=np.arange(20) % 2 + 0.5)


@case("data", "a.npz", "to be finite")
def nan_features(path: Path) -> None:
    arrays(path, x=np.full((20, 3), np.nan))


@case("data", "a.npz", "to be finite")
def features_beyond_float32(path: Path) -> None:
    arrays(path, x=np.full((20, 3), 1e300))


@case("data", "a.npz", r"of shape \(n, d\)")
def lengths_that_differ(path: Path) -> None:
    arrays(path, y=np.arange(19) % 2)


@case("data", "a.npz", r"of shape \(n, d\)")
def no_features(path: Path) -> None:
    arrays(path, x=np.zeros((20, 0)))


@case("data", "a.npz", "arrays x, y, not x")
def no_labels(path: Path) -> None:
    arrays(path, y=None)


@case("data", "a.npz", "not to unpack to")
def npz_bomb(path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (16 << 20, 16)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as stream:
            gigabyte_of_zeros(stream, header.getvalue())
        with archive.open("y.npy", "w") as stream:
            np.lib.format.write_array(stream, np.zeros(16 << 20, np.int8))


@case("data", "a.npz", "bytes that its header declares")
def npz_whose_header_declares_terabytes(path: Path) -> None:
    arrays(path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 33, 1 << 33)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", header.getvalue())


@case("data", "a.npz", "whole zip archive|zip archive")
def npz_truncated(path: Path) -> None:
    arrays(path)
    path.write_bytes(path.read_bytes()[:300])


@case("data", "a.npz", "Bad CRC-32")
def npz_with_a_flipped_byte(path: Path) -> None:
    arrays(path)
    content = bytearray(path.read_bytes())
    content[250] ^= 0xFF
    path.write_bytes(bytes(content))


@case("data", "a.npz", "to be an array|to be readable")
def npz_with_a_damaged_stream(path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 2, (2000, 30))
    np.savez_compressed(path, x=x, y=x[:, 0])
    content = bytearray(path.read_bytes())
    content[1000:1100] = bytes(100)
    path.write_bytes(bytes(content))


@case("data", "a.npz", "to be an array")
def npz_with_a_header_that_is_no_literal(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(
                name, b"\x93NUMPY\x01\x00" + struct.pack("<H", 40) + b"{'descr': __import__('os').getpid()}".ljust(40)
            )


@case("data", "a.npz", "to be an array")
def npz_with_a_header_that_nests_too_deeply(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"-" * 8999 + b"1")


@case("data", "a.npz", "to be an array")
def npz_with_a_damaged_lzma_stream(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, bytes(100))
    content = bytearray(path.read_bytes())
    content[30 + len("x.npy") + 4] = 255  # the first of the coder's properties
    path.write_bytes(bytes(content))


@case("data", "a.npz", "zip archive")
def npz_of_two_gigabytes_of_zeros(path: Path) -> None:
    sparse(path, 2 * GIB)


@case("data", "a.npz", "to be a regular file")
def npz_from_endless_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@case("data", "purchase100", "to unpack to at most")
def archive_bomb_in_the_data_folder(path: Path) -> None:
    path.mkdir()
    member = tarfile.TarInfo("dataset_purchase")
    member.size = 2 * GIB
    zeros = gzip.compress(bytes(16 << 20), 1)  # what is compressed part by part unpacks as one
    (path / "dataset_purchase.tgz").write_bytes(gzip.compress(member.tobuf()) + 40 * zeros)


def with_byte(path: Path, place: Callable[[bytes, zipfile.ZipInfo], int], record: str, value: int) -> None:
    good(path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(record))
    content[place(bytes(content), info)] ^= value
    path.write_bytes(bytes(content))


@case("bundle", "a.pt", "'.*data/0' .* checksum")
def bundle_with_a_flipped_bit_in_a_weight(path: Path) -> None:
    with_byte(path, lambda content, info: content.index(bytes(64), info.header_offset + 100), "data/0", 64)


@case("bundle", "a.pt", "to be readable")
def bundle_with_a_damaged_name_of_a_record(path: Path) -> None:
    with_byte(path, lambda content, info: info.header_offset + 31, "data.pkl", 128)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, str, float, int, bool]]]:
    """Every case run once: name -> (outcome, message, seconds, bytes, whether code of the file ran)."""
    root = tmp_path_factory.mktemp("hostile")
    orders, paths = [], {}
    for name, (kind, file, make, _) in CASES.items():
        (root / name).mkdir()
        path = root / name / file
        make(path)
        paths[name] = path
        orders.append([name, kind, path.name if path.name == "purchase100" else str(path)])
    good(root / "good.pt")
    orders += [["good", "bundle", str(root / "good.pt")], ["large", "large", ""]]
    folder = paths["archive_bomb_in_the_data_folder"].parent
    environment = {**os.environ, "DPAUDIT_DATA": str(folder), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", DRIVER, str(EXAMPLE)],
        input=json.dumps(orders), capture_output=True, text=True, timeout=300, env=environment, check=True,
    )  # fmt: skip
    found = {}
    for line in process.stdout.splitlines():
        name, outcome, message, seconds, size = json.loads(line)
        found[name] = (outcome, message, seconds, size, Path(f"{paths.get(name)}.ran").exists())
    yield found
    shutil.rmtree(root)


@pytest.mark.parametrize("name", CASES)
def test_refused_in_one_line_quickly_and_in_little_memory(outcomes: Any, name: str) -> None:
    outcome, message, seconds, size, ran = outcomes[name]
    assert outcome == "InputError", message
    assert re.search(CASES[name][3], message), message
    assert message.isprintable()
    assert not ran
    assert seconds < SECONDS
    assert size < BYTES


def test_the_driver_accepts_what_is_in_order_and_sees_memory(outcomes: Any) -> None:
    """The measurement itself: a valid bundle is accepted, and 1 GB of memory would be noticed."""
    assert outcomes["good"][0] == "accepted"
    assert outcomes["good"][3] < BYTES < outcomes["large"][3]
