"""A world for `test_two_phase`: a manager, spaces of every kind and foreign participants, and all
that can go wrong between them.

Every step of the protocol is a tick: before and after each call of a participant, and before and
after each wait for a disk. At a tick a fault may strike: the whole process is gone, with all that
no disk has; or one space is; or somebody presses Ctrl-C. One thread drives everything, and the
participants that stall move the clock themselves, so a program is replayed exactly.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tupelo
from tests.simulation.domain import Printed
from tupelo import aio
from tupelo.errors import (
    CannotCommit,
    OutcomeUnknown,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
)
from tupelo.models.javaspaces import (
    ABORTED,
    COMMITTED,
    NOTCHANGED,
    PREPARED,
    AsyncTransactionManager,
    Transaction,
    TransactionManager,
)
from tupelo.space.port import port_of

VOTE_SECONDS = 30.0
LEASE_SECONDS = 1_000.0
PATIENCE_SECONDS = 20.0
OLD = 4  # entries that each space begins with
STEPS = ("prepare", "commit", "abort", "prepare_and_commit")
MEMORY_DISK = Path("/dev/shm")  # How long a disk takes is not asked here.

Entry = tuple[Any, ...]


class Crash(BaseException):
    """The process is gone: nothing that it would have done next is done."""


class Interrupt(BaseException):
    """Ctrl-C, which may come at any moment."""


class Clock(tupelo.ManualClock):
    """A manual clock that knows how often somebody has gone to sleep on it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        super().__init__(now)
        self._changed = threading.Condition()
        self._sleeps = 0

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        cancel = super().call_at(when, callback)
        if getattr(callback, "__name__", "") == "time_out":
            with self._changed:
                self._sleeps += 1
                self._changed.notify_all()
        return cancel

    def wait_for_sleep(self, number: int) -> None:
        with self._changed:
            there = self._changed.wait_for(lambda: self._sleeps >= number, PATIENCE_SECONDS)
            assert there, "nobody waits for the participant that stalls"


class Foreign:
    """A participant with a stable store of its own, which keeps to the protocol and may all the
    same fail, refuse or stall at every step.

    It knows its work by marks. What is active is lost when everything crashes; what it has
    promised and what it has committed is not.
    """

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.active: dict[str, list[str]] = {}
        self.promised: dict[str, list[str]] = {}
        self.committed: list[str] = []
        self.over: dict[str, str] = {}
        self.parents: dict[str, str] = {}
        self.script: dict[str, list[str]] = {}
        self.faults: list[str] = []
        self._world = world
        self._lock = threading.RLock()

    def work(self, txn: Transaction, mark: str | None) -> None:
        txn.join(self)
        self.active.setdefault(txn.id, []).extend([mark] if mark else [])

    def in_doubt(self) -> list[str]:
        return list(self.promised)

    def prepare(self, manager: Any, txn_id: str) -> Any:
        return self._step("prepare", txn_id, self._prepare)

    def commit(self, manager: Any, txn_id: str) -> None:
        self._step("commit", txn_id, self._commit)

    def abort(self, manager: Any, txn_id: str) -> None:
        self._step("abort", txn_id, self._abort)

    def prepare_and_commit(self, manager: Any, txn_id: str) -> Any:
        return self._step("prepare_and_commit", txn_id, self._prepare_and_commit)

    # What it does

    def _prepare(self, txn_id: str) -> str:
        if txn_id in self.promised:
            return PREPARED
        if txn_id not in self.active or txn_id in self.over:
            return ABORTED  # It has lost what it did, or was told to call it off.
        mine = [i for i in self.active if i == txn_id or self.parents.get(i) == txn_id]
        marks = [mark for one in mine for mark in self.active.pop(one)]
        if not marks:
            self.over[txn_id] = NOTCHANGED
            return NOTCHANGED
        self.promised[txn_id] = marks
        return PREPARED

    def _commit(self, txn_id: str) -> None:
        if self.over.get(txn_id) == COMMITTED:
            return  # It may be told more than once.
        if txn_id not in self.promised:
            self.faults.append(f"told to commit {txn_id}, which it has not promised")
            return
        self.committed += self.promised.pop(txn_id)
        self.over[txn_id] = COMMITTED

    def _abort(self, txn_id: str) -> None:
        if self.over.get(txn_id) == COMMITTED:
            self.faults.append(f"told to abort {txn_id}, which it has committed")
            return
        self.active.pop(txn_id, None)
        self.promised.pop(txn_id, None)
        self.over[txn_id] = ABORTED

    def _prepare_and_commit(self, txn_id: str) -> str:
        vote = self._prepare(txn_id)
        if vote == PREPARED:
            self._commit(txn_id)
            return COMMITTED
        return vote

    # And how that goes wrong

    def _step(self, what: str, txn_id: str, work: Callable[[str], str | None]) -> str | None:
        is_guest = threading.current_thread().name.startswith("tupelo-")  # not in `recover`
        call = self._world.next_call() if is_guest else 0
        planned = self.script.get(what, [])
        how = planned.pop(0) if planned else "do"
        self._world.note(f"{self.name}.{what}: {how}")
        answer: str | None = None
        if how == "raise":
            raise OSError(f"{self.name} is away")
        if how == "refuse":
            with self._lock:
                self._abort(txn_id)
            return ABORTED
        if how == "mumble":
            return "perhaps"
        if how.startswith("stall") and call:
            self._world.stall(call)
        if how != "stall, then raise":
            with self._lock:
                answer = work(txn_id)
        if how == "do, then stall" and call:
            self._world.stall(call)
        if how.endswith("raise"):
            raise OSError(f"{self.name} did not come through")
        return answer

    def crash(self) -> None:
        """Everything stops. What is active is lost."""
        self.active.clear()


