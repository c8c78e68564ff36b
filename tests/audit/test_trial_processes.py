"""Trials in several processes: shares of one folder, workers that die, audits that are killed, a Ray cluster."""

import contextlib
import json
import math
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joblib.externals import loky
from small_trials import SMALL_BLOCKS, arms, setup

from dpaudit.audit.attacks import canary_game, pilot
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import load_recipe
from dpaudit.audit.inputs.user_code import UserFunction, UserTrainer
from dpaudit.audit.training_run import train_bundle
from dpaudit.audit.trials import blocks, local_engine
from dpaudit.audit.trials.engine import Scores, Trial, TrialRunner, TrialSetup, trial_seed
from dpaudit.audit.trials.store import TrialStore

ROOT = Path(__file__).parents[2]
MODELS = 32  # per arm, in blocks of 8
DYING = """
import os, pathlib, signal
from dpaudit.mechanisms.learning.training import train as honest

def train(*arguments, **options):
    marker = pathlib.Path(__file__).with_name("died")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(*arguments, **options)

def always(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
"""
LOADING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from dpaudit.mechanisms.learning.training import train as honest

def train(spec, pool, *arguments, **options):
    loader = DataLoader(TensorDataset(torch.from_numpy(pool.x)), 5, num_workers=1)
    assert sum(len(x) for x, in loader) == len(pool.x)
    return honest(spec, pool, *arguments, **options)
"""
TOLD = """
import os, pathlib, time
from dpaudit.mechanisms.learning.training import train as honest

def train(spec, pool, members, seeds, **options):
    here = pathlib.Path(__file__)
    with here.with_name("processes").open("a") as file:
        print(os.getpid(), file=file)
    if here.with_name("hangs").exists():
        try:
            time.sleep(600)
        except Exception:  # as loops have it that try again
            time.sleep(600)
    return honest(spec, pool, members, seeds, **options)
"""
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", SMALL_BLOCKS)
    assert setup().block == 8


@pytest.fixture
def undisturbed() -> tuple[np.ndarray, ...]:
    return TrialRunner().run(setup(), *arms(MODELS))


def dying(tmp_path: Path, function: str = "train") -> UserTrainer:
    (tmp_path / "dying.py").write_text(DYING)
    return UserTrainer(UserFunction.named(f"dying.py:{function}", "--trainer", tmp_path))


def test_a_share_is_trained_first_and_after_it_what_the_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Any
) -> None:
    """The second of three dies half way through its share of 8 blocks: the others do its work, each block once."""
    real, trained = local_engine.train_block, []

    def counted(setup: TrialSetup, block: Any, deadline: float | None = None) -> np.ndarray:
        if len(trained) == 1 and share == 2:
            raise KeyboardInterrupt
        trained.append(block[0][1])
        return real(setup, block, deadline)

    monkeypatch.setattr(local_engine, "train_block", counted)
    done = []
    for share in (2, 1, 3):
        before = len(trained)
        with TrialStore(tmp_path / f"{share}.sqlite", shared=True) as store:
            runner = TrialRunner(store, share=(share, 3))
            scores = runner.run(setup(), *arms(MODELS))
        done.append((runner.stopped, runner.trained, trained[before:][:1]))
    first_seeds = {1: trial_seed(3, 0, 0), 2: trial_seed(3, 1, 0), 3: trial_seed(3, 0, 8)}
    assert done == [("interrupted", 8, [first_seeds[2]]), ("", 56, [first_seeds[1]]), ("", 0, [])]
    assert len(set(trained)) == len(trained) == 8
    np.testing.assert_array_equal(scores, undisturbed)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(tmp_path: Path, undisturbed: Any) -> None:
    runner = TrialRunner(workers=2, deadline=time.monotonic() + 300)
    np.testing.assert_array_equal(runner.run(setup(dying(tmp_path)), *arms(MODELS)), undisturbed)
    assert (tmp_path / "died").exists()
    assert runner.stopped == ""


@pytest.mark.slow
def test_a_loop_in_a_worker_may_start_processes_of_its_own(tmp_path: Path, undisturbed: Any) -> None:
    """Loky's way of starting them, a worker's default, fails for a DataLoader: an honest loop was refused."""
    (tmp_path / "loading.py").write_text(LOADING)
    trainer = UserTrainer(UserFunction.named("loading.py:train", "--trainer", tmp_path))
    runner = TrialRunner(workers=2, deadline=time.monotonic() + 300)
    np.testing.assert_array_equal(runner.run(setup(trainer), *arms(MODELS)), undisturbed)


def test_under_a_deadline_a_quick_loop_trains_here_once_it_is_known_to_be_one(tmp_path: Path) -> None:
    """Workers were started for each of a pilot's lists: nine times the time of an audit without a budget."""
    (tmp_path / "told.py").write_text(TOLD)
    trainer = UserTrainer(UserFunction.named("told.py:train", "--trainer", tmp_path))
    runner = TrialRunner(workers=2, deadline=time.monotonic() + 1000)
    runner.run(setup(trainer), arms(8)[0])
    first, *_, again = (tmp_path / "processes").read_text().split()  # a few models are trained again
    assert first != again == str(os.getpid())
    assert runner._pace.seconds < 1.0
    (tmp_path / "processes").unlink()
    runner.deadline = 1e17  # seconds that are too many for a clock
    runner.run(setup(trainer), arms(24)[0])
    assert set((tmp_path / "processes").read_text().split()) == {str(os.getpid())}
    (tmp_path / "hangs").touch()
    handler, timer = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 900.0)
    runner.deadline, began = time.monotonic() + 2.0, time.monotonic()
    runner.run(setup(trainer), arms(48)[0])
    assert runner.stopped == "budget"
    assert time.monotonic() - began < 6.0
    assert signal.getsignal(signal.SIGALRM) is handler
    assert 800.0 < signal.setitimer(signal.ITIMER_REAL, *timer)[0] < 900.0


