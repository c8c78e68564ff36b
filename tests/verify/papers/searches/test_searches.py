"""The parameter searches of lap2, product and gg: printed values, plain oracles, and what their optima really cost.

One release of product and gg noise: the examples of docs/papers.md, which tests/verify/papers/test_papers_page.py runs.
"""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.mechanisms import Product
from dpaudit.mechanisms.published.gaussian_baselines import analytic_gaussian_sigma
from dpaudit.mechanisms.published.product import algorithm_1
from dpaudit.verify.accountants.published_adapter import Published
from dpaudit.verify.calibration.costs import Target
from dpaudit.verify.calibration.noise import calibrate
from dpaudit.verify.calibration.search import InfeasibleError
from dpaudit.verify.papers.searches import gg, lap2, product

LAP2 = Target(1.68, 1e-5, 5860, 0.0043)


def test_lap2_needs_the_scale_behind_its_printed_epsilon() -> None:
    theirs = lap2.largest_clip(
        LAP2, clips=[0.5, 1.0, 2.0], scale_max=2.0, dimension=26_000, accountant=Published("lap2-theorem-iii.7")
    )
    assert theirs.best.mechanism.clip == 1.0  # 2 clips would need a scale above 2
    assert theirs.best.value == pytest.approx(1.521, rel=2e-3)  # theory's b for 1.68
    assert theirs.best.verdict.verdict == "certified"
    assert theirs.best.verdict.epsilon_upper < 0.6 * LAP2.epsilon  # their claim holds with room
    for clip, scale in theirs.scales:
        assert scale / clip == pytest.approx(theirs.scales[0][1] / theirs.scales[0][0], rel=1.5e-3)
    assert theirs.start == pytest.approx(0.5 * 2 * 0.0043 / 1.68 * math.sqrt(5860 * math.log(1e5)))


def test_lap2_refuses_a_grid_without_an_allowed_scale() -> None:
    release = Target(1.68, 1e-5)
    with pytest.raises(InfeasibleError, match=r"scale_max=0\.1 to be at least") as caught:
        lap2.largest_clip(release, clips=[1.0, 0.5], scale_max=0.1, dimension=100)
    found = lap2.largest_clip(release, clips=[1.0, 0.5], scale_max=1.001 * caught.value.nearest, dimension=100)
    assert found.best.mechanism.clip == 0.5


@pytest.mark.parametrize("change", [{"clips": []}, {"clips": [-1.0]}, {"scale_max": 0.0}])
def test_lap2_refuses_bad_bounds(change: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        lap2.largest_clip(LAP2, **{"clips": [1.0], "scale_max": 2.0, "dimension": 10, **change})  # type: ignore[arg-type]


def test_lap2_takes_any_grid_and_refuses_targets_by_name() -> None:
    settings: dict[str, Any] = {"scale_max": 5.0, "dimension": 100}
    arrays = lap2.largest_clip(Target(1.0, 1e-5, 100, 0.01), clips=np.array([0.5, 1.0]), **settings)
    assert (
        arrays.best.value
        == lap2.largest_clip(Target(1.0, 1e-5, 100, 0.01), clips=iter([1.0, 0.5]), **settings).best.value
    )
    for target, message in (
        (Target(1.0, 1e-5, 0, 0.01), "steps=0"),
        (Target(1.0, 1e-5, 10, 0.0), r"sampling_prob=0\.0"),
        (Target(1.0, 1e-2, 1000, 1e-6), "no noise is needed"),
        (Target(1e-300, 1e-5, 10, 0.01), "scale_max=5 to be at least inf"),
    ):
        with pytest.raises(ValueError, match=message):
            lap2.largest_clip(target, clips=[1.0], **settings)


def test_product_refuses_a_sensitivity_that_is_none() -> None:
    for sensitivity in (-1.0, 0.0):
        with pytest.raises(ValueError, match="sensitivity="):
            algorithm_1(dimension=10, sensitivity=sensitivity, epsilon=1.0, delta=1e-5, k=100.0, factor=1.1)


def test_product_history_inverts_its_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the paper alone: the other two ask `calibrate` as they do for one release, which takes ten times as long."""
    asked = []

    def by_the_paper(table: Any, *, accountant: Any, **target: Any) -> Any:
        asked.append((table["name"], table["dimension"], accountant is None, target))
        return SimpleNamespace(value=1.0) if accountant is None else calibrate(table, accountant=accountant, **target)

    monkeypatch.setattr(product, "calibrate", by_the_paper)
    found = product.compare_sigmas(Target(1.0, 1e-3, 100, 0.05), dimension=10_000)
    assert found.published_k is None
    assert found.published_verdict.verdict == "refuted"
    theirs = Published("product-theorem-8")(Product(found.published_sigma, dimension=10_000), 0.05, 100, 1e-3)
    assert theirs == pytest.approx(1.0, rel=2e-3)
    history = {"epsilon": 1.0, "delta": 1e-3, "steps": 100, "sampling_prob": 0.05, "adjacency": "add-remove"}
    names = [("product", False), ("product", True), ("gaussian", True)]
    assert asked == [(name, 10_000, ours, history) for name, ours in names]


def test_only_the_replacement_of_a_record_doubles_the_products_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "calibrate", lambda *given, **more: SimpleNamespace(value=1.0))
    monkeypatch.setattr(product, "check", lambda claim: None)
    removed, zeroed, replaced = (
        product.compare_sigmas(Target(0.1, 1e-5, adjacency=adjacency), dimension=784).published_sigma
        for adjacency in ("add-remove", "zero-out", "replace-one")
    )
    assert (zeroed, replaced) == (removed, pytest.approx(2 * removed))


def test_gg_scale_is_the_gaussian_one_at_beta_2() -> None:
    published, valid = gg.compare_scales(Target(1.0, 1e-5), beta=2.0, dimension=10_000)
    scale = math.sqrt(2) * analytic_gaussian_sigma(1.0, epsilon=1.0, delta=1e-5)
    assert scale <= valid.value <= scale * 1.0011
    assert scale <= published.value <= scale * 1.006
