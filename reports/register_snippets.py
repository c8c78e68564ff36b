"""Short programs in numpy and scipy, without this package, that check a verdict of the register.

Each prints a value of delta at the claimed epsilon. It is an independent estimate, not a certificate: grids are fine,
and their errors are not bounded. A program is text; the register runs it in a process of its own.
"""

from collections.abc import Mapping
from typing import Any

_SAMPLED_GAUSSIAN = """\
import numpy as np
from scipy.stats import norm

q, s, T, epsilon = {prob!r}, {noise!r}, {steps}, {epsilon!r}  # rate, noise / sensitivity, releases, claimed
n = 2**20
h = (4 * epsilon + 40) / n  # losses of one release are rounded to multiples of h
edge = (np.arange(n + 1) - n // 2 - 0.5) * h
x = 0.5 + s**2 * np.log(np.maximum(np.expm1(edge) + q, 1e-300) / q)  # the output at which the loss is edge
absent, present = (np.diff(norm.cdf(x, mean, s)) for mean in (0, 1))
loss = edge[:-1] + h / 2
compose = lambda p: np.fft.fftshift(np.fft.irfft(np.fft.rfft(np.fft.ifftshift(p)) ** T, n))
remove = compose((1 - q) * absent + q * present) @ np.maximum(0, -np.expm1(np.minimum(0, epsilon - loss)))
add = compose(absent) @ np.maximum(0, -np.expm1(np.minimum(0, epsilon + loss)))
print(max(remove, add))
"""

_GAUSSIAN = """\
import numpy as np
from scipy.stats import norm

mu, epsilon = {mu}, {epsilon!r}  # all releases together are one Gaussian release of this shift; epsilon claimed
print(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))
"""

_SHUFFLED = """\
import numpy as np
from scipy.stats import norm

T, E, s, epsilon = {batches}, {epochs}, {noise!r}, {epsilon!r}  # batches of a pass, passes, noise multiplier, claimed
left_out, n, h = {left_out!r}, 2**20, 1e-3  # probability that a pass misses the record
cell = np.linspace(-12 * s, 12 * s + 2, 400_001)  # the record's batch moves by 2 (others -1, it +1), without it by 1
w = (cell[1:] + cell[:-1]) / 2
score = np.log1p(np.expm1((2 * w - 2) / s**2) / T) - np.log1p(np.expm1((w - 0.5) / s**2) / T)
score = np.rint(score / h).astype(int) % n  # an integer of the cell: its sum over a history has an exact law
none, without, with_it = (np.fft.rfft(np.bincount(score, np.diff(norm.cdf(cell, m, s)), n)) for m in (0, 1, 2))
law = lambda moved: np.fft.irfft((none ** (T - 1) * (left_out * none + (1 - left_out) * moved)) ** E, n)
P, Q = law(with_it), law(without)
rounding = 1e-15  # of the transforms, on the safe side
print(max(np.maximum(a - np.exp(epsilon) * (np.maximum(b, 0) + rounding), 0).sum() for a, b in ((P, Q), (Q, P))))
"""

_FIXED_SIZE = """\
import numpy as np
from scipy.stats import norm

q, s, T, epsilon = {prob!r}, {noise!r}, {steps}, {epsilon!r}  # batch / records, noise multiplier, releases, claimed
n, h = 2**20, 1e-4
cell = np.linspace(-12 * s, 12 * s + 2, 400_001)  # a batch moves by 2 with the record, by 1 with one more of the others
none, one, two = (np.diff(norm.cdf(cell, mean, s)) for mean in (0, 1, 2))
P, Q = (1 - q) * none + q * two, (1 - q) * none + q * one
score = np.rint(np.log(np.maximum(P, 1e-300) / np.maximum(Q, 1e-300)) / h).astype(int) % n  # releases add up
P, Q = (np.fft.irfft(np.fft.rfft(np.bincount(score, p, n)) ** T, n) for p in (P, Q))
print(np.maximum(P - np.exp(epsilon) * (np.maximum(Q, 0) + 1e-15), 0).sum())
"""

