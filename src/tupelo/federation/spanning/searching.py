"""Searching: one read or take of one entry over the federation, which may wait.

Every host that takes part is asked, and watches from the moment at which it had nothing. A match
anywhere ends the search; for a take, only one host at a time is asked to reserve, so nothing is
held that is not wanted. "No match" is said only if there was a moment at which no host had one: all
were watching by then, and none of the watches has seen anything come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from tupelo.errors import CannotSend, HostClosed, SpaceClosed, TransactionEnded, TupeloError
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.hosts.parked import alarm
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.links import wire
from tupelo.federation.links.spelled import read_answer, spell_order
from tupelo.federation.spanning.handover import Held, choosing, found, give_back, reserve, unread
from tupelo.federation.spanning.records import Record
from tupelo.federation.spanning.watching import Watching
from tupelo.space.log import Actor
from tupelo.space.order import Order
from tupelo.space.session import SessionState
from tupelo.store.index import Accept
from tupelo.values.entry import Entry
from tupelo.values.spelling import template_to_wire

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation


def nobody(peer: Peer) -> bool:
    """Of a scope: it is here, and no other host is in it."""
    return False


def may_ask(peer: Peer, hosted: HostedSpace) -> bool:
    """Is this space, as it is there, a part of the one here?"""
    return hosted.shared and hosted.name in peer.spaces


class Question:
    """What is asked: of which space, by which template, in which order, leaving out what a session
    has seen; and how many are wanted. What is `sent` must have a spelling. Who asks is the host
    itself, or `actor`."""

    def __init__(
        self,
        hosted: HostedSpace,
        template: Any,
        *,
        take: bool,
        order: Order | None,
        agent: str | None,
        session: SessionState | None = None,
        holder: str | None = None,
        many: bool = False,
        limit: int | None = None,
        sent: bool = True,
        actor: Actor | None = None,
    ) -> None:
        self.actor = actor
        self.hosted = hosted
        self.template = template
        self.take = take
        self.order = order
        self.agent = agent
        self.session = session
        self.record = _record_of(session)
        self.lock = hosted.engine.lock
        self.holder = holder
        self.many = many
        self.limit = limit if many else 1
        self.spelled = template_to_wire(template) if sent else None
        self.spelled_order = spell_order(order) if sent else None

    def only(self) -> Accept | None:
        """Which of the matches here are wanted; None for all."""
        if self.record is None and self.agent is None:
            return None
        return choosing(self.record, self.agent)

    async def read_here(self, limit: int | None) -> list[Entry]:
        hosted, template, order = self.hosted, self.template, self.order
        if self.session is not None:
            return await unread(
                hosted, self.session, template, limit, order, self.agent, self.actor
            )
        return await found(
            hosted,
            template,
            False,
            0,
            self.many,
            limit,
            order,
            only=self.only(),
            actor=self.actor,
        )

    def ask(
        self,
        peer: Peer,
        call: int,
        how: Literal["read", "take", "peek"],
        limit: int | None,
        watch: int | None,
    ) -> wire.Ask:
        """The question, for this host, which is to be sent at once."""
        notes = None
        if self.record is not None:
            with self.lock:
                reads = how == "read"
                notes = self.record.notes_for(peer, call) if reads else self.record.all_notes()
        return wire.Ask(
            call,
            self.hosted.name,
            self.spelled,
            how,
            limit,
            self.spelled_order,
            self.agent,
            notes,
            watch,
            self.actor.agent if self.actor else None,
            self.actor.session if self.actor else None,
        )

    def read_answer(self, peer: Peer, message: wire.Ask, answer: Any) -> list[Entry] | None:
        """What was read there; None if it is to be asked again. BadFrame if it cannot be."""
        if self.record is not None and message.seen is not None:
            with self.lock:
                answer = self.record.read_answer(peer, message.seen, answer)
            if answer is None:
                return None
        return read_answer(answer, self.hosted.clock.now())

    @contextmanager
    def held(self) -> Iterator[None]:
        """While entries are in hand that are yet to be chosen from, the session forgets none."""
        if self.record is None:
            yield
            return
        with self.lock:
            self.record.hold()
        try:
            yield
        finally:
            with self.lock:
                self.record.release()

    def choose(self, entries: list[Entry], limit: int | None) -> list[Entry]:
        """Those that the one who asked gets: of a session's, what is new to it."""
        if self.record is None:
            return entries[:limit]
        with self.lock:
            return self.record.choose(entries, limit)


def _record_of(session: SessionState | None) -> Record | None:
    seen = None if session is None else session.seen
    assert seen is None or isinstance(seen, Record)
    return seen


