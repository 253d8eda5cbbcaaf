"""Unread tracking: how large a record of a million read messages is, and how fast.

The record is the one that a session of a MELON process keeps: a roaring bitmap for each writer. It
is compared with the sparse bit set of the dissertation (5.7), written down here as it is described
there, and with a Python set. All of them remember the same messages.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import lgamma, log
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
from matplotlib.figure import Figure
from pyroaring import BitMap64

from benchmarks.measure import (
    ROUNDS_MIN,
    Line,
    Settings,
    Table,
    Target,
    in_fresh_process,
    require,
)
from benchmarks.memory import resident_bytes
from tupelo.federation.spanning.records import SeenRecord
from tupelo.values.entry import Entry, freeze

MESSAGES = 1_000_000
HOSTS = 50
RANDOM_OF = 2**32
LOOKED_UP = 200_000
DISSERTATION_BITS = 1.6
PLOTTED = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)

Message = tuple[int, int]
"""Which host wrote it, and its number there."""

encode = msgspec.msgpack.Encoder().encode


def origin(host: int) -> str:
    """An id like those of hosts."""
    return f"{Random(host).getrandbits(128):032x}"


ORIGINS = [origin(host) for host in range(HOSTS)]


# The messages that were read


def consecutive(count: int) -> Iterator[Message]:
    return ((0, n) for n in range(1, count + 1))


def scattered(count: int) -> Iterator[Message]:
    """Random numbers below 2^32, each at most once."""
    return ((0, _shuffled(n)) for n in range(1, count + 1))


def _shuffled(n: int) -> int:
    """A permutation of the numbers below 2^32 (the finalizer of MurmurHash3)."""
    n = (n ^ n >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    n = (n ^ n >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return n ^ n >> 16


def every_other(count: int) -> Iterator[Message]:
    """A random half of the numbers, as if a template matched every other message."""
    numbers = Random(2)
    return islice(((0, n) for n in range(4 * count) if numbers.getrandbits(1)), count)


def interleaved(count: int) -> Iterator[Message]:
    """Messages of 50 hosts in random order, those of each host in its own order."""
    rng, last = Random(3), [0] * HOSTS
    for _ in range(count):
        host = rng.randrange(HOSTS)
        last[host] += 1
        yield host, last[host]


KINDS: dict[str, Callable[[int], Iterator[Message]]] = {
    "consecutive, of one host": consecutive,
    f"interleaved, of {HOSTS} hosts": interleaved,
    "random, half of all numbers": every_other,
    "random, of 2^32 numbers": scattered,
}
TIMED = ("consecutive, of one host", f"interleaved, of {HOSTS} hosts", "random, of 2^32 numbers")


def _least_bits(kind: str, count: int) -> float:
    """The information-theoretic minimum, in bits a message."""
    space = {"random, half of all numbers": 2 * count, "random, of 2^32 numbers": RANDOM_OF}
    if kind not in space:
        return 0.0
    n = space[kind]
    return (lgamma(n + 1) - lgamma(count + 1) - lgamma(n - count + 1)) / log(2) / count


# The sparse bit set of the dissertation


class SparseBitSet:
    """A hash table of bit fields of 64 bits, by the upper part of the number (5.7). The host and
    the number of a message are one number by the pairing of equation 5.1; that of the host is above
    those of all messages, as is recommended there, so that consecutive messages stay together."""

    def __init__(self) -> None:
        self.fields: dict[int, int] = {}

    @staticmethod
    def paired(host: int, number: int) -> int:
        p = 2 * MESSAGES + host
        return number * number + number + p if number >= p else p * p + number

    def add(self, q: int) -> None:
        self.fields[q >> 6] = self.fields.get(q >> 6, 0) | 1 << (q & 63)

    def __contains__(self, q: int) -> bool:
        return self.fields.get(q >> 6, 0) >> (q & 63) & 1 == 1

    def serialised(self) -> bytes:
        return encode(self.fields)


# Sizes


@dataclass(frozen=True)
class Size:
    """Bits a message of an encoded record of so many messages."""

    messages: int
    ours: float
    sparse: float


Sizes = dict[str, list[Size]]
"""By kind: the sizes of a growing record."""


def measure_sizes(settings: Settings) -> Sizes:
    counts = [count for count in PLOTTED if count <= settings.size(MESSAGES)]
    return {kind: _sizes(kind, counts) for kind in KINDS}


def _sizes(kind: str, counts: list[int]) -> list[Size]:
    """The sizes of one record as it grows."""
    record, sparse = SeenRecord(), SparseBitSet()
    found, done = [], 0
    messages = KINDS[kind](counts[-1])
    several = kind.startswith("inter")
    for count in counts:
        for host, number in islice(messages, count - done):
            record.add_number(ORIGINS[host], number)
            # Alone in its set a host need not be paired with its messages.
            sparse.add(SparseBitSet.paired(host, number) if several else number)
        done = count
        require(len(record) == count, "each message should be remembered once")
        require(sum(n.bit_count() for n in sparse.fields.values()) == count, "and there too")
        ours = len(encode(record.all_notes())) * 8 / count
        found.append(Size(count, ours, len(sparse.serialised()) * 8 / count))
    return found


def lines(rows: Sizes) -> list[Line]:
    """The lines of messages that are read in order; for others every record is larger."""
    return [
        Line(
            f"a record of {found[-1].messages:,} read messages, {kind}: bits a message, as sent",
            "the sparse bit set",
            "bits",
            Target("≤", DISSERTATION_BITS, of="ours"),
            [found[-1].ours],
            [found[-1].sparse],
        )
        for kind, found in rows.items()
        if not kind.startswith("random")
    ]


def tables(rows: Sizes, settings: Settings) -> list[Table]:
    return [_size_table(rows), _speed_table(settings)]


def _size_table(found: Sizes) -> Table:
    rows: list[tuple[str, ...]] = []
    for kind, sizes_of in found.items():
        size = sizes_of[-1]
        count = size.messages
        memory = [in_fresh_process(grown, way, kind, count) for way in ("record", "sparse", "set")]
        least = _least_bits(kind, count)
        rows.append(
            (
                kind,
                _short(size.ours),
                _short(size.sparse),
                f"{DISSERTATION_BITS}" if kind.startswith("consecutive") else "–",
                _short(least) if least else "–",
                *(f"{one:.3g}" for one in memory),
            )
        )
    return Table(
        f"A record of {count:,} read messages",
        (
            "messages",
            "ours, bits a message",
            "sparse bit set",
            "the dissertation's",
            "the least for any",
            "ours in memory, bytes a message",
            "sparse bit set",
            "a set",
        ),
        rows,
        "Bits as they are sent if all is told at once: ours with the hosts' ids, the sparse bit "
        "set (5.7: a hash table of fields of 64 bits) in MessagePack. The dissertation gives one "
        "figure, 1.6 bits, of consecutive messages. The least is what tells one such set from all "
        "others. In memory: what a fresh process grows by, the numbers in the set included, which "
        "are pairs of host and number where there are several hosts.",
    )


def grown(way: str, kind: str, count: int) -> float:
    """The growth of the process, in bytes a message."""
    several = kind.startswith("inter")
    messages = KINDS[kind](count)
    if way == "record":
        record = SeenRecord()
        before = resident_bytes()
        for host, number in messages:
            record.add_number(ORIGINS[host], number)
    elif way == "sparse":
        sparse = SparseBitSet()
        before = resident_bytes()
        for host, number in messages:
            sparse.add(SparseBitSet.paired(host, number) if several else number)
    else:
        seen: set[Any] = set()
        before = resident_bytes()
        for host, number in messages:
            seen.add((ORIGINS[host], number) if several else number)
    return max(0, resident_bytes() - before) / count


def _short(bits: float) -> str:
    return f"{bits:.2g}" if bits < 1 else f"{bits:.3g}"


# Speed


def _speed_table(settings: Settings) -> Table:
    count = settings.size(MESSAGES)
    rows: list[tuple[str, ...]] = []
    for kind in TIMED:
        rounds = in_fresh_process(time_rounds, kind, count)
        for place, operation in enumerate(("add", "look up, it is there", "look up, it is not")):
            ours, pairs, bitmap, plain, sparse = (
                [one[place] for one in column] for column in zip(*rounds, strict=True)
            )
            rows.append(
                (
                    kind,
                    operation,
                    f"{median(ours):,.0f}",
                    f"{median(pairs):,.0f}",
                    _ratio(ours, pairs),
                    f"{median(bitmap):,.0f}",
                    f"{median(plain):,.0f}",
                    _ratio(bitmap, plain),
                    f"{median(sparse):,.0f}",
                )
            )
    return Table(
        f"Adding {count:,} messages to a record, and looking them up",
        (
            "messages",
            "operation",
            "record, ns",
            "set of pairs, ns",
            "ratio",
            "bitmap alone, ns",
            "set of numbers, ns",
            "ratio",
            "sparse bit set, ns",
        ),
        rows,
        f"Nanoseconds an operation, loop included; medians of {ROUNDS_MIN} rounds in turns, and of "
        "the rounds' ratios. The record is asked as sessions ask it, by entries that name their "
        "writer; the set beside it holds pairs of writer and number. Then the structures alone, by "
        f"numbers. {min(count, LOOKED_UP):,} are looked up, in any order. The sparse bit set is "
        "written in Python here, and in Ruby there.",
    )


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


@dataclass(frozen=True)
class Work:
    """The messages to add and to look up, in the form that each record needs."""

    pairs: list[tuple[str, int]]
    numbers: list[int]
    there: list[Entry]
    numbers_there: list[int]
    absent: list[Entry]
    numbers_absent: list[int]


Times = tuple[float, float, float]
"""Nanoseconds of an add, of a look-up that finds and of one that does not."""


def time_rounds(kind: str, count: int) -> list[list[Times]]:
    """Nanoseconds, by round and kind of record."""
    messages = list(KINDS[kind](count))
    there = Random(4).sample(messages, min(count, LOOKED_UP))
    known = set(messages)
    absent = [(host, n + 1) for host, n in there if (host, n + 1) not in known]
    if len(absent) < len(there) // 4:  # Nothing is between them.
        absent = [(host, n + count) for host, n in there]
    work = Work(
        [(ORIGINS[host], n) for host, n in messages],
        [_number(one) for one in messages],
        _entries(there),
        [_number(one) for one in there],
        _entries(absent),
        [_number(one) for one in absent],
    )
    del known, messages
    gc.freeze()
    ways: tuple[Callable[[Work], Times], ...] = (
        _record,
        _set_of_pairs,
        lambda work: _alone(BitMap64(), work),
        lambda work: _alone(set(), work),
        lambda work: _alone(SparseBitSet(), work),
    )
    return [[way(work) for way in ways] for _ in range(ROUNDS_MIN + 1)][1:]


def _entries(messages: list[Message]) -> list[Entry]:
    shape, fields = freeze(("news", 1))
    return [Entry(fields, shape, ORIGINS[host], n, n) for host, n in messages]


def _number(message: Message) -> int:
    """One unique number for host and number."""
    return message[0] << 33 | message[1]


def _record(work: Work) -> Times:
    record = SeenRecord()
    add = record.add_number
    start = perf_counter()
    for origin_, n in work.pairs:
        add(origin_, n)
    seconds = perf_counter() - start
    return _looked_up(seconds, len(work.pairs), record, work.there, work.absent)


def _alone(held: Any, work: Work) -> Times:
    add = held.add
    start = perf_counter()
    for n in work.numbers:
        add(n)
    seconds = perf_counter() - start
    return _looked_up(seconds, len(work.numbers), held, work.numbers_there, work.numbers_absent)


def _looked_up(adding: float, count: int, held: Any, there: list[Any], absent: list[Any]) -> Times:
    found = 0
    start = perf_counter()
    for value in there:
        if value in held:
            found += 1
    looked = perf_counter()
    for value in absent:
        if value in held:
            found += 1
    missed = perf_counter()
    return _times(found, adding, count, looked - start, len(there), missed - looked, len(absent))


def _set_of_pairs(work: Work) -> Times:
    seen: set[tuple[str, int]] = set()
    add = seen.add
    start = perf_counter()
    for origin_, n in work.pairs:
        add((origin_, n))
    added = perf_counter()
    found = 0
    for entry in work.there:
        if (entry.origin, entry.n) in seen:
            found += 1
    looked = perf_counter()
    for entry in work.absent:
        if (entry.origin, entry.n) in seen:
            found += 1
    missed = perf_counter()
    finding, missing = looked - added, missed - looked
    there, absent = len(work.there), len(work.absent)
    return _times(found, added - start, len(work.pairs), finding, there, missing, absent)


def _times(
    found: int, adding: float, count: int, finding: float, there: int, missing: float, absent: int
) -> Times:
    require(found == there, "what was added should be found, and nothing else")
    return adding / count * 1e9, finding / there * 1e9, missing / absent * 1e9


# The plot


def plot(rows: Sizes, path: Path) -> None:
    """As figure 5.3: how large a record is, over how many messages were read."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for one, (kind, found) in zip(axes, rows.items(), strict=True):
        counts = [size.messages for size in found]
        one.loglog(counts, [size.ours for size in found], "o-", label="roaring bitmaps")
        one.loglog(counts, [size.sparse for size in found], "s-", label="sparse bit set")
        one.axhline(DISSERTATION_BITS, color="grey", ls="--", label="1.6 bits")
        one.set(xlabel="messages read", title=kind)
        one.grid(True, which="major", alpha=0.3)
    axes[0].set_ylabel("bits a message, as it is sent")
    axes[0].legend()
    figure.suptitle("A record of what was read")
    figure.savefig(path, dpi=120)
