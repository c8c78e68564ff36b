"""Canaries in every format: what comes out is what went in, and the canaries whose coin says in."""

import json
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.audit.canaries.crafting import craft_arrays, craft_labels, craft_sentences
from dpaudit.audit.canaries.planting import Planting, plant
from dpaudit.audit.canaries.sealing import Draw, files_sha256
from dpaudit.audit.exit_status import os_reason
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.image_folders import image_bytes, read_image
from dpaudit.audit.inputs.tables import read_table, write_table

SENTENCES = [
    {"sentence": f"film number {i} is {'good' if i % 2 else 'dull'}", "label": i % 2, "who": i} for i in range(30)
]
NUMBERS = [{"a": f"{i}.5", "b": str(i * i), "label": "yes" if i % 3 else "no"} for i in range(30)]


def planted(folder: Path, data: Path, kind: str, count: int = 12, **options: Any) -> Planting:
    runs = options.pop("runs", 1)
    return plant(
        str(data), out=folder / "planted", sealed=folder / "coins.json", draw=Draw(3, runs, count), kind=kind, **options
    )


def table_file(folder: Path, rows: list[dict[str, Any]], suffix: str) -> Path:
    path = folder / f"data{suffix}"
    path.write_bytes(write_table(tuple(rows[0]), rows, suffix))
    return path


def as_counter(rows: Any) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("kind", ["mislabelled", "rare-tokens"])
def test_a_table_is_its_rows_and_the_canaries_that_are_in(tmp_path: Path, suffix: str, kind: str) -> None:
    data = table_file(tmp_path, SENTENCES, suffix)
    done = planted(tmp_path, data, kind)
    assert (done.planted[0].name, done.queries[0].name) == (f"planted{suffix}", f"planted.queries{suffix}")
    before, after = read_table(data), read_table(done.planted[0])
    queries = [dict(row) for row in read_table(done.queries[0]).rows]
    assert after.columns == before.columns
    ids = [row.pop("id") for row in queries]
    assert ids == done.coins.draw.ids()[0]
    included = done.coins.draw.included()[0]
    chosen = [row for row, inside in zip(queries, included, strict=True) if inside]
    assert as_counter(after.rows) == as_counter(before.rows) + as_counter(chosen)
    original = {row["sentence"]: row["label"] for row in before.rows}
    if kind == "mislabelled":
        assert all(original[row["sentence"]] != row["label"] for row in queries)
    else:
        words = [word for row in queries for word in row["sentence"].split()]
        assert len(set(words)) == len(words) == 12 * 12
    assert {type(row["label"]) for row in after.rows} == {type(row["label"]) for row in before.rows}


@pytest.mark.parametrize("kind", ["rare-tokens", "out-of-distribution"])
def test_texts_alone_as_language_models_are_trained_on(tmp_path: Path, kind: str) -> None:
    """No column of labels is needed, and kinds that change labels are refused."""
    data = table_file(tmp_path, [{"text": row["sentence"]} for row in SENTENCES], ".jsonl")
    with pytest.raises(InputError, match=r"'mislabelled' to be .*rare-tokens here without a column of labels"):
        planted(tmp_path, data, "mislabelled")
    done = planted(tmp_path, data, kind)
    before, after = read_table(data), read_table(done.planted[0])
    queries = [row["text"] for row in read_table(done.queries[0]).rows]
    chosen = [text for text, inside in zip(queries, done.coins.draw.included()[0], strict=True) if inside]
    assert (before.label, before.features, after.columns) == (None, (), ("text",))
    assert Counter(row["text"] for row in after.rows) == Counter([*(row["text"] for row in before.rows), *chosen])


@pytest.mark.parametrize("kind", ["blank", "out-of-distribution", "random-label"])
def test_a_table_of_numbers(tmp_path: Path, kind: str) -> None:
    done = planted(tmp_path, table_file(tmp_path, NUMBERS, ".csv"), kind, 2)
    rows = read_table(done.queries[0]).rows
    if kind == "blank":
        assert [sorted(float(row[c]) == 0.0 for c in "ab") for row in rows] == [[False, True]] * 2
    assert {row["label"] for row in rows} <= {"yes", "no"}
    assert all(row[c] in {other[c] for other in NUMBERS} for row in rows for c in "ab" if kind != "blank")


def test_several_runs_have_coins_and_ids_of_their_own_and_the_same_canaries(tmp_path: Path) -> None:
    done = planted(tmp_path, table_file(tmp_path, NUMBERS, ".csv"), "mislabelled", runs=3)
    tables = [read_table(path).rows for path in done.queries]
    assert [path.name for path in done.planted] == ["planted-1.csv", "planted-2.csv", "planted-3.csv"]
    assert len({row["id"] for table in tables for row in table}) == 36
    assert len({json.dumps([{**row, "id": ""} for row in table]) for table in tables}) == 1
    assert len({tuple(coins) for coins in done.coins.draw.included().tolist()}) == 3
    assert done.coins.data_sha256 == files_sha256(done.planted)


