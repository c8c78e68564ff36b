"""PATE: teachers trained on disjoint shards vote on public queries, and a student learns from the noisy winners.

Papernot et al. (2017) proposed it, gg (Section 4.1) the noise used here: GGNMax returns argmax_j (n_j + z_j) over the
vote counts n, z generalized Gaussian; beta = 2 is GNMax, beta = 1 is LNMax. The Confident variant (Papernot et al.
2018, Algorithm 1) answers only where max_j n_j plus noise of its own reaches a threshold.

Neighbours: the data sets differ in the value of one record, and their number is public: hence in one shard, hence in at
most one teacher, hence in at most one vote per query, which moves two counts: one up, one down, by 1 each. An added
record is more: it changes the sizes of `shards`, and with them a second teacher can get other records.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Domain, Mechanism, keep_as_python_numbers, with_dimension

Labels = NDArray[np.int64]
Predict = Callable[[NDArray[np.float32]], Labels]
# (records, labels, randomness of this model alone) -> what predicts labels of records
Learner = Callable[[NDArray[np.float32], Labels, np.random.Generator], Predict]

UNANSWERED = -1
TEACHERS = Domain(1, math.inf, (10, 250), "teachers", closed_low=True, integer=True)
CLASSES = Domain(2, math.inf, (2, 100), "classes", closed_low=True, integer=True)
ANSWERS = Domain(1, math.inf, (100, 10_000), "answers", closed_low=True, integer=True)


@dataclass(frozen=True)
class Aggregator:
    """How votes become a label.

    Args:
        noise: On every count; its clip is 1, as a vote moves a count by 1. Its dimension is set to the classes.
        check: Noise on the largest count, compared with the threshold before a query is answered; None answers all.
        threshold: Votes that the noisy largest count must reach; not used without a check.

    Raises:
        ValueError: A clip other than 1, or a threshold that is not finite.
    """

    noise: Mechanism
    check: Mechanism | None = None
    threshold: float = 0.0

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        for name, mechanism in (("noise", self.noise), ("check", self.check)):
            if mechanism is not None and mechanism.clip != 1:
                raise ValueError(f"Expected {name}.clip={mechanism.clip!r} to be 1: a vote moves a count by 1.")
        if not math.isfinite(self.threshold):
            raise ValueError(f"Expected threshold={self.threshold!r} to be finite.")


@dataclass(frozen=True)
class VoteLedger:
    """What really happened, from which the history is derived.

    How many queries are asked and answered depends on the votes, so the history must charge what was ALLOWED
    beforehand: `queries` checks and `answers` noisy argmaxes.

    Args:
        aggregator: The noise.
        teachers: Votes per query.
        classes: Counts per query.
        queries: Queries at hand, a public number.
        answers: Largest number of answers allowed.
        asked: Queries looked at before the answers ran out.
        answered: Labels given.
        check_draws: Numbers drawn for checks that were made.
        noise_draws: Noise vectors drawn for labels that were given.
    """

    aggregator: Aggregator
    teachers: int
    classes: int
    queries: int
    answers: int
    asked: int
    answered: int
    check_draws: int
    noise_draws: int


@dataclass(frozen=True, eq=False)
class PrivateLabels:
    """Noisy labels of the queries.

    Args:
        labels: Shape (queries,): 0..classes-1, or UNANSWERED.
        ledger: What happened.
    """

    labels: Labels
    ledger: VoteLedger

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which queries have a label, shape (queries,)."""
        return np.asarray(self.labels != UNANSWERED)


@dataclass(frozen=True, eq=False)
class Pate:
    """A student, and the votes and labels that made it.

    Args:
        student: Predicts labels; None where no query was answered.
        votes: Counts, shape (queries, classes). SECRET: they carry no noise.
        private: The noisy labels and the ledger; with the student, all that is released.
    """

    student: Predict | None
    votes: Labels
    private: PrivateLabels


def noisy_argmax(votes: NDArray[np.integer[Any]], noise: Mechanism, *, rng: np.random.Generator) -> Labels:
    """argmax_j (n_j + z_j) of every row (gg, Section 4.1: GGNMax).

    Args:
        votes: Counts, shape (queries, classes), at least 2 classes.
        noise: Law of z; its dimension is the number of classes or None.
        rng: Where the noise comes from.

    Returns:
        Shape (queries,).

    Raises:
        ValueError: Votes of another shape, or noise of another dimension.

    >>> from dpaudit.mechanisms import GeneralizedGaussian
    >>> noise = GeneralizedGaussian(beta=2.0, scale=1.0)
    >>> noisy_argmax(np.array([[90, 10], [0, 100]]), noise, rng=np.random.default_rng(0)).tolist()
    [0, 1]
    """
    if votes.ndim != 2 or votes.shape[1] < 2:
        raise ValueError(f"Expected votes of shape {votes.shape} to be (queries, classes) with at least two classes.")
    if noise.dimension not in (None, votes.shape[1]):
        raise ValueError(f"Expected {noise.name}.dimension={noise.dimension} to be the {votes.shape[1]} classes.")
    if not len(votes):
        return np.empty(0, np.int64)
    drawn = with_dimension(noise, votes.shape[1]).sample(rng, len(votes))
    return np.asarray(np.argmax(votes + drawn, axis=1), dtype=np.int64)