class Taken:
    """What an operation got, from where, and whom it reached; of a session's, what is noted in its
    `record`."""

    def __init__(self, hosted: HostedSpace, record: Record | None = None) -> None:
        self.hosted = hosted
        self._record = record
        self.entries: list[Entry] = []
        self.covered: dict[str, None] = {}
        self.missing: dict[str, None] = {}
        self._held: list[Held] = []

    def add(self, held: Held) -> None:
        self.entries += held.entries
        self._held.append(held)

    def keep(self) -> int:
        """The one who asked has them, but for those that a space took back when it was closed;
        SpaceClosed or TransactionEnded if that is all of them."""
        position = 0
        kept, refused = [], None
        for held in self._held:
            try:
                position = max(position, held.keep())
                kept += held.entries
            except (SpaceClosed, TransactionEnded) as error:
                refused = error
        if refused is not None:
            self.entries = kept
            if not kept:
                raise refused
        return position

    def give_back(self) -> None:
        """The one who asked has vanished."""
        for held in self._held:
            give_back(held)
        if self._record is not None and not self._held:
            with self.hosted.engine.lock:
                self._record.discard_all(self.entries)

    def join(self, more: Taken) -> None:
        """What another operation got, but for what this one has read already."""
        known = {(entry.origin, entry.n) for entry in self.entries}
        self.entries += [
            entry for entry in more.entries if more._held or (entry.origin, entry.n) not in known
        ]
        self._held += more._held
        self.covered |= more.covered
        self.missing |= more.missing


class _Place:
    """A host that is asked, and how it stands."""

    def __init__(self, peer: Peer, watch: int) -> None:
        self.peer = peer
        self.watch = watch
        self.state: Literal["asking", "empty", "ready", "missing"] = "asking"
        self.entries: list[Entry] = []
        self.outdated = False  # Is there something to be read again that we said we had seen?