@pytest.mark.parametrize("deadline", [math.inf, 1e17])
def test_a_budget_of_ages_is_waited_for(deadline: float) -> None:
    """`--budget 99999999999999h` was an OverflowError as soon as workers trained."""
    future = loky.Future()
    threading.Timer(0.05, future.set_result, [1]).start()
    assert loky.wait([future], timeout=local_engine.seconds_until(deadline)).done == {future}


def test_workers_that_cannot_be_started_are_giving_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(executor: object, *work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(loky.ProcessPoolExecutor, "submit", refused)
    monkeypatch.setattr(local_engine, "SERIAL_SECONDS", -1.0)
    runner = TrialRunner(workers=2)
    runner.run(setup(), *arms(MODELS))
    assert 0 < runner.trained < 2 * MODELS  # the first block, which is trained here
    assert runner.stopped.startswith("no worker could be started: can't start new thread")


def test_a_thread_that_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more threads are allowed loky's own dies, and no block is ever finished."""
    monkeypatch.setattr(local_engine, "LOOK_SECONDS", 0.05)
    with pytest.raises(blocks.OutOfTimeError):
        local_engine._finished([loky.Future()], time.monotonic() + 0.01)
    with pytest.raises(local_engine.WorkersDiedError):
        local_engine._finished([loky.Future()], None)


INTERRUPTED = """
import sys
from pathlib import Path

sys.path.insert(0, {folder!r})
from small_trials import arms, setup

from dpaudit.audit.trials import local_engine
from dpaudit.audit.trials.engine import TrialRunner

local_engine.SERIAL_SECONDS = -1.0
runner = TrialRunner(workers=2)
runner.run(setup(), *arms(20_000))
print(runner.stopped)
"""


def signals(pid: int, kind: str) -> int:
    """A set of signals of a process, such as SigBlk, bit n - 1 for signal n; 0 where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(re.search(rf"{kind}:\s*(\w+)", status)[1], 16)  # type: ignore[index]


def workers(pid: int) -> list[int]:
    """The loky workers among the children of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            with contextlib.suppress(OSError):
                found += [int(child)] if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes() else []
    return found


def test_ctrl_c_waits_while_workers_start_and_never_reaches_what_is_started() -> None:
    children = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have switched it off

    def start() -> None:
        with local_engine.workers_start_undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            children.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

    with pytest.raises(KeyboardInterrupt):
        start()
    [child] = children  # the start was not broken off
    blocked = signals(child.pid, "SigBlk")
    child.communicate(b"\n", timeout=60)
    assert blocked & 1 << signal.SIGINT - 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_command_as_ctrl_c_does_waits_as_well(number: signal.Signals) -> None:
    done = []
    before = signal.signal(number, signal.default_int_handler)

    def start() -> None:
        with local_engine.workers_start_undisturbed():
            os.kill(os.getpid(), number)
            done.append("told all")

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert done == ["told all"]
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


@pytest.mark.slow
def test_ctrl_c_as_workers_start_is_told_by_nobody_but_the_audit(tmp_path: Path) -> None:
    """It comes when the interpreter of a worker has begun, seconds before it can ignore what its parent decides."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED.format(folder=str(Path(__file__).parent)))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline, bit = time.monotonic() + 120, 1 << signal.SIGINT - 1
    while time.monotonic() < deadline and not any(
        (signals(pid, "SigCgt") | signals(pid, "SigBlk")) & bit for pid in workers(process.pid)
    ):
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=120) == ("interrupted\n", "")


@pytest.mark.slow
def test_workers_end_when_their_audit_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(INTERRUPTED.format(folder=str(Path(__file__).parent)))
    deadline = time.monotonic() + 120
    with subprocess.Popen([sys.executable, script], start_new_session=True) as process:
        while time.monotonic() < deadline and len(workers(process.pid)) < 2:
            time.sleep(0.05)
        time.sleep(3.0)  # until they train
        left = workers(process.pid)
        process.kill()
    try:
        assert len(left) == 2
        while time.monotonic() < deadline and any(signals(pid, "SigCgt") for pid in left):
            time.sleep(0.1)
        assert [pid for pid in left if signals(pid, "SigCgt")] == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_ctrl_c_right_after_a_block_was_submitted_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """loky's thread has not yet taken up the block when the workers are to be killed."""
    real, started, crashed = local_engine.workers_start_undisturbed, [], []

    @contextlib.contextmanager
    def interrupted() -> Iterator[None]:
        started.append(1)
        if len(started) < 3:
            with real():
                yield
            return
        time.sleep(0.5)  # the thread waits for news; with the block it is told of it
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr(local_engine, "SERIAL_SECONDS", -1.0)
    monkeypatch.setattr(local_engine, "workers_start_undisturbed", interrupted)
    monkeypatch.setattr(threading, "excepthook", crashed.append)
    runner = TrialRunner(workers=2)
    runner.run(setup(), *arms(400))
    assert runner.stopped == "interrupted"
    assert crashed == []


@pytest.mark.slow
def test_workers_that_always_die_end_the_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "MOST_DEATHS", 2)
    runner = TrialRunner(workers=1, deadline=time.monotonic() + 300)
    assert [len(scores) for scores in runner.run(setup(dying(tmp_path, "always")), *arms(MODELS))] == [0, 0]
    assert runner.stopped.startswith("2 workers in a row were killed before they finished a block")


