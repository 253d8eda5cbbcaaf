"""Transactions: all or nothing, seen by nobody before."""

import pytest

from tests.laws.talk import drained, entries_of, refused, state_of
from tupelo import ANY
from tupelo.errors import BadArgument, Deadlock, TransactionEnded, TransactionError

# Isolation


def test_what_a_transaction_writes_only_it_sees(space):
    txn = space.transaction()
    space.write(("a",), txn=txn)
    space.write_all([("b",), ("c",)], txn=txn)
    assert space.read_all() == [] and space.count() == 0
    assert space.read(("a",), wait=0) is None and space.take(("a",), wait=0) is None
    assert space.read(("a",), wait=0, txn=txn) == ("a",)
    assert space.read_all(txn=txn) == [("a",), ("b",), ("c",)]
    assert space.count(txn=txn) == 3
    other = space.transaction()
    assert space.count(txn=other) == 0
    txn.commit()
    assert space.read_all() == [("a",), ("b",), ("c",)]
    assert space.count(txn=other) == 3


def test_a_transaction_sees_the_space_and_its_own_writes_after(space):
    space.write(("n", 1))
    txn = space.transaction()
    space.write(("n", 2), txn=txn)
    space.write(("n", 3))
    assert space.read_all(("n", int), txn=txn) == [("n", 1), ("n", 3), ("n", 2)]
    assert space.take(("n", 2), wait=0, txn=txn) == ("n", 2)
    assert space.take(("n", 2), wait=0, txn=txn) is None
    txn.commit()
    assert space.read_all() == [("n", 1), ("n", 3)]


def test_what_a_transaction_takes_nobody_sees(space):
    space.write_all([("a", i) for i in range(3)])
    txn = space.transaction()
    assert space.take(("a", 1), wait=0, txn=txn) == ("a", 1)
    for onlooker in (None, txn, space.transaction()):
        assert space.read_all(txn=onlooker) == [("a", 0), ("a", 2)]
        assert space.take(("a", 1), wait=0, txn=onlooker) is None


def test_commit_makes_all_of_it_true(space):
    space.write_all([("old", i) for i in range(3)])
    with space.transaction() as txn:
        space.take_all(("old", ANY), limit=2, txn=txn)
        space.write(("new", 1), txn=txn)
    assert txn.state == "committed"
    assert space.read_all() == [("old", 2), ("new", 1)]


def test_abort_makes_nothing_of_it_true(space):
    space.write_all([("old", i) for i in range(3)])
    before = state_of(space)
    txn = space.transaction()
    space.take(("old", 1), wait=0, txn=txn)
    space.take_all(("old", ANY), txn=txn)
    space.read(wait=0, txn=txn)
    space.write(("new", 1), txn=txn)
    txn.abort()
    assert txn.state == "aborted"
    assert state_of(space) == before


def test_entries_given_back_are_in_their_place(space):
    space.write_all([("n", i) for i in range(150)])
    txn = space.transaction()
    for i in (0, 1, 70, 149):
        space.take(("n", i), wait=0, txn=txn)
    space.write(("n", 150))
    txn.abort()
    assert [entry[1] for entry in space.read_all()] == list(range(151))


def test_entries_committed_come_after_what_was_there(space):
    txn = space.transaction()
    space.write(("early",), txn=txn)
    space.write(("late",))
    txn.commit()
    assert space.read_all() == [("late",), ("early",)]


def test_a_commit_is_seen_all_at_once(space, park):
    waiter = park(space, space.read_all, ("a", int), wait=None)
    with space.transaction() as txn:
        for i in range(3):
            space.write(("a", i), txn=txn)
    assert waiter.result() == [("a", 0), ("a", 1), ("a", 2)]


# Locks


def test_what_is_read_in_a_transaction_others_may_read_but_not_take(space):
    space.write(("a",))
    txn, other = space.transaction(), space.transaction()
    assert space.read(("a",), wait=0, txn=txn) == ("a",)
    assert space.read(("a",), wait=0) == ("a",)
    assert space.read(("a",), wait=0, txn=other) == ("a",)
    assert space.take(("a",), wait=0) is None
    assert space.take_all() == []
    txn.commit()
    assert space.take(("a",), wait=0) is None  # The other one holds it still.
    other.abort()
    assert space.take(("a",), wait=0) == ("a",)


