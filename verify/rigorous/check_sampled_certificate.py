"""Certificates of batches that `check_certificate.py` alone does not read, checked with it: batches of fixed size,
shuffled, dealt into bins, cut, or known in advance; and Poisson batches of which a record is replaced.

Like that file, beside which it lies where it is handed out, it imports nothing but python-flint.
"""

import copy
import math
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

if __package__:
    from dpaudit.verify.rigorous import check_certificate as alone
else:
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # where the other file was handed out
    try:
        import check_certificate as alone  # type: ignore[import-not-found, no-redef]
    except ImportError:
        print("dpaudit-check: expected check_certificate.py beside this file", file=sys.stderr)
        raise SystemExit(2) from None
from flint import arb, fmpz, fmpz_poly

ascending, ball, need, normal, whole = alone.ascending, alone.ball, alone.need, alone.normal, alone.whole
SAMPLERS = {"random-allocation": "steps times", "without-replacement": "steps prob"}  # and their keys
SAMPLERS |= {"balls-in-bins": "batches epochs reshuffle", "truncated-poisson": "steps prob max_batch records"}
SAMPLERS |= {"deterministic": "batches epochs", "shuffled": "batches epochs reshuffle records batch last_batch"}


def capped(window: alone.Window, laws: list[fmpz_poly], counts: tuple[int, ...]) -> fmpz_poly:
    """Of a sum of so many scores in 0..W of each law. A sum above W is left out: it is above W in any order."""
    result = fmpz_poly([1 << window.bits])
    for law, count in zip(laws, counts, strict=True):
        while count:
            need(True)
            result = result.mul_low(law, window.size + 1) // (1 << window.bits) if count & 1 else result
            law, count = law.mul_low(law, window.size + 1) // (1 << window.bits) if count > 1 else law, count >> 1
    return result


