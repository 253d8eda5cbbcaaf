"""Who waits is woken, whatever happens between a look and a notification."""

import threading
from functools import partial
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import Call, until_true
from tests.kinds import database_url, space_url
from tupelo.postgres.listening import NotificationListener, WaitingOperation
from tupelo.space.dual_api import run_sync


@pytest.fixture
def url():
    return space_url(f"waiting {uuid4()}")


@pytest.fixture
def link():
    with psycopg.connect(database_url(), autocommit=True) as link:
        yield link


@pytest.fixture
def listener():
    listener = NotificationListener(database_url(), "here")
    yield listener
    listener.close()


def is_asleep(space: tupelo.SpaceLike) -> bool:
    return any(w.asleep for w in space.database.listener.waiting(space.id))  # type: ignore[attr-defined]


def joined(listener: NotificationListener, space: int) -> WaitingOperation:
    waiter = WaitingOperation(threading.Event())
    if not listener.join(space, waiter):
        until_true(waiter.event.is_set, "there can be notifications")
        waiter.event.clear()
    return waiter


def test_who_comes_when_the_last_one_has_just_gone_is_woken(listener):
    for _ in range(200):
        listener.leave(1, joined(listener, 1))
        listener.forget(1)


def test_a_notification_that_comes_with_the_answer_to_another_statement_is_heard(listener, link):
    first = joined(listener, 900_001)
    for i in range(200):
        other = WaitingOperation(threading.Event())
        link.execute("NOTIFY tupelo_900001")
        listener.join(900_002 + i, other)
        until_true(first.event.is_set, "the notification is heard")
        first.event.clear()
        listener.looked(900_001, first)


@pytest.mark.parametrize("payload", ["", "junk", "9" * 5_000, "é"])
def test_a_strange_notification_does_no_harm(url, link, payload):
    with tupelo.connect(url) as space:
        taker = Call(space.take, ("a", int))
        until_true(partial(is_asleep, space))
        link.execute("SELECT pg_notify(%s, %s)", (f"tupelo_{space.id}", payload))  # type: ignore[attr-defined]
        space.write(("a", 1))
        assert taker.result() == ("a", 1)


@pytest.mark.parametrize("name", ["take", "read"])
def test_a_match_that_a_program_had_locked_when_it_ended_is_found(url, name):
    """The server undoes what it did, and tells nobody."""
    with tupelo.connect(url) as space, psycopg.connect(database_url()) as link:
        space.write(("a", 1))
        lock = "SELECT FROM tupelo.entries WHERE space = %s FOR UPDATE"
        link.execute(lock, (space.id,))  # type: ignore[attr-defined]
        txn = space.transaction() if name == "read" else None
        waiter = Call(getattr(space, name), ("a", int), txn=txn)
        until_true(partial(is_asleep, space))
        link.rollback()
        assert waiter.result() == ("a", 1)


def test_a_process_that_has_the_id_of_one_that_is_gone_is_not_waited_for(url, link):
    """As after a crash, or at a standby that has taken over."""
    with tupelo.connect(f"{url}&connect_timeout=5", reconnect=300) as space:
        old = link.info.backend_pid, 0.0
        asked = run_sync(lambda: space.changed_by(1, old))  # type: ignore[attr-defined]
        assert asked == []


def test_a_match_in_hand_whose_lease_is_over_is_not_looked_for_all_the_time(url):
    with tupelo.connect(url) as space, space.transaction() as txn:
        space.write(("a", 1), lease=0.2)
        assert space.take(("a", int), txn=txn) == ("a", 1)

        def state() -> tuple[bool, float | None]:
            async def ask(link: object) -> tuple[bool, float | None]:
                ((_, late, _, seconds),) = await space.run(link, space.sql.state)  # type: ignore[attr-defined]
                return late, seconds

            found: tuple[bool, float | None] = run_sync(partial(space.reading, ask))  # type: ignore[attr-defined]
            return found

        until_true(lambda: state()[0], "its lease is over")
        assert state() == (True, None)


def test_only_those_who_wait_for_a_shape_or_do_not_know_it_are_woken(listener, link):
    other, wanted, unaware = (joined(listener, 910_001) for _ in range(3))
    other.shapes, other.known = frozenset({1}), 2
    wanted.shapes, wanted.known = frozenset({2}), 2
    unaware.shapes, unaware.known = frozenset({1}), 1
    link.execute("NOTIFY tupelo_910001, '2'")
    for waiter in (wanted, unaware):
        until_true(waiter.event.is_set)
        listener.looked(910_001, waiter)
    assert not other.event.is_set() and not other.due


def test_a_waiting_take_is_for_the_shapes_of_its_template(url):
    with tupelo.connect(url) as space:
        space.write_all([("a", 1), (1.0,), ("a", 1, 1)])
        taker = Call(space.take, ("b", int))
        until_true(partial(is_asleep, space))
        (waiter,) = space.database.listener.waiting(space.id)  # type: ignore[attr-defined]
        assert (waiter.shapes, waiter.known) == ({1}, 3)
        space.write(("b", 2))
        assert taker.result() == ("b", 2)


@pytest.mark.parametrize("takes", [False, True])
def test_who_is_told_again_and_again_lets_others_look_too(listener, link, takes):
    first, _, third = waiting = [joined(listener, 920_001) for _ in range(3)]
    third.takes = takes
    link.execute("NOTIFY tupelo_920001")
    until_true(first.event.is_set)
    looked = []
    for _ in range(6):
        (now,) = [waiter for waiter in waiting if waiter.event.is_set()]
        looked.append(waiting.index(now))
        now.event.clear()
        link.execute("NOTIFY tupelo_920001")
        until_true(lambda now=now: now.due)  # type: ignore[misc]
        listener.looked(920_001, now)
    assert looked == [0, 1, 2] * 2
