"""The corners of the Capi: nothing is lost, doubled or half done, whoever is cancelled,
closed, rolled back or vetoed at whatever moment."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import PATIENCE_SECONDS, core_of
from tests.laws.talk import refused
from tupelo.errors import (
    AspectFailed,
    AspectVeto,
    BadArgument,
    ContainerError,
    ContainerExists,
    ContainerNotFound,
    CountNotMet,
    PutOff,
    SpaceClosed,
)
from tupelo.models.xvsm import (
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
    RESCHEDULE,
    TRY_ONCE,
    Aspect,
    AsyncCapi,
    Capi,
    Coordinator,
    Entry,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    Notification,
    Point,
    Request,
    Transaction,
    Veto,
)
from tupelo.space.shared import SharedTransaction


def aspect(**methods: Any) -> Any:
    """An aspect with these methods."""
    made = Aspect()
    for name, method in methods.items():
        setattr(made, name, method)
    return made


def do_nothing(*arguments: Any) -> None:
    pass


def once(answer: Any) -> Callable[[Request], Any]:
    """Answers this the first time only."""
    answers = [answer]
    return lambda request: answers.pop() if answers else None


@pytest.fixture
def queue(capi):
    return capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())


def values(cref: Any) -> list[Any]:
    return [cref.value(stored) for stored in cref.space.read_all()]


def files(folder: Path) -> list[str]:
    """The files of containers."""
    return sorted(
        file.name
        for file in folder.iterdir()
        if not file.name.startswith(("containers.", "decisions."))
    )


# Cancelled while it is committed


class SlowCommit:
    """Commits begin, and go on when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        commit = SharedTransaction.commit_async

        async def slowly(txn: SharedTransaction) -> None:
            self.begun.set()
            await self.go.wait()
            await commit(txn)

        monkeypatch.setattr(Transaction, "commit_async", slowly)


async def one_in_a_queue(folder: Path | None) -> tuple[Any, Any]:
    capi: Any = AsyncCapi(folder)
    cref = await capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
    await capi.write(cref, 0, None, "only")
    await capi.create_notification(cref, do_nothing, "take", "destroy")
    return capi, cref


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(("operation", "answer"), [("take", ["only"]), ("destroy", 1)])
def test_who_is_cancelled_while_it_takes_for_good_has_what_it_took(
    folder, monkeypatch, operation, answer, durable
):
    got: list[Any] = []

    async def run() -> None:
        capi, cref = await one_in_a_queue(folder if durable else None)
        slow = SlowCommit(monkeypatch)

        async def work() -> None:
            got.append(await getattr(capi, operation)(cref, 0, None, FifoSelector()))
            await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await slow.begun.wait()
        task.cancel()
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):  # later, where nothing is lost
            await task
        assert await cref.aio.count() == 0
        await capi.close()

    asyncio.run(run())
    assert got == [answer]


def test_who_is_cancelled_before_the_commit_has_taken_nothing(folder, until):
    async def run() -> None:
        capi, cref = await one_in_a_queue(folder)
        reached = asyncio.Event()

        async def wait(request: Request) -> None:
            reached.set()
            await asyncio.Event().wait()

        await capi.add_aspect(cref, Point.POST_TAKE, aspect(post_take=wait))
        task = asyncio.create_task(capi.take(cref, 0, None, FifoSelector()))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await capi.read(cref, 0, None, FifoSelector()) == ["only"]
        await capi.close()

    asyncio.run(run())


def test_a_timeout_that_comes_too_late_cancels_nothing_else(folder, monkeypatch):
    async def run() -> Any:
        capi, cref = await one_in_a_queue(folder)
        slow = SlowCommit(monkeypatch)
        caller = asyncio.current_task()
        assert caller is not None

        async def strike(limit: asyncio.Timeout) -> None:
            await slow.begun.wait()
            limit.reschedule(asyncio.get_running_loop().time())
            while not caller.cancelling():
                await asyncio.sleep(0)
            slow.go.set()

        async with asyncio.timeout(None) as limit:
            striking = asyncio.create_task(strike(limit))
            got = await capi.take(cref, 0, None, FifoSelector())
        await striking
        for _ in range(3):
            await asyncio.sleep(0)
        await capi.close()
        return got

    assert asyncio.run(run()) == ["only"]


