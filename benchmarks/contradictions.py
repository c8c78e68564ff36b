"""Claims at random against everything that must hold of their verdicts, for as long as wanted.

`check` may not crash (a refusal is one line, "Expected ..."), its bounds may not cross, and neither may those of claims
whose costs are ordered: more noise, more steps, a larger rate, releases in two phases, ... A share of the claims is
also bracketed in ball arithmetic. The i-th claim depends on the seed and i alone, and trials already in `--out` are not
run again, so a run that was stopped goes on where it was. `--wide` is the share of claims with any sampler, correlated
noise, kind of guarantee and unit; the others are Poisson-sampled or unsampled, and what they are at any share.

`--followed` is the share of the claims of which a second one near the ends of the bracket, a law and a second call are
asked as well; of the others one verdict is, with its whole curve, which is a third of the work.

    python benchmarks/contradictions.py --claims 100000 --seed 1 --workers 2 --seconds 28800 --out out/contradictions

Writes trials.jsonl, contradictions.toml (claims that `dpaudit verify` reads, what is wrong in comments) and lazy.toml
(the verdicts with the widest brackets). Exit status: 3 with a contradiction, 0 with none.
"""

import argparse
import json
import math
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded

import numpy as np
from claim_draws import as_toml, generator
from claim_laws import Answer, asked, faults, group_fault, guarded, laws, order_fault
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from wide_draws import WIDE, drawn_claim, nearest

from dpaudit.verify import Claim
from dpaudit.verify.results import DISAGREEMENT, Verdict

SLOW, PATIENCE = 30.0, 60.0  # CPU seconds of a verdict that is too slow, and of one that is not waited for
OUT_OF_TIME = "out of time"
T = TypeVar("T")
MEMORY = 8 * 2**30  # bytes of address space of a worker
LAZIEST = 20


class OutOfTimeError(BaseException):
    """More CPU time than a claim may take; no `except Exception` on its way catches it."""


