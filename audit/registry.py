"""What the text of a registry entry allows to check: parameters against the variant, sums of budgets, conversions of
rho, amplification by sampling, the epsilon of Laplace noise.

Only what is written in a form that can be read without guessing is checked: values of bullet points against the value
of the point or the entry above them, a rho with "corresponding to" an epsilon and a delta, a named amplification
factor. Printed decimals carry half a unit of rounding each.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np

from dpaudit._files import write_whole
from dpaudit._plain_text import printable
from dpaudit.audit.exit_status import REFUTED, Lost
from dpaudit.audit.inputs.deployments import Entry, load_entries
from dpaudit.reports.verdict_exports import entry_block
from dpaudit.verify.guarantees import GaussianDP, ZeroConcentratedDP
from dpaudit.verify.implied import implied_delta
from dpaudit.verify.inversion import epsilon_at

Status = Literal["consistent", "inconsistent", "not checkable"]
SECOND_HAND = "A registry entry is second-hand: the primary source decides."
LARGEST = 700.0  # of an epsilon or a rho that is converted: floats hold e to its power
NEEDS = {
    "Pure DP": ("epsilon",),
    "Approximate DP": ("epsilon", "delta"),
    "Zero-concentrated DP": ("rho",),
}
_NUMBER = r"(\d{1,20}(?:\.\d+)?(?:e-?\d{1,2})?)(?!\d|\.\d|e-?\d)"  # longer ones are no privacy parameters
_VALUE = {  # a subscript or a prime is part of the name
    name: re.compile(rf"\b{name}(?:_\{{?\w+\}}?)?'*\s*(?:=|of|is)\s*{_NUMBER}") for name in ("epsilon", "rho")
}
_POWER = r"10\s*\^\s*\{?([-−]\d+)\}?"
_DELTA = re.compile(rf"\bdelta\b\s*=\s*(?:{_POWER}|{_NUMBER}(?:\s*(?:×|times|x)\s*{_POWER})?)")
_BULLET = re.compile(r"^(\s*)(?:[-*•]|\d+\.)\s+(.*)$")
_CONVERSION = re.compile(
    rf"\brho\b\s*=\s*{_NUMBER}[^\n]{{0,40}}?corresponding to\s+epsilon\s*=\s*{_NUMBER}\s+and\s+(delta[^\n]*)"
)
_FACTOR = re.compile(rf"amplification factor'?\s+(?:of|is)\s+{_NUMBER}")
_LAPLACE = re.compile(rf"sensitivity\s*=\s*{_NUMBER}[^\n]{{0,30}}?(?:noise )?scale\s*=\s*{_NUMBER}")


@dataclass(frozen=True)
class Finding:
    """One rule that could be applied to an entry.

    Args:
        rule: Its name.
        holds: Whether the text keeps it.
        text: What was compared, with the numbers.
    """

    rule: str
    holds: bool
    text: str


@dataclass(frozen=True)
class Check:
    """What was found about an entry."""

    slug: str
    name: str
    findings: Sequence[Finding]

    @property
    def status(self) -> Status:
        """Inconsistent if any rule is broken, not checkable if none could be applied."""
        if any(not finding.holds for finding in self.findings):
            return "inconsistent"
        return "consistent" if self.findings else "not checkable"


def check_entry(entry: Entry) -> Check:
    """Apply every rule to one entry.

    Args:
        entry: From `load_entries`.
    """
    rules: tuple[Callable[[Entry], Iterator[Finding]], ...] = (_variant, _sums, _conversions, _amplification, _laplace)
    findings = [finding for rule in rules for finding in rule(entry)]
    return Check(entry.url_slug, entry.deployment.basic.name, findings)


def run_registry(path: Path, *, out: Path | None, show: Callable[[str], None], warn: Callable[[str], None]) -> int:
    """Check an entry or a folder of them.

    Args:
        path: FILE.yaml or a folder.
        out: Folder for a verification block per entry, <slug>.verification.yaml; None for none.
        show: Prints the result.
        warn: Prints what cannot be written.

    Returns:
        The exit status: 3 if an entry is inconsistent, else 4 if a disk is full, else 2 if a block cannot be written.

    Raises:
        InputError: A file is no entry; one line.
        OSError: The folder cannot be made.
    """
    checks, lost = [check_entry(entry) for entry in load_entries(path)], Lost(warn)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    for check in checks:
        show(f"{check.status:<13} {printable(check.slug)}")
        for finding in check.findings:
            show(f"              {'ok ' if finding.holds else 'NOT'} {finding.rule}: {printable(finding.text)}")
    times = {status: sum(check.status == status for check in checks) for status in ("consistent", "inconsistent")}
    show(
        f"{len(checks)} entries: {times['consistent']} consistent, {times['inconsistent']} inconsistent. {SECOND_HAND}"
    )
    if out is not None:
        with lost:
            write_whole({out / name: block for name, block in _blocks(checks).items()})
    return REFUTED if times["inconsistent"] else max(lost.statuses, default=0)


def _blocks(checks: Sequence[Check]) -> dict[str, bytes]:
    """A verification block for each entry, by a file name of its own."""
    found = dict[str, bytes]()
    for check in checks:
        stem = re.sub("[^A-Za-z0-9-]", "-", check.slug)[:150]
        names = (f"{stem}{'' if number == 1 else f'-{number}'}.verification.yaml" for number in count(1))
        rows = [(finding.rule, finding.holds, finding.text) for finding in check.findings]
        block = entry_block(check.slug, check.status, rows, SECOND_HAND).encode()
        found[next(name for name in names if name.lower() not in map(str.lower, found))] = block
    return found


def plain(text: str) -> str:
    """A registry text with its LaTeX spelled out: epsilon, rho, delta, times.

    >>> plain(r"- Total \\\\(\\\\epsilon\\\\) = 1.25")
    '- Total epsilon = 1.25'
    """
    text = re.sub(r"\\+[()\[\]]|\$", "", text)
    text = re.sub(r"\\+(epsilon|rho|delta|times)\b", r"\1", text)
    text = re.sub(r"[ \t]+•[ \t]+", "\n• ", text)
    text = text.replace("ε", "epsilon").replace("ρ", "rho").replace("δ", "delta")
    return re.sub(r"(epsilon|rho|delta)[ \t]+=", r"\1 =", text)


def _variant(entry: Entry) -> Iterator[Finding]:
    """The parameters that the variant needs are there, and none that it cannot have."""
    variant, given = entry.variant, entry.parameters
    if variant not in NEEDS or given == type(given)():
        return
    missing = [name for name in NEEDS[variant] if getattr(given, name) is None]
    extra = variant == "Pure DP" and given.delta not in (None, 0.0)
    if missing:
        yield Finding("variant", False, f"{variant} is stated without {' and '.join(missing)}")
    elif extra:
        yield Finding("variant", False, f"Pure DP is stated together with delta = {given.delta}")
    elif variant == "Approximate DP" and given.delta == 0.0:
        yield Finding("variant", True, "Approximate DP with delta = 0, which is pure DP")
    else:
        yield Finding("variant", True, f"{variant} with {', '.join(NEEDS[variant])}")


@dataclass
class _Point:
    """A bullet point: its own value and those of the points under it."""

    indent: int
    text: str
    value: str | None
    under: list["_Point"]


def _points(text: str, name: str) -> _Point:
    """The tree of bullet points of a text, under a point without text."""
    root = _Point(-1, "", None, [])
    path = [root]
    for line in text.splitlines():
        bullet = _BULLET.match(line)
        indent = len(bullet[1]) if bullet else len(line) - len(line.lstrip())
        words = bullet[2] if bullet else line.strip()
        if not words:
            continue
        values = _VALUE[name].findall(words)
        point = _Point(indent if bullet else -1, words, values[0] if len(values) == 1 else None, [])
        if not bullet:  # a line before a list stands over it
            path[-1].value = path[-1].value or point.value if path[-1] is root else path[-1].value
            continue
        while len(path) > 1 and path[-1].indent >= indent:
            path.pop()
        path[-1].under.append(point)
        path.append(point)
    return root


def _sums(entry: Entry) -> Iterator[Finding]:
    """Bullet points that all carry a value add up to the one above them."""
    given = entry.parameters
    for name, total in (("epsilon", given.epsilon), ("rho", given.rho)):
        for key, text in entry.texts.items():
            if key == "mechanisms":
                continue
            root = _points(plain(text), name)
            if total is not None and key == "privacy_parameters_details" and root.value is None:
                root.value = repr(total)
            yield from _added(root, name, key)


def _added(point: _Point, name: str, key: str) -> Iterator[Finding]:
    values = [under.value for under in point.under]
    known = [value for value in values if value is not None]
    if point.value is not None and len(known) >= 2 and len(known) == len(values):
        total, parts = Decimal(point.value), [Decimal(value) for value in known]
        slack = sum((_half_unit(value) for value in [point.value, *known]), Decimal(0))
        what = f"{key}: {' + '.join(known)} = {sum(parts)}, and {name} = {point.value} stands above"
        yield Finding("sum", abs(sum(parts) - total) <= slack, what)
    for under in point.under:
        yield from _added(under, name, key)


def _half_unit(number: str) -> Decimal:
    exponent = Decimal(number).as_tuple().exponent
    return Decimal(5).scaleb(int(exponent) - 1) if isinstance(exponent, int) and exponent < 0 else Decimal(0)


def _rounded(number: str) -> tuple[float, float]:
    """Ends of what is printed so; powers of ten are meant."""
    value, half = Decimal(number), Decimal(0) if "e" in number else _half_unit(number)
    return float(value - half), float(value + half)


def _conversions(entry: Entry) -> Iterator[Finding]:
    """An epsilon at a delta that a rho is said to correspond to."""
    given = entry.parameters
    found = []
    for text in entry.texts.values():
        for rho, epsilon, rest in _CONVERSION.findall(plain(text)):
            found.append((float(rho), float(epsilon), _delta(rest)))
    if given.rho and given.epsilon and isinstance(given.delta, float):
        found.append((given.rho, given.epsilon, given.delta))
    for rho, epsilon, delta in found:
        if delta is None or not 0 < delta < 1 or not 0 < rho <= LARGEST or epsilon > LARGEST:
            continue
        least = float(epsilon_at(implied_delta(GaussianDP(math.sqrt(2 * rho))), np.array([delta]))[0])
        tight = float(epsilon_at(implied_delta(ZeroConcentratedDP(rho)), np.array([delta]))[0])
        loose = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        what = (
            f"rho = {rho:g} to epsilon = {epsilon:g} at delta = {delta:g}; a Gaussian of that rho has {least:.4g}, the "
            f"conversion by all orders gives {tight:.4g}, rho + 2 sqrt(rho log(1/delta)) gives {loose:.4g}"
        )
        yield Finding("conversion", epsilon >= least * (1 - 5e-3) and epsilon <= loose * (1 + 5e-3), what)


def _amplification(entry: Entry) -> Iterator[Finding]:
    """A named amplification factor q: epsilon becomes log(1 + q (e^epsilon - 1)), delta becomes q delta."""
    given = entry.parameters
    text = plain("\n".join(entry.texts.values()))
    before = re.search(rf"[Pp]re-amplification[^\n]*?epsilon\s*=\s*{_NUMBER}[^\n]*", text)
    factor = _FACTOR.search(text)
    if before is None or factor is None or given.epsilon is None:
        return
    rate, epsilon = float(factor[1]), float(before[1])
    if not 0 < rate <= 1 or epsilon > LARGEST:
        return
    amplified = math.log1p(rate * math.expm1(epsilon))
    what = f"epsilon = {epsilon:g} at rate {rate:g} becomes {amplified:.4g}, and {given.epsilon:g} is stated"
    yield Finding("amplification", abs(amplified - given.epsilon) <= 5e-3 * amplified + 5e-3, what)
    delta = _delta(before[0])
    if delta is not None and isinstance(given.delta, float):
        what = f"delta = {delta:g} at rate {rate:g} becomes {rate * delta:.4g}, and {given.delta:g} is stated"
        yield Finding("amplification", math.isclose(rate * delta, given.delta, rel_tol=0.01), what)


def _laplace(entry: Entry) -> Iterator[Finding]:
    """Laplace noise of a stated scale and sensitivity costs their ratio, but for how each of them is rounded."""
    given = entry.parameters
    for text in entry.texts.values():
        for line in plain(text).splitlines():
            found = _LAPLACE.search(line)
            if found is None or "laplace" not in line.lower() or float(found[2]) == 0:
                continue
            stated = _VALUE["epsilon"].findall(line)
            printed = stated[0] if len(stated) == 1 else None if given.epsilon is None else f"{given.epsilon:.15g}"
            if printed is not None:
                cost, value = float(found[1]) / float(found[2]), float(printed)
                what = f"sensitivity {found[1]} and scale {found[2]} cost epsilon = {cost:.4g}, and {value:g} is stated"
                (low, high), (least, most), (below, above) = map(_rounded, (found[1], found[2], printed))
                nearest = min(max(value, low / most), high / least)
                yield Finding("laplace", math.isclose(nearest, min(max(nearest, below), above), rel_tol=0.01), what)


def _delta(text: str) -> float | None:
    """The first delta of a text: 1e-5, 4.08 times 10^-8, 10^{-10}."""
    found = _DELTA.search(text)
    if found is None:
        return None
    exponent = (found[1] or found[3] or "0").replace("−", "-")
    return float(f"{found[2] or 1}e{exponent}") if "e" not in (found[2] or "") else float(found[2])
