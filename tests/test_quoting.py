"""Error lines stay lines, however long what they quote is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dpaudit.audit.inputs.claim_tables import COLUMNS, read_claim_table
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import load_recipe
from dpaudit.audit.inputs.score_files import read_scored_ids, read_scores
from dpaudit.verify.claim_files import load_claims

LONG = "a" * 130_000
CLAIM = "[[claim]]\nepsilon = 1.0\ndelta = 0.0\n"


@pytest.mark.parametrize(
    ("read", "name", "text"),
    [
        (read_scores, "s.csv", f"1.0\n{LONG}\n"),
        (read_scored_ids, "s.csv", f"id,score\na,{LONG}\n"),
        (read_scored_ids, "s.csv", f"id,score\n{LONG},1\n{LONG},1\n"),
        (read_claim_table, "c.csv", ",".join(COLUMNS) + "\n" + ",".join([LONG] * len(COLUMNS)) + "\n"),
        (load_claims, "c.toml", f"format = '{LONG}'"),
        (load_claims, "c.toml", f"'{LONG}' = 1"),
        (load_claims, "c.toml", f"[[claim]]\nguarantee = {{kind = '{LONG}'}}\nmechanism = {{name = 'laplace'}}"),
        (load_claims, "c.toml", f"{CLAIM}mechanism = {{name = '{LONG}'}}"),
        (
            load_claims,
            "c.toml",
            f"{CLAIM}mechanism = {{name = 'laplace', scale = '{LONG}'}}",
        ),
        (load_recipe, "r.toml", f"algorithm = '{LONG}'"),
    ],
)
def test_a_long_value_is_cut_where_it_is_quoted(
    read: Callable[[Path], object], name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((InputError, ValueError)) as caught:
        read(tmp_path / name)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_an_integer_that_is_too_long_ends_the_line_with_one_full_stop(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("steps = 0x" + "f" * 5000)
    with pytest.raises(InputError, match=r"hold TOML: Expected integers of at most 10000 bits, not 20000\.$"):
        load_recipe(tmp_path / "r.toml")