TRIALS = 192  # per arm of the audits below, in blocks of 16
# blocks take time to be interrupted in, and next to no work; workers start for the trials that count alone
SLOW_LOOP = """
import os, time
from dpaudit.mechanisms.learning.training import train as honest

def train(*arguments, **options):
    time.sleep(float(os.environ.get("SECONDS_PER_BLOCK", "0")))
    return honest(*arguments, **options)
"""
SMALL_COMMAND = """
from dpaudit.audit.attacks import canary_game, pilot
from dpaudit.audit.cli import main
from dpaudit.audit.trials import blocks, local_engine
from dpaudit.verify.bounds import joint_test

joint_test.INVERSION_DRAWS = 2**10
blocks.BLOCK_SECONDS, pilot.PAIRS, local_engine.SERIAL_SECONDS = 2e-3, 3, 0.5
canary_game.run_control = canary_game.family_bound = lambda *_: None
main()
"""


@pytest.fixture
def small_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits of this process are as SMALL_COMMAND, on one worker."""
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", 2e-3)
    monkeypatch.setattr(pilot, "PAIRS", 3)
    for name in ("run_control", "family_bound"):
        monkeypatch.setattr(canary_game, name, lambda *_: None)


def run_words(workers: int) -> list[str]:
    options = {"trainer": "slow.py:train", "attacks": "clipbkd", "trials": TRIALS, "workers": workers, "seed": 2}
    options["device"] = "cpu"  # with a GPU there would be one process
    return ["m.pt", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def attacks_of(out: Path) -> Any:
    """What the attacks of a finished audit found."""
    return json.loads((out / "result.json").read_text())["attacks"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model m.pt and a training loop slow.py."""
    folder = tmp_path_factory.mktemp("audited")
    (folder / "slow.py").write_text(SLOW_LOOP)
    recipe, quiet = load_recipe(ROOT / "examples" / "digits-headline.toml"), lambda what, total: lambda done: None
    train_bundle(recipe, folder / "m.pt", seed=1, device="cpu", stage=quiet)
    return folder


