"""Pages in headless Chromium: what axe-core finds in them, what they write to the console, and what they load.

    npm install --prefix /tmp/axe axe-core@4
    make docs
    python benchmarks/accessibility.py --axe /tmp/axe/node_modules/axe-core/axe.min.js out/site out/audit/report.html

Each page is opened at 1280 and at 400 pixels. Findings of impact "serious" or "critical", lines on the console and
resources from a network are printed, and make the exit status 1. axe-core leaves out what stands beyond the window, and
judges neither what a picture shows nor whether a text can be understood.
"""

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WIDTHS = (1280, 400)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--v=0",
    "--allow-file-access-from-files", "--disable-web-security", "--virtual-time-budget=100000000", "--dump-dom",
)  # fmt: skip

# one frame after the other: load the page, add axe-core, run it, note what was loaded
HARNESS = """
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
async function examine(page, width) {
  const frame = document.createElement('iframe');
  frame.style.cssText = `border:0;width:${width}px;height:900px`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; });
  await wait(200);
  const inside = frame.contentWindow, script = inside.document.createElement('script');
  script.textContent = AXE;
  inside.document.head.append(script);
  const found = await inside.axe.run(inside.document, {resultTypes: ['violations']});
  const loaded = inside.performance.getEntriesByType('resource').map(entry => entry.name);
  const wide = inside.document.documentElement.scrollWidth > width + 1;
  frame.remove();
  return {page, width, wide, outside: loaded.filter(name => !/^(file|data|blob|about):/.test(name)),
    findings: found.violations.map(({id, impact, nodes}) => ({id, impact, nodes: nodes.length,
      first: nodes[0].target.join(' '), why: nodes[0].failureSummary}))};
}
(async () => {
  const results = [];
  for (const page of PAGES) for (const width of WIDTHS) results.push(await examine(page, width));
  const out = document.createElement('pre');
  out.id = 'results';
  out.textContent = JSON.stringify(results);
  document.body.replaceChildren(out);
})();
"""


def examine(pages: list[Path], axe: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """What axe-core found on every page at every width, and the lines on the console."""
    with tempfile.TemporaryDirectory() as folder:
        names = {_examinable(page.resolve(), Path(folder)).as_uri(): str(page) for page in pages}
        values = {"PAGES": list(names), "WIDTHS": WIDTHS, "AXE": axe.read_text("utf-8")}
        given = "".join(f"const {name} = {json.dumps(value)};" for name, value in values.items()).replace("</", "<\\/")
        harness = Path(folder, "harness.html")
        harness.write_text(f"<!doctype html><meta charset=utf-8><body><script>{given}{HARNESS}</script>", "utf-8")
        done = subprocess.run(
            [str(shutil.which("chromium")), *FLAGS, f"--user-data-dir={folder}/profile", harness.as_uri()],
            capture_output=True, text=True, timeout=3600, check=True,
        )  # fmt: skip
    text = done.stdout.partition('<pre id="results">')[2].partition("</pre>")[0]
    if not text:
        raise RuntimeError(f"no result; the console says: {done.stderr[-2000:]}")
    results = [{**result, "page": names[result["page"]]} for result in json.loads(html.unescape(text))]
    return results, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def _examinable(page: Path, folder: Path) -> Path:
    """The page, or a copy without the policy that would keep axe-core out; pages with one need no file beside them."""
    text, policies = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text("utf-8"))
    if not policies:
        return page
    copy = folder / f"{len(list(folder.iterdir()))}-{page.name}"
    copy.write_text(text, "utf-8")
    return copy


def main() -> int:
    """Print what is wrong with the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path, help="HTML files, and folders of them")
    parser.add_argument("--axe", required=True, type=Path, help="axe.min.js of axe-core")
    options = parser.parse_args()
    pages = [file for path in options.pages for file in (sorted(path.rglob("*.html")) if path.is_dir() else [path])]
    wrong = 0
    for start in range(0, len(pages), 10):  # a browser for ten pages: what one leaves behind does not add up
        print(f"{start} of {len(pages)} pages", file=sys.stderr)
        results, console = examine(pages[start : start + 10], options.axe)
        for result in results:
            findings = [finding for finding in result["findings"] if finding["impact"] in ("serious", "critical")]
            wrong += len(findings) + len(result["outside"])
            for finding in findings:
                print(
                    f"{result['page']} at {result['width']}: {finding['impact']} {finding['id']} x {finding['nodes']}"
                )
                print(f"    {finding['first']}: {' '.join(finding['why'].split())}")
            for name in result["outside"]:
                print(f"{result['page']} at {result['width']}: loads {name}")
            if result["wide"]:
                print(f"{result['page']} at {result['width']}: is wider than its window")
        wrong += len(console)
        print("\n".join(console), end="\n" if console else "")
    print(f"{len(pages)} pages at {' and '.join(map(str, WIDTHS))} pixels: {wrong} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
