"""Aspects at every point, what they may answer, and notifications, which are built from them."""

import threading
from typing import Any

import pytest

from tests.conftest import core_of
from tests.laws.talk import refused
from tupelo.errors import (
    AspectFailed,
    AspectVeto,
    BadArgument,
    ContainerNotFound,
    CountNotMet,
    PutOff,
)
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    GLOBAL_POINTS,
    INFINITE,
    INFINITE_TIMEOUT,
    LOCAL_POINTS,
    OK,
    RESCHEDULE,
    SKIP,
    AnySelector,
    Aspect,
    AtomicEntry,
    FifoCoordinator,
    FifoSelector,
    LifoCoordinator,
    LifoSelector,
    LindaCoordinator,
    LindaSelector,
    Point,
    Request,
    Veto,
)


class Recorder(Aspect):
    """Writes down where it was asked; `answers` says what to answer there."""

    def __init__(self, name: str = "", log: list[str] | None = None, **answers: Any) -> None:
        self.name = name
        self.log: list[str] = [] if log is None else log
        self.answers = answers
        self.requests: list[Request] = []

    def __getattr__(self, point: str) -> Any:
        if not point.startswith(("pre_", "post_")):
            raise AttributeError(point)

        def meet(request: Request) -> Any:
            self.log.append(f"{self.name}{point}")
            self.requests.append(request)
            answer = self.answers.get(point)
            return answer(request) if callable(answer) else answer

        return meet


def answering(point: str, answer: Any) -> Recorder:
    aspect = Recorder()
    aspect.answers[point] = answer
    return aspect


def fail(request: Request) -> None:
    raise ZeroDivisionError("the aspect is broken")


@pytest.fixture
def queue(capi):
    return capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())


def values(capi: Any, cref: Any) -> list[Any]:
    return [cref.value(stored) for stored in cref.space.read_all()]


OPERATIONS = {
    "read": lambda capi, cref: capi.read(cref, 0, None, FifoSelector()),
    "take": lambda capi, cref: capi.take(cref, 0, None, FifoSelector()),
    "destroy": lambda capi, cref: capi.destroy(cref, 0, None, FifoSelector()),
    "write": lambda capi, cref: capi.write(cref, 0, None, 2),
    "shift": lambda capi, cref: capi.shift(cref, None, 2),
}


def test_local_aspects_are_asked_before_and_after_every_operation(capi, queue):
    aspect = Recorder()
    registration = capi.add_aspect(queue, list(LOCAL_POINTS), aspect)
    capi.write(queue, 0, None, 1)
    capi.shift(queue, None, 2)
    assert capi.read(queue, 0, None, FifoSelector(2)) == [1, 2]
    assert capi.take(queue, 0, None, FifoSelector()) == [1]
    assert capi.destroy(queue, 0, None, FifoSelector()) == 1
    other = capi.add_aspect(queue, Point.PRE_READ, Recorder())
    capi.remove_aspect(queue, None, other)
    asked = ["write", "shift", "read", "take", "destroy", "add_aspect", "remove_aspect"]
    # Of its own registration it hears only after it.
    assert aspect.log == [f"{when}_{name}" for name in asked for when in ("pre", "post")]
    capi.remove_aspect(queue, None, registration)
    aspect.log.clear()
    capi.write(queue, 0, None, 1)
    assert aspect.log == []


def test_global_aspects_are_asked_about_the_space_itself(capi):
    aspect = Recorder()
    capi.add_aspect(None, list(GLOBAL_POINTS), aspect)
    cref = capi.create_container(None, None, "c", INFINITE)
    capi.commit_transaction(capi.create_transaction(None, INFINITE_TIMEOUT))
    capi.rollback_transaction(capi.create_transaction(None, INFINITE_TIMEOUT))
    capi.destroy_container(None, cref)
    capi.shutdown(None)
    assert aspect.log == [
        f"{when}_{name}"
        for name in (
            "create_container",
            "transaction_create",
            "transaction_commit",
            "transaction_create",
            "transaction_rollback",
            "destroy_container",
            "shutdown",
        )
        for when in ("pre", "post")
    ]


