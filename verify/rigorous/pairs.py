"""Upper bounds from a dominating pair: connect-the-dots masses in balls, sampled, composed, with what is high infinite.

A cell of losses (lo, hi] with masses A (first law) and B (second) is dominated by atoms at lo and hi with the same two
masses: up = (A - B e^lo)/(1 - e^-(hi-lo)) at hi and A - up at lo (Doroshenko et al. 2022, Theorem 4.3). Sampling acts
on both masses before (Zhu, Dong and Wang 2022, Theorem 11), composition adds losses (their Theorem 10). Below the
window losses are rounded up to its end; what is above it, and what rounding takes, is infinite.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from operator import add

from flint import arb, fmpz_poly

from dpaudit.verify.rigorous.balls import ball
from dpaudit.verify.rigorous.gaussian import normal_tail
from dpaudit.verify.rigorous.scores import ScoreWindow, resolution

WIDEST = 2**16
FINE = {False: 60.0, True: 25.0}  # grid steps in a standard deviation of a step's loss; coarser for long histories
REACH = 9.0
LONG = 3000
NODES = 400

Tails = Callable[[arb], tuple[arb, arb]]  # loss -> P(L > loss), Q(L > loss)


@dataclass(frozen=True)
class PairRelease:
    """`steps` releases of a pair under Poisson sampling, or of one that is sampled already.

    Args:
        tails: Exact tails of the unsampled loss.
        largest: The loss is in [-largest, largest]; inf for a Gaussian.
        spread: Standard deviation of the unsampled loss, roughly: for the grid only.
        sampling_prob: q, as written.
        steps: How many.
        replaced: The tails are those of the sampled loss, of a pair that is its own mirror image (`replaced_tails`).
        fixed: They are those of a batch of fixed size (`fixed_size_tails`), under replace-one their own mirror image.
        chance: The probability of this kind, where a release is of one of several, which is told.
        again: Whether it is another kind of the releases before it.
    """

    tails: Tails
    largest: float
    spread: float
    sampling_prob: float
    steps: int
    replaced: bool = False
    fixed: bool = False
    chance: arb | None = None
    again: bool = False

    @property
    def expected(self) -> float:
        """How many releases of this kind there are, roughly."""
        return self.steps * (1.0 if self.chance is None else float(self.chance))

    @property
    def drawn(self) -> bool:
        """Whether the tails are those of the sampled loss."""
        return self.replaced or self.fixed


def gaussian_tails(mu: arb) -> Tails:
    """N(mu, 1) against N(0, 1): L is N(mu^2/2, mu^2) under P, N(-mu^2/2, mu^2) under Q."""
    return lambda loss: (normal_tail(loss / mu - mu / 2), normal_tail(loss / mu + mu / 2))


def replaced_tails(mu: arb, q: arb) -> Tails:
    """(1 - q) N(0) + q N(mu) against (1 - q) N(0) + q N(-mu), the worst pair of a sampled record that is replaced.

    Proof: `verify/upper/sampled_normal.py`. With u = e^(mu x) and c = q e^(-mu^2/2) the loss at x is l where
    1 - q + c u = e^l (1 - q + c/u), hence c u^2 - (1 - q) (e^l - 1) u - e^l c = 0. It grows in x, and is odd.
    """
    c = q * (-mu * mu / 2).exp()

    def tails(loss: arb) -> tuple[arb, arb]:
        size = abs(loss)
        linear = (1 - q) * size.expm1()
        x = ((linear + (linear * linear + 4 * c * c * size.exp()).sqrt()) / (2 * c)).log() / mu
        x = x if loss >= 0 else -x
        still, near, far = (normal_tail(x - k * mu) for k in (0, 1, -1))
        return (1 - q) * still + q * near, (1 - q) * still + q * far

    return tails


def fixed_size_tails(mu: arb, g: arb, *, swaps: bool) -> Tails:
    """The worst losses of a batch of fixed size that holds the record with probability g.

    Proof: `verify/upper/sampled_normal.py`. At losses of at least 0 the pair is (1 - g) N(0) + g N(2 mu), against N(0)
    under replace-one and (1 - g) N(0) + g N(mu) under zero-out; there u = e^(mu x) has g e^(-2 mu^2) u^2 - e^l g
    e^(-mu^2/2) u - (e^l - 1)(1 - g) = 0 at the loss l. Below 0 they follow by the mirror rule from the other order:
    P(L > -l) = 1 - Q'(L > l), Q(L > -l) = 1 - P'(L > l), under zero-out of (1 - g) N(0) + g N(mu) against N(0).
    """

    def present(shift: arb, loss: arb) -> tuple[arb, arb]:
        x = ((loss.exp() - (1 - g)) / g).log() / shift + shift / 2
        return (1 - g) * normal_tail(x) + g * normal_tail(x - shift), normal_tail(x)

    def moved(loss: arb) -> tuple[arb, arb]:
        square, linear = g * (-2 * mu * mu).exp(), loss.exp() * g * (-mu * mu / 2).exp()
        u = (linear + (linear * linear + 4 * square * loss.expm1() * (1 - g)).sqrt()) / (2 * square)
        x = u.log() / mu
        return (1 - g) * normal_tail(x) + g * normal_tail(x - 2 * mu), (1 - g) * normal_tail(x) + g * normal_tail(
            x - mu
        )

    def tails(loss: arb) -> tuple[arb, arb]:
        if loss >= 0:
            return present(2 * mu, loss) if swaps else moved(loss)
        first, second = present(2 * mu if swaps else mu, -loss)
        return 1 - second, 1 - first

    return tails


def laplace_tails(shift: arb) -> Tails:
    """Lap(1) moved by `shift` against Lap(1), with atoms at both ends of [-shift, shift]."""

    def tails(loss: arb) -> tuple[arb, arb]:
        if loss >= shift:
            return arb(0), arb(0)
        if loss < -shift:
            return arb(1), arb(1)
        return 1 - ((loss - shift) / 2).exp() / 2, (-(loss + shift) / 2).exp() / 2

    return tails


@dataclass(frozen=True)
class Grid:
    """Losses are multiples of step, folded to -window..window; edges of a phase's cells are whole multiples.

    Args:
        step: A decimal.
        window: Whole.
        bits: Masses are multiples of 2^-bits.
        edges: Of every phase, ascending; with sampling the first is at or below log(1 - q).
    """

    step: str
    window: int
    bits: int
    edges: tuple[tuple[int, ...], ...]


def chosen_grid(releases: Sequence[PairRelease], epsilon: float, delta: float, finer: float = 1.0) -> Grid:
    """A grid that is fine against a step's loss and holds the history's: a choice, no part of the proof.

    Args:
        releases: The history.
        epsilon, delta: Where the bound matters.
        finer: Factor on the number of steps in a standard deviation.
    """
    steps = sum(one.steps for one in releases if not one.again)
    tail = max(min(delta, 1e-3) * 1e-4 / steps, 1e-60)
    looks = [_look(one, tail) for one in releases]
    variance = sum(one.expected * look[1] for one, look in zip(releases, looks, strict=True))
    mean = sum(one.expected * look[0] for one, look in zip(releases, looks, strict=True))
    smallest = min(math.sqrt(look[1]) for look in looks)
    fine = FINE[steps > LONG] * finer
    tops = [look[2] for look in looks]
    needed = max(mean + REACH * math.sqrt(variance) + max(tops) * (steps <= LONG), 1.2 * epsilon + 2.0 * max(tops))
    needed = max(needed, *(-1.01 * _bottom(one) for one in releases))
    step = max(smallest / (fine if steps > 1 else 6 * fine), needed / (WIDEST // 2))
    text = f"{step:.6g}"
    window = min(WIDEST, math.ceil(needed / float(text)) + 2)
    edges = tuple(_edges(one, top, float(text), window) for one, top in zip(releases, tops, strict=True))
    return Grid(text, window, resolution(delta), edges)


def _look(one: PairRelease, tail: float) -> tuple[float, float, float]:
    """(mean, variance, largest worthwhile value) of a sampled release's loss, in floating point."""
    q, m = one.sampling_prob, one.spread
    if math.isinf(one.largest):
        reach = 1.0
        while 0.5 * math.erfc(reach / math.sqrt(2)) * q > tail:
            reach += 0.25
        xs = [-reach + 2 * reach * (i + 0.5) / NODES for i in range(NODES)]
        weights = [math.exp(-x * x / 2) for x in xs]
        losses = [m * x - m * m / 2 for x in xs]
        top = m * reach + m * m / 2
        if one.replaced and not one.fixed:
            top, losses = _replaced(reach + m, m, q), [_replaced(x, m, q) for x in xs]
    else:
        losses, weights, top = [one.largest, -one.largest], [1.0, math.exp(min(one.largest, 500.0))], one.largest
    known = one.replaced and not one.fixed
    sampled = losses if known else [_sampled(x, q) for x in losses]
    mean = sum(w * x for w, x in zip(weights, sampled, strict=True)) / sum(weights)
    spread = sum(w * (x - mean) ** 2 for w, x in zip(weights, sampled, strict=True)) / sum(weights)
    return abs(mean) + one.drawn * spread / 2, max(spread, 1e-300), top if known else _sampled(top, q)


