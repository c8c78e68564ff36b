"""`dpaudit calibrate` as a person and a pipeline meet it."""

import json
import subprocess
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dpaudit.mechanisms.published.gaussian_baselines import analytic_gaussian_sigma
from dpaudit.verify import check
from dpaudit.verify.claim_files import parse_claims

Command = Callable[..., subprocess.CompletedProcess[str]]
GAUSSIAN = ("--mechanism", "gaussian", "--epsilon", "1", "--delta", "1e-5")


@pytest.fixture
def calibrate(dpaudit: Command) -> Command:
    return partial(dpaudit, "calibrate")


@pytest.mark.slow
def test_stdout_is_a_claims_file_that_is_certified(calibrate: Command) -> None:
    done = calibrate(
        "--mechanism", "gamma-plrv", "--set", "k=40000", "--free", "theta", "--clip", "0.5", "--dimension", "1000",
        "--epsilon", "1.606", "--delta", "1e-5", "--steps", "300", "--sampling-prob", "0.01",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    (claim,) = parse_claims(tomllib.loads(done.stdout), source="stdout")
    assert (claim.epsilon, claim.delta, claim.phases[0].steps, claim.phases[0].sampling_prob) == (
        1.606,
        1e-5,
        300,
        0.01,
    )
    assert check(claim).verdict == "certified"
    comments = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert "# certified: epsilon in [" in done.stdout
    assert any("assumes: noise is added to the sum" in line for line in comments)
    assert max(len(line) for line in comments) <= 100


def test_a_norm_without_end_survives_toml(calibrate: Command) -> None:
    done = calibrate(
        "--mechanism", "laplace", "--clip-norm", "inf", "--dimension", "3", "--epsilon", "2", "--delta", "0"
    )
    (claim,) = parse_claims(tomllib.loads(done.stdout), source="stdout")
    assert claim.phases[0].mechanism.clip_norm == float("inf")
    assert check(claim).verdict == "certified"


def test_json_stands_alone_on_stdout(calibrate: Command) -> None:
    done = calibrate(*GAUSSIAN, "--json", "-")
    document = json.loads(done.stdout)
    assert document["format"] == "dpaudit-calibration/1"
    sigma = analytic_gaussian_sigma(1.0, epsilon=1.0, delta=1e-5)
    assert sigma <= document["mechanism"]["noise_multiplier"] <= sigma * 1.001
    assert document["verdict"]["verdict"] == "certified"


def test_json_goes_to_a_file_beside_the_text(tmp_path: Path, calibrate: Command) -> None:
    done = calibrate(*GAUSSIAN, "--json", str(tmp_path / "found.json"))
    assert tomllib.loads(done.stdout)["claim"][0]["mechanism"]["name"] == "gaussian"
    assert json.loads((tmp_path / "found.json").read_text())["free"] == "noise_multiplier"


def test_a_clip_may_be_set_as_a_parameter(calibrate: Command) -> None:
    given = [calibrate(*GAUSSIAN, "--json", "-", *words) for words in (("--set", "clip=0.5"), ("--clip", "0.5"))]
    first, second = (json.loads(done.stdout)["mechanism"] for done in given)
    assert first == second
    assert first["clip"] == 0.5


def test_an_integer_may_be_set_as_a_parameter(calibrate: Command) -> None:
    words = ("--mechanism", "laplace", "--clip-norm", "1", "--epsilon", "1", "--delta", "1e-5", "--json", "-")
    assert json.loads(calibrate(*words, "--set", "dimension=3").stdout)["mechanism"]["dimension"] == 3


@pytest.mark.parametrize(("arguments", "words"), [
    (("--mechanism", "gaussain", "--epsilon", "1", "--delta", "1e-5"), "did you mean 'gaussian'?"),
    (("--mechanism", "gamma-plrv", "--set", "k=3", "--free", "teta", "--epsilon", "1", "--delta", "1e-5"), "'theta'?"),
    (("--mechanism", "gaussian", "--epsilon", "1", "--delta", "0"), "within reach"),
    (("--mechanism", "gaussian", "--epsilon", "nan", "--delta", "1e-5"), "epsilon=nan"),
    ((*GAUSSIAN, "--steps", "0"), "steps=0"),
    ((*GAUSSIAN, "--sampling-prob", "1.3"), "sampling_prob=1.3 in [1e-300, 1]"),
    ((*GAUSSIAN, "--adjacency", "swap"), "adjacency='swap'"),
    ((*GAUSSIAN, "--set", "noise_multipler=2"), "did you mean 'noise_multiplier'?"),
    ((*GAUSSIAN, "--set", "noise_multiplier=2"), "all are given"),
    ((*GAUSSIAN, "--clip", "1", "--set", "clip=2"), "clip once: 'clip=2'"),
    ((*GAUSSIAN, "--set", "clip=0"), "clip=0 "),
    ((*GAUSSIAN, "--set", "clip_norm=0"), "clip_norm=0 "),
    ((*GAUSSIAN, "--set", "noise_multiplier"), "set='noise_multiplier' to be a parameter and a number"),
    (("--mechanism", "gamma-plrv", "--set", "teta=2", "--epsilon", "1", "--delta", "1e-5"), "did you mean 'theta'?"),
    ((*GAUSSIAN, "--clip", "-1"), "clip=-1.0"),
])  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], words: str, calibrate: Command) -> None:
    done = calibrate(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert words in done.stderr


def test_help_fits_a_narrow_terminal(calibrate: Command) -> None:
    done = calibrate("--help", COLUMNS="60")
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 60
    for option in ("--mechanism", "--set", "--free", "--clip-norm", "--adjacency", "--json"):
        assert option in done.stdout
