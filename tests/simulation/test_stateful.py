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
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tupelo
from tests.simulation import domain, model
from tests.simulation.domain import Asking, Ordering, Reacting
from tests.simulation.replay import Replay
from tupelo import aio
from tupelo.errors import TupeloError
from tupelo.space import leases, session
from tupelo.store import index, plan

EXAMPLES = int(os.environ.get("TUPELO_EXAMPLES", "0"))
STEPS = int(os.environ.get("TUPELO_STEPS", "50"))
START = 1_000_000.0
REACTIONS_MAX = 6
LOW_THRESHOLDS = {
    "REJECTIONS_BEFORE_INDEX": 2,
    "SWEEP_MIN": 1,
    "_SWEEP_MIN": 4,
    "_PLANS_MAX": 3,
    "_PRUNE_AFTER": 2,
}

# Each kind of thing ends at its own fraction of a second, so that no two kinds end at the same
# moment, where it would be open which comes first.
ENTRY, TRANSACTION, OTHER, PATIENCE = 0.0, 0.5, 0.25, 0.75

# Half of the time the popular ones, so that many want the same.
entries = st.sampled_from(domain.POPULAR_ENTRIES) | st.sampled_from(domain.ENTRIES)
templates = st.sampled_from(domain.POPULAR_TEMPLATES) | st.sampled_from(domain.TEMPLATES)
orders = st.sampled_from([None, None, None, *domain.ORDERS])
limits = st.sampled_from([None, None, None, 0, 2])  # None: one entry; 0: all
seconds = st.sampled_from([None, None, None, None, 1, 3, 8, 20])
one_of_them = st.integers(0, 9)
perhaps_one = st.sampled_from([None, None, None, 0, 0, 1, 2])
seldom_one = st.sampled_from([None, None, None, None, None, 0, 1])
flag = st.booleans()
seldom = st.sampled_from([False, False, False, True])


@dataclass(frozen=True)
class Write(domain.Printed):
    entries: list[Any]
    lease: float | None
    txn: int | None


@dataclass(frozen=True)
class Request(domain.Printed):
    """A read or take; `waits` tells whether it parks. `txn` and `session`: which, of those open."""

    waits: bool
    asking: Asking
    take: bool
    limit: int | None
    wait: float | None
    txn: int | None
    order: Ordering | None
    session: int | None
    if_exists: bool
    awaited: bool


@dataclass(frozen=True)
class Pause(domain.Printed):
    """Time passes; in a rush, the tasks get no chance to notice."""

    seconds: float
    rush: bool


@dataclass(frozen=True)
class Begin(domain.Printed):
    parent: int | None
    lease: float | None


@dataclass(frozen=True)
class End(domain.Printed):
    txn: int
    how: str


@dataclass(frozen=True)
class Cancel(domain.Printed):
    """Cancel one who waits; after something was done that may just have given it an answer."""

    which: int
    after: Write | End | None