def test_a_taker_passes_over_what_is_held_by_reading(space):
    space.write_all([("n", i) for i in range(3)])
    txn = space.transaction()
    space.read(("n", 0), wait=0, txn=txn)
    assert space.take(("n", int), wait=0) == ("n", 1)
    assert space.take(("n", 0), wait=0) is None
    assert space.take(("n", int), wait=0, txn=txn) == ("n", 0)


def test_the_only_reader_may_take_what_it_read(space):
    space.write(("a",))
    with space.transaction() as txn:
        assert space.read(("a",), wait=0, txn=txn) == ("a",)
        assert space.take(("a",), wait=0, txn=txn) == ("a",)
        assert space.read(("a",), wait=0) is None
    assert space.count() == 0


def test_what_was_read_and_taken_comes_back_free(space):
    space.write(("a",))
    txn = space.transaction()
    space.read(("a",), wait=0, txn=txn)
    space.take(("a",), wait=0, txn=txn)
    txn.abort()
    assert space.take(("a",), wait=0) == ("a",)


def test_a_blocked_taker_gets_what_a_reader_lets_go(space, park):
    space.write(("a",))
    txn = space.transaction()
    space.read(("a",), wait=0, txn=txn)
    taker = park(space, space.take, ("a",))
    txn.commit()
    assert taker.result() == ("a",)


def test_a_waiting_reader_holds_what_it_is_given(space, park):
    txn = space.transaction()
    taker = park(space, space.take, ("a",))
    reader = park(space, space.read, ("a",), txn=txn)
    space.write(("a",))
    assert reader.result() == ("a",)
    assert taker.waits
    txn.commit()
    assert taker.result() == ("a",)


def test_read_all_in_a_transaction_holds_all(space):
    space.write_all([("n", i) for i in range(3)])
    txn = space.transaction()
    assert len(space.read_all(("n", int), txn=txn, limit=2)) == 2
    assert space.take_all() == [("n", 2)]
    txn.abort()
    assert space.take_all() == [("n", 0), ("n", 1)]


# If it exists


@pytest.mark.parametrize("verb", ["read", "take"])
def test_if_exists_answers_at_once_when_nothing_could_come(space, verb):
    txn = space.transaction()
    space.write(("other",), txn=txn)
    assert getattr(space, verb)(("a",), if_exists=True) is None
    space.write(("a",))
    assert getattr(space, verb)(("a",), if_exists=True) == ("a",)


@pytest.mark.parametrize("verb", ["read", "take"])
def test_what_is_locked_is_not_missing(space, park, verb):
    space.write(("a",))
    txn = space.transaction()
    space.take(("a",), wait=0, txn=txn)
    waiter = park(space, getattr(space, verb), ("a",), if_exists=True)
    txn.abort()
    assert waiter.result() == ("a",)


@pytest.mark.parametrize("verb", ["read", "take"])
def test_if_exists_gives_none_when_the_lock_is_settled_without_a_match(space, park, verb):
    space.write(("a",))
    txn = space.transaction()
    space.take(("a",), wait=0, txn=txn)
    waiter = park(space, getattr(space, verb), ("a",), if_exists=True)
    txn.commit()
    assert waiter.result() is None


def test_if_exists_waits_for_a_write_that_is_not_committed(space, park):
    txn = space.transaction()
    space.write(("a",), txn=txn)
    waiter = park(space, space.read, ("a",), if_exists=True)
    txn.commit()
    assert waiter.result() == ("a",)


def test_if_exists_gives_none_when_the_write_is_called_off(space, park):
    txn = space.transaction()
    space.write(("a",), txn=txn)
    waiter = park(space, space.take, ("a",), if_exists=True)
    txn.abort()
    assert waiter.result() is None


