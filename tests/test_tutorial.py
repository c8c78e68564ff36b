"""docs/tutorial.md, command by command, with the numbers it prints."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
STATUS = {"verify": 3}  # of a command that refutes


@pytest.mark.slow  # trains and audits a model
def test_the_tutorial_prints_what_it_says(
    dpaudit: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    pytest.importorskip("cryptography")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    [claims] = [text for language, text in BLOCKS if language == "toml"]
    (tmp_path / "claims.toml").write_text(claims)
    printed = ""
    for block in (text for language, text in BLOCKS if language == "sh"):
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True)
            if program == "dpaudit":
                done = dpaudit(*words, folder=tmp_path)
                assert done.returncode == STATUS.get(words[0], 0), (words, done.stderr)
                printed += done.stdout
            else:
                subprocess.run([program, *words], cwd=tmp_path, check=True, capture_output=True)
    for block in (text for language, text in BLOCKS if not language):
        for line in block.splitlines():
            assert line.partition("...")[0].strip() in printed
