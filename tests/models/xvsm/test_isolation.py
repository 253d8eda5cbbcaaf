"""Isolation levels, and tests of locks: who sees what others have read, taken and written."""

from typing import Any

import pytest

from tupelo.errors import BadArgument, CountNotMet, Deadlock, DuplicateKey, EntryLocked
from tupelo.models.xvsm import (
    COUNT_ALL,
    INFINITE,
    INFINITE_TIMEOUT,
    READ_COMMITTED,
    REPEATABLE_READ,
    TRY_ONCE,
    AnySelector,
    Entry,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    LifoCoordinator,
    LifoSelector,
    LindaCoordinator,
    LindaSelector,
    Point,
    RandomSelector,
    VectorCoordinator,
    VectorSelector,
    Veto,
)

ALL = FifoSelector(COUNT_ALL)


@pytest.fixture
def queue(capi):
    coordinators = (FifoCoordinator(), LifoCoordinator())
    return capi.create_container(None, None, "queue", INFINITE, *coordinators)


@pytest.fixture
def begin(capi):
    return lambda timeout=INFINITE_TIMEOUT: capi.create_transaction(None, timeout)


def committed(capi: Any, cref: Any, tx: Any, *selectors: Any, timeout: float = TRY_ONCE) -> Any:
    return capi.read(cref, timeout, tx, *selectors, isolation=READ_COMMITTED)


def is_locked(call: Any) -> bool:
    with pytest.raises(CountNotMet) as caught:
        call()
    return type(caught.value) is EntryLocked


# Isolation levels


def test_a_repeatable_read_holds_what_it_has_read(capi, queue, begin):
    capi.write(queue, 0, None, 1)
    tx = begin()
    assert capi.read(queue, 0, tx, FifoSelector(), isolation=REPEATABLE_READ) == [1]
    with pytest.raises(CountNotMet):
        capi.take(queue, TRY_ONCE, None, FifoSelector())
    assert capi.read(queue, 0, tx, FifoSelector()) == [1]
    capi.commit_transaction(tx)
    assert capi.take(queue, TRY_ONCE, None, FifoSelector()) == [1]


def test_a_read_of_what_is_committed_holds_nothing(capi, queue, begin):
    capi.write(queue, 0, None, 1, 2)
    tx = begin()
    assert committed(capi, queue, tx, FifoSelector(2)) == [1, 2]
    assert capi.take(queue, TRY_ONCE, None, FifoSelector()) == [1]
    assert committed(capi, queue, tx, ALL) == [2]
    capi.commit_transaction(tx)


def test_what_others_have_taken_is_there_until_they_commit(capi, queue, begin):
    capi.write(queue, 0, None, 1, 2, 3)
    taker, reader = begin(), begin()
    assert capi.take(queue, 0, taker, FifoSelector(2)) == [1, 2]
    for tx in (None, reader):
        assert capi.read(queue, 0, tx, FifoSelector()) == [3]
        assert committed(capi, queue, tx, FifoSelector()) == [1]
        assert committed(capi, queue, tx, FifoSelector(2)) == [1, 2]
        assert committed(capi, queue, tx, ALL) == [1, 2, 3]
        assert committed(capi, queue, tx, LifoSelector()) == [3]
        assert committed(capi, queue, tx, LifoSelector(2)) == [3, 2]
        assert sorted(committed(capi, queue, tx, RandomSelector(3))) == [1, 2, 3]
        assert committed(capi, queue, tx, AnySelector(2), LifoSelector()) == [2]
        with pytest.raises(CountNotMet):
            committed(capi, queue, tx, FifoSelector(4))
    assert committed(capi, queue, taker, ALL) == [3]
    capi.commit_transaction(taker)
    assert committed(capi, queue, None, ALL) == [3]
    capi.commit_transaction(reader)  # which held 3
    taker = begin()
    assert capi.take(queue, 0, taker, FifoSelector()) == [3]
    capi.rollback_transaction(taker)
    assert committed(capi, queue, None, ALL) == [3]


def test_what_others_have_written_is_not_there_before_they_commit(capi, queue, begin, wait_at):
    writer, reader = begin(), begin()
    capi.write(queue, 0, writer, 1)
    capi.write(queue, 0, reader, 2)
    assert committed(capi, queue, None, ALL) == []
    assert committed(capi, queue, writer, ALL) == [1]
    assert committed(capi, queue, reader, ALL, timeout=INFINITE_TIMEOUT) == [2]  # without a wait
    read = lambda: committed(capi, queue, None, FifoSelector(), timeout=INFINITE_TIMEOUT)  # noqa: E731
    call = wait_at(queue, read)
    capi.commit_transaction(writer)
    assert call.result() == [1]
    assert committed(capi, queue, reader, ALL) == [1, 2]
    assert capi.take(queue, TRY_ONCE, None, FifoSelector()) == [1]  # which nobody holds


