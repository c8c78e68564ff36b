"""Passes that go through one buffer as a stream, in balls: the batches in which the copies of a record are.

The record at the beginning of the file comes in before draw d = max(i n - B + 1, 0) of pass i, and each draw from then
on takes it with probability 1/B. So the batches from that of d on hold it but for a chance of (1 - 1/B)^j, where they
end after j more draws. All M copies are in their batches but for the sum h of these chances; others contribute nothing.
With N batches in all, the sum of what they release is at least t with

    P >= (1 - h) Phi((M - t) / (sigma sqrt(N)))   and   Q = Phi(-t / (sigma sqrt(N))),

contributions being 1: copies that come on top only add to it.
"""

from dataclasses import dataclass
from math import ceil, log, log1p

from flint import arb

from dpaudit.mechanisms.base import with_dimension
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.rigorous.balls import Unavailable, ball
from dpaudit.verify.rigorous.domination import dominating_mu, is_gaussian
from dpaudit.verify.samplers import BufferedShuffle

LATE = (1e-1, 1e-2, 1e-4, 1e-8)  # chances of a copy to come later than the batches that are looked at
MOST_COPIES = 10_000
BEYOND, THRESHOLDS = 8, 60  # deviations past all copies up to which so many thresholds are tried


@dataclass(frozen=True)
class ToldApart:
    """An event's probabilities under two neighbours' laws.

    Args:
        p: From below, under the law that finds it likelier.
        q: From above, under the other one.
        witness: In words.
    """

    p: arb
    q: arb
    witness: str

    def excess(self, epsilon: float) -> float:
        """At most delta(epsilon)."""
        return float((self.p - ball(epsilon).exp() * self.q).lower())


def stream_event(claim: Claim) -> ToldApart | Unavailable:
    """A half-line of the sum of some batches of a stream, of normal noise; all other phases are left out."""
    streams = [(phase, sampler) for phase in claim.phases if (sampler := _stream(phase)) is not None]
    found = [one for phase, sampler in streams for one in _events(claim, phase, sampler)]
    none = Unavailable("no stream of normal noise has such an event")
    return max(found, key=lambda one: one.excess(claim.epsilon), default=none)


def _stream(phase: Phase) -> BufferedShuffle | None:
    sampler = phase.sampler
    if not isinstance(sampler, BufferedShuffle) or sampler.passes is not None or not is_gaussian(phase.mechanism):
        return None
    return sampler if sampler.buffer > 1 and sampler.begun <= MOST_COPIES else None


def _events(claim: Claim, phase: Phase, sampler: BufferedShuffle) -> list[ToldApart]:
    """The best threshold for each choice of batches."""
    mu = dominating_mu(phase.mechanism, "add-remove")
    mu = dominating_mu(with_dimension(phase.mechanism, 1), "add-remove") if isinstance(mu, Unavailable) else mu
    assert not isinstance(mu, Unavailable)
    found = []
    for late in LATE:
        copies, batches, missed = held_batches(sampler, late)
        if not (copies and missed < 1):
            continue
        reach = copies * mu / arb(batches).sqrt()
        top, words = reach.upper() + BEYOND, f"the sum of the {batches} batches of a stream that hold the record"
        for i in range(THRESHOLDS + 1):
            at = (top * i / THRESHOLDS).mid()
            p, q = (1 - missed) * _below(reach - at), _below(-at)
            found.append(ToldApart(p.lower(), q.upper(), words))
        found = [max(found, key=lambda one: one.excess(claim.epsilon))]
    return found


def held_batches(sampler: BufferedShuffle, late: float) -> tuple[int, int, arb]:
    """The batches that hold the first record of the file, but for a chance.

    Args:
        sampler: A stream.
        late: Of one copy, to come after its batches; those of the last draws may leave one behind more often.

    Returns:
        How many copies they hold, how many batches they are, and a bound on the chance that one is not in them.
    """
    draws, batch = sampler.steps * sampler.batch, sampler.batch
    stays = 1 - arb(1) / sampler.buffer
    needed = ceil(log(late) / log1p(-1 / sampler.buffer))
    batches, missed, copies = set[int](), arb(0), 0
    for i in range(sampler.begun):
        start = max(i * sampler.records - sampler.buffer + 1, 0)
        stop = min(-(-(start + needed) // batch) * batch, draws)
        if stop - start >= needed:
            missed += stays ** (stop - start)
            copies += 1
            batches.update(range(start // batch, stop // batch))
    return copies, len(batches), missed


def _below(x: arb) -> arb:
    """P(N(0, 1) <= x)."""
    return (-x / arb(2).sqrt()).erfc() / 2
