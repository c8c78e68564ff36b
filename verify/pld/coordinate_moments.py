"""Moments of ONE coordinate's likelihood ratio, h_eta(s) = log E_Q[(dP/dQ)^eta], for a shift s, never below the truth.

With phi = -log f + log f(0), L(x) = phi(x) - phi(x - s) and W = e^L, let psi(W) = W^eta - 1 - eta (W - 1): it is
convex and nonnegative, and e^h - 1 = E_Q[psi(W)] has no terms that cancel, however small s is. The line is cut into
cells at 0, s and wherever it pays. Where phi is convex L grows with x; where phi is concave on (0, inf) L falls, grows
and falls on the three parts that 0 and s make. So W lies between its values W1 <= W2 at a cell's ends, and both masses
of the cell, q under Q and p = E_Q[W; cell], are differences of the distribution function. A convex psi lies below its
chord (Edmundson 1956; Madansky 1959), hence

    E_Q[psi(W); cell] <= ((W2 q - p) psi(W1) + (p - W1 q) psi(W2)) / (W2 - W1),

and above q psi(p/q) (Jensen): where the two are far apart the cell is halved. Other bounds serve where masses leave the
range of floats: q max(psi(W1), psi(W2)) with q at most the width times the largest density; and for a power law, where
W >= 1 and so psi(W) <= W^eta, the integral of e^((eta-1) phi(x) - eta phi(x-s)) with the first phi below its chord and
the second above its tangent, which is that of the exponential of a line.

The last cells reach to infinity. W is between its value at the end and its limit, 1 for a concave phi and, on the left,
0 for a convex one. On the right of a power law, with u = x - s, the exponent E(u) = (eta-1) phi(u+s) - eta phi(u) has

    -E'(u) = beta u^(beta-1) (eta - (eta-1) (1 + s/u)^(beta-1)),

both factors nondecreasing: from where E' < 0 on E is concave, and the integral beyond u is at most e^E(u)/|E'(u)|.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array, IIDCoordinates, PowerCoordinates
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.cells import SMALLEST_MASS, tail_error

GAP = 5e-4  # relative distance of the two bounds on e^h - 1, or on h if larger, at which cells are fine enough
ROUNDED, LARGEST_GAP = 2.0**-33, 2e-2  # what a cell's mean loss may be off by; the largest GAP, where losses are less
ROUNDS = 60  # halvings of a cell
MOST = 400_000  # cells in all
CHARGE = 1e-8  # relative roundings of psi and of the sums
OUTER = 50  # cells of each outer part before any is halved
FIRST_CELL = 1e-6  # in the law's smallest length
NEGLIGIBLE = 800.0  # nats
MOST_NATS = 1e100  # of a moment that is told from an infinite one
USELESS = 2000.0  # nats of one coordinate's moment, beyond which its digits matter to nobody


@dataclass(frozen=True)
class Coordinate:
    """One coordinate of iid noise, as the coordinate envelope sees it.

    Args:
        law: Its law, symmetric and unimodal.
        convex: phi is convex (a log-concave law); else phi is concave on (0, inf), as for heavy tails.
        fisher: Upper bound on the Fisher information of the location family, E[phi'^2]; inf where none is known.
        quartile: Upper quartile, the unit of lengths.
        chords: Whether moments are known to lie below their chords: e^h for eta >= 2, or h of a log-concave law.
    """

    law: IIDCoordinates
    convex: bool
    fisher: float
    quartile: float
    chords: bool = True

    @cached_property
    def _at_zero(self) -> float:
        return float(self.law.logpdf(np.zeros(1))[0])

    def phi(self, x: Array) -> Array:
        """-log f(x) + log f(0)."""
        return np.asarray(self._at_zero - self.law.logpdf(x))

    def slope(self, x: Array) -> Array:
        """phi'(x) of a power law at x > 0."""
        assert isinstance(self.law, PowerCoordinates)
        return np.asarray(self.law.beta * self.phi(x) / x)


def coordinate(law: IIDCoordinates) -> Coordinate | None:
    """What the envelope needs to know of a law; None where its shape is not declared.

    Either a power law of beta >= 1, whose phi is convex, or one that declares phi concave on (0, inf). If 1/f is convex
    there, e^((eta-1) phi) is convex for eta >= 2, and so is e^h in s.
    """
    quartile = float(law.ppf(np.array([0.75]))[0])
    if not 1e-150 < quartile < 1e150:
        return None
    if isinstance(law, PowerCoordinates):
        # E[phi'^2] of phi = (x/b)^beta
        squared = (law.beta / power_scale(law)) ** 2
        fisher = squared * math.gamma(2.0 - 1.0 / law.beta) / math.gamma(1.0 / law.beta) * (1 + CHARGE)
        return Coordinate(law, True, fisher, quartile)
    if not law.log_convex:
        return None
    bare = Coordinate(law, False, math.inf, quartile, law.reciprocal_convex)
    return replace(bare, fisher=_fisher_upper(bare))


def power_scale(law: PowerCoordinates) -> float:
    """b of phi(x) = (|x|/b)^beta, from f(0) = beta / (2 b Gamma(1/beta))."""
    return law.beta / (2.0 * math.gamma(1.0 / law.beta)) * math.exp(-float(law.logpdf(np.zeros(1))[0]))


def _fisher_upper(noise: Coordinate) -> float:
    """Upper bound on E[phi'^2] for a concave phi with a Lipschitz constant.

    On a cell phi' lies between the slopes d2 <= d1 of the chords after and before it, and E[phi'; cell] is the fall of
    f: by the chord of the square E[phi'^2; cell] <= (d1 + d2) (f1 - f2) - d1 d2 q.
    """
    law = noise.law
    if law.lipschitz is None:
        return math.inf
    x = np.append(0.0, np.geomspace(FIRST_CELL * min(1.0 / law.lipschitz, noise.quartile), _reach(noise), 6000))
    chords = np.diff(noise.phi(x)) / np.diff(x)
    before = np.append(law.lipschitz, chords[:-1])
    after = np.append(chords[1:], 0.0)
    density, tail = np.exp(law.logpdf(x)), law.cdf(-x)
    mass = np.maximum(-np.diff(tail) - _tail_error(noise, tail)[:-1] - _tail_error(noise, tail)[1:], 0.0)
    parts = (before + after) * -np.diff(density) - before * after * mass
    parts = np.minimum(parts, np.square(before) * (-np.diff(tail) + _tail_error(noise, tail)[:-1]))
    return float(2.0 * (parts.sum() + chords[-1] * density[-1]) * (1 + CHARGE))


def _reach(noise: Coordinate) -> float:
    """A distance beyond which next to nothing lies."""
    if isinstance(noise.law, PowerCoordinates):
        return float(power_scale(noise.law) * NEGLIGIBLE ** (1.0 / noise.law.beta))
    far = -float(noise.law.ppf(np.array([1e-14]))[0])
    return min(far, 1e250) if math.isfinite(far) else 1e250


def _tail_error(noise: Coordinate, tail: Array) -> Array:
    """What a tail probability may be off."""
    return tail_error(noise.law, tail) + SMALLEST_MASS


def log_psi(loss: Array, eta: float) -> Array:
    """log psi(e^L), at most CHARGE/2 below it and nowhere above by more than dropped negative terms.

    Args:
        loss: L.
        eta: Order, > 1.
    """
    loss = np.clip(loss, -1e150, 1e150)
    power = np.clip(eta * loss, -NEGLIGIBLE, 40.0)
    ordinary = np.expm1(power) - eta * np.expm1(np.clip(loss, -NEGLIGIBLE, 40.0))
    tiny = np.clip(loss, -1e-5, 1e-5)
    series = 0.5 * eta * (eta - 1) * tiny**2 * (1 + (eta + 1) * tiny / 3)
    small = np.maximum(np.where(np.abs(eta * loss) < 1e-5, series, ordinary), 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(eta * loss > 40.0, eta * loss, np.log(small)))


def _distances(part: Array, d: Array, shift: Array) -> tuple[Array, Array]:
    """(|x|, |x - s|) at distance d in part 0: x = -d, 1: x = d up to s/2, 2: x = s - d from s/2 on, 3: x = s + d."""
    known = part.astype(np.int64)
    return np.choose(known, [d, d, shift - d, shift + d]), np.choose(known, [shift + d, shift - d, d, d])


class ShiftedCoordinate:
    """One coordinate and its copies moved by shifts; cells are kept from one order to the next.

    Args:
        noise: The coordinate.
        shifts: s > 0, 1-d.
    """

    def __init__(self, noise: Coordinate, shifts: Array) -> None:
        self.noise, self.shifts = noise, shifts
        law = noise.law
        smallest = min(noise.quartile, 1.0 / law.lipschitz) if law.lipschitz else noise.quartile
        self._last = np.full(len(shifts), max(_reach(noise), noise.quartile))
        inner = FIRST_CELL * np.minimum(smallest, shifts)
        rows = inner[:, None] * np.exp(np.log(self._last / inner)[:, None] * np.linspace(0.0, 1.0, OUTER + 1))
        outer = np.concatenate([np.zeros((len(shifts), 1)), rows], axis=1)
        share = np.unique(np.concatenate([[0.0], np.geomspace(FIRST_CELL, 1.0, 12), np.linspace(0.0, 1.0, 17)]))
        half = 0.5 * shifts[:, None] * share
        index = np.arange(len(shifts), dtype=np.float64)[:, None]
        self._store = np.concatenate([
            _known(noise, np.stack([part.ravel() for part in np.broadcast_arrays(
                float(place), index, shifts[:, None], ends[:, :-1], ends[:, 1:]
            )]))
            for place, ends in ((0, outer), (1, half), (2, half), (3, outer))
        ], axis=1)  # fmt: skip
        self._used = self._store.shape[1]

    @property
    def _cells(self) -> Array:
        """What is known of each cell, shape (rows, cells)."""
        return self._store[:, : self._used]

    def _add(self, cells: Array) -> None:
        """More cells, in a store that is longer than they are: it is not copied whenever some are cut in two."""
        total = self._used + cells.shape[1]
        if total > self._store.shape[1]:
            longer = np.empty((len(cells), 2 * total))
            longer[:, : self._used] = self._cells
            self._store = longer
        self._store[:, self._used : total] = cells
        self._used = total

    def log_moment(self, eta: float) -> Array:
        """h_eta(s) of every shift, never below the truth, and above it by GAP of e^h - 1 or of h, if cells suffice.

        Args:
            eta: Order, > 1.
        """
        self._reach_out(eta)
        ends = _ends(self.noise, self.shifts, self._last, eta)
        lower, upper = _bounds(self.noise, self._cells, eta)
        for _ in range(ROUNDS):
            index = self._cells[1].astype(np.int64)
            total = [_log_sum(part, index, ends) for part in (lower, upper)]
            # a cell's share of losses is a difference of tails: of small ones only many more cells would be as fine
            usual = np.exp(0.5 * np.clip(total[0], -80.0, 0.0)) * math.sqrt(2.0 / (eta * (eta - 1.0)))
            tolerance = np.clip(ROUNDED / usual, GAP, LARGEST_GAP) * np.maximum(1.0, total[0])
            with np.errstate(invalid="ignore"):
                wide = (total[1] - total[0] > tolerance) & (total[0] < USELESS)
            place = np.flatnonzero(wide[index])
            if not len(place) or len(upper) > MOST:
                break
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                limit = (total[0] + np.log(0.5 * tolerance) - np.log(np.bincount(index)))[index[place]]
                most = upper[place]
                gap = most + np.log(-np.expm1(np.minimum(lower[place] - most, -1e-16)))
            start, end = self._cells[3:5, place]
            place = place[(gap > limit) & (end - start > 4 * UNIT * end)]
            if not len(place):
                break
            new = _known(self.noise, *_halves(self.noise, self._cells[:, place]))
            left = slice(len(place))  # of the halves; they take the place of the whole
            right = slice(len(place), None)
            bounds = _bounds(self.noise, new, eta)
            for old, part in zip((lower, upper, self._cells), (*bounds, new), strict=True):
                old[..., place] = part[..., left]
            lower, upper = (np.append(old, b[right]) for old, b in zip((lower, upper), bounds, strict=True))
            self._add(new[:, right])
        found = np.logaddexp(0.0, total[1] + CHARGE)
        # log_psi cuts losses off at 1e150: where one so large matters, a moment that is seen is above MOST_NATS
        beyond = (found > MOST_NATS) | ~(self.noise.phi(self.shifts) < MOST_NATS)
        return np.asarray(np.where(beyond, np.inf, found))

    def _reach_out(self, eta: float) -> None:
        """Add cells up to where the exponent of a power law falls: (1 + s/u)^(beta-1) < 1 + 1/(2 (eta-1))."""
        law = self.noise.law
        if not isinstance(law, PowerCoordinates) or law.beta == 1:
            return
        wanted = self.shifts / math.expm1(min(math.log1p(0.5 / (eta - 1)) / (law.beta - 1.0), 700.0))
        short = np.flatnonzero(wanted > self._last)
        if not len(short):
            return
        ends = self._last[short, None] * np.exp(np.log(2.0 * wanted / self._last)[short, None] * np.linspace(0, 1, 9))
        self._last[short] = ends[:, -1]
        columns = (short[:, None].astype(np.float64), self.shifts[short, None], ends[:, :-1], ends[:, 1:])
        added = [
            np.stack([part.ravel() for part in np.broadcast_arrays(place, *columns)]) for place in (0.0, 3.0)
        ]  # fmt: skip
        for part in added:
            self._add(_known(self.noise, part))


def log_moment(noise: Coordinate, shifts: Array, eta: float) -> Array:
    """h_eta(s) at one order, as `ShiftedCoordinate.log_moment`."""
    return ShiftedCoordinate(noise, shifts).log_moment(eta)


def _halves(noise: Coordinate, cells: Array) -> tuple[Array, Array]:
    """Each cell cut in two, at the geometric mean where the ends are far apart, and the tails at their ends.

    Args:
        noise: The coordinate.
        cells: With all rows that are known.
    """
    start, end = cells[3:5]
    middle = np.where(end > 2.0 * start, np.sqrt(start) * np.sqrt(end), 0.5 * (start + end))
    middle = np.where(start > 0, middle, 0.125 * end)
    # x of one part is x - s of another
    places, which = np.unique(np.concatenate(_distances(cells[0], middle, cells[2])), return_inverse=True)
    tails, at = cells[-4:], noise.law.cdf(-places)[which].reshape(2, -1)
    return (
        np.concatenate([np.stack([*cells[:4], middle]), np.stack([*cells[:3], middle, end])], axis=1),
        np.concatenate([np.stack([*tails[:2], *at]), np.stack([*at, *tails[2:]])], axis=1),
    )


def _log_sum(parts: Array, index: NDArray[np.int64], ends: Array) -> Array:
    """log of the sums of e^parts by index, and of what lies beyond the last cells; inf where one of them is."""
    top = np.clip(ends, -1e300, 1e300)
    np.maximum.at(top, index, np.minimum(parts, 1e300))
    with np.errstate(under="ignore", divide="ignore"):
        total = np.bincount(index, np.exp(parts - top[index]), len(top)) + np.exp(ends - top)
        return np.asarray(top + np.log(total))


def _known(noise: Coordinate, cells: Array, tails: Array | None = None) -> Array:
    """Rows of cells, with what is known of them at every order.

    Args:
        noise: The coordinate.
        cells: Rows part, index of the shift, shift, distances at start and end.
        tails: The last four rows, where they are known.

    Returns:
        These rows; then ends of L; log q from above and below; for two shares of the mass at the larger end of L,
        between which the true one lies (NaN where the masses are not known well enough), the logs of what is left and
        of the share; log(p/q); log of the width; then for a power law the four exponents phi(x), phi(x-s) at start and
        end, both at the middle and their half rises; last the tails beyond x and x-s at start and end.
    """
    law, (part, _, shift, start, end) = noise.law, cells
    (x1, y1), (x2, y2) = _distances(part, start, shift), _distances(part, end, shift)
    # neighbouring cells share their ends, and x of one part is x - s of another
    places, which = np.unique(np.concatenate([x1, y1, x2, y2]), return_inverse=True)
    phi = np.minimum(noise.phi(places), 1e300)[which].reshape(4, -1)
    first, last = phi[0] - phi[1], phi[2] - phi[3]
    # a power takes its exponent times the rounding of its base
    steep = 8.0 + 2.0 * (law.beta if isinstance(law, PowerCoordinates) else 0.0)
    slack = steep * UNIT * (1.0 + np.maximum(phi[0], phi[2]) + np.maximum(phi[1], phi[3]))
    low, high = np.minimum(first, last) - slack, np.maximum(first, last) + slack
    if tails is None:
        tails = law.cdf(-places)[which].reshape(4, -1)
    q, p = np.abs(tails[0] - tails[2]), np.abs(tails[1] - tails[3])
    q_error, p_error = (
        _tail_error(noise, tails[0]) + _tail_error(noise, tails[2]),
        _tail_error(noise, tails[1]) + _tail_error(noise, tails[3]),
    )
    at_zero = float(law.logpdf(np.zeros(1))[0])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        width = np.log(end - start)
        above = np.minimum(np.log(q + q_error), at_zero - np.minimum(phi[0], phi[2]) + width + 4.0 * UNIT)
        below = np.maximum(np.log(np.maximum(q - q_error, 0.0)), at_zero - np.maximum(phi[0], phi[2]) + width)
        error = q_error / q + p_error / p
        certain = (q > 0) & (p > 0) & (error < 0.1)
        ratio = np.log(np.where(certain, p, 1.0)) - np.log(np.where(certain, q, 1.0))
        # (p/q - W1)/(W2 - W1) = e^(ratio - high) (1 - e^(low - ratio))/(1 - e^(low - high)), as no float may hold W
        whole, inner = -np.expm1(low - high), -np.expm1(np.minimum(low - ratio, 0.0))
        shares = [
            np.minimum(np.minimum(ratio - high, 0.0) + np.log(np.maximum((inner + off) / whole, 0.0)), 0.0)
            for off in (1.2 * error, -1.2 * error)
        ]
        shares = [np.where(certain, share, np.nan) for share in shares]
        logs = [part for share in shares for part in (np.log1p(-np.exp(share)), share)]
    rows = [*cells, low, high, above, np.minimum(below, above), *logs, np.clip(ratio, low, high), width]
    if isinstance(law, PowerCoordinates):
        x, y = _distances(part, 0.5 * (start + end), shift)
        values = [np.minimum(noise.phi(at), 1e300) for at in (x, y)]
        with np.errstate(over="ignore"):
            rises = [
                0.5 * (end - start) * np.minimum(law.beta * v / at, 1e300) for v, at in zip(values, (x, y), strict=True)
            ]
        rises[0] *= np.where(part == 2, -1.0, 1.0)
        rises[1] *= np.where(part == 1, -1.0, 1.0)
        rows += [*phi, *values, *rises]
    return np.stack([*rows, *tails])


def _bounds(noise: Coordinate, cells: Array, eta: float) -> tuple[Array, Array]:
    """log of bounds on E_Q[psi(W); cell]."""
    low, high, above, below, *logs, ratio = cells[5:14]
    ends = log_psi(low, eta), log_psi(high, eta)
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = below + np.where((low < 0) & (high > 0), -np.inf, np.minimum(*ends))
        lower = np.where(np.isnan(logs[0]), lower, np.maximum(lower, below + log_psi(ratio, eta)))
        upper = above + np.maximum(*ends)
        chords = [above + np.logaddexp(logs[i] + ends[0], logs[i + 1] + ends[1]) for i in (0, 2)]
        upper = np.fmin(upper, np.maximum(*chords))
    if isinstance(noise.law, PowerCoordinates):
        lines = _line_bounds(cells, eta, float(noise.law.logpdf(np.zeros(1))[0]))
        lower, upper = np.maximum(lower, lines[0]), np.minimum(upper, lines[1])
    return np.minimum(lower, upper), upper


def _line_bounds(cells: Array, eta: float, at_zero: float) -> tuple[Array, Array]:
    """log of the integral of f psi for a power law where W >= 1, its exponent between lines; no bounds elsewhere."""
    lower, upper = np.full(cells.shape[1], -np.inf), np.full(cells.shape[1], np.inf)
    usable = cells[5] >= 0
    low, high, width, x1, y1, x2, y2, x, y, rise_x, rise_y = cells[[5, 6, 14, *range(15, 23)]][:, usable]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        outer = (eta - 1) * x1 - eta * (y - rise_y), (eta - 1) * x2 - eta * (y + rise_y)
        inner = (eta - 1) * (x - rise_x) - eta * y1, (eta - 1) * (x + rise_x) - eta * y2
        size = 1.0 + np.maximum(x1, x2) + np.maximum(y1, y2) + np.abs(rise_x) + np.abs(rise_y)
        rounding = 64.0 * UNIT * eta * size
        # psi(W) >= W^eta (1 - eta W^(1 - eta)) where W >= 1
        kept = np.log(np.maximum(-np.expm1(math.log(eta) - (eta - 1) * low), 0.0))
        lower[usable] = np.nan_to_num(at_zero + log_mean_exponential(*inner) + width - rounding + kept, nan=-np.inf)
        # psi(W) <= W^eta - W <= (eta - 1) log(W) W^eta
        gentle = np.minimum(np.log((eta - 1) * high), 0.0)
        upper[usable] = np.nan_to_num(at_zero + log_mean_exponential(*outer) + width + rounding + gentle, nan=np.inf)
    return lower, upper


def log_mean_exponential(first: Array, last: Array) -> Array:
    """log of the mean of e^t for t uniform between two ends."""
    fall = np.abs(first - last)
    mean = np.where(fall > 1e-8, -np.expm1(-fall) / np.maximum(fall, 1e-300), 1.0 - 0.5 * fall)
    return np.asarray(np.maximum(first, last) + np.log(mean) + 4.0 * UNIT)


def _ends(noise: Coordinate, shifts: Array, last: Array, eta: float) -> Array:
    """log of a bound on what lies beyond the last cells on both sides, inf where phi overflows."""
    law, at_zero = noise.law, float(noise.law.logpdf(np.zeros(1))[0])
    tail = law.cdf(-last)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        tail_log = np.minimum(np.log(tail + _tail_error(noise, tail)), 0.0)
        if noise.convex:  # psi falls on [0, 1] from eta - 1
            left = tail_log + math.log(eta - 1)
        else:
            left = tail_log + log_psi(noise.phi(last) - noise.phi(last + shifts), eta)
            right_tail = law.cdf(-(last + shifts))
            growth = log_psi(noise.phi(last + shifts) - noise.phi(last), eta)
            right = np.log(right_tail + _tail_error(noise, right_tail)) + growth
            return np.nan_to_num(np.logaddexp(left, right), nan=np.inf, posinf=np.inf, neginf=-np.inf)
        exponent = (eta - 1) * noise.phi(last + shifts) - eta * noise.phi(last)
        slope = eta * noise.slope(last) - (eta - 1) * noise.slope(last + shifts)
        right = np.where(slope > 0, at_zero + exponent * (1 - np.sign(exponent) * 1e-13) - np.log(slope), np.inf)
        return np.nan_to_num(np.logaddexp(left, right), nan=np.inf, posinf=np.inf, neginf=-np.inf)


def small_shift_bound(noise: Coordinate, shift: float, eta: float) -> float:
    """A bound B(s) >= h_eta(s), with B(s)/s^2 nondecreasing in s.

    Concave phi: |L| <= kappa = phi(s). With the symmetric measure dM = e^(-l/2) dP_L, of total mass B(s) and
    1 = int cosh(l/2) dM, e^h - 1 = int cosh((eta - 1/2) l) - cosh(l/2) dM; (cosh(a l) - 1)/(cosh(l/2) - 1) grows with
    |l| for a > 1/2, and int cosh(l/2) - 1 dM = 1 - B(s) = H^2 <= s^2 J/8 (Hellinger distance against Fisher's J):
    e^h - 1 <= (s^2 J/8) [(cosh((eta - 1/2) kappa) - 1)/(cosh(kappa/2) - 1) - 1].

    Convex phi: with g = e^h, g'(s) = eta E_P[(W^(eta-1) - 1) phi'(y)] up to sign, |L| <= s phi'(|y| + s), so
    g - 1 <= (s^2/2) eta (eta-1) E[phi'(|y|+s)^2 e^((eta-1) s phi'(|y|+s))].

    Args:
        noise: One coordinate of it.
        shift: s > 0.
        eta: Order, > 1.
    """
    if not noise.convex:
        # a difference of two logarithms, rounded up
        kappa = float(noise.phi(np.array([shift]))[0]) + 4.0 * UNIT * (
            1.0 + abs(float(noise.law.logpdf(np.zeros(1))[0]))
        )
        if (eta - 0.5) * kappa > 600.0:
            return math.inf
        rise = (math.sinh((eta - 0.5) * kappa / 2) / math.sinh(kappa / 4)) ** 2 - 1.0
        return shift**2 * noise.fisher / 8 * rise * (1 + CHARGE)
    log_mean = _log_mean_square_slope(noise, shift, eta)
    return math.inf if log_mean > 600.0 else 0.5 * shift**2 * eta * (eta - 1) * math.exp(log_mean)


def _log_mean_square_slope(noise: Coordinate, shift: float, eta: float) -> float:
    """log of an upper bound on E[phi'(|y|+s)^2 e^((eta-1) s phi'(|y|+s))] for a power law.

    The exponent is -phi(y) + 2 log phi'(u) + c phi'(u), u = y + s, c = (eta-1) s: the first two terms are concave and
    lie below their tangents, the third, a power beta-1 of u, below its chord or, for beta < 2, its tangent. Beyond the
    last cell the exponent is concave from where it falls on: its slope is, for beta >= 2, -y^(beta-1) times a
    nondecreasing bracket, and for beta < 2 a sum of nonincreasing terms.
    """
    law = noise.law
    assert isinstance(law, PowerCoordinates)
    beta, c = law.beta, (eta - 1) * shift
    last = _reach(noise) + 2.0 * shift
    for _ in range(200):
        y = np.array([last])
        with np.errstate(over="ignore", invalid="ignore"):
            fall = noise.slope(y) - (2.0 + c * noise.slope(y + shift)) * (beta - 1.0) / (y + shift)
            exponent = -noise.phi(y) + 2.0 * np.log(noise.slope(y + shift)) + c * noise.slope(y + shift)
        if np.isnan(fall[0]) or np.isnan(exponent[0]):  # slopes beyond floats
            return math.inf
        if float(fall[0]) > 0 and float(exponent[0]) < -100.0:
            break
        last *= 1.5
    else:
        return math.inf
    beyond = float(exponent[0]) - math.log(float(fall[0]))
    y = np.append(0.0, np.unique(np.concatenate([
        noise.quartile * np.geomspace(1e-4, 1.0, 60), np.linspace(noise.quartile, last, 60),
        np.geomspace(noise.quartile, last, 900),
    ])))  # fmt: skip
    a, b = y[:-1], y[1:]
    middle = 0.5 * (a + b)
    u, width = middle + shift, b - a
    slope_at = noise.slope(u)
    tilt = -noise.slope(middle) + 2.0 * (beta - 1.0) / u
    with np.errstate(divide="ignore"):  # a slope below the range of floats is no slope
        value = -noise.phi(middle) + 2.0 * np.log(np.maximum(slope_at, 1e-300))
    if beta < 2:
        value, tilt = value + c * slope_at, tilt + c * slope_at * (beta - 1.0) / u
        first, final = value - 0.5 * width * tilt, value + 0.5 * width * tilt
    else:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            first, final = value - 0.5 * width * tilt, value + 0.5 * width * tilt
            first, final = first + c * noise.slope(a + shift), final + c * noise.slope(b + shift)
    at_zero = float(law.logpdf(np.zeros(1))[0]) + math.log(2.0)
    with np.errstate(invalid="ignore", over="ignore"):
        parts = np.append(log_mean_exponential(first, final) + np.log(width), beyond)
    largest = float(parts.max())
    if not largest < math.inf:
        return math.inf
    return at_zero + largest + math.log(float(np.exp(parts - largest).sum())) + CHARGE
