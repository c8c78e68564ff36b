"""The plugin as its users meet it, in a pytest of its own."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import Claim, check
from dpaudit.verify.pytest_plugin import judge, sampling_share, worker_share

CLAIMS = """
[[claim]]
id = "true"
epsilon = 2.445
delta = 1e-5
[claim.mechanism]
name = "gaussian"
noise_multiplier = 1.6666666666666667

[[claim]]
id = "false"
epsilon = 2.0
delta = 1e-5
[claim.mechanism]
name = "gaussian"
noise_multiplier = 1.6666666666666667
"""


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """The numerics, before the inner runs, which forget what they load: numpy loads only once in a process."""
    check(Claim.single(Gaussian(1.0), epsilon=5.0, delta=1e-5))


@pytest.fixture
def claims(pytester: pytest.Pytester) -> str:
    return str(pytester.makefile(".toml", claims=CLAIMS))


def test_every_claim_of_a_file_becomes_an_item(pytester: pytest.Pytester, claims: str) -> None:
    result = pytester.runpytest_subprocess("--dpaudit-claims", claims, "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*claim false: epsilon 2 at delta 1e-05 is refuted*", "*witness:*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_words_choose_among_the_claims(pytester: pytest.Pytester, claims: str) -> None:
    result = pytester.runpytest_inprocess("--dpaudit-claims", claims, "-k", "true")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*collected 2 items / 1 deselected / 1 selected*"])
    (pytester.path / "sub").mkdir()
    result = pytester.runpytest_inprocess("--dpaudit-claims", f"sub/../{Path(claims).name}", "-k", "true", "-v")
    result.stdout.fnmatch_lines([f"{Path(claims).name}::true PASSED*"])


def test_an_id_with_colons_is_run_again_when_it_failed(pytester: pytest.Pytester) -> None:
    path = pytester.makefile(".toml", claims=CLAIMS.replace('"false"', '"m::v1"'))
    for _ in range(2):
        result = pytester.runpytest_subprocess("--dpaudit-claims", str(path), "--lf")
        assert result.parseoutcomes()["failed"] == 1


def test_the_fixture_passes_and_fails_like_an_assertion(pytester: pytest.Pytester, claims: str) -> None:
    pytester.makepyfile(f"""
        from dpaudit.mechanisms import Gaussian
        from dpaudit.verify import Claim

        def test_true(assert_claim):
            claim = Claim.single(Gaussian(1 / 0.6), epsilon=2.445, delta=1e-5)
            assert assert_claim(claim, require="certified")[0].verdict == "certified"

        def test_false(assert_claim):
            assert_claim(Claim.single(Gaussian(1 / 0.6), epsilon=2.0, delta=1e-5))

        def test_file(assert_claim):
            assert_claim({claims!r})
    """)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines([">*assert_claim(Claim.single(*epsilon=2.0*", "E *ClaimFailure: claim*"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py:*")  # the test's own line, not ours


def test_a_wrong_file_is_a_usage_error_in_one_line(pytester: pytest.Pytester) -> None:
    wrong = pytester.makefile(".toml", wrong=CLAIMS.replace("epsilon = 2.0", "epsilon = -2.0"))
    for name, complaint in ((str(wrong), "epsilon=-2.0"), ("nothing.toml", "nothing.toml")):
        result = pytester.runpytest_inprocess("--dpaudit-claims", name)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert complaint in result.stderr.str()
        assert "Traceback" not in result.stderr.str()
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("--dpaudit-claims", str(wrong), "-n", "2")
    assert (result.ret, "epsilon=-2.0" in result.stderr.str()) == (pytest.ExitCode.USAGE_ERROR, True)
    assert "INTERNALERROR" not in result.stdout.str()


def test_the_plugin_loads_nothing_heavy() -> None:
    code = (
        "import sys, dpaudit.verify, dpaudit.verify.pytest_plugin;"
        "print([m for m in ('numpy', 'scipy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_shares_of_all_sampling_verdicts_sum_to_alpha() -> None:
    first = math.fsum(sampling_share(i) for i in range(1, 10_001))
    assert 0.04999 < first < 0.05


def test_workers_of_one_session_share_one_error_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each began with the whole: two spent .076 of .05."""
    claim, spent = Claim.single(Gaussian(1.0), epsilon=50.0, delta=0.01), []
    for name, count in (("", ""), ("master", ""), ("gw0", "")):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", name)
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", count)
        assert worker_share() == 1.0
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    for name in (*(f"gw{worker}" for worker in range(100)), "alpha", "beta"):  # most of them replace one another
        monkeypatch.setenv("PYTEST_XDIST_WORKER", name)
        spent.append(0.05 * worker_share())
    assert spent[0] == spent[1] == spent[2] == 0.025 / 3
    assert 0.049 < math.fsum(spent) < 0.05
    assert spent[-1] != spent[-2]
    shares: list[float] = []
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    for _ in range(2):
        judge(claim, None, "monte-carlo", shares, 1)
    assert shares == [sampling_share(1, 0.025 / 3), sampling_share(2, 0.025 / 3)]


def test_control_characters_of_an_id_do_not_reach_the_terminal(pytester: pytest.Pytester) -> None:
    path = pytester.makefile(".toml", claims=CLAIMS.replace("false", "\\u001b[31mred\\n::error::x"))
    result = pytester.runpytest_inprocess("--dpaudit-claims", str(path), "-v")
    result.assert_outcomes(passed=1, failed=1)
    assert "\x1b[31mred" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*claim ?[[]31mred?::error::x: epsilon 2 at delta 1e-05 is refuted*"])
