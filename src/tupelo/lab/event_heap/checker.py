"""The checker of the Event Heap: the invariants that hold when all hosts have met again, whatever
faults there were.

It looks at the history and at what is left, and knows nothing of the implementation. An event that
bridges have copied may be in the second heap twice, if there are two bridges: there it is only
checked that the event exists, and is read once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tupelo.lab.event_heap.workload import (
    HeapHistory,
    HeapReader,
    HeapSimulation,
    Put,
    ReadEvent,
    Remains,
)
from tupelo.lab.simulation import Fault


def check(world: HeapSimulation) -> list[Fault]:
    return check_history(world.history, world.remains)


def check_history(history: HeapHistory, remains: Remains) -> list[Fault]:
    return [
        *history.faults,
        *check_events(history, remains),
        *check_removals(history, remains),
        *(fault for reader in history.readers for fault in check_reader(reader, history, remains)),
        *check_orders(history, remains),
        *check_replays(history, remains),
        *check_ends(history, remains),
        *check_generations(history, remains),
    ]


def living(remains: Remains, heap: str) -> set[int]:
    return {number for held in remains.held.values() for number in held.get(heap, ())}


def is_carried(number: int, heap: str, history: HeapHistory) -> bool:
    put = history.puts.get(number)
    return put is not None and put.heap != heap


def is_moved(number: int, heap: str, history: HeapHistory) -> bool:
    """Whether an event was copied by a bridge, or adopted: it has another source then, and may have
    two places."""
    return number in history.adopted or is_carried(number, heap, history)


# Events


def check_events(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """Every event is at all hosts with the heap, unless it was removed or has expired."""
    heaps = sorted({heap for held in remains.held.values() for heap in held})
    for heap in heaps:
        held = {host: there[heap] for host, there in remains.held.items() if heap in there}
        there = living(remains, heap)
        for host, numbers in held.items():
            if lacking := sorted(there.difference(numbers)):
                yield Fault("unequal", f"{host} lacks {lacking} of {heap}")
            for number, count in Counter(numbers).items():
                is_twice = count > 1 and number not in history.loose
                if is_twice and not is_carried(number, heap, history):
                    yield Fault("doubled", f"{number} is {count} times at {host}, in {heap}")
        for number in sorted(there):
            put = history.puts.get(number)
            if put is None or put.how == "failed":
                yield Fault("made up", f"{number} is in {heap}, and was never put")
            elif not put.lasts:
                yield Fault("outlived", f"the lease of {number} in {heap} has ended")
        yield from check_losses(heap, history, there)


def check_losses(heap: str, history: HeapHistory, there: set[int]) -> Iterator[Fault]:
    removed = {one.number for one in history.removals if one.heap == heap}
    doubts = sum(one.how == "killed" for one in history.removals if one.heap == heap)
    for put in history.puts.values():
        is_sure = put.heap == heap and put.how == "done" and put.lasts
        if is_sure and put.number not in there | removed | history.excused:
            if not doubts:
                yield Fault("lost", f"{put.number} of {put.source}, in {heap}")
            doubts -= 1


def check_removals(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """Every event is removed once, and is gone then."""
    times = Counter((one.heap, one.number) for one in history.removals if one.number is not None)
    for (heap, number), count in times.items():
        if number is None or is_carried(number, heap, history) or number in history.loose:
            continue
        if count > 1:
            yield Fault("removed twice", f"{number} of {heap}")
        if number in living(remains, heap) and number not in history.untold:
            yield Fault("not removed", f"{number} of {heap}")
        if number not in history.puts:
            yield Fault("made up", f"{number} was removed from {heap}, and was never put")


# Readers


def check_reader(reader: HeapReader, history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    times = Counter(read.number for read in reader.reads)
    for number, count in times.items():
        if number in reader.inherited or (count > 1 and not reader.resumed):
            yield Fault("read twice", f"{number} by {reader.name}")
        if number not in history.puts:
            yield Fault("made up", f"{number} was read by {reader.name}, and was never put")
    if reader.fifo:
        yield from check_fifo(reader, history)
    if reader.stands and not reader.pending:
        missed = living(remains, reader.heap) - reader.seen
        if hidden := [remains.hidden.get(host, set()) for host in reader.hosts]:
            missed -= hidden[0].intersection(*hidden)
        for number in sorted(missed):
            if reader.wants in ("", history.puts[number].kind):
                yield Fault("missed", f"{reader.name} has not got {number}")
    yield from check_clones(reader)


def check_fifo(reader: HeapReader, history: HeapHistory) -> Iterator[Fault]:
    """Reads with one template get the events of a source in the order in which they were put."""
    latest: dict[tuple[str, str], Put] = {}
    for read in reader.reads:
        put = history.puts.get(read.number)
        if put is None or is_moved(read.number, reader.heap, history):
            continue
        key = put.source, read.asked
        before = latest.get(key)
        if before is not None and put.ended < before.begun:
            yield Fault("not fifo", f"{reader.name} got {put.number} after {before.number}")
        if before is None or put.begun > before.begun:
            latest[key] = put


def check_clones(reader: HeapReader) -> Iterator[Fault]:
    """A reader that goes on with the clone of a view was told so."""
    views = [read.view for read in reader.reads if read.view]
    for old, new in pairwise(views):
        known, ahead = {old}, [old]
        while ahead:
            one = ahead.pop()
            further = {to for come, to in reader.announced if come == one} - known
            known |= further
            ahead += further
        if new not in known:
            yield Fault("silent clone", f"{reader.name} went from {old} to {new} and was not told")


# Orders


def check_orders(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """All hosts have the same order of a view, and its readers read in this order."""
    final: dict[str, list[int]] = {}
    for host, orders in remains.orders.items():
        for view, order in orders.items():
            if final.setdefault(view, order) != order:
                yield Fault("two orders", f"{host} has another one of {view} than others")
    final = {
        view: [number for number in order if not is_moved(number, remains.heap, history)]
        for view, order in final.items()
    }
    for view, order in final.items():
        if twice := [number for number, count in Counter(order).items() if count > 1]:
            yield Fault("two places", f"{twice} in {view}")
        yield from check_sources(view, order, history)
    for reader in history.readers:
        parts: dict[tuple[str, str], list[ReadEvent]] = defaultdict(list)
        for read in reader.reads:
            is_lost = (read.view, read.number) in history.unordered
            if not is_lost and not is_moved(read.number, reader.heap, history):
                parts[read.view, read.asked].append(read)
        for (view, asked), reads in parts.items():
            if view in final and view not in history.destroying:
                yield from check_part(reader, view, reads, final[view])
                if view not in remains.horizons:
                    yield from check_skipped(reader, view, asked, reads, final[view], history)


def check_sources(view: str, order: list[int], history: HeapHistory) -> Iterator[Fault]:
    heaps = {history.puts[number].heap for number in order if number in history.puts}
    reads = [ReadEvent(number) for number in order]
    for heap in heaps:
        yield from check_fifo(HeapReader(f"the order of {view}", heap, reads), history)


def check_part(
    reader: HeapReader, view: str, reads: list[ReadEvent], order: list[int]
) -> Iterator[Fault]:
    at = {number: position for position, number in enumerate(order)}
    if strays := [read.number for read in reads if read.number not in at]:
        yield Fault("not in order", f"{reader.name} got {strays}, which {view} does not have")
        return
    positions = [at[read.number] for read in reads]
    if positions != sorted(positions):
        got = [read.number for read in reads]
        yield Fault("not in order", f"{reader.name} got {got} of {view}, whose order is {order}")


def check_skipped(
    reader: HeapReader,
    view: str,
    asked: str,
    reads: list[ReadEvent],
    order: list[int],
    history: HeapHistory,
) -> Iterator[Fault]:
    last = max([order.index(read.number) for read in reads if read.number in order], default=0)
    gone = {one.number for one in history.removals} | history.excused
    doubts = sum(one.how == "killed" for one in history.removals)
    for number in order[:last]:
        put = history.puts.get(number)
        if put is None or not put.lasts or asked not in ("", put.kind):
            continue
        if number not in gone | reader.seen:
            if not doubts:
                yield Fault("skipped", f"{reader.name} has passed over {number} in {view}")
            doubts -= 1


def check_replays(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """A replay returns all events that are there, in the order of the view."""
    for host, replays in remains.replays.items():
        for view, replay in replays.items():
            order = remains.orders.get(host, {}).get(view, [])
            there = set(remains.held.get(host, {}).get(remains.heap, ()))
            there -= remains.hidden.get(host, set())
            there = {number for number in there if not is_moved(number, remains.heap, history)}
            replayed = [one for one in replay if one in there]
            expected = [one for one in order if one in there]
            horizon = remains.horizons.get(view)
            if horizon is not None:  # Events before the horizon may be left out.
                late = [one for one in order[len(order) - horizon :] if one in there]
                expected = expected[-max(len(late), len(replayed)) :] if replayed or late else []
            if replayed != expected:
                yield Fault("replay", f"{host} replays {replay} of {view}, whose order is {order}")


def check_ends(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """A view or session that was destroyed is known at no host."""
    for host, known in remains.known.items():
        for one in sorted(known & history.destroyed):
            yield Fault("half ended", f"{host} still has {one}")


# Generations of a heap


def check_generations(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """A heap that was destroyed is destroyed at all hosts, with its events. Other hosts cannot
    remove the events of a host that has ended."""
    for host, generation in remains.open.items():
        if generation <= remains.destroyed:
            yield Fault("half destroyed", f"{host} still has the heap {generation}")
        for number in remains.left.get(host, ()):
            put_in, source = history.brief[number]
            if put_in <= remains.destroyed and source not in history.ended:
                yield Fault("revived", f"{number} was put in the heap {put_in}, and is at {host}")
