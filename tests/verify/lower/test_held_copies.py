"""Copies that a buffer holds, against exact laws of small streams."""

import numpy as np
import pytest
from buffers import STREAMS, batch_counts

from dpaudit.verify.lower.held_copies import HeldCopies
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.samplers import BufferedShuffle

LONG = [(3, 3, 9, 3), (1, 1, 3, 4), (5, 3, 20, 4), (4, 1, 7, 9), (40, 2, 3, 12), (2, 2, 3, 4)]


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), [*STREAMS, *LONG])
@pytest.mark.parametrize("further", [0, 1, 8])
@pytest.mark.parametrize("together", [1, 3])
def test_copies_in_batches_have_their_law(
    records: int, batch: int, buffer: int, steps: int, further: int, together: int
) -> None:
    """A batch of level l adds l + 1 for each copy; what has too many in a batch, or held at once, is lost."""
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    chain = HeldCopies(sampler, -(-buffer // records) + further)
    runs = [run for run, repeats in chain.history.groups for _ in range(repeats)]
    levels = [level for run in runs for link, count in run for level in [chain.level_of(link)] * count]
    assert len(levels) == steps
    np.testing.assert_array_equal(chain.counts, np.bincount(levels, minlength=len(chain.levels)))
    truth = np.zeros(512)
    lost = 0.0
    for counts, mass in batch_counts(sampler, 0).items():
        if max(counts) > together:
            lost += mass
        else:
            truth[sum(k * (level + 1) for k, level in zip(counts, levels, strict=True))] += mass
    laws = [[Lattice(np.ones(1), k * (level + 1)) for k in range(together + 1)] for level in range(len(chain.levels))]
    found = {up: chain.sum(laws, upper=up).tilted(0.0, 0, 512) for up in (False, True)}
    assert found[False] is not None
    assert found[True] is not None
    masses = {up: power.values * np.exp(power.log_scale) for up, power in found.items() if power}
    assert (masses[False] <= truth + 1e-12).all()
    assert lost <= chain.lost(together)
    if further == 8:  # none has more at once
        np.testing.assert_allclose(masses[True], truth, atol=1e-12)
        assert chain.lost(together) == pytest.approx(lost, abs=1e-12)
    else:
        missing = truth.sum() - masses[True].sum()
        assert lost + missing == pytest.approx(chain.lost(together), abs=1e-11)


def test_usual_numbers_of_copies_are_those_of_batches_in_the_long_run() -> None:
    sampler = BufferedShuffle(1000, 20, 300, releases=4000)
    chain = HeldCopies(sampler, 8)
    expected = sum(count * (law @ np.arange(len(law))) for count, law in zip(chain.counts, chain.usual, strict=True))
    assert expected == pytest.approx(80.0, rel=0.1)
