"""pytest plugin: claims as assertions and as test items.

`assert_claim(claim_or_path)` fails a test with the verdict's text and witness when a claim is refuted;
`--dpaudit-claims FILE` turns every claim of a file into a test item. Nothing heavy is imported before a claim is
checked. Exact verdicts spend no error probability; the i-th sampling verdict of a session spends
alpha * 6 / (pi^2 i^2), which sums to alpha however many there are; workers of pytest-xdist have parts of alpha.
"""

import math
import os
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dpaudit._plain_text import printable

if TYPE_CHECKING:
    from dpaudit.verify.claims import Claim
    from dpaudit.verify.results import Verdict

ALPHA = 0.05
NAMED = 10_000  # from so many on workers whose names are no numbers, each with next to nothing
_SPENT: pytest.StashKey[list[float]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("dpaudit", "differential-privacy claims")
    group.addoption(
        "--dpaudit-claims", action="append", default=[], metavar="FILE", help="check every claim of a TOML file"
    )
    group.addoption(
        "--dpaudit-require",
        choices=["certified"],
        default=None,
        help="fail claims of --dpaudit-claims that are not certified",
    )


class ClaimFailure(AssertionError):
    """A claim that is refuted, or not certified where that is required; the message is for people."""


def sampling_share(index: int, alpha: float = ALPHA) -> float:
    """Error probability of the i-th sampling verdict of a session, i = 1, 2, ...

    >>> round(sum(sampling_share(i) for i in range(1, 100_000)), 4)
    0.05
    """
    return alpha * 6.0 / (math.pi**2 * index**2)


def worker_share() -> float:
    """The part of a session's error probability that this process may spend: 1, unless pytest-xdist shares the tests.

    Half is for the workers that it starts, alike; half for those that replace others, which have numbers above theirs.
    """
    name, workers = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 0)
    if not workers:
        return 1.0
    found = re.fullmatch(r"gw(\d+)", name)
    number = int(found[1]) if found else workers + NAMED + zlib.crc32(name.encode()) % NAMED  # a name of the user's own
    return 0.5 / workers if number < workers else sampling_share(number - workers + 1, 0.5)


def judge(claim: "Claim", require: str | None, method: str, spent: list[float], rng: Any) -> "Verdict":
    """Check a claim and raise if the verdict is not good enough.

    Args:
        claim: What is claimed.
        require: None (only "refuted" fails) or "certified".
        method: As in `check`.
        spent: Shares of the session so far; a sampling verdict adds its own.
        rng: Generator or seed of a sampling verdict.

    Raises:
        ClaimFailure: Names the claim, the verdict, its reason and the witness.
        ValueError: `require` is neither None nor "certified".
    """
    __tracebackhide__ = True  # the test's own line is what a person wants to see
    from dpaudit.verify.checking import check

    if require not in (None, "certified"):
        raise ValueError(f"Expected require={require!r} to be None or 'certified'.")
    if method == "exact":
        verdict = check(claim)
    else:
        spent.append(sampling_share(len(spent) + 1, ALPHA * worker_share()))
        verdict = check(claim, method=method, confidence=1.0 - spent[-1], rng=rng)
    if verdict.verdict == "refuted" or (require == "certified" and verdict.verdict != "certified"):
        raise ClaimFailure(describe(verdict))
    return verdict


def describe(verdict: "Verdict") -> str:
    """A verdict in a few lines."""
    lines = [
        f"claim {printable(verdict.id) or '(unnamed)'}: {verdict.promise} is {verdict.verdict}",
        verdict.meaning,
        verdict.bracket,
    ]
    if verdict.witness is not None:
        witness = verdict.witness
        coordinates = f"{witness.coordinates} coordinate{'s' * (witness.coordinates != 1)}"
        lines.append(
            f"witness: {witness.family}, {coordinates}, norm {witness.norm:g}, "
            f"direction {witness.direction}, event {witness.event}"
        )
    return "\n".join(lines)


@pytest.fixture
def assert_claim(request: pytest.FixtureRequest) -> Callable[..., list["Verdict"]]:
    """A function that fails the test when a claim, or any claim of a file, is refuted.

    Call it as `assert_claim(claim_or_toml_path, require=None, method="exact", rng=None)`; with
    `require="certified"` a claim must be certified. It returns the verdicts.
    """
    spent = request.config.stash.setdefault(_SPENT, [])

    def judge_all(
        claim: "Claim | str | os.PathLike[str]", require: str | None = None, method: str = "exact", rng: Any = None
    ) -> list["Verdict"]:
        __tracebackhide__ = True
        from dpaudit.verify.claim_files import load_claims

        claims = load_claims(Path(claim)) if isinstance(claim, (str, os.PathLike)) else [claim]
        verdicts = []
        for item in claims:  # a comprehension would be a frame that tracebacks show
            verdicts.append(judge(item, require, method, spent, rng))
        return verdicts

    return judge_all


class ClaimItem(pytest.Item):
    """One claim of a file, as a test."""

    def __init__(self, *, claim: "Claim", **node: Any) -> None:
        super().__init__(**node)
        self.claim = claim

    def runtest(self) -> None:
        """Check the claim."""
        judge(self.claim, self.config.getoption("--dpaudit-require"), "exact", [], None)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The verdict alone; a traceback would say nothing more."""
        if isinstance(excinfo.value, ClaimFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str], int | None, str]:
        """Where the claim stands."""
        return self.path, None, f"claim {self.name}"


class ClaimFile(pytest.File):
    """A claims file named on the command line."""

    def collect(self) -> Iterable[ClaimItem]:
        """An item per claim."""
        from dpaudit.verify.claim_files import load_claims

        claims = load_claims(self.path)
        names = [printable(claim.id).replace("::", ":") for claim in claims]  # for pytest "::" ends a name
        return [ClaimItem.from_parent(self, name=name, claim=claim) for name, claim in zip(names, claims, strict=True)]


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what --dpaudit-claims cannot mean: here, for of an error in its workers pytest-xdist tells nothing."""
    if hasattr(config, "workerinput"):
        return
    names = config.getoption("--dpaudit-claims")
    if names:
        from dpaudit.verify.claim_files import load_claims
    for name in names:
        if not Path(name).is_file():
            raise pytest.UsageError(f"--dpaudit-claims: Expected {name} to be a file.")
        try:
            load_claims(Path(name).resolve())
        except ValueError as error:  # not a claims file
            raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose among the items
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the claims of --dpaudit-claims to what is collected."""
    for name in session.config.getoption("--dpaudit-claims"):
        collector: ClaimFile = ClaimFile.from_parent(session, path=Path(name).resolve())
        report = collector.ihook.pytest_make_collect_report(collector=collector)
        collector.ihook.pytest_collectreport(report=report)  # so that pytest counts them
        items.extend(report.result)
