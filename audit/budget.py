"""The one place where the error probability of an audit is split among its tests."""

from collections.abc import Sequence


def split(confidence: float, tests: Sequence[str]) -> dict[str, float]:
    """Equal shares of 1 - confidence, by the name of the test (Bonferroni).

    Whatever the dependence between the tests, all bounds hold together with probability at least `confidence`.
    Tests that are planned but not carried out keep their share: it is not handed on once data were seen.

    >>> split(0.95, ["clipbkd:epsilon_lower", "clipbkd:curve"])["clipbkd:curve"]
    0.025000000000000022
    """
    return {test: (1.0 - confidence) / len(tests) for test in tests}