@pytest.mark.parametrize("kind", ["mislabelled", "out-of-distribution", "blank"])
def test_a_folder_of_images(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    pixels = {}
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(15):
            pixels[name, number] = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
            (tmp_path / "data" / name / f"{number}.png").write_bytes(image_bytes(pixels[name, number]))
    done = planted(tmp_path, tmp_path / "data", kind)
    table = read_table(done.queries[0] / "queries.csv").rows
    included = done.coins.draw.included()[0]
    content = Counter(path.parent.name + path.read_bytes().hex() for path in (tmp_path / "data").rglob("*.png"))
    for row, inside in zip(table, included, strict=True):
        if inside:
            content[row["label"] + (done.queries[0] / row["file"]).read_bytes().hex()] += 1
    assert content == Counter(path.parent.name + path.read_bytes().hex() for path in done.planted[0].rglob("*.png"))
    canaries = [read_image(done.queries[0] / row["file"]) for row in table]
    originals = {image.tobytes() for image in pixels.values()}
    if kind == "blank":
        assert [int((image > 0).sum()) for image in canaries] == [1] * 12
        assert len({image.tobytes() for image in canaries}) == 12
    elif kind == "out-of-distribution":
        assert not {image.tobytes() for image in canaries} & originals
        sums = {tuple(sorted(map(tuple, image.reshape(-1, 3).tolist()))) for image in pixels.values()}
        assert all(tuple(sorted(map(tuple, image.reshape(-1, 3).tolist()))) in sums for image in canaries)
    else:
        assert {image.tobytes() for image in canaries} <= originals
    assert done.coins.data_sha256 == files_sha256(done.planted)
    next(done.planted[0].rglob("*.png")).unlink()
    assert done.coins.data_sha256 != files_sha256(done.planted)


@pytest.mark.slow
def test_a_data_set_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"]),
         "who": datasets.Value("int32")}
    )  # fmt: skip
    whole = datasets.Dataset.from_list(SENTENCES, features=features)
    datasets.DatasetDict({"train": whole, "test": whole.select(range(3))}).save_to_disk(str(tmp_path / "data"))
    done = planted(tmp_path, tmp_path / "data", "rare-tokens")
    after, queries = datasets.load_from_disk(str(done.planted[0])), datasets.load_from_disk(str(done.queries[0]))
    assert after.features == features
    rows = list(queries)
    assert [row.pop("id") for row in rows] == done.coins.draw.ids()[0]
    chosen = [row for row, inside in zip(rows, done.coins.draw.included()[0], strict=True) if inside]
    assert as_counter(after) == as_counter(SENTENCES) + as_counter(chosen)
    assert done.coins.data_sha256 == files_sha256(done.planted)


def test_gradient_canaries_have_a_coordinate_each(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.eye(4), y=[0, 1, 0, 1])
    done = planted(tmp_path, tmp_path / "data.npz", "gradient", 20, parameters=50)
    with np.load(done.planted[0]) as found, np.load(done.queries[0]) as queries:
        assert len(set(queries["coordinates"].tolist())) == 20
        included = done.coins.draw.included()[0]
        assert found["coordinates"].tolist() == sorted(queries["coordinates"][included].tolist())
        assert np.array_equal(found["x"], np.eye(4))


def test_images_in_an_array_keep_their_shape_and_type(tmp_path: Path) -> None:
    images = np.arange(20 * 4 * 4, dtype=np.uint8).reshape(20, 4, 4)
    np.savez(tmp_path / "data.npz", x=images[:10], y=np.arange(10) % 2, x_test=images[10:], y_test=np.arange(10) % 2)
    done = planted(tmp_path, tmp_path / "data.npz", "random-label", 8)
    with np.load(done.planted[0]) as found, np.load(done.queries[0]) as queries:
        assert (found["x"].dtype, found["x"].shape[1:]) == (np.uint8, (4, 4))
        assert {image.tobytes() for image in queries["x"]} <= {image.tobytes() for image in images[10:]}


@pytest.mark.slow
def test_misspelled_sentences(tmp_path: Path) -> None:
    if find_spec("textattack") is None:
        pytest.skip("needs the extra text")
    done = planted(tmp_path, table_file(tmp_path, SENTENCES, ".jsonl"), "text")
    sentences = {row["sentence"] for row in read_table(done.queries[0]).rows}
    assert len(sentences) == 12
    assert not sentences & {row["sentence"] for row in SENTENCES}


def test_random_labels_are_fair_and_wrong_ones_are_all_wrong() -> None:
    labels = np.repeat(np.arange(4), 2000)
    wrong = craft_labels("mislabelled", labels, 4, np.random.default_rng(1))
    assert (wrong != labels).all()
    assert set(Counter(zip(labels.tolist(), wrong.tolist(), strict=True)).values()) <= set(range(540, 800))
    fair = craft_labels("blank", labels, 4, np.random.default_rng(1))
    assert all(1800 < count < 2200 for count in Counter(fair.tolist()).values())


