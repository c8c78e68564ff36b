"""The Gaussian's privacy curve in balls: delta(epsilon) and its inverse."""

from flint import arb

from dpaudit.verify.rigorous.balls import PRECISION, precision

LARGEST_BITS = 1 << 16


def normal_tail(x: arb) -> arb:
    """P(N(0, 1) > x)."""
    return (x / arb(2).sqrt()).erfc() / 2


def gaussian_delta(mu: arb, epsilon: arb) -> arb:
    """delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) of N(mu, 1) against N(0, 1).

    Balle and Wang (2018), Theorem 8. The difference cancels where delta is tiny: the precision is doubled until the
    ball has 40 right bits.

    Args:
        mu: Shift over sigma, > 0.
        epsilon: At least 0.

    >>> from flint import arb
    >>> abs(gaussian_delta(arb(1), arb(0)) - arb("0.38292492254802620728")) < 1e-15
    True
    """
    bits = PRECISION
    while True:
        with precision(bits):
            root = arb(2).sqrt()
            a, b = (epsilon / mu - mu / 2) / root, (epsilon / mu + mu / 2) / root
            found = (a.erfc() - epsilon.exp() * b.erfc()) / 2
        if found.rel_accuracy_bits() > 40 or bits > LARGEST_BITS:
            return found
        if min(mu.rel_accuracy_bits(), epsilon.rel_accuracy_bits() if epsilon != 0 else bits) < bits // 2 > PRECISION:
            return found  # the arguments are not known better
        bits *= 2


def gaussian_epsilon(mu: arb, delta: arb, width: float = 1e-12) -> arb:
    """Ball around the epsilon >= 0 with gaussian_delta(mu, epsilon) = delta, by bisection; 0 where delta(0) is less.

    Args:
        mu: Shift over sigma, > 0.
        delta: In (0, 1).
        width: Of the ball, relative to 1 + epsilon.
    """
    if gaussian_delta(mu, arb(0)) <= delta:
        return arb(0)
    low, high = arb(0), arb(1)
    while not gaussian_delta(mu, high) < delta:
        low, high = high, 2 * high
    while float(high - low) > width * (1 + float(low)):
        middle = ((low + high) / 2).mid()
        found = gaussian_delta(mu, middle)
        if found > delta:
            low = middle
        elif found < delta:
            high = middle
        else:
            break
    return low.union(high)