def test_global_aspects_may_stand_at_all_containers(capi, queue):
    log: list[str] = []
    points = [Point.PRE_WRITE, Point.POST_WRITE]
    capi.add_aspect(queue, points, Recorder("local ", log))
    registration = capi.add_aspect(None, points, Recorder("global ", log))
    capi.add_aspect(queue, points, Recorder("second ", log))
    capi.write(queue, 0, None, 1)
    assert log == [
        *["global pre_write", "local pre_write", "second pre_write"],
        *["local post_write", "second post_write", "global post_write"],
    ]
    log.clear()
    other = capi.create_container(None, None, "other", INFINITE)
    capi.write(other, 0, None, 1)
    assert log == ["global pre_write", "global post_write"]
    capi.remove_aspect(None, points, registration)
    capi.write(other, 0, None, 1)
    assert len(log) == 2


def test_an_aspect_may_change_the_arguments(capi, queue):
    def double(request: Request) -> None:
        request.entries = [2 * entry for entry in request.entries]

    def take_two(request: Request) -> Any:
        request.selectors = [FifoSelector(2)]
        return OK

    capi.add_aspect(
        queue, [Point.PRE_WRITE, Point.PRE_TAKE], Recorder(pre_write=double, pre_take=take_two)
    )
    capi.write(queue, 0, None, 1, 2)
    assert values(capi, queue) == [2, 4]
    assert capi.take(queue, 0, None, FifoSelector()) == [2, 4]


def test_an_aspect_may_change_the_result(capi, queue):
    def hide(request: Request) -> None:
        request.result = [entry for entry in request.result if entry != "secret"]

    capi.write(queue, 0, None, "open", "secret")
    capi.add_aspect(queue, Point.POST_READ, Recorder(post_read=hide))
    assert capi.read(queue, 0, None, FifoSelector(COUNT_ALL)) == ["open"]


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_veto_undoes_everything(capi, queue, name, when):
    capi.write(queue, 0, None, 1)
    point = f"{when}_{name}"
    for veto in (Veto("not today"), lambda request: _raise(Veto("not today"))):
        aspect = answering(point, veto)
        registration = capi.add_aspect(queue, Point(point), aspect)
        with pytest.raises(AspectVeto, match="not today") as vetoed:
            OPERATIONS[name](capi, queue)
        assert (vetoed.value.point, vetoed.value.reason) == (point, "not today")
        assert values(capi, queue) == [1]
        capi.remove_aspect(queue, Point(point), registration)
    OPERATIONS[name](capi, queue)


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_failing_aspect_corrupts_nothing(capi, queue, name, when):
    capi.write(queue, 0, None, 1)
    point = f"{when}_{name}"

    def write(request: Request) -> None:
        queue.space.write(("by", "aspect"), txn=request.transaction)

    capi.add_aspect(queue, Point(point), answering(point, write))
    capi.add_aspect(queue, Point(point), answering(point, fail))
    with pytest.raises(AspectFailed, match=f"{point} raised ZeroDivisionError"):
        OPERATIONS[name](capi, queue)
    assert values(capi, queue) == [1]
    assert not core_of(queue.space).transactions


def test_what_an_aspect_raised_is_the_cause(capi, queue):
    capi.add_aspect(queue, Point.PRE_WRITE, answering("pre_write", fail))
    with pytest.raises(AspectFailed) as failed:
        capi.write(queue, 0, None, 1)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_an_answer_that_is_none_is_a_failure(capi, queue):
    capi.add_aspect(queue, Point.PRE_WRITE, Recorder(pre_write="no"))
    with pytest.raises(AspectFailed, match="'no'"):
        capi.write(queue, 0, None, 1)


@pytest.mark.parametrize("when", ["pre", "post"])
@pytest.mark.parametrize("answer", [Veto("no"), fail])
def test_containers_are_not_created_or_destroyed_against_an_aspect(capi, queue, when, answer):
    for name in ("create_container", "destroy_container"):
        point = f"{when}_{name}"
        capi.add_aspect(None, Point(point), answering(point, answer))
    with pytest.raises((AspectVeto, AspectFailed)):
        capi.create_container(None, None, "new", INFINITE)
    with pytest.raises((AspectVeto, AspectFailed)):
        capi.destroy_container(None, queue)
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(None, None, "new")
    assert capi.lookup_container(None, None, "queue") is queue
    capi.write(queue, 0, None, 1)