@dataclass(frozen=True)
class Work(Printed):
    """What the client does at one participant, within a nested transaction perhaps."""

    takes: int = 0
    writes: int = 0
    reads: int = 0
    poison: bool = False  # a reaction will refuse it
    nested: str = "no"  # or commit, abort
    script: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Fault(Printed):
    """At this tick of the round: everything crashes, a space does, or there is an interrupt."""

    tick: int
    what: str
    which: int = 0


@dataclass(frozen=True)
class Round(Printed):
    """One transaction, from its beginning to its end, and what goes wrong meanwhile."""

    works: tuple[tuple[int, Work], ...]
    end: str  # commit, abort, expire, leave
    faults: tuple[Fault, ...] = ()


class Member:
    """A space of the world, and what must be in it."""

    def __init__(self, number: int, kind: str, world: World) -> None:
        self.name = f"s{number}"
        self.kind = kind
        self.path = world.folder / self.name if "durable" in kind else None
        self.world = world
        self.there: list[Entry] = []
        self.space: Any = None
        self.dead = True
        self.open()
        self.fill()

    def open(self) -> None:
        """Open it; a space in memory begins anew."""
        door = aio.Space if "async" in self.kind else tupelo.Space
        options: dict[str, Any] = {"path": self.path} if self.path else {}
        self.space = door(self.name, clock=self.world.clock, **options)
        engine: Any = port_of(self.space)._engine
        engine.flush = partial(self.world.flush, engine.flush)
        self.engine, self.dead = engine, False
        self.call(self.space.react, ("poison", int), refuse)

    def fill(self) -> None:
        self.world.marks += 1
        self.there = [(self.name, "old", self.world.marks, n) for n in range(OLD)]
        self.call(self.space.write_all, self.there)

    def call(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        answer = operation(*args, **options)
        return self.world.run(answer) if asyncio.iscoroutine(answer) else answer

    def seen(self) -> list[Entry]:
        """What anybody would see now, without waiting for the disk."""
        with port_of(self.space).atomic():
            return [entry.fields for entry in self.engine.core.store]

    def die(self) -> None:
        """Its process is gone, with all that the disk does not have."""
        if not self.dead:
            self.dead = True
            kill(self.engine)
            if "async" in self.kind:
                port_of(self.space).flusher.close()

    def close(self) -> None:
        if not self.dead:
            self.call(self.space.close)


def kill(engine: Any) -> None:
    """Drop a space as a dying process does: the file is as the last commit has left it."""
    with engine.lock:
        engine.core.close(SpaceClosed("its process is gone"))
        engine.wake()
        engine._cancel_alarm()
        saved = engine.saved
        if saved is not None and saved._failure is None:
            saved.crash()


def refuse(entry: Any, step: Any) -> None:
    raise ValueError("this is poison")


class World:
    """Everything there is, and the client's view of it."""

    def __init__(self, kinds: list[str], async_manager: bool) -> None:
        root = MEMORY_DISK if MEMORY_DISK.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="tupelo-", dir=root))
        self.marks = 0
        self.loop = asyncio.new_event_loop()
        self.excepthook = threading.excepthook
        threading.excepthook = self.on_thread_error
        self.clock = Clock()
        self.trace: list[str] = []
        self.gates: list[threading.Event] = []
        self.stalled: set[threading.Thread] = set()
        self.threads_before = set(threading.enumerate())
        self.counter = threading.Lock()
        self.calls = 0
        self.crashed = False
        self.armed = False
        self.ticks = 0
        self.faults: list[Fault] = []
        self.current: Attempt | None = None
        self.make_manager = AsyncTransactionManager if async_manager else TransactionManager
        self.members: list[Member | Foreign] = [
            Foreign(f"f{i}", self) if kind == "foreign" else Member(i, kind, self)
            for i, kind in enumerate(kinds)
        ]
        self.open_manager()

    @property
    def spaces(self) -> list[Member]:
        return [member for member in self.members if isinstance(member, Member)]

    @property
    def foreigners(self) -> list[Foreign]:
        return [member for member in self.members if isinstance(member, Foreign)]

    def open_manager(self) -> None:
        self.manager = self.make_manager(
            self.folder / "log", clock=self.clock, vote_seconds=VOTE_SECONDS
        )
        log = self.manager.log
        self.log_engine = port_of(log)._engine
        flush = partial(self.flush, self.log_engine.flush)
        log._flush = flush
        self.log_engine.flush = flush  # type: ignore[method-assign]
        decisions: Any = self.manager._decisions
        for name in ("record", "recorded", "forget"):
            setattr(decisions, name, partial(self.around, name, getattr(decisions, name)))

    def on_thread_error(self, error: threading.ExceptHookArgs) -> None:
        """A thread that dies in a crash has nothing to tell."""
        if not issubclass(error.exc_type, (Crash, Interrupt)):
            self.excepthook(error)

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def note(self, what: str) -> None:
        self.trace.append(what)

    # Ticks and faults

    def around(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        self.tick(f"before {what}")
        answer = call(*args)
        if what == "record" and self.current is not None:
            self.current.decided = True
        self.tick(f"after {what}")
        return answer

    def flush(self, flush: Callable[[int], None], position: int) -> None:
        self.tick("before the disk")
        flush(position)

    def tick(self, where: str) -> None:
        if self.crashed and self.armed:
            raise Crash
        if not self.armed:
            return
        self.note(f"{self.ticks} {where}")
        self.check_visibility(where)
        self.ticks += 1
        due = [fault for fault in self.faults if fault.tick < self.ticks]
        if not self.may_interrupt(where):
            due = [fault for fault in due if fault.what != "interrupt"]
        self.faults = [fault for fault in self.faults if fault not in due]
        for fault in due:
            self.strike(fault)

    def strike(self, fault: Fault) -> None:
        self.note(f"! {fault}")
        if fault.what == "crash":
            self.crashed = True
            raise Crash
        if fault.what == "space dies" and self.spaces:
            self.spaces[fault.which % len(self.spaces)].die()
        if fault.what == "interrupt":
            raise Interrupt

    def may_interrupt(self, where: str) -> bool:
        """Ctrl-C reaches the client's thread, and that where it waits: at the disk."""
        ours = threading.main_thread().name, "asyncio_"
        return where == "before the disk" and threading.current_thread().name.startswith(ours)

    def check_visibility(self, where: str) -> None:
        """In no space is a transaction to be seen in part, or before it was decided, or called
        off after that."""
        if self.current is not None:
            for member in self.spaces:
                if not member.dead:
                    self.current.check_visibility(member, where)

    # Stalling

    def next_call(self) -> int:
        with self.counter:
            self.calls += 1
            return self.calls

    def stall(self, call: int) -> None:
        """On a participant's thread: let the manager lose its patience; go on much later."""
        clock = self.clock
        clock.wait_for_sleep(call)
        gate = threading.Event()
        self.gates.append(gate)
        self.stalled.add(threading.current_thread())
        clock.advance(VOTE_SECONDS)
        assert gate.wait(PATIENCE_SECONDS)

    def let_go(self) -> None:
        """Those who stalled go on, and nobody is under way any more."""
        for gate in self.gates:
            gate.set()
        self.gates.clear()
        self.stalled.clear()
        self.wait_for_threads()

    def wait_for_threads(self) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            under_way = [
                thread
                for thread in set(threading.enumerate()) - self.threads_before - self.stalled
                if not thread.name.startswith(("asyncio_", "tupelo-journal"))
            ]
            if not under_way:
                return
            for thread in under_way:
                while thread.is_alive() and thread not in self.stalled:
                    thread.join(0.0005)
        raise AssertionError("somebody is under way for ever")

    # Crashing and healing

    def restart(self) -> None:
        """A new process: the log, the durable spaces and the foreigners' stores are left."""
        self.armed = False
        self.manager._closed = True
        kill(self.log_engine)
        for member in self.members:
            if isinstance(member, Foreign):
                member.crash()
            else:
                member.die()
        self.let_go()
        self.clock = Clock(self.clock.now() + 1)  # The alarms are gone, too.
        self.calls = 0
        for member in self.spaces:
            member.open()
            if not member.path:
                member.fill()
        self.crashed = False
        self.open_manager()
        self.note("restarted")

    def heal(self) -> None:
        """Let everyone come back, as often as it takes."""
        self.note("healing")
        for _ in range(40):
            if self.crashed:
                self.restart()
            self.let_go()
            self.armed = True
            try:
                self.clock.advance(120.0)
                self.wait_for_threads()
                is_quiet = not self.gates
                if self.log_engine.core.closed:
                    self.crashed = True
                    continue
                for member in self.spaces:
                    if member.dead and member.path:
                        self.armed = False
                        member.open()
                        self.armed = True
                recovering: Any = self.manager.recover(*self.recoverable())
                if isinstance(self.manager, AsyncTransactionManager):
                    self.run(recovering)
                away = [member for member in self.spaces if member.dead and member.path]
                if is_quiet and not self.gates and not away:
                    return
            except (Crash, Interrupt, OSError, TupeloError) as error:
                self.note(f"healing failed: {error!r}")
            finally:
                self.armed = False
        raise AssertionError("it does not heal")

    def recoverable(self) -> list[Any]:
        return [
            member if isinstance(member, Foreign) else member.space
            for member in self.members
            if isinstance(member, Foreign) or not member.dead
        ]

    def close(self) -> None:
        self.armed = False
        self.crashed = False
        for gate in self.gates:
            gate.set()
        with suppress(TupeloError):
            self.manager.close()
        for member in self.spaces:
            member.close()
        threading.excepthook = self.excepthook
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)

    # A transaction

    def play(self, plan: Round) -> None:
        for member in self.spaces:
            if member.dead:  # One in memory that died in an earlier round.
                member.open()
                member.fill()
        attempt = self.current = Attempt(self, plan)
        self.note(f"round {plan.end}")
        try:
            attempt.work()
            self.ticks, self.faults, self.armed = 0, list(plan.faults), True
            attempt.end()
        finally:
            self.armed = False
        self.heal()
        self.armed = False
        self.current = None
        attempt.check()
        self.check_rest()

    def check_rest(self) -> None:
        """Nothing is left over: no promise, no decision, no lock, no entry too many or too few."""
        log = self.manager.log.read_all()
        assert [entry[0] for entry in log] == ["manager"], f"decisions are left: {log}"
        assert not self.manager._live, f"transactions are left: {self.manager._live}"
        for member in self.members:
            if isinstance(member, Foreign):
                assert not member.faults, member.faults
                assert not member.promised, f"{member.name} has {member.promised} in doubt"
                assert len(set(member.committed)) == len(member.committed), member.committed
            elif not member.dead:
                in_doubt = member.call(member.space.in_doubt)
                assert not in_doubt, f"{member.name} has {[t.id for t in in_doubt]} in doubt"
                everything = member.call(member.space.read_all)
                assert sorted(map(repr, everything)) == sorted(map(repr, member.there)), member.name
                with port_of(member.space).atomic():
                    assert member.engine.core.read_locks == 0
                    assert not member.engine.core.transactions


