"""Accountants as the papers print them, faults included: what each says a release costs.

`ACCOUNTANTS` holds them by the name a claim's `accountant` may have. Each is called as
(mechanism, *, sampling_prob, steps, delta), answers with a `PublishedValue`, and raises TypeError or ValueError where
its theorem does not speak about the mechanism.
"""

from collections.abc import Callable

from dpaudit.mechanisms.published import gaussian_baselines, gg, lap2, plrvo, product, product_tails, released_code
from dpaudit.mechanisms.published.moments import PublishedValue

ACCOUNTANTS: dict[str, Callable[..., PublishedValue]] = {
    "plrvo-theorem-4.2": plrvo.theorem_4_2,
    "plrvo-theorem-4.5": plrvo.theorem_4_5,
    "plrvo-theorem-4.8": plrvo.theorem_4_8,
    "plrvo-theorem-4.9": plrvo.theorem_4_9,
    "lap2-theorem-iii.2": lap2.theorem_iii_2,
    "lap2-theorem-iii.7": lap2.theorem_iii_7,
    "product-theorem-8": product.theorem_8,
    "gg-b.2": gg.b_2,
    "gg-theorem-2": gg.theorem_2,
    "lap2-released-code": released_code.lap2_univariate,
}

__all__ = [
    "ACCOUNTANTS",
    "PublishedValue",
    "gaussian_baselines",
    "gg",
    "lap2",
    "plrvo",
    "product",
    "product_tails",
    "released_code",
]
