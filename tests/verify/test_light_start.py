"""`dpaudit verify` loads no training, plotting or testing package: a slim installation could do without them."""

import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "opacus", "matplotlib", "hypothesis", "pytest", "jinja2", "sklearn", "statsmodels", "mpmath")
CLAIM = """
[[claim]]
id = "a"
epsilon = 2.445
delta = 1e-5
[claim.mechanism]
name = "gaussian"
noise_multiplier = 1.6666666666666667
"""
OPTIONS = ([], ["--json", "-"], ["--format", "sarif"], ["--method", "both", "--seed", "1"])
# one process for all: a package that any of them loads stays loaded
PROGRAM = f"""
import contextlib, io, sys
from dpaudit.audit.cli import app
for options in {OPTIONS!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app(["verify", "claims.toml", *options], standalone_mode=False)
    print(len(out.getvalue()), *sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def test_verify_loads_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text(CLAIM)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [loaded for _, *loaded in lines] == [[]] * len(OPTIONS)
    assert all(int(printed) > 0 for printed, *_ in lines)