@pytest.fixture
def left_alone(folder: Path, dpaudit: Command, small_audit: None) -> Any:
    """What the attacks of the audit find in this process, computed once."""
    if not (folder / "m.audit").exists():
        assert dpaudit("run", *run_words(1), folder=folder).returncode == 0
    return attacks_of(folder / "m.audit")


@pytest.mark.slow
def test_two_processes_come_to_the_result_of_one(
    folder: Path, left_alone: Any, dpaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", SMALL_COMMAND, "trials", *run_words(1), "--store", "parts", "--shard"]
    slow = {**os.environ, "SECONDS_PER_BLOCK": "0.1"}
    processes = [
        subprocess.Popen([*command, share], cwd=folder, env=slow, stdout=subprocess.PIPE, text=True)
        for share in ("1/2", "2/2")
    ]
    printed = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 2
    trained = [int(re.search(r": (\d+) models trained here", line)[1]) for line in printed]  # type: ignore[index]
    assert sum(trained) >= 2 * TRIALS  # both may have trained the same block
    original, again = local_engine.train_block, []

    def counted(setup: TrialSetup, trials: Sequence[Trial], deadline: float | None = None) -> Scores:
        again.append(len(trials))
        return original(setup, trials, deadline)

    monkeypatch.setattr(local_engine, "train_block", counted)
    merged = dpaudit("run", *run_words(1), "--store", "parts", "--out", "merged", folder=folder)
    assert merged.returncode == 0
    assert attacks_of(folder / "merged") == left_alone
    assert len(again) == 1  # the loop still does what it did


@pytest.mark.parametrize("shard", ["0/4", "5/4", "1", "a/b"])
def test_a_share_that_there_is_not_is_refused(dpaudit: Command, tmp_path: Path, shard: str) -> None:
    done = dpaudit("trials", "m.pt", "--shard", shard, "--store", tmp_path, "--seed", "1")
    assert done.returncode == 2
    assert "I/N" in done.stderr


def stored(store: Path) -> dict[str, bytes]:
    """The scores in a store that a process may be writing, by key."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db,
    ):
        return dict(db.execute("SELECT key, value FROM entries WHERE key LIKE 'scores %'"))
    return {}


def signalled_at_work(folder: Path, number: signal.Signals, *, processes: int) -> tuple[int, str]:
    """Exit status and stderr of the audit, sent a signal as soon as it has finished two blocks in so many processes."""
    process = subprocess.Popen(
        [sys.executable, "-c", SMALL_COMMAND, "run", *run_words(processes), "--out", "broken-off"], cwd=folder,
        env={**os.environ, "SECONDS_PER_BLOCK": "0.25"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # a suite in the background of a shell ignores Ctrl-C, and so would what it starts
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    store, deadline = folder / "broken-off" / "trials.sqlite", time.monotonic() + 240
    started = 0 if processes == 1 else processes  # one trains in the process itself
    while process.poll() is None and time.monotonic() < deadline and len(workers(process.pid)) < started:
        time.sleep(0.02)
    before = len(stored(store))
    while process.poll() is None and time.monotonic() < deadline and len(stored(store)) < before + 2:
        time.sleep(0.02)
    os.killpg(process.pid, number)
    errors = process.communicate(timeout=60)[1]
    return process.returncode, errors


@pytest.mark.slow
def test_an_audit_that_is_killed_and_one_that_is_interrupted_go_on_and_end_as_one_left_alone(
    folder: Path, left_alone: Any, dpaudit: Command
) -> None:
    """Killed, workers and all; then, as the same command goes on, by Ctrl-C, which leaves what was measured."""
    assert signalled_at_work(folder, signal.SIGKILL, processes=2)[0] == -signal.SIGKILL
    status, errors = signalled_at_work(folder, signal.SIGINT, processes=1)
    assert status == 4, errors
    assert "to go on" in errors
    assert "Traceback" not in errors
    result = json.loads((folder / "broken-off" / "result.json").read_text())
    assert (result["verdict"], result["reproduce"]["stopped"]) == ("gave_up", "interrupted")
    kept = stored(folder / "broken-off" / "trials.sqlite")
    assert dpaudit("run", *run_words(1), "--out", "broken-off", folder=folder).returncode == 0
    ended = stored(folder / "broken-off" / "trials.sqlite")
    assert ended == stored(folder / "m.audit" / "trials.sqlite")
    assert 4 <= len(kept) < len(ended)
    assert kept.items() <= ended.items()
    assert [attack["auc"] for attack in attacks_of(folder / "broken-off")] == [attack["auc"] for attack in left_alone]


@pytest.fixture
def two_nodes() -> Iterator[None]:
    """A Ray cluster of two nodes with a core each, and this process connected to it."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'dpaudit[cluster]'")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        try:
            assert len([node for node in ray.nodes() if node["Alive"]]) == 2
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_of_two_nodes_gives_the_bits_of_this_process(tmp_path: Path, undisturbed: Any) -> None:
    """One of its workers is killed inside a block."""
    with TrialStore(tmp_path / "t.sqlite") as store:
        runner = TrialRunner(store, engine="ray")
        np.testing.assert_array_equal(runner.run(setup(dying(tmp_path)), *arms(MODELS)), undisturbed)
        assert (runner.stopped, runner.trained) == ("", 2 * MODELS)
    assert (tmp_path / "died").exists()
    with TrialStore(tmp_path / "t.sqlite") as store:
        again = TrialRunner(store)
        np.testing.assert_array_equal(again.run(setup(dying(tmp_path)), *arms(MODELS)), undisturbed)
        assert again.trained == 0
    late = TrialRunner(engine="ray", deadline=time.monotonic())
    assert [len(scores) for scores in late.run(setup(), *arms(MODELS))] == [0, 0]
    assert late.stopped == "budget"


