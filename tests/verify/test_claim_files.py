"""Claims files: what is read, and what is refused and in which words."""

import os
from pathlib import Path

import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.claim_files import MAX_BYTES, ClaimFileError, claim_from_dict, claim_to_dict, load_claims
from dpaudit.verify.samplers import WithoutReplacement

GOOD = """
[[claim]]
id = "a"
epsilon = 1.606
delta = 1e-5
adjacency = "add-remove"
steps = 300
sampling_prob = 0.01
accountant = "plrvo-theorem-4.9"
source = "plrvo, Table 13"
[claim.mechanism]
name = "gamma-plrv"
k = 40000.0
theta = 6e-5
clip = 0.5
clip_norm = 2.0
dimension = 26000
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "claims.toml"
    path.write_text(text)
    return path


def test_the_contracts_example_is_read(tmp_path: Path) -> None:
    (claim,) = load_claims(write(tmp_path, GOOD))
    (phase,) = claim.phases
    assert (claim.id, claim.epsilon, claim.accountant) == ("a", 1.606, "plrvo-theorem-4.9")
    assert (phase.steps, phase.sampling_prob, phase.mechanism.dimension) == (300, 0.01, 26000)


def test_the_format_may_be_named(tmp_path: Path) -> None:
    plain = load_claims(write(tmp_path, GOOD))
    assert load_claims(write(tmp_path, f'format = "dpaudit-claims/2"\n{GOOD}')) == plain
    with pytest.raises(ClaimFileError, match="format='dpaudit-claims/3' to be 'dpaudit-claims/1' or"):
        load_claims(write(tmp_path, f'format = "dpaudit-claims/3"\n{GOOD}'))


def test_phases_and_sampling_kinds(tmp_path: Path) -> None:
    text = """
