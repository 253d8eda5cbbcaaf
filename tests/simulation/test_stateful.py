"""Random programs, run on a space and on the naive model; every answer must be the same.

One thread drives everything: the clock is moved by hand and the event loop runs only when told
to, so a program is replayed exactly. `TUPELO_EXAMPLES=10000` runs that many random programs of
each kind instead of the few fixed ones of the suite.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import tupelo
from tests.simulation import domain, model
from tests.simulation.domain import Asking, Ordering, Reacting
from tupelo import aio
from tupelo.errors import TupeloError

EXAMPLES = int(os.environ.get("TUPELO_EXAMPLES", "0"))
STEPS = int(os.environ.get("TUPELO_STEPS", "50"))
START = 1_000_000.0
REACTIONS_MAX = 6

# What lives until when. Each kind of thing ends at its own fraction of a second, so that no two
# kinds end at the same moment, where it would be open which comes first.
ENTRY, TRANSACTION, OTHER, PATIENCE = 0.0, 0.5, 0.25, 0.75

# Half of the time the popular ones, so that many want the same.
entries = st.sampled_from(domain.POPULAR_ENTRIES) | st.sampled_from(domain.ENTRIES)
templates = st.sampled_from(domain.POPULAR_TEMPLATES) | st.sampled_from(domain.TEMPLATES)
orders = st.sampled_from([None, None, None, *domain.ORDERS])
limits = st.sampled_from([None, None, None, 0, 2])  # None: one entry; 0: all
seconds = st.sampled_from([None, None, None, 1, 3, 8])
passing = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2])
some = st.integers(0, 9)  # one of some things, or none of them
flag = st.booleans()


@dataclass(frozen=True)
class Request(domain.Printed):
    """A read or take that may wait; `txn` and `session` are chosen from those that there are."""

    asking: Asking
    take: bool
    limit: int | None
    wait: float | None
    txn: int
    order: Ordering | None
    session: int
    if_exists: bool


requests = st.builds(
    Request,
    asking=templates,
    take=flag,
    limit=limits,
    wait=seconds,
    txn=some,
    order=orders,
    session=some,
    if_exists=st.sampled_from([False, False, False, True]),
)


@dataclass(eq=False)
class Parked:
    """A task that waits in the engine, and its twin in the model."""

    task: asyncio.Task[Any]
    waiter: model.Waiter


@dataclass(eq=False)
class Listening:
    """A subscription and its twin, with the tasks that wait for its notices."""

    real: tupelo.Subscription
    door: aio.Subscription
    twin: model.Subscription
    getters: list[asyncio.Task[Any]]


class Programs(RuleBasedStateMachine):
    """The rules: what a program may do next, with both."""

    kept: ClassVar[str] = "nowhere"

    # Opening and closing

    @initialize(
        order=st.sampled_from(domain.ORDERS),
        capacity=st.sampled_from([None, None, None, 3, 5]),
        evict=st.sampled_from([None, "fifo", "lru"]),
        longest=st.sampled_from([None, None, None, 3]),
        small=flag,
    )
    def open(
        self,
        order: Ordering,
        capacity: int | None,
        evict: str | None,
        longest: float | None,
        small: bool,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        if small:
            self.lower_the_thresholds()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="tupelo-"))
        self.clock = tupelo.ManualClock(START)
        self.options: dict[str, Any] = {"order": order.order, "reactions_max": REACTIONS_MAX}
        if capacity is not None:
            self.options["capacity"] = tupelo.Capacity(entries=capacity, evict=evict)  # type: ignore[arg-type]
        if longest is not None:
            self.options["lease_policy"] = tupelo.longest(longest)
        if self.kept != "nowhere":
            self.options["log_keep"] = "all"
        if self.kept == "on disk":
            self.options |= {"path": self.folder / "space", "durability": "process"}
        self.is_lru = capacity is not None and evict == "lru"
        self.twin = model.Space(START, order.arrange, capacity, evict, longest, REACTIONS_MAX)
        self.replayed = Replay()
        self.parked: list[Parked] = []
        self.steps = 0
        self.names: dict[str, model.Txn] = {}
        self.connect()

    def connect(self) -> None:
        self.space = tupelo.Space("s", clock=self.clock, **self.options)
        self.door = aio.Space(self.space)
        self.txns: list[tuple[tupelo.Transaction, model.Txn]] = []
        self.leases: list[tuple[tupelo.Lease, Any]] = []
        self.sessions: list[tuple[tupelo.Session, model.Session]] = []
        self.listening: list[Listening] = []
        self.reactions: list[tuple[tupelo.Reaction, model.Reaction]] = []

    def lower_the_thresholds(self) -> None:
        """Small programs are to build indexes, sweep and prune as large ones do."""
        for name, value in {
            "store.index.REJECTIONS_BEFORE_INDEX": 2,
            "store.run._SWEEP_MIN": 1,
            "store.plan._PLANS_MAX": 3,
            "space.deadlines._SWEEP_MIN": 4,
            "space.session._PRUNE_AFTER": 2,
        }.items():
            self.patch.setattr(f"tupelo.{name}", value)

    def teardown(self) -> None:
        if not hasattr(self, "space"):
            return
        try:
            self.close()
        finally:
            for task in self.tasks():
                task.cancel()
            self.run(asyncio.sleep(0))
            self.loop.close()
            self.patch.undo()
            shutil.rmtree(self.folder)

    def close(self) -> None:
        """Everyone who waits is told."""
        self.space.close()
        self.twin.close()
        self.let_tasks_run()
        for one in self.listening:
            self.check_notices(one)

    @precondition(lambda self: self.kept == "on disk")
    @rule(asleep=passing, trimmed=flag)
    def close_and_reopen(self, asleep: int, trimmed: bool) -> None:
        if trimmed:
            self.space.compact()
        self.close()
        self.run(self.door.close())
        self.clock.advance(asleep)
        self.twin.reopen()
        self.twin.advance(self.clock.now())
        self.connect()
        self.txns = [(txn, self.names[txn.id]) for txn in self.space.in_doubt()]
        assert {twin for _, twin in self.txns} == set(self.twin.txns)

    # The rules of writing, reading and taking

    @rule(written=st.lists(entries, min_size=1, max_size=4), lease=seconds, txn=some, late=passing)
    def write(self, written: list[Any], lease: float | None, txn: int, late: int) -> None:
        self.let_pass(late)
        self.write_both(written, lease, txn)
        self.let_tasks_run()

    def write_both(self, written: list[Any], lease: float | None, which: int) -> None:
        txn, twin = pick(self.txns, which)
        granted, items = self.both(
            lambda: (
                [self.space.write(written[0], lease=lease, txn=txn)]
                if len(written) == 1
                else self.space.write_all(written, lease=lease, txn=txn)
            ),
            lambda: self.twin.write_all(written, lease, twin),
        )
        if granted is not None:
            self.leases += zip(granted, items, strict=True)

    @rule(request=requests, late=passing, rush=flag, awaited=flag)
    def get(self, request: Request, late: int, rush: bool, awaited: bool) -> None:
        """Read or take without waiting, through either door."""
        self.let_pass(late, rush)
        real, twin = self.options_of(request)
        got, items = self.both(
            lambda: (
                self.run(self.awaiting(request, real, 0))
                if awaited
                else self.blocking(request, real)
            ),
            lambda: self.twin.get(request.asking.means, request.limit, request.take, **twin),
        )
        if items is not None:
            values = [item.value for item in items]
            expected = (values[0] if values else None) if request.limit is None else values
            assert repr(got) == repr(expected)
        self.let_tasks_run()

    @rule(waiting=st.lists(requests, min_size=1, max_size=4), late=passing)
    def park(self, waiting: list[Request], late: int) -> None:
        """Read or take, and wait for a match if there is none."""
        self.let_pass(late)
        for request in waiting:
            real, twin = self.options_of(request)
            if request.limit is None and "session" not in real:
                real["if_exists"] = twin["if_exists"] = request.if_exists
            wait = None if request.wait is None else request.wait + PATIENCE
            task = self.loop.create_task(self.awaiting(request, real, wait))
            waiter = self.twin.park(request.asking.means, request.limit, request.take, wait, **twin)
            self.parked.append(Parked(task, waiter))
            self.let_tasks_run()

    @rule(asking=templates, txn=some, late=passing)
    def count(self, asking: Asking, txn: int, late: int) -> None:
        self.let_pass(late, rush=True)
        within, twin = pick(self.txns, txn)
        got, expected = self.both(
            lambda: self.space.count(asking.template, txn=within),
            lambda: self.twin.count(asking.means, twin),
        )
        assert got == expected
        self.let_tasks_run()

    def options_of(self, request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same arguments for the engine and for the model."""
        reader, seen = pick(self.sessions, request.session)
        if reader is not None and not request.take:
            return {"session": reader}, {"session": seen}
        real: dict[str, Any] = {}
        twin: dict[str, Any] = {}
        if request.order is not None:
            real["order"], twin["arrange"] = request.order.order, request.order.arrange
        real["txn"], twin["txn"] = pick(self.txns, request.txn)
        return real, twin

    def blocking(self, request: Request, options: dict[str, Any]) -> Any:
        asked, take, limit = request.asking.template, request.take, request.limit
        options = dict(options)
        door = options.pop("session", self.space)
        if limit is None:
            return (door.take if take else door.read)(asked, wait=0, **options)
        return (door.take_all if take else door.read_all)(asked, limit=limit or None, **options)

    def awaiting(
        self, request: Request, options: dict[str, Any], wait: float | None
    ) -> Coroutine[Any, Any, Any]:
        asked, take, limit = request.asking.template, request.take, request.limit
        options = {"wait": wait, **options}
        door: Any = self.door
        if "session" in options:
            door = aio.Session(self.door, options.pop("session")._state)
        if limit is None:
            return (door.take if take else door.read)(asked, **options)  # type: ignore[no-any-return]
        options["limit"] = limit or None
        return (door.take_all if take else door.read_all)(asked, **options)  # type: ignore[no-any-return]

    # The rules of cancelling

    @precondition(lambda self: self.parked)
    @rule(which=some)
    def cancel(self, which: int) -> None:
        one = self.parked[which % len(self.parked)]
        self.cancel_both(one)
        self.let_tasks_run()

    @precondition(lambda self: self.parked)
    @rule(which=some, written=st.lists(entries, min_size=1, max_size=3), lease=seconds, txn=some)
    def cancel_at_the_moment_of_delivery(
        self, which: int, written: list[Any], lease: float | None, txn: int
    ) -> None:
        self.write_both(written, lease, txn)
        answered = [one for one in self.parked if one.waiter.done] or self.parked
        one = answered[which % len(answered)]
        self.cancel_both(one)
        self.let_tasks_run()

    @precondition(lambda self: self.parked and self.txns)
    @rule(which=some, txn=some)
    def cancel_at_the_moment_of_abort(self, which: int, txn: int) -> None:
        ended, twin = self.txns[txn % len(self.txns)]
        self.both(ended.abort, lambda: self.twin.abort(twin))
        answered = [one for one in self.parked if one.waiter.done] or self.parked
        self.cancel_both(answered[which % len(answered)])
        self.let_tasks_run()

    def cancel_both(self, one: Parked) -> None:
        self.parked.remove(one)
        one.task.cancel()
        self.run(asyncio.wait([one.task]))
        if one.waiter.error is not None and not one.task.cancelled():
            assert isinstance(one.task.exception(), one.waiter.error)
            return
        assert one.task.cancelled()
        self.twin.vanish(one.waiter)

    @rule(request=requests)
    def cancel_while_the_disk_is_awaited(self, request: Request) -> None:
        """What was found, but never handed over, is still there."""
        real, twin = self.options_of(request)
        task = self.loop.create_task(self.awaiting(request, real, 0))
        self.run(asyncio.sleep(0))
        task.cancel()
        self.run(asyncio.wait([task]))
        if not task.cancelled():
            self.both(
                task.result,
                lambda: self.twin.get(request.asking.means, request.limit, request.take, **twin),
            )
        self.let_tasks_run()

    # The rules of transactions

    @rule(parent=some, lease=seconds, late=passing)
    def begin(self, parent: int, lease: float | None, late: int) -> None:
        self.let_pass(late)
        above, twin = pick(self.txns, parent)
        if lease is not None:
            lease += TRANSACTION
        real, txn = self.both(
            lambda: (above or self.space).transaction(lease=lease),
            lambda: self.twin.begin(lease, twin),
        )
        if real is not None:
            self.names[real.id] = txn
            self.txns.append((real, txn))
            self.leases.append((real.lease, txn))
            del self.txns[:-6]
        self.let_tasks_run()

    @precondition(lambda self: self.txns)
    @rule(txn=some, end=st.sampled_from(["commit", "abort", "prepare"]), late=passing)
    def end(self, txn: int, end: str, late: int) -> None:
        self.let_pass(late, rush=True)
        real, twin = self.txns[txn % len(self.txns)]
        got, expected = self.both(getattr(real, end), lambda: getattr(self.twin, end)(twin))
        assert got == expected
        assert real.state == twin.state
        self.let_tasks_run()

    # The rules of leases and time

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 50), lease=seconds, late=passing)
    def renew(self, which: int, lease: float | None, late: int) -> None:
        self.let_pass(late)
        granted, thing = self.leases[which % len(self.leases)]
        if lease is not None:
            lease += fraction(thing)
        self.both(lambda: granted.renew(lease), lambda: self.twin.renew(thing, lease))
        self.let_tasks_run()

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 50), late=passing)
    def cancel_lease(self, which: int, late: int) -> None:
        self.let_pass(late)
        granted, thing = self.leases[which % len(self.leases)]
        self.both(granted.cancel, lambda: self.twin.cancel(thing))
        self.let_tasks_run()

    @rule(late=st.sampled_from([1, 2, 5]))
    def time_passes(self, late: int) -> None:
        self.let_pass(late)
        self.let_tasks_run()

    def let_pass(self, late: float, rush: bool = False) -> None:
        """Let time pass; in a rush, the tasks get no chance to notice."""
        until = self.twin.now + late
        while late and not rush:
            due = [w.until for w in self.twin.waiters if w.until is not None and w.until <= until]
            if not due:
                break
            self.move_to(min(due))
            self.let_tasks_run()
        self.move_to(until)
        if late and not rush:
            self.let_tasks_run()

    def move_to(self, until: float) -> None:
        self.clock.advance(until - self.twin.now)
        self.twin.advance(until)

    # The rules of sessions, subscriptions and reactions

    @rule(lease=seconds, like=some)
    def open_session(self, lease: float | None, like: int) -> None:
        if lease is not None:
            lease += OTHER
        first, twin = pick(self.sessions, like)
        real = first.clone(lease=lease) if first else self.space.session(lease=lease)
        session = self.twin.open_session(lease, twin)
        self.sessions.append((real, session))
        self.leases.append((real.lease, session))
        del self.sessions[:-3]

    @precondition(lambda self: self.sessions)
    @rule(which=some)
    def close_session(self, which: int) -> None:
        real, twin = self.sessions.pop(which % len(self.sessions))
        real.close()
        self.twin.end_session(twin)
        self.let_tasks_run()

    @rule(
        asking=templates,
        available=flag,
        txn=some,
        backlog_max=st.sampled_from([1, 2, 100]),
        lease=seconds,
    )
    def subscribe(
        self, asking: Asking, available: bool, txn: int, backlog_max: int, lease: float | None
    ) -> None:
        if lease is not None:
            lease += OTHER
        within, twin = pick(self.txns, txn)
        real, subscription = self.both(
            lambda: self.space.subscribe(
                asking.template,
                available=available,
                txn=within,
                backlog_max=backlog_max,
                lease=lease,
            ),
            lambda: self.twin.subscribe(
                asking.name, asking.means, available, twin, backlog_max, lease
            ),
        )
        if real is not None:
            door = aio.Subscription(real._operations, real._state, self.door._flusher, None)
            self.listening.append(Listening(real, door, subscription, []))
            self.leases.append((real.lease, subscription))

    @precondition(lambda self: self.listening)
    @rule(which=some)
    def await_a_notice(self, which: int) -> None:
        one = self.listening[which % len(self.listening)]
        one.getters.append(self.loop.create_task(one.door.get()))
        self.let_tasks_run()

    @precondition(lambda self: self.listening)
    @rule(which=some, written=st.lists(entries, max_size=2))
    def cancel_awaiting_a_notice(self, which: int, written: list[Any]) -> None:
        one = self.listening[which % len(self.listening)]
        if written:
            self.write_both(written, None, 0)
        if one.getters:
            getter = one.getters.pop(which % len(one.getters))
            getter.cancel()
            self.run(asyncio.wait([getter]))
            assert getter.cancelled()
        self.let_tasks_run()

    @precondition(lambda self: self.listening)
    @rule(which=some)
    def read_notices(self, which: int) -> None:
        self.check_notices(self.listening[which % len(self.listening)])

    @precondition(lambda self: self.listening)
    @rule(which=some)
    def unsubscribe(self, which: int) -> None:
        one = self.listening.pop(which % len(self.listening))
        one.real.close()
        self.twin.unsubscribe(one.twin)
        self.check_getters(one)
        self.check_notices(one)
        self.let_tasks_run()

    @rule(asking=templates, reacting=st.sampled_from(domain.REACTIONS), once=flag, existing=flag)
    def react(self, asking: Asking, reacting: Reacting, once: bool, existing: bool) -> None:
        real, twin = self.both(
            lambda: self.space.react(
                asking.template, reacting.for_engine(), once=once, existing=existing
            ),
            lambda: self.twin.react(asking.means, reacting.for_model(), once, existing),
        )
        if real is not None:
            self.reactions.append((real, twin))
        self.let_tasks_run()

    @precondition(lambda self: self.reactions)
    @rule(which=some)
    def stop_reacting(self, which: int) -> None:
        real, twin = self.reactions.pop(which % len(self.reactions))
        assert real.active == (not twin.ended)
        real.cancel()
        self.twin.end_reaction(twin)

    # What must hold after every step

    @invariant()
    def the_contents_are_the_same(self) -> None:
        if not hasattr(self, "space"):
            return
        self.steps += 1
        for one in domain.TEMPLATES[self.steps % 7 :: 7]:
            assert self.space.count(one.template) == self.twin.count(one.means), one
        if not self.is_lru:  # where reading changes what is evicted next
            expected = [item.value for item in self.twin.visible()]
            assert list(map(repr, self.space.read_all(order=tupelo.Fifo()))) == list(
                map(repr, expected)
            )
        for real, twin in self.txns:
            assert real.state == twin.state
            if twin.state == "active":
                for one in (domain.EVERYTHING, domain.NUMBERS, domain.JOBS):
                    expected_count = self.twin.count(one.means, twin)
                    assert self.space.count(one.template, txn=real) == expected_count
        for lease, thing in self.leases:
            assert lease.expires == thing.expires

    @invariant()
    def the_log_tells_the_contents(self) -> None:
        if self.kept == "nowhere" or not hasattr(self, "space"):
            return
        self.replayed.follow(self.space.changes(since=self.replayed.position))
        living = [item for item in self.twin.items if item.writer is None]
        assert self.replayed.contents() == [(repr(item.value), item.expires) for item in living]

    # Both at once

    def both(self, real: Callable[[], Any], twin: Callable[[], Any]) -> tuple[Any, Any]:
        """Do it with both. They answer, or they raise the same error and the answers are None."""
        answer = expected = error = expected_error = None
        try:
            answer = real()
        except TupeloError as raised:
            error = raised
        try:
            expected = twin()
        except TupeloError as raised:
            expected_error = raised
        if type(error) is not type(expected_error):
            raise AssertionError(
                f"the space: {error or answer!r}, the model: {expected_error!r} {expected!r}"
            ) from error
        return answer, expected

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def tasks(self) -> list[asyncio.Task[Any]]:
        getters = [task for one in self.listening for task in one.getters]
        return [one.task for one in self.parked] + getters

    def let_tasks_run(self) -> None:
        """Let those who were answered go on; they must have the model's answer, and only they."""
        self.twin.time_out()
        self.run(self.spin([one.task for one in self.parked if one.waiter.done]))
        for one in self.parked:
            assert one.task.done() == one.waiter.done, (one.task, one.waiter)
        for one in [one for one in self.parked if one.waiter.done]:
            self.parked.remove(one)
            error = one.task.exception()
            assert (error and type(error)) is one.waiter.error, (error, one.waiter)
            if error is None:
                assert repr(one.task.result()) == repr(one.waiter.answer)
        for listening in self.listening:
            self.check_getters(listening)

    async def spin(self, answered: list[asyncio.Task[Any]]) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        if answered:
            await asyncio.wait(answered, timeout=20)

    def check_getters(self, one: Listening) -> None:
        """As many of those who wait for a notice have one as there are notices."""
        backlog = len(one.twin.backlog)
        served = one.getters if one.twin.ended else one.getters[:backlog]
        self.run(self.spin(served))
        for getter in served:
            expected = one.twin.next()
            assert spell(getter.result()) == spell_twin(expected)
        one.getters = one.getters[len(served) :]
        assert not any(getter.done() for getter in one.getters)

    def check_notices(self, one: Listening) -> None:
        self.check_getters(one)
        while True:
            got, expected = one.real.get(wait=0), one.twin.next()
            assert spell(got) == spell_twin(expected)
            if got is None:
                break
        assert one.real.sequence == one.twin.event.sequence