class Search:
    """One search. `run` is awaited once."""

    def __init__(
        self, federation: Federation, question: Question, here: bool, wanted: Callable[[Peer], bool]
    ) -> None:
        self._federation = federation
        self._question = question
        self._here = here
        self._wanted = wanted
        self._next_call = federation.host.next_call
        self._places: dict[str, _Place] = {}
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._watching: Watching | None = None
        self._hinted_here = False
        self._timed_out = False
        self._impatient = False
        self._stopped = False
        self._failure: CannotSend | None = None
        self.found_here = False
        self._loop = asyncio.get_running_loop()
        self._holding = False
        self._result = Taken(question.hosted, None if question.take else question.record)

    async def run(self, wait: float | None) -> Taken:
        federation, hosted = self._federation, self._question.hosted
        if self._here and await self._look_here():
            return self._result
        alarms: list[Callable[[], None]] = []
        loop = asyncio.get_running_loop()
        federation.searches[self] = None
        if self._question.record is not None:
            self._question.record.readers[self] = None
        self._timed_out = wait == 0
        if wait:
            alarms.append(alarm(loop, hosted.clock, wait, self._time_out))
        else:
            patience = loop.call_later(federation.host.answer_seconds, self._lose_patience)
            alarms.append(patience.cancel)
        try:
            if self._here:
                self._watching = Watching(hosted, self._question.template, self._hint_here)
                if await self._look_here():
                    return self._result
            for peer in list(federation.host.peers.values()):
                self.engaged(peer)
            while not await self._round():
                if self._failure is not None:
                    raise self._failure
                if self._timed_out and self._all_have_answered():
                    if await self._nothing_came():
                        break
                else:
                    await self._changed.wait()
                if self._stopped:
                    raise HostClosed("the host was closed")
            return self._result
        finally:
            for cancel in alarms:
                cancel()
            self._finish()

    def _time_out(self) -> None:
        self._timed_out = True
        self._changed.set()
        loop = asyncio.get_running_loop()
        loop.call_later(self._federation.host.answer_seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        self._impatient = True
        self._changed.set()

    def stop(self) -> None:
        """The host is closed: whoever waits is told."""
        self._stopped = True
        self._changed.set()

    # Here

    def _hint_here(self) -> None:
        self._hinted_here = True
        self._changed.set()

    async def _look_here(self) -> bool:
        question = self._question
        self._result.covered[self._federation.host.name] = None
        if question.take:
            held = await reserve(
                question.hosted,
                question.holder or self._federation.holder_here(),
                question.template,
                many=question.many,
                limit=question.limit,
                order=question.order,
                only=question.only(),
                actor=question.actor,
            )
            if held is not None:
                self._result.add(held)
        else:
            with question.held():
                entries = await question.read_here(question.limit)
                self._result.entries += question.choose(entries, question.limit)
            if entries and not self._result.entries:  # Another reader was quicker.
                self._hint_here()
        self.found_here = bool(self._result.entries)
        return self.found_here

    def look_again(self) -> None:
        """What another reader of the session did not get, after all, is to be had again."""
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._outdate)

    def _outdate(self) -> None:
        if self._here:
            self._hint_here()
        for place in self._places.values():
            place.outdated = True
            if place.state == "empty":
                self._ready(place)

    # Elsewhere

    def engaged(self, peer: Peer) -> None:
        """This host is there to be asked, now or from now on."""
        if (
            self._wanted(peer)
            and may_ask(peer, self._question.hosted)
            and (peer.id not in self._places or self._places[peer.id].peer is not peer)
        ):
            self._begin(peer)

    def departed(self, peer: Peer) -> None:
        place = self._places.get(peer.id)
        if place is not None and place.peer is peer:
            self._lose(place)

    def _begin(self, peer: Peer) -> None:
        place = self._places[peer.id] = _Place(peer, self._next_call())
        peer.hints[place.watch] = lambda hint: self._ready(place)
        how: Literal["peek", "read"] = "peek" if self._question.take else "read"
        self._ask(place, how)

    def _ask(self, place: _Place, how: Literal["peek", "read"]) -> None:
        place.state = "asking"
        limit = 1 if how == "peek" else self._question.limit
        message = self._question.ask(place.peer, self._next_call(), how, limit, place.watch)
        place.outdated = False
        try:
            answer = place.peer.talk.call(message, self._during)
        except CannotSend as error:
            self._failure = error
            self._changed.set()
            return
        answer.add_done_callback(lambda done: self._answered(place, message, done))

    def _answered(self, place: _Place, message: wire.Ask, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self._lose(place)
            return
        self._result.missing.pop(place.peer.name, None)
        self._result.covered[place.peer.name] = None
        try:
            if self._question.take:
                found_there = bool(answer.result())
            else:
                with self._question.held():
                    entries = self._question.read_answer(place.peer, message, answer.result())
                    place.entries = entries or []
                    self._hold()
                # Who has forgotten the session is told all of it, and asked again.
                found_there = entries is None or bool(entries)
        except TupeloError:
            self._lose(place)
            return
        if found_there or place.outdated:
            self._ready(place)
        elif place.state == "asking":
            place.state = "empty"
            self._changed.set()

    def _ready(self, place: _Place) -> None:
        if place.state != "missing":
            place.state = "ready"
            self._changed.set()

    def _lose(self, place: _Place) -> None:
        place.state = "missing"
        self._result.covered.pop(place.peer.name, None)
        self._result.missing[place.peer.name] = None
        self._changed.set()

    @property
    def _during(self) -> str:
        return "take" if self._question.take else "read"

    async def _round(self) -> bool:
        """Look wherever there may be a match now. True if one was had."""
        self._changed.clear()
        if self._hinted_here and self._watching is not None:
            self._hinted_here = False
            self._watching.arm()
            if await self._look_here():
                return True
        for place in list(self._places.values()):
            if place.state != "ready":
                continue
            if self._question.take:
                if await self._claim(place):
                    return True
                continue
            entries = self._question.choose(place.entries, self._question.limit)
            place.entries = []
            if entries:
                self._result.entries += entries
                return True
            self._ask(place, "read")
        self._hold()
        return False

    async def _claim(self, place: _Place) -> bool:
        """Ask one host to reserve, and keep what it delivers."""
        place.state = "asking"
        call = self._next_call()
        message = self._question.ask(place.peer, call, "take", self._question.limit, place.watch)
        held = await self._federation.claim(place.peer, self._question.hosted, message)
        if held is None:
            self._lose(place)
        elif held.entries:
            self._result.add(held)
            return True
        elif place.state == "asking":
            place.state = "empty"
        return False

    def _hold(self) -> None:
        """While we have entries which we have yet to choose from, the session forgets none."""
        record = self._question.record
        holding = any(place.entries for place in self._places.values())
        if record is not None and holding != self._holding:
            self._holding = holding
            with self._question.lock:
                record.hold() if holding else record.release()

    # The end

    def _all_have_answered(self) -> bool:
        states = {place.state for place in self._places.values()}
        if "ready" in states or self._hinted_here:
            return False
        if self._impatient:
            for place in self._places.values():
                if place.state == "asking":
                    self._lose(place)
            return True
        return "asking" not in states

    async def _nothing_came(self) -> bool:
        """Was there a moment at which there was no match anywhere? If not, look again."""
        empty = [place for place in self._places.values() if place.state == "empty"]
        asked = [
            place.peer.talk.call(wire.Unwatch(self._next_call(), place.watch), self._during)
            for place in empty
        ]
        if asked:
            await asyncio.wait(asked, timeout=self._federation.host.answer_seconds)
        quiet = True
        for place, answer in zip(empty, asked, strict=True):
            place.peer.hints.pop(place.watch, None)
            if not answer.done() or answer.exception() is not None:
                self._lose(place)
            elif answer.result():
                quiet = False
        if self._watching is not None:
            self._watching.listen()
        if quiet and not self._hinted_here and self._all_have_answered():
            return True
        for place in empty:  # Nobody watches there any more.
            if place.state == "empty" and not place.peer.talk.over:
                self._begin(place.peer)
        return False

    def _finish(self) -> None:
        self._federation.searches.pop(self, None)
        self.ended.set()
        if self._question.record is not None:
            self._question.record.readers.pop(self, None)
        for place in self._places.values():
            place.entries = []
        self._hold()
        if self._watching is not None:
            self._watching.end()
        for place in self._places.values():
            if place.peer.hints.pop(place.watch, None) is not None and not place.peer.talk.over:
                ignored = place.peer.talk.call(
                    wire.Unwatch(self._next_call(), place.watch), self._during
                )
                ignored.add_done_callback(look_away)


def look_away(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()
