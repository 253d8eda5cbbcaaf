"""The ActiveCoordinator: entries that carry work."""

import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

import tupelo
from tests.conftest import PATIENCE_SECONDS, core_of, parked_at
from tests.laws.talk import refused
from tests.models.classes import forget, learn
from tests.models.xvsm.conftest import cancel
from tupelo import ManualClock
from tupelo.errors import BadArgument, CountNotMet, DuplicateKey, LeaseLost, TupeloError
from tupelo.models.javaspaces import JavaSpace05, TransactionManager
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
    RESCHEDULE,
    ActiveCoordinator,
    ActiveEntry,
    ActiveError,
    ActiveSelector,
    ActiveSpace,
    Aspect,
    AsyncCapi,
    Capi,
    Entry,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    Point,
    Request,
    current,
)

gate = threading.Event()
at_the_gate: list[int] = []


def square(number: int) -> int:
    return number * number


def wait_at_the_gate(number: int) -> int:
    at_the_gate.append(number)
    assert gate.wait(PATIENCE_SECONDS)
    return number


def divide(number: int) -> float:
    return 1 / number


def leave() -> None:
    sys.exit(3)


def make_a_set() -> Any:
    return {1, 2}


def split(numbers: list[int]) -> int:
    """Subdivides: a task that writes further ActiveEntries, and waits for them."""
    if len(numbers) < 2:
        return sum(map(square, numbers))
    capi, cref = current()
    middle = len(numbers) // 2
    halves = [numbers[:middle], numbers[middle:]]
    keys = [f"{numbers}/{i}" for i in (0, 1)]
    for half, key in zip(halves, keys, strict=True):
        capi.write(cref, 0, None, Entry(Sum(half), KeySelector(key)))
    found = [capi.take(cref, INFINITE_TIMEOUT, None, KeySelector(key))[0] for key in keys]
    return sum(half.total for half in found)


@dataclass
class Job:
    name: str


@dataclass
class Squares(ActiveEntry):
    numbers: list[int] = field(default_factory=list)
    total: int | None = None

    def evaluate(self) -> list[Any]:
        return [(square, number) for number in self.numbers]

    def finalize(self, results: list[Any]) -> None:
        assert results == [number * number for number in self.numbers]
        self.total = sum(results)


FUNCTIONS: dict[str, Any] = {}


@dataclass
class Calls(ActiveEntry):
    """Calls one function, by a name of its own."""

    name: str = ""
    arguments: tuple[Any, ...] = ()
    result: Any = None

    def evaluate(self) -> list[Any]:
        return [(FUNCTIONS[self.name], *self.arguments)]

    def finalize(self, results: list[Any]) -> None:
        (self.result,) = results
        if self.result == 13:
            raise ArithmeticError("unlucky")


FUNCTIONS.update(
    wait_at_the_gate=wait_at_the_gate,
    square=square,
    divide=divide,
    make_a_set=make_a_set,
    leave=leave,
    a_lambda=lambda: 1,
)


@dataclass
class SlowToFinish(ActiveEntry):
    number: int = 0

    def evaluate(self) -> list[Any]:
        return [(square, self.number)]

    def finalize(self, results: list[Any]) -> None:
        wait_at_the_gate(self.number)


@tupelo.entry("active.stranger")
@dataclass
class Stranger(ActiveEntry):
    number: int = 0
    result: int = 0

    def evaluate(self) -> list[Any]:
        return [(square, self.number)]

    def finalize(self, results: list[Any]) -> None:
        (self.result,) = results


@dataclass
class Sum(ActiveEntry):
    numbers: list[int] = field(default_factory=list)
    total: int | None = None

    def evaluate(self) -> list[Any]:
        return [(split, self.numbers)]

    def finalize(self, results: list[Any]) -> None:
        (self.total,) = results


@pytest.fixture
def active(capi):
    gate.clear()
    yield capi.create_container(
        None, None, "active", INFINITE, ActiveCoordinator(), FifoCoordinator()
    )
    gate.set()


def test_an_entry_comes_out_when_its_work_is_done(capi, active):
    capi.write(active, 0, None, Squares([1, 2, 3]))
    assert capi.read(active, None, None, ActiveSelector()) == [Squares([1, 2, 3], 14)]
    capi.write(active, 0, None, Squares([]), Squares([5]))
    found = capi.take(active, None, None, FifoSelector(3))
    assert sorted(entry.total for entry in found) == [0, 14, 25]