def test_what_is_committed_is_found_by_every_coordinator(capi, begin):
    coordinators = (KeyCoordinator(), LindaCoordinator(), VectorCoordinator())
    cref = capi.create_container(None, None, None, INFINITE, *coordinators)
    for i, key in enumerate("abc"):
        capi.write(cref, 0, None, Entry((key, i), KeySelector(key)))
    taker = begin()
    assert capi.take(cref, 0, taker, VectorSelector(1)) == [("b", 1)]
    with pytest.raises(CountNotMet):
        capi.read(cref, 0, None, KeySelector("b"))
    assert committed(capi, cref, None, KeySelector("b")) == [("b", 1)]
    assert committed(capi, cref, None, LindaSelector(("b", int))) == [("b", 1)]
    everything = [("a", 0), ("b", 1), ("c", 2)]
    assert committed(capi, cref, None, VectorSelector(0, COUNT_ALL)) == everything
    assert capi.read(cref, 0, None, VectorSelector(0, COUNT_ALL)) == [("a", 0), ("c", 2)]
    with pytest.raises(CountNotMet):
        committed(capi, cref, taker, KeySelector("b"))


def test_what_expires_while_it_is_taken_is_gone(capi, queue, here, begin, clock):
    here(queue).space.write(("leased",), lease=5)
    taker = begin()
    assert capi.take(queue, 0, taker, FifoSelector()) == [("leased",)]
    assert committed(capi, queue, None, ALL) == [("leased",)]
    clock.advance(6)
    assert committed(capi, queue, None, ALL) == []
    with pytest.raises(CountNotMet):
        capi.test(queue, 0, None, FifoSelector())


def test_a_transaction_that_times_out_gives_back_what_was_seen_all_the_time(
    capi, queue, begin, clock
):
    capi.write(queue, 0, None, 1)
    taker = begin(5)
    capi.take(queue, 0, taker, FifoSelector())
    assert committed(capi, queue, None, ALL) == [1]
    clock.advance(6)
    assert committed(capi, queue, None, ALL) == capi.read(queue, 0, None, ALL) == [1]


def test_a_wait_for_what_another_has_written_can_be_a_deadlock(capi, queue, begin, wait_at):
    capi.write(queue, 0, None, "x")
    first, second = begin(), begin()
    capi.take(queue, 0, first, FifoSelector())
    capi.write(queue, 0, second, "y")
    call = wait_at(queue, capi.take, queue, INFINITE_TIMEOUT, second, FifoSelector(2))
    with pytest.raises(Deadlock):
        committed(capi, queue, first, FifoSelector(), timeout=INFINITE_TIMEOUT)
    capi.rollback_transaction(first)
    assert call.result() == ["x", "y"]


# Tests


def test_a_test_counts_and_holds_nothing(capi, queue, begin):
    capi.write(queue, 0, None, 1, 2, 3)
    tx = begin()
    for operation in ("read", "take"):
        for isolation in (READ_COMMITTED, REPEATABLE_READ):
            how = {"operation": operation, "isolation": isolation}
            assert capi.test(queue, 0, tx, FifoSelector(2), **how) == 2
            assert capi.test(queue, 5, tx, ALL, **how) == 3
            assert capi.test(queue, INFINITE_TIMEOUT, None, **how) == 1
    with pytest.raises(CountNotMet) as caught:
        capi.test(queue, 0, tx, FifoSelector(4))
    assert type(caught.value) is CountNotMet
    assert (caught.value.wanted, caught.value.found) == (4, 3)
    assert capi.take(queue, TRY_ONCE, None, FifoSelector(3)) == [1, 2, 3]
    assert capi.test(queue, 0, tx, ALL) == 0
    capi.commit_transaction(tx)


def test_a_test_tells_what_is_locked_from_what_is_not_there(capi, queue, begin):
    capi.write(queue, 0, None, 1, 2)
    taker, reader, writer = begin(), begin(), begin()
    capi.read(queue, 0, reader, FifoSelector())
    assert capi.test(queue, 0, None, FifoSelector(2)) == 2
    assert is_locked(lambda: capi.test(queue, 0, None, FifoSelector(2), operation="take"))
    assert capi.test(queue, 0, None, FifoSelector(), operation="take") == 1
    assert capi.test(queue, 0, reader, FifoSelector(2), operation="take") == 2
    assert capi.take(queue, 0, taker, FifoSelector()) == [2]
    capi.write(queue, 0, writer, 3)
    for tx in (None, reader):
        assert is_locked(lambda tx=tx: capi.test(queue, 0, tx, FifoSelector(2)))
        assert capi.test(queue, 0, tx, FifoSelector(2), isolation=READ_COMMITTED) == 2
        assert not is_locked(lambda tx=tx: capi.test(queue, 0, tx, FifoSelector(3)))
    assert not is_locked(lambda: capi.test(queue, 0, taker, FifoSelector(2)))
    assert capi.test(queue, 0, writer, LifoSelector(2)) == 2  # 3, which is its own, and 1
    # At either level a take waits for the locks of others.
    how = {"operation": "take", "isolation": READ_COMMITTED}
    assert is_locked(lambda: capi.test(queue, 0, None, FifoSelector(), **how))
    capi.commit_transaction(taker)
    assert not is_locked(lambda: capi.test(queue, 0, None, FifoSelector(2)))
    capi.commit_transaction(reader)
    assert capi.test(queue, 0, None, FifoSelector(), **how) == 1