class Sampler:
    """Who is in which release. `games`: pairs of laws of one pass, [(weight, releases around 0, 1 and 2 contributions)]
    in a random order; others contribute against the record (shuffled, fixed size) or nothing. `groups`: (T, passes) of
    which the record enters one of T. `orders`: passes of one order, which for normal noise are one of sqrt(E) shifts.
    `meetings`: releases that a record enters at most, four for two that are in one batch. `rate`: of batches of fixed
    size. `widest`: 1 over the largest probability of a shuffled batch to hold a record, where batches are whole and
    every pass has an order of its own."""

    def __init__(self, kind: str, data: dict[str, Any], replaced: bool) -> None:
        epochs, once = whole(data.get("epochs", 1), 1, 10**7), data.get("reshuffle", "every-epoch") == "once"
        need(once or data.get("reshuffle", "every-epoch") == "every-epoch", "reshuffle is not known")
        self.passes, self.orders = (1, epochs) if once else (epochs, 1)
        self.meetings, self.groups, self.games, self.twice = epochs, list[Any](), list[Any](), False
        need(set(data) <= (own := set(SAMPLERS.get(kind, "").split())), "a sampler's key is not its own")
        count = whole(data["steps" if "steps" in own else "batches"], 1, 10**8)
        self.steps, part = count * epochs, Fraction(kind == "deterministic")
        self.widest = self.rate = Fraction(0)
        if kind == "shuffled":
            last = data.get("last_batch", "kept")
            n, b = (whole(data[key], 1, 10**15) for key in ("records", "batch")) if "records" in data else (count, 1)
            need("records" in data or "batch" not in data, "a batch is of records")
            need(b <= n and count == (-(-n // b) if last == "kept" else n // b), "the batches are not those")
            need(last in ("kept", "dropped", "straddling"), "the last batch is not known")
            part, run, cut = Fraction(b, n), b // math.gcd(n, b), last == "straddling" and n % b and epochs > 1
            if cut:  # every run-th pass alone ends with a batch; of one order a record's places are a pass apart
                pairs = 0 if once else epochs // run * (run // 2) + epochs % run // 2
                self.meetings, self.twice, self.steps = epochs + 2 * pairs, pairs > 0, n * epochs // b
                self.orders, count = (-(-epochs // run), n // b) if once else (1, max((n - b + 1) // b, 0))
            least = Fraction(1) if last == "kept" else count * part
            self.widest = Fraction(0) if once or cut else least / part
            without = (count, 0, 0) if replaced else (count - 1, 1, 0)
            out = [(1 - least, (count, 0, 0))]
            self.games = [([(least, (count - 1, 0, 1)), *out], [(least, without), *out])] if count else []
        elif kind in ("balls-in-bins", "random-allocation"):
            times = whole(data["times"], 1, count) if kind == "random-allocation" else 1
            short, longer = divmod(count, times)
            part, self.meetings = Fraction(times, count), epochs * times
            self.groups = [(t, k * self.passes) for t, k in ((short + 1, longer), (short, times - longer)) if k]
            self.games = [] if replaced else [([(1, (count - times, times, 0))], [(1, (count, 0, 0))])]
        elif kind == "without-replacement":
            self.rate = part = g = data["prob"] + Fraction(0)
            self.passes = self.meetings = count
            far, near = ([(1 - g, (1, 0, 0)), (g, at)] for at in ((0, 0, 1), (0, 1, 0)))
            silent = [(Fraction(1), (1, 0, 0))]
            self.games = [(far, silent)] if replaced else [(far, near), (near, silent)]
        elif kind == "truncated-poisson":
            n = whole(data["records"], 1, 10**15)
            part, self.meetings = min(data["prob"], Fraction(whole(data["max_batch"], 1, n), n)), self.steps
        self.fixed = part == 1  # the releases of a record are known: those of fixed batches, or of batches of everybody
        if self.fixed:
            self.games, self.groups, self.rate = [], [], Fraction(0)
        need(self.games or self.groups or self.fixed or kind == "shuffled", "the sampler is not covered")
        need(0 < data.get("prob", 1) <= 1, "the rate is not allowed")


class SampledPhase(alone.Phase):
    """A phase of any batches. `g`: the rate of those of fixed size; `swapped`: a record of Poisson batches is replaced,
    `share` being their rate. `steps`: releases that a record enters at most, as if the order were known."""

    def __init__(self, data: dict[str, Any], replaced: bool) -> None:
        self.sampler: Any = None
        own = {key: x for key, x in data.items() if key != "sampling"}
        if "sampling" in data:
            need(data["sampling_kind"] in SAMPLERS, "the sampler is not covered")
            self.sampler = Sampler(data["sampling_kind"], data["sampling"], replaced)
            own["sampling_kind"] = "none"
        super().__init__(own, replaced)
        self.g, self.replaced, self.share = Fraction(0), replaced, self.q
        self.swapped = replaced and self.rate < 1
        if self.sampler:
            need(self.steps == self.sampler.steps, "the steps are not the sampler's")
            self.steps, self.g, self.ghost = self.sampler.meetings, self.sampler.rate, not self.sampler.groups
            self.mixed = self.g > 0

    def pair(self, data: dict[str, Any], window: alone.Window, direction: str) -> tuple[Any, int]:
        """Laws of a label under both laws of the pair, and how often it is drawn."""
        if not self.sampler or not self.sampler.games:
            need(not self.sampler or self.sampler.fixed, "the sampler has no pair here")
            return super().pair(data, window, direction)
        need(direction in ("remove", "add"), "the direction is not covered")
        return self.pass_laws(data, window)[:: 1 if direction == "remove" else -1], self.sampler.passes

    def tails(self, edge: int, step: arb) -> list[arb]:
        """P(L > l), Q(L > l)."""
        if not self.swapped and not self.g:
            return super().tails(edge, step)
        return self.drawn_tails(edge, step) if self.g else self.swapped_tails(edge, step)

    def losses(self, edges: list[int], step: arb, window: alone.Window) -> list[fmpz_poly]:
        """Connect-the-dots laws of one release's loss in multiples of step, both directions; the rest is infinite."""
        release = copy.copy(self)
        if self.swapped:  # its tails are those of what is released
            release.q, release.rate = arb(1), Fraction(1)
        return alone.Phase.losses(release, edges, step, window)

    def swapped_tails(self, edge: int, step: arb) -> list[arb]:
        """The same of (1 - q) N(0) + q N(mu) against (1 - q) N(0) + q N(-mu), the worst pair of a sampled record that
        is replaced. There c u^2 - (1 - q) (e^l - 1) u - e^l c = 0, u = e^(mu x), c = q e^(-mu^2/2)."""
        mu, q, loss = self.mu(), self.share, abs(edge) * step  # which is odd in x
        c, linear = q * (-mu * mu / 2).exp(), (1 - q) * loss.expm1()
        x = ((linear + (linear**2 + (2 * c) ** 2 * loss.exp()).sqrt()) / (2 * c)).log() / mu * (1 if edge >= 0 else -1)
        none, one, other = (((x - k * mu) / arb(2).sqrt()).erfc() / 2 for k in (0, 1, -1))
        return [(1 - q) * none + q * one, (1 - q) * none + q * other]

    def drawn_tails(self, edge: int, step: arb) -> list[arb]:
        """The same of batches of fixed size that hold the record with probability g. Under replace-one the worst is
        (1 - g) N(0) + g N(mu) against N(0), mu of two clips. Under zero-out it is that below 0, mu of one, and above 0
        (1 - g) N(0) + g N(2 mu) against (1 - g) N(0) + g N(mu). Below 0 P and Q are 1 - Q(L > l) and 1 - P(L > l)."""
        mu, g, growth = self.mu(), ball(self.g), (abs(edge) * step).exp()
        high, low = g * (-2 * mu * mu).exp(), growth * g * (-mu * mu / 2).exp()  # high u^2 = low u + ..., u = e^(mu x)
        apart = edge >= 0 and not self.replaced
        u = (low + (low**2 + 4 * high * (growth - 1) * (1 - g)).sqrt()) / (2 * high)
        x = u.log() / mu if apart else ((growth - 1 + g) / g).log() / mu + mu / 2
        none, one, two = (((x - k * mu) / arb(2).sqrt()).erfc() / 2 for k in range(3))
        p, q = (1 - g) * none + g * (two if apart else one), (1 - g) * none + g * one if apart else none
        return [p, q] if edge >= 0 else [1 - q, 1 - p]

    def pass_laws(self, data: dict[str, Any], window: alone.Window) -> list[fmpz_poly]:
        """Laws of a pass's label, a label of the sum of its releases' scores, under both laws of the pair."""
        games, inner = self.sampler.games, alone.Window(data["window"], window.bits)
        unit, count = self.shift(data, self.clip)
        need(self.power == 2 or count == 1, "other than normal noise is told apart in one coordinate")
        unit *= arb(self.sampler.orders).sqrt() if self.power == 2 else 1
        need(min(data["scores"]) >= 0, "a score is negative")
        ones = [inner.law(self.cells(data, k * unit), data["scores"]).right_shift(inner.size) for k in range(3)]
        laws, none = [], fmpz_poly([])
        for side in games[whole(data["game"], 0, len(games) - 1)]:
            mixed = [inner.floor(ball(weight + Fraction(0))) * capped(inner, ones, counts) for weight, counts in side]
            law = (sum(mixed, none) // (1 << inner.bits)).left_shift(inner.size)
            laws.append(window.law(inner.masses(law)[inner.size :], data["labels"]))
        return laws

    def allocated(self, releases: int, text: Fraction, size: int, step: arb, window: alone.Window) -> list[fmpz_poly]:
        """Laws of the loss of a pass in which the record enters one of T releases, both directions, in steps. X is the
        sum of T likelihood ratios r, each moved to two points of a lattice with the same mean in every cell: delta is
        convex in X, and only grows. With the record one of them has its lattice masses times r."""
        mu, unit, lattice = self.mu() * arb(self.sampler.orders).sqrt(), ball(text), alone.Window(size, window.bits)
        root, found, tails = arb(2).sqrt(), [], [(arb(1), arb(1))]
        for i in range(1, size + 1):
            x = (ball(i * text).log() / mu + mu / 2) / root
            tails.append((x.erfc() / 2, (x - mu / root).erfc() / 2))
        cells = [(a[0] - b[0], a[1] - b[1]) for a, b in pairwise(tails)]
        ups = [arb(0), *((one - i * unit * zero) / unit for i, (zero, one) in enumerate(cells))]
        spread = [up + zero - after for (zero, _), (up, after) in zip(cells, pairwise(ups), strict=True)] + [ups[-1]]
        laws = [fmpz_poly([lattice.floor(m * (i * unit) ** k) for i, m in enumerate(spread)]) for k in (0, 1)]
        for sign, counts in ((1, (releases - 1, 1)), (-1, (releases, 0))):
            total = [fmpz(0)] * (2 * window.size + 1)
            for i, mass in enumerate(capped(lattice, laws, counts).coeffs()):
                if i and mass:
                    loss = sign * (ball(i * text) / releases).log()
                    low = int(float((loss / step).lower()) // 1)
                    share = (1 - (low * step - loss).exp()) / -(-step).expm1()  # of the dot above, in [0, 1] if between
                    low, share = (low, share) if share >= 0 and share <= 1 else (low + 1, arb(1))
                    need(loss <= (low + 1) * step, "a loss is not rounded up")
                    up = window.floor(share * arb(mass) / (1 << window.bits))
                    for place, some in ((low + 1, up), (low, max(fmpz(0), mass - up - 1))):
                        if place <= window.size:  # above it a loss is infinite
                            total[max(place, -window.size) + window.size] += some
            found.append(fmpz_poly(total))
        return found

    def excess(self, growth: arb, level: arb, way: str, low: bool) -> arb:
        """The largest E (R(x) - growth R(y) - level)_+, R(x) = N(x)/N(0), over all shifts x, y that a random order has:
        by Neyman and Pearson c_0 + c_1 w + c_2 exp(-unit^2) w^2 is positive on a half-line, w = R(unit)."""
        unit, ends = self.mu(), {("remove", False): [-level, -growth, arb(1)], ("add", True): [-level, arb(1), -growth]}
        c = ends.get((way, low)) or ([-growth, 1 - level] if low else [-growth - level, arb(1)])
        square = c[2] * (-unit * unit).exp() if c[2:] else arb(0)
        w = (abs(c[1]) + (c[1] ** 2 - 4 * square * c[0]).sqrt()) / abs(2 * square) if c[2:] else -c[0] / c[1]
        at, side = w.log() / unit + unit / 2, -1 if (way, low) == ("add", True) else 1
        return sum((x * (side * (at - i * unit) / arb(2).sqrt()).erfc() / 2 for i, x in enumerate(c)), arb(0))

    def pass_delta(self, w: dict[str, Any], e: arb, way: str, window: alone.Window) -> arb:
        """Of shuffled batches: E (S/m)_+ of m independent terms whose E (Y - k)_+ is the excess, and what large weights
        cost. Y lies on knots, its excess below the chords; masses are rounded up. S is taken modulo the size: a residue
        above top is negative, and of S above top remains at most top e^(-tilt top) (E e^(tilt Y))^m, tilt top >= 1.
        Large weights are filled up by constants, or a pass with one, at level, is a known order, of chance rho."""
        growth, (unit, tilt, level, cut) = e.exp(), (ball(w[key]) for key in ("unit", "tilt", "level", "cut"))
        m, size = whole(w["terms"], 1, int(self.sampler.widest)), whole(w["size"], 2, 2**18)
        top, knots = whole(w["top"], 1, size - 1), [whole(k, -(10**9), 10**9) for k in ascending(w["knots"])]
        need(unit > 0 and tilt * top >= 1 and level >= 1 and cut >= 0, "a lattice is not allowed")
        values, widest = [self.excess(growth, k * unit, way, k < 0) / unit for k in knots], ball(self.sampler.widest)
        slopes = [arb(-1), *((b - a) / (k - j) for (a, j), (b, k) in pairwise(zip(values, knots, strict=True))), arb(0)]
        law, moment, ones = [fmpz(0)] * size, arb(0), fmpz_poly([1] * size)
        for (a, b), k in zip(pairwise(slopes), knots, strict=True):
            law[k % size] += (mass := window.floor((b - a).upper()) + 1)
            moment += mass * (k * tilt).exp() / (1 << window.bits)
        total = first = fmpz_poly(law)
        for bit in bin(m)[3:]:
            for factor in (total, first)[: 1 + int(bit)]:
                need(True)
                product = total * factor
                total = (product.truncate(size) + product.right_shift(size)) // (1 << window.bits) + ones
        inside = arb(total.truncate(top + 1).derivative()(1)) / (1 << window.bits)
        above, twice = top * (-tilt * top).exp() * moment**m, self.mu() * (1 if way == "swap" else 2)
        rho = normal(twice, level.log()) / (1 - m * level / (widest - 1)) if m * level < widest - 1 else arb(1)
        prices = [self.excess(growth, 1 - growth, way, True) * normal(twice, (widest / m).log())]
        prices += [rho * normal(self.mu(), e) + (cut * rho + self.excess(growth, cut, way, False)) / widest]
        return ((inside + above) / m + values[-1]) * unit + min(price.upper() for price in prices)

    def shuffled(self, w: dict[str, Any], step: arb, window: alone.Window) -> list[fmpz_poly]:
        """Laws of a pass's loss, both directions. Its deltas are a convex function of growth = e^epsilon, below chords
        of those that are stated ("add" for growth < 1); a mass of the second law is what the slope gains."""
        points, places, deltas = [(arb(0), arb(1))], ascending([place for place, *_ in w["profile"]]), dict[Any, arb]()
        for place, value, look in w["profile"]:
            growth, stated, e = (place * step).exp(), ball(value), abs(place) * step
            way = "swap" if self.replaced else "remove" if place >= 0 else "add"
            if not stated >= normal(self.mu(), e):  # of a known order
                key, one = (abs(place), way, look), w["lattices"][whole(look, 0, len(w["lattices"]) - 1)]
                deltas[key] = deltas[key] if key in deltas else self.pass_delta(one, e, way, window)
                need(stated >= deltas[key], "a pass has a larger delta")
            points.append((growth, stated if place >= 0 else 1 - growth + growth * stated))
        masses = [b - a for a, b in pairwise([*((d - b) / (c - a) for (a, b), (c, d) in pairwise(points)), arb(0)])]
        need(all(mass >= 0 for mass in masses), "the profile is not convex")
        first = [growth * mass for (growth, _), mass in zip(points[1:], masses, strict=True)]
        return [window.law(first, places), window.law(masses, [-place for place in places])]


def bound(kind: str, phases: list[SampledPhase], w: dict[str, Any], replaced: bool, epsilon: Fraction) -> arb:
    """At least delta."""
    for x in phases:
        met = not x.sampler or x.power == 2 or not x.sampler.twice
        need((kind == "gaussian-grid" or not x.g) and met, "the sampler has no theorem")
    if kind not in ("allocation-grid", "shuffled-grid"):  # of Gaussian noise, replaced and sampled records have a grid
        return alone.certified(kind, [*phases], w, replaced and kind != "gaussian-grid", epsilon)
    step, window = ball(w["step"]), alone.Window(w["window"], w["bits"])
    need(step > 0 and all(x.power == 2 for x in phases), "it takes Gaussian noise and a grid")
    if kind == "allocation-grid":
        need(not replaced and all(x.sampler and x.sampler.groups for x in phases), "these are no such bins")
        groups = [(x, *group) for x in phases for group in x.sampler.groups]
        sides = list(zip(groups, w["units"], w["sizes"], strict=True))
        need(all(unit > 0 and whole(n, 1, alone.MAX_WINDOW) for _, unit, n in sides), "a lattice has no unit")
        parts = [(x.allocated(t, unit, n, step, window), k) for (x, t, k), unit, n in sides]
    else:
        need(all(x.sampler and x.sampler.widest for x in phases), "these are no such batches")
        parts = [(x.shuffled(y, step, window), x.sampler.passes) for x, y in zip(phases, w["passes"], strict=True)]
    return alone.composed(parts, 1 if replaced else 2, ball(epsilon), step, window)[0]


def accepted(text: str) -> str:
    """What is proved, in one line. AssertionError: nothing; another exception: this is no certificate."""
    return alone.accepted(text, SampledPhase, bound)


def main(paths: list[str] | None = None) -> int:
    """Check the files that are named, of any batches."""
    return alone.main(paths, accepted)


if __name__ == "__main__":
    sys.exit(main())