_STREAM = """\
import numpy as np
from scipy.stats import norm

n, b, B, T = {records}, {batch}, {buffer}, {steps}  # records, of a batch, of the buffer; releases
s, epsilon, N, h = {noise!r}, {epsilon!r}, 2**14, 2e-3  # noise multiplier, claimed; integers, privacy loss of one
first = -(-B // n)  # copies of the first record of the file that the buffer begins with
came = [c * n - B + 1 for c in range(first, -(-(T * b + B - 1) // n))]  # draws from which on the others are in it
K, J = first + 8, 4  # copies that are held, and copies in a batch, fewer than this and at most
one = np.diag(1 - np.arange(K) / B) + np.diag(np.arange(1, K) / B, -1)  # a draw takes one of those that are held
draws = lambda count: np.linalg.matrix_power(one, count)
cell = np.linspace(-9 * s, 9 * s + 2 * J, 8001)  # a copy moves its batch by 2 (others -1, it +1), by 1 without it
w, q = (cell[1:] + cell[:-1]) / 2, b / n
score = np.log1p(q * np.expm1((2 * w - 2) / s**2)) - np.log1p(q * np.expm1((w - 0.5) / s**2))
score = np.rint(score / h).astype(int) % N  # an integer of the cell: its sum over a history has an exact law
law = [np.fft.rfft(np.bincount(score, np.diff(norm.cdf(cell, k, s)), N)) for k in range(2 * J + 1)]
P = Q = (np.arange(K) == first)[:, None] * np.ones(N // 2 + 1)  # transforms, by how many are held
for batch in range(T):
    new = [c - batch * b for c in came if 0 <= c - batch * b < b]
    moves = draws(new[0]) @ np.eye(K, k=1) @ draws(b - new[0]) if new else draws(b)
    taken = np.arange(K)[:, None] + len(new) - np.arange(K)
    by = [np.where(taken == j, moves, 0).T for j in range(J + 1)]
    P, Q = (sum(by[j] @ X * law[k * j] for j in range(J + 1)) for X, k in ((P, 2), (Q, 1)))
lost = 1 - Q[:, 0].sum().real  # of histories with more copies
P, Q = (np.fft.irfft(X.sum(axis=0), N) for X in (P, Q))
print(np.maximum(P - np.exp(epsilon) * (np.maximum(Q, 0) + 1e-15), 0).sum() - np.exp(epsilon) * lost)
"""

_COORDINATES = """\
import numpy as np
from scipy import stats

q, T, epsilon, n, h = {prob!r}, {steps}, {epsilon!r}, 2**18, {bin!r}
{law}
A = B = 1.0  # laws of the sum of rounded losses of a release, with the record in and without
for shift, count in {shift!r}:
    cell = ppf(np.concatenate([np.logspace(-300, -3, 20_000), np.linspace(1e-3, 0.5, 20_000)[1:]]))
    cell = np.unique(np.concatenate([cell, -cell, cell + shift, shift - cell]))
    x = (cell[1:] + cell[:-1]) / 2
    score = np.rint((logpdf(x - shift) - logpdf(x)) / h).astype(int) % n
    one = [np.fft.rfft(np.bincount(score, np.diff(cdf(cell - mean)), n)) for mean in (shift, 0)]
    A, B = A * one[0] ** count, B * one[1] ** count
"""

_HIDDEN_SCALE = """\
import numpy as np
from scipy import stats

q, T, epsilon, n, h = {prob!r}, {steps}, {epsilon!r}, 2**17, {bin!r}
ends = stats.norm.cdf(np.linspace(-6, 6, 33))
rates = stats.gamma({k!r}, scale={theta!r}).ppf((ends[1:] + ends[:-1]) / 2)  # of the noise, one for all coordinates
A, B = [], []  # for each rate, which so many coordinates tell: sums of rounded scores with the record in and without
for rate, chance in zip(rates, np.diff(ends)):
    a = b = chance
    for shift, count in {shift!r}:
        cell = np.concatenate([[-1e9], np.linspace(0, shift, 4001), [1e9]])
        x = np.clip((cell[1:] + cell[:-1]) / 2, 0, shift)
        score = np.rint((2 * x - shift) * rate / h).astype(int) % n
        a, b = (p * np.fft.rfft(np.bincount(score, np.diff(stats.laplace.cdf(cell, mean, 1 / rate)), n)) ** count
                for p, mean in ((a, shift), (b, 0)))
    A, B = [*A, a], [*B, b]
"""

