"""What a buffer gives out, exactly: orders of a pass, and where copies of one record are in a stream, draw by draw."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction

from dpaudit.verify.samplers import BufferedShuffle

Law = Mapping[tuple[int, ...], float]
STREAMS = [  # records, batch, buffer, steps
    (4, 2, 2, 5),
    (5, 2, 3, 6),
    (5, 2, 7, 6),
    (6, 3, 4, 5),
    (7, 3, 10, 5),
    (6, 2, 6, 8),
    (9, 2, 5, 9),
    (4, 1, 3, 10),
]


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


def orders(records: int, buffer: int) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
    """Every order in which a pass can leave the buffer, with its probability."""

    def following(held: tuple[int, ...], new: int, drawn: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        if not held:
            yield 1, drawn
        for place, record in enumerate(held):
            rest = held[:place] + held[place + 1 :] + ((new,) if new < records else ())
            for ways, order in following(rest, new + 1, (*drawn, record)):
                yield ways * len(held), order

    for ways, order in following(tuple(range(min(buffer, records))), min(buffer, records), ()):
        yield Fraction(1, ways), order