def test_an_aspect_may_veto_aspects_commits_and_the_shutdown(capi, queue):
    no = Veto("no")
    aspect = Recorder(
        pre_add_aspect=no, pre_remove_aspect=no, pre_transaction_commit=no, pre_shutdown=no
    )
    registration = capi.add_aspect(
        None,
        [
            Point.PRE_ADD_ASPECT,
            Point.PRE_REMOVE_ASPECT,
            Point.PRE_TRANSACTION_COMMIT,
            Point.PRE_SHUTDOWN,
        ],
        aspect,
    )
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, 1)
    refused(
        AspectVeto,
        "no",
        lambda: capi.add_aspect(queue, Point.PRE_READ, Recorder()),
        lambda: capi.remove_aspect(None, None, registration),
        lambda: capi.commit_transaction(tx),
        lambda: capi.shutdown(None),
    )
    assert values(capi, queue) == []
    capi.rollback_transaction(tx)


def test_post_add_aspect_that_fails_leaves_no_aspect(capi, queue):
    capi.add_aspect(queue, Point.POST_ADD_ASPECT, Recorder(post_add_aspect=fail))
    added = Recorder()
    with pytest.raises(AspectFailed):
        capi.add_aspect(queue, Point.PRE_WRITE, added)
    capi.write(queue, 0, None, 1)
    assert added.log == []


def test_an_aspect_may_skip_the_operation(capi, queue):
    def instead(request: Request) -> Any:
        request.result = ["instead"]
        return SKIP

    later = Recorder()
    points = [Point.PRE_TAKE, Point.POST_TAKE]
    capi.write(queue, 0, None, 1)
    capi.add_aspect(queue, Point.PRE_TAKE, Recorder(pre_take=instead))
    capi.add_aspect(queue, points, later)
    assert capi.take(queue, 0, None, FifoSelector()) == ["instead"]
    assert values(capi, queue) == [1] and later.log == []


def test_skip_after_an_operation_skips_the_other_aspects(capi, queue):
    later = Recorder()
    capi.add_aspect(queue, Point.POST_WRITE, Recorder(post_write=SKIP))
    capi.add_aspect(queue, Point.POST_WRITE, later)
    capi.write(queue, 0, None, 1)
    assert values(capi, queue) == [1] and later.log == []


class Rest(Aspect):
    """Nobody takes while there are fewer than three."""

    def pre_take(self, request: Request) -> Any:
        assert request.container is not None
        return OK if request.container.space.count() >= 3 else RESCHEDULE


def test_an_aspect_may_put_an_operation_off_until_something_has_changed(capi, queue, later, until):
    capi.add_aspect(queue, Point.PRE_TAKE, Rest())
    call = later(capi.take, queue, None, None, FifoSelector())
    for i in range(3):
        until(lambda: queue.changes.waiting or not call.waits)
        assert call.waits
        capi.write(queue, 0, None, i)
    assert call.result() == [0]


def test_what_is_put_off_too_long_is_given_up(capi, queue, later, until, clock):
    capi.add_aspect(queue, Point.PRE_TAKE, Rest())
    with pytest.raises(PutOff):
        capi.take(queue, 0, None, FifoSelector())
    sleepers = clock.sleepers
    call = later(capi.take, queue, 5, None, FifoSelector())
    until(lambda: clock.sleepers > sleepers)
    clock.advance(4)
    before = clock.sleepers
    capi.write(queue, 0, None, 1)
    until(lambda: clock.sleepers > before)
    assert call.waits
    clock.advance(1)
    with pytest.raises(PutOff, match="take"):
        call.result()


def test_a_commit_is_a_change_too(capi, queue, later, until):
    capi.add_aspect(queue, Point.PRE_TAKE, Rest())
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, 0, 1, 2)
    call = later(capi.take, queue, None, None, FifoSelector())
    until(lambda: queue.changes.waiting)
    capi.commit_transaction(tx)
    assert call.result() == [0]


def test_an_aspect_works_in_the_operations_transaction(capi, queue):
    log = capi.create_container(None, None, "log", INFINITE, LindaCoordinator())

    class Log(Aspect):
        def post_write(self, request: Request) -> None:
            log.space.write(("written", len(request.entries)), txn=request.transaction)

    capi.add_aspect(queue, Point.POST_WRITE, Log())
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, 1, 2)
    assert values(capi, log) == []
    capi.rollback_transaction(tx)
    assert values(capi, log) == [] and values(capi, queue) == []
    capi.write(queue, 0, None, 1)
    assert capi.take(log, 0, None, LindaSelector(("written", None))) == [("written", 1)]