_COMPOSED = """\
A, B = (np.maximum(np.fft.irfft(p, n), 0) for p in (A, B))
P, Q = (q * A + (1 - q) * B, B){flip}
loss = np.where((P > 1e-14) & (Q > 1e-14), np.log(np.maximum(P, 1e-99) / np.maximum(Q, 1e-99)), 0)
score = np.rint(loss / {fine!r}).astype(int) % n  # another integer; T releases add up
P, Q = (np.fft.irfft(np.fft.rfft(np.bincount(score.ravel(), p.ravel(), n)) ** T, n) for p in (P, Q))
print(np.maximum(P - np.exp(epsilon) * (np.maximum(Q, 0) + 1e-13), 0).sum())
"""

_PRODUCT = """\
import numpy as np

M, epsilon, shift, rng = {dimension}, {epsilon!r}, {ratio!r}, np.random.default_rng(1)  # shift / sigma
r = np.abs(rng.standard_normal(400_000))  # radius of the noise / sigma
cosine = rng.standard_normal(400_000) / np.sqrt(M)  # of the angle with the shift, to 1 / sqrt(M)
other = np.sqrt(r**2 + 2 * r * shift * cosine + shift**2)  # radius as seen from the neighbour
loss = (M - 1) * np.log(other / r) + (other**2 - r**2) / 2
print(np.maximum(0, -np.expm1(np.minimum(0, epsilon - loss))).mean())
"""

_SAMPLED_PRODUCT = """\
import numpy as np

M, q, T, epsilon, shift = {dimension}, {prob!r}, {steps}, {epsilon!r}, {ratio!r}  # shift / sigma, to each side
n, h, size, rng = 2**20, 1e-2, 2_000_000, np.random.default_rng(1)
inside = rng.random(size) < q  # the record, which moves by +shift, where its replacement moves by -shift
along, radius = rng.standard_normal(size) / np.sqrt(M), np.abs(rng.standard_normal(size))  # cosine with the shift
square, along = radius**2 + inside * (2 * radius * along * shift + shift**2), radius * along + inside * shift
log_ratio = lambda v: (1 - M) / 2 * np.log1p((v**2 - 2 * along * v) / square) - (v**2 - 2 * along * v) / 2
taken = lambda v: np.logaddexp(np.log1p(-q), np.log(q) + log_ratio(v))  # log-density over that of noise around 0
loss = np.clip(taken(shift) - taken(-shift), -30, 30)  # less of a large loss is on the safe side
score = np.floor(loss / h + rng.random(size)).astype(int) % n  # rounded at random, so that no error adds up
total = np.fft.irfft(np.fft.rfft(np.bincount(score, minlength=n) / size) ** T, n)  # T releases add up
place = np.arange(n)
loss = h * np.where(place < 3 * n // 4, place, place - n)
print(total @ np.maximum(0, -np.expm1(np.minimum(0, epsilon - loss))))
"""

_SCIPY = "law = {law}  # of one coordinate\nppf, cdf, logpdf = law.ppf, law.cdf, law.logpdf"
_LAWS = {
    "laplace": _SCIPY.format(law="stats.laplace(scale={scale!r})"),
    "generalized-gaussian": _SCIPY.format(law="stats.gennorm({beta!r}, scale={scale!r})"),
    # Laplace noise whose rate is a Gamma number of its own in each coordinate: Lomax on both sides
    "gamma-plrv-iid": """\
side = stats.lomax({k!r}, scale=1 / {theta!r})  # of one coordinate, on both sides of 0
ppf = lambda p: -side.isf(2 * p)  # of p up to 1/2
cdf = lambda x: np.where(x < 0, side.sf(-x) / 2, 1 - side.sf(x) / 2)
logpdf = lambda x: side.logpdf(abs(x))""",
    # Laplace noise whose scale is a Gamma number of its own in each coordinate
    "gamma-scale-laplace": """\
laws = [stats.laplace(scale=b) for b in stats.gamma({k!r}, scale={theta!r}).ppf((np.arange(64) + 0.5) / 64)]
ppf = laws[32].ppf  # it only chooses cells
cdf = lambda x: sum(law.cdf(x) for law in laws) / 64
logpdf = lambda x: np.log(sum(law.pdf(x) for law in laws) / 64)""",
}


