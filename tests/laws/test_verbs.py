"""write, write_all, read, take, read_all, take_all, count."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.laws.kinds import Job
from tests.laws.talk import drained, entries_of, state_of
from tupelo import ANY, Lease
from tupelo.errors import BadEntry


def test_a_read_leaves_the_entry_and_a_take_removes_it(space):
    space.write(("a", 1))
    assert space.read(("a", int), wait=0) == ("a", 1)
    assert space.read(("a", int), wait=0) == ("a", 1)
    assert space.take(("a", int), wait=0) == ("a", 1)
    assert space.take(("a", int), wait=0) is None
    assert space.read(("a", int), wait=0) is None


def test_equal_entries_are_different_entries(space):
    space.write_all([("a",), ("a",), ("a",)])
    assert space.count(("a",)) == 3
    assert space.take(("a",), wait=0) == ("a",)
    assert space.count(("a",)) == 2


def test_without_a_template_everything_matches(space):
    space.write_all([(1,), Job("x"), ()])
    assert space.count() == 3
    assert space.read(wait=0) == (1,)
    assert space.read_all() == [(1,), Job("x"), ()]
    assert space.take(wait=0) == (1,)
    assert space.take_all() == [Job("x"), ()]


def test_write_answers_with_a_lease(space):
    lease = space.write(("a",))
    assert isinstance(lease, Lease) and lease.expires is None and lease.remaining is None
    leases = space.write_all([("b",), ("c",)], lease=10)
    assert [lease.remaining for lease in leases] == [10, 10]
    leases[0].cancel()
    assert space.read_all() == [("a",), ("c",)]


def test_entries_come_in_the_order_in_which_they_were_written(space):
    space.write(("n", 0))
    space.write_all([("n", 1), ("n", 2.0), ("n", "3")])
    space.write(("n", 4))
    assert space.read_all(("n", ANY)) == [("n", 0), ("n", 1), ("n", 2.0), ("n", "3"), ("n", 4)]
    taken = [space.take(("n", ANY), wait=0)[1] for _ in range(5)]
    assert taken == [0, 1, 2.0, "3", 4]


def test_each_source_is_served_in_its_own_order(space, later):
    def write(source):
        for i in range(20):
            space.write((source, i))

    writers = [later(write, source) for source in ("a", "b", "c")]
    for writer in writers:
        writer.result()
    taken = [space.take(wait=0) for _ in range(60)]
    for source in ("a", "b", "c"):
        assert [e for e in taken if e[0] == source] == [(source, i) for i in range(20)]


def test_order_holds_when_entries_come_and_go(space):
    for i in range(90):
        space.write(("n", i))
        if i % 3 == 2:
            space.take(("n", i - 1), wait=0)
        if i % 5 == 4:
            space.take(("n", int), wait=0)
    left = [entry[1] for entry in space.read_all(("n", int))]
    assert left == sorted(left)
    assert [entry[1] for entry in space.take_all(("n", int))] == left


def test_a_limit_gives_the_first_so_many(space):
    space.write_all([("n", i) for i in range(5)])
    assert space.read_all(("n", int), limit=2) == [("n", 0), ("n", 1)]
    assert space.take_all(("n", int), limit=2) == [("n", 0), ("n", 1)]
    assert space.take_all(("n", int), limit=100) == [("n", 2), ("n", 3), ("n", 4)]
    assert space.take_all(("n", int), limit=1) == []


def test_count_counts_what_matches(space):
    space.write_all([("n", i) for i in range(10)] + [("m", 1), Job("x")])
    assert space.count() == 12
    assert space.count(("n", int)) == 10
    assert space.count((str, 1)) == 2
    assert space.count(Job) == 1
    assert space.count(("x",)) == 0


def test_a_write_of_many_is_all_or_nothing(space):
    space.write(("before",))
    before = state_of(space)
    listener = space.subscribe()
    with pytest.raises(BadEntry, match="entry 2: field 1") as refused:
        space.write_all([("a", 1), ("b", 2), ("c", {3}), ("d", 4)])
    assert refused.value.found is set and "entry 2" in refused.value.where
    assert state_of(space) == before
    assert drained(listener) == []


def test_a_write_of_many_that_cannot_be_counted_out_writes_nothing(space):
    def entries() -> Iterator[Any]:
        yield ("a",)
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        space.write_all(entries())
    assert space.count() == 0


def test_a_write_of_many_becomes_visible_all_at_once(space, park):
    waiter = park(space, space.take_all, ("a", int), wait=None)
    space.write_all([("a", 1), ("a", 2), ("b", 0), ("a", 3)])
    assert waiter.result() == [("a", 1), ("a", 2), ("a", 3)]
    assert space.read_all() == [("b", 0)]


def test_a_write_of_none_writes_nothing(space):
    listener = space.subscribe()
    assert space.write_all([]) == []
    assert space.count() == 0 and drained(listener) == []


def test_a_write_of_many_takes_any_iterable(space):
    space.write_all(("n", i) for i in range(3))
    space.write_all({("s",)})
    assert space.read_all() == [("n", 0), ("n", 1), ("n", 2), ("s",)]


def test_a_thousand_entries_of_many_shapes(space):
    listener = space.subscribe(backlog_max=2_000)
    shapes = [(1,), (1.0,), ("x",), (None, 1), ([1], 2), Job("x", 1), ((1, 2),), (True, False, "y")]
    entries = [shapes[i % len(shapes)] for i in range(1_000)]
    for start in range(0, 1_000, 250):
        space.write_all(entries[start : start + 250])
    assert entries_of(drained(listener)) == entries
    assert space.read_all() == entries
    assert space.count(Job) == 125
    assert len(space.take_all((ANY, ANY))) == 250
    assert space.count() == 750


def test_the_space_says_its_name(space):
    assert space.name.partition("-")[0] == "laws" and "laws" in repr(space)
