"""The trial store: what is believed, what is refused in one line, and what happens where nothing can be written."""

import functools
import hashlib
import platform
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from small_trials import arms, setup

from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.trials import keys as keys_module
from dpaudit.audit.trials import store as store_module
from dpaudit.audit.trials.blocks import block_keys, cut, setup_key
from dpaudit.audit.trials.engine import DISPUTED, TrialRunner
from dpaudit.audit.trials.keys import (
    NoSourceError,
    circumstances,
    evidence_key,
    fingerprint,
    plain,
    processor,
    sources,
)
from dpaudit.audit.trials.store import UNRECORDED, LockedError, StorageError, TrialStore, stored_seed
from dpaudit.mechanisms.learning.training import train

SCORES = np.arange(12.0).reshape(6, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with the scores of one block, a seed and a look."""
    file = tmp_path / "trials.sqlite"
    with TrialStore(file) as store:
        store.put("a", SCORES)
        store.put_seed(7)
        assert store.look("game", "6 models") == 1
    return file


def change(path: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(path)
    assert db.execute(statement, values).rowcount == 1
    db.commit()
    db.close()


def test_what_was_written_is_read_again(path: Path) -> None:
    for name in (path, str(path)):
        with TrialStore(name) as store:
            np.testing.assert_array_equal(store.get("a"), SCORES)
            assert store.get("b") is None
    assert stored_seed(path) == 7
    assert stored_seed(path.with_name("none.sqlite")) is None


@pytest.mark.parametrize(
    "damage", ["zeroblob(0)", "substr(value, 1, 40)", "substr(value, 1, length(value) - 1) || x'00'"]
)
def test_scores_that_were_emptied_shortened_or_changed_are_not_believed(path: Path, damage: str) -> None:
    change(path, f"UPDATE entries SET value = {damage} WHERE key = 'scores a'")
    with (
        TrialStore(path) as store,
        pytest.raises(InputError, match=r"trials\.sqlite .* damaged; move it away, or .* --fresh"),
    ):
        store.get("a")
    with TrialStore(path, fresh=True) as store:
        assert store.get("a") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scores a", b""),
        ("scores a", b"no array"),
        ("scores a", b"\x93NUMPY\x01\x00\x03\x00((("),
        ("fewer models", b""),
        ("seed", b"seven"),
        ("seed", b"-7"),
        ("look game", b"{"),
        ("look game", b"1"),
        ("look game", b"\xff"),
    ],
)
def test_what_somebody_else_put_there_with_its_checksum_is_damage(path: Path, key: str, value: bytes) -> None:
    """The checksum has no key: anybody can compute it."""
    if key == "fewer models":
        with TrialStore(path) as store:
            store.put("a", SCORES[:2])
    else:
        file = path.with_name("looks.sqlite") if key.startswith("look") else path
        checksum = hashlib.sha256(key.encode() + b"\0" + value).digest()
        change(file, "UPDATE entries SET value = ?, checksum = ? WHERE key = ?", value, checksum, key)

    def read() -> None:
        stored_seed(path)
        with TrialStore(path) as store:
            store.get("a", models=6)
            store.look("game", "12 models")

    with pytest.raises(InputError, match=r"\.sqlite to be as it was written: it is damaged"):
        read()


@pytest.mark.parametrize("checksum", ["x'80'", "CAST(x'80' AS TEXT)", "5"])
def test_a_checksum_that_is_no_longer_bytes_is_damage(path: Path, checksum: str) -> None:
    change(path, f"UPDATE entries SET checksum = {checksum} WHERE key = 'scores a'")
    with TrialStore(path) as store, pytest.raises(InputError, match="it is damaged"):
        store.get("a")


def test_scores_of_other_trials_are_not_believed(path: Path) -> None:
    change(path, "UPDATE entries SET key = 'scores b' WHERE key = 'scores a'")
    with TrialStore(path) as store, pytest.raises(InputError, match="damaged"):
        store.get("b")


@pytest.mark.parametrize("kept", [0.0, 0.4, 0.9])
def test_a_file_cut_short_gives_no_scores(path: Path, kept: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    if not kept:  # an empty file is a new store
        with TrialStore(path) as store:
            assert store.get("a") is None
        return
    found = None
    with suppress(InputError), TrialStore(path) as store:
        found = store.get("a")
    assert found is None
    with TrialStore(path, fresh=True) as store:
        store.put("a", SCORES)
        np.testing.assert_array_equal(store.get("a"), SCORES)


@pytest.mark.parametrize("kept", [4200, 5000, 6000, 7600, 8190])
def test_a_page_cut_short_forgets_no_look(tmp_path: Path, kept: int) -> None:
    """SQLite takes what is missing for zeros: the looks were absent, and the next one was the first again."""
    store = TrialStore(tmp_path / "trials.sqlite")
    with store:
        for name in "abc":
            store.look("game", name * 70)
    looks = tmp_path / "looks.sqlite"
    assert len(looks.read_bytes()) == 8192
    looks.write_bytes(looks.read_bytes()[:kept])
    with TrialStore(tmp_path / "trials.sqlite") as again, pytest.raises(InputError, match="it is damaged"):
        again.look("game", "d" * 70)


def test_a_store_that_another_process_writes_is_whole(path: Path) -> None:
    """Opened again and again while a second process makes it grow."""
    code = (
        "import sys; import numpy as np; from dpaudit.audit.trials.store import TrialStore\n"
        "with TrialStore(sys.argv[1]) as store:\n"
        "    for i in range(300):\n"
        "        store.put(f'k{i}', np.arange(400.0))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as writer:
        opened = 0
        while writer.poll() is None:
            with suppress(LockedError), TrialStore(path) as store:
                opened += store.get("a") is not None
    assert (writer.returncode, opened > 0) == (0, True)


@pytest.mark.parametrize("content", [b"a diary\n" * 200, None])
def test_a_file_of_somebody_else_is_refused_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "trials.sqlite"
    if content is None:
        db = sqlite3.connect(file)
        db.execute("CREATE TABLE scores (key TEXT)")
        db.close()
    else:
        file.write_bytes(content)
    before = file.read_bytes()
    for fresh in (False, True):
        with pytest.raises(InputError, match="it is another file"):
            TrialStore(file, fresh=fresh)
    assert file.read_bytes() == before


def test_a_store_of_another_version_is_refused(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 1")
    db.close()
    with pytest.raises(InputError, match="of version 2, not 1: move the stores of its folder away"):
        TrialStore(path)


def test_a_lock_is_waited_for_and_then_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PATIENCE", 0.2)
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    for fresh in (False, True):
        with pytest.raises(InputError, match="another process has locked it"):
            TrialStore(path, fresh=fresh)
    holder.execute("ROLLBACK")
    with TrialStore(path) as store:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match="another process has locked it"):
            store.put("b", SCORES)
    monkeypatch.setattr(store_module, "PATIENCE", 20.0)
    threading.Timer(0.2, holder.execute, ["ROLLBACK"]).start()
    with TrialStore(path) as store:
        store.put("b", SCORES)
    holder.close()


def test_a_locked_store_of_another_process_is_passed_over_and_the_own_one_ends_the_training(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PATIENCE", 0.1)
    own, late = path.with_name("own.sqlite"), path.with_name("late.sqlite")
    with TrialStore(own, shared=True) as store:
        TrialStore(late).__exit__()
        for other in (path, late):  # one that is open, and one that is not yet
            with closing(sqlite3.connect(other, isolation_level=None)) as holder:
                holder.execute("BEGIN EXCLUSIVE")
                store.refresh()
                found = store.get("a")
                assert (found is None) == (other == path)
                holder.execute("ROLLBACK")
        with closing(sqlite3.connect(own, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            trials = TrialRunner(store)
            assert len(trials.run(setup(), *arms(6))[0]) == 0
            assert "another process has locked it" in trials.stopped
            holder.execute("ROLLBACK")
        late.unlink()
        store.refresh()


def test_a_store_that_was_deleted_is_said_to_be(path: Path) -> None:
    with TrialStore(path) as store:
        path.unlink()
        with pytest.raises(StorageError, match="it was moved or deleted"):
            store.put("b", SCORES)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that is opened from now on can grow no more."""
    opened = store_module._check_or_create

    def small(db: sqlite3.Connection, path: Path | None) -> None:
        opened(db, path)
        db.execute("PRAGMA max_page_count = 1")

    monkeypatch.setattr(store_module, "_check_or_create", small)


def test_a_full_disk_is_a_storage_error_and_an_unwritten_look_spends_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch)
    with TrialStore(path) as store:
        with pytest.raises(StorageError, match="disk is full"):
            store.put("b", np.zeros(100_000))
        np.testing.assert_array_equal(store.get("a"), SCORES)
        assert store.look("another game" * 10_000, "6 models", count=False) == 1
        assert not store.unwritten  # a plan needs none
        assert store.look("another game" * 10_000, "6 models") == UNRECORDED
        assert store.unwritten.startswith("cannot write to ")
        assert store.look("game", "6 models") == 1


