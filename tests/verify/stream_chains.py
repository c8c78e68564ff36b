"""Where the copies of one record are in a stream through a buffer, exactly: an oracle, one draw after the other."""

from collections import defaultdict
from collections.abc import Mapping

from dpaudit.verify.samplers import BufferedShuffle

Law = Mapping[tuple[int, ...], float]


def batch_counts(sampler: BufferedShuffle, record: int) -> Law:
    """Law of how often the record is in each batch."""
    arrivals = dict.fromkeys(range(record, sampler.steps * sampler.batch + sampler.buffer, sampler.records), 1)
    early = sum(count for at, count in arrivals.items() if at < sampler.buffer)
    law: dict[tuple[int, tuple[int, ...]], float] = {(early, (0,) * sampler.steps): 1.0}
    for draw in range(sampler.steps * sampler.batch):
        new, batch = arrivals.get(draw + sampler.buffer, 0), draw // sampler.batch
        after: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
        for (held, counts), mass in law.items():
            if held < sampler.buffer:
                after[held + new, counts] += mass * (1 - held / sampler.buffer)
            if held:
                more = (*counts[:batch], counts[batch] + 1, *counts[batch + 1 :])
                after[held - 1 + new, more] += mass * held / sampler.buffer
        law = after
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for (_, counts), mass in law.items():
        found[counts] += mass
    return found