def test_a_container_whose_making_is_cancelled_is_there_as_a_whole_or_not_at_all(folder):
    async def run() -> None:
        capi: Any = AsyncCapi(folder)
        registry = capi.embedded.registry_aio
        write, begun, go = registry.write, asyncio.Event(), asyncio.Event()

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            lease = await write(*args, **kwargs)
            begun.set()
            await go.wait()
            return lease

        registry.write = slowly
        made: list[Any] = []

        async def make() -> None:
            made.append(await capi.create_container(None, None, "c", INFINITE, FifoCoordinator()))
            await asyncio.Event().wait()

        task = asyncio.create_task(make())
        await begun.wait()
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await capi.lookup_container(None, None, "c") is made[0]
        await capi.write(made[0], 0, None, 1)
        await capi.close()

    asyncio.run(run())
    with Capi(folder) as capi:
        assert values(capi.lookup_container(None, None, "c")) == [1]


# Clearing, and files that nobody needs


class Fragile(Coordinator):
    default_name = "fragile"
    broken = False

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)
        if self.broken:
            raise ZeroDivisionError("cannot be made")


def test_what_cannot_be_opened_is_cleared_all_the_same(folder, clock, monkeypatch):
    with Capi(folder, clock=clock) as capi:
        for name, coordinator in (("a", FifoCoordinator()), ("b", Fragile()), ("c", Fragile())):
            cref = capi.create_container(None, None, name, INFINITE, coordinator)
            capi.write(cref, 0, None, 1)
    monkeypatch.setattr(Fragile, "broken", True)
    with Capi(folder, clock=clock) as capi:
        assert len(files(folder)) == 3
        with pytest.raises(ContainerNotFound, match=r"Fragile.*ZeroDivisionError: cannot be made"):
            capi.lookup_container(None, None, "b")
        capi.clear_space(None)
        assert files(folder) == []
        for name in "abc":
            with pytest.raises(ContainerNotFound):
                capi.lookup_container(None, None, name)
            capi.create_container(None, None, name, INFINITE)


def test_containers_are_not_cleared_against_an_aspect(capi, queue):
    other = capi.create_container(None, None, "other", INFINITE)

    def keep(request: Request) -> None:
        assert request.container is not None
        if request.container.name == "other":
            raise Veto("it is needed")

    guard = capi.add_aspect(None, Point.PRE_DESTROY_CONTAINER, aspect(pre_destroy_container=keep))
    with pytest.raises(AspectVeto, match="needed"):
        capi.clear_space(None)
    for cref in (queue, other):
        assert capi.lookup_container(None, None, cref.name) is cref
        capi.write(cref, 0, None, 1)
    capi.remove_aspect(None, None, guard)
    capi.add_aspect(None, Point.POST_DESTROY_CONTAINER, aspect(post_destroy_container=do_nothing))
    capi.clear_space(None)
    assert queue.destroyed and other.destroyed


def test_files_without_a_container_are_removed_when_the_folder_is_opened(folder, clock):
    with Capi(folder, clock=clock) as capi:
        cref = capi.create_container(None, None, "kept", INFINITE, FifoCoordinator())
        capi.write(cref, 0, None, 1)
    orphan = uuid4().hex
    for name in (f"{orphan}.tupelo", f"{orphan}.tupelo-wal", f"{orphan}.tupelo.work", "mine.txt"):
        (folder / name).write_bytes(b"")
    with Capi(folder, clock=clock) as capi:
        assert not [name for name in files(folder) if name.startswith(orphan)]
        assert "mine.txt" in files(folder)
        assert values(capi.lookup_container(None, None, "kept")) == [1]
    kept = f"{cref.id}.tupelo"
    for file in folder.glob("containers.*"):  # lost: whose the others are is not known
        file.unlink()
    with Capi(folder, clock=clock):
        assert kept in files(folder)


# Containers and transactions


