"""A history of noisy argmaxes over teachers' votes: what one changed vote can do to all of it."""

import math
from dataclasses import dataclass, replace
from typing import Any, cast

from dpaudit.mechanisms.base import Domain, IIDCoordinates, Mechanism, keep_as_python_numbers
from dpaudit.verify.claims import STEPS, Adjacency, Claim, Phase

CLASSES = Domain(2, math.inf, (2, 100), "classes", closed_low=True, integer=True)
TEACHERS = Domain(1, math.inf, (10, 250), "teachers", closed_low=True, integer=True)


@dataclass(frozen=True)
class VoteHistory:
    """Queries that may each be checked, and of which at most `answers` are answered by argmax_j (n_j + z_j).

    A check releases whether max_j n_j + noise reaches the threshold; answering stops for good after `answers` answers.
    Queries and data may depend on everything released before.

    Args:
        noise: Law of z, independent over the counts, for a count that a vote moves by clip = 1.
        answers: Largest number of answers, fixed beforehand.
        teachers: Votes per query, on the side of the neighbours with more.
        classes: Counts per query, at least 2.
        check: Law of the check's noise, with clip = 1; None where every query is answered.
        checks: Largest number of checks, fixed beforehand; 0 without a check.
        threshold: Of the check, finite.
        adjacency: "replace-one": one teacher votes otherwise, (+1, -1) on two counts: what a changed record does, its
            teacher being trained anew, where the number of records is public. An added or removed one does no more
            where every record's teacher is drawn by itself; in shards of equal size it can change two teachers.
            "add-remove": one teacher's vote is there or not, 1 on one count.

    Raises:
        TypeError, ValueError: A value outside its domain, or noise without independent coordinates.
    """

    noise: Mechanism
    answers: int
    teachers: int
    classes: int
    check: Mechanism | None = None
    checks: int = 0
    threshold: float = 0.0
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        STEPS.validate("answers", self.answers)
        TEACHERS.validate("teachers", self.teachers)
        CLASSES.validate("classes", self.classes)
        if self.adjacency not in ("add-remove", "replace-one"):
            raise ValueError(f"Expected adjacency={self.adjacency!r} to be 'add-remove' or 'replace-one'.")
        for name, mechanism in (("noise", self.noise), ("check", self.check)):
            if mechanism is None:
                continue
            if not isinstance(mechanism.structure, IIDCoordinates):
                raise ValueError(f"Expected {name}={mechanism.name!r} to have independent coordinates.")
            if mechanism.clip != 1:
                raise ValueError(f"Expected {name}.clip={mechanism.clip!r} to be 1: a vote moves a count by 1.")
        if self.check is not None:
            STEPS.validate("checks", self.checks)
        if (self.check is None and self.checks != 0) or not math.isfinite(self.threshold):
            raise ValueError(f"Expected checks={self.checks!r} to be 0 without a check, and a finite threshold.")

    @property
    def law(self) -> IIDCoordinates:
        """The law of one count's noise."""
        return cast(IIDCoordinates, self.noise.structure)

    @property
    def moved(self) -> int:
        """How many counts one neighbour's vote moves, by 1 each."""
        return 2 if self.adjacency == "replace-one" else 1

    def claim(self, *, epsilon: float, delta: float) -> Claim:
        """The claim about one-coordinate releases that covers this history (see `upper.votes` for the proof).

        Args:
            epsilon, delta: What is claimed.
        """
        phases = [Phase(_one_coordinate(self.noise), self.moved * int(self.answers))]
        if self.check is not None:
            phases.append(Phase(_one_coordinate(self.check), int(self.checks)))
        return Claim(epsilon, delta, phases)


def _one_coordinate(mechanism: Mechanism) -> Mechanism:
    # in one dimension all norms are equal; l1 is the one under which the Laplace pair is recognised
    return cast(Mechanism, replace(cast(Any, mechanism), dimension=1, clip_norm=1.0))
