"""Event heaps in virtual time: hosts part, crash and meet again, and what must hold of events, of
sessions and of views holds. The checker finds planted bugs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.simulation.seeds import check_replay, check_seeds
from tests.simulation.seeds import found as find
from tupelo.federation.replication.tokens import Token
from tupelo.lab.event_heap.checker import check_history
from tupelo.lab.event_heap.workload import HeapHistory, Put, ReadEvent, Remains, Removal
from tupelo.models.event_heap import orders, records, seen
from tupelo.models.event_heap.ordering import Ordering
from tupelo.models.event_heap.orders import TotalOrder
from tupelo.models.event_heap.readings import Ordered, Shared
from tupelo.models.event_heap.removing import Removing
from tupelo.models.event_heap.replica import Replica
from tupelo.models.event_heap.seen import Record

SEEDS = 5
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of those who are killed


def test_heaps_keep_their_promises():
    check_seeds("event-heap", SEEDS)


def test_a_seed_replays_exactly():
    check_replay("event-heap", 0, 1)


# The checker alone

HEAP = "board"


def sound() -> tuple[HeapHistory, Remains]:
    """Two sources put four events, of which one is removed; two read a view, one a session."""
    history = HeapHistory(lambda text: None)
    for number, source in ((1, "a"), (2, "b"), (3, "a"), (4, "b")):
        put = history.puts[number] = Put(number, "k", HEAP, source, history.tick())
        put.ended, put.how = history.tick(), "done"
    history.removals = [Removal(HEAP, 4, "done"), Removal(HEAP, None, "done")]
    for name in ("first", "second"):
        history.reader(name, HEAP).reads += [
            ReadEvent(2, "", "v"),
            ReadEvent(1, "", "v"),
            ReadEvent(3, "", "v"),
        ]
    history.reader("session", HEAP, frozenset([1])).reads += [ReadEvent(3), ReadEvent(2)]
    remains = Remains(HEAP)
    for host in "ab":
        remains.held[host] = {HEAP: [1, 3, 2]}
        remains.orders[host] = {"v": [2, 1, 4, 3]}
        remains.replays[host] = {"v": [2, 1, 3]}
    return history, remains


def test_the_checker_finds_nothing_where_nothing_is_wrong():
    assert check_history(*sound()) == []


def lose(history: HeapHistory, remains: Remains) -> None:
    for held in remains.held.values():
        held[HEAP].remove(3)


def forget_at_one(history: HeapHistory, remains: Remains) -> None:
    remains.held["b"][HEAP].remove(3)


def double(history: HeapHistory, remains: Remains) -> None:
    remains.held["a"][HEAP].append(3)


def make_up(history: HeapHistory, remains: Remains) -> None:
    for held in remains.held.values():
        held[HEAP].append(9)
    for reader in history.readers:
        reader.stands = False


def refuse(history: HeapHistory, remains: Remains) -> None:
    history.puts[3].how = "failed"


def outlive(history: HeapHistory, remains: Remains) -> None:
    history.puts[3].lasts = False


def remove_again(history: HeapHistory, remains: Remains) -> None:
    history.removals.append(Removal(HEAP, 4, "done"))


def keep_removed(history: HeapHistory, remains: Remains) -> None:
    for held in remains.held.values():
        held[HEAP].append(4)
    for reader in history.readers:
        reader.stands = False


def read_again(history: HeapHistory, remains: Remains) -> None:
    history.readers[2].reads.append(ReadEvent(3))


def read_inherited(history: HeapHistory, remains: Remains) -> None:
    history.readers[2].reads.append(ReadEvent(1))


def turn_round(history: HeapHistory, remains: Remains) -> None:
    reader = history.readers[2]
    reader.inherited = frozenset()
    reader.reads = [ReadEvent(3), ReadEvent(1), ReadEvent(2)]


def miss(history: HeapHistory, remains: Remains) -> None:
    history.readers[2].reads.pop()


def disagree(history: HeapHistory, remains: Remains) -> None:
    remains.orders["b"]["v"] = [1, 2, 4, 3]


def place_again(history: HeapHistory, remains: Remains) -> None:
    for views in remains.orders.values():
        views["v"].append(1)


def order_against_a_source(history: HeapHistory, remains: Remains) -> None:
    for views in remains.orders.values():
        views["v"] = [2, 3, 4, 1]


def read_in_another_order(history: HeapHistory, remains: Remains) -> None:
    history.readers[1].reads = [ReadEvent(1, "", "v"), ReadEvent(2, "", "v"), ReadEvent(3, "", "v")]


def read_what_has_no_place(history: HeapHistory, remains: Remains) -> None:
    for views in remains.orders.values():
        views["v"].remove(1)


def skip(history: HeapHistory, remains: Remains) -> None:
    reader = history.readers[1]
    reader.reads = [ReadEvent(2, "", "v"), ReadEvent(3, "", "v")]
    reader.stands = False


def clone_in_silence(history: HeapHistory, remains: Remains) -> None:
    history.readers[1].reads[-1] = ReadEvent(3, "", "w")


def keep_what_was_destroyed(history: HeapHistory, remains: Remains) -> None:
    remains.destroyed = 2
    remains.open["a"] = 2


def revive(history: HeapHistory, remains: Remains) -> None:
    remains.destroyed = 1
    remains.open["a"] = 2
    history.brief[7] = 1, "b"
    remains.left["a"] = [7]


def end_at_one(history: HeapHistory, remains: Remains) -> None:
    history.destroyed.add("v")
    remains.known["b"] = {"v"}


def adopt_twice(history: HeapHistory, remains: Remains) -> None:
    history.adopted[3] = "b1"
    double(history, remains)


def forget_within_the_horizon(history: HeapHistory, remains: Remains) -> None:
    remains.horizons["v"] = 3
    remains.replays["a"]["v"] = [3]


def replay_half(history: HeapHistory, remains: Remains) -> None:
    remains.replays["a"]["v"].pop()


@pytest.mark.parametrize(
    ("plant", "invariant"),
    [
        (lose, "lost"),
        (forget_at_one, "unequal"),
        (double, "doubled"),
        (make_up, "made up"),
        (refuse, "made up"),
        (outlive, "outlived"),
        (remove_again, "removed twice"),
        (keep_removed, "not removed"),
        (read_again, "read twice"),
        (read_inherited, "read twice"),
        (turn_round, "not fifo"),
        (miss, "missed"),
        (disagree, "two orders"),
        (place_again, "two places"),
        (order_against_a_source, "not fifo"),
        (read_in_another_order, "not in order"),
        (read_what_has_no_place, "not in order"),
        (skip, "skipped"),
        (clone_in_silence, "silent clone"),
        (replay_half, "replay"),
        (end_at_one, "half ended"),
        (adopt_twice, "doubled"),
        (forget_within_the_horizon, "replay"),
        (keep_what_was_destroyed, "half destroyed"),
        (revive, "revived"),
    ],
    ids=lambda one: one.__name__ if callable(one) else one.replace(" ", "_"),
)
def test_the_checker_finds_what_is_planted(
    plant: Callable[[HeapHistory, Remains], None], invariant: str
) -> None:
    history, remains = sound()
    plant(history, remains)
    assert invariant in {fault.invariant for fault in check_history(history, remains)}


def test_the_checker_excuses_what_went_down_with_a_host():
    history, remains = sound()
    lose(history, remains)
    history.excused.add(3)
    assert check_history(history, remains) == []
    history, remains = sound()
    lose(history, remains)
    history.removals[1].how = "killed"  # It may have been that one.
    assert check_history(history, remains) == []
    history, remains = sound()
    clone_in_silence(history, remains)
    history.readers[1].announced.add(("v", "w"))
    assert check_history(history, remains) == []


def test_the_checker_knows_what_was_adopted_resumed_or_is_beyond_the_horizon():
    history, remains = sound()
    history.adopted[1] = "b1"
    place_again(history, remains)
    assert check_history(history, remains) == []
    history, remains = sound()
    read_again(history, remains)
    history.readers[2].resumed = True
    assert check_history(history, remains) == []
    history, remains = sound()
    remains.horizons["v"] = 2
    for replay in remains.replays.values():
        replay["v"] = [3]
    skip(history, remains)
    assert check_history(history, remains) == []


# Planted bugs


found = partial(find, "event-heap", seeds=100)


def test_a_token_that_the_giver_keeps_is_noticed(monkeypatch):
    async def asked(token: Token, source: str, *others: Any) -> Any:
        answer = await original(token, source, *others)
        if answer is not None and answer[0] == "given":
            token.here = True
        return answer

    original = Token.asked
    monkeypatch.setattr(Token, "asked", asked)
    found("two owners")


def test_a_session_that_is_shared_without_its_record_is_noticed(monkeypatch):
    monkeypatch.setattr(seen, "read_record", lambda encoded: Record())
    found("read twice", "read again")


def test_a_session_that_goes_on_beside_the_one_that_was_lost_is_noticed(monkeypatch):
    monkeypatch.setattr(Token, "is_contested", False)
    found("read again", first=94)


def test_batches_of_an_order_that_are_joined_as_they_come_are_noticed(monkeypatch):
    def receive(ordering: Ordering, start: int, places: Any) -> bool:
        ordering._join(len(ordering), places)
        return True

    monkeypatch.setattr(Ordering, "receive", receive)
    found("two orders", "two places", "not in order", first=43)


def test_an_event_that_is_removed_at_a_copy_is_noticed(monkeypatch):
    """It is given to whoever asks for it, wherever it lives."""

    async def remove(removing: Removing, place: Any, away: Any, refusals: Any) -> bool:
        await asyncio.sleep(0)
        return True

    monkeypatch.setattr(Removing, "_remove", remove)
    found("removed twice", "not removed")


def test_a_clone_that_nobody_is_told_of_is_noticed(monkeypatch):
    def cloned(reading: Ordered, order: TotalOrder, clone: Any) -> None:
        reading.order = order
        reading._low = 0
        reading._cursors.clear()

    monkeypatch.setattr(Ordered, "switch", cloned)
    found("silent clone", first=16)


def test_a_fold_that_forgets_what_lives_is_noticed(monkeypatch):
    def encode(view: str, base: int, kept: Any, last: dict[str, int]) -> Any:
        return original(view, base, [], last)

    original = records.encode_folded
    monkeypatch.setattr(orders, "encode_folded", encode)
    found("replay", "missed", "skipped")


def test_what_is_adopted_and_stays_at_its_source_as_well_is_noticed(monkeypatch):
    monkeypatch.setattr(Replica, "_let_go", lambda replica, source: None)
    found("doubled", "removed twice", "not removed", first=5)


def test_a_record_that_is_not_kept_is_noticed(monkeypatch):
    async def get(shared: Shared, template: Any, *others: Any) -> Any:
        return await shared._copies.rest(template)

    monkeypatch.setattr(Shared, "_get", get)
    found("read twice")
