"""PATE with generalized Gaussian noise: what Theorem 2 of gg claims it costs, and what is certain. Makes docs/pate.md.

python examples/pate.py                 # digits, which ship with scikit-learn
DPAUDIT_DATA=... python examples/pate.py digits fashion-mnist mnist svhn adult shapes
"""

import argparse
import math
import os
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from dpaudit.audit.inputs.datasets import load
from dpaudit.audit.inputs.votes import load_votes
from dpaudit.mechanisms import GeneralizedGaussian
from dpaudit.mechanisms.learning.pate.teachers import Aggregator, Predict, VoteLedger, aggregate, pate
from dpaudit.mechanisms.published import gg
from dpaudit.verify.papers.votes.history import VoteHistory
from dpaudit.verify.papers.votes.lower import votes_lower
from dpaudit.verify.papers.votes.upper import votes_upper

Labels = NDArray[np.int64]

# votes: threshold, sigma of the check, sigma of the counts, delta (Papernot et al. 2018), queries, answers
PUBLISHED = {
    "mnist": (200.0, 150.0, 40.0, 1e-5, 640, 286),
    "svhn": (300.0, 200.0, 40.0, 1e-6, 8500, 3098),
    "adult": (300.0, 200.0, 40.0, 1e-5, 1500, 500),
}
BETAS = (1.0, 1.5, 2.0, 3.0, 4.0)


def normal(sigma: float) -> GeneralizedGaussian:
    """Normal noise of standard deviation sigma, as generalized Gaussian noise."""
    return GeneralizedGaussian(beta=2.0, scale=math.sqrt(2.0) * sigma)


def logistic(x: NDArray[np.float32], y: Labels, rng: np.random.Generator) -> Predict:
    """Logistic regression; a constant where the labels are."""
    if len(np.unique(y)) == 1:
        return lambda records: np.full(len(records), y[0])
    predict: Predict = LogisticRegression(max_iter=1000).fit(x, y).predict
    return predict


def ridge(x: NDArray[np.float32], y: Labels, rng: np.random.Generator) -> Predict:
    """One-against-rest ridge regression, in closed form: fast where there are hundreds of teachers."""
    if len(np.unique(y)) == 1:
        return lambda records: np.full(len(records), y[0])
    predict: Predict = RidgeClassifier(alpha=10.0).fit(x, y).predict
    return predict


def history(ledger: VoteLedger) -> VoteHistory:
    """What is charged: the checks and answers that were allowed, whatever came to pass."""
    rule = ledger.aggregator
    checks = ledger.queries if rule.check is not None else 0
    return VoteHistory(rule.noise, ledger.answers, ledger.teachers, ledger.classes, rule.check, checks, rule.threshold)


def claimed(ledger: VoteLedger, delta: float) -> float:
    """epsilon by Theorem 2: an answer costs what one count does; so does a check, of which gg does not speak."""
    if ledger.aggregator.check is None:
        noise = ledger.aggregator.noise
        return gg.theorem_2(noise, sampling_prob=1.0, steps=ledger.answers, delta=delta).epsilon
    one_count = replace(history(ledger), adjacency="add-remove")
    return float(votes_upper(one_count, epsilon=1.0, delta=delta).epsilon(np.array([delta]))[0])


def bracket(ledger: VoteLedger, delta: float) -> tuple[float, float]:
    """Certified lower and upper bound on epsilon of everything that is released."""
    asked, at = history(ledger), np.array([delta])
    lower = votes_lower(asked, epsilon=1.0, delta=delta)
    upper = votes_upper(asked, epsilon=1.0, delta=delta)
    return float(lower.epsilon(at)[0]), float(upper.epsilon(at)[0])


def costs(ledger: VoteLedger, delta: float) -> str:
    """Three cells of a table: claimed, at least, at most."""
    low, high = bracket(ledger, delta)
    return f"{claimed(ledger, delta):.3f} | {low:.3f} | {high:.3f}"


