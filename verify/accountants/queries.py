"""Asking an accountant, whatever it does, and remembering what it said."""

import math
from collections import Counter
from dataclasses import dataclass, field

from dpaudit.verify.accountants.base import Accountant, HistoryAccountant, number_and_rounding
from dpaudit.verify.claims import Phase
from dpaudit.verify.strategies import Setting

SAYS_NO = (ValueError, TypeError, RuntimeError, MemoryError)  # NotImplementedError is a RuntimeError


@dataclass(frozen=True)
class Answer:
    """A number, or what came instead of it."""

    epsilon: float = math.nan
    rounding: float = 0.0
    crash: str = ""
    refused: str = ""

    @property
    def usable(self) -> bool:
        return not self.crash and not self.refused and self.epsilon >= 0


@dataclass
class CachedAccountant:
    """The accountant, asked every question once, so that an unsteady one cannot confuse the search."""

    accountant: Accountant
    refusals: Counter[str] = field(default_factory=Counter)
    known: dict[tuple[Setting, bool], Answer] = field(default_factory=dict)

    def ask(self, setting: Setting, one_by_one: bool = False) -> Answer:
        """What it says about the setting, told about all releases at once or one by one."""
        key = (setting, one_by_one)
        if key not in self.known:
            self.known[key] = answer = self._ask(setting, one_by_one)
            if answer.refused:
                self.refusals[answer.refused] += 1
        return self.known[key]

    def _ask(self, setting: Setting, one_by_one: bool) -> Answer:
        try:
            if one_by_one:
                assert isinstance(self.accountant, HistoryAccountant)
                phases = [Phase(setting.mechanism, 1, setting.sampling_prob)] * setting.steps
                value: object = self.accountant.history(phases, setting.delta)
            else:
                value = self.accountant(setting.mechanism, setting.sampling_prob, setting.steps, setting.delta)
        except SAYS_NO as error:
            return Answer(refused=f"{type(error).__name__}: {error}")
        except Exception as error:
            return Answer(crash=f"{type(error).__name__}: {error}")
        try:
            return Answer(*number_and_rounding(value))
        except TypeError as error:
            return Answer(crash=str(error))
