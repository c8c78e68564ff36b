"""Norms and clipping in any l_p, against exact arithmetic."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mpmath import mpf

from dpaudit.mechanisms.clipping import clip_records, norms

ORDERS = [1, 1.5, 2, 3, 17.0, 400.0, math.inf]
RECORDS = arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 6)), elements=st.floats(-1e200, 1e200))


def exact_norm(record: np.ndarray, order: float) -> Any:
    """With 40 digits and any exponent."""
    sizes = [abs(mpf(float(x))) for x in record]
    if math.isinf(order):
        return max(sizes)
    return sum(x ** mpf(order) for x in sizes) ** (1 / mpf(order))


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(records=RECORDS, order=st.sampled_from(ORDERS))
def test_norms_match_exact_arithmetic(records: np.ndarray, order: float) -> None:
    with mpmath.workdps(40):
        for record, norm in zip(records, norms(records, order), strict=True):
            exact = exact_norm(record, order)
            assert abs(mpf(float(norm)) - exact) <= 1e-15 * exact + mpf(5e-324)


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(records=RECORDS, order=st.sampled_from(ORDERS), clip=st.floats(1e-6, 1e6))
def test_a_clipped_record_never_exceeds_clip(records: np.ndarray, order: float, clip: float) -> None:
    clipped = clip_records(records, clip, order)
    with mpmath.workdps(40):
        for before, after in zip(records, clipped, strict=True):
            exact = exact_norm(before, order)
            if exact > mpf(clip) * (1 + mpf(1e-15)):
                assert mpf(clip) * (1 - mpf(1e-14)) <= exact_norm(after, order) <= mpf(clip)
                with np.errstate(under="ignore"):
                    expected = before * float(mpf(clip) / exact)
                np.testing.assert_allclose(after, expected, rtol=1e-14, atol=1e-300)
            elif exact < mpf(clip) * (1 - mpf(1e-15)):
                np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("order", ORDERS)
def test_large_records_stay_within_clip(order: float) -> None:
    """26,000 coordinates: the rounding of the norm itself must not carry a record over the bound."""
    records = np.random.default_rng(1).standard_normal((3, 26_000))
    clipped = clip_records(records, 0.3, order)
    norms = [np.linalg.norm(row.astype(np.longdouble), order) for row in clipped]
    assert min(norms) > 0.3 * (1 - 1e-13)
    with mpmath.workdps(30):  # an exact norm of so many takes a second
        assert mpf("0.3") * (1 - mpf(1e-14)) <= exact_norm(clipped[int(np.argmax(norms))], order) <= mpf(0.3)


@pytest.mark.parametrize("order", ORDERS)
def test_clipping_twice_is_clipping_once(order: float) -> None:
    once = clip_records(np.random.default_rng(2).standard_normal((200, 7)), 0.5, order)
    np.testing.assert_array_equal(clip_records(once, 0.5, order), once)


@pytest.mark.parametrize("order", ORDERS)
def test_a_record_barely_beyond_clip_is_clipped_and_one_barely_within_is_not(order: float) -> None:
    direction = np.random.default_rng(3).standard_normal((1, 7))
    direction /= norms(direction, order)[:, None]
    beyond, within = direction * (1 + 1e-12), direction * (1 - 1e-12)
    assert norms(clip_records(beyond, 1.0, order), order)[0] <= 1.0
    assert (clip_records(beyond, 1.0, order) != beyond).all()
    assert (clip_records(within, 1.0, order) == within).all()


def test_zeros_and_nothing_at_all_pass() -> None:
    np.testing.assert_array_equal(clip_records(np.zeros((2, 3)), 1.0, 3), np.zeros((2, 3)))
    assert clip_records(np.zeros((0, 3)), 1.0, 2).shape == (0, 3)
    assert norms(np.zeros((2, 0)), 2).tolist() == [0.0, 0.0]


def test_records_are_left_as_they_are() -> None:
    records = np.full((2, 2), 5.0)
    clip_records(records, 1.0, 2)
    assert (records == 5.0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_is_refused(bad: float) -> None:
    records = np.array([[1.0, 2.0], [bad, 0.0]])
    with pytest.raises(ValueError, match="record 1"):
        clip_records(records, 1.0, 2)
    with pytest.raises(ValueError, match="record 1"):
        norms(records, 2)


@pytest.mark.parametrize(
    ("clip", "order", "named"), [(0.0, 2, "clip"), (math.nan, 2, "clip"), (math.inf, 2, "clip"), (1.0, 0.5, "order")]
)
def test_parameters_outside_their_domain_are_refused(clip: float, order: float, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}="):
        clip_records(np.ones((1, 2)), clip, order)


def test_a_vector_is_not_a_table_of_records() -> None:
    with pytest.raises(ValueError, match=r"shape=\(3,\)"):
        norms(np.ones(3), 2)
