"""An independent checker of certificates, format "dpaudit-certificate/1", in ball arithmetic.

Every number is computed again from claim and witness, with an error bound (python-flint's `arb`); only what is proved
is accepted. Exit status: 0 accepted, 3 one was refused, 2 one is no certificate or python-flint is missing.
"""

import heapq
import json
import re
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

try:
    from flint import arb, arb_poly, ctx, fmpq
except ImportError:
    print("dpaudit-check: expected python-flint to be installed: pip install python-flint", file=sys.stderr)
    raise SystemExit(2) from None

FORMAT, PRECISION, SECONDS, MAX_BYTES, MAX_WINDOW = "dpaudit-certificate/1", 128, 300, 2**23, 2**16
NUMBER = re.compile(r"-?\d{1,60}(\.\d{1,60})?(e[+-]?\d{1,3})?|-?\d{1,60}/[1-9]\d{0,59}")
NOISE = {"gaussian": {"noise_multiplier"}, "laplace": {"scale"}, "generalized-gaussian": {"beta", "scale"}}
NOISE |= {f"gamma-{x}": {"k", "theta"} for x in ("plrv", "plrv-iid", "scale-laplace")} | {"product": {"sigma"}}
deadline = [0.0]


class Refused(Exception):
    """The certificate does not prove its verdict."""


def need(condition: Any, reason: str = "") -> None:
    if not condition or time.monotonic() > deadline[0]:
        raise Refused(reason if not condition else f"it takes more than {SECONDS} seconds")


