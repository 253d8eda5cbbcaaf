"""The ActiveCoordinator: entries that carry work."""

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import PATIENCE_SECONDS
from tests.laws.talk import refused
from tupelo import ManualClock
from tupelo.errors import BadArgument, CountNotMet
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
    ActiveCoordinator,
    ActiveEntry,
    ActiveError,
    ActiveSelector,
    Capi,
    Entry,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    current,
)

gate = threading.Event()


def square(number: int) -> int:
    return number * number


def wait_at_the_gate(number: int) -> int:
    assert gate.wait(PATIENCE_SECONDS)
    return number


def divide(number: int) -> float:
    return 1 / number


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
    a_lambda=lambda: 1,
)


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
