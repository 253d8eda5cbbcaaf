"""A peer: another host, as it is known here while we are engaged. What it asks for its agents is
answered here; what we ask of it goes over its conversation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import AccessError, BadFrame, CannotSend, TupeloError
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.hosts.noted import Kept, Notebook
from tupelo.federation.links import wire
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.spelled import (
    read_numbers,
    read_order,
    read_whole,
    spell_answer,
    spell_error,
    spell_seen,
    spell_whole,
)
from tupelo.federation.spanning.handover import (
    Held,
    choosing,
    found,
    holder_name,
    host_holder,
    reserve,
    some,
    unread,
)
from tupelo.federation.spanning.telling import Telling
from tupelo.federation.spanning.watching import Intended, Watching
from tupelo.space.log import Actor
from tupelo.space.session import Seen
from tupelo.store.index import Accept
from tupelo.values.codec import BadBytes
from tupelo.values.entry import Entry
from tupelo.values.spelling import template_from_wire

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

logger = logging.getLogger("tupelo")

WATCHES_MAX = 100_000
"""So many watches may one host have here."""
CALLS_MAX = 100_000
"""So many calls of one host may be under way at a time: all that wait there ask when we meet."""
ANSWER_BYTES = 2 * 2**20
"""About so much is in an answer, or else a single entry; who wants more asks on. As they are sent,
entries may be several times as large."""

_OPERATIONS = {"read": "read", "peek": "read", "take": "take"}


class Peer:
    """One engaged host. `holder` is the name under which it holds reservations here."""

    def __init__(
        self,
        host: HostCore,
        peer_id: str,
        name: str,
        incarnation: str,
        address: str,
        who: str | None,
    ) -> None:
        self.id = peer_id
        self.name = name
        self.incarnation = incarnation
        self.address = address
        self.holder = host_holder(peer_id, incarnation)
        self.spaces: set[str] = set()
        self.agents: set[str] = set()
        self.talk: Conversation
        self.dialled_by = ""
        self.replaced = False
        self.hints: dict[int, Callable[[wire.Hint], None]] = {}
        self._host = host
        self._who = who
        self._loop = asyncio.get_running_loop()
        self._allowed: dict[tuple[str, str], bool] = {}
        self._held: dict[int, Held] = {}
        self._watches: dict[int, Watching | Telling | Intended] = {}
        self._sessions = Notebook()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._calls: dict[type, Callable[[Any], Coroutine[Any, Any, Any]]] = {
            wire.Ask: self._ask,
            wire.Settle: self._settle,
            wire.Watch: self._watch,
            wire.Unwatch: self._unwatch,
            wire.Count: self._count,
            wire.Move: self._move,
            wire.Decide: self._decide,
            wire.Outcome: self._decide,
            wire.Forget: self._decide,
        }

    # What it says

    def serve(self, message: wire.Said) -> None:
        work = self._calls.get(type(message))
        if work is not None:
            if len(self._tasks) >= CALLS_MAX:
                raise BadFrame(f"more than {CALLS_MAX} calls at a time")
            task = self._loop.create_task(self._run(message, work))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        elif isinstance(message, wire.Hint):
            heard = self.hints.get(message.watch)
            if heard is not None:
                heard(message)
        elif isinstance(message, wire.Presence):
            agents = list(filter(self._is_home_of, message.agents))
            self._host.told_presence(self, message.spaces, agents)
        elif isinstance(message, wire.Told):
            telling = self._watches.get(message.watch)
            if isinstance(telling, Telling):
                telling.arrived(message.entries)
        elif isinstance(message, wire.Unnote):
            self._sessions.forget(message.number)
        elif isinstance(message, wire.Carry):
            self._host.carriers.heard(self, message.channel, message.body)
        else:
            raise BadFrame(f"a host may not say {type(message).__name__}")

    async def _run(self, message: Any, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        call: int = message.call
        try:
            answer = await work(message)
            if call:
                self.talk.say(wire.Answer(call, answer))
        except BadBytes as error:
            self.talk.end(f"garbage: {error}")
        except TupeloError as error:
            self._give_back(call)
            self.talk.say(wire.Failure(call, *spell_error(error)))
        except Exception as error:
            logger.exception("a call of the host %r failed", self.name)
            self._give_back(call)
            self.talk.say(
                wire.Failure(call, *spell_error(TupeloError(f"the host failed: {error!r}")))
            )

    def _is_home_of(self, agent: str) -> bool:
        """May an agent of this id be there? What else it says of agents is not heeded."""
        return agent == self.id or agent.endswith(f"@{self.id}")

    def may(self, operation: str, hosted: HostedSpace) -> bool:
        """May this host's agents do this in the space?"""
        allowed = self._allowed.get((operation, hosted.name))
        if allowed is None:
            try:
                hosted.access.check(operation, hosted.name, self._who, False)
                allowed = True
            except AccessError:
                allowed = False
            self._allowed[operation, hosted.name] = allowed
        return allowed

    def _hosted(self, space: str, operation: str) -> HostedSpace | None:
        """The space, if there is one here and this host's agents may do this in it."""
        hosted = self._host.spaces.get(space)
        if hosted is not None:
            hosted.access.check(operation, space, self._who, False)
        return hosted

    async def _ask(self, message: wire.Ask) -> list[Any] | msgspec.Raw | None:
        hosted = self._hosted(message.space, _OPERATIONS[message.how])
        notes = message.seen
        by = message.by if message.by and self._is_home_of(message.by) else self.id
        actor = Actor(by, message.session)
        if notes is None or not notes.number:
            return [] if hosted is None else await self._answer(message, hosted, None, actor)
        if hosted is None:
            return [[], None]
        # At once: what is said of a session is said in order.
        session = self._sessions.heard(hosted, notes, actor)
        if session is None:
            return None
        session.answering += 1
        try:
            entries = await self._answer(message, hosted, session, session.actor)
            gone, position = session.pop_gone()
        finally:
            session.answering -= 1
        if gone is not None:
            await hosted.flush(position)  # After a crash it would be there again.
        return [entries, gone]

    async def _answer(
        self, message: wire.Ask, hosted: HostedSpace, session: Kept | None, actor: Actor
    ) -> list[Any] | msgspec.Raw:
        template, number = template_from_wire(message.template), message.watch
        look = partial(self._look, message, hosted, template, session, actor)
        watching = None if number is None else self._watches.get(number)
        if number is not None and watching is None:
            entries, spelled = await self._look_or_watch(number, hosted, template, look)
        else:
            if isinstance(watching, Watching):
                watching.arm()  # before it is looked, so that nothing comes between
            entries, spelled = await look()
        if message.how == "peek":
            return [None] if entries else []
        return spelled

    async def _look_or_watch(
        self,
        number: int,
        hosted: HostedSpace,
        template: Any,
        look: Callable[[], Awaitable[tuple[list[Entry], msgspec.Raw]]],
    ) -> tuple[list[Entry], msgspec.Raw]:
        """What there is. Only if there is nothing does the watch stand."""
        self._require_room()
        self._watches[number] = Intended()
        try:
            entries, spelled = await look()
            if not entries and number in self._watches:  # It may have been called off meanwhile.
                self._watches[number] = Watching(
                    hosted, template, lambda: self.talk.say(wire.Hint(number))
                )
                entries, spelled = await look()  # Something may have come between.
        except BaseException:
            self._end_watch(number)
            raise
        if entries:
            self._end_watch(number)
        return entries, spelled

    def _end_watch(self, number: int) -> int:
        """How often was there something?"""
        watching = self._watches.pop(number, None)
        if watching is None:
            return 0
        if isinstance(watching, Watching):
            watching.listen()  # What came just now counts.
        watching.end()
        return watching.hits

    async def _look(
        self,
        message: wire.Ask,
        hosted: HostedSpace,
        template: Any,
        session: Kept | None,
        actor: Actor,
    ) -> tuple[list[Entry], msgspec.Raw]:
        """What there is, and how it is said. What cannot be sent is passed over."""
        limit = message.limit
        while True:
            entries, cut = await self._get(message, hosted, template, session, actor, limit)
            cut = cut or limit != message.limit
            try:
                return entries, spell_answer(entries, hosted.clock.now(), cut)
            except CannotSend as error:
                self._give_back(message.call)
                if len(entries) > 1:  # Fewer may have room.
                    limit = len(entries) // 2
                    continue
                hosted.pass_over(entries[0], error)
                if session is not None:
                    with hosted.engine.lock:
                        session.seen.add(entries[0])
                limit = message.limit

    async def _get(
        self,
        message: wire.Ask,
        hosted: HostedSpace,
        template: Any,
        session: Kept | None,
        actor: Actor,
        limit: int | None,
    ) -> tuple[list[Entry], bool]:
        """So much of what there is, and whether there is more than has room in an answer."""
        order = read_order(message.order)
        if session is not None and message.how == "read":
            entries, cut = await unread(
                hosted, session.state, template, limit, order, message.agent, actor, ANSWER_BYTES
            )
            with hosted.engine.lock:
                session.seen.sent(entries)
            return entries, cut
        only = _choosing(message, hosted)
        if message.how != "take":
            return await some(hosted, template, limit, order, only, actor, ANSWER_BYTES)
        if message.call in self._held:
            raise BadFrame(f"call {message.call} is under way already")
        cut = False
        if limit != 1:
            limit, cut = hosted.operations.room_for(
                template, limit, True, order, only, ANSWER_BYTES
            )
        reservation = await reserve(
            hosted,
            holder_name(self.holder, message.call),
            template,
            many=True,
            limit=limit,
            order=order,
            only=only,
            actor=actor,
        )
        if reservation is None:
            return [], False
        if self.talk.over:
            reservation.give_back()
        else:
            self._held[message.call] = reservation
        return reservation.entries, cut

    def _require_room(self) -> None:
        if len(self._watches) >= WATCHES_MAX:
            raise BadFrame(f"more than {WATCHES_MAX} watches")

    async def _settle(self, message: wire.Settle) -> bool:
        reservation = self._held.pop(message.of, None)
        if reservation is None:
            away = self._host.doubts.of(self.holder)
            reservation = away.get(message.of)
            self._host.doubts.forget(self.holder, message.of)
        if reservation is None:
            return self._host.federation.was_kept(self, message)
        if not message.keep:
            reservation.give_back()
            return False
        position = reservation.keep()
        self._host.federation.kept(self, message.of)
        await reservation.hosted.flush(position)
        return True

    async def _watch(self, message: wire.Watch) -> dict[str, bytes] | None:
        hosted = self._hosted(message.space, "subscribe")
        if hosted is None:
            return None
        self._require_room()
        template = template_from_wire(message.template)
        telling = Telling(
            hosted,
            template,
            message,
            None if message.seen is None else choosing(_seen(message.seen), None),
            lambda kind, entry, missed: self.talk.say(
                wire.Hint(message.watch, [[kind, spell_whole(entry, hosted.clock.now())]], missed)
            ),
        )
        self._end_watch(message.watch)
        self._watches[message.watch] = telling
        if message.existing:
            return None
        passed = Seen()  # It is not told of these, also not when we part and meet again.
        for entry in await found(hosted, template, False, 0, True, None):
            passed.add(entry)
        return spell_seen(passed)

    async def _unwatch(self, message: wire.Unwatch) -> int:
        return self._end_watch(message.watch)

    async def _count(self, message: wire.Count) -> int:
        hosted = self._hosted(message.space, "read")
        if hosted is None:
            return 0
        return hosted.operations.count(template_from_wire(message.template), None)

    async def _move(self, message: wire.Move) -> bool:
        hosted = self._hosted(message.space, "write")
        if hosted is None:
            return False
        return await self._host.mover.accept(hosted, read_whole(message.entry, hosted.clock.now()))

    async def _decide(self, message: wire.Decide | wire.Outcome | wire.Forget) -> Any:
        return await self._host.deciding.serve(message, self.holder)

    def _give_back(self, call: int) -> None:
        reservation = self._held.pop(call, None)
        if reservation is not None:
            reservation.give_back()

    # The end

    def end(self, reason: str) -> None:
        """It is lost: what it has not settled is in doubt, all else of it is freed."""
        for task in list(self._tasks):
            task.cancel()
        for watching in self._watches.values():
            watching.end()
        self._watches.clear()
        self._sessions.forget_all()
        held, self._held = self._held, {}
        self._host.doubts.leave(self.holder, held, reason)


def _choosing(message: wire.Ask, hosted: HostedSpace) -> Accept | None:
    unsendable, wanted = hosted.unsendable, None
    if message.seen is not None or message.agent is not None:
        wanted = choosing(_seen(message.seen.seen if message.seen else {}), message.agent)
    if not unsendable.bits:
        return wanted
    return lambda entry: entry not in unsendable and (wanted is None or wanted(entry))


def _seen(numbers: Mapping[str, bytes | list[int]]) -> Seen:
    seen = Seen()
    seen.bits = read_numbers(numbers)
    return seen