def test_an_operation_waits_with_aspects_around_it(capi, queue, wait_at, clock):
    aspect = Recorder()
    capi.add_aspect(queue, [Point.PRE_TAKE, Point.POST_TAKE], aspect)
    call = wait_at(queue, capi.take, queue, None, None, FifoSelector())
    assert aspect.log == ["pre_take"]
    capi.write(queue, 0, None, 1)
    assert call.result() == [1] and aspect.log == ["pre_take", "post_take"]
    call = wait_at(queue, capi.take, queue, 5, None, FifoSelector(), timed=True)
    clock.advance(5)
    with pytest.raises(CountNotMet):
        call.result()


def test_aspects_are_told_who_asks(capi, make_capi, queue):
    other = make_capi(capi)
    aspect = Recorder()
    capi.add_aspect(queue, Point.PRE_WRITE, aspect)
    capi.set_aspect_context({"user": "ann"})
    other.set_aspect_context({"user": "bob"})
    assert capi.get_aspect_context() == {"user": "ann"}
    for door in (capi, other):
        door.write(queue, 0, None, 1)
    assert [request.context for request in aspect.requests] == [{"user": "ann"}, {"user": "bob"}]
    capi.get_aspect_context()["user"] = "eve"  # a copy
    assert capi.get_aspect_context() == {"user": "ann"}
    with pytest.raises(BadArgument, match="properties="):
        capi.set_aspect_context("ann")


def test_aspects_that_make_no_sense_are_refused(capi, queue):
    aspect = Recorder()
    registration = capi.add_aspect(queue, Point.PRE_READ, aspect)
    refused(
        BadArgument,
        "must be",
        lambda: capi.add_aspect(queue, [], aspect),
        lambda: capi.add_aspect(queue, "pre_read", aspect),
        lambda: capi.add_aspect(queue, ["pre_read"], aspect),
        lambda: capi.add_aspect(queue, Point.PRE_SHUTDOWN, aspect),
        lambda: capi.add_aspect(queue, Point.PRE_READ, object()),
        lambda: capi.remove_aspect(queue, Point.PRE_TAKE, registration),
        lambda: capi.remove_aspect(queue, None, aspect),
        lambda: capi.remove_aspect(None, None, registration),
    )


# Notifications