def _out_of_time(*_: object) -> None:
    raise OutOfTimeError


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError after so much CPU time of this process."""
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


class Trial:
    """One drawn claim, what was asked about it, and what is wrong.

    Args:
        seed: Of the run.
        index: Which claim.
        rigorous_share: Probability of asking the engine in ball arithmetic as well.
        patience: CPU seconds after which a verdict is not waited for.
        followed: Probability of asking for other verdicts, to compare them.
        wide: Probability of a claim of any kind.
    """

    def __init__(
        self,
        seed: int,
        index: int,
        rigorous_share: float,
        patience: float = PATIENCE,
        followed: float = 1.0,
        wide: float = WIDE,
    ) -> None:
        self.seed, self.index, self.share, self.patience = seed, index, rigorous_share, patience
        self.followed, self.wide = followed, wide
        self.rng = generator(seed, index)
        self.row: dict[str, Any] = {"i": index, "seed": seed, "outcome": "none", "laws": [], "seconds": []}
        self.row |= {"rigorous": "not asked", "wrong": []}

    def run(self) -> dict[str, Any]:
        """The trial's row."""
        claim, refusal, crash = guarded(lambda: drawn_claim(self.rng, self.index, self.wide))
        if claim is None:
            self.row |= {"reason": refusal}
            if crash:
                self.row["wrong"].append({"what": f"crash while drawing: {crash}", "toml": ""})
            return self.row
        verdict = self._ask(claim)
        if verdict is not None:
            self._follow(claim, verdict)
        self.row["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return self.row

    def _follow(self, claim: Claim, verdict: Verdict) -> None:
        """A second claim about the same history, a law, the other engine."""
        followed = self.followed == 1 or self.rng.random() < self.followed
        if followed and self.rng.random() < 0.5:
            near = nearest(self.rng, claim, verdict)
            second = self._ask(near) if near != claim else None
            if second is not None:
                self._compare("another claimed epsilon or delta", near, verdict, second, "equal")
                claim, verdict = near, second
        self.row |= _summary(claim, verdict)
        if self.share and self.rng.random() < self.share:
            self.row["rigorous"] = self._rigorous(claim, verdict)
        if followed:
            self._compare_law(claim, verdict)

    def _compare_law(self, claim: Claim, verdict: Verdict) -> None:
        """The verdict of another claim whose cost compares in a known way, or a second call."""
        known, _, _ = guarded(lambda: laws(claim, verdict, self.rng))
        if self.rng.random() < 0.1 or not known:
            again = self._ask(claim)
            self.row["laws"].append("again")
            if again is not None and _without_seconds(again) != _without_seconds(verdict):
                self._wrong("a second call gives another answer", claim)
            return
        law = known[int(self.rng.integers(len(known)))]
        other = self._ask(replace(law.other, id=f"{claim.id}-other"))
        if other is not None:
            self._compare(law.name, claim, verdict, other, law.relation, law.other)
            if law.name == "replace-one":
                fault = self._patiently(lambda: group_fault(claim, verdict, other))[0]
                if fault:
                    self._wrong(fault, claim, law.other)

    def _compare(
        self, name: str, claim: Claim, verdict: Verdict, other: Verdict, relation: Any, changed: Claim | None = None
    ) -> None:
        self.row["laws"].append(name)
        fault, refusal, crash = self._patiently(lambda: order_fault(claim, verdict, other, relation))
        if fault or crash or refusal not in ("", OUT_OF_TIME):
            self._wrong(f"{name}: {fault or refusal or crash}", claim, *([changed] if changed else []))

    def _patiently(self, work: Callable[[], T]) -> tuple[T | None, str, str]:
        """As `guarded`, with the refusal OUT_OF_TIME after too much of it."""
        try:
            with cpu_limit(self.patience):
                return guarded(work)
        except OutOfTimeError:
            return None, OUT_OF_TIME, ""

    def _ask(self, claim: Claim) -> Verdict | None:
        """The verdict, after what can be said of it alone."""
        found, refusal, _ = self._patiently(lambda: asked(claim))
        answer = found or Answer(None, refusal, "", self.patience)
        self.row["seconds"].append(round(answer.seconds, 3))
        if answer.seconds > min(SLOW, 0.99 * self.patience):
            self.row.setdefault("slow", as_toml(claim))
        if answer.crash:
            self._wrong(f"crash: {answer.crash}", claim)
            self.row["outcome"] = "crash"
        elif answer.verdict is None:
            self.row["reason"] = answer.refusal
        else:
            wrong, refusal, crash = self._patiently(lambda: faults(claim, answer.verdict))  # type: ignore[arg-type]
            for what in wrong if wrong is not None else [crash] if crash else []:
                self._wrong(what, claim)
        return answer.verdict

    def _rigorous(self, claim: Claim, verdict: Verdict) -> str:
        """Compare with the bracket in ball arithmetic."""
        from dpaudit.verify.rigorous.balls import Unavailable
        from dpaudit.verify.rigorous.bracket import rigorous_bracket

        if claim.guarantee is not None and not self._same_promise(claim, verdict):
            return "disagreement"
        started = time.process_time()
        try:
            with cpu_limit(0.5 * self.patience):
                found, refusal, crash = guarded(lambda: rigorous_bracket(claim, verdict.witness))
        except OutOfTimeError:
            return OUT_OF_TIME
        self.row["rigorous_seconds"] = round(time.process_time() - started, 3)
        if found is None:
            self._wrong(f"crash of the rigorous engine: {refusal or crash}", claim)
            return "crash"
        if isinstance(found, Unavailable):
            return "unavailable"
        for name in ("delta", "epsilon"):
            ours = getattr(verdict, f"{name}_lower"), getattr(verdict, f"{name}_upper")
            balls = getattr(found, f"{name}_lower"), getattr(found, f"{name}_upper")
            if not (ours[0] <= balls[1] and balls[0] <= ours[1]):
                by = f"{found.theorem}; {found.witness}"
                self._wrong(
                    f"the engines disagree on {name}: {list(ours)} against {list(balls)} in balls ({by})", claim
                )
                return "disagreement"
        both = found.delta_lower > 0 or found.epsilon_lower > 0, found.delta_upper < 1
        return {(True, True): "both sides", (True, False): "lower side", (False, True): "upper side"}.get(
            both, "trivial"
        )

    def _same_promise(self, claim: Claim, verdict: Verdict) -> bool:
        """Whether both engines' brackets of a guarantee's own number meet; so they do where one has none."""
        from dpaudit.verify.rigorous.agreement import confirmed

        found, refusal, crash = self._patiently(lambda: confirmed(claim, verdict))
        if refusal == OUT_OF_TIME:
            return True
        if found is None:
            self._wrong(f"crash of the rigorous engine: {refusal or crash}", claim)
            return False
        self.row["promise"] = "rigorous" in found.methods
        if DISAGREEMENT in found.methods and DISAGREEMENT not in verdict.methods:
            self._wrong(found.reason, claim)
            return False
        return True

    def _wrong(self, what: str, *claims: Claim) -> None:
        first = f"{self.seed}-{self.index}-{len(self.row['wrong'])}"
        named = (replace(claim, id=f"{first}{letter}") for letter, claim in zip("ab", claims, strict=False))
        self.row["wrong"].append({"what": " ".join(what.split()), "toml": "".join(map(as_toml, named))})


def _summary(claim: Claim, verdict: Verdict) -> dict[str, Any]:
    """What the summary needs of a verdict."""
    return {
        "outcome": verdict.verdict,
        "mechanisms": "+".join(sorted({phase.mechanism.name for phase in claim.phases})),
        "kinds": _kinds(claim),
        "bracket": [str(getattr(verdict, f"{n}_{s}")) for n in ("delta", "epsilon") for s in ("lower", "upper")],
        "methods": verdict.methods,
        "toml": as_toml(claim),
        "laziness": laziness(verdict),
    }


def _kinds(claim: Claim) -> list[str]:
    """How its releases are drawn, and what it states."""
    drawn = {("correlated " if phase.correlation else "") + phase.sampling_kind for phase in claim.phases}
    stated = "approximate" if claim.guarantee is None else claim.guarantee.kind
    return [*sorted(drawn), stated, claim.adjacency, claim.unit]


def laziness(verdict: Verdict) -> float:
    """Width of the bracket of epsilon: the ratio of its ends, both raised by .01; 0 where the upper one is infinite."""
    if math.isinf(verdict.epsilon_upper):
        return 0.0
    return (verdict.epsilon_upper + 0.01) / (verdict.epsilon_lower + 0.01)


def _without_seconds(verdict: Verdict) -> dict[str, Any]:
    return {key: value for key, value in verdict.to_dict().items() if key != "seconds"}


def trial(seed: int, index: int, *shares: float, **named: float) -> dict[str, Any]:
    """The row of one drawn claim; how it is asked is told as to `Trial`."""
    return Trial(seed, index, *shares, **named).run()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def rows(arguments: argparse.Namespace, todo: Iterator[int]) -> Iterator[dict[str, Any]]:
    """Rows as they come; a worker that is killed counts against the claims it may have held."""
    deadline = time.monotonic() + arguments.seconds
    how = arguments.rigorous_share, arguments.patience, arguments.followed, arguments.wide
    held: dict[Future[dict[str, Any]], int] = {}
    pool = ProcessPoolExecutor(arguments.workers, initializer=_start_worker)
    try:
        while True:
            while len(held) < 2 * arguments.workers and time.monotonic() < deadline and (i := next(todo, -1)) >= 0:
                held[pool.submit(trial, arguments.seed, i, *how)] = i
            if not held:
                return
            for future in wait(held, return_when=FIRST_COMPLETED).done:
                index = held.pop(future)
                try:
                    yield future.result()
                except BrokenProcessPool:
                    lost = {index, *held.values()}
                    held.clear()
                    pool = ProcessPoolExecutor(arguments.workers, initializer=_start_worker)
                    for i in sorted(lost):
                        yield _lost(arguments.seed, i, arguments.wide)
                    break
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _lost(seed: int, index: int, wide: float) -> dict[str, Any]:
    claim = guarded(lambda: drawn_claim(generator(seed, index), index, wide))[0]
    wrong = [{"what": "a worker was killed while it held this claim", "toml": as_toml(claim) if claim else ""}]
    return {
        "i": index, "seed": seed, "outcome": "crash", "laws": [], "seconds": [], "rigorous": "-", "wrong": wrong,
    }  # fmt: skip


def report(found: list[dict[str, Any]], out: Path) -> str:
    """The summary of all rows; writes lazy.toml."""
    seconds = np.array([s for row in found for s in row["seconds"]] or [0.0])
    outcomes, rigorous = Counter(row["outcome"] for row in found), Counter(row["rigorous"] for row in found)
    reasons = Counter(_shape(row["reason"]) for row in found if row.get("reason"))
    kinds = Counter(_shape(wrong["what"])[:100] for row in found for wrong in row["wrong"])
    lazy = sorted((row for row in found if row.get("laziness", 0) > 1), key=lambda row: -row["laziness"])[:LAZIEST]
    text = [f"# {row['laziness']:.4g}: {row['bracket']}, {row['methods']}\n{row['toml']}" for row in lazy]
    (out / "lazy.toml").write_text("\n".join(text))
    open_ended = Counter(row["mechanisms"] for row in found if row.get("bracket", ["0"])[-1] == "inf")
    quantiles = ", ".join(f"{q:g}: {np.quantile(seconds, q):.2f}" for q in (0.5, 0.9, 0.99, 0.999, 1.0))
    lines = [
        f"{len(found)} claims drawn, {len(seconds)} verdicts asked for: {dict(outcomes)}",
        f"CPU seconds a verdict, quantiles: {quantiles}; too slow: {sum('slow' in row for row in found)}",
        f"of kinds: {dict(Counter(kind for row in found for kind in row.get('kinds', ())).most_common())}",
        f"largest memory: {max((row.get('rss', 0) for row in found), default=0) / 2**20:.2f} GiB",
        f"laws: {dict(Counter(law for row in found for law in row['laws']))}",
        f"in ball arithmetic: {dict(rigorous)}",
        *(f"refused {count} times: {reason}" for reason, count in reasons.most_common(20)),
        f"no finite upper bound on epsilon: {dict(open_ended.most_common(12))}",
        *(f"lazy, x{row['laziness']:.4g}: epsilon in {row['bracket'][2:]}, claim {row['i']}" for row in lazy[:8]),
        *(f"CONTRADICTION, {count} times: {kind}" for kind, count in kinds.most_common()),
        f"{sum(kinds.values())} contradictions",
    ]  # fmt: skip
    return "\n".join(lines)


def _shape(text: str) -> str:
    """A sentence without its numbers."""
    return "".join("#" if c.isdigit() else c for c in text).replace("##", "#").replace("##", "#")[:160]


def main() -> int:
    """Run what is not in the folder yet; print the summary of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=1000)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rigorous-share", type=float, default=0.05)
    parser.add_argument("--followed", type=float, default=1.0, help="share of which other verdicts are asked as well")
    parser.add_argument(
        "--wide", type=float, default=WIDE, help="share with samplers, correlated noise, guarantees, ..."
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="no claim is begun after so long")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, help="CPU seconds after which a verdict is left out"
    )
    parser.add_argument("--out", type=Path, default=Path("out/contradictions"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "trials.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    found = [row for row in map(json.loads, lines) if row["seed"] == arguments.seed]
    done = {row["i"] for row in found}
    columns = (
        TextColumn("Claims"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[wrong]} wrong"),
    )
    wrong = sum(len(row["wrong"]) for row in found)
    with (
        log.open("a") as record,
        (arguments.out / "contradictions.toml").open("a") as claims,
        Progress(*columns, console=Console(stderr=True)) as bars,
    ):
        task = bars.add_task("", total=arguments.claims, completed=len(done), wrong=wrong)
        try:
            for row in rows(arguments, (i for i in range(arguments.claims) if i not in done)):
                found.append(row)
                print(json.dumps(row), file=record, flush=True)
                for one in row["wrong"]:
                    text = f"# {one['what']}\n{one['toml']}"
                    print(text, file=claims, flush=True)
                    bars.console.print(text, markup=False, highlight=False)
                wrong += len(row["wrong"])
                bars.update(task, advance=1, wrong=wrong)
        except KeyboardInterrupt:
            bars.console.print("stopped")
    print(report(found, arguments.out))
    return 3 if any(row["wrong"] for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
