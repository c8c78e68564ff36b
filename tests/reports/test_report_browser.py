"""The page in a real browser: no complaint on its console, something to see, nothing wider than the window."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import matplotlib.image
import numpy as np
import pytest

from dpaudit.reports import write_report

Written = Callable[[str], Path]
KINDS = ("inconclusive", "refuted", "claim_check", "gave_up")  # what is in the others is in these


@pytest.mark.slow
def test_no_page_is_wider_than_its_window(
    samples: ModuleType, written: Written, browser: ModuleType, tmp_path: Path
) -> None:
    pages = {kind: written(kind).read_text("utf-8") for kind in KINDS}
    long = "a" * 300
    stretched = samples.make_result("refuted", model={"path": long, "sha256": long}, notes=[long], claim={long: long})
    pages["long"] = write_report(stretched, tmp_path / "long").read_text("utf-8")
    pages["control"] = pages["refuted"].replace("<h2>Attacks</h2>", '<h2 style="width: 1500px">Attacks</h2>')
    found = browser.measure(tmp_path, pages)
    assert len(found) == len(pages) * len(browser.WIDTHS)
    for key, (width, height, out) in found.items():
        name, window = key.split("@")
        if name == "control":
            assert "H2." in out
        else:
            assert (width, out) == (int(window), []), key
            assert height > 1000


@pytest.mark.parametrize(
    ("kind", "tint"),
    [
        ("refuted", "#fdeceb"),
        pytest.param("not_refuted", "#e9f1fb", marks=pytest.mark.slow),
        pytest.param("gave_up", "#eef0f3", marks=pytest.mark.slow),
    ],
)
def test_the_page_is_drawn_without_complaint(
    kind: str, tint: str, written: Written, browser: ModuleType, tmp_path: Path
) -> None:
    picture = tmp_path / "page.png"
    _, console = browser.browse(tmp_path, written(kind), "--window-size=1400,1000", f"--screenshot={picture}")
    assert console == []
    pixels = np.round(matplotlib.image.imread(picture)[..., :3] * 255)
    assert pixels.shape == (1000, 1400, 3)
    for colour in (tint, "#1f5fa8", "#b4510b", "#1b2330"):  # the banner, the proof, the attacks, the text
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        share = np.all(np.abs(pixels - wanted) <= 1, axis=-1).mean()
        assert share > (0.02 if colour == tint else 1e-5), colour


def test_a_script_that_got_in_would_be_blocked_and_seen(written: Written, browser: ModuleType, tmp_path: Path) -> None:
    """The positive control of "no complaint", and the policy's own test."""
    text, page = written("not_refuted").read_text("utf-8"), tmp_path / "report.html"
    page.write_text(text.replace("</main>", "<script>document.title = 'ran'</script></main>"), "utf-8")
    dom, console = browser.browse(tmp_path, page, "--dump-dom")
    assert "<title>ran" not in dom
    assert any("Content Security Policy" in line for line in console)


# a browser may end before its renderers: who adopts orphans waits for them, and their time is counted
ADOPTING = """
import ctypes, os, resource, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
subprocess.run(sys.argv[1:], check=True, capture_output=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
"""


def browser_seconds(browser: ModuleType, folder: Path, page: Path) -> float:
    """Processor time that starting a browser, loading and laying out a page takes, all its processes together."""
    # renderers that a zygote starts are nobody's children that are waited for, and their time is not counted
    started = browser.command(folder, page, "--no-zygote", "--window-size=1400,1000", "--dump-dom")
    done = subprocess.run(
        [sys.executable, "-c", ADOPTING, *started], capture_output=True, text=True, timeout=120, check=True
    )
    return float(done.stdout)


@pytest.mark.slow
def test_the_page_of_many_trials_opens_in_two_seconds(written: Written, browser: ModuleType, tmp_path: Path) -> None:
    """25,000 trials per arm; what it takes beyond an empty page, whatever else the machine does."""
    page, empty = written("refuted"), tmp_path / "empty.html"
    empty.write_text("<!doctype html><title>-</title>")
    assert page.stat().st_size < 300_000
    assert browser_seconds(browser, tmp_path, page) - browser_seconds(browser, tmp_path, empty) < 2.0


@pytest.mark.slow
def test_what_a_page_computes_is_in_its_seconds(browser: ModuleType, tmp_path: Path) -> None:
    busy, empty = tmp_path / "busy.html", tmp_path / "empty.html"
    empty.write_text("<!doctype html><title>-</title>")
    busy.write_text("<script>let x = 0; for (let i = 0; i < 1.5e8; i++) x += i % 7; document.title = x</script>")
    assert browser_seconds(browser, tmp_path, busy) - browser_seconds(browser, tmp_path, empty) > 0.25
