"""Accountants that nobody here wrote, put to the question at drawn settings of Gaussian DP-SGD.

Each accountant is asked about as many settings as wanted, in the ranges that `gaussian_settings` declares, and its
answers are compared with certified lower bounds. Prints a line every half minute, and a JSON object per accountant. An
accountant whose time is up is asked no more; `tried` counts the distinct settings that were compared, about four in
five of the examples. The grid accountants round: at delta = 1e-10 dp-accounting's PLD is contradicted (see
docs/counterexamples.md), and `--smallest-delta 1e-8` keeps away from there.

    python benchmarks/accountants.py --examples 2600 --minutes 25 --seed 7
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field

from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.accountants import Accountant, DPAccounting, Opacus, PRVAccountant
from dpaudit.verify.accountants.audit import audit_accountant
from dpaudit.verify.strategies import gaussian_settings

ACCOUNTANTS: dict[str, Accountant] = {
    "opacus-gdp": Opacus("gdp"),
    "opacus-rdp": Opacus("rdp"),
    "dp-accounting-rdp": DPAccounting("rdp"),
    "dp-accounting-pld": DPAccounting("pld"),
    "opacus-prv": Opacus("prv"),
    "prv-accountant": PRVAccountant(),
}
WANTED = "opacus-gdp,opacus-rdp,dp-accounting-rdp,dp-accounting-pld"
EVERY = 30.0  # seconds between two lines of progress


@dataclass
class Timed:
    """An accountant that reports progress, and says no when its time is up."""

    name: str
    accountant: Accountant
    seconds: float
    began: float = field(default_factory=time.perf_counter)
    said: float = 0.0
    asked: int = 0

    def __call__(self, mechanism: Mechanism, sampling_prob: float, steps: int, delta: float, /) -> float:
        """Its answer."""
        passed = time.perf_counter() - self.began
        if passed > self.seconds:
            raise RuntimeError("out of time")
        self.asked += 1
        if passed - self.said > EVERY:
            self.said = passed
            print(f"{self.name}: {self.asked} settings, {passed:.0f} s", file=sys.stderr, flush=True)
        return self.accountant(mechanism, sampling_prob, steps, delta)


def main() -> None:
    """Audit the accountants one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=2000, help="settings drawn for each accountant")
    parser.add_argument("--minutes", type=float, default=25.0, help="time for each accountant")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--accountants", default=WANTED, help="of " + ", ".join(ACCOUNTANTS))
    parser.add_argument("--smallest-delta", type=float, default=0.0)
    arguments = parser.parse_args()
    settings = gaussian_settings().filter(lambda setting: setting.delta >= arguments.smallest_delta)
    for name in arguments.accountants.split(","):
        timed = Timed(name, ACCOUNTANTS[name], 60.0 * arguments.minutes)
        audit = audit_accountant(timed, settings, seed=arguments.seed, examples=arguments.examples, law_examples=0)
        row = {"accountant": name, "seconds": round(time.perf_counter() - timed.began, 1), **audit.to_dict()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