def test_a_transaction_that_ends_at_that_moment_takes_the_container_with_it(folder, clock):
    capi = Capi(folder, clock=clock)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    registry: Any = capi.embedded.registry
    write = registry.write

    def write_and_end(*args: Any, **kwargs: Any) -> Any:
        lease = write(*args, **kwargs)
        capi.rollback_transaction(tx)
        return lease

    registry.write = write_and_end
    cref = capi.create_container(tx, None, "c", INFINITE, FifoCoordinator())
    del registry.write
    with pytest.raises(ContainerNotFound):
        capi.write(cref, 0, None, 1)
    assert files(folder) == []
    capi.close()


def test_everyone_is_told_of_the_end_even_late_and_after_one_that_fails(clock, caplog):
    told: list[Any] = []

    def fail(committed: bool | None) -> None:
        raise ZeroDivisionError("broken")

    for commit in (True, False):
        parent = Transaction(clock)
        txn = parent.transaction()
        txn.at_end(fail)
        txn.at_end(told.append)
        txn.commit()
        txn.at_end(told.append)  # It is the parent's by now.
        assert told == []
        parent.commit() if commit else parent.abort()
        parent.at_end(told.append)
        txn.at_end(told.append)
        assert told == [commit] * 4
        told.clear()
    other = SharedTransaction(clock)
    other.at_end(told.append)
    other.commit()
    other.at_end(told.append)
    assert told == [True, True]


class Sticky(Coordinator):
    default_name = "sticky"

    def closed(self) -> None:
        raise ZeroDivisionError("will not close")


def test_a_coordinator_that_fails_to_close_does_not_keep_others(capi, queue, caplog):
    sticky = capi.create_container(None, None, "sticky", INFINITE, Sticky())
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.destroy_container(tx, sticky)
    capi.destroy_container(tx, queue)
    capi.commit_transaction(tx)
    assert sticky.destroyed and queue.destroyed
    assert "will not close" in caplog.text
    capi.create_container(None, None, "sticky", INFINITE, Sticky())


def test_a_container_is_there_for_its_transaction_only_until_the_commit(capi, make_capi):
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    other = capi.create_transaction(None, INFINITE_TIMEOUT)
    cref = capi.create_container(tx, None, "c", INFINITE, FifoCoordinator())
    refused(
        ContainerNotFound,
        "not committed",
        lambda: capi.write(cref, 0, None, 1),
        lambda: capi.write(cref, 0, other, 1),
        lambda: capi.read(cref, 0, None),
        lambda: capi.destroy_container(None, cref),
    )
    capi.write(cref, 0, tx, 2)
    capi.commit_transaction(tx)
    capi.write(cref, 0, None, 3)
    assert values(cref) == [2, 3]
    capi.rollback_transaction(other)


def test_a_container_is_gone_for_the_transaction_that_destroys_it(capi, queue):
    capi.write(queue, 0, None, 1)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.destroy_container(tx, queue)
    refused(
        ContainerNotFound,
        "destroyed in this transaction",
        lambda: capi.write(queue, 0, tx, 2),
        lambda: capi.take(queue, 0, tx),
        lambda: capi.destroy_container(tx, queue),
    )
    with pytest.raises(ContainerError, match="another transaction destroys") as held:
        capi.destroy_container(None, queue)
    assert not isinstance(held.value, ContainerNotFound)
    capi.rollback_transaction(tx)
    capi.write(queue, 0, None, 2)
    assert values(queue) == [1, 2]


def test_looking_a_container_up_does_not_hold_it(capi, queue):
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    assert capi.lookup_container(tx, None, "queue") is queue
    capi.destroy_container(None, queue)
    capi.create_container(None, None, "queue", INFINITE)
    assert capi.lookup_container(tx, None, "queue") is not queue
    capi.clear_space(None)
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(tx, None, "queue")
    own = capi.create_container(tx, None, "queue", INFINITE)
    assert capi.lookup_container(tx, None, "queue") is own
    capi.rollback_transaction(tx)