def test_until_then_it_cannot_be_found(capi, active):
    capi.write(active, 0, None, Calls("wait_at_the_gate", (7,)))
    assert capi.read(active, 0, None, FifoSelector(COUNT_MAX)) == []
    with pytest.raises(CountNotMet):
        capi.take(active, 0, None, ActiveSelector())
    gate.set()
    assert capi.take(active, None, None, ActiveSelector())[0].result == 7


def test_work_begins_when_the_transaction_is_committed(capi, active):
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(active, 0, tx, Squares([2]))
    capi.rollback_transaction(tx)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(active, 0, tx, Squares([3]))
    capi.commit_transaction(tx)
    assert capi.take(active, None, None, ActiveSelector()) == [Squares([3], 9)]
    assert capi.take(active, None, None, ActiveSelector(COUNT_ALL)) == []


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("divide", (0,), "ZeroDivisionError: division by zero"),
        ("square", (), "TypeError: square() missing"),
        ("make_a_set", (), "BadEntry: field 4 is a builtins.set"),
        ("a_lambda", (), "BadArgument: task="),
        ("unknown", (), "KeyError: 'unknown'"),
        ("wait_at_the_gate", (13,), "ArithmeticError: unlucky"),
    ],
)
def test_errors_come_back_as_entries(capi, active, name, arguments, reason):
    gate.set()
    capi.write(active, 0, None, Calls(name, arguments))
    (error,) = capi.take(active, None, None, ActiveSelector())
    assert type(error) is ActiveError and reason in str(error.reason), error
    assert error.entry.name == name and "Traceback" in str(error.detail)


def test_only_active_entries_are_accepted(capi, active):
    refused(
        BadArgument,
        "ActiveEntry",
        lambda: capi.write(active, 0, None, 5),
        lambda: capi.write(active, 0, None, Squares([1]), ("a", 1)),
    )
    with pytest.raises(BadArgument, match="cref="):
        capi.shift(active, None, Squares([1]))
    assert capi.read(active, 0, None, FifoSelector(COUNT_ALL)) == []


def test_a_task_may_write_further_active_entries(capi):
    cref = capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(64), KeyCoordinator())
    capi.write(cref, 0, None, Entry(Sum(list(range(6))), KeySelector("all")))
    (found,) = capi.take(cref, None, None, KeySelector("all"))
    assert found.total == sum(n * n for n in range(6))


def test_current_is_for_tasks():
    with pytest.raises(BadArgument, match="task"):
        current()
    with pytest.raises(BadArgument, match="workers="):
        ActiveCoordinator(0)


def test_work_that_was_not_done_is_done_when_the_folder_is_opened_again(folder):
    gate.clear()
    capi = Capi(folder, clock=ManualClock())
    cref = capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(1))
    capi.write(cref, 0, None, Calls("wait_at_the_gate", (1,)), Squares([2]))
    capi.shutdown(None)
    gate.set()
    with Capi(folder, clock=ManualClock()) as capi:
        cref = capi.lookup_container(None, None, "c")
        found = capi.take(cref, None, None, ActiveSelector(2))
        assert {type(entry) for entry in found} == {Calls, Squares}


def test_an_entry_that_only_waits_for_room_comes_out_after_the_folder_is_opened_again(
    folder, until
):
    capi = Capi(folder, clock=ManualClock())
    cref = capi.create_container(None, None, "c", 1, ActiveCoordinator(), FifoCoordinator())
    capi.write(cref, 0, None, Squares([1]), Squares([2]))
    until(lambda: cref.space.count() and parked_at(core_of(cref.space)))
    capi.close()
    with Capi(folder, clock=ManualClock()) as capi:
        cref = capi.lookup_container(None, None, "c")
        found = [capi.take(cref, None, None, FifoSelector())[0].total for _ in range(2)]
        assert sorted(found) == [1, 4]
        until(lambda: not cref.active.work.count())


def test_a_task_that_wants_to_end_the_program_ends_itself_only(capi):
    cref = capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(1))
    for _ in range(2):
        capi.write(cref, 0, None, Calls("leave"), Squares([3]))
        found = capi.take(cref, None, None, ActiveSelector(2))
        (error,) = [entry for entry in found if type(entry) is ActiveError]
        assert error.reason == "SystemExit: 3"


