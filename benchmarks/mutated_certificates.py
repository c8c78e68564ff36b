"""Every change that the tests know of a certificate, towards a false statement: the checker accepts none.

Run: python benchmarks/mutated_certificates.py [ROUNDS] [SEED] [WORD...]     (2 rounds of all claims, unless told)

With words, such as bins or passes: the claims of the tests whose names hold one of them.
Prints what was accepted. Exit status: 3 with anything accepted, 0 with nothing.
"""

import sys
import time
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests" / "verify" / "rigorous" / "test_certificates.py"


def main(rounds: int = 2, seed: int = 21, words: Sequence[str] = ("",)) -> int:
    """Try all changes, so many times with other sizes, of the claims whose names hold one of the words."""
    spec = spec_from_file_location("certificate_changes", TESTS)
    assert spec is not None
    assert spec.loader is not None
    tests = module_from_spec(spec)
    spec.loader.exec_module(tests)
    started, tried, wrong = time.process_time(), 0, 0
    names = [name for name in tests.CLAIMS if any(word in name for word in words)]
    for name, number, data in tests.mutated(rounds, seed, names):
        tried += 1
        if not tests.refused(data):
            wrong += 1
            print(f"accepted: change {number} of {name!r}")
    print(f"{tried} changed certificates, {wrong} accepted; {time.process_time() - started:.0f} CPU s")
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), *([sys.argv[3:]] if sys.argv[3:] else [])))