def test_coordinators_of_a_container_that_was_not_to_be_may_serve_another(capi, queue):
    coordinators = [KeyCoordinator(), FifoCoordinator()]

    def create(tx: Any = None, name: str = "c") -> Any:
        return capi.create_container(tx, None, name, INFINITE, coordinators[0], coordinators[1])

    refused(ContainerExists, "queue", lambda: create(name="queue"))
    guard = capi.add_aspect(
        None, Point.POST_CREATE_CONTAINER, aspect(post_create_container=lambda r: Veto("no"))
    )
    refused(AspectVeto, "no", create)
    capi.remove_aspect(None, None, guard)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(create(tx), 0, tx, Entry(1, KeySelector("k")))
    capi.rollback_transaction(tx)
    cref = create()
    capi.write(cref, 0, None, Entry(2, KeySelector("k")))
    assert capi.read(cref, 0, None, KeySelector("k")) == [2]
    refused(BadArgument, "one object serves one", lambda: create(name="d"))


# Aspects


def test_an_aspect_whose_removal_is_vetoed_is_where_it_was(capi, queue):
    log: list[str] = []
    first = capi.add_aspect(queue, Point.PRE_WRITE, aspect(pre_write=lambda r: log.append("1")))
    capi.add_aspect(queue, Point.PRE_WRITE, aspect(pre_write=lambda r: log.append("2")))
    guard = aspect(post_remove_aspect=once(Veto("keep it")))
    capi.add_aspect(queue, Point.POST_REMOVE_ASPECT, guard)
    with pytest.raises(AspectVeto, match="keep it"):
        capi.remove_aspect(queue, None, first)
    capi.write(queue, 0, None, 1)
    assert log == ["1", "2"]
    capi.remove_aspect(queue, None, first)
    capi.write(queue, 0, None, 1)
    assert log == ["1", "2", "2"]


def test_an_aspect_that_is_put_off_is_added_once(capi, queue):
    guard = aspect(post_add_aspect=once(RESCHEDULE))
    capi.add_aspect(queue, Point.POST_ADD_ASPECT, guard)
    log: list[int] = []
    added = capi.add_aspect(queue, Point.PRE_WRITE, aspect(pre_write=lambda r: log.append(1)))
    capi.write(queue, 0, None, 1)
    assert log == [1]
    capi.remove_aspect(queue, None, added)
    capi.write(queue, 0, None, 1)
    assert log == [1]


@pytest.mark.parametrize("answer", [Veto("no"), RESCHEDULE, "raise"])
def test_what_cannot_be_undone_stands_and_the_error_says_so(capi, queue, answer):
    def late(request: Request) -> Any:
        if answer == "raise":
            raise ZeroDivisionError("late")
        return answer

    points = [Point.POST_TRANSACTION_COMMIT, Point.POST_TRANSACTION_ROLLBACK, Point.POST_SHUTDOWN]
    capi.add_aspect(None, points, aspect(**{point.value: late for point in points}))
    for end in (capi.commit_transaction, capi.rollback_transaction):
        tx = capi.create_transaction(None, INFINITE_TIMEOUT)
        capi.write(queue, 0, tx, 1)
        with pytest.raises(AspectFailed, match="stands"):
            end(tx)
    assert values(queue) == [1]
    with pytest.raises(AspectFailed, match="stands"):
        capi.shutdown(None)


def test_what_an_aspect_does_before_the_shutdown_is_kept(folder, clock):
    capi = Capi(folder, clock=clock)
    cref = capi.create_container(None, None, "log", INFINITE, FifoCoordinator())

    def say_goodbye(request: Request) -> None:
        capi.write(cref, 0, request.transaction, "goodbye")

    said = aspect(pre_shutdown=say_goodbye, post_shutdown=do_nothing)
    capi.add_aspect(None, [Point.PRE_SHUTDOWN, Point.POST_SHUTDOWN], said)
    capi.shutdown(None)
    with Capi(folder, clock=clock) as capi:
        assert values(capi.lookup_container(None, None, "log")) == ["goodbye"]


