"""Appendix B.4: the operations under transactions, with the ids of the thesis."""

# ruff: noqa: N802 (the ids are encoded as in the thesis)

from tests.models.javaspaces.doors import (
    SIMPLE,
    TIMEOUT,
    Parked,
    SimpleEntry,
    at_once,
    drain,
    fill,
    in_order,
)
from tupelo.models.javaspaces import ABORTED, ACTIVE, COMMITTED, FOREVER, NO_WAIT

ENTRY = SimpleEntry(1, "one", True)


def test_appendix_b_T_1_what_was_written_is_there_after_the_commit(javaspace, begin):
    transaction = begin()
    javaspace.write(ENTRY, transaction)
    transaction.commit()
    assert transaction.state == COMMITTED
    assert drain(javaspace) == [ENTRY]


def test_appendix_b_T_2_what_was_written_is_gone_after_the_rollback(javaspace, begin):
    transaction = begin()
    javaspace.write(ENTRY, transaction)
    transaction.abort()
    assert transaction.state == ABORTED
    assert drain(javaspace) == []


def test_appendix_b_T_3_what_was_taken_is_gone_after_the_commit(javaspace, begin):
    fill(javaspace, *SIMPLE)
    transaction = begin()
    found = javaspace.take(SimpleEntry(), transaction, TIMEOUT)
    transaction.commit()
    left = drain(javaspace)
    assert len(left) == 9
    assert in_order([found, *left]) == in_order(SIMPLE)


def test_appendix_b_T_4_what_was_taken_is_back_after_the_rollback(javaspace, begin):
    fill(javaspace, *SIMPLE)
    transaction = begin()
    found = javaspace.take(SimpleEntry(), transaction, TIMEOUT)
    assert found in SIMPLE
    transaction.abort()
    assert in_order(drain(javaspace)) == in_order(SIMPLE)


def test_appendix_b_T_5_written_and_taken_within_is_never_seen_after_the_commit(javaspace, begin):
    transaction = begin()
    javaspace.write(ENTRY, transaction)
    assert javaspace.take(SimpleEntry(), transaction, TIMEOUT) == ENTRY
    transaction.commit()
    assert drain(javaspace) == []


def test_appendix_b_T_6_written_and_taken_within_is_never_seen_after_the_rollback(javaspace, begin):
    transaction = begin()
    javaspace.write(ENTRY, transaction)
    assert javaspace.take(SimpleEntry(), transaction, TIMEOUT) == ENTRY
    transaction.abort()
    assert drain(javaspace) == []


def test_appendix_b_T_7_a_take_blocks_until_the_other_transaction_times_out(javaspace, begin):
    # The table says "Empty space", where no take could succeed; an entry is meant to be there. The
    # second take is more patient than the first transaction, whose end it is meant to see.
    javaspace.write(ENTRY)
    first = begin(5)
    assert javaspace.take(SimpleEntry(), first, TIMEOUT) == ENTRY
    second = begin(FOREVER)
    taker = Parked(javaspace, javaspace.take, SimpleEntry(), second, timeout=2 * TIMEOUT)
    assert taker.ends_after(5) == ENTRY
    assert (first.state, second.state) == (ABORTED, ACTIVE)
    second.commit()
    assert drain(javaspace) == []


def test_appendix_b_T_8_a_take_in_another_transaction_does_not_see_the_write(
    javaspace, begin, clock
):
    first = begin(5)
    javaspace.write(ENTRY, first)
    second = begin(FOREVER)
    clock.advance(1)  # so that the take outlives the first transaction, and learns nothing by it
    taker = Parked(javaspace, javaspace.take, SimpleEntry(), second, timeout=TIMEOUT)
    assert taker.ends_after(TIMEOUT) is None
    assert (first.state, second.state) == (ABORTED, ACTIVE)


def test_appendix_b_T_9_a_take_outside_does_not_see_the_write(javaspace, begin, clock):
    first = begin(5)
    javaspace.write(ENTRY, first)
    clock.advance(1)
    taker = Parked(javaspace, javaspace.take, SimpleEntry(), None, timeout=TIMEOUT)
    assert taker.ends_after(TIMEOUT) is None
    assert first.state == ABORTED


def test_appendix_b_T_10_a_take_is_not_served_by_a_write_that_is_rolled_back(
    world, javaspace, begin
):
    transaction = begin(FOREVER)
    taker = Parked(javaspace, javaspace.take, SimpleEntry(), transaction, timeout=TIMEOUT)

    def other_client() -> None:
        other, inside = world.client(javaspace), begin(FOREVER)
        other.write(ENTRY, inside)
        inside.abort()

    at_once(other_client)
    assert taker.waits
    assert taker.ends_after(TIMEOUT) is None
    assert transaction.state == ACTIVE


def test_appendix_b_T_11_a_take_is_not_served_by_what_is_written_and_taken_within(
    world, javaspace, begin
):
    transaction = begin(FOREVER)
    taker = Parked(javaspace, javaspace.take, SimpleEntry(), transaction, timeout=TIMEOUT)

    def other_client() -> None:
        other, inside = world.client(javaspace), begin(FOREVER)
        other.write(ENTRY, inside)
        assert other.take(SimpleEntry(), inside, NO_WAIT) == ENTRY
        inside.commit()

    at_once(other_client)
    assert taker.waits
    assert taker.ends_after(TIMEOUT) is None
    assert transaction.state == ACTIVE