def program(claim: Mapping[str, Any], witness: Mapping[str, Any] | None) -> tuple[str | None, str]:
    """A program that prints delta at the claimed epsilon, and "" or why there is none.

    Args:
        claim: As a claims file holds it.
        witness: Of a lower bound, where there is one.
    """
    if "phase" in claim or "guarantee" in claim:
        return None, "several phases, or another kind of guarantee: no short program was written for them"
    noise, sampling = claim["mechanism"], claim["sampling"]
    values = {"epsilon": claim["epsilon"], "steps": claim["steps"], "prob": sampling.get("prob", 1.0)}
    if noise["name"] == "gaussian":
        return _gaussian(claim, sampling, values)
    if noise["name"] == "product" and claim["adjacency"] == "replace-one" and sampling["kind"] in ("poisson", "none"):
        values |= {"dimension": noise["dimension"], "ratio": noise["clip"] / noise["sigma"]}
        if values["prob"] < 1.0:
            return _SAMPLED_PRODUCT.format(**values), ""
        if claim["steps"] == 1:
            return _PRODUCT.format(**{**values, "ratio": 2 * values["ratio"]}), ""
    if witness is not None and sampling["kind"] in ("poisson", "none"):
        values["shift"] = [[value, int(count)] for value, count in witness["shift"]]
        values["flip"] = "[::-1]" if witness["direction"] == "add" else ""
        values |= {"bin": 2e-3 if max(count for _, count in values["shift"]) > 1 else 1e-4, "fine": 1e-4}
        if noise["name"] in _LAWS:
            return (_COORDINATES + _COMPOSED).format(law=_LAWS[noise["name"]].format(**noise), **values), ""
        if noise["name"] == "gamma-plrv":
            return (_HIDDEN_SCALE + _COMPOSED).format(k=noise["k"], theta=noise["theta"], **values), ""
    return None, "no short program was written for this noise, or there is no witness against the claim to start from"


def _gaussian(claim: Mapping[str, Any], sampling: Mapping[str, Any], values: dict[str, Any]) -> tuple[str | None, str]:
    noise, swap = claim["mechanism"]["noise_multiplier"], claim["adjacency"] == "replace-one"
    kind = sampling["kind"]
    if kind == "none" or (kind == "poisson" and values["prob"] == 1.0):
        mu = f"{'2 * ' if swap else ''}{claim['steps']} ** 0.5 / {noise!r}"
        return _GAUSSIAN.format(mu=mu, **values), ""
    if swap:
        return None, "sampled replacement of a record: no short program was written for it"
    if kind == "poisson":
        return _SAMPLED_GAUSSIAN.format(noise=noise, **values), ""
    if kind == "shuffled" and sampling.get("reshuffle", "every-epoch") == "every-epoch":
        batches, left_out = passes(sampling)
        given = {"batches": batches, "epochs": sampling["epochs"], "left_out": left_out, "noise": noise}
        return _SHUFFLED.format(**given, **values), ""
    if kind == "without-replacement":
        return _FIXED_SIZE.format(noise=noise, **values), ""
    if (
        kind == "buffered-shuffle"
        and "epochs" not in sampling
        and {"records", "buffer"} <= sampling.keys()
        and sampling["buffer"] <= sampling["records"]
    ):
        given = {key: sampling[key] for key in ("records", "batch", "buffer")}
        return _STREAM.format(noise=noise, **given, **values), ""
    return None, f"no short program was written for the sampler {kind}"


def passes(sampling: Mapping[str, Any]) -> tuple[int, float]:
    """Batches of a shuffled pass that the lower bound looks at, and the probability that none holds a record."""
    if "batches" in sampling:
        return int(sampling["batches"]), 0.0
    records, batch = int(sampling["records"]), int(sampling["batch"])
    last = sampling.get("last_batch", "kept")
    if last == "kept":
        return -(-records // batch), 0.0
    batches = records // batch if last == "dropped" else (records - batch + 1) // batch
    return batches, 1.0 - batches * batch / records