def test_a_test_waits_while_the_lock_is_held(capi, queue, begin, wait_at):
    capi.write(queue, 0, None, 1)
    for commit in (False, True):
        taker = begin()
        capi.take(queue, 0, taker, FifoSelector())
        call = wait_at(queue, capi.test, queue, INFINITE_TIMEOUT, None, FifoSelector())
        if commit:
            capi.commit_transaction(taker)
            assert call.waits
            capi.write(queue, 0, None, 2)
        else:
            capi.rollback_transaction(taker)
        assert call.result() == 1
    assert capi.take(queue, TRY_ONCE, None, FifoSelector()) == [2]


def test_a_test_that_times_out_says_whether_a_lock_was_in_the_way(
    capi, queue, begin, wait_at, clock
):
    capi.write(queue, 0, None, 1)
    reader = begin()
    capi.read(queue, 0, reader, FifoSelector())

    def take_it() -> Any:
        return capi.test(queue, 5, None, FifoSelector(), operation="take")

    def take_two() -> Any:
        return capi.test(queue, 5, None, FifoSelector(2), operation="take")

    calls = [wait_at(queue, work, timed=True) for work in (take_it, take_two)]
    clock.advance(6)
    assert [is_locked(call.result) for call in calls] == [True, False]
    call = wait_at(queue, take_it, timed=True)
    capi.commit_transaction(reader)
    assert call.result() == 1


def test_what_was_tested_keeps_its_key_and_place_and_was_not_removed(capi, wait_at, until):
    coordinators = (KeyCoordinator(), VectorCoordinator())
    cref = capi.create_container(None, None, None, INFINITE, *coordinators)
    heard: list[Any] = []
    listen = lambda *told: heard.append(told[2])  # noqa: E731
    capi.create_notification(cref, listen, "destroy", every_removal=True)

    def test_take() -> Any:
        return capi.test(cref, INFINITE_TIMEOUT, None, KeySelector("k"), operation="take")

    call = wait_at(cref, test_take)
    capi.write(cref, 0, None, Entry("v", KeySelector("k")))
    assert call.result() == test_take() == 1
    with pytest.raises(DuplicateKey):
        capi.write(cref, 0, None, Entry("w", KeySelector("k")))
    assert capi.take(cref, 0, None, VectorSelector(0)) == ["v"]
    until(lambda: heard)
    assert heard == [["v"]]


def test_who_tests_and_waits_is_in_nobodys_way(capi, queue, wait_at):
    def test_take() -> Any:
        how = {"operation": "take"}
        return capi.test(queue, INFINITE_TIMEOUT, None, FifoSelector(), **how)

    tests = [wait_at(queue, test_take) for _ in range(2)]
    taker = wait_at(queue, capi.take, queue, INFINITE_TIMEOUT, None, FifoSelector())
    capi.write(queue, 0, None, 1)
    assert taker.result() == [1]
    assert [call.result() for call in tests] == [1, 1]
    with pytest.raises(CountNotMet):
        capi.read(queue, 0, None, FifoSelector())


def test_aspects_are_asked_about_tests(capi, queue):
    class Forbids:
        def pre_test(self, request: Any) -> Veto:
            values = request.values
            return Veto(f"{values['operation']} {values['isolation']!r}")

        def post_read(self, request: Any) -> None:
            request.result = [request.values["isolation"].name]

    capi.write(queue, 0, None, 1)
    capi.add_aspect(queue, [Point.PRE_TEST, Point.POST_READ], Forbids())
    with pytest.raises(Exception, match="take READ_COMMITTED"):
        capi.test(queue, 0, None, FifoSelector(), operation="take", isolation=READ_COMMITTED)
    assert committed(capi, queue, None, FifoSelector()) == ["READ_COMMITTED"]


def test_levels_and_operations_that_make_no_sense_are_refused(capi, queue):
    for wrong in (None, "read_committed", True):
        with pytest.raises(BadArgument, match="isolation="):
            capi.read(queue, 0, None, FifoSelector(), isolation=wrong)
        with pytest.raises(BadArgument, match="isolation="):
            capi.test(queue, 0, None, FifoSelector(), isolation=wrong)
    for operation in (None, "write", b"take"):
        with pytest.raises(BadArgument, match="operation="):
            capi.test(queue, 0, None, FifoSelector(), operation=operation)
    with pytest.raises(BadArgument, match="timeout="):
        capi.test(queue, -1, None, FifoSelector())