def test_if_exists_take_waits_for_a_reader(space, park):
    space.write(("a",))
    txn = space.transaction()
    space.read(("a",), wait=0, txn=txn)
    assert space.read(("a",), if_exists=True) == ("a",)
    waiter = park(space, space.take, ("a",), if_exists=True)
    txn.commit()
    assert waiter.result() == ("a",)


def test_if_exists_waits_for_the_last_of_several(space, park):
    first, second = space.transaction(), space.transaction()
    space.write(("a", 1), txn=first)
    space.write(("a", 2), txn=second)
    waiter = park(space, space.take, ("a", int), if_exists=True)
    first.abort()
    assert waiter.waits
    second.commit()
    assert waiter.result() == ("a", 2)


def test_if_exists_has_patience_too(space, park, clock):
    txn = space.transaction()
    space.write(("a",), txn=txn)
    waiter = park(space, space.read, ("a",), if_exists=True, wait=3)
    clock.advance(3)
    assert waiter.result() is None
    assert space.read(("a",), if_exists=True, wait=0) is None


def test_if_exists_ends_with_the_lease_of_the_transaction(space, park, clock):
    txn = space.transaction(lease=5)
    space.write(("a",), txn=txn)
    waiter = park(space, space.read, ("a",), if_exists=True)
    clock.advance(5)
    assert waiter.result() is None


def test_if_exists_ends_when_the_held_entry_expires(space, park, clock):
    space.write(("a",), lease=5)
    txn = space.transaction()
    space.read(("a",), wait=0, txn=txn)
    waiter = park(space, space.take, ("a",), if_exists=True)
    clock.advance(5)
    assert waiter.result() is None


def test_if_exists_gives_none_when_the_transaction_takes_its_own_write_back(space, park):
    txn = space.transaction()
    space.write(("a",), txn=txn)
    waiter = park(space, space.read, ("a",), if_exists=True)
    space.take(("a",), wait=0, txn=txn)
    assert waiter.result() is None


def test_ones_own_locks_are_no_reason_to_wait(space):
    space.write(("a",))
    txn = space.transaction()
    space.take(("a",), wait=0, txn=txn)
    assert space.read(("a",), if_exists=True, txn=txn) is None


# Deadlock


def test_a_deadlock_is_an_error_not_silence(space, park):
    space.write_all([("a",), ("b",)])
    one, two = space.transaction(), space.transaction()
    space.take(("a",), wait=0, txn=one)
    space.take(("b",), wait=0, txn=two)
    waiter = park(space, space.take, ("b",), txn=one)
    with pytest.raises(Deadlock, match="abort one of them") as deadlock:
        space.take(("a",), txn=two)
    assert deadlock.value.txn_id == two.id and deadlock.value.waits_for == [one.id]
    two.abort()
    assert waiter.result() == ("b",)
    one.commit()
    assert space.count() == 0


def test_a_deadlock_of_three_is_found(space, park):
    space.write_all([("n", i) for i in range(3)])
    txns = [space.transaction() for _ in range(3)]
    for i in range(3):
        space.take(("n", i), wait=0, txn=txns[i])
    first = park(space, space.take, ("n", 1), txn=txns[0])
    second = park(space, space.read, ("n", 2), txn=txns[1])
    with pytest.raises(Deadlock):
        space.take(("n", 0), txn=txns[2])
    txns[2].abort()
    assert second.result() == ("n", 2)
    txns[1].abort()
    assert first.result() == ("n", 1)


def test_two_readers_who_both_want_to_take_are_a_deadlock(space, park):
    space.write(("a",))
    one, two = space.transaction(), space.transaction()
    space.read(("a",), wait=0, txn=one)
    space.read(("a",), wait=0, txn=two)
    waiter = park(space, space.take, ("a",), txn=one)
    with pytest.raises(Deadlock):
        space.take(("a",), txn=two)
    two.abort()
    assert waiter.result() == ("a",)


def test_waiting_for_a_transaction_that_can_go_on_is_no_deadlock(space, park):
    space.write_all([("a",), ("b",)])
    one, two = space.transaction(), space.transaction()
    space.take(("a",), wait=0, txn=one)
    waiter = park(space, space.take, ("a",), txn=two)
    one.abort()
    assert waiter.result() == ("a",)