[[claim]]
id = "two"
epsilon = 1
delta = 0
[[claim.phase]]
steps = 10
sampling = {kind = "shuffled", prob = 0.1}
mechanism = {name = "gaussian", noise_multiplier = 1}
[[claim.phase]]
sampling = {kind = "none"}
mechanism = {name = "laplace", scale = 2.0, clip_norm = 1}
"""
    (claim,) = load_claims(write(tmp_path, text))
    assert [phase.sampling_kind for phase in claim.phases] == ["shuffled", "none"]
    assert claim.phases[0].mechanism == Gaussian(1.0)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("sampling_prob = 0.01", "sampling_prob = 0.0", "sampling_prob=0.0"),
        ("sampling_prob = 0.01", "sampling_prob = 1.3", "sampling_prob=1.3"),
        ("sampling_prob = 0.01", "sampling_prob = nan", "sampling_prob"),
        ("sampling_prob = 0.01", 'sampling = {kind = "none", prob = 0.01}', "sampling_prob=0.01"),
        ("sampling_prob = 0.01", 'sampling = {kind = "shufled", batches = 4}', "sampling_kind='shufled'"),
        ("sampling_prob = 0.01", 'sampling = {kind = "none", batches = 4}', "'sampling.batches'"),
        ("delta = 1e-5", "delta = 1.0", "delta=1.0"),
        ("epsilon = 1.606", "epsilon = -1.0", "epsilon=-1.0"),
        ("epsilon = 1.606", "epsilon = inf", "epsilon"),
        ("epsilon = 1.606", 'epsilon = "1"', "epsilon"),
        ("steps = 300", "steps = 0", "steps=0"),
        ("steps = 300", "steps = true", "steps"),
        ("theta = 6e-5", "theta = inf", "theta"),
        ("theta = 6e-5", "theta = -1.0", "theta=-1.0"),
        ("dimension = 26000", "dimension = 0", "dimension=0"),
        ("clip_norm = 2.0", "clip_norm = 0.5", "clip_norm=0.5"),
        ('name = "gamma-plrv"', 'name = "gama-plrv"', "gamma-plrv"),
        ("theta = 6e-5", "thta = 6e-5", "thta"),
        ("steps = 300", "step = 300", "step: Expected a known key: did you mean steps?"),
        ('adjacency = "add-remove"', 'adjacency = "swap"', "adjacency"),
        ('id = "a"', 'id = ""', "id"),
        ("plrvo-theorem-4.9", "plrvo-theorem-49", "accountant='plrvo-theorem-49'"),
        ("dimension = 26000", "dimension = 26e3", "dimension=26000.0 in the integers of [1, inf), without a point"),
        ("sampling_prob = 0.01", 'sampling = {kind = "shuffled", records = 6e4, batch = 2, epochs = 2}', "records=6"),
        ("sampling_prob = 0.01", 'sampling = {kind = "balls-in-bins", batches = 3, epochs = 2.0}', "epochs=2.0"),
        ("sampling_prob = 0.01", 'sampling = {kind = "without-replacement", prob = 0.5, steps = 9}', "steps=300"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, word: str) -> None:
    assert old in GOOD
    with pytest.raises(ClaimFileError) as caught:
        load_claims(write(tmp_path, GOOD.replace(old, new)))
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "claim = 3", "x = 1\n" + GOOD, "[[claim]\n", GOOD + GOOD])
def test_a_file_that_is_no_claims_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ClaimFileError):
        load_claims(write(tmp_path, text))


@pytest.mark.parametrize(
    "value",
    ["[" * 3000 + "]" * 3000, "{a = " * 3000 + "1" + "}" * 3000, "9" * 5000, "0x" + "9" * 5000],
    ids=["list", "table", "integer", "hexadecimal"],
)
def test_what_no_reader_of_toml_takes_is_refused_in_one_line(tmp_path: Path, value: str) -> None:
    with pytest.raises(ClaimFileError, match=r"not TOML: [^\n]*$"):
        load_claims(write(tmp_path, GOOD.replace("steps = 300", f"steps = {value}")))


@pytest.mark.parametrize("text", ["1e-400", "-0.1e-400", "0.0_1e-330", "1e-324"])
def test_a_number_that_floats_take_for_0_is_refused(tmp_path: Path, text: str) -> None:
    """A delta of 1e-400 was judged as one of 0, which normal noise never has: a true claim was refuted."""
    with pytest.raises(ClaimFileError, match=rf"at least 5e-324 in size as floats are, not {text}\.$"):
        load_claims(write(tmp_path, GOOD.replace("delta = 1e-5", f"delta = {text}")))


@pytest.mark.parametrize("text", ["0.0", "0e-400", "5e-324", "3e-324"])
def test_numbers_next_to_0_are_read(tmp_path: Path, text: str) -> None:
    (claim,) = load_claims(write(tmp_path, GOOD.replace("delta = 1e-5", f"delta = {text}")))
    assert claim.delta == float(text)


@pytest.mark.parametrize(
    ("key", "said"), [("id", r"id: Expected \{'a': .* to be a valid string\.$"), ("mechanism", "not nested so deeply")]
)
def test_tables_that_are_nested_too_deeply_are_refused_in_one_line(tmp_path: Path, key: str, said: str) -> None:
    named = "" if key == "id" else 'id = "a"\n'
    with pytest.raises(ClaimFileError, match=said):
        load_claims(write(tmp_path, f"[[claim]]\n{named}epsilon = 1.0\ndelta = 0.0\n{key}{'.a' * 5000} = 1\n"))


def test_a_file_that_is_too_large_is_told_so(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(ClaimFileError, match=r"claims.toml: expected a claims file of at most"):
        load_claims(path)


@pytest.mark.parametrize(
    "sampling",
    [
        '{kind = "without-replacement", prob = 0.5, steps = 9}',
        '{kind = "shuffled", batches = 9, epochs = 1}',
        '{kind = "random-allocation", steps = 9, times = 1}',
    ],
)
def test_steps_that_differ_are_refused_even_where_they_are_one(tmp_path: Path, sampling: str) -> None:
    """Read as left out, a claim on one release was judged on 300."""
    told = GOOD.replace("sampling_prob = 0.01", f"sampling = {sampling}")
    with pytest.raises(ClaimFileError, match="steps=1 to be left out, or the sampler's 9"):
        load_claims(write(tmp_path, told.replace("steps = 300", "steps = 1")))
    assert load_claims(write(tmp_path, told.replace("steps = 300", "")))[0].phases[0].steps == 9


def test_batches_of_a_fixed_size_are_one_release_unless_more_are_told(tmp_path: Path) -> None:
    told = GOOD.replace("sampling_prob = 0.01", 'sampling = {kind = "without-replacement", prob = 0.5}')
    (claim,) = load_claims(write(tmp_path, told.replace("steps = 300", "")))
    assert claim.phases[0].sampler == WithoutReplacement(0.5, 1)
    assert claim_from_dict(claim_to_dict(claim)) == claim
    (many,) = load_claims(write(tmp_path, told))
    assert many.phases[0].sampler == WithoutReplacement(0.5, 300)


def test_a_duplicate_id_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClaimFileError, match="'a': id appears twice"):
        load_claims(write(tmp_path, GOOD + GOOD))


def test_a_thousand_claims_share_their_mechanism(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(GOOD.replace('"a"', f'"a{i}"') for i in range(1000)))
    claims = load_claims(path)
    assert len(claims) == 1000
    assert len({id(claim.phases[0].mechanism) for claim in claims}) == 1


def test_a_device_without_an_end_is_no_claims_file() -> None:
    with pytest.raises(ClaimFileError, match="/dev/zero: expected a claims file of at most"):
        load_claims(Path("/dev/zero"))