def test_what_an_aspect_changes_is_checked_as_what_was_given(capi, queue):
    def change(**changes: Any) -> Any:
        def method(request: Request) -> None:
            for name, value in changes.items():
                setattr(request, name, value)

        return method

    def change_size(request: Request) -> None:
        request.values["size"] = -5

    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    for changes, error, match in (
        ({"transaction": None}, AspectFailed, "request.transaction"),
        ({"transaction": tx}, AspectFailed, "request.transaction"),
        ({"timeout": -1}, BadArgument, "timeout="),
        ({"entries": 5}, BadArgument, "entries="),
        ({"container": "queue"}, BadArgument, "cref="),
    ):
        added = capi.add_aspect(queue, Point.PRE_WRITE, aspect(pre_write=change(**changes)))
        for given in (None, tx):
            with pytest.raises(error, match=match):
                capi.write(queue, 0, given, 1)
        capi.remove_aspect(queue, None, added)
    assert values(queue) == [] and capi.read(queue, 0, tx, FifoSelector(COUNT_MAX)) == []
    capi.commit_transaction(tx)

    capi.add_aspect(None, Point.PRE_CREATE_CONTAINER, aspect(pre_create_container=change_size))
    with pytest.raises(BadArgument, match="size="):
        capi.create_container(None, None, "c", 1)
    other = change(points=[Point.POST_WRITE])
    capi.add_aspect(queue, Point.PRE_ADD_ASPECT, aspect(pre_add_aspect=other))
    with pytest.raises(BadArgument, match="a method post_write"):
        capi.add_aspect(queue, Point.PRE_WRITE, aspect(pre_write=do_nothing))
    capi.write(queue, 0, None, 1)
    both = aspect(pre_write=do_nothing, post_write=do_nothing)
    added = capi.add_aspect(queue, Point.PRE_WRITE, both)
    assert added.points == [Point.POST_WRITE]
    capi.remove_aspect(queue, None, added)


def test_a_method_that_has_gone_is_a_failure_of_its_aspect(capi, queue):
    forgetful = aspect(pre_write=do_nothing)
    capi.add_aspect(queue, Point.PRE_WRITE, forgetful)
    del forgetful.pre_write
    with pytest.raises(AspectFailed, match="AttributeError"):
        capi.write(queue, 0, None, 1)


def test_an_async_aspect_at_the_blocking_door(clock):
    async def at_once(request: Request) -> None:
        pass

    async def waits(request: Request) -> None:
        await asyncio.sleep(0)

    with Capi(clock=clock) as capi:
        cref = capi.create_container(None, None, "c", INFINITE, FifoCoordinator())
        capi.add_aspect(cref, Point.PRE_WRITE, aspect(pre_write=at_once))
        capi.write(cref, 0, None, 1)
        capi.add_aspect(cref, Point.PRE_WRITE, aspect(pre_write=waits))
        with pytest.raises(AspectFailed, match="use an AsyncCapi"):
            capi.write(cref, 0, None, 2)
        assert values(cref) == [1]


def test_what_is_put_off_is_tried_again_when_an_entry_comes_by_another_door(
    capi, queue, later, until
):
    def wait_for_two(request: Request) -> Any:
        return None if queue.space.count() > 1 else RESCHEDULE

    capi.add_aspect(queue, Point.PRE_TAKE, aspect(pre_take=wait_for_two))
    call = later(capi.take, queue, None, None, FifoSelector())
    for number in (1, 2):
        until(lambda: queue.changes.waiting)
        queue.space.write((number,))
    assert call.result() == [(1,)]
    assert not list(core_of(queue.space).subscriptions.watchers)


def test_who_is_put_off_after_taking_does_not_wake_itself(capi, queue, later, until, clock):
    tries: list[int] = []

    def never(request: Request) -> Any:
        tries.append(1)
        return RESCHEDULE

    capi.write(queue, 0, None, 1)
    capi.add_aspect(queue, Point.POST_TAKE, aspect(post_take=never))
    sleepers = clock.sleepers
    call = later(capi.take, queue, 5, None, FifoSelector())
    until(lambda: queue.changes.waiting and clock.sleepers > sleepers and len(tries) >= 2)
    clock.advance(5)
    with pytest.raises(PutOff):
        call.result()
    assert len(tries) < 5 and values(queue) == [1]


def test_what_is_read_can_be_taken_while_aspects_speak(capi, here, queue, later):
    reached, go = threading.Event(), threading.Event()

    def wait(request: Request) -> None:
        reached.set()
        assert go.wait(PATIENCE_SECONDS)

    capi.write(queue, 0, None, 1)
    capi.add_aspect(queue, Point.POST_READ, aspect(post_read=wait))
    reader = Capi(capi.embedded)  # A door of its own: the aspect blocks its thread.
    call = later(reader.read, here(queue), TRY_ONCE, None, FifoSelector())
    assert reached.wait(PATIENCE_SECONDS)
    assert capi.take(queue, TRY_ONCE, None, FifoSelector()) == [1]
    go.set()
    assert call.result() == [1]