def parsed(value: Any) -> Any:  # strings that are numbers as exact fractions
    if isinstance(value, (dict, list)):
        return {k: parsed(x) for k, x in value.items()} if isinstance(value, dict) else [parsed(x) for x in value]
    return Fraction(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def whole(value: Any, low: int, high: int) -> int:
    need(type(value) is int and low <= value <= high, f"{value!r} is no integer from {low} to {high}")
    return int(value)


def ball(value: Fraction | int) -> arb:
    need(True)  # looks at the clock
    return arb(fmpq(value.numerator, value.denominator))


def added(values: Any) -> arb:
    return sum(values, arb(0))


def ascending(values: list[Any], most: int = 20_000) -> list[Any]:
    need(0 < len(values) <= most and all(a < b for a, b in pairwise(values)), "numbers are too many or do not ascend")
    return values


class Phase:
    """A phase of the claim: noise, rate q, steps, and the longest shift under the adjacency."""

    def __init__(self, data: dict[str, Any], replaced: bool) -> None:
        noise, kind, self.q = data["mechanism"], data["sampling_kind"], data["sampling_prob"] + Fraction(0)
        self.name, self.p, self.n, clip = noise["name"], noise["clip_norm"], noise.get("dimension"), noise["clip"]
        given = {key: noise[key] for key in NOISE[self.name]}
        least, norm, beta = 2 if self.name == "gamma-scale-laplace" else 0, self.p, given.get("beta")
        need(least < given.get("k", 3) <= 10**6 and 1 <= (beta or 1) <= 1000, "a shape is out of its domain")
        domain = all(0 < value < 10**30 for value in [clip, *given.values()]) and (norm == "inf" or 1 <= norm <= 1000)
        need(domain, "a parameter is out of its domain")
        need(0 < self.q <= 1 and (kind == "poisson" or (kind == "none" and self.q == 1)), "sampling is not covered")
        self.steps, _ = whole(data["steps"], 1, 10**8), self.n is None or whole(self.n, 1, 10**12)
        # between two versions the shift is up to 2 clip; when sampled, one that contributes nothing is a version
        self.longest, self.reach = clip * (1 + replaced), clip * (1 + (replaced and self.q == 1))
        self.v = v = {key: ball(value) for key, value in given.items()}
        self.laplace, normal = self.name == "laplace" or beta == 1, v["scale"] / arb(2).sqrt() if beta == 2 else None
        self.sigma = v["noise_multiplier"] * ball(clip) if self.name == "gaussian" else normal

    def upper(self, x: arb) -> arb:  # P(X > x) of one coordinate, x >= 0
        v = self.v
        if self.sigma is not None:
            return (x / (self.sigma * arb(2).sqrt())).erfc() / 2
        if self.name == "gamma-plrv-iid":
            return (1 + v["theta"] * x) ** -v["k"] / 2
        if self.name == "gamma-scale-laplace":
            y = x / v["theta"]
            return y ** (v["k"] / 2) * (2 * y.sqrt()).bessel_k(v["k"]) / v["k"].gamma() if y > 0 else arb(1) / 2
        need("scale" in v, f"{self.name} has no independent coordinates")
        return ((x / v["scale"]) ** v.get("beta", 1)).gamma_upper(1 / v.get("beta", arb(1)), 1) / 2

    def radius(self, order: int) -> arb:
        growth = Fraction(1, order) - (0 if self.p == "inf" else 1 / Fraction(self.p))
        need(growth <= 0 or self.n, "the dimension is missing")
        return ball(self.longest) * (arb(self.n) ** ball(growth) if growth > 0 else 1)

    def mu(self) -> arb:
        """Shift over sigma of the dominating Gaussian; for a Lipschitz log-density, radius times slope."""
        v, longest = self.v, self.radius(2)
        if self.name == "gamma-plrv-iid":
            return longest * (v["k"] + 1) * v["theta"]
        if self.name == "gamma-scale-laplace":
            return longest / ((v["k"] - 2) * v["theta"])
        need(self.sigma is not None or self.laplace, "no Gaussian dominates")
        return longest / (v["scale"] if self.sigma is None else self.sigma)

    def scale_masses(self, scales: list[Fraction]) -> list[arb]:  # of its cells; the last is above
        need(self.name == "gamma-plrv" and ascending(scales, 400)[0] > 0, "there is no hidden scale")
        above = [arb(1), *((ball(u) / self.v["theta"]).gamma_upper(self.v["k"], 1) for u in scales), arb(0)]
        return [a - b for a, b in pairwise(above)]


def summed(one: arb_poly, other: arb_poly, window: int, keep: bool) -> arb_poly:
    """Law of a sum of scores in -W..W: lower ones count as -W, higher ones as W, or are left out."""
    need(0 < window <= MAX_WINDOW, "a window is too large")
    product = one * other
    middle = product.right_shift(window).truncate(2 * window + 1) + arb_poly([product.truncate(window)(1)])
    return middle + keep * arb_poly([product.right_shift(3 * window + 1)(1)]).left_shift(2 * window)


def composed(laws: list[tuple[arb_poly, int]], window: int, keep: bool = True) -> list[tuple[int, arb]]:
    """(score, mass) of the sum of all laws, each so many times: the same function of the output for every law."""
    result = arb_poly([0] * window + [1])
    for law, count in laws:
        total = law
        for bit in bin(count)[3:]:
            total = summed(total, total, window, keep)
            total = summed(total, law, window, keep) if bit == "1" else total
        result = summed(result, total, window, keep)
    return list(enumerate(result.coeffs(), -window))


def scored(cells: Sequence[arb], scores: Sequence[int], window: int) -> arb_poly:
    total = [arb(0)] * (2 * whole(window, 1, MAX_WINDOW) + 1)
    need(len(scores) >= len(cells), "a cell has no score")
    for mass, score in zip(cells, scores, strict=False):
        total[whole(score, -window, window) + window] += mass
    return arb_poly(total)


def iid_laws(phase: Phase, data: dict[str, Any], labels: list[int], window: int) -> list[arb_poly]:
    """Laws of a release's label: with the record (low), without it (low and high)."""
    value, count, edges = data["value"], whole(data["count"], 1, 2**24), ascending(data["edges"])
    need(0 < value <= phase.reach and count <= (phase.n or 1), "the shift is not feasible")
    need(phase.p == "inf" or count == 1 or count * ball(value / phase.reach) ** ball(phase.p) <= 1, "shift is too long")
    shift, scores, inner = ball(value), data["scores"], data["window"]
    if phase.sigma is not None and count > 1:  # by rotation only the l2 norm counts
        shift, count = shift * arb(count).sqrt(), 1

    def law(centre: arb, rate: arb | None = None) -> arb_poly:
        away = [(ball(e) < centre, abs(ball(e) - centre)) for e in edges]
        tails = [(left, phase.upper(x) if rate is None else (-rate * x).exp() / 2) for left, x in away]
        cells = [tails[0][1] if tails[0][0] else 1 - tails[0][1]]
        for (left, a), (right, b) in pairwise(tails):
            cells.append(b - a if right else 1 - a - b if left else a - b)
        cells.append(1 - tails[-1][1] if tails[-1][0] else tails[-1][1])
        sums = composed([(scored(cells, scores, inner), count)], inner)
        return scored([mass for _, mass in sums], labels, window)

    if phase.name != "gamma-plrv":
        return [law(shift), law(arb(0)), law(arb(0))]
    # edges between the centres: the label grows with the hidden scale under the shift, and falls without it
    need(edges[0] >= 0 and edges[-1] <= value and scores == sorted(scores) and labels == sorted(labels), "no order")
    chances = phase.scale_masses(data["scales"])
    laws = [arb_poly([chances[0]]), arb_poly([chances[-1]]), arb_poly([chances[0]]).left_shift(2 * window)]
    for below, scale, above in zip(chances, data["scales"], chances[1:], strict=False):
        plain = law(arb(0), ball(scale))
        laws = [laws[0] + above * law(shift, ball(scale)), laws[1] + below * plain, laws[2] + above * plain]
    return laws


def angle(t: arb, n: int) -> arb:
    """P((1 + W)/2 < t), W one coordinate of a uniform direction in n dimensions."""
    if t <= 0 or t >= 1:
        return arb(int(bool(t >= 1)))
    w, a, rest, some = 2 * t - 1, arb(n - 1) / 2, 4 * t * (1 - t), arb(0).union(arb(1))
    if w * w * a > 100:  # P(W > w) <= (1 - w^2)^a/2
        return (arb(0) if w < 0 else arb(1)).union((arb(0) if w < 0 else arb(1)) - w.sgn() * (-w * w * a).exp())
    scale = w * ((a + arb(1) / 2).lgamma() - a.lgamma()).exp() / arb.pi().sqrt()
    found = arb(1) / 2 + scale * rest ** (a - 1) * (-w * w / rest).hypgeom_2f1(1, 1 - a, arb(3) / 2)
    return found.intersection(some) if found.is_finite() else some


def radial_tail(phase: Phase, length: arb, loss: arb, sign: int, cells: int) -> arb:
    """Ball around P(L > loss) for sign 1, P(L < -loss) = Q(L > loss) for sign -1; r_P = R, r_Q = rho on the border.

    t = |log rho/R| is in (0, loss/(n-1)) there, R^2 = 2 sigma^2 (loss - (n-1) t)/|e^(2 t sign) - 1| falls in t, and rho
    and |R^2 - rho^2| grow with R."""
    need(phase.name == "product" and (phase.n or 1) > 1 and loss > 0, "there is no radius")
    n, variance = phase.n, 2 * phase.v["sigma"] ** 2

    def border(y: float) -> list[arb]:  # R, rho, rho^2 - R^2, P(radius > R), P(radius < R); t (n-1)/loss has log odds y
        gap, t = variance * loss / (1 + arb(y).exp()), loss / (n - 1) / (1 + arb(-y).exp())
        square = gap / (sign * (2 * sign * t).expm1())
        x = (square / variance).sqrt()
        return [square.sqrt(), (square * (2 * sign * t).exp()).sqrt(), sign * gap, x.erfc(), x.erf()]

    def cell(y: float, z: float, a: list[arb], b: list[arb]) -> tuple[Any, ...]:  # first its part of the gap
        (r, rho, gap), mass = (a[i].union(b[i]) for i in range(3)), b[3] - a[3] if b[3] < 0.5 else a[4] - b[4]
        ts = [(rho**2 - (r - length) ** 2) / (4 * r * length), arb(1) / 2 + (gap - length**2) / (4 * r * length)]
        low, high = angle(max(x.lower() for x in ts), n), angle(min(x.upper() for x in ts), n)
        low, high = (low, high) if sign < 0 else (1 - high, 1 - low)
        need(True)
        return -float((mass * (high - low)).upper()), y, z, a, b, mass * low, mass * high

    end = float(arb(n).log()) + 160
    ys = [-60 + (end + 60) * i / 64 for i in range(65)]
    ends = [border(y) for y in ys]
    heap = [cell(ys[i], ys[i + 1], ends[i], ends[i + 1]) for i in range(64)]
    heapq.heapify(heap)
    for _ in range(cells):
        _, y, z, a, b, *_ = heap[0]
        if not y < (y + z) / 2 < z:  # doubles end here
            break
        between = border((y + z) / 2)
        heapq.heappop(heap)
        heapq.heappush(heap, cell(y, (y + z) / 2, a, between))
        heapq.heappush(heap, cell((y + z) / 2, z, between, b))
    sure = sign > 0 and ends[-1][1] <= length - ends[-1][0]  # no direction leads out of the event
    low = added(c[5] for c in heap) + (ends[-1][4] if sure else 0)
    return low.union(added(c[6] for c in heap) + ends[-1][4] + ends[0][3])


def radial_laws(phase: Phase, data: dict[str, Any], labels: list[int], window: int) -> list[arb_poly]:
    """The same for cells of the loss between -l_r, ..., -l_1, l_1, ..., l_r: the extreme laws that fit their tails."""
    levels, length, cells = ascending(data["levels"], 200), data["value"], whole(data["cells"], 1, 5000)
    need(labels == sorted(labels) and 0 < length <= phase.reach and levels[0] > 0, "shift or labels are not allowed")
    up, down = ([radial_tail(phase, ball(length), ball(x), sign, cells) for x in levels] for sign in (1, -1))
    laws = []
    for above, below, low in ((up, down, True), (down, up, True), (down, up, False)):
        bounds = [arb(0)]
        for x in [*reversed(above), *(1 - x for x in below)]:
            bounds.append(max(bounds[-1], x.lower() if low else min(x.upper(), arb(1))))
        laws.append(scored([a - b for a, b in pairwise([arb(1), *reversed(bounds)])], labels, window))
    return laws


def event(phases: list[Phase], data: dict[str, Any], direction: str) -> list[arb]:
    """P of {sum of labels >= threshold} from below, Q from above."""
    window, sides = whole(data["window"], 1, MAX_WINDOW), list[list[tuple[arb_poly, int]]]([[], []])
    need(direction in ("remove", "add") and len(phases) == len(data["phases"]), "the pair does not fit the claim")
    for phase, part in zip(phases, data["phases"], strict=True):
        moved, low, high = (radial_laws if phase.name == "product" else iid_laws)(phase, part, part["labels"], window)
        need(direction == "remove" or phase.name not in ("product", "gamma-plrv"), "direction add is not covered")
        pair = (ball(phase.q) * moved + ball(1 - phase.q) * low, high)
        for side, law in zip(sides, pair if direction == "remove" else pair[::-1], strict=True):
            side.append((law, phase.steps))
    start = whole(data["threshold"], -window, window)
    return [added(m for k, m in composed(side, window) if k >= start) for side in sides]


def pair_laws(phase: Phase, edges: list[int], step: arb, window: int) -> list[arb_poly]:
    """Connect-the-dots laws of one release's loss in multiples of step, both directions; the rest is infinite."""
    mu, q, tails, laws = phase.mu(), ball(phase.q), [[arb(1), arb(1)]], []
    for edge in ascending([whole(k, -window, window) for k in edges]):
        odds = ((edge * step).exp() - (1 - q)) / q  # e^loss before sampling
        need(odds > 0 or odds <= 0, "an edge is undecided")
        at = [(odds.log() / mu + s * mu / 2) / arb(2).sqrt() for s in (-1, 1)] if odds > 0 else []
        tails.append([x.erfc() / 2 for x in at] or [arb(1), arb(1)])
    need(phase.q == 1 or tails[1][0] == 1, "the first edge is not below all losses")
    cells = list(pairwise([*tails, [arb(0), arb(0)]]))
    plain = [a[1] - b[1] for a, b in cells]
    mixed = [q * (a[0] - b[0]) + (1 - q) * m for (a, b), m in zip(cells, plain, strict=True)]
    for p, r, at in ((mixed, plain, edges), (plain[::-1], mixed[::-1], [-k for k in reversed(edges)])):
        total = [arb(0)] * (2 * window + 1)
        total[at[0] + window] += p[0]
        for a, b, (low, high) in zip(p[1:], r[1:], pairwise(at), strict=False):
            up = (a - b * (low * step).exp()) / -((low - high) * step).expm1()
            total[high + window] += up
            total[low + window] += a - up
        laws.append(arb_poly(total))
    return laws


def alpha(phases: list[Phase], order: int, scales: list[Fraction]) -> arb:
    """Moments of whole order of the Gaussians that dominate, a hidden scale being shown and rounded up."""
    total = arb(0)
    for phase in phases:
        known, value = phase.scale_masses(scales)[:-1] if scales else [arb(1)], arb(0)
        squares = [(ball(u) * phase.radius(2)) ** 2 for u in scales] or [phase.mu() ** 2]
        for eta in range(order + 2):
            ways = arb.bin_uiui(order + 1, eta) * ball(phase.q) ** eta * ball(1 - phase.q) ** (order + 1 - eta)
            value += ways * added(m * (x * eta * (eta - 1) / 2).exp() for m, x in zip(known, squares, strict=True))
        total += phase.steps * (value / added(known)).log()
    return total


def certified(kind: str, phases: list[Phase], w: dict[str, Any], replaced: bool, e: arb) -> arb:  # bound on delta
    first, sampled = phases[0], any(phase.q < 1 for phase in phases)
    need(not (sampled and replaced), "sampled replace-one is not covered")
    if kind == "gaussian-curve":
        mu, root = added(x.steps * x.mu() ** 2 for x in phases).sqrt(), arb(2).sqrt()
        need(not sampled and all(x.sigma is not None for x in phases), "it takes unsampled Gaussian noise")
        return ((e / mu - mu / 2) / root).erfc() / 2 - e.exp() * ((e / mu + mu / 2) / root).erfc() / 2
    if kind == "gaussian-grid":
        step, window, found = ball(w["step"]), whole(w["window"], 1, MAX_WINDOW), arb(0)
        need(step > 0 and all(x.sigma is not None for x in phases), "it takes Gaussian noise and a grid")
        parts = [pair_laws(x, edges, step, window) for x, edges in zip(phases, w["edges"], strict=True)]
        for side in range(1 + sampled):
            sums = composed([(part[side], x.steps) for part, x in zip(parts, phases, strict=True)], window, False)
            found = found.max(1 - added(m * (e - k * step).exp().min(1) for k, m in sums))  # missing is infinite
        return found
    if kind == "moments":
        order, scales = whole(w["order"], 1, 2000), w.get("scales", [])
        spent = added(x.steps * x.scale_masses(scales)[-1] for x in phases) if scales else arb(0)
        factor = (arb(order) / (order + 1)) ** order / (order + 1)
        return (alpha(phases, order, scales) - order * e).exp() * factor + spent
    need(len(phases) == first.steps == first.q == 1, "it takes one unsampled release")
    if kind == "pure-laplace":
        need(first.laplace, "the noise is not Laplace")
        return arb(0).max(-((e - first.radius(1) / first.v["scale"]) / 2).expm1())
    need(kind == "one-dimensional" and first.n == 1 and "beta" in first.v, "this kind is not known, or does not apply")
    low, high, shift, scale = (*(ball(w[key]) for key in ("low", "high")), ball(first.longest), first.v["scale"])
    loss = [(t / scale) ** first.v["beta"] - ((t - shift) / scale) ** first.v["beta"] for t in (low, high)]
    need(shift < low < high and loss[0] <= e <= loss[1], "the loss does not pass epsilon in between")
    return first.upper(low - shift) - e.exp() * first.upper(high)


def accepted(text: str) -> str:  # in one line; `Refused`: nothing is proved; another exception: no certificate
    ctx.prec, deadline[0] = PRECISION, time.monotonic() + SECONDS
    data = parsed(json.loads(text, parse_float=str))
    claim, verdict, kind = data["claim"], data["verdict"], data["kind"]
    if data["format"] != FORMAT or claim["adjacency"] not in ("add-remove", "replace-one"):
        raise ValueError("the format or the adjacency is not known")
    replaced, epsilon, delta = claim["adjacency"] == "replace-one", claim["epsilon"], claim["delta"]
    phases = [Phase(phase, replaced) for phase in claim["phases"][:9]]
    need(0 < len(phases) <= 8 and 0 <= epsilon < 10**5 and 0 <= delta < 1, "epsilon, delta or phases are not allowed")
    if verdict == "refuted" and kind == "integer-score-event":
        p, q = event(phases, data["event"], data["pair"]["direction"])
        low, high = ball(data["P_lower"]), ball(data["Q_upper"])
        need(low <= p and high >= q, "the event's probabilities are not those stated")
        need(low - ball(epsilon).exp() * high > ball(delta), "the event does not contradict the claim")
        proof = f"an event with P >= {float(low):.6g} and Q <= {float(high):.6g}"
    else:
        need(verdict == "certified", "this kind does not prove this verdict")
        bound, stated = certified(kind, phases, data["inputs"], replaced, ball(epsilon)), data["steps"][-1]["at_most"]
        need(bound <= ball(stated) and stated <= delta, "the bound exceeds what is stated, or that exceeds delta")
        proof = f"delta <= {float(stated):.6g} by {kind}"
    return f"{verdict}: ({float(epsilon):g}, {float(delta):g}) of {phases[0].name}: {proof}"


def main(paths: Sequence[str] | None = None) -> int:
    status = 0 if (files := sys.argv[1:] if paths is None else paths) else 2
    for path in files:
        try:
            with open(path, encoding="utf-8") as file:
                print(f"{path}: accepted {accepted(file.read(MAX_BYTES))}")  # a longer file is cut, and so no JSON
        except Exception as error:
            code, what = (3, "refused") if isinstance(error, Refused) else (2, "not a certificate")
            status = max(status, code)
            print(f"{path}: {what}: {type(error).__name__} {str(error)[:200]!r}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
