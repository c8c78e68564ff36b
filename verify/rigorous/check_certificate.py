"""An independent checker of certificates, format "dpaudit-certificate/1", in ball arithmetic (python-flint's `arb`).

Every number is computed again from claim and witness, with an error bound; only what is proved is accepted. Exit
status: 0 accepted, 3 one was refused, 2 one is no certificate or python-flint is missing. It is one file, so that it
can be read and handed out alone, for releases of everybody and for Poisson batches. `check_sampled_certificate.py`
beside it reads other batches, too, and Poisson ones of which a record is replaced.
"""

import json
import os
import re
import sys
import time
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any


def told(line: str, file: Any) -> None:  # or dropped where it cannot be written: the exit status tells it, too
    if file is not None:  # as a closed one is
        try:
            print(line.encode(code := file.encoding or "utf-8", "backslashreplace").decode(code), file=file, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # takes what Python writes at its end


try:
    from flint import arb, ctx, fmpq, fmpz, fmpz_poly
except ImportError:
    told("dpaudit-check: expected python-flint to be installed: pip install python-flint", sys.stderr)
    raise SystemExit(2) from None

FORMAT, SECONDS, MAX_BYTES, MAX_WINDOW, BITS = "dpaudit-certificate/1", 300, 2**23, 2**16, (64, 2000)
NUMBER = re.compile(r"-?\d{1,60}(\.\d{1,60})?(e[+-]?\d{1,3})?|-?\d{1,60}/[1-9]\d{0,59}", re.ASCII)
NOISE = {"gaussian": ["noise_multiplier"], "laplace": ["scale"], "generalized-gaussian": ["beta", "scale"]}
NOISE |= {f"gamma-{x}": ["k", "theta"] for x in ("plrv", "plrv-iid", "scale-laplace")} | {"product": ["sigma"]}
CLAIM, PHASE, deadline = "id epsilon delta adjacency phases", "mechanism steps sampling_prob sampling_kind", [0.0]


def need(condition: Any, reason: str = "") -> None:  # an AssertionError says that nothing is proved
    if not condition or time.monotonic() > deadline[0]:
        raise AssertionError(reason if not condition else f"it takes more than {SECONDS} seconds")


def parsed(value: Any) -> Any:  # strings that are numbers as exact fractions
    if isinstance(value, (dict, list)):
        return {k: parsed(x) for k, x in value.items()} if isinstance(value, dict) else [parsed(x) for x in value]
    return Fraction(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # readers differ in which of two they take
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def shown(value: Fraction | int, up: bool) -> str:  # six digits of what is proved, and so implied by it
    short, exact = f"{float(value):g}", (Decimal(value.numerator), Decimal(value.denominator))
    return short if Fraction(short) == value else f"{Context(6, (ROUND_FLOOR, ROUND_CEILING)[up]).divide(*exact):g}"


def said(value: Any) -> str:  # as it stands
    return ", ".join(said(x) if isinstance(x, dict) else f"{key} {x}" for key, x in value.items())


def whole(value: Any, low: int, high: int) -> int:
    need(type(value) is int and low <= value <= high, f"{value!r} is no integer from {low} to {high}")
    return int(value)


def ball(value: Fraction | int) -> arb:
    need(True)  # looks at the clock
    return arb(fmpq(value.numerator, value.denominator))


def normal(mu: arb, e: arb) -> arb:  # delta of N(mu, 1) against N(0, 1)
    root = arb(2).sqrt()
    return ((e / mu - mu / 2) / root).erfc() / 2 - e.exp() * ((e / mu + mu / 2) / root).erfc() / 2


def ascending(values: list[Any]) -> list[Any]:
    need(0 < len(values) <= 20_000 and all(a < b for a, b in pairwise(values)), "too many numbers, or not ascending")
    return values


class Window:
    """Laws of scores in -W..W: masses in units of 2^-bits, rounded down. A lower score counts as -W; what exceeds W is
    left out. A sum of scores is the same function of the output for every law, and what is left out lies above all."""

    def __init__(self, size: Any, bits: Any) -> None:
        self.size, self.bits = whole(size, 1, MAX_WINDOW), whole(bits, *BITS)

    def floor(self, mass: arb) -> fmpz:
        need(mass.is_finite(), "a mass is not known")
        if not mass.lower() > 0:  # a wide ball may have more digits than there is memory
            return fmpz(0)
        need(mass < 2**16, "a mass is not bounded")
        digits, exponent = mass.lower().man_exp()
        shift = int(exponent) + self.bits
        return digits << shift if shift > 0 else digits >> min(-shift, 10**6)

    def law(self, cells: list[Any], scores: list[int]) -> fmpz_poly:
        total = [fmpz(0)] * (2 * self.size + 1)
        for mass, score in zip(cells, scores, strict=True):
            total[whole(score, -self.size, self.size) + self.size] += self.floor(mass)
        return fmpz_poly(total)

    def summed(self, one: fmpz_poly, other: fmpz_poly) -> fmpz_poly:
        need(True)
        product = one.mul_low(other, 3 * self.size + 1)
        return (product.right_shift(self.size) + product.truncate(self.size)(1)) // (1 << self.bits)

    def composed(self, laws: list[tuple[fmpz_poly, int]]) -> fmpz_poly:  # of the sum of all laws, each so many times
        result = fmpz_poly([0] * self.size + [1 << self.bits])
        for law, count in laws:
            total = law
            for bit in bin(count)[3:]:
                total = self.summed(total, total)
                total = self.summed(total, law) if bit == "1" else total
            result = self.summed(result, total)
        return result

    def masses(self, law: fmpz_poly) -> list[arb]:
        return [arb(x) / (1 << self.bits) for x in law.coeffs() + [fmpz(0)] * (2 * self.size - law.degree())]


class Phase:
    """A phase of the claim: noise (`power` of exp(-(|x|/scale)^power) laws), rate q, steps, longest shift. `mixed`: a
    release has the record or not by chance; `ghost`: others are sampled with it, and it can only be replaced. Of two
    versions the shift is up to 2 clip; when sampled, each is up to a clip from one without the record. A
    hidden scale, where one is looked at, is `given`, or at most `top`."""

    def __init__(self, data: dict[str, Any], replaced: bool) -> None:
        noise, kind, self.rate = data["mechanism"], data["sampling_kind"], data["sampling_prob"] + Fraction(0)
        self.name, self.p, self.n, self.clip = noise["name"], noise["clip_norm"], noise.get("dimension"), noise["clip"]
        need(set(noise) <= {"name", "clip", "clip_norm", "dimension", *NOISE[self.name]}, "a key is not read")
        self.v = {key: ball(noise[key]) for key in NOISE[self.name]}
        self.power: Any = {"gaussian": 2, "laplace": 1, "generalized-gaussian": noise.get("beta")}.get(self.name)
        positive = all(0 < noise[key] < 10**30 for key in [*self.v, "clip"]) and noise.get("k", 1) <= 10**6
        domain = positive and 1 <= (self.power or 1) <= 1000 and (self.p == "inf" or 1 <= self.p <= 1000)
        need({*data} <= {*PHASE.split()}, "a key is not read: other batches have check_sampled_certificate.py")
        known = (kind == "poisson" or (kind, self.rate) == ("none", 1)) and (self.n or "dimension" not in noise)
        need(domain and known and 0 < self.rate <= 1, "a parameter is out of its domain")
        self.mixed, self.ghost, self.reach = self.rate < 1, False, self.clip * (2 if replaced and self.rate == 1 else 1)
        self.exact = self.reach / noise.get("scale", 1) if self.rate == 1 and 1 in (self.p, self.n) else None  # l1
        self.q, self.steps, self.most = ball(self.rate), whole(data["steps"], 1, 10**8), whole(self.n or 1, 1, 10**12)
        self.k, self.theta, self.top, self.given = self.v.get("k", arb(0)), self.v.get("theta", arb(1)), arb(0), arb(0)
        self.scale = self.v.get("scale", arb(2).sqrt() * self.v.get("noise_multiplier", arb(0)) * ball(self.clip))

    def upper(self, x: arb) -> arb:  # P(X > x) of one coordinate, x >= 0
        if self.given > 0:
            return (-self.given * x).exp() / 2
        if self.name in ("gamma-plrv", "gamma-plrv-iid"):
            return (1 + self.theta * x) ** -self.k / 2
        if self.name == "gamma-scale-laplace":
            y = x / self.theta
            return y ** (self.k / 2) * (2 * y.sqrt()).bessel_k(self.k) / self.k.gamma() if y > 0 else arb(1) / 2
        need(self.power, f"{self.name} has no independent coordinates")
        return ((x / self.scale) ** ball(self.power)).gamma_upper(1 / ball(self.power), 1) / 2

    def radius(self, order: int) -> arb:
        growth = Fraction(1, order) - (0 if self.p == "inf" else 1 / Fraction(self.p))
        need(growth <= 0 or self.n, "the dimension is missing")
        return ball(self.reach) * (arb(self.n) ** ball(growth) if growth > 0 else 1)

    def mu(self) -> arb:  # of the Gaussian that dominates: longest shift times slope of the log-density
        slopes = {"gamma-plrv-iid": (self.k + 1) * self.theta, "gamma-scale-laplace": 1 / ((self.k - 2) * self.theta)}
        name = "gamma-plrv-iid" if (self.name, self.n) == ("gamma-plrv", 1) else self.name  # one has its own scale
        slope = slopes.get(name, {1: 1 / self.scale, 2: arb(2).sqrt() / self.scale}.get(self.power, self.top))
        need(slope > 0, "no Gaussian dominates")
        return self.radius(2) * slope

    def log_moment(self, order: int, scales: list[Fraction]) -> arb:  # of that Gaussian; a hidden scale is rounded up
        known, value = self.scale_masses(scales)[:-1] if scales else [arb(1)], arb(0)
        squares = [(ball(u) * self.radius(2)) ** 2 for u in scales] or [self.mu() ** 2]
        for eta in range(order + 2):
            ways = arb.bin_uiui(order + 1, eta) * self.q**eta * (1 - self.q) ** (order + 1 - eta)
            value += ways * sum(m * (x * ball(eta * (eta - 1) // 2)).exp() for m, x in zip(known, squares, strict=True))
        return self.steps * (value / sum(known)).log()

    def scale_masses(self, scales: list[Fraction]) -> list[arb]:  # of its cells; the last is above
        need(self.name == "gamma-plrv" and ascending(scales)[0] > 0, "there is no hidden scale")
        self.top = ball(scales[-1])  # a hidden scale is at most that, but for what is spent
        above = [arb(1), *((ball(u) / self.theta).gamma_upper(self.k, 1) for u in scales), arb(0)]
        return [a - b for a, b in pairwise(above)]

    def scales(self, data: dict[str, Any], count: int) -> Any:
        """A scale u that all coordinates share: nodes log u = log(k theta) + j h, each with weights of the cells of the
        size of g gauges, coordinates that are not moved. At any output the density of log u is a multiple of
        exp(K log u - b u), K = k + coordinates looked at. By Poisson's formula the sum over all j has an error of
        2 sum_n |Gamma(K + 2 pi n/h sqrt(-1))|/Gamma(K) < 2 cos(a)^-K/(e^(2 pi a/h) - 1), 0 < a < pi/2 (Euler's
        integral, its path turned by a), relative to the probability of ANY event. What is left out is positive."""
        h, gauges, sizes = ball(data["step"]), whole(data["gauges"], 0, self.most - count), data["sizes"]
        need(self.name == "gamma-plrv" and h > 0 and (not sizes or ascending(sizes)[0] > 0), "no such nodes")
        order, (first, last) = self.k + gauges + count, (whole(j, -(10**6), 10**6) for j in data["nodes"])
        angle = (2 * arb.pi() / (h * order)).atan()
        sure = h / self.k.gamma() / (1 + 2 * angle.cos() ** -order / (2 * arb.pi() * angle / h).expm1())
        for j in range(first, last + 1):
            ratio = self.k * (j * h).exp()  # u/theta
            self.given = ratio * self.theta
            above = [arb(1), *((self.given * ball(x)).gamma_upper(gauges, 1) for x in sizes), arb(0)]
            yield [sure * ratio**self.k * (-ratio).exp() * (a - b) for a, b in pairwise(above)]
        self.given = arb(0)

    def iid_laws(self, data: dict[str, Any], window: Window) -> list[fmpz_poly]:
        """Laws of a release's label: with the record, without it (low and high)."""
        (shift, count), scale = self.shift(data, self.reach), data.get("scale")
        need(count == 1 or self.name != "gamma-plrv" or scale, "more than one coordinate shares a scale")
        inner, cells = Window(data["window"], window.bits), len(scale["sizes"]) + 1 if scale else 1
        laws = [[fmpz_poly([])] * cells for _ in range(2)]
        for weights in self.scales(scale, count) if scale else [[arb(1)]]:
            for law, centre in zip(laws, (shift, arb(0)), strict=True):
                one = inner.law(self.cells(data, centre), data["scores"])
                sums = inner.composed([(one, 1 if self.power == 2 else count)])  # a Gaussian has l2 norms alone
                law[:] = [x + inner.floor(w) * sums // (1 << inner.bits) for x, w in zip(law, weights, strict=True)]
        moved, plain = (window.law([m for x in law for m in inner.masses(x)], data["labels"]) for law in laws)
        return [moved, plain, plain]

    def shift(self, data: dict[str, Any], reach: Fraction) -> tuple[arb, int]:  # of a coordinate, or l2 norm if normal
        value, count = data["value"], whole(data["count"], 1, self.most)
        fits = self.p == "inf" or count == 1 or count * ball(value / reach) ** ball(self.p) <= 1
        need(0 < value <= reach and fits, "the shift is too long")
        return ball(value) * (arb(count).sqrt() if self.power == 2 else 1), count

    def cells(self, data: dict[str, Any], centre: arb) -> list[arb]:
        away = [ball(e) - centre for e in ascending(data["edges"])]
        tails = [(x < 0, t.union(1 - t) if x.contains(0) else t) for x in away for t in [self.upper(abs(x))]]
        ends = pairwise([(True, arb(0)), *tails, (False, arb(0))])
        return [b - a if right else 1 - a - b if left else a - b for (left, a), (right, b) in ends]

    def radial_tail(self, length: arb, loss: arb, sign: int, places: list[Fraction]) -> tuple[arb, arb]:
        """Bracket of P(L > loss) for sign 1, P(L < -loss) = Q(L > loss) for sign -1; r_P = R, r_Q = rho on the border.
        There t = |log rho/R| is in (0, loss/(n-1)), R^2 = 2 sigma^2 (loss - (n-1) t)/|e^(2 t sign) - 1| falls in t, rho
        and |R^2 - rho^2| grow with R. Places are log odds of t (n-1)/loss; (1 + cosine)/2 has a Beta law."""
        need(self.name == "product" and (self.n or 1) > 1 and loss > 0, "there is no radius")
        n, variance, ends, least, most = self.n, 2 * self.v["sigma"] ** 2, [], arb(0), arb(0)
        for y in map(ball, ascending(places)):  # R, rho, rho^2 - R^2, P(radius > R), P(radius < R)
            gap, t = variance * loss / (1 + y.exp()), loss / (n - 1) / (1 + (-y).exp())
            square = gap / (sign * (2 * sign * t).expm1())
            x = (square / variance).sqrt()
            ends.append([square.sqrt(), (square * (2 * sign * t).exp()).sqrt(), sign * gap, x.erfc(), x.erf()])
        for a, b in pairwise(ends):
            need(ctx.prec <= 256, "so many digits of a Beta law take too long")
            (r, rho, gap), mass = (a[i].union(b[i]) for i in range(3)), b[3] - a[3] if b[3] < 0.5 else a[4] - b[4]
            ts = [(rho**2 - (r - length) ** 2) / (4 * r * length), arb(1) / 2 + (gap - length**2) / (4 * r * length)]
            some = [max(x.lower() for x in ts), min(x.upper() for x in ts)]
            low, high = (x.max(arb(0)).min(arb(1)).beta_lower(arb(n - 1) / 2, arb(n - 1) / 2, 1) for x in some)
            least, most = least + mass * (low if sign < 0 else 1 - high), most + mass * (high if sign < 0 else 1 - low)
        sure = sign > 0 and ends[-1][1] <= length - ends[-1][0]  # no direction leads out of the event
        return least + (ends[-1][4] if sure else 0), most + ends[-1][4] + ends[0][3]

    def radial_laws(self, data: dict[str, Any], window: Window) -> list[fmpz_poly]:
        """The same for two labels, the larger one where the loss exceeds a level."""
        length, level, labels = ball(data["value"]), ball(data["level"]), data["labels"]
        need(0 < data["value"] <= self.reach and labels == sorted(labels), "the shift or the labels are not allowed")
        p, q = (self.radial_tail(length, level, s, at) for s, at in zip((1, -1), data["places"], strict=True))
        return [window.law([1 - x, x], labels) for x in (p[0].lower(), q[0].lower(), q[1].upper())]

    def pair(self, data: dict[str, Any], window: Window, direction: str) -> tuple[Any, int]:
        """Laws of a label under both laws of the pair, and how often it is drawn."""
        need(direction == "remove" or (direction == "add" and self.name != "product"), "the direction is not covered")
        moved, low, high = (self.radial_laws if self.name == "product" else self.iid_laws)(data, window)
        mixed = (window.floor(self.q) * moved + window.floor(1 - self.q) * low) // (1 << window.bits)
        return ((mixed, high) if direction == "remove" else (high, mixed)), self.steps

    def tails(self, edge: int, step: arb) -> list[arb]:  # of N(mu) and of N(0), above the loss edge * step of the mix
        mu, odds = self.mu(), ((edge * step).exp() - (1 - self.q)) / self.q  # e^loss before sampling
        need(odds > 0 or odds <= 0, "an edge is undecided")
        at = [(odds.log() / mu + s * mu / 2) / arb(2).sqrt() for s in (-1, 1)] if odds > 0 else []
        return [x.erfc() / 2 for x in at] or [arb(1), arb(1)]

    def losses(self, edges: list[int], step: arb, window: Window) -> list[fmpz_poly]:
        """Connect-the-dots laws of one release's loss in multiples of step, both directions; the rest is infinite."""
        q, laws, tails = self.q, list[fmpz_poly](), [[arb(1)] * 2, *(self.tails(k, step) for k in ascending(edges))]
        need(self.rate == 1 or tails[1][0] == 1, "the first edge is not below all losses")
        cells = [(a[0] - b[0], a[1] - b[1]) for a, b in pairwise([*tails, [arb(0), arb(0)]])]
        mixed, plain = [q * one + (1 - q) * other for one, other in cells], [other for _, other in cells]
        for p, r, at in ((mixed, plain, edges), (plain[::-1], mixed[::-1], [-k for k in reversed(edges)])):
            inner = list(zip(p[1:], r[1:], pairwise(at), strict=False))
            ups = [(a - b * (low * step).exp()) / -((low - high) * step).expm1() for a, b, (low, high) in inner]
            downs = [cell[0] - up for cell, up in zip(inner, ups, strict=True)]
            laws.append(window.law([p[0], *ups, *downs], [at[0], *at[1:], *at[:-1]]))
        return laws


def event(phases: list[Phase], data: dict[str, Any], direction: str) -> list[arb]:
    """P of {sum of labels >= threshold} from below, Q from above."""
    window = Window(data["window"], data["bits"])
    laws = [phase.pair(part, window, direction) for phase, part in zip(phases, data["phases"], strict=True)]
    start = whole(data["threshold"], -window.size, window.size) + window.size
    first, second = (window.masses(window.composed([(pair[i], n) for pair, n in laws])) for i in (0, 1))
    return [sum(first[start:], arb(0)), 1 - sum(second[:start], arb(0))]


def composed(parts: list[Any], sides: int, e: arb, step: arb, window: Window) -> tuple[arb, Any]:
    """The largest delta of the losses composed in so many directions, and the law of the last; missing is infinite."""
    at, found, law = [k * step for k in range(-window.size, window.size + 1)], arb(0), list[arb]()
    for side in range(sides):
        law = window.masses(window.composed([(pair[side], count) for pair, count in parts]))
        found = found.max(1 - sum(m * (e - x).exp().min(1) for m, x in zip(law, at, strict=True)))
    return found, list(zip(law, at, strict=True))


def certified(kind: str, phases: list[Phase], w: dict[str, Any], replaced: bool, epsilon: Fraction) -> arb:  # >= delta
    first, mixed, gaussian = phases[0], any(x.mixed for x in phases), all(x.power == 2 for x in phases)
    need(not (mixed and replaced), "sampled replace-one has a grid alone, in check_sampled_certificate.py")
    e, order, scales = ball(epsilon), whole(w.get("order", 1), 1, 2000), w.get("scales", [])
    spent = sum((x.steps * x.scale_masses(scales)[-1] for x in phases if scales), arb(0))
    if kind == "gaussian-curve":
        need(not mixed and gaussian, "it takes unsampled Gaussian noise")
        return normal(sum((x.steps * x.mu() ** 2 for x in phases), arb(0)).sqrt(), e)
    if kind == "moments":
        moment = (sum(x.log_moment(order, scales) for x in phases) - order * e).exp()
        return moment * (arb(order) / (order + 1)) ** order / (order + 1) + spent
    if kind in ("gaussian-grid", "smoothed-grid"):
        step, window = ball(w["step"]), Window(w["window"], w["bits"])
        need(step > 0 and (gaussian or kind == "smoothed-grid"), "it takes Gaussian noise and a grid")
        parts = [(x.losses(edges, step, window), x.steps) for x, edges in zip(phases, w["edges"], strict=True)]
        found, law = composed(parts, 1 + (mixed and gaussian), e, step, window)
        return found if gaussian else smoothed(law, e, phases, w) + spent
    alone = len(phases) == first.steps == first.rate == 1
    if kind == "pure-laplace":  # amplified and added up; of one release its curve
        need(all(x.power == 1 for x in phases), "the noise is not Laplace")
        rest = [x.steps * (1 + x.q * (x.radius(1) / x.scale).expm1()).log() for x in phases if x.exact is None]
        left = ball(epsilon - sum(x.steps * (x.exact or 0) for x in phases)) - sum(rest, arb(0))
        return arb(0).max(-(left / 2).expm1()) if alone else arb(0 if left >= 0 else 1)
    need(kind == "one-dimensional" and alone and first.n == 1 and "beta" in first.v, "this kind does not apply")
    low, high, shift, beta = (*(ball(w[key]) for key in ("low", "high")), ball(first.reach), first.v["beta"])
    loss = [(t / first.scale) ** beta - (abs(t - shift) / first.scale) ** beta for t in (low, high)]  # grows in t
    need(0 < low < high and loss[0] <= e <= loss[1], "the loss does not pass epsilon in between")
    return (first.upper(low - shift) if low >= shift else 1 - first.upper(shift - low)) - e.exp() * first.upper(high)


def smoothed(law: list[tuple[arb, arb]], e: arb, phases: list[Phase], w: dict[str, Any]) -> arb:
    """c times the integral over y > e - width of (1 - e^(e - width - y)) times the Gaussian's delta(y), where c has
    e^t - e^width <= c ((e^t + 1) t - 2 (e^t - 1)) for t > width: both sides grow, the right one beyond e^t (t - 2)."""
    width, end, order, cost = ball(w["width"]), ball(w["end"]), int(w["order"]), arb(0)
    low, t = e - width, width
    need(0 < width <= e and low < end, "the width is not allowed")
    while not (cost > 0 and t > 2 + 1 / cost):
        after = ball(Fraction(251, 250)) * t.mid()
        cost, t = cost.max((after.exp() - width.exp()) / ((t.exp() + 1) * t - 2 * t.expm1())).upper(), after
    near = sum(m * ((x - low) * (1 + (low - x).exp()) + 2 * (low - x).expm1()) for m, x in law if not x <= low)
    rest = (sum(x.log_moment(order, []) for x in phases) - order * end).exp() / order  # beyond the end
    return cost * (near + (1 - sum(m for m, _ in law)) * (end - low) + rest)


def accepted(text: str, phase: Any = Phase, bound: Any = certified) -> str:
    """What is proved, in one line. AssertionError: nothing; another exception: this is no certificate."""
    deadline[0] = time.monotonic() + SECONDS
    data = parsed(raw := json.loads(text, parse_float=str, object_pairs_hook=table))
    claim, verdict, kind, inputs = data["claim"], data["verdict"], data["kind"], data.get("event") or data["inputs"]
    ctx.prec = max(128, whole(inputs.get("bits", BITS[0]), *BITS))
    if data["format"] != FORMAT or claim["adjacency"] not in ("add-remove", "zero-out", "replace-one"):
        raise ValueError("the format or the adjacency is not known")
    replaced, epsilon, delta = claim["adjacency"] == "replace-one", claim["epsilon"], claim["delta"]
    need({*claim} <= {*CLAIM.split()}, "a key is not read")
    phases = [phase(x, replaced) for x in claim["phases"][:9]]
    need(0 < len(phases) <= 8 and 0 <= epsilon < 10**5 and 0 <= delta < 1, "epsilon, delta or phases are not allowed")
    if verdict == "refuted" and kind == "integer-score-event":
        low, high = ball(data["P_lower"]), ball(data["Q_upper"])
        need(low - ball(epsilon).exp() * high > ball(delta), "the event does not contradict the claim")
        p, q = event(phases, inputs, data["pair"]["direction"])
        need(low <= p and high >= q, "the event's probabilities are not those stated")
        proof, up = f"an event with P >= {shown(data['P_lower'], False)} and Q <= {shown(data['Q_upper'], True)}", False
    else:
        need(verdict == "certified", "this kind does not prove this verdict")
        small = (stated := data["steps"][-1]["at_most"]) <= delta  # first, as the bound may take long
        need(small and bound(kind, phases, inputs, replaced, epsilon) <= ball(stated), "a bound is exceeded")
        proof, up = f"delta <= {shown(stated, True)} by {kind}", True
    meant = "zero-out" if any(x.ghost for x in phases) and not replaced else claim["adjacency"]
    noise = "; ".join(said(x) for x in raw["claim"]["phases"])
    return f"{verdict}: ({shown(epsilon, up)}, {shown(delta, up)}) under {meant} of {noise}: {proof}"


def main(paths: list[str] | None = None, check: Any = accepted) -> int:
    status = 0 if (files := sys.argv[1:] if paths is None else paths) else 2
    if not files or files[0] in ("-h", "--help"):
        told("usage: dpaudit-check CERTIFICATE...", sys.stdout if files else sys.stderr)
        return status
    for path in files:
        try:
            with open(path, encoding="utf-8") as file:  # a longer one gets a bracket, and so is no JSON
                line, stream = f"accepted {check(file.read(MAX_BYTES) + ']' * len(file.read(1)))}", sys.stdout
        except Exception as error:
            status, how = (3, "refused") if isinstance(error, AssertionError) else (max(status, 2), "not a certificate")
            line, stream = f"{how}: {type(error).__name__} {str(error)[:200]!r}", sys.stderr
        told(f"{path if path.isprintable() else ascii(path)}: {line}", stream)  # a name may hold lines
    return status


if __name__ == "__main__":
    sys.exit(main())
