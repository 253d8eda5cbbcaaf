"""Searching: one read or take of one entry over the federation, which may wait.

Every host that takes part is asked, and watches from the moment at which it had nothing. A match
anywhere ends the search; for a take, only one host at a time is asked to reserve, so nothing is
held that is not wanted. "No match" is said only if there was a moment at which no host had one: all
were watching by then, and none of the watches has seen anything come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from tupelo.errors import CannotSend, HostClosed, TupeloError
from tupelo.federation.hosts.parked import alarm
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.links import wire
from tupelo.federation.spanning.gathering import read_from
from tupelo.federation.spanning.handover import reserve
from tupelo.federation.spanning.question import Question, Taken, may_ask
from tupelo.federation.spanning.watching import Watching
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation


class _Place:
    """A host that is asked, and how it stands."""

    def __init__(self, peer: Peer, watch: int) -> None:
        self.peer = peer
        self.watch = watch
        self.state: Literal["asking", "empty", "ready", "missing"] = "asking"
        self.entries: list[Entry] = []
        self.outdated = False  # Is there something to be read again that we said we had seen?
        self.watched = False  # Had it nothing, so that our watch stands there?


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
            if await self._look_where_the_last_was():
                return self._result
            for peer in list(federation.host.peers.values()):
                self.engaged(peer)
            # Who does not wait need not hear of what comes here until the others have nothing.
            if wait != 0 and await self._watch_here():
                return self._result
            self._require_open()
            while not await self._round():
                if self._failure is not None:
                    raise self._failure
                if self._timed_out and self._all_have_answered():
                    if await self._nothing_came():
                        break
                else:
                    await self._changed.wait()
                self._require_open()
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

    def _require_open(self) -> None:
        if self._stopped:
            raise HostClosed("the host was closed")

    # Here

    def _hint_here(self) -> None:
        self._hinted_here = True
        self._changed.set()

    async def _watch_here(self) -> bool:
        """Hear of what comes here from now on. True if something has come before."""
        if not self._here or self._watching is not None:
            return False
        question = self._question
        self._watching = Watching(question.hosted, question.template, self._hint_here)
        return await self._look_here()

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

    async def _look_where_the_last_was(self) -> bool:
        question, record = self._question, self._question.record
        if record is None or question.take or question.many:
            return False
        peer = record.first_asked(self._federation.asked(question.hosted, self._wanted))
        if peer is None:
            return False
        there = Taken(question.hosted)
        with question.held():
            await read_from(self._federation, peer, question, question.limit, there)
            there.entries = question.choose(there.entries, question.limit)
        if there.entries:
            record.source = peer.id
            there.covered[peer.name] = None
            self._result.join(there)
        elif peer.id == record.source:
            record.source = ""
        return bool(there.entries)

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
                    read = self._question.read_answer(place.peer, message, answer.result())
                    place.entries = [] if read is None else read[0]
                    self._hold()
                # Who has forgotten the session is told all of it, and asked again.
                found_there = read is None or bool(place.entries)
        except TupeloError:
            self._lose(place)
            return
        place.watched = place.watched or not found_there
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
        if self._hinted_here:
            self._hinted_here = False
            if self._watching is not None:
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
                if self._question.record is not None and not place.watched:
                    self._question.record.source = place.peer.id
                return True
            self._ask(place, "read")
        self._hold()
        return False

    async def _claim(self, place: _Place) -> bool:
        """Ask one host to reserve, and keep what it delivers."""
        place.state = "asking"
        call = self._next_call()
        message = self._question.ask(place.peer, call, "take", self._question.limit, place.watch)
        held = await self._federation.claim(place.peer, self._question, message)
        if held is None:
            self._lose(place)
        elif held.entries:
            self._result.add(held)
            place.state = "ready"
            return True
        elif held.refused:  # It had something: nobody watches there.
            self._ready(place)
        else:
            place.watched = True
            if place.state == "asking":
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
        """Was there a moment at which there was no match anywhere? If not, look again. True also
        if there is one here."""
        if self._places and await self._watch_here():
            return True
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
            known = place.peer.hints.pop(place.watch, None) is not None
            may_stand = place.watched or place.state in ("asking", "missing")
            if known and may_stand:
                place.peer.talk.say(wire.Unwatch(0, place.watch))


def look_away(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()
