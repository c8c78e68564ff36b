"""Membership by recorded fair coins: what turns an attack on one model into a bound (Steinke et al. 2023)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.formats import fixed_order
from dpaudit.audit.inputs.recipes import Recipe

_STREAM = 0x636F696E  # keeps the coins apart from every other stream with the same root seed


@dataclass(frozen=True, eq=False)
class Coins:
    """Which records were put in by independent fair coins, and how they fell.

    Args:
        records: Indices into the recipe's records, shape (m,), int64.
        included: How each coin fell, shape (m,), bool: True is in.
        seed: The seed they were drawn from, None if they came from a generator.
    """

    records: NDArray[np.int64]
    included: NDArray[np.bool_]
    seed: int | None = None

    def check_sides(self) -> None:
        """Refuse coins that all fell alike.

        Raises:
            InputError: Nobody is in, or nobody out.
        """
        if self.included.all() or not self.included.any():
            raise InputError(
                f"meta.coins: Expected records on both sides, not all {len(self.records)} "
                f"{'in' if self.included.all() else 'out'}: attacks without coins, such as clipbkd, need none."
            )

    def members(self, n: int) -> NDArray[np.bool_]:
        """Who is in the training set of a model, shape (n,): everybody but the records whose coin said out."""
        mask = np.ones(n, bool)
        mask[self.records] = self.included
        return mask


def draw_coins(recipe: Recipe, n: int, rng: np.random.Generator | int) -> Coins:
    """Toss one independent fair coin for each of the recipe's audit records.

    Args:
        recipe: Its `audit_records` says how many (the first of `fixed_order(n)`) or which.
        n: Records of the data set.
        rng: Generator, or a seed, which is then recorded.

    Raises:
        InputError: A record does not exist.
    """
    audit_records = recipe.audit_records
    if isinstance(audit_records, int):
        if not 0 <= audit_records <= n:
            raise InputError(f"audit_records: Expected {audit_records} in 0..{n}, the records of the data set.")
        records = fixed_order(n)[:audit_records]
    else:
        records = np.array(list(audit_records), np.int64)
        if len(records) and not 0 <= records.min() <= records.max() < n:
            raise InputError(f"audit_records: Expected indices in 0..{n - 1}, not {records.max()}.")
    seed = rng if isinstance(rng, int) else None
    generator = rng if isinstance(rng, np.random.Generator) else np.random.default_rng([rng, _STREAM])
    return Coins(records, generator.integers(0, 2, size=len(records)).astype(bool), seed)
