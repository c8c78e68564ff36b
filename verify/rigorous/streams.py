"""Passes that go through one buffer as a stream, in balls: the batches in which the copies of a record are.

The record at the beginning of the file comes in before draw d = max(i n - B + 1, 0) of pass i, and each draw from then
on takes it with probability 1/B. So the batches from that of d on hold it but for a chance of (1 - 1/B)^j, where they
end after j more draws. All M copies are in their batches but for the sum h of these chances; others contribute nothing.
With N batches in all, the sum of what they release is at least t with

    P >= (1 - h) Phi((M - t) / (sigma sqrt(N)))   and   Q = Phi(-t / (sigma sqrt(N))),

contributions being 1: copies that come on top only add to it.
"""

from collections.abc import Iterator
from math import ceil, log, log1p

from flint import arb

from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.rigorous.balls import Unavailable
from dpaudit.verify.rigorous.domination import attained_mu, is_gaussian
from dpaudit.verify.rigorous.events import ToldApart
from dpaudit.verify.rigorous.gaussian import normal_tail
from dpaudit.verify.samplers import BufferedShuffle

LATE = (1e-1, 1e-2, 1e-4, 1e-8)  # chances of a copy to come later than the batches that are looked at
MOST_COPIES = 10_000
BEYOND, THRESHOLDS = 8, 60  # deviations past all copies up to which so many thresholds are tried


def stream_event(claim: Claim) -> ToldApart | Unavailable:
    """A half-line of the sum of some batches of a stream, of normal noise; all other phases are left out."""
    streams = [(phase, sampler) for phase in claim.phases if (sampler := _stream(phase)) is not None]
    found = [one for phase, sampler in streams for one in _events(phase, sampler)]
    none = Unavailable("no stream of normal noise has such an event")
    return max(found, key=lambda one: one.excess(claim.epsilon), default=none)


def _stream(phase: Phase) -> BufferedShuffle | None:
    sampler = phase.sampler
    if not isinstance(sampler, BufferedShuffle) or sampler.passes is not None or not is_gaussian(phase.mechanism):
        return None
    return sampler if sampler.buffer > 1 and sampler.begun <= MOST_COPIES else None


def _events(phase: Phase, sampler: BufferedShuffle) -> Iterator[ToldApart]:
    """All thresholds of each choice of batches."""
    mu = attained_mu(phase.mechanism, "add-remove")
    for late in LATE:
        copies, batches, missed = held_batches(sampler, late)
        if not (copies and missed < 1):
            continue
        reach = copies * mu / arb(batches).sqrt()
        top, words = reach.upper() + BEYOND, f"the sum of the {batches} batches of a stream that hold the record"
        for i in range(THRESHOLDS + 1):
            at = (top * i / THRESHOLDS).mid()
            yield ToldApart(((1 - missed) * normal_tail(at - reach)).lower(), normal_tail(at).upper(), words)


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
