"""Entries and templates by the specification: values are compared exactly, no field is lost, and
what this program has no class for is in nobody's way."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from tests.conftest import PATIENCE_SECONDS, Call, until_true
from tests.models.classes import forget, learn
from tests.models.javaspaces.doors import (
    TIMEOUT,
    Listener,
    Parked,
    SimpleEntry,
    drain,
    fill,
)
from tupelo import Between
from tupelo.errors import BadEntry
from tupelo.models.javaspaces import NO_WAIT, Entry, Snapshot
from tupelo.values import kind

ENTRY = SimpleEntry(1, "one", True)


@dataclass
class Point:
    x: int | None = None
    y: int | None = None


@dataclass
class Shape(Entry):
    name: str | None = None
    centre: Any = None


# Values are compared exactly


CENTRES = [Point(1, 2), Point(1), (Point(1, 2), 3), (Point(1), 3), [Point(1)], {"a": Point(1)}]


@pytest.mark.parametrize("centre", CENTRES, ids=repr)
def test_a_value_inside_a_template_is_compared_exactly(javaspace, centre):
    for n, other in enumerate(CENTRES):
        javaspace.write(Shape(str(n), other))
    for template in (Shape(None, centre), javaspace.snapshot(Shape(None, centre))):
        (found,) = javaspace.contents([template])
        assert found.centre == centre
        assert javaspace.read(template, None, NO_WAIT) == found
    assert javaspace.take(Shape(None, centre), None, NO_WAIT).centre == centre
    assert javaspace.take_if_exists(Shape(None, centre), None, NO_WAIT) is None


def test_whoever_waits_for_a_value_gets_exactly_that(javaspace):
    waiter = Parked(javaspace, javaspace.take, Shape(None, Point(1)), None, timeout=TIMEOUT)
    listener = Listener()
    registration = javaspace.notify(Shape(None, Point(1)), None, listener)
    javaspace.write(Shape("a", Point(1, 2)))
    assert waiter.waits
    javaspace.write(Shape("b", Point(1)))
    assert waiter.result() == Shape("b", Point(1))
    listener.take(1)
    assert listener.heard_nothing_else(registration)


def test_parts_of_templates_keep_their_meaning(javaspace):
    fill(javaspace, Shape("a", 1), Shape("b", 5), Shape("c", Point(3)), Shape("d", (1, 2)))
    found = [shape.name for shape in javaspace.contents([Shape(None, Between(1, 3))])]
    assert found == ["a"]
    assert javaspace.read(Shape(None, Point), None, NO_WAIT).name == "c"
    assert javaspace.read(Shape(None, (int, Between(0, 2))), None, NO_WAIT).name == "d"


# A snapshot of None


def test_a_snapshot_of_none_matches_anything(javaspace):
    fill(javaspace, ENTRY, Shape("a"))
    anything = javaspace.snapshot(None)
    assert isinstance(anything, Snapshot) and repr(anything) == "Snapshot(None)"
    assert list(javaspace.contents([anything])) == [ENTRY, Shape("a")]
    assert javaspace.read(anything, None, NO_WAIT) == ENTRY
    assert javaspace.take([anything], None, NO_WAIT) == [ENTRY, Shape("a")]
    with pytest.raises(BadEntry):
        javaspace.write(anything)


# No field is lost


class Undeclared(Entry):
    name: str | None = None


class ByHand(Entry):
    def __init__(self, name: str) -> None:
        self.name = name


@dataclass
class BelowUndeclared(Undeclared):
    size: int | None = None


class NothingAdded(SimpleEntry):
    """A class of its own without fields of its own."""

    LIMIT: ClassVar[int] = 3
    also: "ClassVar[str]" = "text"


@pytest.mark.parametrize("entry", [Undeclared(), ByHand("x"), BelowUndeclared(3)], ids=repr)
def test_a_class_that_would_lose_fields_is_refused(javaspace, entry):
    for attempt in (
        javaspace.write,
        lambda entry: javaspace.write([ENTRY, entry]),
        javaspace.snapshot,
        lambda entry: javaspace.read(entry, None, NO_WAIT),
        lambda entry: javaspace.take([entry], None, NO_WAIT),
        lambda entry: javaspace.contents([entry]),
    ):
        with pytest.raises(BadEntry, match=f"name of the class {type(entry).__name__}"):
            attempt(entry)
    assert drain(javaspace) == []


def test_a_class_that_adds_no_fields_needs_no_decorator(javaspace):
    javaspace.write(NothingAdded(1, "one", True))
    found = javaspace.take(NothingAdded(1), None, NO_WAIT)
    assert type(found) is NothingAdded and found == NothingAdded(1, "one", True)
    stray = NothingAdded(2)
    stray.colour = "red"  # type: ignore[attr-defined]
    with pytest.raises(BadEntry, match="colour"):
        javaspace.write(stray)


# Entries of classes that are not known here


@pytest.fixture
def foreign(monkeypatch):
    """An entry of a class that nobody here knows any more, once it is written."""

    @dataclass
    class Foreign(SimpleEntry):
        secret: Any = None

    class Known:
        entry: Any = Foreign(1, "foreign", True, 7)
        nested: Any = Shape("holder", [Foreign(1)])

        def forget(self) -> None:
            forget(monkeypatch, Foreign)

        def learn(self) -> None:
            learn(monkeypatch, Foreign)

    return Known()


OPERATIONS: dict[str, Callable[..., Any]] = {
    "read": lambda js, template, timeout: js.read(template, None, timeout),
    "read_if_exists": lambda js, template, timeout: js.read_if_exists(template, None, timeout),
    "take": lambda js, template, timeout: js.take(template, None, timeout),
    "take_if_exists": lambda js, template, timeout: js.take_if_exists(template, None, timeout),
    "take of many": lambda js, template, timeout: js.take([template], None, timeout),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_cannot_be_built_is_passed_over_and_stays(javaspace, foreign, name, caplog):
    operation = OPERATIONS[name]
    javaspace.write(foreign.entry)
    foreign.forget()
    caplog.clear()
    nothing: Any = [] if name == "take of many" else None
    assert operation(javaspace, SimpleEntry(), NO_WAIT) == nothing
    assert operation(javaspace, None, NO_WAIT) == nothing
    javaspace.write(ENTRY)
    found = operation(javaspace, SimpleEntry(), NO_WAIT)
    assert found in (ENTRY, [ENTRY])
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1, "it is said once, not at every operation"
    assert "passed over" in said[0].message and "Foreign" in said[0].message
    foreign.learn()
    assert foreign.entry in drain(javaspace), "it is still there, and found when it is known"


@pytest.mark.parametrize("name", ["take", "read", "take of many"])
def test_whoever_waits_is_not_stopped_by_it(javaspace, foreign, clock, name):
    javaspace.write(foreign.entry)
    foreign.forget()
    operation: Any = {"take of many": javaspace.take}.get(name) or getattr(javaspace, name)
    template: Any = [SimpleEntry()] if name == "take of many" else SimpleEntry()
    waiter = Parked(javaspace, operation, template, None, timeout=TIMEOUT)
    clock.advance(TIMEOUT - 1)
    assert waiter.waits
    javaspace.write(ENTRY)
    assert waiter.result() in (ENTRY, [ENTRY])


def test_one_that_comes_meanwhile_makes_no_wait_longer(javaspace, begin, foreign, clock):
    transaction = begin()
    javaspace.write(foreign.entry, transaction)
    foreign.forget()
    waiter = Call(javaspace.take, SimpleEntry(), None, TIMEOUT)
    until_true(lambda: clock.asleep, "it waits")
    clock.advance(TIMEOUT - 1)
    first = set(clock.asleep)
    transaction.commit()
    until_true(lambda: clock.asleep - first, "it waits again")
    assert waiter.waits
    clock.advance(1)
    assert waiter.result() is None


def test_what_holds_a_value_that_cannot_be_built_is_passed_over_too(javaspace, foreign):
    fill(javaspace, foreign.nested, Shape("plain"), Shape("list", [1]))
    foreign.forget()
    assert [shape.name for shape in drain(javaspace, Shape())] == ["plain", "list"]
    foreign.learn()
    assert javaspace.take(Shape(), None, NO_WAIT) == foreign.nested


def test_entries_of_another_version_of_a_class_are_passed_over(javaspace, monkeypatch):
    @dataclass
    class Job(Entry):
        name: str | None = None

    old_name = kind.name_of(Job)
    javaspace.write(Job("old"))

    @dataclass
    class NewJob(Entry):
        name: str | None = None
        size: int = field(kw_only=True)

    monkeypatch.setitem(kind._given_name, NewJob, old_name)
    learn(monkeypatch, NewJob)
    javaspace.write(NewJob("new", size=3))
    template = Entry()
    assert drain(javaspace, template) == [NewJob("new", size=3)]
    learn(monkeypatch, Job)
    assert drain(javaspace, template) == [Job("old")]


def test_it_is_passed_over_within_a_transaction(javaspace, begin, foreign):
    javaspace.write(foreign.entry)
    foreign.forget()
    transaction = begin()
    javaspace.write(ENTRY, transaction)
    assert javaspace.take(SimpleEntry(), transaction, NO_WAIT) == ENTRY
    assert javaspace.take(SimpleEntry(), transaction, NO_WAIT) is None
    transaction.commit()
    foreign.learn()
    assert drain(javaspace) == [foreign.entry]


def test_an_event_about_it_comes_without_the_entry(world, javaspace, foreign, caplog):
    go_on, events = threading.Event(), queue.Queue[Any]()

    def hear(event: Any) -> None:
        events.put(event)
        assert go_on.wait(PATIENCE_SECONDS)

    async def hear_async(event: Any) -> None:
        await asyncio.to_thread(hear, event)

    listener = hear_async if world.is_async else hear
    registration = javaspace.register_for_availability_event([SimpleEntry()], None, True, listener)
    javaspace.write([ENTRY, foreign.entry, ENTRY])
    assert events.get(timeout=PATIENCE_SECONDS).entry == ENTRY
    foreign.forget()
    go_on.set()
    found = [events.get(timeout=PATIENCE_SECONDS) for _ in range(2)]
    assert [event.entry for event in found] == [None, ENTRY]
    assert found[0].visibility_transition and registration.active
    assert "comes without entry" in caplog.text
    registration.cancel()
