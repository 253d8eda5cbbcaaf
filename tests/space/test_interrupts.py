"""Threads that die, and Ctrl-C, lose nothing, not even at the moment of delivery."""

import ctypes
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tupelo
from tests.conftest import waiting_at


def interrupt(call: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread, as soon as it runs Python again."""
    assert call.ident is not None
    error = ctypes.py_object(KeyboardInterrupt)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(call.ident), error) == 1


@pytest.fixture
def ctrl_c(until):
    """`ctrl_c(condition)` interrupts this thread once the condition holds. A signal that comes just
    before the thread sleeps does not wake it, so signals are sent until one has raised."""
    helpers: list[threading.Thread] = []
    raised = threading.Event()

    def handler(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt

    def send_when(condition: Callable[[], object]) -> None:
        def work() -> None:
            until(condition)
            while not raised.wait(0.05):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

        helpers.append(threading.Thread(target=work))
        helpers[-1].start()

    before = signal.signal(signal.SIGINT, handler)
    yield send_when
    for helper in helpers:
        helper.join()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("verb", ["take", "take_all", "read"])
def test_a_thread_interrupted_at_the_moment_of_delivery_loses_nothing(park, verb):
    space = tupelo.Space()
    call = park(space, getattr(space, verb), ("a",), wait=None)
    interrupt(call)  # It sleeps, and finds this when the entry wakes it.
    space.write(("a",))
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert space.read_all() == [("a",)] and waiting_at(space) == 0
    assert space.take(("a",), wait=0) == ("a",)


def test_what_an_interrupted_thread_did_not_get_goes_to_the_next_in_line(park):
    space = tupelo.Space()
    first, second = park(space, space.take, ("a",)), park(space, space.take, ("a",))
    interrupt(first)
    space.write(("a",))
    with pytest.raises(KeyboardInterrupt):
        first.result()
    assert second.result() == ("a",) and space.count() == 0


def test_a_session_has_not_seen_what_an_interrupted_thread_did_not_get(park):
    space = tupelo.Space()
    session = space.session()
    call = park(space, session.read, ("a",))
    interrupt(call)
    space.write(("a",))
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert session.read(("a",), wait=0) == ("a",)


def test_a_transaction_has_not_taken_what_an_interrupted_thread_did_not_get(park):
    space = tupelo.Space()
    txn = space.transaction()
    call = park(space, space.take, ("a",), txn=txn)
    interrupt(call)
    space.write(("a",))
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert space.read_all() == [("a",)]
    txn.commit()
    assert space.read_all() == [("a",)]


def test_a_notice_that_an_interrupted_thread_did_not_get_is_the_next_ones(later, until):
    space = tupelo.Space()
    subscription: Any = space.subscribe(("a",))
    call = later(subscription.get)
    until(lambda: subscription._state.waiting)
    interrupt(call)
    space.write(("a",))
    with pytest.raises(KeyboardInterrupt):
        call.result()
    notice = subscription.get(wait=0)
    assert notice is not None and notice.entry == ("a",)


def test_ctrl_c_ends_a_wait_and_loses_nothing(ctrl_c):
    space = tupelo.Space()
    ctrl_c(lambda: waiting_at(space))
    with pytest.raises(KeyboardInterrupt):
        space.take(("a",))
    assert waiting_at(space) == 0
    space.write(("a",))
    assert space.take(("a",), wait=0) == ("a",)


def test_ctrl_c_ends_a_wait_with_patience_too(ctrl_c):
    space = tupelo.Space()
    ctrl_c(lambda: waiting_at(space))
    with pytest.raises(KeyboardInterrupt):
        space.read(("a",), wait=100)
    assert waiting_at(space) == 0


def test_a_thread_that_ends_with_an_error_of_its_own_gives_back_what_its_transaction_held(later):
    space = tupelo.Space()
    space.write(("job",))

    def work() -> None:
        with space.transaction() as txn:
            space.take(("job",), txn=txn)
            raise SystemExit

    with pytest.raises(SystemExit):
        later(work).result()
    assert space.read_all() == [("job",)]


# While the disk is slow


def busy(space: tupelo.Space) -> bool:
    """Has someone done a step that is not on disk yet?"""
    engine = space._port._engine
    assert engine.journal is not None
    return space._port._core.log.position > engine.journal.durable


def reopened(space: tupelo.Space, path: Any) -> list[Any]:
    space.close()
    with tupelo.Space(path=path) as again:
        return again.read_all()


def test_a_taker_interrupted_while_it_waits_for_the_disk_gives_it_back(
    durable, disk, later, until, path
):
    durable.write(("a",))
    slow = disk()
    slow.hold()
    call = later(durable.take, ("a",))
    until(lambda: busy(durable))
    interrupt(call)
    slow.let_go()
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert durable.count() == 1
    assert reopened(durable, path) == [("a",)]


@pytest.mark.parametrize("count", [1, 2], ids=["one statement", "several"])
def test_a_commit_to_disk_that_is_interrupted_leaves_the_space_usable(
    durable, disk, later, until, path, count
):
    slow = disk()
    slow.hold()
    call = later(durable.write_all, [("a", i) for i in range(count)])
    until(lambda: busy(durable))
    interrupt(call)  # It finds this when SQLite comes back to it.
    slow.let_go()
    with pytest.raises(KeyboardInterrupt):
        call.result()
    durable.write_all([("b",), ("c",)])
    durable.write(("d",))
    assert reopened(durable, path) == [*[("a", i) for i in range(count)], ("b",), ("c",), ("d",)]


def test_one_who_waits_for_anothers_commit_and_is_interrupted_holds_nobody_up(
    durable, disk, later, until, ctrl_c, path
):
    slow = disk()
    slow.hold()
    leader = later(durable.write, ("a",))
    until(lambda: busy(durable))
    commits = durable._port._engine.saved._commits
    until(lambda: commits._led)
    ctrl_c(lambda: commits._followers)
    with pytest.raises(KeyboardInterrupt):
        durable.write(("b",))
    slow.let_go()
    leader.result()
    later(durable.write, ("c",)).result()
    later(durable.write, ("d",)).result()
    assert reopened(durable, path) == [("a",), ("b",), ("c",), ("d",)]
