"""The page in a real browser: no complaint on its console, something to see, nothing wider than the window."""

import html
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import matplotlib.image
import numpy as np
import pytest

from dpaudit.reports import write_report

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    "--v=0",
)  # fmt: skip
WIDTHS = (400, 800, 1400)
KINDS = ("not_refuted", "refuted", "curve_only", "claim_check", "gave_up")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# For each frame: how wide its page is, and the elements (not inside figures, not visually hidden) that stick out of
# the window or of the box that would cut them off.
MEASURE = """
onload = () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, width = frame.clientWidth;
    const out = [...page.body.querySelectorAll('*')].filter(e => !e.closest('svg *') && !e.closest('thead') &&
      (e.getBoundingClientRect().right > width + 1 || (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 &&
      getComputedStyle(e).display !== 'inline')));
    return [frame.id, page.documentElement.scrollWidth, page.documentElement.scrollHeight,
            out.map(e => e.tagName + '.' + e.className).slice(0, 5)];
  });
  document.title = JSON.stringify(found);
};
"""


def browse(folder: Path, page: Path, *arguments: str) -> tuple[str, list[str]]:
    """Stdout, and the lines that pages wrote to the console."""
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments, page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measure(folder: Path, pages: dict[str, str]) -> dict[str, tuple[int, int, list[str]]]:
    """Width, height and overflowing elements of every page at every width, in one run of the browser."""
    frames = "".join(
        f'<iframe id="{name}@{width}" style="border:0;width:{width}px" srcdoc="{html.escape(text)}"></iframe>'
        for name, text in pages.items()
        for width in WIDTHS
    )
    harness = folder / "harness.html"
    harness.write_text(f"<!doctype html><meta charset=utf-8>{frames}<script>{MEASURE}</script>", "utf-8", "replace")
    dom, console = browse(folder, harness, "--dump-dom")
    assert console == []
    title = dom.partition("<title>")[2].partition("</title>")[0]
    return {key: (width, height, out) for key, width, height, out in json.loads(html.unescape(title))}


def test_no_page_is_wider_than_its_window(samples: ModuleType, tmp_path: Path) -> None:
    pages = {kind: write_report(samples.make_result(kind), tmp_path / kind).read_text("utf-8") for kind in KINDS}
    long = "a" * 300
    stretched = samples.make_result("refuted", model={"path": long, "sha256": long}, notes=[long], claim={long: long})
    pages["long"] = write_report(stretched, tmp_path / "long").read_text("utf-8")
    pages["control"] = pages["refuted"].replace("<h2>Attacks</h2>", '<h2 style="width: 1500px">Attacks</h2>')
    found = measure(tmp_path, pages)
    assert len(found) == len(pages) * len(WIDTHS)
    for key, (width, height, out) in found.items():
        name, window = key.split("@")
        if name == "control":
            assert "H2." in out
        else:
            assert (width, out) == (int(window), []), key
            assert height > 1000


@pytest.mark.parametrize(("kind", "tint"), [("refuted", "#fdeceb"), ("not_refuted", "#e9f1fb"), ("gave_up", "#eef0f3")])
def test_the_page_is_drawn_without_complaint(kind: str, tint: str, samples: ModuleType, tmp_path: Path) -> None:
    page, picture = write_report(samples.make_result(kind), tmp_path), tmp_path / "page.png"
    _, console = browse(tmp_path, page, "--window-size=1400,1000", f"--screenshot={picture}")
    assert console == []
    pixels = np.round(matplotlib.image.imread(picture)[..., :3] * 255)
    assert pixels.shape == (1000, 1400, 3)
    for colour in (tint, "#1f5fa8", "#b4510b", "#1b2330"):  # the banner, the proof, the attacks, the text
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        share = np.all(np.abs(pixels - wanted) <= 1, axis=-1).mean()
        assert share > (0.02 if colour == tint else 1e-5), colour


def test_a_script_that_got_in_would_be_blocked_and_seen(samples: ModuleType, tmp_path: Path) -> None:
    """The positive control of "no complaint", and the policy's own test."""
    page = write_report(samples.make_result(), tmp_path)
    page.write_text(
        page.read_text("utf-8").replace("</main>", "<script>document.title = 'ran'</script></main>"), "utf-8"
    )
    dom, console = browse(tmp_path, page, "--dump-dom")
    assert "<title>ran" not in dom
    assert any("Content Security Policy" in line for line in console)