def published_votes(name: str, seed: int) -> None:
    """GNMax and Confident-GNMax on published votes."""
    threshold, check, sigma, delta, queries, answers = PUBLISHED[name]
    votes = load_votes(name)  # type: ignore[arg-type]
    plurality = votes.counts.argmax(axis=1)
    order = np.random.default_rng(seed).permutation(len(votes.counts))[:queries]
    for title, rule in (
        ("every query", Aggregator(normal(sigma))),
        ("confident", Aggregator(normal(sigma), normal(check), threshold)),
    ):
        out = aggregate(votes.counts[order], rule, answers=answers, rng=np.random.default_rng(seed))
        given, ledger = out.labels[out.answered], out.ledger
        agree = np.mean(given == plurality[order][out.answered])
        right = "" if votes.labels is None else f"{np.mean(given == votes.labels[order][out.answered]):.3f}"
        print(
            f"| {name}, {title} | {ledger.asked} of {queries} | {ledger.answered} of {answers} | {right or '-'} | "
            f"{agree:.3f} | {delta:g} | {costs(ledger, delta)} |"
        )


def shapes(seed: int) -> None:
    """The same VALID epsilon with other exponents: what they cost in labels (MNIST votes)."""
    votes, at = load_votes("mnist"), np.array([1e-5])
    assert votes.labels is not None

    def spent(beta: float, scale: float) -> float:
        asked = VoteHistory(GeneralizedGaussian(beta=beta, scale=scale), 286, votes.teachers, 10)
        return float(votes_upper(asked, epsilon=2.0, delta=1e-5).epsilon(at)[0])

    for beta in BETAS:
        scale = math.exp(brentq(lambda log, b=beta: spent(b, math.exp(log)) - 2.0, 3.0, 6.0, xtol=1e-3))
        rule = Aggregator(GeneralizedGaussian(beta=beta, scale=scale))
        rng = np.random.default_rng(seed)
        hits = []
        for _ in range(25):
            chosen = rng.permutation(len(votes.counts))[:286]
            out = aggregate(votes.counts[chosen], rule, answers=286, rng=rng)
            hits.append(float(np.mean(out.labels == votes.labels[chosen])))
        spread = float(np.std(hits, ddof=1)) / math.sqrt(len(hits))
        print(f"| {beta:g} | {scale:.1f} | {np.mean(hits):.4f} ({spread:.4f}) | {costs(out.ledger, 1e-5)} |")


def students(name: str, seeds: int) -> None:
    """Teachers, labels and a student at several levels of noise; accuracy on records never voted on."""
    data = load(name)
    if name == "digits":
        x, y, public, test = data.x[:1138], data.y[:1138], data.x[1138:], slice(None)
        teachers, levels, learner = 50, (1.0, 5.0, 10.0, 20.0), logistic
    else:
        x, y, public, test = data.x, data.y, data.x_test[:1000], slice(5000, None)
        teachers, levels, learner = 250, (10.0, 20.0, 40.0, 80.0, 160.0), ridge
    for sigma in levels:
        scores = []
        for seed in range(seeds):
            out = pate(
                x, y, public, classes=data.classes, teachers=teachers, aggregator=Aggregator(normal(sigma)),
                answers=len(public), learner=learner, rng=np.random.default_rng(seed),
            )  # fmt: skip
            assert out.student is not None
            scores.append(float(np.mean(out.student(data.x_test[test]) == data.y_test[test])))
        ledger = out.private.ledger
        print(
            f"| {name} | {teachers} | {ledger.answered} | {sigma:g} | {np.mean(scores):.3f} "
            f"({min(scores):.3f} to {max(scores):.3f}) | {costs(ledger, 1e-5)} |"
        )


def main() -> None:
    """Print the rows that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("digits", "fashion-mnist", *PUBLISHED, "shapes")
    parser.add_argument("parts", nargs="*", default=["digits"], help=f"some of {', '.join(parts)}")
    parser.add_argument("--seed", type=int, default=1, help="of the noise on published votes")
    parser.add_argument("--seeds", type=int, default=5, help="students per row")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in parts:
            parser.error(f"Expected {part!r} to be one of {', '.join(parts)}.")
        if part in PUBLISHED:
            published_votes(part, arguments.seed)
        elif part == "shapes":
            shapes(arguments.seed)
        else:
            students(part, arguments.seeds)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:  # of an argument or a file
        raise SystemExit(f"error: {error}") from None
