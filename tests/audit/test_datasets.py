"""Data sets: formats against small files made here, the real files where they are, selection, hashes, downloads."""

import gzip
import hashlib
import http.server
import io
import os
import re
import struct
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from dpaudit.audit.inputs import formats, sources
from dpaudit.audit.inputs.datasets import NAMES, arrays_sha256, load
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.sources import SOURCES, RemoteFile, Source

ROOT = os.environ.get("DPAUDIT_DATA")


def needs(name: str) -> pytest.MarkDecorator:
    """Skip, visibly, where the real files of a data set are not at hand."""
    source = SOURCES[name]
    there = ROOT and any(all(Path(ROOT, source.folder, f.name).exists() for f in files) for files in source.variants)
    return pytest.mark.skipif(not there, reason=f"the files of {name} are not under DPAUDIT_DATA={ROOT}")


# --- what ships with scikit-learn ------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_divided_by_sixteen() -> None:
    x, y = load_digits(return_X_y=True)
    data = load("digits")
    held_out = set(formats.fixed_order(len(y))[len(y) - len(y) // 5 :].tolist())
    train = [index for index in range(len(y)) if index not in held_out]
    assert np.array_equal(data.x, (x[train] / 16).astype(np.float32))
    assert np.array_equal(data.y, y[train])
    assert np.array_equal(data.x_test, (x[sorted(held_out)] / 16).astype(np.float32))
    assert (data.x.dtype, data.y.dtype, data.classes, len(data.y)) == (np.float32, np.int64, 10, 1438)
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)


def test_breast_cancer_is_scaled_by_the_range_in_its_description() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    data = load("breast_cancer")
    radius = (x[:, 0] - 6.981) / (28.11 - 6.981)  # "radius (mean): 6.981 28.11"
    held_out = formats.held_out_part(len(y))
    assert np.allclose(data.x[:, 0], radius[~held_out], atol=1e-6)
    assert np.array_equal(data.y, y[~held_out])
    assert (data.x.min() >= 0, data.x.max() <= 1, data.classes, data.x.shape) == (True, True, 2, (456, 30))


def test_the_fixed_order_is_the_same_in_every_version() -> None:
    order = formats.fixed_order(1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:16] == "06746a10e1b2f0a2"
    assert formats.held_out_part(1000).sum() == 200


# --- selection -------------------------------------------------------------------------------------------------------


def test_classes_are_numbered_in_the_order_given() -> None:
    one_three, three_one = load("digits", classes=[1, 3]), load("digits", classes=[3, 1])
    _, y = load_digits(return_X_y=True)
    original = y[~formats.held_out_part(len(y))]
    kept = original[np.isin(original, [1, 3])]
    assert np.array_equal(one_three.y, (kept == 3).astype(int))
    assert np.array_equal(three_one.y, (kept == 1).astype(int))
    assert np.array_equal(one_three.x, three_one.x)
    assert one_three.sha256 != three_one.sha256
    assert set(one_three.y_test.tolist()) == {0, 1}


def test_records_are_a_prefix_of_the_fixed_order_or_the_named_ones() -> None:
    everything = load("digits", classes=[0, 1])
    hundred, ten = (load("digits", classes=[0, 1], records=n) for n in (100, 10))
    order = formats.fixed_order(len(everything.y))
    assert np.array_equal(hundred.x, everything.x[order[:100]])
    assert np.array_equal(ten.x, hundred.x[:10])
    named = load("digits", classes=[0, 1], records=[5, 2, 9])
    assert np.array_equal(named.x, everything.x[[5, 2, 9]])
    assert np.array_equal(named.x_test, everything.x_test)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"classes": [0, 10]}, r"classes=\[0, 10\] to be different labels"),
        ({"classes": [0, 0]}, r"classes=\[0, 0\] to be different labels"),
        ({"classes": [4]}, "at least two classes, not 1"),
        ({"records": 0}, r"records=0 in 1\.\.1438"),
        ({"records": 1439}, r"records=1439 in 1\.\.1438"),
        ({"records": [3, 3]}, "different indices"),
        ({"records": [1438]}, r"different indices in 0\.\.1437"),
        ({"records": []}, "different indices"),
        ({"records": [7]}, "cover at least two classes"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(selection: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("digits", **selection)


def test_the_hash_covers_shape_type_values_and_labels() -> None:
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0, 1])
    by_hand = b"float32 (2, 3)\n" + struct.pack("<6f", *range(6)) + b"int64 (2,)\n" + struct.pack("<2q", 0, 1)
    assert arrays_sha256(x, y) == hashlib.sha256(by_hand).hexdigest()
    assert arrays_sha256(np.asfortranarray(x), y.astype(">i8")) == arrays_sha256(x, y)
    others = [arrays_sha256(x.reshape(3, 2), y), arrays_sha256(x + 1, y), arrays_sha256(x, y[::-1])]
    assert len({arrays_sha256(x, y), *others}) == 4


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"dataset='cifar' to be a \.npz or \.tsv file or one of digits, .*qnli"):
        load("cifar")


