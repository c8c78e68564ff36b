"""ClipBKD on two classes of Fashion-MNIST, five mechanisms: what is claimed, what is proven, what an audit shows.

    DPAUDIT_DATA=... python benchmarks/fashion_mnist.py [--trials 1000] [--out docs/fashion-mnist.md] [--work DIR]

The training of Jagielski, Ullman and Oprea (2020), "Auditing Differentially Private Machine Learning", section 5:
classes 0 and 1 (6,000 records of them, for the network 2,000), 24 epochs of Poisson batches of 250 expected records,
clip 1 in the l2 norm, learning rate 0.15, softmax regression and a network of one hidden layer of 32 units. Their arms
differ in one record's value; these are neighbours under the claim's own adjacency, add-remove: the records, and the
records with one canary.

Every case is calibrated to its claimed epsilon at delta 1e-5 (`verify.calibration`), trained once, and audited through
`dpaudit.audit.run` at 99% confidence with so many models per arm. Cases and their trials are kept in the folder
--work: a repeated command goes on where it was, and makes the page from every case in that folder that it asks for.
Purchase-100 is not to be had; Location-30, of the same kind, takes its place in one case.

"Final weights hold" is what the best attack on the sum of all noisy gradients would show with unlimited trials if the
canary moved every batch that it is in by the whole clip in one direction: the sum is then Binomial(steps, q) clips
plus noise, against noise alone. The noise on one direction, summed over hundreds of steps, is taken as normal. Anyone
who sees only the last model sees no more than that from a canary of constant direction, while the claim's epsilon
is about all steps seen one by one. Positive controls, which would double the models, are left out: what an audit could
have shown stands beside what it did.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp, xlog1py, xlogy

from dpaudit.audit import Settings, load_bundle, run
from dpaudit.audit.inputs.datasets import Dataset, load
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.training_run import train_bundle
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.architectures import parameter_count
from dpaudit.mechanisms.learning.spec import Architecture
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.calibration.noise import calibrate

BATCH, EPOCHS, LEARNING_RATE, DELTA, CONFIDENCE = 250, 24, 0.15, 1e-5, 0.99
CLIPPING = {"clip": 1.0, "clip_norm": 2.0}
MECHANISMS: dict[str, dict[str, Any]] = {  # without the parameter that is calibrated
    "gaussian": {},
    "laplace": {},
    "gamma-plrv": {"k": 500.0},
    "product": {},
    "generalized-gaussian": {"beta": 2.5},
}
RECORDS = {"linear": 6000, "fnn": 2000}  # a network takes ten times as long
SAMPLES = 4000  # noise vectors from which the variance of the noise is estimated: within 5% for the product law


@dataclass(frozen=True)
class Case:
    """One audit: data, network, mechanism, claimed epsilon."""

    dataset: str
    network: str
    mechanism: str
    epsilon: float
    records: int | None

    @property
    def name(self) -> str:
        """A file name."""
        return f"{self.dataset}-{self.records or 'all'}-{self.network}-{self.mechanism}-{self.epsilon:g}"


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """All cases asked for, the cheap ones first."""
    for network in options.networks:
        for epsilon in options.epsilons:
            for mechanism in options.mechanisms:
                yield Case("fashion-mnist", network, mechanism, epsilon, options.records or RECORDS[network])
    if options.location:
        yield Case("location30", "linear", "gaussian", 4.0, None)


def recipe_of(case: Case, dataset: Dataset) -> Recipe:
    """The recipe, its noise calibrated to the claim."""
    n = len(dataset.y)
    steps, prob = round(EPOCHS * n / BATCH), BATCH / n
    dimension = parameter_count(Architecture(case.network, dataset.x.shape[1], dataset.classes))
    table = {"name": case.mechanism, **CLIPPING, "dimension": dimension, **MECHANISMS[case.mechanism]}
    mechanism = calibrate(table, epsilon=case.epsilon, delta=DELTA, steps=steps, sampling_prob=prob).mechanism
    data: dict[str, Any] = {"name": case.dataset}
    if case.dataset == "fashion-mnist":
        data |= {"classes": [0, 1], "records": case.records}
    return Recipe.from_dict(
        {
            "algorithm": "dp-sgd",
            "steps": steps,
            "dataset": data,
            "architecture": {"name": case.network},
            "mechanism": to_dict(mechanism),
            "sampling": {"kind": "poisson", "prob": prob},
            "optimizer": {
                "name": "sgd",
                "learning_rate": LEARNING_RATE,
                "init": "zeros" if case.network == "linear" else "glorot",
            },
            "claim": {"epsilon": case.epsilon, "delta": DELTA, "adjacency": "add-remove"},
        }
    )


def final_weights_epsilon(mechanism: Mechanism, steps: int, prob: float, delta: float, seed: int) -> float:
    """The largest log((P(A) - delta) / Q(A)) over half-lines A, P and Q the sum with and without the canary.

    Args:
        mechanism: Of every step; its dimension is filled in.
        steps: How many noisy gradients are summed.
        prob: Poisson rate.
        delta: Of the claim.
        seed: Of the noise from which the variance of one direction is estimated.
    """
    rng = np.random.default_rng(seed)
    variance = np.mean([np.mean(np.square(mechanism.sample(rng, 1))) for _ in range(SAMPLES)])
    sd = math.sqrt(steps * float(variance)) / mechanism.clip
    counts = np.arange(steps + 1)
    log_pmf = gammaln(steps + 1) - gammaln(counts + 1) - gammaln(steps - counts + 1)
    log_pmf = log_pmf + xlogy(counts, prob) + xlog1py(steps - counts, -prob)
    kept = log_pmf > -60.0
    counts, log_pmf = counts[kept], log_pmf[kept]
    cut = np.linspace(-8.0 * sd, counts[-1] + 8.0 * sd, 4001)
    best = 0.0
    for sign in (1.0, -1.0):  # models with the canary above the cut, models without it below
        log_p = logsumexp(log_pmf[:, None] + log_ndtr(sign * (counts[:, None] - cut) / sd), axis=0)
        log_q = log_ndtr(-sign * cut / sd)
        if sign < 0:
            log_p, log_q = log_q, log_p
        shown = log_p > math.log(delta)
        with np.errstate(divide="ignore"):
            ratios = log_p[shown] + np.log1p(-np.exp(math.log(delta) - log_p[shown])) - log_q[shown]
        best = max(best, float(ratios.max(initial=0.0)))
    return best


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One row: train, audit, and what is known without either."""
    dataset = load(case.dataset, classes=[0, 1] if case.dataset == "fashion-mnist" else None, records=case.records)
    recipe = recipe_of(case, dataset)
    bundle_file = options.work / f"{case.name}.pt"
    summary = train_bundle(recipe, bundle_file, seed=options.seed, device="cpu", stage=lambda what, total: _nothing)
    bundle = load_bundle(bundle_file)
    settings = Settings(
        seed=options.seed, attacks=("clipbkd",), trials=options.trials, confidence=CONFIDENCE, device="cpu",
        workers=options.workers, store=options.work / f"{case.name}.sqlite", control=False,
    )  # fmt: skip
    began = time.monotonic()
    result = run(bundle, dataset, settings)
    attack, check = result.attacks[0], result.claim_check
    assert check is not None
    mechanism = bundle.recipe.spec(dataset).mechanism
    return {
        **asdict(case),
        "records": len(dataset.y),
        "steps": recipe.steps,
        "noise": {key: value for key, value in to_dict(mechanism).items() if key not in ("name", *CLIPPING)},
        "accuracy": float(summary.rsplit(" ", 1)[-1]),
        "epsilon_bracket": [check.epsilon_lower, check.epsilon_upper],
        "trials": attack.trials,
        "audit_epsilon": attack.epsilon_lower,
        "family_epsilon": None if attack.family_bound is None else attack.family_bound.epsilon_lower,
        "best_possible": attack.best_possible_epsilon,
        "auc": attack.auc,
        "final_weights": final_weights_epsilon(mechanism, recipe.steps, recipe.sampling_prob, DELTA, options.seed),
        "refuted": result.verdict == "refuted",
        "seconds": time.monotonic() - began,
    }


