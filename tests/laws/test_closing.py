"""Closing: who waits is told, and nothing more happens."""

from typing import Any

import pytest

from tests.laws.talk import drained, entries_of, listeners_at
from tupelo.errors import SpaceClosed


def test_a_closed_space_does_nothing_more(space, has_log):
    txn, session = space.transaction(), space.session()
    space.close()
    attempts: dict[str, Any] = {
        "write": lambda: space.write(("a",)),
        "write_all": lambda: space.write_all([("a",)]),
        "read": lambda: space.read(("a",)),
        "read again": lambda: space.read(("a",), wait=0),
        "take": lambda: space.take(("a",), wait=0),
        "read_all": lambda: space.read_all(),
        "take_all": lambda: space.take_all(),
        "count": lambda: space.count(),
        "transaction": lambda: space.transaction(),
        "in_doubt": lambda: space.in_doubt(),
        "in_hand": lambda: space.in_hand(),
        "delayed": lambda: space.delayed(),
        "session": lambda: space.session(),
        "subscribe": lambda: space.subscribe(),
        "react": lambda: space.react(("a",), print),
        "txn.commit": lambda: txn.commit(),
        "txn.prepare": lambda: txn.prepare(),
        "txn.transaction": lambda: txn.transaction(),
        "session.read": lambda: session.read(wait=0),
        "session.clone": lambda: session.clone(),
    }
    if has_log:
        attempts |= {
            "changes": lambda: space.changes(),
            "trim": lambda: space.trim(before=1),
            "compact": lambda: space.compact(),
        }
    silent = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except SpaceClosed as closed:
            assert "laws" in str(closed), name
        else:
            silent.append(name)
    assert silent == []


def test_a_lease_of_a_closed_space_is_refused(space):
    lease = space.write(("a",))
    space.close()
    for attempt in (lambda: lease.renew(5), lease.cancel):
        with pytest.raises(SpaceClosed, match="laws"):
            attempt()


def test_closing_twice_is_harmless(space):
    space.close()
    space.close()


def test_the_end_of_a_with_block_closes(make_space):
    with make_space() as space:
        space.write(("a",))
    with pytest.raises(SpaceClosed):
        space.count()


def test_whoever_waits_is_told(space, park, later, until):
    session = space.session()
    txn = space.transaction()
    waiters = [
        park(space, space.read, ("a",)),
        park(space, space.take, ("a",)),
        park(space, space.take, ("a",), wait=10),
        park(space, space.read_all, ("a",), wait=None),
        park(space, space.take_all, ("a",), wait=None),
        park(space, space.take, ("a",), txn=txn),
        park(space, session.read, ("a",)),
    ]
    space.close()
    for waiter in waiters:
        with pytest.raises(SpaceClosed):
            waiter.result()


def test_subscriptions_end_and_their_backlog_can_still_be_had(space, later, until):
    listener, other = space.subscribe(("a",)), space.subscribe(("b",))
    space.write(("a",))
    call = later(other.get)
    until(lambda: listeners_at(other))
    space.close()
    assert call.result() is None
    assert entries_of(drained(listener)) == [("a",)]
    assert list(listener) == []


def test_what_is_open_at_a_space_can_be_closed_after_it(space):
    subscription, session, reaction = (
        space.subscribe(("a",)),
        space.session(),
        space.react(("a",), print),
    )
    space.close()
    subscription.close()
    session.close()
    reaction.cancel()


def test_an_error_inside_a_transaction_is_not_hidden_by_a_closed_space(space):
    with pytest.raises(ValueError, match="oh"), space.transaction() as txn:
        space.write(("a",), txn=txn)
        space.close()
        raise ValueError("oh")


def test_a_transaction_that_ends_after_its_space_says_that_it_did_not_commit(space):
    with pytest.raises(SpaceClosed), space.transaction() as txn:
        space.write(("a",), txn=txn)
        space.close()
