"""What the random programs talk about: few entries and templates, so that they often meet.

Each template stands beside a predicate that says the same in plain Python; each reaction and
order likewise, so that the engine and the model can be given their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tupelo
from tests.simulation.model import Arrange, HeadOnly, Predicate, by_key, fifo, lifo, same
from tupelo import ANY, Between, Exactly, Named, Not, OneOf, Template, Where

NAN = float("nan")


class Printed:
    """Hypothesis prints these as we do."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass
class Job:
    name: str
    size: int | None = None


@dataclass
class BigJob(Job):
    urgent: bool = False


FIELDS: list[Any] = [1, 1.0, True, "a", None, NAN, (1, "a"), (1, (True,)), Job("a", 1)]

ENTRIES: list[Any] = [
    *[("k", field) for field in FIELDS],
    *[("n", number) for number in range(6)],
    (),
    ("k", 1, "a"),
    ("k", 1, True),
    Job("a"),
    Job("a", 1),
    Job("b", 1),
    BigJob("a", 1),
    BigJob("a", None, True),
]

POPULAR_ENTRIES: list[Any] = [("n", 1), ("n", 2), ("n", 3), ("k", 1), ("k", "a"), Job("a", 1)]


@dataclass(frozen=True)
class Asking(Printed):
    """A template, and what it means."""

    name: str
    template: Any
    means: Predicate

    def __repr__(self) -> str:
        return self.name


def is_pair(entry: Any, first: str) -> bool:
    return type(entry) is tuple and len(entry) == 2 and entry[0] == first


def pairs(first: str, means: Predicate) -> Predicate:
    return lambda entry: is_pair(entry, first) and means(entry[1])


def exactly(value: Any) -> Predicate:
    return lambda other: same(value, other)


def jobs(cls: type, **fields: Any) -> Predicate:
    return lambda entry: (
        isinstance(entry, cls)
        and all(
            same(getattr(entry, name, "no such field"), value) for name, value in fields.items()
        )
    )


EVERYTHING = Asking("everything", ANY, lambda entry: True)
PAIRS = Asking("k pairs", ("k", ANY), pairs("k", lambda field: True))
NUMBERS = Asking("numbers", ("n", int), pairs("n", lambda number: True))
JOBS = Asking("jobs", Job(name="a"), jobs(Job, name="a"))

VALUES: list[Asking] = [
    Asking(f"k {field!r}", ("k", field), pairs("k", exactly(field)))
    for field in FIELDS
    if not isinstance(field, Job)
]
TEMPLATES: list[Asking] = [
    EVERYTHING,
    PAIRS,
    NUMBERS,
    JOBS,
    *VALUES,
    Asking("n 3", ("n", 3), pairs("n", exactly(3))),
    Asking("n from 2 to 4", ("n", Between(2, 4)), pairs("n", lambda n: 2 <= n <= 4)),
    Asking("k int", ("k", int), pairs("k", lambda f: type(f) is int)),
    Asking("k float", ("k", float), pairs("k", lambda f: type(f) is float)),
    Asking("k not int", ("k", Not(int)), pairs("k", lambda f: type(f) is not int)),
    Asking("k 1 or a", ("k", OneOf(1, "a")), pairs("k", lambda f: same(f, 1) or same(f, "a"))),
    Asking(
        "k (1, any)",
        ("k", (1, ANY)),
        pairs("k", lambda f: type(f) is tuple and same(f[0], 1)),
    ),
    Asking(
        "k job", ("k", Job("a")), pairs("k", lambda f: isinstance(f, Job) and same(f.name, "a"))
    ),
    Asking("tuples", tuple, lambda entry: type(entry) is tuple),
    Asking("nothing", (), lambda entry: same(entry, ())),
    Asking("triples", (ANY, ANY, ANY), lambda entry: type(entry) is tuple and len(entry) == 3),
    Asking("every job", Job, jobs(Job)),
    Asking("just jobs", Exactly(Job), lambda entry: type(entry) is Job),
    Asking("big jobs", BigJob, jobs(BigJob)),
    Asking("jobs of 1", Job(None, 1), jobs(Job, size=1)),  # type: ignore[arg-type]
    Asking("urgent", Named(urgent=True), jobs(BigJob, urgent=True)),
    Asking("big a", BigJob("a", None, False), jobs(BigJob, name="a", urgent=False)),
    Asking(
        "job or number",
        Template(Job) | ("n", int),
        lambda entry: isinstance(entry, Job) or is_pair(entry, "n"),
    ),
    Asking("no pair of k", ~Template(("k", ANY)), lambda entry: not is_pair(entry, "k")),
    Asking(
        "even number",
        ("n", Where(lambda n: n % 2 == 0)),
        pairs("n", lambda n: n % 2 == 0),
    ),
]

POPULAR_TEMPLATES: list[Asking] = [EVERYTHING, NUMBERS, PAIRS, JOBS, TEMPLATES[-3], TEMPLATES[-1]]


@dataclass(frozen=True)
class Ordering(Printed):
    name: str
    order: tupelo.Order
    arrange: Arrange

    def __repr__(self) -> str:
        return self.name


def first_field(entry: Any) -> tuple[bool, str]:
    """Entries without a first field come last."""
    if isinstance(entry, Job):
        return False, entry.name
    return (False, entry[0]) if entry else (True, "")


def encoding(entry: Any) -> str:
    return repr(entry)[::-1]


FIFO = Ordering("fifo", tupelo.Fifo(), fifo)
ORDERS: list[Ordering] = [
    FIFO,
    Ordering("lifo", tupelo.Lifo(), lifo),
    Ordering("queue", tupelo.Queue(), HeadOnly(fifo)),
    Ordering("stack", tupelo.Stack(), HeadOnly(lifo)),
    Ordering("by first field", tupelo.Key(0), by_key(first_field)),
    Ordering("by spelling", tupelo.Key(encoding), by_key(encoding)),
    Ordering("by spelling, falling", tupelo.Key(encoding, reverse=True), by_key(encoding, True)),
]


@dataclass(frozen=True)
class Reacting(Printed):
    """What a reaction does. `ask` turns an Asking into what this side's step understands."""

    name: str
    function: Callable[[Any, Any, Callable[[Asking], Any]], object]

    def for_engine(self) -> Callable[[Any, Any], object]:
        return lambda entry, step: self.function(entry, step, lambda asking: asking.template)

    def for_model(self) -> Callable[[Any, Any], object]:
        return lambda entry, step: self.function(entry, step, lambda asking: asking.means)

    def __repr__(self) -> str:
        return self.name


def echo(entry: Any, step: Any, ask: Callable[[Asking], Any]) -> None:
    step.write(("echo",))


def swallow(entry: Any, step: Any, ask: Callable[[Asking], Any]) -> None:
    step.take(ask(NUMBERS))


def trade(entry: Any, step: Any, ask: Callable[[Asking], Any]) -> None:
    if step.take(ask(JOBS)) is not None:
        step.write(("n", 5), lease=2)
        step.write(("traded",))


def insist(entry: Any, step: Any, ask: Callable[[Asking], Any]) -> None:
    step.write(("insisted",))
    if step.read(ask(NUMBERS)) is None:
        raise LookupError("there must be a number")


def steal_and_fail(entry: Any, step: Any, ask: Callable[[Asking], Any]) -> None:
    step.take(ask(PAIRS))
    step.write(("stolen",))
    raise ValueError("no")


REACTIONS: list[Reacting] = [
    Reacting(function.__name__, function)
    for function in (echo, swallow, trade, insist, steal_and_fail)
]
