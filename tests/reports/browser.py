"""Pages in a real browser: what they write to its console, how wide they are, and what sticks out."""

import html
import json
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    "--v=0",
)  # fmt: skip
WIDTHS = (400, 800, 1400)

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


def command(folder: Path, page: Path, *arguments: str) -> list[str]:
    """What starts the browser on a page."""
    return [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments, page.as_uri()]


def browse(folder: Path, page: Path, *arguments: str) -> tuple[str, list[str]]:
    """Stdout, and the lines that pages wrote to the console."""
    done = subprocess.run(command(folder, page, *arguments), capture_output=True, text=True, timeout=120, check=True)
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