def test_waiting_for_what_anyone_may_write_is_no_deadlock(space, park):
    one, two = space.transaction(), space.transaction()
    first = park(space, space.take, ("x",), txn=one)
    second = park(space, space.take, ("y",), txn=two)
    space.write_all([("x",), ("y",)])
    assert first.result() == ("x",) and second.result() == ("y",)


def test_a_deadlock_leaves_the_transaction_as_it_was(space, park):
    space.write_all([("a",), ("b",)])
    one, two = space.transaction(), space.transaction()
    space.take(("a",), wait=0, txn=one)
    space.take(("b",), wait=0, txn=two)
    waiter = park(space, space.take, ("b",), txn=one)
    with pytest.raises(Deadlock):
        space.take_all(("a",), wait=5, txn=two)
    assert two.state == "active"
    two.commit()
    assert waiter.waits
    one.abort()
    with pytest.raises(TransactionEnded):
        waiter.result()
    assert space.read_all() == [("a",)]


# Ends


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_ended_transaction_can_do_no_more(space, end):
    txn = space.transaction()
    getattr(txn, end)()
    space.write(("a",))
    refused(
        TransactionEnded,
        f"{txn.id} is {txn.state}",
        lambda: space.write(("b",), txn=txn),
        lambda: space.write_all([("b",)], txn=txn),
        lambda: space.read(("a",), txn=txn),
        lambda: space.take(("a",), txn=txn),
        lambda: space.read_all(txn=txn),
        lambda: space.take_all(txn=txn),
        lambda: space.count(txn=txn),
        lambda: space.subscribe(txn=txn),
        lambda: txn.transaction(),
        lambda: txn.commit(),
        lambda: txn.prepare(),
    )
    assert space.take_all() == [("a",)]


def test_aborting_twice_is_harmless_but_a_commit_cannot_be_called_off(space):
    txn = space.transaction()
    txn.abort()
    txn.abort()
    txn = space.transaction()
    txn.commit()
    with pytest.raises(TransactionEnded):
        txn.abort()


def test_whoever_waits_in_a_transaction_that_ends_is_told(space, park):
    for end in ("commit", "abort"):
        txn = space.transaction()
        waiter = park(space, space.take, ("a",), txn=txn)
        getattr(txn, end)()
        with pytest.raises(TransactionEnded):
            waiter.result()
        space.write(("a",))
        assert space.take(("a",), wait=0) == ("a",)


def test_a_transaction_of_another_space_is_refused(space, make_space):
    stranger = make_space().transaction()
    refused(
        BadArgument,
        "txn=",
        lambda: space.write(("a",), txn=stranger),
        lambda: space.take(("a",), txn=stranger),
        lambda: space.read_all(txn=stranger),
        lambda: space.count(txn=stranger),
        lambda: space.subscribe(txn=stranger),
    )
    assert space.count() == 0


def test_the_end_of_a_with_block_commits(space):
    with space.transaction() as txn:
        space.write(("a",), txn=txn)
    assert txn.state == "committed" and space.count() == 1


@pytest.mark.parametrize("error", [ValueError("oh"), KeyboardInterrupt()])
def test_an_error_in_a_with_block_aborts_and_goes_on(space, error):
    with pytest.raises(type(error)), space.transaction() as txn:
        space.write(("a",), txn=txn)
        raise error
    assert txn.state == "aborted" and space.count() == 0


def test_a_with_block_that_ended_its_transaction_itself_is_left_in_peace(space):
    with space.transaction() as txn:
        space.write(("a",), txn=txn)
        txn.commit()
    with space.transaction() as txn:
        space.write(("b",), txn=txn)
        txn.abort()
    with space.transaction() as txn:
        space.write(("c",), txn=txn)
        txn.prepare()
    assert space.read_all() == [("a",)]
    assert txn.state == "prepared"
    txn.abort()


def test_a_with_block_whose_transaction_expired_says_so(space, clock):
    ended = pytest.raises(TransactionEnded, match="lease ran out")
    with ended, space.transaction(lease=5) as txn:
        space.write(("a",), txn=txn)
        clock.advance(5)
    assert txn.state == "aborted" and space.count() == 0


