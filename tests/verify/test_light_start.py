"""`dpaudit verify` loads no training, plotting or testing package: a slim installation could do without them."""

import subprocess
import sys
from pathlib import Path

import pytest

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
PROGRAM = f"""
import sys
from dpaudit.audit.cli import app
app(sys.argv[1:], standalone_mode=False)
print("loaded:", *sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("options", [(), ("--json", "-"), ("--format", "sarif"), ("--method", "both", "--seed", "1")])
def test_verify_loads_nothing_heavy(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "claims.toml").write_text(CLAIM)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "verify", "claims.toml", *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout
    assert done.stderr.split() == ["loaded:"]