def test_a_store_that_takes_nothing_more_gives_what_it_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that is mounted for reading, a finished audit could not be reported again."""
    connect = sqlite3.connect
    with TrialStore(path) as store:
        store.put_seed(7)
    monkeypatch.setattr(
        sqlite3, "connect", lambda file, **options: connect(f"file:{file}?mode=ro", uri=True, **options)
    )
    with TrialStore(path) as store:
        store.put_seed(7)
        np.testing.assert_array_equal(store.get("a"), SCORES)
        assert store.look("game", "6 models") == 1
        assert store.look("game", "12 models") == UNRECORDED
        with pytest.raises(StorageError, match="readonly"):
            store.put_seed(8)


def test_looks_are_counted_by_the_evidence_looked_at(path: Path) -> None:
    with TrialStore(path) as store:
        assert [store.look("game", f"{trials} models") for trials in (6, 12, 12, 6, 24)] == [1, 2, 2, 1, 3]
        assert store.look("another game", "12 models") == 1
    with TrialStore(path, fresh=True) as store:
        assert store.get("a") is None
        assert stored_seed(path) is None
        assert store.look("game", "48 models") == 4  # the same seeds would give the same scores again


@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_of_looks_that_is_gone_is_missed(path: Path, fresh: bool) -> None:
    """Counted anew, the next look would spend the whole error again."""
    with TrialStore(path) as store:
        assert store.look("game", "6 models") == 1
        assert store.look("asked for alone", "6 models", count=False) == 1
    path.with_name("looks.sqlite").unlink()
    with TrialStore(path, fresh=fresh) as store:
        for count in (False, True):
            with pytest.raises(
                InputError, match=r"looks\.sqlite to hold the looks .* put it back, or name another seed"
            ):
                store.look("game", "12 models", count=count)
        assert store.look("asked for alone", "6 models") == 1
        assert store.look("game of another seed", "6 models") == 1


def test_a_look_that_is_only_asked_for_is_not_counted(path: Path) -> None:
    with TrialStore(path) as store:
        assert [store.look("game", f"{trials} models", count=False) for trials in (6, 12, 24)] == [1, 2, 2]
        assert store.look("game", "24 models") == 2


def test_the_stores_of_a_folder_count_their_looks_together(path: Path) -> None:
    """Whether or not they read each other's scores: the same seeds give the same ones."""
    for name, shared, look in (("second", True, 2), ("third", False, 3), ("trials", False, 4)):
        with TrialStore(path.with_name(f"{name}.sqlite"), shared=shared) as store:
            assert store.look("game", f"{10 * look} models") == look
            assert store.look("game", "6 models") == 1
    path.unlink()
    with TrialStore(path) as store:
        assert store.look("game", "50 models") == 5
    looks = path.with_name("looks.sqlite")
    change(looks, "UPDATE entries SET value = x'5b5d' WHERE key = 'look game'")
    with TrialStore(path) as store, pytest.raises(InputError, match=r"looks\.sqlite .* damaged; move it away"):
        store.look("game", "50 models")