def test_an_error_in_a_with_block_whose_transaction_expired_stays_the_error(space, clock):
    with pytest.raises(ValueError, match="oh"), space.transaction(lease=5) as txn:
        space.write(("a",), txn=txn)
        clock.advance(5)
        raise ValueError("oh")
    assert txn.state == "aborted"


def test_every_transaction_has_an_id_of_its_own(space):
    ids = {space.transaction().id for _ in range(10)}
    assert len(ids) == 10


# Nested


def test_a_nested_transaction_sees_what_those_above_see(space):
    space.write(("space",))
    outer = space.transaction()
    space.write(("outer",), txn=outer)
    inner = outer.transaction()
    space.write(("inner",), txn=inner)
    assert space.read_all(txn=inner) == [("space",), ("outer",), ("inner",)]
    assert space.read_all(txn=outer) == [("space",), ("outer",)]
    assert space.read_all() == [("space",)]


def test_a_nested_commit_goes_into_the_outer_one(space):
    space.write(("space",))
    outer = space.transaction()
    inner = outer.transaction()
    space.write(("inner",), txn=inner)
    space.take(("space",), wait=0, txn=inner)
    inner.commit()
    assert space.read_all(txn=outer) == [("inner",)]
    assert space.read_all() == []
    outer.commit()
    assert space.read_all() == [("inner",)]


def test_what_a_nested_commit_did_is_undone_with_the_outer_one(space):
    space.write(("space",))
    before = state_of(space)
    outer = space.transaction()
    inner = outer.transaction()
    space.write(("inner",), txn=inner)
    space.take(("space",), wait=0, txn=inner)
    inner.commit()
    outer.abort()
    assert state_of(space) == before


def test_a_nested_abort_leaves_the_outer_one_as_it_was(space):
    space.write(("space",))
    outer = space.transaction()
    space.write(("outer",), txn=outer)
    inner = outer.transaction()
    space.take(("outer",), wait=0, txn=inner)
    space.take(("space",), wait=0, txn=inner)
    space.write(("inner",), txn=inner)
    assert space.read_all(txn=outer) == []
    inner.abort()
    assert space.read_all(txn=outer) == [("space",), ("outer",)]
    outer.commit()
    assert space.read_all() == [("space",), ("outer",)]


def test_what_a_nested_one_takes_of_the_outer_ones_writes_is_never_seen(space):
    outer = space.transaction()
    space.write_all([("a",), ("b",)], txn=outer)
    with outer.transaction() as inner:
        assert space.take(("a",), wait=0, txn=inner) == ("a",)
    assert space.read_all(txn=outer) == [("b",)]
    outer.commit()
    assert space.read_all() == [("b",)]


def test_the_locks_of_those_above_do_not_hinder_a_nested_one(space):
    space.write_all([("a",), ("b",)])
    outer = space.transaction()
    space.read(("a",), wait=0, txn=outer)
    with outer.transaction() as inner:
        assert space.take(("a",), wait=0, txn=inner) == ("a",)
        assert space.read(("b",), wait=0, txn=inner) == ("b",)
    assert space.take(("b",), wait=0) is None  # Held by the outer one now.
    outer.commit()
    assert space.take_all() == [("b",)]


def test_an_outer_one_ends_only_after_its_nested_ones(space):
    outer = space.transaction()
    inner = outer.transaction()
    for attempt in (outer.commit, outer.prepare):
        with pytest.raises(TransactionError, match=inner.id):
            attempt()
    inner.commit()
    outer.commit()


def test_aborting_the_outer_one_aborts_the_nested_ones(space):
    outer = space.transaction()
    inner = outer.transaction()
    innermost = inner.transaction()
    space.write(("a",), txn=innermost)
    outer.abort()
    assert inner.state == innermost.state == "aborted"
    assert space.count() == 0