class Ear:
    """A listener that can be waited for."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[Any]]] = []
        self.threads: set[int] = set()

    def __call__(self, notification: Any, operation: str, entries: list[Any]) -> None:
        self.heard.append((operation, entries))
        self.threads.add(threading.get_ident())


def test_a_listener_is_told_of_operations(capi, queue, until):
    ear = Ear()
    capi.create_notification(queue, ear, "read", "write", "take", "shift", "destroy")
    capi.write(queue, 0, None, 1, 2)
    capi.read(queue, 0, None, FifoSelector())
    capi.take(queue, 0, None, FifoSelector())
    capi.shift(queue, None, 3)
    capi.destroy(queue, 0, None, FifoSelector(2))
    until(lambda: len(ear.heard) == 5)
    assert ear.heard == [
        ("write", [1, 2]),
        ("read", [1]),
        ("take", [1]),
        ("shift", [3]),
        ("destroy", [2, 3]),
    ]
    assert len(ear.threads) == 1 and threading.get_ident() not in ear.threads


def removals(ear: Ear) -> list[Any]:
    assert all(operation == "destroy" and len(told) == 1 for operation, told in ear.heard)
    return [told[0] for _, told in ear.heard]


def test_a_listener_is_told_of_every_removal(capi, here, clock, until):
    ear = Ear()
    coordinators = (FifoCoordinator(), LifoCoordinator())
    queue = capi.create_container(None, None, "queue", INFINITE, *coordinators)
    notification = capi.create_notification(queue, ear, "destroy", every_removal=True)
    capi.write(queue, 0, None, *range(1, 8))
    capi.read(queue, 0, None, FifoSelector(2))
    assert capi.take(queue, 0, None, FifoSelector(2)) == [1, 2]
    capi.destroy(queue, 0, None, FifoSelector())
    until(lambda: removals(ear) == [1, 2, 3])
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, "never seen")
    capi.take(queue, 0, tx, FifoSelector())
    capi.rollback_transaction(tx)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, "written and taken")
    capi.take(queue, 0, tx, LifoSelector())
    capi.take(queue, 0, tx, FifoSelector())
    assert removals(ear) == [1, 2, 3]
    capi.commit_transaction(tx)
    space = here(queue).space
    space.take(AtomicEntry(5))
    until(lambda: removals(ear) == [1, 2, 3, 4, 5])
    space.write(("leased",), lease=5)
    lease = space.write(("cancelled",))
    clock.advance(6)  # It is told though nobody does anything.
    until(lambda: removals(ear)[5:] == [("leased",)])
    lease.cancel()
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.take(queue, 0, tx, FifoSelector())  # 6, which goes with the container
    capi.destroy_container(None, queue)
    until(lambda: not notification.active)
    assert sorted(map(str, removals(ear)[6:])) == ["('cancelled',)", "6", "7"]
    assert notification.error is None and notification.dropped == 0


def test_a_shift_and_a_taker_who_waits_are_removals(capi, wait_at, until):
    cref = capi.create_container(None, None, None, 2, FifoCoordinator())
    ear, both = Ear(), Ear()
    listening = capi.create_notification(cref, ear, "destroy", every_removal=True)
    capi.create_notification(cref, both, "take", "destroy", every_removal=True, times=2)
    call = wait_at(cref, capi.take, cref, INFINITE_TIMEOUT, None, FifoSelector())
    capi.write(cref, 0, None, 1)
    assert call.result() == [1]
    capi.write(cref, 0, None, 2, 3)
    capi.shift(cref, None, 4)
    until(lambda: removals(ear) == [1, 2])
    until(lambda: sorted(both.heard) == [("destroy", [1]), ("take", [1])])
    listening.destroy()
    capi.take(cref, 0, None, FifoSelector())  # which nobody hears
    again = capi.create_notification(cref, ear, "destroy", every_removal=True)
    capi.take(cref, 0, None, FifoSelector())
    until(lambda: removals(ear) == [1, 2, 4])
    again.destroy()
    until(lambda: cref.fast_owner)


def test_a_listener_is_told_after_the_commit_and_not_of_what_was_rolled_back(capi, queue, until):
    ear = Ear()
    capi.create_notification(queue, ear, "write")
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, 1)
    capi.rollback_transaction(tx)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, 2)
    capi.write(queue, 0, None, 3)
    capi.commit_transaction(tx)
    until(lambda: len(ear.heard) == 2)
    assert ear.heard == [("write", [3]), ("write", [2])]


def test_a_listener_is_not_told_of_what_an_aspect_undid(capi, queue, until):
    ear = Ear()
    capi.create_notification(queue, ear, "write")
    registration = capi.add_aspect(queue, Point.POST_WRITE, Recorder(post_write=Veto("no")))
    with pytest.raises(AspectVeto):
        capi.write(queue, 0, None, 1)
    capi.remove_aspect(queue, None, registration)
    capi.write(queue, 0, None, 2)
    until(lambda: ear.heard)
    assert ear.heard == [("write", [2])]


def test_a_notification_ends(capi, queue, until):
    ear, twice = Ear(), Ear()
    notification = capi.create_notification(queue, ear, "write")
    ended = capi.create_notification(queue, twice, "write", times=2)
    capi.write(queue, 0, None, 1)
    until(lambda: ear.heard)
    notification.destroy()
    for i in range(3):
        capi.write(queue, 0, None, i)
    until(lambda: not ended.active)
    assert len(ear.heard) == 1 and len(twice.heard) == 2
    assert not notification.active
    until(lambda: queue.fast_owner)


def test_a_listener_that_raises_is_told_no_more(capi, queue, until, caplog):
    def broken(notification: Any, operation: str, entries: list[Any]) -> None:
        raise ValueError("deaf")

    notification = capi.create_notification(queue, broken, "write")
    capi.write(queue, 0, None, 1)
    until(lambda: not notification.active)
    assert isinstance(notification.error, ValueError)
    capi.write(queue, 0, None, 2)


def test_notifications_that_make_no_sense_are_refused(capi, queue):
    refused(
        BadArgument,
        "must be",
        lambda: capi.create_notification(queue, None, "write"),
        lambda: capi.create_notification(queue, Ear()),
        lambda: capi.create_notification(queue, Ear(), "commit"),
        lambda: capi.create_notification(queue, Ear(), "write", times=0),
        lambda: capi.create_notification(queue, Ear(), "write", every_removal=True),
        lambda: capi.create_notification(queue, Ear(), "destroy", every_removal=1),
        lambda: capi.create_notification("queue", Ear(), "write"),
    )
    assert capi.read(queue, 0, None, AnySelector(COUNT_MAX)) == []