# --- the user's own arrays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_users_arrays(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), np.array([7, -2, 7] * 10, dtype=np.int16)
    save(tmp_path / "a.npz", x=np.asfortranarray(x), y=y)
    data = load(tmp_path / "a.npz")
    assert np.array_equal(data.x, x.astype(np.float32))
    assert np.array_equal(data.y, (y == 7).astype(int))
    assert (data.classes, data.x_test.shape, data.sha256) == (2, (0, 4), arrays_sha256(data.x, data.y))
    save(tmp_path / "b.npz", x=x, y=y, x_test=x[:3], y_test=y[:3])
    assert load(str(tmp_path / "b.npz"), classes=[7, -2]).y_test.tolist() == [0, 1, 0]
    save(tmp_path / "c.npz", x=x, y=y, x_test=x[:3], y_test=np.array([7, 3, -2]))
    assert load(tmp_path / "c.npz", classes=[7, -2]).y_test.tolist() == [0, 1]
    with pytest.raises(InputError, match=r"no labels in the test records .* training never saw.*: 3"):
        load(tmp_path / "c.npz")


def test_one_hot_bytes_compress_well_and_are_no_bomb(tmp_path: Path) -> None:
    x = np.eye(50, dtype=np.uint8)[np.random.default_rng(0).integers(0, 50, 4000)]
    np.savez_compressed(tmp_path / "a.npz", x=x, y=x.argmax(axis=1))
    assert np.array_equal(load(tmp_path / "a.npz").x, x.astype(np.float32))


# --- the public formats ----------------------------------------------------------------------------------------------


def idx(array: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_files() -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    files = {}
    for part, n in (("train", 12), ("t10k", 6)):
        files[f"{part}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        files[f"{part}-labels-idx1-ubyte"] = idx((np.arange(n) % 3).astype(np.uint8))
    return files


def test_idx_files() -> None:
    files = idx_files()
    raw = formats.read_idx(formats.unpack({f"{name}.gz": gzip.compress(content) for name, content in files.items()}))
    assert raw.x.shape == (12, 784)
    pixel = files["train-images-idx3-ubyte"][16 + 784 * 5 + 28 * 3 + 4]  # record 5, row 3, column 4
    assert formats.scale_bytes(raw.x)[5, 28 * 3 + 4] == np.float32(pixel) / np.float32(255)
    assert raw.y_test.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b"\0\0\x09\x03" + b[4:], lambda b: b""]
)
def test_damaged_idx_files_are_refused(damage: Any) -> None:
    files = idx_files()
    files["train-images-idx3-ubyte"] = damage(files["train-images-idx3-ubyte"])
    with pytest.raises(InputError, match="train-images-idx3-ubyte"):
        formats.read_idx(files)


