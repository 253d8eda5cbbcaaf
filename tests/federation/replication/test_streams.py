"""One stream, at its source and at one who has a copy of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tupelo.errors import BadFrame
from tupelo.federation.replication.messages import AliveNumbers, ItemBatch, StreamMark, read
from tupelo.federation.replication.streams import NumberedItems, Stream

WINDOW = 40


def encode(item: Any) -> bytes:
    return msgspec.msgpack.encode(item)


def parcel(stream: Stream, after: int, bytes_max: int = WINDOW) -> tuple[ItemBatch, NumberedItems]:
    """As it arrives, with the items that it brings."""
    sent = stream.batch("feed", after, bytes_max, encode, answers=True)
    arrived = read(msgspec.msgpack.encode(sent))
    assert isinstance(arrived, ItemBatch)
    return arrived, [(number, item) for number, item in arrived.items]


def give(source: Stream, copy: Stream, bytes_max: int = WINDOW) -> None:
    """One parcel, and what died before that."""
    if source.tombstones > copy.tombstones:
        copy.outlive(source.living("feed"))
    sent, items = parcel(source, copy.upto, bytes_max)
    copy.keep(copy.receive(sent, items) or [])


def made(*numbers: int) -> Stream:
    stream = Stream("a/1")
    stream.append([(number, f"item {number}") for number in numbers])
    return stream


def test_a_copy_gets_what_it_lacks_window_by_window():
    source, copy = made(*range(1, 101)), Stream("a/1")
    windows = 0
    while copy.lacks(source.mark):
        give(source, copy)
        windows += 1
    assert copy.items == source.items
    assert 15 < windows < 40


def test_one_item_that_is_larger_than_a_window_is_told_by_itself():
    source, copy = made(1, 2, 3), Stream("a/1")
    sent, items = parcel(source, 0, 1)
    assert [number for number, _ in items] == [1]
    assert (sent.upto, sent.more) == (1, True)
    copy.keep(copy.receive(sent, items) or [])
    assert copy.mark == StreamMark(1, 0)


def test_a_parcel_that_would_leave_a_hole_is_refused():
    source, copy = made(1, 2, 3), Stream("a/1")
    sent, items = parcel(source, 2)
    assert copy.receive(sent, items) is None
    assert copy.mark == StreamMark(0, 0)


def test_what_was_received_before_is_dropped():
    source, copy = made(1, 2, 3), Stream("a/1")
    give(source, copy, 1_000)
    sent, items = parcel(source, 1, 1_000)
    assert copy.receive(sent, items) == []
    source.append([(9, "item 9")])
    sent, items = parcel(source, 1, 1_000)
    assert copy.receive(sent, items) == [(9, "item 9")]


def test_what_has_died_before_it_comes_does_not_come():
    source, copy = made(1, 2, 3), Stream("a/1")
    late, items = parcel(source, 0, 1_000)
    numbers, _ = source.mark_removed([2])
    assert copy.died(0, numbers) == []
    assert copy.receive(late, items) == [(1, "item 1"), (3, "item 3")]
    assert copy.mark == source.mark
    assert copy.alive == source.alive


def test_who_has_missed_tombstones_is_told_what_lives():
    source, copy = made(*range(1, 10)), Stream("a/1")
    give(source, copy, 1_000)
    source.mark_removed([2])
    numbers, _ = source.mark_removed([5, 6])
    assert copy.died(1, numbers) is None
    assert copy.outlive(source.living("feed")) == ["item 2", "item 5", "item 6"]
    assert copy.mark == source.mark
    assert copy.died(0, [2]) == []


def test_a_parcel_after_tombstones_that_were_not_told_is_refused():
    source, copy = made(1, 2), Stream("a/1")
    source.mark_removed([1])
    sent, items = parcel(source, 0)
    assert copy.receive(sent, items) is None


def test_numbers_at_a_source_grow():
    with pytest.raises(ValueError, match="does not come after"):
        made(3, 3)
    with pytest.raises(ValueError, match="does not come after"):
        made(2**63)


@pytest.mark.parametrize(
    "living",
    [
        AliveNumbers("feed", "a/1", 5, 3, b"no bitmap", BitMap64().serialize()),
        AliveNumbers("feed", "a/1", 5, 3, BitMap64([6]).serialize(), BitMap64().serialize()),
        AliveNumbers("feed", "a/1", 5, 3, BitMap64().serialize(), BitMap64([5]).serialize()),
        AliveNumbers("feed", "a/1", 5, 3, BitMap64().serialize(), BitMap64([2**63]).serialize()),
    ],
    ids=["no bitmap", "lives beyond", "dead within", "too great"],
)
def test_what_cannot_live_is_refused(living):
    copy = Stream("a/1")
    with pytest.raises(BadFrame):
        copy.outlive(living)
    assert copy.mark == StreamMark(0, 0)


@pytest.mark.parametrize(
    "body",
    [
        [6, "feed", "a/1", 5, 4, 0, [], True],
        [6, "feed", "a/1", 0, 5, 0, [[3, 1], [3, 1]], True],
        [6, "feed", "a/1", 0, 5, 0, [[6, 1]], True],
        [6, "feed", "a/1", 3, 5, 0, [[3, 1]], True],
        [6, "feed", "a/1", 0, 2**63, 0, [], True],
        [6, "feed", "a/1", -1, 5, 0, [], True],
        [6, "feed", "", 0, 5, 0, [], True],
        [1, "feed", "a/1", True, [], {"a/1": [-1, 0]}],
        [1, "feed", "a/1", True, [], {"": [1, 0]}],
        [7, "feed", "a/1", 0, [-3]],
        [99, "feed"],
        None,
        "feed",
    ],
    ids=repr,
)
def test_what_is_no_message_is_refused(body):
    with pytest.raises(BadFrame):
        read(msgspec.msgpack.encode(body))


Act = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 5)),
    st.tuples(st.just("mark_removed"), st.integers(0, 30)),
    st.tuples(st.just("give"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("late parcel"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("late deaths"), st.integers(0, 2)),
)


@given(st.lists(Act, max_size=60))
def test_copies_of_copies_never_have_holes_nor_what_is_dead(acts):
    source = Stream("a/1")
    streams = [source, Stream("a/1"), Stream("a/1")]
    written: dict[int, str] = {}
    removed: list[int] = []
    under_way: list[tuple[int, list[int]]] = []
    for act, *args in acts:
        if act == "write":
            for _ in range(args[0]):
                number = source.upto + 1 + len(removed) % 3
                written[number] = f"item {number}"
                source.append([(number, written[number])])
        elif act == "mark_removed":
            chosen = [number for number in source.items if number % 7 == args[0] % 7][:3]
            under_way.append((source.tombstones, chosen))
            removed += chosen
            source.mark_removed(chosen)
        elif act == "give" and args[1]:
            give(streams[args[0]], streams[args[1]])
        elif act == "late parcel" and args[1]:
            giver, copy = streams[args[0]], streams[args[1]]
            sent, items = parcel(giver, max(0, copy.upto - 2))
            copy.keep(copy.receive(sent, items) or [])
        elif act == "late deaths" and under_way and args[0]:
            streams[args[0]].died(*under_way[-1])
        for copy in streams:
            due = {number for number in written if number <= copy.upto}
            assert due - set(removed) <= copy.items.keys() <= due - set(removed[: copy.tombstones])
            assert list(copy.items) == sorted(copy.items)
            assert {number for number in copy.alive if number <= copy.upto} == copy.items.keys()
    for _ in range(100):
        give(source, streams[1])
        give(streams[1], streams[2])
    assert streams[1].items == streams[2].items == source.items
    assert streams[1].mark == streams[2].mark == source.mark


def test_removals_of_what_has_not_come_yet_cost_nothing():
    """Few bytes say that very many numbers live, and then that they do not."""
    copy, none = Stream("a/1"), BitMap64().serialize()
    many = BitMap64()
    many.add_range(1, 2**32)
    many.run_optimize()
    assert copy.outlive(AliveNumbers("feed", "a/1", 2**32, 1, many.serialize(), none)) == []
    assert copy.outlive(AliveNumbers("feed", "a/1", 2**32, 2, none, none)) == []
    assert not copy.alive
    assert copy.tombstones == 2
