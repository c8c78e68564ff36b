"""How long a shift can be, from the norm that is clipped; and why the longest shifts are the worst.

Q is the law of noise of density f on R^n, P_v that of the noise moved by v, and with a = e^epsilon > 0

    delta_v(epsilon) = sup_S P_v(S) - a Q(S) = int (f(z - v) - a f(z))_+ dz = 1 - int min(f(z - v), a f(z)) dz.

Boundary lemma. Let f be symmetric about 0 and nonincreasing in |z_i| as a function of each coordinate z_i, the others
fixed. Then delta_v(epsilon) depends on v through the |v_i| only and is nondecreasing in each, for every real epsilon.

Proof. Fix i, every other coordinate of v, and every other coordinate of z. As functions of x = z_i the two densities
are h(x - v_i) and k(x), with h and k symmetric about 0 and nonincreasing in |x|, so {h > t} and {k > t} are intervals
centred at 0 for every t > 0, say of half-lengths r and r' (a set may be empty, and need not contain its ends). A
minimum exceeds t where both functions do, and intervals about v_i and about 0 share the length below:

    int min(h(x - v_i), k(x)) dx = int_0^inf |{h(x - v_i) > t, k(x) > t}| dt
                                 = int_0^inf max(0, min(2 r, 2 r', r + r' - |v_i|)) dt.

That is even in v_i and nonincreasing in |v_i|, whatever a is. So is its integral over the other coordinates of z
(Tonelli), and 1 minus it is even and nondecreasing. Changing one coordinate of v after the other proves the rest. (The
two laws may even be those of different noises, each with the property: the proof never uses that h and k are alike.)

The condition holds for

- independent coordinates of symmetric unimodal laws (`IIDCoordinates`): the fixed coordinates only scale f.
- a hidden scale u of all coordinates (`ScaleMixture`): f is a mean over u of densities with the property, which a mean
  keeps. It is the hidden-u law itself that the lemma speaks of: u is not revealed, and its law does not matter.
- spherically symmetric noise whose density falls with the distance (`Radial`): with the other coordinates fixed the
  distance grows with |z_i|. A rotation takes v to |v|_2 e_1 and f to itself, so delta_v depends on |v|_2 only, and by
  the lemma for |v|_2 e_1 it is nondecreasing in |v|_2.

As f(-z) = f(z), the reflection z -> v - z exchanges P_v and Q: the other direction has the same delta.

So over |v|_p <= C the supremum of delta_v is that over |v|_p = C: any coordinate may be raised until the norm is C. In
one dimension, and for spherically symmetric noise under an l2 bound, that is ONE worst shift for every epsilon, whose
pair dominates (Zhu, Dong and Wang 2022, Definition 7). Otherwise the worst shift depends on epsilon, and the lemma
gives no dominating pair.
"""

import math
from fractions import Fraction

from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.claims import PLAIN_KINDS, Adjacency, Claim, Phase


def radius(mechanism: Mechanism, order: float, adjacency: Adjacency) -> float | None:
    """Largest l_order norm of a shift v - w of two neighbouring contributions.

    |v|_order <= n^max(0, 1/order - 1/p) |v|_p for v in R^n; replace-one doubles clip.

    Args:
        mechanism: With its clip and clip_norm p.
        order: Of the norm that is wanted, in [1, inf].
        adjacency: "add-remove" or "replace-one".

    Returns:
        The bound, or None where it needs a dimension that is not set.
    """
    clip = float(mechanism.clip) * (1.0 if adjacency == "add-remove" else 2.0)
    growth = 1.0 / order - 1.0 / float(mechanism.clip_norm)
    if growth <= 0 or mechanism.dimension == 1:
        return clip
    if mechanism.dimension is None:
        return None
    return clip * math.pow(mechanism.dimension, growth) * (1 + 1e-15)


def exact_radius(mechanism: Mechanism, order: int, adjacency: Adjacency, power: int = 1) -> Fraction | None:
    """A power of `radius`, the clip read as the decimal it is written as; rounded up only where it is irrational.

    >>> from dpaudit.mechanisms import Laplace
    >>> exact_radius(Laplace(scale=1.0, clip=0.1, clip_norm=math.inf, dimension=3), 1, "add-remove")
    Fraction(3, 10)
    """
    length = radius(mechanism, order, adjacency)
    if length is None:
        return None
    clip = Fraction(repr(float(mechanism.clip))) * (1 if adjacency == "add-remove" else 2)
    inverse = Fraction(0) if math.isinf(mechanism.clip_norm) else 1 / Fraction(mechanism.clip_norm)
    twice = 2 * power * max(Fraction(1, order) - inverse, Fraction(0))  # of the dimension's exponent
    square = int(mechanism.dimension or 1) ** int(twice)
    root = math.isqrt(square)
    if mechanism.dimension == 1 or (twice.denominator == 1 and root * root == square):
        return clip**power * root
    return Fraction(repr(float(length))) ** power


def sampling_is_known(phase: Phase) -> bool:
    """Poisson sampling, or none at all: the kinds with theorems here."""
    return phase.sampling_kind in PLAIN_KINDS


def moments_reach(claim: Claim) -> bool:
    """Whether bounds by moments cover the claim's adjacency and sampling.

    Replace-one with sampling is covered for one release only, through its delta (see `rdp.replace_one_release`).
    """
    if not all(sampling_is_known(phase) for phase in claim.phases):
        return False
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    alone = len(claim.phases) == 1 and claim.phases[0].steps == 1
    return claim.adjacency == "add-remove" or not sampled or alone