def test_who_is_slow_to_finish_does_not_hold_up_others(capi, active):
    capi.write(active, 0, None, *[SlowToFinish(i) for i in range(3)])
    capi.write(active, 0, None, Squares([2]))
    assert capi.take(active, None, None, ActiveSelector()) == [Squares([2], 4)]
    gate.set()
    found = capi.take(active, None, None, ActiveSelector(3))
    assert sorted(entry.number for entry in found) == [0, 1, 2]


def test_a_worker_that_fails_is_followed_by_another(capi, active, monkeypatch, caplog):
    plan, failures = ActiveCoordinator._plan, [1, 1, 1]

    def fail(*args: Any) -> None:
        if failures:
            failures.pop()
            raise SystemError("the worker is ill")
        plan(*args)

    monkeypatch.setattr(ActiveCoordinator, "_plan", fail)
    capi.write(active, 0, None, Squares([2]))
    assert capi.take(active, None, None, ActiveSelector()) == [Squares([2], 4)]
    assert not failures and "the worker is ill" in caplog.text


def test_workers_that_always_fail_are_not_hired_for_ever(capi, active, monkeypatch, until):
    def fail(*args: Any) -> None:
        raise SystemError("the worker is ill")

    monkeypatch.setattr(ActiveCoordinator, "_plan", fail)
    capi.write(active, 0, None, Squares([2]))
    until(lambda: active.active.workers.closed and not active.active.workers.count)
    assert active.active.work.count() == 1


def test_work_of_an_unknown_class_is_left_until_it_is_known(folder, until, caplog, monkeypatch):
    gate.clear()
    capi = Capi(folder, clock=ManualClock())
    cref = capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(1))
    capi.write(cref, 0, None, Calls("wait_at_the_gate", (1,)))
    capi.write(cref, 0, None, Stranger(3))
    capi.close()
    gate.set()
    forget(monkeypatch, Stranger)
    with Capi(folder, clock=ManualClock()) as capi:
        cref = capi.lookup_container(None, None, "c")
        assert capi.take(cref, None, None, ActiveSelector())[0].result == 1
        capi.write(cref, 0, None, Squares([2]))
        assert capi.take(cref, None, None, ActiveSelector()) == [Squares([2], 4)]
        until(lambda: cref.active._aside is not None)
        assert "active.stranger" in caplog.text
        learn(monkeypatch, Stranger)
        assert capi.take(cref, None, None, ActiveSelector()) == [Stranger(3, 9)]


def test_what_cannot_be_finished_for_an_unknown_class_is_left_too(folder, until, monkeypatch):
    gate.clear()
    capi = Capi(folder, clock=ManualClock())
    cref = capi.create_container(None, None, "c", 1, ActiveCoordinator(2), FifoCoordinator())
    capi.write(cref, 0, None, Squares([1]))
    until(lambda: cref.space.count())
    capi.write(cref, 0, None, Stranger(3))
    until(lambda: parked_at(core_of(cref.space)))
    capi.close()
    forget(monkeypatch, Stranger)
    with Capi(folder, clock=ManualClock()) as capi:
        cref = capi.lookup_container(None, None, "c")
        until(lambda: cref.active._aside)
        assert capi.take(cref, None, None, FifoSelector()) == [Squares([1], 1)]
        learn(monkeypatch, Stranger)
        assert capi.take(cref, None, None, FifoSelector()) == [Stranger(3, 9)]


@pytest.fixture
def keyed(capi):
    gate.clear()
    yield capi.create_container(None, None, "k", INFINITE, ActiveCoordinator(), KeyCoordinator())
    gate.set()


def keyed_entry(payload: Any, key: str = "a") -> Entry:
    return Entry(payload, KeySelector(key))


def test_a_key_is_taken_from_the_moment_the_work_is_given_in(capi, keyed):
    capi.write(keyed, 0, None, keyed_entry(Calls("wait_at_the_gate", (1,))))
    for timeout in (0, None):
        with pytest.raises(DuplicateKey):
            capi.write(keyed, timeout, None, keyed_entry(Squares([1])))
    with pytest.raises(DuplicateKey):
        capi.write(keyed, 0, None, keyed_entry(Squares([1]), "b"), keyed_entry(Squares([2]), "b"))
    capi.write(keyed, 0, None, keyed_entry(Squares([2]), "b"))
    assert capi.take(keyed, None, None, KeySelector("b"))[0].total == 4
    gate.set()
    assert capi.read(keyed, None, None, KeySelector("a"))[0].result == 1
    with pytest.raises(DuplicateKey):
        capi.write(keyed, 0, None, keyed_entry(Squares([1])))
    assert keyed.space.count() == 1