class Replay:
    """The contents of a space, made from its log alone."""

    def __init__(self) -> None:
        self.position = 0
        self.living: dict[int, tuple[str, float | None]] = {}
        self.ended: dict[int, tuple[str, float | None]] = {}

    def follow(self, changes: list[tupelo.Change]) -> None:
        for change in changes:
            self.position += 1
            assert change.position == self.position
            arrival, said = change.arrival, (repr(change.entry), change.expires)
            match change.kind:
                case "written":
                    assert arrival not in self.living and arrival not in self.ended
                    self.living[arrival] = said
                case "taken" | "expired" | "cancelled" | "evicted":
                    self.ended[arrival] = self.living.pop(arrival)
                    assert self.ended[arrival] == said
                case "returned":
                    assert self.ended.pop(arrival) == said
                    self.living[arrival] = said
                case "renewed":
                    assert self.living[arrival][0] == said[0]
                    self.living[arrival] = said
                case "prepared" | "committed" | "aborted":
                    assert change.txn is not None

    def contents(self) -> list[tuple[str, float | None]]:
        return [self.living[arrival] for arrival in sorted(self.living)]


def pick(things: list[Any], which: int) -> tuple[Any, Any]:
    """One of the things and its twin, or neither."""
    return things[which - 1] if 1 <= which <= len(things) else (None, None)


def fraction(thing: object) -> float:
    if isinstance(thing, model.Item):
        return ENTRY
    return TRANSACTION if isinstance(thing, model.Txn) else OTHER


def spell(notice: tupelo.Notice | None) -> tuple[int, str, str, int] | None:
    if notice is None:
        return None
    return notice.sequence, notice.kind, repr(notice.entry), notice.missed


def spell_twin(notice: tuple[int, str, Any, int] | None) -> tuple[int, str, str, int] | None:
    if notice is None:
        return None
    sequence, kind, value, missed = notice
    return sequence, kind, repr(value), missed


class InMemory(Programs):
    pass


class WithLog(Programs):
    kept = "in memory"


class Durable(Programs):
    kept = "on disk"


def profile(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=STEPS,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


if EXAMPLES:
    pytestmark = pytest.mark.timeout(0)

TestInMemory = InMemory.TestCase
TestInMemory.settings = profile(300)
TestWithLog = WithLog.TestCase
TestWithLog.settings = profile(200)
TestDurable = Durable.TestCase
TestDurable.settings = profile(60)
