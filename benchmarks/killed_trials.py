"""An audit that is killed (SIGKILL, workers and all) again and again inside its trials, against one left alone.

    python benchmarks/killed_trials.py --kills 20

The final results are compared byte for byte, but for times and paths. Exit status 1 if they differ.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[1] / "examples" / "digits-gaussian.toml"
LONGEST = 1.5  # seconds into the trials


def dpaudit(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "dpaudit.audit.cli", *map(str, words)]


def measured(folder: Path) -> list[dict[str, Any]]:
    """What the attacks of a finished audit found."""
    return list(json.loads((folder / "result.json").read_text())["attacks"])


def kill_inside_the_trials(command: list[str], store: Path, after: float) -> bool:
    """Start an audit and kill it so many seconds after its store was written to; whether it was still at work.

    Args:
        command: The audit.
        store: Its store.
        after: Seconds.
    """
    before = store.stat().st_mtime_ns if store.exists() else 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not (store.exists() and store.stat().st_mtime_ns > before):
        time.sleep(0.02)
    time.sleep(after)
    at_work = process.poll() is None
    if at_work:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return at_work


def compare(folder: Path, *, kills: int, trials: int, workers: int, seed: int) -> tuple[int, bool]:
    """Kills that hit an audit at work, and whether it ended as the undisturbed one.

    Args:
        folder: An empty one.
        kills: How often.
        trials: Models per arm.
        workers: Processes of each audit.
        seed: Of the moments.
    """
    model = folder / "m.pt"
    subprocess.run(dpaudit("train", RECIPE, "--out", model, "--seed", "1"), check=True, stdout=subprocess.DEVNULL)
    options = ["--attacks", "clipbkd", "--trials", trials, "--workers", workers, "--seed", "2", "--out"]
    audit = [dpaudit("run", model, *map(str, options), folder / name) for name in ("killed", "left-alone")]
    moments, hits = random.Random(seed), 0
    for _ in range(kills):
        hits += kill_inside_the_trials(audit[0], folder / "killed" / "trials.sqlite", moments.uniform(0.0, LONGEST))
    for command in audit:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return hits, measured(folder / "killed") == measured(folder / "left-alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hits, equal = compare(Path(folder), **vars(chosen))
    verdict = "equal" if equal else "NOT equal"
    print(f"{hits} of {chosen.kills} kills hit an audit at work; the final results are {verdict}")
    sys.exit(not equal)


if __name__ == "__main__":
    main()