def test_four_writers_of_one_store_lose_nothing(path: Path) -> None:
    def write(writer: int) -> None:
        with TrialStore(path) as store:
            for row in range(25):
                store.put(f"{writer} {row}", np.array([float(writer), float(row)]))

    writers = [threading.Thread(target=write, args=[writer]) for writer in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with TrialStore(path) as store:
        found = [store.get(f"{writer} {row}") for writer in range(4) for row in range(25)]
    np.testing.assert_array_equal(found, [[writer, row] for writer in range(4) for row in range(25)])


def test_the_stores_of_one_folder_are_read_together(path: Path) -> None:
    with TrialStore(path.with_name("second.sqlite"), shared=True) as store:
        np.testing.assert_array_equal(store.get("a"), SCORES)
        with TrialStore(path.with_name("third.sqlite")) as third:
            third.put("c", SCORES + 1)
            third.put_seed(8)
        store.refresh()
        np.testing.assert_array_equal(store.get("c"), SCORES + 1)
        assert TrialStore(path.with_name("second.sqlite")).get("a") is None
    new = path.with_name("run.sqlite")
    with pytest.raises(InputError, match=r"one seed .* not \[7, 8\]"):
        stored_seed(new, shared=True)
    with pytest.raises(InputError, match=r"one seed .* not \[7, 8\]"):
        stored_seed(path, shared=True)  # its own does not make the shares' another
    assert stored_seed(path) == 7
    path.with_name("third.sqlite").unlink()
    assert stored_seed(new, shared=True) == 7
    assert not new.exists()


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Writes a module of the user's own and imports it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(text: str, name: str = "users_loop") -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        module = ModuleType(name)
        module.__file__ = str(tmp_path / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, module.__file__, "exec"), module.__dict__)
        return module

    return load