class Attempt:
    """One transaction: what it changes, what the client was told, and what became of it."""

    def __init__(self, world: World, plan: Round) -> None:
        self.world = world
        self.plan = plan
        self.txn: Any = None
        self.taken: dict[Member, list[Entry]] = {}
        self.written: dict[Member, list[Entry]] = {}
        self.marks: dict[Foreign, list[str]] = {}
        self.lost: set[Member] = set()  # spaces in memory that are gone
        self.decided = False
        self.told = "nothing"

    def work(self) -> None:
        world = self.world
        lease = LEASE_SECONDS if self.plan.end == "expire" else float("inf")
        self.txn = world.manager.create(lease).transaction
        self.hook(self.txn)
        for number, work in self.plan.works:
            if not world.members:
                break
            member = world.members[number % len(world.members)]
            txn = self.txn
            if work.nested != "no":
                txn = self.txn.transaction()
                self.hook(txn)
            if isinstance(member, Foreign):
                self.work_abroad(member, txn, work)
            else:
                self.work_at(member, txn, work)
            if work.nested != "no":
                self.finish(txn, work.nested)

    def finish(self, txn: Any, how: str) -> None:
        answer = txn.commit() if how == "commit" else txn.abort()
        if asyncio.iscoroutine(answer):
            self.world.run(answer)

    def work_at(self, member: Member, txn: Any, work: Work) -> None:
        space, call = member.space, member.call
        keeps = work.nested != "abort"
        for _ in range(work.takes):
            found = call(space.take, wait=0, txn=txn)
            if found is not None and keeps:
                self.forget(member, found)
        for _ in range(work.writes):
            self.world.marks += 1
            entry = (member.name, "new", self.world.marks)
            call(space.write, entry, txn=txn)
            if keeps:
                self.written.setdefault(member, []).append(entry)
        for _ in range(work.reads):
            call(space.read, wait=0, txn=txn)
        if work.poison:
            self.world.marks += 1
            poison = ("poison", self.world.marks)
            call(space.write, poison, txn=txn)
            if keeps:
                self.written.setdefault(member, []).append(poison)

    def forget(self, member: Member, found: Entry) -> None:
        written = self.written.get(member, [])
        if found in written:  # It had written this itself.
            written.remove(found)
        else:
            self.taken.setdefault(member, []).append(found)

    def work_abroad(self, member: Foreign, txn: Any, work: Work) -> None:
        self.world.marks += 1
        mark = f"mark {self.world.marks}" if work.writes else None
        member.script = {step: list(planned) for step, planned in work.script}
        if work.nested == "abort":
            member.script.pop("abort", None)  # or it might be on its way for ever
        member.work(txn, mark)
        if txn is not self.txn:
            member.parents[txn.id] = self.txn.id
        if mark and work.nested != "abort":
            self.marks.setdefault(member, []).append(mark)

    def hook(self, txn: Any) -> None:
        """Let the calls of those who take part be ticks, and a crashed manager do nothing."""
        world, members = self.world, txn._members

        class Hooked(list[Any]):
            def append(self, member: Any) -> None:
                for step in STEPS:
                    if not isinstance(getattr(member, step), partial):
                        setattr(member, step, partial(world.around, step, getattr(member, step)))
                super().append(member)

        txn._members = Hooked(members)
        retry = txn.retry

        def guarded() -> bool:
            try:
                return bool(retry())
            except BaseException:  # A crash, on a thread that nobody watches.
                return False

        txn.retry = guarded

    def end(self) -> None:
        """Bring it to its end, and remember what the client was told."""
        end, world = self.plan.end, self.world
        try:
            if end in ("commit", "abort"):
                self.finish(self.txn, end)
            elif end == "expire":
                world.clock.advance(LEASE_SECONDS + 1)
                world.wait_for_threads()
            else:
                world.manager.close()
            self.told = COMMITTED if end == "commit" else ABORTED
        except (CannotCommit, TransactionEnded):
            self.told = ABORTED
        except OutcomeUnknown:
            self.told = "unknown"
            assert self.txn.state == "unknown"
        except Interrupt:
            state = self.txn.state
            assert state in (COMMITTED, ABORTED, "unknown"), state
            self.told = state
        except Crash:
            self.told = "nothing"
        except TupeloError as error:  # Something that it needs is closed.
            assert end == "leave", error
        world.note(f"told: {self.told}")
        if end == "leave":
            world.crashed = True  # Nobody is there any more.
        if not world.crashed and self.told in (COMMITTED, ABORTED):
            assert self.txn.state == self.told
            assert world.manager.get_state(self.txn.id) == self.told

    def check_visibility(self, member: Member, where: str) -> None:
        seen = member.seen()
        written = [entry in seen for entry in self.written.get(member, [])]
        taken = [entry in seen for entry in self.taken.get(member, [])]
        what = f"in {member.name}, {where}: written {written}, taken {taken}"
        assert len(set(written)) < 2 and len(set(taken)) < 2, f"half visible {what}"
        assert not (any(written) and any(taken)), f"half visible {what}"
        if self.decided:
            assert not any(taken), f"called off after it was decided {what}"

    def check(self) -> None:
        """All or nothing; and as the client was told."""
        became: dict[str, str] = {}
        for member in self.world.spaces:
            written, taken = self.written.get(member, []), self.taken.get(member, [])
            if member in self.lost or not (written or taken):
                continue
            if member.dead or (not member.path and self.world.manager is not self.txn.manager):
                continue  # It was in memory, and is gone.
            seen = member.seen()
            signs = {entry in seen for entry in written} | {entry not in seen for entry in taken}
            assert len(signs) == 1, f"half done in {member.name}: {written} {taken} {seen}"
            became[member.name] = COMMITTED if signs.pop() else ABORTED
            if became[member.name] == COMMITTED:
                member.there = [e for e in member.there if e not in taken] + written
        for foreigner, marks in self.marks.items():
            signs = {mark in foreigner.committed for mark in marks}
            assert len(signs) == 1, f"half done at {foreigner.name}"
            became[foreigner.name] = COMMITTED if signs.pop() else ABORTED
        outcomes = set(became.values())
        assert len(outcomes) < 2, f"not all or nothing: {became}"
        if outcomes and self.told in (COMMITTED, ABORTED):
            assert outcomes == {self.told}, f"the client was told {self.told}, but: {became}"
        if self.decided:
            assert ABORTED not in outcomes, f"it was decided to commit: {became}"