def _nothing(done: int) -> None:
    """Progress that is not shown."""


def page(rows: list[Mapping[str, Any]], trials: int) -> str:
    """The table as Markdown."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    lines = [
        "# ClipBKD on Fashion-MNIST",
        "",
        f"`python benchmarks/fashion_mnist.py --trials {trials}` makes this page and says what each case is.",
        f"Audits at {CONFIDENCE:.0%} confidence with so many models per arm, delta {DELTA:g}, add-remove neighbours.",
        "",
        "- **bracket**: the mechanism's epsilon over all steps, proven from below and above (`dpaudit verify`).",
        "- **audit**: epsilon at least this, from the final weights' outputs alone; *family* if the noise is of the",
        "  claimed family, at whatever scale.",
        "- **final weights hold**: what the best attack on the last model could show with unlimited models, if the",
        "  canary pushed by the whole clip in one direction in every batch it is in.",
        "- **models allow**: the largest epsilon that any outcome with this many models could have shown.",
        "",
        "| data | network | mechanism | claimed | bracket | audit | family | AUC | final weights hold | models allow "
        "| models per arm | test accuracy | refuted |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["epsilon_bracket"]
        lines.append(
            f"| {row['dataset']}, {row['records']:,} | {row['network']} | {row['mechanism']} | {row['epsilon']:g} "
            f"| {number(low)} to {number(high)} | {number(row['audit_epsilon'])} | {number(row['family_epsilon'])} "
            f"| {row['auc']:.3f} | {number(row['final_weights'])} | {number(row['best_possible'])} "
            f"| {row['trials']:,} | {row['accuracy']:.3f} | {'yes' if row['refuted'] else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is asked for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000, help="models per arm")
    parser.add_argument(
        "--records", type=int, help=f"of Fashion-MNIST's classes 0 and 1; by network if absent: {RECORDS}"
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 10.0])
    parser.add_argument("--mechanisms", nargs="+", choices=list(MECHANISMS), default=list(MECHANISMS))
    parser.add_argument("--networks", nargs="+", choices=["linear", "fnn"], default=["linear", "fnn"])
    parser.add_argument(
        "--location", action=argparse.BooleanOptionalAction, default=True, help="one case of Location-30"
    )
    parser.add_argument("--workers", type=int, help="training processes; one per core if absent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("out/fashion-mnist"), metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page; printed if absent")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in cases(options):
        file = options.work / f"{case.name}-{options.trials}.json"
        if not file.exists():
            file.write_text(json.dumps(measure(case, options), indent=2))
        rows.append(json.loads(file.read_text()))
        print(f"{case.name}: audit {rows[-1]['audit_epsilon']}, {rows[-1]['seconds']:.0f} s", flush=True)
    text = page(rows, options.trials)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