LOOP = "from users_noise import SIGMA\ndef train(*a, **k):\n    return SIGMA\n"


def test_a_loop_is_known_by_its_text_and_by_that_of_what_it_imports(loaded: Callable[..., ModuleType]) -> None:
    keys = []
    for noise, text in (("SIGMA = 1.0", LOOP), ("SIGMA = 0.5", LOOP), ("SIGMA = 1.0", LOOP + "# repaired\n")):
        loaded(noise, "users_noise")
        keys.append(fingerprint({"t": loaded(text).train}))
    loaded("SIGMA = 1.0", "users_noise")
    assert len(set(keys)) == 3
    assert fingerprint({"t": loaded(LOOP).train}) == keys[0]


def test_a_loop_is_known_by_its_values_too(loaded: Callable[..., ModuleType]) -> None:
    """Bound arguments, closures, the state of objects, and globals changed after the module was loaded."""
    text = """
SIGMA = 1.0
def train(*a, **k): return helper()
def helper(): return SIGMA
def make(sigma):
    return lambda *a, **k: sigma
class Loop:
    def __init__(self, sigma): self.sigma = sigma
    def __call__(self, *a, **k): return self.sigma
    def train(self, *a, **k): return self.sigma
"""
    module = loaded(text)
    partial = functools.partial
    trainers = [partial(module.train, 1), partial(module.train, 2), partial(module.train, s=2), module.train]
    trainers += [made for s in (1.0, 2.0) for made in (module.make(s), module.Loop(s), module.Loop(s).train)]
    keys = [fingerprint({"t": trainer}) for trainer in trainers]
    assert len(set(keys)) == len(trainers)
    module.SIGMA = 0.3
    assert fingerprint({"t": module.train}) not in keys
    seen = set()
    for noise in (partial(module.make, 1.0), partial(module.make, 2.0), torch.nn.Dropout(0.1), torch.nn.Dropout(0.2)):
        module.SIGMA = noise  # bound arguments and state of what a global calls
        seen.add(fingerprint({"t": module.train}))
    assert len(seen) == 4
    assert fingerprint({"t": module.Loop(1.0)}) == keys[5]


def test_code_without_a_source_has_no_key_unless_it_says_who_it_is() -> None:
    namespace: dict[str, Callable[..., float]] = {}
    exec("def train(*a, **k): return 1.0", namespace | {"__name__": "nowhere"}, namespace)
    trainer = namespace["train"]
    with pytest.raises(NoSourceError, match="'nowhere' has no source"):
        plain(trainer)
    trainer.trainer_id = "mine, 3"  # type: ignore[attr-defined]
    assert plain(trainer) == ["mine, 3", "no source"]
    assert plain(functools.partial(trainer, 2)) != plain(functools.partial(trainer, 3))
    with pytest.raises(NoSourceError):
        fingerprint({"score": np.random.default_rng(0)})


def test_imports_are_followed_to_the_users_own_files_wherever_they_stand(tmp_path: Path) -> None:
    package = tmp_path / "work"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "loop.py").write_text("def train():\n    from . import noise\n    import numpy.random\n    import os\n")
    (package / "noise.py").write_text("from .deep import draw\n")
    (package / "deep.py").write_text("draw = 1\n")
    found = sources(package / "loop.py")
    assert sum(len(item) == 64 for item in found) >= 3
    assert any(item.startswith("numpy==") for item in found)
    (package / "deep.py").write_text("draw = 2\n")
    assert sources(package / "loop.py") != found


@pytest.mark.parametrize(
    "text",
    [
        'from importlib import import_module\nhelper = import_module("helper")\n',
        'import importlib\nhelper = importlib.import_module(".helper", __package__)\n',
        'helper = __import__("helper")\n',
    ],
)
def test_imports_by_a_name_that_is_written_out_are_followed(tmp_path: Path, text: str) -> None:
    (tmp_path / "loop.py").write_text(text)
    (tmp_path / "helper.py").write_text("FACTOR = 1.0\n")
    found = sources(tmp_path / "loop.py")
    (tmp_path / "helper.py").write_text("FACTOR = 0.5\n")
    assert sources(tmp_path / "loop.py") != found


