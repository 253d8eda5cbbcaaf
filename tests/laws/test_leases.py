"""Leases: an expired thing is gone for everyone at its time."""

import pytest

import tupelo
from tests.laws.talk import drained, entries_of, listeners_at, refused
from tupelo.errors import BadArgument, LeaseLost, TransactionEnded


def test_an_entry_is_gone_exactly_at_its_time(space, clock):
    lease = space.write(("a",), lease=10)
    clock.advance(9.75)
    assert lease.remaining == 0.25
    assert space.read(("a",), wait=0) == ("a",) and space.count() == 1
    clock.advance(0.25)
    assert space.read(("a",), wait=0) is None
    assert space.take(("a",), wait=0) is None
    assert space.count() == 0 and space.read_all() == []
    assert lease.remaining == 0


@pytest.mark.parametrize("verb", ["read", "take", "read_all", "take_all", "count"])
def test_whoever_asks_first_finds_it_gone(space, clock, verb):
    space.write(("a",), lease=1)
    space.write(("b",))
    clock.advance(1)
    wait = {} if verb == "count" else {"wait": 0}
    assert not getattr(space, verb)(("a",), **wait)
    assert space.count() == 1


def test_leases_end_each_at_its_own_time(space, clock):
    for seconds in (3, 1, 2):
        space.write(("n", seconds), lease=seconds)
    space.write(("n", 0))
    for left in ([3, 1, 2, 0], [3, 2, 0], [3, 0], [0]):
        assert [entry[1] for entry in space.read_all()] == left
        clock.advance(1)
    assert space.read_all() == [("n", 0)]


def test_a_write_of_many_is_leased_one_by_one(space, clock):
    leases = space.write_all([("n", i) for i in range(3)], lease=5)
    leases[1].renew(20)
    leases[2].cancel()
    clock.advance(5)
    assert space.read_all() == [("n", 1)]


def test_a_renewed_lease_runs_from_now(space, clock):
    lease = space.write(("a",), lease=10)
    clock.advance(8)
    lease.renew(5)
    assert lease.expires == clock.now() + 5
    clock.advance(4.5)
    assert space.count() == 1
    clock.advance(0.5)
    assert space.count() == 0


def test_a_lease_may_be_renewed_to_less_and_to_ever(space, clock):
    short, long = space.write(("short",), lease=100), space.write(("long",), lease=1)
    short.renew(2)
    long.renew(None)
    assert long.expires is None and long.remaining is None
    clock.advance(1_000_000)
    assert space.read_all() == [("long",)]


def test_a_cancelled_entry_is_gone(space):
    lease = space.write(("a",))
    lease.cancel()
    assert space.count() == 0
    with pytest.raises(LeaseLost):
        lease.cancel()


@pytest.mark.parametrize("how", ["taken", "expired", "cancelled"])
def test_the_lease_of_what_is_gone_is_lost(space, clock, how):
    lease = space.write(("a",), lease=10)
    if how == "taken":
        space.take(("a",), wait=0)
    elif how == "expired":
        clock.advance(10)
    else:
        lease.cancel()
    with pytest.raises(LeaseLost):
        lease.renew(10)
    with pytest.raises(LeaseLost):
        lease.cancel()
    assert space.count() == 0


def test_no_entry_outlives_its_lease_in_a_transaction(space, clock):
    space.write(("a",), lease=5)
    txn = space.transaction()
    assert space.take(("a",), wait=0, txn=txn) == ("a",)
    clock.advance(5)
    txn.abort()
    assert space.count() == 0


def test_what_a_transaction_took_in_time_it_may_keep(space, clock):
    space.write(("a",), lease=5)
    txn = space.transaction()
    assert space.take(("a",), wait=0, txn=txn) == ("a",)
    clock.advance(5)
    txn.commit()
    assert space.count() == 0


def test_an_entry_written_in_a_transaction_may_expire_before_the_commit(space, clock):
    with space.transaction() as txn:
        space.write(("a",), lease=5, txn=txn)
        space.write(("b",), txn=txn)
        clock.advance(5)
        assert space.read_all(txn=txn) == [("b",)]
    assert space.read_all() == [("b",)]


def test_the_lease_of_an_entry_can_be_renewed_while_a_transaction_holds_it(space, clock):
    lease = space.write(("a",), lease=5)
    txn = space.transaction()
    space.take(("a",), wait=0, txn=txn)
    lease.renew(20)
    clock.advance(10)
    txn.abort()
    assert space.count() == 1
    clock.advance(10)
    assert space.count() == 0


def test_a_policy_may_shorten_a_lease(make_space, clock):
    space = make_space(lease_policy=tupelo.longest(10))
    lease = space.write(("a",))
    assert lease.remaining == 10
    assert space.write(("b",), lease=3).remaining == 3
    lease.renew(100)
    assert lease.remaining == 10
    lease.renew(None)
    assert lease.remaining == 10
    clock.advance(10)
    assert space.count() == 0