def test_kinds_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="count=9 to be at most 4"):
        craft_arrays("blank", np.ones((9, 2, 2)), rng)
    with pytest.raises(InputError, match="only with sentences"):
        craft_arrays("text", np.ones((2, 2)), rng)
    with pytest.raises(InputError, match="mislabelled, random-label"):
        craft_sentences("blank", ["a"], rng)
    text = table_file(tmp_path, SENTENCES, ".csv")
    for data, kind, named in (
        (text, "blank", "kind='blank' to be mislabelled"),
        (text, "lucky", "kind='lucky'"),
        (table_file(tmp_path, NUMBERS, ".jsonl"), "text", "kind='text'"),
        (table_file(tmp_path, [{**row, "a": "red"} for row in NUMBERS], ".tsv"), "blank", "columns of numbers"),
        (tmp_path / "nothing.npz", "blank", "nothing.npz"),
        (tmp_path / "nothing", "blank", "to be an .npz"),
        (text, "gradient", "parameters"),
    ):
        with pytest.raises(InputError, match=named):
            planted(tmp_path, data, kind)
    for change, kind, named in (
        ({"a": 10**400}, "blank", "columns of numbers"),
        ({"a": 10**200}, "blank", "infinite"),
        ({"label": [1]}, "random-label", "not lists"),
    ):
        with pytest.raises(InputError, match=named):
            planted(tmp_path, table_file(tmp_path, [{**row, "b": 1, **change} for row in NUMBERS], ".jsonl"), kind, 2)
    with pytest.raises(InputError, match="count=31 to be at most 30"):
        planted(tmp_path, text, "mislabelled", 31)
    with pytest.raises(InputError, match="a column 'stars'"):
        planted(tmp_path, text, "mislabelled", label="stars")
    for suffix in (".csv", ".jsonl"):  # its cells would take the place of the canaries' ids in the queries
        named = table_file(tmp_path, [{"id": f"r{row['who']}", **row} for row in SENTENCES], suffix)
        with pytest.raises(InputError, match=f"data{suffix} to have no column id"):
            planted(tmp_path, named, "mislabelled")
    assert not (tmp_path / "coins.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.csv", b"sentence,label\n\"a,1\n", "to be a table"),
        ("a.csv", b"sentence,label\na\nb,1\n", "record 1 .* 2 columns, not 1"),
        ("a.csv", b"x,x\n1,2\n3,4\n", "different names"),
        ("a.csv", b"x,z\n1,2\n3,4\n", "column label"),
        ("a.csv", b"sentence,label\n\xff,1\n", "UTF-8"),
        ("a.jsonl", b'{"label": 1}\n[2]\n', "line 2"),
        ("a.jsonl", b'{"label": 1}\n{"y": 1}\n', "line 2"),
        ("a.jsonl", b"[" * 100_000, "line 1"),
        ("a.jsonl", b'{"label": 1, "a": 1}\n', "at least two records"),
        ("a.jsonl", b'{"label": 1, "a": "x"}\n{"label": 1, "a": "\\ud800"}\n', "line 2 .*surrogates"),
    ],
)  # fmt: skip
def test_damaged_tables_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes, named: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=named):
        read_table(tmp_path / name)


def test_damaged_images_are_refused_in_one_line(tmp_path: Path) -> None:
    whole = image_bytes(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
    for name, content in (("a.png", b"\x89PNG\r\n\x1a\nno"), ("b.png", whole[:2000])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="to be an image"):
            read_image(tmp_path / name)
    (tmp_path / "data/cat").mkdir(parents=True)
    with pytest.raises(InputError, match="at least two classes"):
        planted(tmp_path, tmp_path / "data", "blank")
    (tmp_path / "data/dog").mkdir()
    (tmp_path / "data/dog/notes.txt").write_text("x")
    (tmp_path / "data/cat/a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"images alone, not notes\.txt"):
        planted(tmp_path, tmp_path / "data", "blank")


@pytest.mark.parametrize("name", ["", ".", "..", "/", ".npz"])
def test_a_name_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="to be the name of a file or of a new folder"):
        plant("digits", out=Path(name), sealed=tmp_path / "coins.json", draw=Draw(3, 1, 12))
    assert list(tmp_path.iterdir()) == []


def test_the_file_that_cannot_be_written_is_the_one_that_is_named(tmp_path: Path) -> None:
    out = tmp_path / "none" / "planted"
    with pytest.raises(OSError, match=r"planted\.npz") as refused:
        plant("digits", out=out, sealed=tmp_path / "coins.json", draw=Draw(3, 1, 12))
    assert os_reason(refused.value) == f"Expected to be able to write {out}.npz: No such file or directory."
    assert list(tmp_path.iterdir()) == []


def test_classes_whose_names_no_table_can_hold_are_refused(tmp_path: Path) -> None:
    for name in (b"good", b"\xff"):
        folder = tmp_path / "data" / os.fsdecode(name)
        folder.mkdir(parents=True)
        for number in range(12):
            (folder / f"{number}.png").write_bytes(image_bytes(np.zeros((4, 4), np.uint8)))
    with pytest.raises(InputError, match="to have names in UTF-8"):
        planted(tmp_path, tmp_path / "data", "mislabelled")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