def aggregate(
    votes: NDArray[np.integer[Any]], aggregator: Aggregator, *, answers: int, rng: np.random.Generator
) -> PrivateLabels:
    """Label queries in their order until `answers` labels have been given.

    Args:
        votes: Counts, shape (queries, classes); every row sums to the number of teachers.
        aggregator: The noise.
        answers: Largest number of labels, at least 1, fixed before the votes are seen.
        rng: Where the noise comes from.

    Raises:
        TypeError, ValueError: A value outside its domain, votes that are no counts, or rows of different sums.
    """
    ANSWERS.validate("answers", answers)
    teachers = _teachers_of(votes)
    queries, classes = votes.shape
    passed = np.ones(queries, bool)
    if aggregator.check is not None:
        drawn = with_dimension(aggregator.check, 1).sample(rng, queries)[:, 0]
        passed = votes.max(axis=1) + drawn >= aggregator.threshold
    chosen = np.flatnonzero(passed)[:answers]
    asked = int(chosen[-1]) + 1 if len(chosen) == answers else queries
    labels = np.full(queries, UNANSWERED, np.int64)
    labels[chosen] = noisy_argmax(votes[chosen], aggregator.noise, rng=rng)
    ledger = VoteLedger(
        aggregator=aggregator,
        teachers=teachers,
        classes=classes,
        queries=queries,
        answers=min(int(answers), queries),
        asked=asked,
        answered=len(chosen),
        check_draws=asked if aggregator.check is not None else 0,
        noise_draws=len(chosen),
    )
    return PrivateLabels(labels, ledger)


def shards(records: int, teachers: int, *, rng: np.random.Generator) -> list[Labels]:
    """Disjoint index sets that cover all records, of sizes that differ by at most 1.

    Args:
        records: How many, at least `teachers`.
        teachers: How many shards, at least 1.
        rng: The split is drawn from it, and never looks at the records.

    Raises:
        TypeError, ValueError: No teacher, or fewer records than teachers.
    """
    TEACHERS.validate("teachers", teachers)
    if records < teachers:
        raise ValueError(f"Expected teachers={teachers} to be at most the {records} records.")
    return [part.astype(np.int64) for part in np.array_split(rng.permutation(records), teachers)]


def count_votes(predictions: Sequence[Labels], classes: int) -> Labels:
    """How many teachers chose each class.

    Args:
        predictions: One array of shape (queries,) per teacher, labels 0..classes-1.
        classes: At least 2.

    Returns:
        Shape (queries, classes).

    Raises:
        TypeError, ValueError: A label outside 0..classes-1.

    >>> count_votes([np.array([0, 1]), np.array([0, 2])], 3).tolist()
    [[2, 0, 0], [0, 1, 1]]
    """
    CLASSES.validate("classes", classes)
    votes = np.stack(list(predictions))
    if votes.size and not (votes.min() >= 0 and votes.max() < classes):
        raise ValueError(f"Expected votes from {votes.min()} to {votes.max()} to be in 0..{classes - 1}.")
    return np.stack([(votes == label).sum(axis=0) for label in range(classes)], axis=1).astype(np.int64)


def pate(
    x: NDArray[np.float32],
    y: Labels,
    public_x: NDArray[np.float32],
    *,
    classes: int,
    teachers: int,
    aggregator: Aggregator,
    answers: int,
    learner: Learner,
    rng: np.random.Generator,
) -> Pate:
    """Train teachers on disjoint shards, label public records privately, and train a student on those labels.

    Args:
        x: Private records, shape (n, d).
        y: Their labels 0..classes-1, shape (n,).
        public_x: Unlabelled public records, shape (queries, d).
        classes: At least 2.
        teachers: How many, at most n.
        aggregator: The noise.
        answers: Largest number of labels the student gets.
        learner: Trains a teacher, and the student; each gets a generator of its own, so that what one record holds
            reaches one teacher only.
        rng: The root of all randomness.

    Raises:
        TypeError, ValueError: A value outside its domain, or arrays that do not fit.
    """
    if len(x) != len(y):
        raise ValueError(f"Expected x and y to have as many rows, not {len(x)} and {len(y)}.")
    split_rng, noise_rng, student_rng = rng.spawn(3)
    parts = shards(len(y), teachers, rng=split_rng)
    predictions = [
        np.asarray(learner(x[part], y[part], own)(public_x), np.int64)
        for part, own in zip(parts, rng.spawn(teachers), strict=True)
    ]
    votes = count_votes(predictions, classes)
    private = aggregate(votes, aggregator, answers=answers, rng=noise_rng)
    kept = private.answered
    student = learner(public_x[kept], private.labels[kept], student_rng) if kept.any() else None
    return Pate(student, votes, private)


def _teachers_of(votes: NDArray[np.integer[Any]]) -> int:
    if votes.ndim != 2 or not len(votes) or votes.dtype.kind not in "iu" or votes.min() < 0:
        raise ValueError(
            f"Expected votes of {votes.dtype} {votes.shape} to be counts, (queries, classes), a row or more."
        )
    sums = votes.sum(axis=1, dtype=np.int64)
    if sums.min() != sums.max() or sums.min() < 1:
        raise ValueError(f"Expected votes to sum to one number of teachers, not {sums.min()} to {sums.max()}.")
    return int(sums[0])