def test_evidence_is_known_by_its_inputs_alone_whatever_measured_it(
    loaded: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of torch, of this package or of Python, and a score of ours in other words: the same game."""

    def keys() -> list[str]:
        users = loaded("import torch\n" + LOOP).train
        games = [{"spec": setup().spec, "trainer": trainer} for trainer in (train, users)]
        games.append({"spec": replace(setup().spec, learning_rate=0.4), "trainer": users})
        return [evidence_key({"data": "a sha", "seed": seed, **game}) for game in games for seed in (1, 2)]

    loaded("SIGMA = 1.0", "users_noise")
    before, exact = keys(), fingerprint({"spec": setup().spec})
    assert len(set(before)) == 6
    monkeypatch.setattr(keys_module, "folder_sha256", lambda folder, pattern: "another version of ours")
    monkeypatch.setattr(keys_module, "version", lambda name: "another version")
    monkeypatch.setattr(keys_module, "_bytecode", lambda code: ["another version of Python"])
    assert keys() == before
    assert fingerprint({"spec": setup().spec}) != exact
    loaded("SIGMA = 0.5", "users_noise")
    assert [key == old for key, old in zip(keys(), before, strict=True)] == [True, True, False, False, False, False]
    # a field more or less of what a training is told needs another VERSION of stores
    assert evidence_key({"spec": setup().spec})[:16] == "d79ba15fef2f9939"


def test_code_that_nothing_tells_apart_counts_as_the_same_evidence() -> None:
    namespace: dict[str, Callable[..., float]] = {}
    exec("def train(*a, **k): return 1.0\ndef repaired(*a, **k): return 2.0", {"__name__": "nowhere"}, namespace)
    keys = {evidence_key({"seed": 1, "trainer": trainer}) for trainer in namespace.values()}
    assert keys == {evidence_key({"seed": 1})}


CPU_INFO = """processor\t: 0
vendor_id\t: {vendor}
cpu family\t: 6
model\t\t: {model}
model name\t: some name
cpu MHz\t\t: {mhz}

processor\t: 1
vendor_id\t: {vendor}
"""


def test_the_processor_by_which_linear_algebra_chooses_its_kernels_is_part_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(**details: object) -> str:
        (tmp_path / "cpuinfo").write_text(
            CPU_INFO.format(**{"vendor": "GenuineIntel", "model": 85, "mhz": 2100, **details})
        )
        return processor(tmp_path / "cpuinfo")

    names = [named(), named(vendor="AuthenticAMD"), named(model=207)]
    assert len(set(names)) == 3
    assert names[0].endswith("/GenuineIntel/6/85")
    assert named(mhz=900) == names[0]
    assert processor(tmp_path / "nothing") == (platform.processor() or platform.machine())
    assert circumstances("cpu")["cpu"] == processor()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert circumstances("cpu")["mkl"] == "COMPATIBLE"


def test_weights_that_a_file_draws_as_it_is_loaded_are_no_other_game() -> None:
    """Of a network that a loop copies and sets anew: looks would start again in every process."""
    nets = [torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2)]
    assert evidence_key({"trainer": nets[0]}) == evidence_key({"trainer": nets[1]})
    assert evidence_key({"trainer": nets[0]}) != evidence_key({"trainer": torch.nn.Sequential(torch.nn.Linear(2, 3))})
    assert fingerprint({"trainer": nets[0]}) != fingerprint({"trainer": nets[1]})


@pytest.mark.parametrize(("shift", "notes"), [(0.0, []), (1.0, [DISPUTED])])
def test_scores_that_differ_from_file_to_file_are_told_in_the_result(
    tmp_path: Path, shift: float, notes: list[str]
) -> None:
    game, lists = setup(), arms(3)
    with TrialStore(tmp_path / "a.sqlite") as first, TrialStore(tmp_path / "b.sqlite") as second:
        TrialRunner(first).run(game, *lists)
        base = block_keys(setup_key(game), cut(game.block, lists))
        for key in base.values():
            scores = first.get(key)
            assert scores is not None
            second.put(key, scores + shift)
    with TrialStore(tmp_path / "run.sqlite", shared=True) as store:
        trials = TrialRunner(store)
        trials.run(game, *lists)
    assert (trials.trained, trials.notes) == (0, notes)
