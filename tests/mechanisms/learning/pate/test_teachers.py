"""PATE: the noisy argmax against its law, the ledger against what was done, students on real data."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from dpaudit.audit.inputs.datasets import load
from dpaudit.mechanisms import GeneralizedGaussian
from dpaudit.mechanisms.learning.pate.teachers import (
    UNANSWERED,
    Aggregator,
    Pate,
    Predict,
    aggregate,
    count_votes,
    noisy_argmax,
    pate,
    shards,
)

ERROR = 1e-6  # of each binomial test below


def normal(sigma: float) -> GeneralizedGaussian:
    return GeneralizedGaussian(beta=2.0, scale=math.sqrt(2.0) * sigma)


def logistic(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Predict:
    model = LogisticRegression(max_iter=1000).fit(x, y) if len(np.unique(y)) > 1 else None
    return lambda records: model.predict(records) if model else np.full(len(records), y[0])


def ridge(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Predict:
    return RidgeClassifier(alpha=1.0).fit(x, y).predict  # type: ignore[no-any-return]


@pytest.mark.parametrize("gap", [0, 3, -5])
def test_two_normal_counts_win_as_their_difference_does(gap: int) -> None:
    """n_a - n_b + z_a - z_b is normal with variance 2 sigma^2; a sampler 10% too loud would be seen."""
    votes = np.tile([100 + gap, 100], (100_000, 1))
    wins = int((noisy_argmax(votes, normal(4.0), rng=np.random.default_rng(3)) == 0).sum())
    assert binomtest(wins, len(votes), norm.cdf(gap / (4.0 * math.sqrt(2)))).pvalue > ERROR
    if gap:
        assert binomtest(wins, len(votes), norm.cdf(gap / (4.4 * math.sqrt(2)))).pvalue < ERROR


def test_laplace_noise_is_another_law() -> None:
    """beta = 1: z_a - z_b > -g has probability 1 - (1 + g/(2b)) e^(-g/b)/2, by integrating two Laplace densities."""
    votes = np.tile([7, 2], (100_000, 1))
    noise = GeneralizedGaussian(beta=1.0, scale=3.0)
    wins = int((noisy_argmax(votes, noise, rng=np.random.default_rng(8)) == 0).sum())
    expected = 1 - (1 + 5 / 6) * math.exp(-5 / 3) / 2
    assert binomtest(wins, len(votes), expected).pvalue > ERROR
    assert binomtest(wins, len(votes), norm.cdf(5 / (3 * math.sqrt(2) * math.sqrt(2)))).pvalue < ERROR


def test_the_check_passes_as_often_as_it_should_and_draws_are_counted() -> None:
    votes = np.tile([180, 60, 10], (40_000, 1))
    rule = Aggregator(normal(0.5), normal(30.0), 200.0)
    out = aggregate(votes, rule, answers=40_000, rng=np.random.default_rng(5))
    ledger = out.ledger
    assert binomtest(ledger.answered, 40_000, norm.cdf(-20 / 30)).pvalue > ERROR
    assert (ledger.asked, ledger.check_draws, ledger.noise_draws) == (40_000, 40_000, ledger.answered)
    assert (ledger.teachers, ledger.classes, ledger.queries, ledger.answers) == (250, 3, 40_000, 40_000)
    assert set(out.labels.tolist()) == {UNANSWERED, 0}
    assert int(out.answered.sum()) == ledger.answered


def test_answers_end_when_they_are_used_up() -> None:
    votes = np.tile([200, 50], (1000, 1))
    rule = Aggregator(normal(1.0), normal(1.0), 200.0)
    out = aggregate(votes, rule, answers=20, rng=np.random.default_rng(1))
    given = np.flatnonzero(out.answered)
    assert (len(given), out.ledger.answered) == (20, 20)
    assert out.ledger.asked == given[-1] + 1 == out.ledger.check_draws < 100
    everything = aggregate(votes, rule, answers=1000, rng=np.random.default_rng(1))
    assert np.array_equal(np.flatnonzero(everything.answered)[:20], given)
    plain = aggregate(votes, Aggregator(normal(1.0)), answers=20, rng=np.random.default_rng(1))
    assert (plain.ledger.asked, plain.ledger.check_draws, plain.ledger.noise_draws) == (20, 0, 20)


def test_votes_are_counted_one_by_one() -> None:
    predictions = np.random.default_rng(0).integers(0, 4, (31, 17))
    votes = count_votes(list(predictions), 4)
    for query in range(17):
        assert votes[query].tolist() == [int(np.sum(predictions[:, query] == label)) for label in range(4)]


def test_shards_are_disjoint_and_cover_everything() -> None:
    parts = shards(103, 10, rng=np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert {len(part) for part in parts} == {10, 11}


def test_an_added_record_can_reach_two_teachers() -> None:
    """Ten shards of 50 and one record more: where it lies in one of 50, another has 51, and both hold other records."""
    reached = set()
    for seed in range(20):
        sizes = {record: len(part) for part in shards(501, 10, rng=np.random.default_rng(seed)) for record in part}
        reached.add(1 if sizes[500] == 51 else 2)
    assert reached == {1, 2}


def test_one_record_moves_one_vote_per_query() -> None:
    """What the privacy of PATE rests on: (+1, -1) or nothing in every row of counts, whatever the record becomes."""
    data = load("digits")
    moved = 0
    before = _digits(data, data.y, 1.0, 0, teachers=60)
    for victim in range(0, 40, 8):
        changed = data.y.copy()
        changed[victim] = (changed[victim] + 5) % 10
        difference = _digits(data, changed, 1.0, 0, teachers=60).votes - before.votes
        rows = {tuple(sorted(row)) for row in difference.tolist()}
        assert rows <= {(0,) * 10, (-1, *(0,) * 8, 1)}
        moved += int(np.abs(difference).any())
    assert moved == 5


def _digits(data: Any, y: np.ndarray, sigma: float, seed: int, teachers: int = 50) -> Pate:
    return pate(
        data.x[:1138], y[:1138], data.x[1138:], classes=10, teachers=teachers, aggregator=Aggregator(normal(sigma)),
        answers=300, learner=ridge if teachers == 60 else logistic, rng=np.random.default_rng(seed),
    )  # fmt: skip


def test_students_on_digits_learn_and_degrade_with_noise() -> None:
    data = load("digits")
    means = []
    for sigma in (0.5, 15.0, 60.0):
        scores = []
        for seed in range(2):
            student = _digits(data, data.y, sigma, seed).student
            assert student is not None
            scores.append(float(np.mean(student(data.x_test) == data.y_test)))
        means.append(np.mean(scores))
    assert means[0] >= 0.85
    assert means[0] > means[1] + 0.03 > means[2] + 0.2


def test_same_seed_same_bits() -> None:
    data = load("digits")
    one, two, other = (_digits(data, data.y, 10.0, seed) for seed in (4, 4, 5))
    assert one.votes.tobytes() == two.votes.tobytes()
    assert one.private.labels.tobytes() == two.private.labels.tobytes()
    assert one.private.ledger == two.private.ledger
    assert one.student is not None
    assert two.student is not None
    assert one.student(data.x_test).tobytes() == two.student(data.x_test).tobytes()
    assert one.private.labels.tobytes() != other.private.labels.tobytes()


def test_no_answer_no_student() -> None:
    data = load("digits")
    rule = Aggregator(normal(1.0), normal(1.0), 1e6)
    out = pate(
        data.x[:200], data.y[:200], data.x[200:210], classes=10, teachers=5, aggregator=rule, answers=10,
        learner=ridge, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert out.student is None
    assert (out.private.ledger.asked, out.private.ledger.answered) == (10, 0)


RNG = np.random.default_rng(0)
VOTES = np.array([[3, 2], [5, 0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Aggregator(GeneralizedGaussian(2.0, 1.0, clip=2.0)), r"noise\.clip=2\.0 to be 1"),
        (lambda: Aggregator(normal(1.0), GeneralizedGaussian(2.0, 1.0, clip=0.5)), r"check\.clip=0\.5 to be 1"),
        (lambda: Aggregator(normal(1.0), normal(1.0), math.inf), "threshold=inf to be finite"),
        (lambda: noisy_argmax(np.ones((4, 1), int), normal(1.0), rng=RNG), r"shape \(4, 1\)"),
        (lambda: noisy_argmax(VOTES, GeneralizedGaussian(2.0, 1.0, dimension=3), rng=RNG), "dimension=3"),
        (lambda: aggregate(VOTES, Aggregator(normal(1.0)), answers=0, rng=RNG), r"answers=0 in the integers"),
        (lambda: aggregate(VOTES * 0.5, Aggregator(normal(1.0)), answers=1, rng=RNG), "float64 .* to be counts"),
        (lambda: aggregate(VOTES - 3, Aggregator(normal(1.0)), answers=1, rng=RNG), "to be counts"),
        (lambda: aggregate(VOTES[:0], Aggregator(normal(1.0)), answers=1, rng=RNG), "a row or more"),
        (lambda: aggregate(VOTES * [[1], [2]], Aggregator(normal(1.0)), answers=1, rng=RNG), "not 5 to 10"),
        (lambda: shards(3, 4, rng=RNG), "teachers=4 to be at most the 3 records"),
        (lambda: shards(3, 0, rng=RNG), "teachers=0 in"),
        (lambda: count_votes([np.array([0, 2])], 2), r"votes from 0 to 2 to be in 0\.\.1"),
        (lambda: count_votes([np.array([0, 0])], 1), "classes=1 in"),
        (
            lambda: pate(
                np.zeros((3, 2), np.float32), np.zeros(2, np.int64), np.zeros((1, 2), np.float32), classes=2,
                teachers=1, aggregator=Aggregator(normal(1.0)), answers=1, learner=ridge, rng=RNG,
            ),
            "as many rows, not 3 and 2",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