def test_a_nested_lease_ends_the_nested_one_only(space, clock):
    outer = space.transaction()
    space.write(("outer",), txn=outer)
    inner = outer.transaction(lease=5)
    space.write(("inner",), txn=inner)
    clock.advance(5)
    assert space.read_all(txn=outer) == [("outer",)]
    outer.commit()
    assert space.read_all() == [("outer",)]


def test_a_waiter_in_the_outer_one_gets_what_a_nested_one_commits(space, park):
    outer = space.transaction()
    inner = outer.transaction()
    waiter = park(space, space.take, ("a",), txn=outer)
    space.write(("a",), txn=inner)
    assert waiter.waits
    inner.commit()
    assert waiter.result() == ("a",)


def test_a_listener_in_the_outer_one_is_told_what_a_nested_one_commits(space):
    outer = space.transaction()
    listener = space.subscribe(("a", int), txn=outer)
    inner = outer.transaction()
    space.write(("a", 1), txn=inner)
    assert drained(listener) == []
    inner.commit()
    assert entries_of(drained(listener)) == [("a", 1)]


def test_a_nested_one_takes_no_part_in_a_vote(space):
    inner = space.transaction().transaction()
    with pytest.raises(TransactionError, match="nested"):
        inner.prepare()


def test_deeply_nested_transactions_hand_everything_up(space):
    txns = [space.transaction()]
    for i in range(10):
        space.write(("n", i), txn=txns[-1])
        txns.append(txns[-1].transaction())
    assert space.count(txn=txns[-1]) == 10
    for txn in reversed(txns):
        txn.commit()
    assert space.count() == 10


# Two phases


def test_a_prepared_transaction_waits_for_the_decision(space):
    space.write(("old",))
    txn = space.transaction()
    space.take(("old",), wait=0, txn=txn)
    space.write(("new",), txn=txn)
    assert txn.prepare() == "prepared" and txn.state == "prepared"
    assert space.read_all() == []
    refused(
        TransactionEnded,
        "prepared",
        lambda: space.write(("late",), txn=txn),
        lambda: space.take(("new",), txn=txn),
        lambda: space.read_all(txn=txn),
        lambda: txn.prepare(),
        lambda: txn.transaction(),
    )
    txn.commit()
    assert txn.state == "committed" and space.read_all() == [("new",)]


def test_a_prepared_transaction_can_be_aborted(space):
    space.write(("old",))
    txn = space.transaction()
    space.take(("old",), wait=0, txn=txn)
    space.write(("new",), txn=txn)
    txn.prepare()
    txn.abort()
    assert txn.state == "aborted" and space.read_all() == [("old",)]


def test_one_that_changed_nothing_needs_no_second_phase(space):
    space.write(("a",))
    txn = space.transaction()
    space.read(("a",), wait=0, txn=txn)
    assert txn.prepare() == "not changed" and txn.state == "committed"
    assert space.take(("a",), wait=0) == ("a",)


def test_a_promise_outlives_the_lease(space, clock):
    txn = space.transaction(lease=5)
    space.write(("a",), txn=txn)
    txn.prepare()
    clock.advance(100)
    assert txn.state == "prepared"
    txn.commit()
    assert space.read_all() == [("a",)]


def test_prepared_transactions_are_in_doubt_until_decided(space):
    active, prepared = space.transaction(), space.transaction()
    space.write(("a",), txn=active)
    space.write(("b",), txn=prepared)
    assert space.in_doubt() == []
    prepared.prepare()
    assert [txn.id for txn in space.in_doubt()] == [prepared.id]
    space.in_doubt()[0].commit()
    assert prepared.state == "committed"
    assert space.in_doubt() == [] and space.read_all() == [("b",)]


def test_the_locks_of_a_prepared_transaction_hold(space, park):
    space.write_all([("read",), ("taken",)])
    txn = space.transaction()
    space.read(("read",), wait=0, txn=txn)
    space.take(("taken",), wait=0, txn=txn)
    txn.prepare()
    assert space.take(("read",), wait=0) is None
    waiter = park(space, space.take, ("taken",), if_exists=True)
    txn.commit()
    assert waiter.result() is None
    assert space.take(("read",), wait=0) == ("read",)
