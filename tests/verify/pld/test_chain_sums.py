"""Sums along a chain of what is held, against their laws move by move."""

import math
from collections import defaultdict

import numpy as np
import pytest

from dpaudit.verify.pld.chain_sums import ChainSum, History, Link, chained
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.pld.operating_points import sum_points

STATES, KINDS, MOST = 4, 3, 2
RUNS = (((0, 3), (1, 2)), ((2, 1), (0, 2), (1, 1)), ((2, 1), (0, 2), (1, 1)), ((2, 1), (0, 2), (1, 1)), ((1, 1),))


def random_chain(rng: np.random.Generator, spread: float = 1.0) -> ChainSum:
    """A chain of three links, the last of which lets one in, with laws of a few integers."""
    links = []
    for kind in range(KINDS):
        entered = int(kind == 2)
        drawn = np.arange(STATES)[:, None] + entered - np.arange(STATES)[None, :]
        there = (drawn >= 0) & (drawn <= MOST)
        moves = np.where(there, rng.random((STATES, STATES)), 0.0)
        links.append(Link(moves / moves.sum(axis=1, keepdims=True), np.where(there, drawn, 0), kind, entered))
    laws = []
    for _ in range(KINDS):
        masses = rng.random((MOST + 1, 6)) ** 4
        laws.append(
            [Lattice(row / row.sum(), int(rng.integers(-4, 3) + spread * drawn)) for drawn, row in enumerate(masses)]
        )
    start = np.array([0.0, 0.6, 0.4, 0.0])
    return ChainSum(start, links, History.of(RUNS), laws)


def law_of(chain: ChainSum) -> dict[int, float]:
    """Every path, one link after the other."""
    at: dict[tuple[int, int], float] = {(state, 0): float(p) for state, p in enumerate(chain.start) if p}
    for run in RUNS:
        for index, count in run:
            link = chain.links[index]
            for _ in range(count):
                after: dict[tuple[int, int], float] = defaultdict(float)
                for (state, total), mass in at.items():
                    for to in np.flatnonzero(link.moves[state] > 0):
                        law = chain.laws[link.kind][link.drawn[state, to]]
                        for place, one in enumerate(law.masses):
                            after[int(to), total + law.first + place] += mass * link.moves[state, to] * one
                at = after
    found: dict[int, float] = defaultdict(float)
    for (_, total), mass in at.items():
        found[total] += mass
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("theta", [-0.7, 0.0, 0.02, 1.5])
def test_tilted_masses_are_those_of_all_paths(seed: int, theta: float) -> None:
    chain = random_chain(np.random.default_rng(seed))
    truth = law_of(chain)
    start, size = min(truth), 1 << (max(truth) - min(truth)).bit_length()
    power = chain.tilted(theta, start, size)
    assert power is not None
    places = np.arange(start, start + size)
    exact = np.array([truth.get(int(place), 0.0) for place in places]) * np.exp(theta * places)
    assert chain.log_mgf(np.array([theta]))[0] == pytest.approx(math.log(exact.sum()), abs=1e-12)
    assert power.log_scale == pytest.approx(math.log(exact.sum()), abs=power.relative)
    off = np.abs(power.values - exact / exact.sum())
    assert off.max() <= power.error_sup + 1e-15
    assert np.sqrt(np.sum(off**2)) <= power.error_l2 + 1e-15
    assert power.error_sup < 1e-11


@pytest.mark.parametrize("theta", [5.0, 40.0, -40.0])
def test_what_underflows_is_charged(theta: float) -> None:
    """Each that is drawn adds 100: the totals of tilted laws are e^4000 apart."""
    chain = random_chain(np.random.default_rng(3), spread=100.0)
    truth = law_of(chain)
    logs = np.array([math.log(mass) + theta * total for total, mass in truth.items() if mass > 0])
    exact = float(np.logaddexp.reduce(logs))
    assert chain.log_mgf(np.array([theta]))[0] == pytest.approx(exact, rel=1e-13)
    start, size = min(truth), 1 << (max(truth) - min(truth)).bit_length()
    power = chain.tilted(theta, start, size)
    assert power is not None
    places = np.array(sorted(truth))
    masses = np.array([truth[int(place)] for place in places])
    with np.errstate(divide="ignore"):
        shares = np.exp(np.log(masses) + theta * places - exact)
    values = power.values[places - start] * math.exp(min(power.log_scale - exact, 700.0))
    assert (np.abs(values - shares) <= power.error_sup * 1.01 + 1e-15).all()


def test_a_long_history_is_that_of_as_many_independent_draws() -> None:
    """Next to no frequency is left of it."""
    masses = np.random.default_rng(5).random(9)
    law = Lattice(masses / masses.sum(), -4)
    link = Link(np.ones((1, 1)), np.zeros((1, 1), dtype=np.int64), 0, 0)
    chain = ChainSum(np.ones(1), [link], History.of([((0, 30),)] * 40), [[law]])
    power = chain.tilted(0.0, -2048, 4096)
    assert power is not None
    exact = np.fft.ifft(np.fft.fft(np.roll(np.pad(law.masses, (0, 4096 - 9)), -4)) ** 1200).real
    assert np.abs(np.roll(exact, 2048) - power.values).max() <= power.error_sup + 1e-14
    assert power.error_sup < 1e-10


def test_runs_are_products_in_their_order() -> None:
    rng = np.random.default_rng(2)
    links = [rng.random((3, 3)) for _ in range(3)]
    product = rng.random((1, 3))
    found = chained(product, links.__getitem__, History.of(RUNS), 3)
    for run in RUNS:
        for index, count in run:
            product = product @ np.linalg.matrix_power(links[index], count)
    np.testing.assert_allclose(found, product, rtol=1e-13)


def test_what_takes_too_long_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = random_chain(np.random.default_rng(1))
    monkeypatch.setattr("dpaudit.verify.pld.chain_sums.WORK", 100.0)
    assert chain.tilted(0.0, -64, 128) is None
    assert not len(sum_points(chain, chain, 0.1, 1.0).all().threshold)


def test_few_frequencies_at_a_time_are_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = random_chain(np.random.default_rng(4))
    whole = chain.tilted(0.3, -64, 128)
    monkeypatch.setattr("dpaudit.verify.pld.chain_sums.MEMORY", 1)
    parts = chain.tilted(0.3, -64, 128)
    assert whole is not None
    assert parts is not None
    np.testing.assert_allclose(parts.values, whole.values, atol=1e-15)
    assert parts.log_scale == pytest.approx(whole.log_scale, abs=1e-13)