def test_a_key_is_free_when_its_entry_was_taken_or_its_writing_undone(capi, keyed):
    for number in range(20):  # at once, while workers are still about
        capi.write(keyed, 0, None, keyed_entry(Squares([number])))
        assert capi.take(keyed, None, None, KeySelector("a"))[0].total == number * number
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(keyed, 0, tx, keyed_entry(Squares([1])))
    refused(
        DuplicateKey,
        "'a'",
        lambda: capi.write(keyed, 0, None, keyed_entry(Squares([1]))),
        lambda: capi.write(keyed, 0, tx, keyed_entry(Squares([1]))),
    )
    capi.rollback_transaction(tx)
    capi.write(keyed, 0, None, keyed_entry(Squares([3])))
    assert capi.take(keyed, None, None, KeySelector("a"))[0].total == 9


def test_keys_of_work_are_kept_over_a_restart(folder):
    gate.clear()
    capi = Capi(folder, clock=ManualClock())
    cref = capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(), KeyCoordinator())
    capi.write(cref, 0, None, keyed_entry(Calls("wait_at_the_gate", (1,))))
    capi.close()
    with Capi(folder, clock=ManualClock()) as capi:
        cref = capi.lookup_container(None, None, "c")
        with pytest.raises(DuplicateKey):
            capi.write(cref, 0, None, keyed_entry(Squares([1])))
        gate.set()
        assert capi.take(cref, None, None, KeySelector("a"))[0].result == 1


def test_work_that_is_called_off_before_it_begins_gives_its_key_back(capi, until):
    gate.clear()
    at_the_gate.clear()
    cref = capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(1), KeyCoordinator())
    (begun,) = capi.write(cref, 0, None, keyed_entry(Calls("wait_at_the_gate", (1,)), "busy"))
    until(lambda: at_the_gate, "the only worker is busy")
    with pytest.raises(LeaseLost):
        cancel(capi, begun)
    (lease,) = capi.write(cref, 0, None, keyed_entry(Squares([2])))
    cancel(capi, lease)
    capi.write(cref, 0, None, keyed_entry(Squares([3])))
    gate.set()
    assert capi.take(cref, None, None, KeySelector("a"))[0].total == 9


def test_a_listener_is_told_of_what_comes_out(capi, active, until):
    heard: list[Any] = []
    capi.create_notification(active, lambda n, operation, e: heard.append((operation, e)), "write")
    capi.write(active, 0, None, Calls("wait_at_the_gate", (5,)))
    assert heard == []
    gate.set()
    until(lambda: heard)
    assert heard == [("write", [Calls("wait_at_the_gate", (5,), 5)])]


def test_what_comes_out_is_a_change_for_those_that_were_put_off(capi, active, later, until):
    class Patient(Aspect):
        def pre_take(self, request: Request) -> Any:
            return None if active.space.count() else RESCHEDULE

    capi.add_aspect(active, Point.PRE_TAKE, Patient())
    capi.write(active, 0, None, Calls("wait_at_the_gate", (5,)))
    call = later(capi.take, active, None, None, ActiveSelector())
    until(lambda: active.changes.waiting)
    gate.set()
    assert call.result()[0].result == 5


def test_an_active_coordinator_may_serve_a_second_container_if_the_first_was_not_to_be(capi):
    coordinator = ActiveCoordinator()
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.create_container(tx, None, "c", INFINITE, coordinator)
    capi.rollback_transaction(tx)
    cref = capi.create_container(None, None, "c", INFINITE, coordinator)
    capi.write(cref, 0, None, Squares([2]))
    assert capi.take(cref, None, None, ActiveSelector()) == [Squares([2], 4)]


# Through JavaSpaces