def test_a_read_sees_what_an_aspect_has_done_and_holds_it_in_a_transaction(capi, queue):
    def fill(request: Request) -> None:
        if not queue.space.count(txn=request.transaction):
            queue.space.write(("filled",), txn=request.transaction)

    capi.add_aspect(queue, Point.PRE_READ, aspect(pre_read=fill))
    assert capi.read(queue, 0, None, FifoSelector()) == [("filled",)]
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    assert capi.read(queue, 0, tx, FifoSelector()) == [("filled",)]
    with pytest.raises(CountNotMet):
        capi.take(queue, 0, None, FifoSelector())
    capi.rollback_transaction(tx)


def test_aspects_that_come_and_go_at_once_are_all_there(clock):
    with Capi(clock=clock) as capi:
        cref = capi.create_container(None, None, "c", INFINITE)
        kept: list[Any] = []

        def come_and_go() -> None:
            for _ in range(100):
                capi.remove_aspect(
                    cref, None, capi.add_aspect(cref, Point.PRE_READ, aspect(pre_read=do_nothing))
                )
            kept.append(capi.add_aspect(cref, Point.PRE_READ, aspect(pre_read=do_nothing)))

        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert sorted(cref.aspects.at(Point.PRE_READ), key=id) == sorted(kept, key=id)


# Notifications


def test_to_listen_is_to_add_an_aspect(capi, queue, until):
    asked: list[Any] = []
    heard: list[Any] = []

    def guard(request: Request) -> Any:
        asked.append(request.aspect)
        return Veto("nobody listens") if len(asked) == 1 else None

    capi.add_aspect(queue, Point.PRE_ADD_ASPECT, aspect(pre_add_aspect=guard))

    def listener(notification: Notification, operation: str, entries: list[Any]) -> None:
        heard.append(entries)

    before = threading.active_count()
    with pytest.raises(AspectVeto, match="nobody listens"):
        capi.create_notification(queue, listener, "write")
    assert isinstance(asked[0], Notification) and threading.active_count() <= before
    capi.write(queue, 0, None, 1)
    notification = capi.create_notification(queue, listener, "write")
    capi.write(queue, 0, None, 2)
    until(lambda: heard)
    assert heard == [[2]] and notification.active and len(queue.endings) == 1


# Small things (C)


def test_a_reference_of_another_space_and_times_that_are_none_are_refused(clock):
    with Capi(clock=clock) as capi, Capi(clock=clock) as other:
        cref = capi.create_container(None, None, "c", INFINITE, FifoCoordinator())
        capi.write(cref, 0, None, (1,))
        refused(
            BadArgument,
            "cref=",
            lambda: other.write(cref, 0, None, (1,)),
            lambda: other.read(cref, 0, None, FifoSelector()),
            lambda: other.take(cref, 0, None, FifoSelector()),
        )
        for timeout in ("", False, -1, "1", float("nan")):
            with pytest.raises(BadArgument, match="timeout="):
                capi.write(cref, timeout, None, (1,))  # type: ignore[arg-type]


def test_what_was_just_shifted_in_may_be_shifted_out(capi):
    cref = capi.create_container(None, None, "c", 1, FifoCoordinator())
    assert len(capi.shift(cref, None, 1, 2)) == 2
    assert values(cref) == [2]


@pytest.mark.parametrize("end", ["destroy", "shutdown"])
def test_who_is_put_off_is_told_when_the_container_is_no_more(capi, queue, later, until, end):
    capi.add_aspect(queue, Point.PRE_TAKE, aspect(pre_take=lambda request: RESCHEDULE))
    call = later(capi.take, queue, None, None, FifoSelector())
    until(lambda: queue.changes.waiting)
    if end == "destroy":
        capi.destroy_container(None, queue)
    else:
        capi.shutdown(None)
    with pytest.raises(ContainerNotFound if end == "destroy" else SpaceClosed):
        call.result()
