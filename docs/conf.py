"""How Sphinx makes the documentation's site: `make docs`, pages that open from a folder, without a server or a network.

The source is the repository's root, so that a link of a page leads to the same file in the repository and on the site.
"""

import ast
import posixpath
import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import restructured

ROOT = Path(__file__).parents[1]

project = "dpaudit"
html_title = "dpaudit"
copyright = "the authors of dpaudit, Apache-2.0"
root_doc = "docs/index"
include_patterns = ["docs/*.md", "docs/*/*.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "imported-members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True
add_module_names = False

highlight_language = "none"  # of formulas in docstrings; fences name their own

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# folders whose pages and files stand on the site as they are
COPIES = ("reports/register", "reports/browser", "reports/schemas")
# the site's first page is not at its root, for a link to the README leads out of docs/ there as in the repository
ENTRANCE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{project}</title>
<meta http-equiv="refresh" content="0; url={root_doc}.html"></head>
<body><main><h1>{project}</h1><p><a href="{root_doc}.html">Documentation</a></p></main></body></html>
"""
# a module docstring of fewer lines only says what the file is for
PROOF_LINES = 4
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\.md\)")


def _source(app: Sphinx, name: str, source: list[str]) -> None:
    """What is added to a page: its part of the navigation, theorems, or the commands' help."""
    if name == root_doc:
        for section in source[0].split("\n## "):
            caption, _, text = section.partition("\n")
            source[0] += _navigation(caption.removeprefix("# "), text)
    elif name == "docs/theory":
        source[0] += _navigation("", source[0].partition("\n## ")[0])
    elif name.startswith("docs/theory/"):
        source[0] += _theorems(re.findall(r"^room: (\S+)$", source[0], re.MULTILINE)[0])
    elif name == "docs/reference/command-line":
        source[0] += _commands()


def _navigation(caption: str, text: str) -> str:
    """The pages that a section links to, under the words it links them by."""
    entries = [
        f"{' '.join(words.split()).capitalize() if words[0].islower() and '.' not in words else words} <{page}>"
        for words, page in LINK.findall(text)
    ]
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", "```{toctree}", *options, "", *entries, "```", ""])


def _commands() -> str:
    """Every command's help, by typer's own generator."""
    import typer
    from typer.cli import get_docs_for_click

    from dpaudit.audit.cli import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="dpaudit")
    # in the list of commands the first words of each help, cut off; the whole of it stands below
    text = re.sub(r"^(\* `[\w-]+`): .*\.\.\.$", r"\1", text, flags=re.MULTILINE)
    return "\n" + text.partition("\n")[2]


def _theorems(room: str) -> str:
    """The modules of a room that open with a theorem, an algorithm or a proof."""
    text = ""
    for path in sorted((ROOT / room).glob("*.py")):
        stated = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if len(stated.splitlines()) >= PROOF_LINES:
            module = _module(path.relative_to(ROOT).as_posix())
            text += f"\n\n## {path.stem}\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :no-members:\n```\n"
    return text


def _module(path: str) -> str:
    return ".".join(("dpaudit", *Path(path).with_suffix("").parts))


def _links(app: Sphinx, tree: nodes.document) -> None:
    """Links to files: those of copied folders stay what they are, and a source file's leads to its docstring."""
    here = posixpath.dirname(app.env.docname)
    for node in list(tree.findall(addnodes.download_reference)):
        path = posixpath.normpath(posixpath.join(here, node["reftarget"])).lstrip("/")
        if path.startswith(COPIES):
            node.replace_self(nodes.reference("", "", *node.children, refuri=posixpath.relpath(path, here or ".")))
        elif path.endswith(".py"):
            options = {"refdomain": "py", "reftype": "mod", "reftarget": _module(path), "refwarn": True}
            node.replace_self(
                addnodes.pending_xref("", *node.children, refdoc=app.env.docname, refexplicit=True, **options)
            )


def _docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = restructured(lines)


def _accessible(app: Sphinx, name: str, template: str, context: dict[str, object], tree: nodes.document | None) -> None:
    """What the theme leaves out for readers without sight or mouse (benchmarks/accessibility.py)."""
    # captions of the navigation are headings, which screen readers list by their level
    navigation = str(context.get("furo_navigation_tree", ""))
    context["furo_navigation_tree"] = navigation.replace('role="heading"', 'role="heading" aria-level="2"')
    # what is wider than a narrow window scrolls by keys once it has the focus
    body = str(context.get("body", "")).replace("<pre>", '<pre tabindex="0">')
    context["body"] = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')


def _copy(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for folder in COPIES:
            shutil.copytree(ROOT / folder, Path(app.outdir) / folder, dirs_exist_ok=True)
        (Path(app.outdir) / "index.html").write_text(ENTRANCE, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("source-read", _source)
    app.connect("doctree-read", _links)
    app.connect("autodoc-process-docstring", _docstring, priority=400)  # before napoleon reads sections
    app.connect("html-page-context", _accessible, priority=900)  # after the theme has made them
    app.connect("build-finished", _copy)
