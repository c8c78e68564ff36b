"""The broken twins: each does exactly the one thing that its name says, and the correct twin none of them."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpaudit.mechanisms import GammaPLRV, Gaussian, Laplace, Product
from dpaudit.mechanisms.clipping import clip_records, norms
from dpaudit.mechanisms.defects import CORRECT, DEFECTS, Defect, release

RECORDS = np.random.default_rng(3).normal(size=(20, 4)) * 3
LABELS = np.arange(20) % 2
MECHANISMS: list[Any] = [
    Gaussian(1.5, clip=0.7), Laplace(2.0, clip_norm=1.0), GammaPLRV(3.0, 0.1), Product(2.0, clip_norm=math.inf)
]  # fmt: skip


def noise_of(mechanism: Any, seed: int) -> np.ndarray:
    draw: np.ndarray = replace(mechanism, dimension=4).sample(np.random.default_rng(seed), 1)[0]
    return draw


def released(mechanism: Any, defect: Defect, seed: int = 7) -> np.ndarray:
    return release(mechanism, defect, RECORDS, LABELS, np.random.default_rng(seed))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_the_correct_release_is_the_clipped_sum_plus_the_mechanisms_noise(mechanism: Any) -> None:
    clipped = clip_records(RECORDS, mechanism.clip, mechanism.clip_norm)
    np.testing.assert_allclose(released(mechanism, CORRECT), clipped.sum(axis=0) + noise_of(mechanism, 7), rtol=1e-12)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize(("name", "factor"), [("half-noise", 0.5), ("noise-for-the-mean-on-the-sum", 1 / 20)])
def test_too_little_noise(mechanism: Any, name: str, factor: float) -> None:
    lost = released(mechanism, CORRECT) - released(mechanism, DEFECTS[name])
    np.testing.assert_allclose(lost, (1 - factor) * noise_of(mechanism, 7), rtol=1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_a_fixed_seed_ignores_the_generator(mechanism: Any) -> None:
    defect = DEFECTS["fixed-seed"]
    assert (released(mechanism, defect, 1) == released(mechanism, defect, 2)).all()
    assert (released(mechanism, CORRECT, 1) != released(mechanism, CORRECT, 2)).all()


def test_clipping_in_another_norm_leaves_records_too_large() -> None:
    mechanism = Gaussian(1e-9, clip=0.7)
    defect = replace(DEFECTS["clipped-in-another-norm"], noise_factor=0.0)
    one = release(mechanism, defect, np.full((1, 4), 9.0), [0], np.random.default_rng(1))
    assert norms(one[None], math.inf)[0] == pytest.approx(0.7, rel=1e-12)
    assert norms(one[None], 2)[0] == pytest.approx(1.4, rel=1e-12)


def test_one_class_is_left_unclipped() -> None:
    defect = replace(DEFECTS["one-class-unclipped"], noise_factor=0.0)
    expected = RECORDS[LABELS == 1].sum(axis=0) + clip_records(RECORDS[LABELS == 0], 0.7, 2).sum(axis=0)
    np.testing.assert_allclose(released(Gaussian(1.0, clip=0.7), defect), expected, rtol=1e-12)


def test_every_named_defect_differs_from_correct_in_one_field() -> None:
    for name, defect in DEFECTS.items():
        changed = [f.name for f in fields(Defect) if getattr(defect, f.name) != getattr(CORRECT, f.name)]
        assert len(changed) == 1, name
    assert len(DEFECTS) >= 5


@pytest.mark.parametrize("name", ["half-noise", "noise-for-the-mean-on-the-sum", "fixed-seed"])
def test_noise_defects_show_in_the_law_of_the_releases_and_the_correct_twin_does_not(name: str) -> None:
    """2,000 releases of an empty-handed sum: Kolmogorov-Smirnov at 1e-6 (Dvoretzky, Kiefer and Wolfowitz; Massart)."""
    mechanism, size = Laplace(2.0), 2000
    limit = math.sqrt(math.log(2 / 1e-6) / (2 * size))
    rng = np.random.default_rng(4)
    records, labels = np.zeros((5, 1)), np.zeros(5)
    for defect, broken in ((DEFECTS[name], True), (CORRECT, False)):
        outputs = np.concatenate([release(mechanism, defect, records, labels, rng) for _ in range(size)])
        assert (stats.ks_1samp(outputs, mechanism.structure.cdf).statistic > limit) == broken


def test_an_empty_table_still_gets_noise() -> None:
    defect = DEFECTS["noise-for-the-mean-on-the-sum"]
    output = release(Gaussian(1.0), defect, np.zeros((0, 4)), [], np.random.default_rng(7))
    np.testing.assert_allclose(output, noise_of(Gaussian(1.0), 7))


def test_inputs_that_do_not_fit_are_refused() -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError, match=r"labels\.shape=\(3,\)"):
        release(Gaussian(1.0), CORRECT, RECORDS, [0, 1, 0], rng)
    with pytest.raises(ValueError, match=r"\(n, 9\)"):
        release(Gaussian(1.0, dimension=9), CORRECT, RECORDS, LABELS, rng)
    with pytest.raises(ValueError, match="finite"):
        release(Gaussian(1.0), CORRECT, RECORDS * np.nan, LABELS, rng)


@pytest.mark.parametrize("bad", [{"noise_factor": -0.5}, {"noise_factor": math.nan}, {"clip_norm": 0.5}])
def test_a_defect_outside_its_domain_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))}="):
        Defect(**bad)  # type: ignore[arg-type]