def test_a_policy_speaks_of_everything_that_is_leased(make_space):
    asked = []

    def policy(kind, seconds):
        asked.append((kind, seconds))
        return 5.0

    space = make_space(lease_policy=policy)
    assert space.write(("a",), lease=9).remaining == 5
    assert space.transaction(lease=1).lease.remaining == 1  # It may shorten, not lengthen.
    assert space.subscribe(("x",)).lease.remaining == 5
    assert space.session(lease=7).lease.remaining == 5
    kinds = ["entry", "transaction", "subscription", "session"]
    assert asked == list(zip(kinds, [9, 1, None, 7], strict=True))


def test_a_transaction_ends_with_its_lease(space, clock):
    space.write(("a",))
    txn = space.transaction(lease=10)
    space.take(("a",), wait=0, txn=txn)
    space.write(("b",), txn=txn)
    clock.advance(9.5)
    assert space.read_all() == [] and txn.state == "active"
    clock.advance(0.5)
    assert txn.state == "aborted"
    assert space.read_all() == [("a",)]
    with pytest.raises(TransactionEnded, match="lease ran out") as ended:
        txn.commit()
    assert ended.value.state == "aborted" and ended.value.txn_id == txn.id
    with pytest.raises(LeaseLost):
        txn.lease.renew(5)


def test_a_renewed_transaction_goes_on(space, clock):
    txn = space.transaction(lease=10)
    space.write(("a",), txn=txn)
    clock.advance(9)
    txn.lease.renew(10)
    clock.advance(9)
    txn.commit()
    assert space.read_all() == [("a",)]


def test_a_transaction_whose_lease_is_cancelled_is_aborted(space):
    txn = space.transaction(lease=10)
    space.write(("a",), txn=txn)
    txn.lease.cancel()
    assert txn.state == "aborted" and space.count() == 0


def test_a_waiter_gets_what_an_expiring_transaction_gives_back_at_its_time(space, park, clock):
    space.write(("a",))
    txn = space.transaction(lease=10)
    space.take(("a",), wait=0, txn=txn)
    waiter = park(space, space.take, ("a",))
    clock.advance(9.5)
    assert waiter.waits
    clock.advance(0.5)  # Nobody does anything: time alone gives it back.
    assert waiter.result() == ("a",)


def test_a_subscription_ends_with_its_lease(space, clock):
    subscription = space.subscribe(("a", int), lease=10)
    space.write(("a", 1))
    clock.advance(10)
    space.write(("a", 2))
    assert entries_of(drained(subscription)) == [("a", 1)]
    assert list(subscription) == []
    with pytest.raises(LeaseLost):
        subscription.lease.renew(5)


def test_one_who_listens_is_told_at_once_that_the_lease_is_over(space, later, clock, until):
    subscription = space.subscribe(("a",), lease=10)
    listener = later(subscription.get)
    until(lambda: listeners_at(subscription))
    clock.advance(10)
    assert listener.result() is None


def test_a_renewed_subscription_goes_on(space, clock):
    subscription = space.subscribe(("a",), lease=10)
    clock.advance(9)
    subscription.lease.renew(10)
    clock.advance(9)
    space.write(("a",))
    assert entries_of(drained(subscription)) == [("a",)]
    subscription.lease.cancel()
    space.write(("a",))
    assert drained(subscription) == []


def test_a_session_ends_with_its_lease(space, clock):
    session = space.session(lease=10)
    space.write(("a",))
    clock.advance(9)
    assert session.read(wait=0) == ("a",)
    clock.advance(1)
    with pytest.raises(LeaseLost):
        session.read(wait=0)
    with pytest.raises(LeaseLost):
        session.lease.renew(5)


def test_one_who_waits_in_a_session_is_told_at_once_that_it_is_over(space, park, clock):
    session = space.session(lease=10)
    waiter = park(space, session.read, ("a",))
    clock.advance(10)
    with pytest.raises(LeaseLost):
        waiter.result()


def test_a_renewed_session_goes_on(space, clock):
    session = space.session(lease=10)
    clock.advance(9)
    session.lease.renew(10)
    clock.advance(9)
    space.write(("a",))
    assert session.read(wait=0) == ("a",)


@pytest.mark.parametrize("lease", [0, -1, "5", True, float("nan"), [], 10**400])
def test_a_lease_that_makes_no_sense_is_refused(space, lease):
    kept = space.write(("kept",))
    refused(
        BadArgument,
        "lease=",
        lambda: space.write(("a",), lease=lease),
        lambda: space.write_all([("a",)], lease=lease),
        lambda: space.transaction(lease=lease),
        lambda: space.transaction().transaction(lease=lease),
        lambda: space.subscribe(("a",), lease=lease),
        lambda: space.session(lease=lease),
        lambda: space.session().clone(lease=lease),
        lambda: kept.renew(lease),
    )
    assert space.read_all() == [("kept",)] and kept.expires is None


def test_renewing_many_times_ends_at_the_last_time(space, clock):
    lease = space.write(("a",), lease=1)
    for _ in range(30):
        lease.renew(2)
    clock.advance(1)
    assert space.count() == 1
    clock.advance(1)
    assert space.count() == 0