ANY_CALL = Calls(None, None)  # type: ignore[arg-type]
ANY_SQUARES = Squares(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", ["memory", "folder"])
def test_work_is_given_in_and_found_through_javaspaces(folder, until, store):
    gate.clear()
    with Capi(folder if store == "folder" else None, clock=ManualClock()) as capi:
        cref = capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(2))
        door: Any = ActiveSpace(capi, cref)
        space: Any = JavaSpace05(door)
        assert space.name == "c"
        heard: list[Any] = []
        space.notify(ANY_CALL, None, heard.append)
        space.write(Calls("wait_at_the_gate", (5,)))
        assert space.read_if_exists(ANY_CALL) is None and heard == []
        gate.set()
        assert space.take(ANY_CALL) == Calls("wait_at_the_gate", (5,), 5)
        until(lambda: len(heard) == 1)
        leases = space.write([Squares([1, 2]), Squares([3])])
        assert len(leases) == 2
        found = [space.take(ANY_SQUARES) for _ in leases]
        assert sorted(one.total for one in found) == [5, 9]
        space.write(Calls("divide", (0,)))
        assert space.take(ActiveError()).reason.startswith("ZeroDivisionError")
        txn = TransactionManager(clock=capi.embedded.clock).create()
        space.write(Squares([4]), txn.transaction)
        txn.transaction.abort()
        txn = TransactionManager(clock=capi.embedded.clock).create()
        space.write(Squares([6]), txn.transaction)
        txn.transaction.commit()
        assert space.take(ANY_SQUARES).total == 36
        assert space.take_if_exists(ANY_SQUARES) is None
        refused(
            BadArgument,
            "must be",
            lambda: space.write(Squares([1]), None, 5),
            lambda: space.write(Squares([1]), None, 0),
            lambda: space.write(Squares([1]), cref.space.transaction()),
            lambda: space.write(Job("no work")),
            lambda: ActiveSpace(capi, capi.create_container(None, None, None, INFINITE)),
            lambda: ActiveSpace(capi, space),
        )
        keyed = (ActiveCoordinator(), KeyCoordinator())
        with pytest.raises(BadArgument, match="cref="):
            ActiveSpace(capi, capi.create_container(None, None, None, INFINITE, *keyed))
        space.close()
        assert not cref.port.closed


def test_work_is_given_in_and_found_through_javaspaces_by_tasks(loop_thread):
    async def work() -> None:
        async with AsyncCapi() as capi:
            cref = await capi.create_container(None, None, "c", INFINITE, ActiveCoordinator())
            door: Any = ActiveSpace(capi, cref)
            space: Any = JavaSpace05(door)
            await space.write(Squares([1, 2]))
            assert (await space.take(ANY_SQUARES)).total == 5
            await space.write([Squares([3]), Squares([3])])
            assert [(await space.take(ANY_SQUARES)).total for _ in range(2)] == [9, 9]

    loop_thread.call(work)


def test_work_of_javaspaces_elsewhere_goes_through_two_spaces_of_a_host():
    """A program elsewhere gives work in at one space of a host and finds it done in another; the
    program that has the container moves entries between them, each in one transaction."""
    with (
        tupelo.Host("site", listen="127.0.0.1:0") as host,
        Capi() as capi,
    ):
        given, done = host.space("given"), host.space("done")
        cref = capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(2))
        active: Any = ActiveSpace(capi, cref)

        def move(source: Any, target: Any) -> None:
            at_host = given if target is active else done
            with suppress(TupeloError):  # until host and Capi are closed
                while True:
                    with tupelo.transaction(at_host, cref.space) as tx:
                        target.write(source.take(Squares, txn=tx), txn=tx)

        movers = [
            threading.Thread(target=move, args=pair, daemon=True)
            for pair in ((given, active), (active, done))
        ]
        for mover in movers:
            mover.start()
        with (
            JavaSpace05(tupelo.connect(host.url + "given")) as jobs,
            JavaSpace05(tupelo.connect(host.url + "done")) as done_space,
        ):
            results: Any = done_space
            lost = TransactionManager().create().transaction
            jobs.write(Squares([9]), lost)
            lost.abort()
            jobs.write([Squares([1, 2]), Squares([3])])
            totals = [results.take(ANY_SQUARES).total for _ in range(2)]
            assert sorted(totals) == [5, 9]
            assert results.take_if_exists(ANY_SQUARES) is None
    for mover in movers:
        mover.join(PATIENCE_SECONDS)
        assert not mover.is_alive()