def _replaced(x: float, m: float, q: float) -> float:
    return _sampled(m * x - m * m / 2, q) - _sampled(-m * x - m * m / 2, q)


def _sampled(loss: float, q: float) -> float:
    if q == 1:
        return loss
    return loss + math.log(q + (1 - q) * math.exp(-loss)) if loss > 0 else math.log1p(q * math.expm1(loss))


def _bottom(one: PairRelease) -> float:
    """The loss of a record that was not sampled, at its least; 0 where losses have no end."""
    if one.drawn or one.sampling_prob == 1:
        return 0.0
    rest = 1 - Fraction(str(one.sampling_prob))  # next to 1 a double and the decimal that is meant leave other rests
    return math.log(rest) if rest < 0.5 else math.log1p(-one.sampling_prob)


def _edges(one: PairRelease, top: float, step: float, window: int) -> tuple[int, ...]:
    q = one.sampling_prob
    bottom = math.floor((_bottom(one) or -top) / step) - (q < 1 and not one.drawn)
    low, high = max(bottom, -window), min(math.ceil(top / step), window)
    core = 4000
    inner = set(range(max(low, -core), min(high, core) + 1))
    ladder, k = {low, high}, float(core)
    while k < max(high, -low):
        k *= 1.002
        ladder |= {x for x in (round(k), -round(k)) if low < x < high}
    return tuple(sorted(inner | ladder))


