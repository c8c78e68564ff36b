"""How often canaries in a language model's texts find a training without noise, and accuse one with the noise claimed.

    python benchmarks/language_model.py --without 20 --correct 20

examples/language_model.py, 200 canaries of invented words among 300 sentences, one training an audit, judged against
epsilon 1 at delta 1e-5, without noise and with the noise that Opacus takes for it. Three CPU seconds an audit.
"""

import argparse
import importlib.util
import tempfile
import time
import warnings
from pathlib import Path
from types import ModuleType

from dpaudit.audit.canaries.judging import judge
from dpaudit.audit.canaries.planting import plant
from dpaudit.audit.canaries.sealing import Draw, load_coins
from dpaudit.audit.claim_under_test import ClaimUnderTest

SCRIPT = Path(__file__).resolve().parents[1] / "examples/language_model.py"
CANARIES, RECORDS, CLAIM = 200, 300, ClaimUnderTest(1.0, 1e-5)


def example() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("language_model_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def audit(script: ModuleType, noise: list[str], seed: int) -> dict[str, tuple[bool, float]]:
    """Whether refuted, and the bound: of log-probabilities, and of those less the model's before the training."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        script.main(["corpus", str(place / "texts.jsonl"), "--records", str(RECORDS), "--seed", str(seed)])
        sealed, draw = place / "coins.json", Draw(seed, 1, CANARIES)
        done = plant(str(place / "texts.jsonl"), out=place / "planted", sealed=sealed, draw=draw, kind="rare-tokens")
        files = [str(done.planted[0]), str(done.queries[0]), str(place / "scores.csv")]
        script.main(["train", *files, *noise, "--seed", str(seed)])
        coins, found = load_coins(sealed, commitment=done.coins.commitment), {}
        for name, reference in (("log-probability", []), ("less the first model's", [place / "initial.csv"])):
            result = judge(coins, [place / "scores.csv"], CLAIM, planted=done.planted, reference=reference)
            found[name] = bool(result.refuted_by), float(result.epsilon_lower or 0.0)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--without", type=int, default=20)
    parser.add_argument("--correct", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="seed of the first audit; the others follow")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Opacus's own at every start
    script = example()
    trainings = (["--noise-multiplier", "0"], options.without), (["--epsilon", "1"], options.correct)
    for noise, times in trainings:
        began = time.process_time()
        audits = [audit(script, noise, seed) for seed in range(options.first, options.first + times)]
        seconds = (time.process_time() - began) / max(times, 1)
        for name in audits[0] if audits else ():
            bounds = sorted(found[name][1] for found in audits)
            refuted = sum(found[name][0] for found in audits)
            print(
                f"{' '.join(noise)}, {name}: {refuted} of {times} refute epsilon {CLAIM.epsilon:g}; bounds "
                f"{bounds[0]:.2f} to {bounds[-1]:.2f}; {seconds:.1f} CPU seconds an audit",
                flush=True,
            )


if __name__ == "__main__":
    main()
