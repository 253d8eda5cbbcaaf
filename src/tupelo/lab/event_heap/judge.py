"""The judge: what must hold of heaps after everyone has met again, whatever has happened to them.

It looks at the history and at what is left, and knows nothing of how heaps are made. What a bridge
has carried may be in its second heap twice, if two have: there it is only asked whether it is
somewhere, and read once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tupelo.lab.event_heap.history import HeapHistory, HeapReader, Put, Read, Remains
from tupelo.lab.judge import Fault


def judge(history: HeapHistory, remains: Remains) -> list[Fault]:
    return [
        *history.faults,
        *judge_events(history, remains),
        *judge_removals(history, remains),
        *(fault for reader in history.readers for fault in judge_reader(reader, history, remains)),
        *judge_orders(history, remains),
        *judge_replays(history, remains),
        *judge_ends(history, remains),
        *judge_generations(history, remains),
    ]


def living(remains: Remains, heap: str) -> set[int]:
    return {number for held in remains.held.values() for number in held.get(heap, ())}


def is_carried(number: int, heap: str, history: HeapHistory) -> bool:
    put = history.puts.get(number)
    return put is not None and put.heap != heap


def is_moved(number: int, heap: str, history: HeapHistory) -> bool:
    """Was it carried here, or adopted? Then it has another source, and may have two places."""
    return number in history.adopted or is_carried(number, heap, history)


# Events


def judge_events(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """What was put is at every host that has the heap, unless it was removed, or ran out."""
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
                yield Fault("outlived", f"the time of {number} in {heap} has come")
        yield from judge_losses(heap, history, there)


def judge_losses(heap: str, history: HeapHistory, there: set[int]) -> Iterator[Fault]:
    removed = {one.number for one in history.removals if one.heap == heap}
    doubts = sum(one.how == "killed" for one in history.removals if one.heap == heap)
    for put in history.puts.values():
        is_sure = put.heap == heap and put.how == "done" and put.lasts
        if is_sure and put.number not in there | removed | history.excused:
            if not doubts:
                yield Fault("lost", f"{put.number} of {put.source}, in {heap}")
            doubts -= 1


def judge_removals(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """Each event is given to one who removes it, and is there no more."""
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


def judge_reader(reader: HeapReader, history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    times = Counter(read.number for read in reader.reads)
    for number, count in times.items():
        if number in reader.inherited or (count > 1 and not reader.resumed):
            yield Fault("read twice", f"{number} by {reader.name}")
        if number not in history.puts:
            yield Fault("made up", f"{number} was read by {reader.name}, and was never put")
    if reader.fifo:
        yield from judge_fifo(reader, history)
    if reader.stands and not reader.pending:
        for number in sorted(living(remains, reader.heap) - reader.seen):
            if reader.wants in ("", history.puts[number].kind):
                yield Fault("missed", f"{reader.name} has not got {number}")
    yield from judge_clones(reader)


def judge_fifo(reader: HeapReader, history: HeapHistory) -> Iterator[Fault]:
    """By one question events of a source are got in the order in which they were put there."""
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


def judge_clones(reader: HeapReader) -> Iterator[Fault]:
    """Who goes on with a clone was told so."""
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


def judge_orders(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """There is one order of each view, and all that was read in it was read in that order."""
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
        yield from judge_sources(view, order, history)
    for reader in history.readers:
        parts: dict[tuple[str, str], list[Read]] = defaultdict(list)
        for read in reader.reads:
            is_lost = (read.view, read.number) in history.unordered
            if not is_lost and not is_moved(read.number, reader.heap, history):
                parts[read.view, read.asked].append(read)
        for (view, asked), reads in parts.items():
            if view in final:
                yield from judge_part(reader, view, asked, reads, final[view], history)
                if view not in remains.horizons:
                    yield from judge_skipped(reader, view, asked, reads, final[view], history)


def judge_sources(view: str, order: list[int], history: HeapHistory) -> Iterator[Fault]:
    heaps = {history.puts[number].heap for number in order if number in history.puts}
    reads = [Read(number) for number in order]
    for heap in heaps:
        yield from judge_fifo(HeapReader(f"the order of {view}", heap, reads), history)


def judge_part(
    reader: HeapReader,
    view: str,
    asked: str,
    reads: list[Read],
    order: list[int],
    history: HeapHistory,
) -> Iterator[Fault]:
    at = {number: position for position, number in enumerate(order)}
    if strays := [read.number for read in reads if read.number not in at]:
        yield Fault("not in order", f"{reader.name} got {strays}, which {view} does not have")
        return
    positions = [at[read.number] for read in reads]
    if positions != sorted(positions):
        got = [read.number for read in reads]
        yield Fault("not in order", f"{reader.name} got {got} of {view}, whose order is {order}")


def judge_skipped(
    reader: HeapReader,
    view: str,
    asked: str,
    reads: list[Read],
    order: list[int],
    history: HeapHistory,
) -> Iterator[Fault]:
    last = max([order.index(read.number) for read in reads if read.number in order], default=0)
    gone = {one.number for one in history.removals} | history.excused
    doubts = sum(one.how == "killed" for one in history.removals)
    for number in order[:last]:
        put = history.puts.get(number)
        matches = put is not None and asked in ("", put.kind)
        if matches and put is not None and put.lasts and number not in gone | reader.seen:
            if not doubts:
                yield Fault("skipped", f"{reader.name} has passed over {number} in {view}")
            doubts -= 1


def judge_replays(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """A replay gives all that is there, in the order of the view."""
    for host, replays in remains.replays.items():
        for view, replay in replays.items():
            order = remains.orders.get(host, {}).get(view, [])
            there = set(remains.held.get(host, {}).get(remains.heap, ()))
            there = {number for number in there if not is_moved(number, remains.heap, history)}
            replayed = [one for one in replay if one in there]
            expected = [one for one in order if one in there]
            horizon = remains.horizons.get(view)
            if horizon is not None:  # What stands before may be left out.
                late = [one for one in order[len(order) - horizon :] if one in there]
                expected = expected[-max(len(late), len(replayed)) :] if replayed or late else []
            if replayed != expected:
                yield Fault("replay", f"{host} replays {replay} of {view}, whose order is {order}")


def judge_ends(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """What was ended for everyone is known nowhere."""
    for host, known in remains.known.items():
        for one in sorted(known & history.destroyed):
            yield Fault("half ended", f"{host} still has {one}")


# Heaps that come and go


def judge_generations(history: HeapHistory, remains: Remains) -> Iterator[Fault]:
    """What was destroyed is destroyed everywhere, with its events. Those of a host that has ended
    cannot be removed by others."""
    for host, generation in remains.open.items():
        if generation <= remains.destroyed:
            yield Fault("half destroyed", f"{host} still has the heap {generation}")
        for number in remains.left.get(host, ()):
            put_in, source = history.brief[number]
            if put_in <= remains.destroyed and source not in history.ended:
                yield Fault("revived", f"{number} was put in the heap {put_in}, and is at {host}")
