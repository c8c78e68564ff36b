"""Whether a move changed a result: verdicts, readings, sampled verdicts and whole audits, to be compared byte by byte.

Run it before and after, and compare: times, versions, names of attacks, keys of stores and file paths are left out.

    DPAUDIT_DATA=... python benchmarks/same_results.py before.json
    DPAUDIT_DATA=... python benchmarks/same_results.py after.json --compare before.json
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.mechanisms import GammaPLRV, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.verify import Claim, check
from dpaudit.verify.black_box import check_sampler

try:
    from dpaudit.verify.papers.batch_noise import batch_noise_bracket
except ImportError:  # before the papers had a room of their own
    from dpaudit.verify.batch_readings import batch_reading_bracket as batch_noise_bracket

ROOT = Path(__file__).parents[1]
LEFT_OUT = {"seconds", "versions", "command", "path", "format"}
RECIPES = (
    "digits-gaussian", "digits-half-noise", "digits-laplace-schedule", "digits-dp-ftrl", "digits-dp-ftrl-gamma-plrv",
    "digits-approximate-minima", "digits-product-minima", "fashion-product-release",
)  # fmt: skip


def plain(value: Any) -> Any:
    """The value without what may differ from run to run or was renamed."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in sorted(value.items()) if key not in LEFT_OUT}
    return [plain(item) for item in value] if isinstance(value, list) else value


def command(*words: str) -> None:
    """Run `dpaudit`; only a crash is an error."""
    done = subprocess.run([sys.executable, "-m", "dpaudit.audit.cli", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 3, 4, 5):
        raise SystemExit(f"dpaudit {' '.join(words)}: exit status {done.returncode}: {done.stderr[-500:]}")


def verdicts(folder: Path) -> Any:
    """All of `reports/claims`, exactly; one of its files by sampling as well."""
    claims = [str(path) for path in sorted((ROOT / "reports" / "claims").glob("*.toml"))]
    command("verify", *claims, "--json", str(folder / "exact.json"))
    sampled = str(ROOT / "reports" / "claims" / "lap2-table-2.toml")
    command("verify", sampled, "--method", "both", "--seed", "1", "--json", str(folder / "both.json"))
    return [json.loads((folder / name).read_text()) for name in ("exact.json", "both.json")]


def readings() -> list[dict[str, Any]]:
    """Ten claims under the papers' other readings."""
    mechanisms = (
        Gaussian(1.0, dimension=10), Laplace(2.0, dimension=100), GammaPLRV(k=50.0, theta=0.01, dimension=100),
        Gaussian(3.0, dimension=1000), Product(20.0, dimension=50), GeneralizedGaussian(1.5, 3.0, dimension=20),
    )  # fmt: skip
    rows = [(m, reading) for m in mechanisms for reading in ("per-example", "realised")][:10]
    return [
        batch_noise_bracket(
            Claim.single(mechanism, epsilon=1.0, delta=1e-5, steps=50, sampling_prob=0.02),
            reading=reading, records=5000,  # type: ignore[arg-type]
        ).to_dict()
        for mechanism, reading in rows
    ]  # fmt: skip


def sampled() -> list[dict[str, Any]]:
    """The two ways of sampling: the privacy loss, and outputs without a density."""
    claim = Claim.single(Laplace(1.0, dimension=4), epsilon=0.5, delta=1e-5, steps=10, sampling_prob=0.1)
    rng = np.random.default_rng(1)
    apart = check_sampler(
        lambda g, n: g.normal(1.0, 1.0, (n, 2)), lambda g, n: g.normal(0.0, 1.0, (n, 2)),
        epsilon=0.5, delta=1e-5, rng=rng,
    )  # fmt: skip
    return [check(claim, method="monte-carlo", rng=1).to_dict(), apart.to_dict()]


def audits(folder: Path) -> dict[str, Any]:
    """Two audits of every algorithm: two recipes or two seeds."""
    found = {}
    for name in RECIPES:
        for seed in ("1", "2") if name == "fashion-product-release" else ("1",):
            model, result = folder / f"{name}.pt", folder / f"{name}-{seed}.json"
            command("train", f"examples/{name}.toml", "--out", str(model), "--seed", seed)
            command("run", str(model), "--seed", seed, "--trials", "60", "--out", str(folder / f"{name}-{seed}"),
                    "--json", str(result), "--workers", "1")  # fmt: skip
            data = json.loads(result.read_text())
            found[f"{name}, seed {seed}"] = data
    return found


def without_names(result: Any) -> str:
    """Text of the snapshot in which the release attacks bear the name they had."""
    text = json.dumps(plain(result), indent=1)
    for name in ("output-perturbation", "approximate-minima"):
        for test in (":epsilon_lower", ":curve_violation"):
            text = text.replace(name + test, "clipbkd" + test)
        text = text.replace(f'"name": "{name}"', '"name": "clipbkd"')
    return text


def main() -> None:
    """Write the snapshot; with --compare, say whether it equals another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--compare", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {"verdicts": verdicts(folder), "readings": readings(), "sampled": sampled(), "audits": audits(folder)}
    arguments.out.write_text(json.dumps(json.loads(json.dumps(found, default=float)), indent=1))
    if arguments.compare is None:
        return
    before, after = (without_names(json.loads(p.read_text())) for p in (arguments.compare, arguments.out))
    if before != after:
        rows = [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=False) if a != b]
        raise SystemExit("different:\n" + "\n".join(f"- {a}\n+ {b}" for a, b in rows[:20]))
    print(f"equal: {len(after):,} bytes")


if __name__ == "__main__":
    main()