def test_a_ray_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'dpaudit[cluster]'")
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with pytest.raises(InputError, match="Expected RAY_ADDRESS='nonsense' to name a Ray cluster that runs: Invalid"):
        TrialRunner(engine="ray").run(setup(), *arms(MODELS))
    monkeypatch.delenv("RAY_ADDRESS")

    def died(**_: object) -> None:
        raise Exception("The current node timed out\n during startup.")

    monkeypatch.setattr(ray, "init", died)
    late = TrialRunner(engine="ray")
    assert [len(scores) for scores in late.run(setup(), *arms(MODELS))] == [0, 0]
    assert late.stopped == "Ray did not start: The current node timed out during startup."


@pytest.mark.parametrize(
    ("user", "limit", "address", "started"),
    [
        (1000, 99, "", False),
        (1000, 99, "local", False),
        (1000, 100, "", True),
        (1000, resource.RLIM_INFINITY, "", True),
        (1000, 30, "10.0.0.1:6379", True),
        (0, 30, "", True),
    ],
)
def test_ray_is_not_started_where_too_few_processes_are_allowed(
    user: int, limit: int, address: str, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 30 of them Ray aborted the audit, with 45 it waited without end."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'dpaudit[cluster]'")

    def died(**_: object) -> None:
        raise ConnectionError("asked")

    monkeypatch.setattr(ray, "init", died)
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, resource.RLIM_INFINITY))
    monkeypatch.setenv("RAY_ADDRESS", address)
    from dpaudit.audit.trials import ray_engine

    with pytest.raises((local_engine.WorkersDiedError, InputError)) as caught:
        ray_engine._start()
    assert str(caught.value).endswith("asked") == started
    assert ("99 processes and threads are allowed here" in str(caught.value)) == (not started)


def test_what_ends_the_command_ends_it_as_before_when_ray_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own answer to SIGTERM is sys.exit(15) at its start, and a dump of the stack from then on."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'dpaudit[cluster]'")
    from dpaudit.audit.trials import ray_engine

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    ending = list[int]()

    def started(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        for number in ending:
            signal.raise_signal(number)

    monkeypatch.setattr(ray, "init", started)
    try:
        ray_engine._start()
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
        ending.append(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            ray_engine._start()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "dpaudit.audit.trials.ray_engine", raising=False)
    monkeypatch.delattr("dpaudit.audit.trials.ray_engine", raising=False)
    with pytest.raises(ValueError, match=r"engine='ray' to be installed \(pip install 'dpaudit\[cluster\]'\)"):
        TrialRunner(engine="ray").run(setup(), *arms(MODELS))
