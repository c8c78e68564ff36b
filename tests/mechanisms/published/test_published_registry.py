"""Every published accountant through its name: the signature, the value, the refusals, no surprise at the edges."""

import math
from typing import Any

import pytest

from dpaudit.mechanisms import GammaPLRV, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.published import ACCOUNTANTS, PublishedValue

SUBJECTS: dict[str, Mechanism] = {
    "plrvo-theorem-4.2": Laplace(scale=20.0),
    "plrvo-theorem-4.5": Laplace(scale=20.0, dimension=50),
    "plrvo-theorem-4.8": GammaPLRV(k=80.0, theta=6e-4),
    "plrvo-theorem-4.9": GammaPLRV(k=80.0, theta=6e-4, dimension=50),
    "lap2-theorem-iii.2": Laplace(scale=20.0),
    "lap2-theorem-iii.7": Laplace(scale=20.0, dimension=50),
    "product-theorem-8": Product(sigma=4000.0, dimension=5000),
    "lap2-released-code": Laplace(scale=20.0),
    "gg-b.2": GeneralizedGaussian(beta=3.0, scale=30.0, clip_norm=3.0, dimension=50),
    "gg-theorem-2": GeneralizedGaussian(beta=1.0, scale=20.0, dimension=50),
}
RELEASE: dict[str, Any] = {"sampling_prob": 0.05, "steps": 100, "delta": 1e-5}


def test_every_accountant_has_a_subject_here() -> None:
    assert set(SUBJECTS) == set(ACCOUNTANTS)


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_a_value_with_its_settings_and_a_small_error(name: str) -> None:
    value = ACCOUNTANTS[name](SUBJECTS[name], **RELEASE)
    assert isinstance(value, PublishedValue)
    assert 0 < value.epsilon < 10
    assert 0 <= value.error < 0.01
    assert value.settings
    assert ACCOUNTANTS[name](SUBJECTS[name], **RELEASE) == value


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_more_steps_a_higher_rate_and_a_smaller_delta_never_cost_less(name: str) -> None:
    base = ACCOUNTANTS[name](SUBJECTS[name], **RELEASE)
    for change in ({"steps": 130}, {"sampling_prob": 0.07}, {"delta": 2e-6}):
        more = ACCOUNTANTS[name](SUBJECTS[name], **{**RELEASE, **change})
        assert more.epsilon >= base.epsilon


@pytest.mark.parametrize("name", ACCOUNTANTS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampling_prob": 0.0}, r"Expected sampling_prob=0\.0 in \(0, 1\]\."),
        ({"sampling_prob": 1.3}, r"Expected sampling_prob=1\.3 in \(0, 1\]\."),
        ({"steps": 0}, r"Expected steps=0 in .*\[1, inf\)\."),
        ({"delta": 1.0}, r"Expected delta=1\.0 in \[0, 1\)\."),
        ({"delta": math.nan}, r"Expected delta=nan in"),
    ],
)
def test_values_outside_their_domains_are_refused_by_name(name: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ACCOUNTANTS[name](SUBJECTS[name], **{**RELEASE, **change})


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_another_mechanism_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="Expected mechanism='gaussian' to be"):
        ACCOUNTANTS[name](Gaussian(noise_multiplier=1.0, dimension=50), **RELEASE)


@pytest.mark.parametrize("name", ACCOUNTANTS)
@pytest.mark.parametrize("release", [
    {"sampling_prob": 1.0, "steps": 1, "delta": 1e-5}, {"sampling_prob": 1e-6, "steps": 1, "delta": 1e-12},
    {"sampling_prob": 0.5, "steps": 1000, "delta": 0.3}, {"sampling_prob": 1.0, "steps": 1, "delta": 0.0},
])  # fmt: skip
def test_edges_give_a_number_and_no_warning(name: str, release: dict[str, Any]) -> None:
    value = ACCOUNTANTS[name](SUBJECTS[name], **release)
    assert value.epsilon >= 0
    assert not math.isnan(value.error)