def tgz(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def shokri_rows(n: int, features: int, classes: int) -> tuple[bytes, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(2)
    bits, labels = rng.integers(0, 2, (n, features)), np.arange(n) % classes + 1
    text = "".join(f"{label},{','.join(map(str, row))}\n" for label, row in zip(labels, bits, strict=True))
    return text.encode(), bits, labels - 1


def test_rows_of_bits() -> None:
    text, bits, labels = shokri_rows(40, 6, 4)
    quoted = b"\n".join(b'"' + line.replace(b",", b'",', 1) for line in text.splitlines())  # as Location-30 writes it
    for content in (text, quoted):
        raw = formats.read_shokri(formats.unpack({"a.tgz": tgz("folder/rows", content)}), features=6)
        held_out = formats.held_out_part(40)
        assert np.array_equal(raw.x, bits[~held_out])
        assert np.array_equal(raw.y, labels[~held_out])
        assert np.array_equal(raw.x_test, bits[held_out])


@pytest.mark.parametrize("line", [b"1,0,1", b"1,0,1,2", b"a,0,1,0", b"1,0,1,0,1", b"", b"1,0;1,0"])
def test_damaged_rows_are_refused(line: bytes) -> None:
    with pytest.raises(InputError, match="Expected line 2 of rows"):
        formats.read_shokri({"rows": b"1,0,1,0\n" + line + b"\n2,1,1,1\n"}, features=3)


ADULT = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K
50, ?, 83311, Bachelors, 13, Divorced, Sales, Husband, White, Female, 0, 0, 130, Cuba, >50K
"""


def test_adult_is_scaled_by_constants_and_one_hot() -> None:
    test = (
        "|1x3 Cross validator\n"
        + ADULT.replace("<=50K", "<=50K.").replace(">50K", ">50K.").replace("Cuba", "Laos")
        + "\n"
    )
    raw = formats.read_adult({"adult.data": ADULT.encode(), "adult.test": test.encode()})
    # 6 numbers; two categories of workclass, marital status, occupation, relationship, sex, country; one of two more
    assert raw.x.shape == (2, 6 + 2 * 6 + 2)
    assert raw.x[:, 0].tolist() == pytest.approx([0.39, 0.50])
    assert raw.x[0, 1:3].tolist() == [0.0, 1.0]  # "?" before "State-gov"
    assert raw.x[0, 3] == pytest.approx(77516 / 1.5e6)
    assert raw.x[1].max() == 1.0  # 130 hours are cut at 100
    assert (raw.y.tolist(), raw.y_test.tolist()) == ([0, 1], [0, 1])
    assert raw.x[0, -2:].tolist() == [1.0, 0.0]
    assert raw.x_test[0, -2:].tolist() == [0.0, 1.0]
    with pytest.raises(InputError, match=r"every row of adult\.data to have 15 columns"):
        formats.read_adult({"adult.data": b"1, 2\n", "adult.test": test.encode()})
    with pytest.raises(InputError, match="column of numbers"):
        formats.read_adult({"adult.data": ADULT.replace("39", "old").encode(), "adult.test": test.encode()})


QNLI = 'index\tquestion\tsentence\tlabel\n0\tWho "is?\tIt is a cat .\tentailment\n1\tWhy?\tBecause .\tnot_entailment\n'


def test_glue_files() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("QNLI/train.tsv", "QNLI/dev.tsv", "__MACOSX/QNLI/._dev.tsv"):
            archive.writestr(name, QNLI if name.startswith("QNLI") else "junk")
    raw = SOURCES["qnli"].read(formats.unpack({"QNLIv2.zip": buffer.getvalue()}))
    assert raw.x.tolist() == ['Who "is?\tIt is a cat .', "Why?\tBecause ."]
    assert raw.y.tolist() == [0, 1]
    with pytest.raises(InputError, match=r"every label of train\.tsv among entailment"):
        SOURCES["qnli"].read({"train.tsv": QNLI.replace("not_entailment", "maybe").encode(), "dev.tsv": QNLI.encode()})
    with pytest.raises(InputError, match="to have the columns"):
        SOURCES["qnli"].read({"train.tsv": b"a\tb\n", "dev.tsv": QNLI.encode()})


def test_words_are_counted_in_hashed_columns_of_unit_norm() -> None:
    features = formats.bag_of_words(np.array(["a cat and a cat", "The CAT", "dog", ""], dtype=object))
    assert features.shape == (4, 1024)
    assert features.dtype == np.float32
    assert np.allclose(np.linalg.norm(features, axis=1), [1, 1, 1, 0])
    assert sorted(features[0][features[0] > 0].tolist()) == pytest.approx([1 / 5**0.5, 2 / 5**0.5])  # and, cat twice
    cat = int(features[0].argmax())
    assert features[1, cat] == pytest.approx(1 / 2**0.5)
    assert features[2, cat] == 0


@pytest.mark.parametrize("name", ["a.gz", "a.tgz", "a.zip"])
def test_damaged_archives_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"Expected {name} to be a whole archive"):
        formats.unpack({name: b"\x1f\x8b\x08 not an archive"})


# --- where files come from -------------------------------------------------------------------------------------------


def small_source(url: str, content: bytes) -> Source:
    file = RemoteFile("small.tgz", hashlib.sha256(content).hexdigest(), f"{url}/small.tgz")
    return replace(SOURCES["location30"], variants=((file,),), folder="small",
                   read=lambda files: formats.read_shokri(files, features=6))  # fmt: skip


@pytest.fixture
def content() -> bytes:
    return tgz("rows", shokri_rows(40, 6, 4)[0])


@pytest.fixture
def server(content: bytes) -> Iterator[str]:
    """A server on this machine that hands out one file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DPAUDIT_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    return tmp_path


def test_a_download_is_checked_kept_and_told_of(
    server: str, content: bytes, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, "location30", small_source(server, content))
    told: list[Any] = []

    def stage(what: str, total: int) -> Any:
        told.append((what, total))
        return told.append

    data = load("location30", progress=stage)
    assert data.classes == 4
    assert told[0] == ("Downloading small.tgz", len(content))
    assert sum(told[1:]) == len(content)
    kept = list((own_cache / "cache" / "dpaudit").rglob("*.tgz"))
    assert [path.read_bytes() for path in kept] == [content]
    monkeypatch.setitem(SOURCES, "location30", small_source("http://127.0.0.1:9", content))
    assert load("location30").sha256 == data.sha256  # from the cache: nobody answers there


def test_a_download_with_another_checksum_is_refused(
    server: str, content: bytes, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, "location30", small_source(server, content + b"other"))
    with pytest.raises(InputError, match=r"\$DPAUDIT_DATA/small .*or by download, and neither worked"):
        load("location30")
    assert not list(own_cache.rglob("*.tgz"))


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_without_folder_and_network_both_ways_are_named(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def unreachable(**_: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(pooch, "retrieve", unreachable)
    with pytest.raises(
        InputError, match=r"in the folder \$DPAUDIT_DATA/.*or by download, and neither worked"
    ) as caught:
        load(name)
    assert SOURCES[name].variants[0][0].name in str(caught.value)
    assert str(caught.value).endswith(").")


def test_a_file_in_the_folder_with_another_checksum_is_refused(
    content: bytes, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, "location30", small_source("http://127.0.0.1:9", content))
    (own_cache / "small").mkdir()
    (own_cache / "small" / "small.tgz").write_bytes(content)
    monkeypatch.setenv("DPAUDIT_DATA", str(own_cache))
    assert load("location30").classes == 4
    (own_cache / "small" / "small.tgz").write_bytes(content[:-1] + b"x")
    with pytest.raises(InputError, match=r"small\.tgz to have SHA-256"):
        load("location30")


def test_purchase100_must_have_its_published_shape(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_cache / "purchase100").mkdir()
    rows = shokri_rows(200, 600, 100)[0]
    (own_cache / "purchase100" / "dataset_purchase.tgz").write_bytes(tgz("dataset_purchase", rows))
    monkeypatch.setenv("DPAUDIT_DATA", str(own_cache))
    with pytest.raises(InputError, match="purchase100 to have 197,324 records of 100 classes"):
        load("purchase100")
    monkeypatch.setitem(SOURCES, "purchase100", replace(SOURCES["purchase100"], shape=(200, 100)))
    assert load("purchase100").x.shape == (160, 600)


def test_every_name_is_listed_once_and_every_download_has_a_checksum() -> None:
    assert len(set(NAMES)) == len(NAMES) == 9
    files = [file for source in SOURCES.values() for variant in source.variants for file in variant]
    assert all(file.sha256 for file in files if file.url)
    assert all(len(file.sha256) == 64 for file in files if file.sha256)
    assert sources.FOLDER_VARIABLE == "DPAUDIT_DATA"


# --- the real files, where they are ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("fashion-mnist", "mnist")])
def test_real_images(name: str) -> None:
    data = load(name, classes=[0, 1], records=1000)
    assert (data.x.shape, data.classes) == ((1000, 784), 2)
    assert len(data.y_test) == {"fashion-mnist": 2000, "mnist": 980 + 1135}[name]  # as published per class
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)


@needs("location30")
def test_real_locations() -> None:
    data = load("location30")
    assert (len(data.y) + len(data.y_test), data.x.shape[1], data.classes) == (5010, 446, 30)
    assert set(np.unique(data.x).tolist()) == {0.0, 1.0}


@needs("adult")
def test_real_adult() -> None:
    data = load("adult")
    assert (data.x.shape, data.x_test.shape) == ((32561, 108), (16281, 108))
    assert (int(data.y.sum()), int(data.y_test.sum())) == (7841, 3846)  # published counts of ">50K"
    assert np.array_equal((data.x == 1.0).sum(axis=1) >= 8, np.ones(32561, bool))  # one of each of eight categories


@needs("sst2")
def test_real_sentences() -> None:
    data = load("sst2", records=500)
    assert data.texts is not None
    assert data.texts_test is not None
    assert (data.x.shape, len(data.texts), len(data.texts_test)) == ((500, 1024), 500, 872)
    assert int(data.y_test.sum()) == 444  # published count of positive sentences
    assert np.array_equal(formats.bag_of_words(np.array(data.texts[7:8], dtype=object))[0], data.x[7])


@needs("sst2")
def test_sst2_as_token_ids_has_the_same_sentences_and_labels() -> None:
    words, ids = load("sst2", records=300), load("sst2", records=300, tokens=formats.HashedTokens(12))
    assert (ids.texts, ids.y.tolist(), ids.texts_test) == (words.texts, words.y.tolist(), words.texts_test)
    assert ids.texts is not None
    assert (ids.x.shape, ids.x_test.shape, ids.tokens) == ((300, 12), (872, 12), True)
    assert ids.x.max() < 2**24
    assert np.array_equal((ids.x > 0).sum(1), [min(12, len(re.findall(r"[^\W]+|[^\w\s]", text))) for text in ids.texts])