writes = st.builds(Write, st.lists(entries, min_size=1, max_size=4), lease=seconds, txn=perhaps_one)
requests = st.builds(
    Request,
    waits=st.sampled_from([True, True, False]),
    asking=templates,
    take=flag,
    limit=limits,
    wait=seconds,
    txn=perhaps_one,
    order=orders,
    session=seldom_one,
    if_exists=seldom,
    awaited=flag,
)
pauses = st.builds(Pause, seconds=st.sampled_from([1, 1, 2, 5]), rush=flag)
begins = st.builds(Begin, parent=perhaps_one, lease=seconds)
endings = st.sampled_from(["commit", "commit", "abort", "prepare"])
ends = st.builds(End, txn=one_of_them, how=endings)
cancels = st.builds(Cancel, which=one_of_them, after=writes | ends)
Deed = Write | Request | Pause | Begin | End | Cancel
often = [requests] * 9 + [writes] * 5 + [begins] * 2 + [ends, cancels, pauses]
deeds = st.lists(st.sampled_from(often).flatmap(lambda strategy: strategy), min_size=1, max_size=8)


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
    """The rules: what a program may do next, with both. Every rule begins with common `deeds`."""

    kept: ClassVar[str] = "nowhere"

    # Opening and closing

    @initialize(
        order=st.sampled_from([domain.FIFO, *domain.ORDERS]),
        capacity=st.sampled_from([None, None, 4, 7]),
        evict=st.sampled_from([None, "fifo", "lru"]),
        longest=st.sampled_from([None, None, None, 3]),
        small=flag,
    )
    def open(
        self,
        order: Ordering,
        capacity: int | None,
        evict: Any,
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
            self.options["capacity"] = tupelo.Capacity(entries=capacity, evict=evict)
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
        self.names: dict[str, model.Txn] = {}
        self.checks = 0
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
        for module in (index, plan, leases, session):
            for name in set(vars(module)) & set(LOW_THRESHOLDS):
                self.patch.setattr(module, name, LOW_THRESHOLDS[name])

    def teardown(self) -> None:
        if not hasattr(self, "space"):
            return
        try:
            self.close()
        finally:
            getters = [getter for one in self.listening for getter in one.getters]
            for task in [one.task for one in self.parked] + getters:
                task.cancel()
            self.run(asyncio.sleep(0))
            self.run(self.door.close())
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
    @rule(before=deeds, asleep=st.sampled_from([0, 0, 1, 3]), compacted=flag)
    def close_and_reopen(self, before: list[Deed], asleep: int, compacted: bool) -> None:
        self.do(before)
        if compacted:
            self.space.compact()
        self.close()
        self.run(self.door.close())
        self.clock.advance(asleep)
        self.twin.reopen()
        self.twin.advance(self.clock.now())
        self.connect()
        self.txns = [(txn, self.names[txn.id]) for txn in self.space.in_doubt()]
        assert {twin for _, twin in self.txns} == set(self.twin.txns)

    # Writing, reading, taking, and letting time pass

    @rule(work=deeds)
    def work(self, work: list[Deed]) -> None:
        self.do(work)

    def do(self, deeds: list[Deed]) -> None:
        for deed in deeds:
            match deed:
                case Write():
                    self.write(deed)
                case Request(waits=True):
                    self.park(deed)
                case Request():
                    self.get(deed)
                case Begin():
                    self.begin(deed)
                case End():
                    self.end(deed)
                case Cancel():
                    self.cancel(deed)
                case Pause():
                    self.pause(deed)
            if not (isinstance(deed, Pause) and deed.rush):
                self.let_tasks_run()

    def write(self, deed: Write) -> None:
        txn, twin = pick(self.txns, deed.txn)
        granted, items = self.both(
            lambda: (
                [self.space.write(deed.entries[0], lease=deed.lease, txn=txn)]
                if len(deed.entries) == 1
                else self.space.write_all(deed.entries, lease=deed.lease, txn=txn)
            ),
            lambda: self.twin.write_all(deed.entries, deed.lease, twin),
        )
        if granted is not None:
            self.leases += zip(granted, items, strict=True)
            del self.leases[:-30]

    def get(self, deed: Request) -> None:
        """Read or take without waiting, through either door."""
        real, twin = self.options_of(deed)
        got, items = self.both(
            lambda: (
                self.run(self.awaiting(deed, real, 0))
                if deed.awaited
                else self.blocking(deed, real)
            ),
            lambda: self.twin.get(deed.asking.means, deed.limit, deed.take, **twin),
        )
        if items is not None:
            values = [item.value for item in items]
            expected = (values[0] if values else None) if deed.limit is None else values
            assert repr(got) == repr(expected)

    def park(self, deed: Request) -> None:
        """Read or take, and wait for a match if there is none."""
        real, twin = self.options_of(deed)
        if deed.limit is None and "session" not in real:
            real["if_exists"] = twin["if_exists"] = deed.if_exists
        wait = None if deed.wait is None else deed.wait + PATIENCE
        task = self.loop.create_task(self.awaiting(deed, real, wait))
        waiter = self.twin.park(deed.asking.means, deed.limit, deed.take, wait, **twin)
        self.parked.append(Parked(task, waiter))

    def options_of(self, deed: Request) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same arguments for the engine and for the model."""
        reader, seen = pick(self.sessions, deed.session)
        if reader is not None and not deed.take:
            return {"session": reader}, {"session": seen}
        real: dict[str, Any] = {}
        twin: dict[str, Any] = {}
        if deed.order is not None:
            real["order"], twin["arrange"] = deed.order.order, deed.order.arrange
        real["txn"], twin["txn"] = pick(self.txns, deed.txn)
        return real, twin

    def blocking(self, deed: Request, options: dict[str, Any]) -> Any:
        asked, take, limit = deed.asking.template, deed.take, deed.limit
        options = dict(options)
        door = options.pop("session", self.space)
        if limit is None:
            return (door.take if take else door.read)(asked, wait=0, **options)
        return (door.take_all if take else door.read_all)(asked, limit=limit or None, **options)

    def awaiting(
        self, deed: Request, options: dict[str, Any], wait: float | None
    ) -> Coroutine[Any, Any, Any]:
        asked, take, limit = deed.asking.template, deed.take, deed.limit
        options = {"wait": wait, **options}
        door: Any = self.door
        if "session" in options:
            door = aio.Session(self.door, options.pop("session")._state)
        if limit is None:
            return (door.take if take else door.read)(asked, **options)  # type: ignore[no-any-return]
        options["limit"] = limit or None
        return (door.take_all if take else door.read_all)(asked, **options)  # type: ignore[no-any-return]

    def pause(self, deed: Pause) -> None:
        until = self.twin.now + deed.seconds
        if not deed.rush:
            self.let_tasks_run()
        while not deed.rush:
            due = [w.until for w in self.twin.waiters if w.until is not None and w.until <= until]
            if not due:
                break
            self.move_to(min(due))
            self.let_tasks_run()
        self.move_to(until)

    def move_to(self, until: float) -> None:
        self.clock.advance(until - self.twin.now)
        self.twin.advance(until)

    # Cancelling

    def cancel(self, deed: Cancel) -> None:
        if any(one.getters for one in self.listening):
            pass  # Whether they look up before or after the one who is cancelled is open.
        elif isinstance(deed.after, Write):
            self.write(deed.after)
        elif isinstance(deed.after, End):
            self.end(deed.after)
        answered = [one for one in self.parked if one.waiter.done]
        if not answered and not isinstance(deed.after, Write):
            answered = self.parked
        if answered:
            one = answered[deed.which % len(answered)]
            self.parked.remove(one)
            one.task.cancel()
            self.run(asyncio.wait([one.task]))
            assert one.task.cancelled()
            self.twin.vanish(one.waiter)

    @rule(before=deeds, deed=requests)
    def cancel_while_the_disk_is_awaited(self, before: list[Deed], deed: Request) -> None:
        """What was found, but never handed over, is still there."""
        self.do(before)
        real, twin = self.options_of(deed)
        task = self.loop.create_task(self.awaiting(deed, real, 0))
        self.run(asyncio.sleep(0))
        task.cancel()
        self.run(asyncio.wait([task]))
        if not task.cancelled():
            self.both(
                task.result, lambda: self.twin.get(deed.asking.means, deed.limit, deed.take, **twin)
            )
        elif deed.take and twin.get("txn") is None:
            self.twin.given_back(deed.asking.means, deed.limit, twin.get("arrange"))
        self.let_tasks_run()

    # Transactions

    def begin(self, deed: Begin) -> None:
        above, twin = pick(self.txns, deed.parent)
        lease = None if deed.lease is None else deed.lease + TRANSACTION
        real, txn = self.both(
            lambda: (above or self.space).transaction(lease=lease),
            lambda: self.twin.begin(lease, twin),
        )
        if real is not None:
            self.names[real.id] = txn
            self.txns.insert(0, (real, txn))
            self.leases.append((real.lease, txn))

    def end(self, deed: End) -> None:
        real, twin = pick(self.txns, deed.txn)
        if real is None:
            return
        got, expected = self.both(
            getattr(real, deed.how), lambda: getattr(self.twin, deed.how)(twin)
        )
        assert got == expected
        assert real.state == twin.state

    # Leases

    @precondition(lambda self: self.leases)
    @rule(before=deeds, which=st.integers(0, 50), lease=seconds, cancelled=seldom)
    def change_lease(
        self, before: list[Deed], which: int, lease: float | None, cancelled: bool
    ) -> None:
        self.do(before)
        granted, thing = pick(self.leases, which)
        if lease is not None:
            lease += fraction(thing)
        if cancelled:
            self.both(granted.cancel, lambda: self.twin.cancel(thing))
        else:
            self.both(lambda: granted.renew(lease), lambda: self.twin.renew(thing, lease))
        self.let_tasks_run()

    # Sessions, subscriptions and reactions

    @rule(before=deeds, lease=seconds, like=perhaps_one, close=perhaps_one)
    def open_session(
        self, before: list[Deed], lease: float | None, like: int | None, close: int | None
    ) -> None:
        self.do(before)
        if lease is not None:
            lease += OTHER
        first, twin = pick(self.sessions, like)
        real = first.clone(lease=lease) if first else self.space.session(lease=lease)
        seen = self.twin.open_session(lease, twin)
        self.sessions.append((real, seen))
        self.leases.append((real.lease, seen))
        closed, twin = pick(self.sessions, close)
        if closed is not None:
            closed.close()
            self.twin.end_session(twin)
            self.sessions.remove((closed, twin))
        self.let_tasks_run()

    @rule(
        before=deeds,
        asking=templates,
        available=flag,
        txn=perhaps_one,
        backlog_max=st.sampled_from([1, 2, 100]),
        lease=seconds,
    )
    def subscribe(
        self,
        before: list[Deed],
        asking: Asking,
        available: bool,
        txn: int | None,
        backlog_max: int,
        lease: float | None,
    ) -> None:
        self.do(before)
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
            door = aio.Subscription(real._port, real._state, None)
            self.listening.append(Listening(real, door, subscription, []))
            self.leases.append((real.lease, subscription))

    @precondition(lambda self: self.listening)
    @rule(
        before=deeds,
        which=one_of_them,
        what=st.sampled_from(["poll", "await", "await", "cancel", "close"]),
        write=writes,
    )
    def listen(self, before: list[Deed], which: int, what: str, write: Write) -> None:
        self.do(before)
        one = self.listening[which % len(self.listening)]
        if what == "poll":
            self.check_notices(one)
        elif what == "await":
            one.getters.append(self.loop.create_task(one.door.get()))
        elif what == "cancel" and one.getters:
            self.write(write)  # which may wake the one who is cancelled
            getter = one.getters.pop(which % len(one.getters))
            getter.cancel()
            self.run(asyncio.wait([getter]))
            assert getter.cancelled()
        elif what == "close":
            one.real.close()
            self.twin.unsubscribe(one.twin)
            self.check_notices(one)
            self.listening.remove(one)
        self.let_tasks_run()

    @rule(
        before=deeds,
        asking=templates,
        reacting=st.sampled_from(domain.REACTIONS),
        once=flag,
        existing=flag,
        after=deeds,
        kept=seldom,
    )
    def react(
        self,
        before: list[Deed],
        asking: Asking,
        reacting: Reacting,
        once: bool,
        existing: bool,
        after: list[Deed],
        kept: bool,
    ) -> None:
        self.do(before)
        real, twin = self.both(
            lambda: self.space.react(
                asking.template, reacting.for_engine(), once=once, existing=existing
            ),
            lambda: self.twin.react(asking.means, reacting.for_model(), once, existing),
        )
        self.let_tasks_run()
        if real is not None:
            self.do(after)
            assert real.active == (not twin.ended)
            if not kept:
                real.cancel()
                self.twin.end_reaction(twin)

    # What must hold after every step

    @invariant()
    def the_contents_are_the_same(self) -> None:
        if not hasattr(self, "space"):
            return
        self.let_tasks_run()
        self.checks += 1
        for one in domain.TEMPLATES[self.checks % 7 :: 7]:
            assert self.space.count(one.template) == self.twin.count(one.means), one
        if not self.is_lru:  # where reading changes what is evicted next
            expected = [item.value for item in self.twin.visible()]
            assert repr(self.space.read_all(order=tupelo.Fifo())) == repr(expected)
        for real, twin in self.txns:
            assert real.state == twin.state
            if twin.state == "active":
                for one in (domain.EVERYTHING, domain.NUMBERS, domain.JOBS):
                    inside = self.twin.count(one.means, twin)
                    assert self.space.count(one.template, txn=real) == inside
        for lease, thing in self.leases:
            assert lease.expires == thing.expires
        if self.kept != "nowhere":
            self.replayed.follow(self.space.changes(since=self.replayed.position))
            living = [item for item in self.twin.items if item.writer is None]
            assert self.replayed.contents() == [(repr(i.value), i.expires) for i in living]

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

    def let_tasks_run(self) -> None:
        """Let those who were answered go on; they must have the model's answer, and only they."""
        self.twin.time_out()
        ended = [one for one in self.txns if one[1] not in self.twin.txns]
        self.txns = [one for one in self.txns if one not in ended] + ended[:1]
        getters = [getter for one in self.listening for getter in one.getters]
        if not self.parked and not getters:
            return
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
        for _ in range(3):
            await asyncio.sleep(0)
        if self.kept == "on disk" and not all(task.done() for task in answered):
            await asyncio.wait(answered, timeout=5)

    def check_getters(self, one: Listening) -> None:
        """As many of those who wait for a notice have one as there are notices."""
        if not one.getters:
            return
        served = one.getters if one.twin.ended else one.getters[: len(one.twin.backlog)]
        self.run(self.spin(served))
        for getter in served:
            assert encode(getter.result()) == encode_twin(one.twin.next())
        one.getters = one.getters[len(served) :]
        assert not any(getter.done() for getter in one.getters)

    def check_notices(self, one: Listening) -> None:
        self.check_getters(one)
        while True:
            got, expected = one.real.get(wait=0), one.twin.next()
            assert encode(got) == encode_twin(expected)
            if got is None:
                break
        assert one.real.sequence == one.twin.event.sequence


def pick(things: list[Any], which: int | None) -> tuple[Any, Any]:
    """One of the things and its twin, or neither."""
    if which is None or not things:
        return None, None
    thing: tuple[Any, Any] = things[which % len(things)]
    return thing


def fraction(thing: object) -> float:
    if isinstance(thing, model.Item):
        return ENTRY
    return TRANSACTION if isinstance(thing, model.Txn) else OTHER


def encode(notice: tupelo.Notice | None) -> tuple[int, str, str, int] | None:
    if notice is None:
        return None
    return notice.sequence, notice.kind, repr(notice.entry), notice.missed


def encode_twin(notice: tuple[int, str, Any, int] | None) -> tuple[int, str, str, int] | None:
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


# A failing program is made smaller by hand: TUPELO_SHRINK=1. It takes minutes.
PHASES = tuple(Phase) if os.environ.get("TUPELO_SHRINK") else (Phase.explicit, Phase.generate)


def profile(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=STEPS,
        phases=PHASES,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


if EXAMPLES:
    pytestmark = pytest.mark.timeout(0)

TestInMemory = InMemory.TestCase
TestInMemory.settings = profile(12)
TestWithLog = WithLog.TestCase
TestWithLog.settings = profile(8)
TestDurable = Durable.TestCase
TestDurable.settings = profile(8)
