"""Serving: a client as its host sees it. It is an agent here, and everything it holds hangs on
its link: when that is lost its waiters, locks, sessions and subscriptions are freed at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, BadFrame, CannotSend, TupeloError, WrongPassword
from tupelo.federation.hosts.given import Given, Got
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.hosts.parked import Parked
from tupelo.federation.hosts.possessions import Possessions, operation_of
from tupelo.federation.hosts.writing import Writing
from tupelo.federation.links import wire
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.spelled import (
    read_order,
    spell_change,
    spell_error,
    spell_whole,
)
from tupelo.federation.spanning.handover import (
    client_holder,
    found,
    holder_name,
    reserve,
    reserve_now,
)
from tupelo.space.log import Actor
from tupelo.space.waiting import Waiter
from tupelo.values.codec import BadBytes, spell_entry
from tupelo.values.entry import Entry
from tupelo.values.spelling import template_from_wire

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

logger = logging.getLogger("tupelo")

CALLS_MAX = 100_000
"""So many calls of one client may wait at a time."""
MESSAGE_MAX = 1_000
"""So many bytes are said of an error that cannot be told as it is."""


class Serving:
    """One client at a host. `agent` is the id under which it writes, `who` the identity that it has
    proved: None for a program on this machine that has none, "" for one elsewhere."""

    def __init__(self, host: HostCore, agent: str, who: str | None, session: str) -> None:
        self.agent = agent
        self.actor = Actor(agent)
        self.who = who
        self.session = session
        self.holder = client_holder(agent, session)
        self.talk: Conversation
        self.possessions = Possessions(self.actor, who)
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._allowed: dict[tuple[str, str], HostedSpace] = {}
        self._shown: set[str] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._new_parked = partial(Parked, self._loop, host.woken)
        self._parked: dict[int, Parked] = {}
        self._given = Given()
        self._writing = Writing(host, self)
        self._alone: dict[int, tuple[HostedSpace, wire.Get, float | None]] = {}
        self._leading_on: set[int] = set()  # cancelled to go on as searches over the federation
        self._ending: set[int] = set()  # ends of transactions: who asks for one cannot go back
        self._over = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            wire.Write: self._writing.write,
            wire.Get: self._get,
            wire.Confirm: self._confirm,
            wire.Cancel: self._cancel,
            wire.Forget: self._forget,
        }
        self._later: dict[type, tuple[str, Callable[..., Coroutine[Any, Any, Any]]]] = {
            wire.Count: ("read", self._count),
            wire.Changes: ("read", self._changes),
            wire.Log: ("read", self._log),
            wire.Trim: ("administer", self._trim),
        }

    # From the link

    def serve(self, message: wire.Said) -> None:
        handler = self._handlers.get(type(message))
        call: int = getattr(message, "call", 0)
        try:
            if call and len(self._tasks) + len(self._parked) >= CALLS_MAX:
                raise BadArgument("calls", f"at most {CALLS_MAX} at a time", "more")
            if handler is not None:
                handler(message)
                self._host.woken.answer()
                return
            if not call:
                raise BadFrame(f"a client may not say {type(message).__name__}")
            self.spawn(call, self._serve_later(message))
            if type(message) is wire.End:
                self._ending.add(call)
        except TupeloError as error:
            self._fail(call, error)
        except BadBytes as error:
            raise BadFrame(str(error)) from error

    async def _serve_later(self, message: wire.Said) -> Any:
        cls = type(message)
        if cls is wire.Open:
            return await self._open(message)  # type: ignore[arg-type]
        if cls is wire.Tell:
            return self._host.describe()
        entry = self._later.get(cls)
        if entry is not None:
            operation, method = entry
            return await method(self.hosted(message.space, operation), message)  # type: ignore[union-attr]
        needed = operation_of(message)
        if needed is not None:
            hosted = self.hosted(message.space, needed)  # type: ignore[union-attr]
            return await self.possessions.serve(hosted, message)
        if cls in (wire.Decide, wire.Outcome):
            return await self._host.deciding.serve(message, self.session)
        raise BadFrame(f"a client may not say {cls.__name__}")

    def hosted(self, space: str, operation: str) -> HostedSpace:
        """The space, if this client may do this in it."""
        hosted = self._allowed.get((space, operation))
        if hosted is None:
            hosted = self._host.hosted(space, self.who)
            hosted.access.check(operation, space, self.who, space in self._shown)
            self._allowed[space, operation] = hosted
        return hosted

    async def _open(self, message: wire.Open) -> list[Any]:
        hosted = self._host.hosted(message.space, self.who)
        if hosted.access.protected:
            given = message.password or ""
            if not await asyncio.to_thread(hosted.access.matches_password, given):
                logger.warning("%s showed a wrong password for %r", self.agent, message.space)
                raise WrongPassword(message.space)
            self._shown.add(message.space)
        return [hosted.durable, hosted.engine.id, self.agent, self._host.id]

    # Reading and taking

    def _get(self, message: wire.Get) -> None:
        self.require_new(message.call)
        hosted = self.hosted(message.space, "take" if message.take else "read")
        template = template_from_wire(message.template)
        anywhere = message.txn is None and not message.if_exists
        if anywhere and self._host.spans(hosted, message.scope):
            self.spawn(message.call, self._get_anywhere(hosted, message, template))
            return
        if (
            message.many
            or message.txn is not None
            or message.session is not None
            or message.order is not None
            or (hosted.durable and (message.take or message.wait != 0))
        ):
            if message.wait != 0 and message.txn is None:
                self._alone[message.call] = (hosted, message, self._until(hosted, message.wait))
            self.spawn(message.call, self._get_slowly(hosted, message, template))
            return
        with hosted.operations.acting(self.actor):
            entry, position = hosted.operations.get(
                template,
                self._new_parked,
                message.take,
                message.wait,
                None,
                None,
                message.if_exists,
                None,
                known=False,
                reserve=message.take,
            )
        if isinstance(entry, Waiter):
            parked = entry.signal
            assert isinstance(parked, Parked)
            self._parked[message.call] = parked
            self._alone[message.call] = (hosted, message, self._until(hosted, message.wait))
            parked.wait(
                hosted,
                entry,
                message.wait,
                lambda entries, error: self._got(hosted, message, entries, error),
            )
        elif entry is None:
            self.talk.say(wire.Answer(message.call, []))
        elif position and hosted.durable:
            self.spawn(message.call, self._flush_read(hosted, message, entry, position))
        else:
            self._deliver(hosted, message, entry)

    def _deliver(self, hosted: HostedSpace, message: wire.Get, entry: Entry) -> None:
        call = message.call
        if message.take:
            self._given.hold(call, reserve_now(hosted, entry))
        try:
            self.talk.say(wire.Answer(call, self._spelled(message, [entry])))
        except TupeloError:
            self._given.give_back(call)
            raise

    def _got(
        self,
        hosted: HostedSpace,
        message: wire.Get,
        entries: list[Entry],
        error: Exception | None,
    ) -> None:
        """The answer of one who was parked."""
        self._parked.pop(message.call, None)
        self._alone.pop(message.call, None)
        if error is not None:
            self._fail(message.call, error)
        elif not entries:
            self.talk.say(wire.Answer(message.call, []))
        else:
            try:
                self._deliver(hosted, message, entries[0])
            except TupeloError as unsayable:
                self._fail(message.call, unsayable)

    async def _flush_read(
        self, hosted: HostedSpace, message: wire.Get, entry: Entry, position: int
    ) -> list[Any]:
        await hosted.flush(position)
        return self._spelled(message, [entry])

    async def _get_slowly(self, hosted: HostedSpace, message: wire.Get, template: Any) -> list[Any]:
        order = read_order(message.order)
        call = message.call
        if message.take and message.txn is None:
            reservation = await reserve(
                hosted,
                holder_name(self.holder, call),
                template,
                wait=message.wait,
                many=message.many,
                limit=message.limit,
                order=order,
                if_exists=message.if_exists,
                actor=self.actor,
            )
            if reservation is None:
                return []
            self._given.hold(call, reservation)
            return self._spelled(message, reservation.entries)
        txn = self.possessions.transaction(hosted, message.txn)
        session = self.possessions.session(hosted, message.session)
        entries = await found(
            hosted,
            template,
            message.take,
            message.wait,
            message.many,
            message.limit,
            order,
            message.if_exists,
            txn=txn,
            session=session,
            actor=self.actor,
        )
        if session is not None or (message.take and txn is not None):
            within = None if txn is None else txn._state
            self._given.got(call, Got(hosted, entries, message.take, within, session))
        return self._spelled(message, entries)

    async def _get_anywhere(
        self, hosted: HostedSpace, message: wire.Get, template: Any
    ) -> list[Any]:
        session = self.possessions.session(hosted, message.session)
        taken = await self._host.federation.get(
            hosted,
            template,
            take=message.take,
            wait=message.wait,
            many=message.many,
            limit=message.limit,
            order=read_order(message.order),
            scope=message.scope,
            session=session,
            holder=holder_name(self.holder, message.call),
            actor=self.actor if session is None else Actor(self.agent, session.id),
        )
        if message.take and taken.entries:
            self._given.hold(message.call, taken)
        elif session is not None:
            self._given.got(message.call, Got(hosted, taken.entries, False, None, session))
        return self._spelled(message, taken.entries)

    @staticmethod
    def _spelled(message: wire.Get, entries: list[Entry]) -> list[Any]:
        if message.whole:
            return [spell_whole(entry) for entry in entries]
        return [spell_entry(entry.shape, entry.fields) for entry in entries]

    def _confirm(self, message: wire.Confirm) -> None:
        for call in message.calls:
            self._given.confirm(call)

    def _cancel(self, message: wire.Cancel) -> None:
        for call in message.calls:
            self._alone.pop(call, None)
            task = self._tasks.get(call)
            if task is not None and call not in self._ending:
                task.cancel()
            parked = self._parked.pop(call, None)
            if parked is not None:
                parked.vanish()
            self._writing.stop(call)
            self._given.give_back(call)

    # Hosts that engage while clients wait

    @staticmethod
    def _until(hosted: HostedSpace, wait: float | None) -> float | None:
        return None if wait is None else hosted.clock.now() + wait

    def engaged(self, spaces: set[str]) -> None:
        """A host has come that has these spaces: who waits for an entry here waits for it there."""
        for call, (hosted, message, _) in list(self._alone.items()):
            if hosted.name in spaces and message.scope is None and not message.if_exists:
                parked = self._parked.pop(call, None)
                if parked is not None:
                    parked.vanish()
                    self._search_on(call)
                elif call in self._tasks:
                    self._leading_on.add(call)
                    self._tasks[call].cancel()  # It goes on as a search when it has let go.

    def _search_on(self, call: int) -> None:
        hosted, message, until = self._alone.pop(call)
        if until is not None:
            message.wait = max(0.0, until - hosted.clock.now())
        template = template_from_wire(message.template)
        self.spawn(call, self._get_anywhere(hosted, message, template))

    # The rest

    def _forget(self, message: wire.Forget) -> None:
        """At once: a client that leaves says this just before its goodbye."""
        self._host.deciding.forget(message.txn, message.participant)
        self.talk.say(wire.Answer(message.call))

    async def _count(self, hosted: HostedSpace, message: wire.Count) -> int:
        template = template_from_wire(message.template)
        if self._host.spans(hosted, message.scope) and message.txn is None:
            return await self._host.federation.count(hosted, template, message.scope)
        txn = self.possessions.transaction(hosted, message.txn)
        return hosted.operations.count(template, txn)

    async def _changes(self, hosted: HostedSpace, message: wire.Changes) -> list[Any]:
        changes = await hosted.door.changes(since=message.since, limit=message.limit)
        return [spell_change(change) for change in changes]

    async def _log(self, hosted: HostedSpace, message: wire.Log) -> list[Any]:
        engine = hosted.engine
        asked = partial(engine.log_columns, message.names, message.first, message.last)
        first, last, columns = await asyncio.to_thread(asked)
        return [engine.core.agent, engine.id, first, last, columns]

    async def _trim(self, hosted: HostedSpace, message: wire.Trim) -> None:
        if message.before is None:
            await hosted.door.compact()
        else:
            await hosted.door.trim(before=message.before)

    # Tasks

    def spawn(self, call: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.require_new(call)
        except BadFrame:
            work.close()
            raise
        task = self._tasks[call] = self._loop.create_task(self._run(call, work))
        task.add_done_callback(partial(self._ended, call, work))

    def require_new(self, call: int) -> None:
        """Two calls of one number could not be told apart: what one takes might be lost."""
        if call in self._tasks or call in self._parked or call in self._given:
            raise BadFrame(f"call {call} is under way already")

    async def _run(self, call: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.talk.say(wire.Answer(call, await work))
        except asyncio.CancelledError:
            self._given.give_back(call)
            raise
        except BadBytes as error:
            self.talk.end(f"garbage: {error}")
        except TupeloError as error:
            self._given.give_back(call)
            self._fail(call, error)
        except Exception as error:
            logger.exception("a call of %s failed", self.agent)
            self._given.give_back(call)
            self._fail(call, TupeloError(f"the host failed: {error!r}"))
        self._tasks.pop(call, None)  # At once: from now on the number may be used again.
        self._alone.pop(call, None)

    def _ended(self, call: int, work: Coroutine[Any, Any, Any], task: asyncio.Task[None]) -> None:
        """If it was cancelled, it may not even have begun."""
        work.close()
        self._ending.discard(call)
        if self._tasks.get(call) is task:
            del self._tasks[call]
            led_on = task.cancelled() and call in self._leading_on
            if led_on and call in self._alone and not self._over:
                self._search_on(call)  # It has let go: see `engaged`.
            else:
                self._alone.pop(call, None)
        self._leading_on.discard(call)

    def _fail(self, call: int, error: BaseException) -> None:
        if isinstance(error, BadFrame) and not call:
            raise error
        kind, message, data = spell_error(error)
        try:
            self.talk.say(wire.Failure(call, kind, message, data))
        except CannotSend:  # It speaks of what cannot be said.
            sayable = message.encode(errors="replace")[:MESSAGE_MAX].decode(errors="ignore")
            self.talk.say(wire.Failure(call, kind, sayable))

    # The end

    def end(self, reason: str) -> None:
        """The link is lost: free everything, but what is in doubt."""
        if self._over:
            return
        self._over = True
        self._alone.clear()
        for task in list(self._tasks.values()):
            task.cancel()
        for parked in self._parked.values():
            parked.vanish()
        self._parked.clear()
        self._writing.stop_all()
        self.possessions.free()
        self._host.doubts.leave(self.holder, self._given.leave(), reason)
