"""Random programs, which do the same in a database as in memory, and concurrent ones, whose
histories must be linearizable. `TUPELO_EXAMPLES` and `TUPELO_SEEDS` run more of them."""

import os
import random
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tupelo
from tests.conftest import seeds
from tests.kinds import space_url
from tests.simulation import domain
from tests.simulation.domain import Asking
from tupelo.lab.linearize import TimedOperation, check
from tupelo.postgres.connect import open_space
from tupelo.space.dual_api import run_sync

EXAMPLES = int(os.environ.get("TUPELO_EXAMPLES", "12"))
BY_REPR = tupelo.Key(lambda entry: repr(entry))
ORDERS = [None, tupelo.Fifo(), tupelo.Lifo(), BY_REPR, tupelo.Key(1), tupelo.Key(1, reverse=True)]


@dataclass(frozen=True)
class Write(domain.Printed):
    entries: list[Any]
    lease: float | None
    delay: float | None
    txn: int | None


@dataclass(frozen=True)
class Get(domain.Printed):
    verb: str
    asking: Asking
    order: Any
    limit: int | None
    txn: int | None


@dataclass(frozen=True)
class Count(domain.Printed):
    asking: Asking
    txn: int | None


@dataclass(frozen=True)
class End(domain.Printed):
    txn: int
    how: str


@dataclass(frozen=True)
class Begin(domain.Printed):
    lease: float | None


@dataclass(frozen=True)
class Pause(domain.Printed):
    seconds: float


entries = st.sampled_from(domain.POPULAR_ENTRIES) | st.sampled_from(domain.ENTRIES)
templates = st.sampled_from(domain.POPULAR_TEMPLATES) | st.sampled_from(domain.TEMPLATES)
seconds = st.sampled_from([None, None, None, 1.0, 3.0])
some_txn = st.sampled_from([None, None, 0, 1])
verbs = st.sampled_from(["read", "take", "read_all", "take_all"])
limits = st.sampled_from([None, 1, 2])
writes = st.builds(Write, st.lists(entries, min_size=1, max_size=10), seconds, seconds, some_txn)
gets = st.builds(Get, verbs, templates, st.sampled_from(ORDERS), limits, some_txn)
deeds = st.one_of(
    writes,
    writes,
    gets,
    gets,
    gets,
    st.builds(Count, templates, some_txn),
    st.builds(Begin, st.sampled_from([None, None, 2.5])),
    st.builds(End, st.integers(0, 1), st.sampled_from(["commit", "commit", "abort"])),
    st.builds(Pause, st.sampled_from([0.75, 1.0, 2.0])),
)


class Twins:
    """A space in memory and one in a database, on one clock, with their transactions."""

    def __init__(self) -> None:
        self.clock = tupelo.ManualClock()
        url = space_url(f"twins {uuid4()}")
        database = run_sync(partial(open_space, url, is_async=False, clock=self.clock))
        self.spaces: list[Any] = [tupelo.Space(clock=self.clock, log_keep="all"), database]
        self.open: list[list[Any]] = []

    def both(self, number: int | None, operation: Any) -> None:
        """Do it in both spaces, in this open transaction of each; the answers are the same."""
        txns: list[Any] = [None, None]
        if number is not None and self.open:
            txns = self.open[number % len(self.open)]
        answers = []
        for space, txn in zip(self.spaces, txns, strict=True):
            try:
                answers.append(repr(operation(space, txn)))
            except tupelo.TupeloError as error:
                answers.append(type(error).__name__)
        assert answers[0] == answers[1]

    def do(self, deed: Any) -> None:
        match deed:
            case Write(what, lease, delay, number):
                self.both(number, partial(write, what, lease, delay))
            case Get(verb, asking, order, limit, number):
                options: dict[str, Any] = {"order": order}
                options |= {"limit": limit} if "all" in verb else {"wait": 0}
                self.both(
                    number,
                    lambda space, txn: getattr(space, verb)(asking.template, txn=txn, **options),
                )
            case Count(asking, number):
                self.both(number, lambda space, txn: space.count(asking.template, txn=txn))
            case Begin(lease):
                if len(self.open) < 2:
                    self.open.append([space.transaction(lease=lease) for space in self.spaces])
            case End(number, how):
                if self.open:
                    self.both(number, lambda space, txn: getattr(txn, how)())
                    del self.open[number % len(self.open)]
            case Pause(length):
                self.clock.advance(length)

    def close(self) -> None:
        for space in self.spaces:
            space.close()


def write(what: list[Any], lease: float | None, delay: float | None, space: Any, txn: Any) -> None:
    if len(what) == 1:
        space.write(what[0], lease=lease, delay=delay, txn=txn)
    else:
        space.write_all(what, lease=lease, delay=delay, txn=txn)


def ended(change: tupelo.Change) -> tuple[str, str]:
    return change.kind, repr(change.entry)


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(deeds, min_size=5, max_size=40))
def test_a_program_gets_the_same_answers_as_in_memory(program):
    twins = Twins()
    try:
        for deed in program:
            twins.do(deed)
        while twins.open:
            twins.do(End(0, "commit"))
        twins.clock.advance(10)
        twins.both(None, lambda space, _: space.read_all())
        logs = [sorted(map(ended, space.changes())) for space in twins.spaces]
        assert logs[0] == logs[1]
    finally:
        twins.close()


@pytest.mark.parametrize("seed", seeds(3))
def test_the_history_of_concurrent_programs_is_linearizable(seed):
    """Two connections with three threads each, on few entries, so that they often meet."""
    url = space_url(f"history {uuid4()}")
    history: list[TimedOperation] = []
    errors: list[BaseException] = []

    def work(space: tupelo.SpaceLike, number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        try:
            for n in range(60):
                key = rng.choice("ab")
                kind = rng.choice(["write", "read", "take", "take"])
                template = (key, int) if rng.random() < 0.7 else (key, tupelo.Between(0, 10**9))
                call = time.monotonic()
                if kind == "write":
                    found: Any = (key, number * 1_000 + n)
                    space.write(found)
                elif kind == "read":
                    found = space.read(template, wait=0)
                else:
                    found = space.take(template, wait=rng.choice([0, 0, 0.01]))
                done = time.monotonic()
                history.append(TimedOperation(call, done, kind, key, found, f"{number}"))  # type: ignore[arg-type]
        except BaseException as error:
            errors.append(error)

    with tupelo.connect(url) as one, tupelo.connect(url) as other:
        threads = [threading.Thread(target=work, args=((one, other)[i % 2], i)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    verdict = check(history, budget=200_000)
    assert verdict.answer == "yes", verdict.why