def release_laws(one: PairRelease, edges: Sequence[int], step: arb, window: ScoreWindow) -> tuple[fmpz_poly, fmpz_poly]:
    """Laws of the rounded-up loss of one sampled release, directions remove and add; what is missing is infinite."""
    q = arb(1) if one.drawn else ball(one.sampling_prob)
    tails = [(arb(1), arb(1))]
    for edge in edges:
        odds = ((edge * step).exp() - (1 - q)) / q
        tails.append(one.tails(odds.log()) if odds > 0 else (arb(1), arb(1)))
    assert one.drawn or one.sampling_prob == 1 or bool((edges[0] * step).exp() <= 1 - q)
    cells = list(pairwise([*tails, (arb(0), arb(0))]))
    plain = [a[1] - b[1] for a, b in cells]
    mixed = [q * (a[0] - b[0]) + (1 - q) * mass for (a, b), mass in zip(cells, plain, strict=True)]
    return (
        _dots(mixed, plain, edges, step, window),
        _dots(plain[::-1], mixed[::-1], [-k for k in reversed(edges)], step, window),
    )


def _dots(first: list[arb], second: list[arb], edges: Sequence[int], step: arb, window: ScoreWindow) -> fmpz_poly:
    masses, scores = [first[0]], [edges[0]]
    for a, b, (low, high) in zip(first[1:], second[1:], pairwise(edges), strict=False):
        up = (a - b * (low * step).exp()) / -((low - high) * step).expm1()
        masses += [up, a - up]
        scores += [high, low]
    return window.law(masses, scores)


def composed_losses(releases: Sequence[PairRelease], grid: Grid) -> list[list[arb]]:
    """Least masses of the history's loss on -window..window, for remove and, where something is sampled, add."""
    step, window = ball(grid.step), ScoreWindow(grid.window, grid.bits)
    laws = list[tuple[list[fmpz_poly], int]]()
    for one, edges in zip(releases, grid.edges, strict=True):
        pair = release_laws(one, edges, step, window)
        shares = [law if one.chance is None else window.share(one.chance, law) for law in pair]
        if one.again:
            shares = list(map(add, shares, laws.pop()[0]))
        laws.append((shares, one.steps))
    found = []
    for side in range(2 if any(one.sampling_prob < 1 and not one.replaced for one in releases) else 1):
        parts = [window.repeated(pair[side], steps) for pair, steps in laws]
        law = parts[0]
        for part in parts[1:]:
            law = window.added(law, part)
        found.append([window.ball(mass) for mass in window.masses(law)])
    return found


class GridCurve:
    """Upper bounds on delta from a composed loss: what is infinite, and 1 - e^(epsilon - loss) of what is above.

    Args:
        masses: Of -window..window, from `composed_losses`: at most the true ones.
        grid: Its grid.
    """

    def __init__(self, masses: Sequence[arb], grid: Grid) -> None:
        self.step, self.window = ball(grid.step), grid.window
        self._sums = [(arb(0),) * 4]
        ratio, loss = self.step.exp(), grid.window * self.step
        shrunk = (-loss).exp()
        for mass in reversed(masses):
            light = mass * shrunk
            self._sums.append(tuple(map(add, self._sums[-1], (mass, light, mass * loss, light * loss))))
            shrunk, loss = shrunk * ratio, loss - self.step
        self._sums.reverse()
        self.infinite = 1 - self._sums[0][0]

    def above(self, loss: arb) -> tuple[arb, ...]:
        """Sums of m, m e^-x, m x and m x e^-x over all losses x that are not certain to be at most `loss`."""
        last = len(self._sums) - 1
        index = max(0, math.floor(min(float(loss / self.step), last)) + self.window)
        index = min(index, last)  # a float far beyond may be off by more than can be counted
        while index < last and (index - self.window) * self.step <= loss:
            index += 1
        while index > 0 and not (index - 1 - self.window) * self.step <= loss:
            index -= 1
        return self._sums[index]

    def delta(self, epsilon: arb) -> arb:
        """Bound at epsilon: infinite + sum of m - e^epsilon m e^-loss over what is above."""
        above, weighted, *_ = self.above(epsilon)
        return self.infinite + above - epsilon.exp() * weighted
