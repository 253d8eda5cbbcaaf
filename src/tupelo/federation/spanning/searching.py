"""Reads and takes over several hosts: `Search` finds one match and may wait, `gather` gets all
current matches.

A search asks every host in its scope; a host without a match sets up a watch at that moment. A
match anywhere ends the search: a read gets the entry with the hint of the watch; a take asks one
host at a time to reserve, so that no entry is reserved in vain. "No match" is the answer only if
there was a moment at which no host had one: all watches were set up, and none has seen an entry.

A search in a session rests for some seconds after it has found an entry: its watches stay, and the
next read of the same template continues it. So a program that reads one entry after another asks
only the hosts that have something new, not all of them for each entry.

A search that waits also waits in the queue of this host's own space: a take in its turn among the
clients and programs of this host, a read before any take. A read in a session sets up a watch here
instead, since the record of the session decides which entries are new.

`gather` asks each host again as long as an answer could not hold all its matches: a take for as
many again, a read for the entries not read yet, outside a session in a session of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from tupelo.errors import CannotSend, HostClosed, TupeloError
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import read_answer
from tupelo.federation.spaces.hosted import give_back
from tupelo.federation.spanning.peers import EngagedPeer
from tupelo.federation.spanning.question import FederatedQuery, FederatedResult
from tupelo.federation.spanning.watching import SpaceWatch
from tupelo.space.bridge import LoopBridge
from tupelo.space.delivery import Delivery
from tupelo.space.query import NOW
from tupelo.space.tasks import alarm_at
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation


REST_SECONDS = 5.0
"""How long a search in a session keeps its watches for the next read of the same template."""

RESTING_MAX = 8
"""How many searches of one session rest at a time; the oldest ends."""

ROUNDS_MAX = 100
"""How many times the hosts are asked for one `read_all`, while others read in the same session."""


async def gather(
    federation: Federation, question: FederatedQuery, limit: int | None
) -> FederatedResult:
    """The current matches at all hosts, up to `limit`."""
    if question.take:
        return await _ask_all(federation, question, limit)
    result = FederatedResult(question.hosted, question.record)
    current, rounds = question, 0
    try:
        while rounds < ROUNDS_MAX:
            left = None if limit is None else limit - len(result.entries)
            with current.held():
                more = await _ask_all(federation, current, left)
                got = len(more.entries)
                more.entries = current.choose(more.entries, left)
            result.join(more)
            if limit is not None and len(result.entries) >= limit:
                break
            if more.cut:  # Only these hosts have more than one answer holds.
                current = current.continued(result.entries, more.is_cut)
            elif question.record is None or limit is None or got == len(more.entries):
                break
            # Other readers of the session may have got some of the entries: there may be more.
            if not (more.cut and more.entries):
                rounds += 1
    except BaseException:
        result.give_back()
        raise
    finally:
        if current.record is not None and current.record is not question.record:
            current.record.close()
    return result


async def _ask_all(
    federation: Federation, question: FederatedQuery, limit: int | None
) -> FederatedResult:
    """Ask each host once. A read gets up to `limit` entries of each host."""
    result = FederatedResult(question.hosted)
    try:
        if question.includes_here:
            await _get_here(federation, question, limit, result)
        peers = federation.peers_for(question.hosted, question.includes)
        if question.take and limit is not None:
            for peer in peers:
                left = limit - len(result.entries)
                if left > 0:
                    await _get_from(federation, peer, question, left, result)
        else:
            # All requests end before an error is raised: nothing is added after `give_back`.
            errors = await asyncio.gather(
                *(_get_from(federation, peer, question, limit, result) for peer in peers),
                return_exceptions=True,
            )
            for error in errors:
                if error is not None:
                    raise error
    except BaseException:
        result.give_back()
        raise
    return result


async def _get_here(
    federation: Federation, question: FederatedQuery, limit: int | None, result: FederatedResult
) -> None:
    result.covered[federation.host.name] = None
    if question.take:
        port = question.hosted.port
        delivery = await port.reserve(question.query_here(limit), question.holder)
        if delivery is not None:
            result.add(delivery)
    else:
        result.entries += await question.read_here(limit)


async def _get_from(
    federation: Federation,
    peer: EngagedPeer,
    question: FederatedQuery,
    limit: int | None,
    result: FederatedResult,
) -> None:
    get = _take_from if question.take else read_from
    answered = await get(federation, peer, question, limit, result)
    (result.covered if answered else result.missing)[peer.name] = None


async def _take_from(
    federation: Federation,
    peer: EngagedPeer,
    question: FederatedQuery,
    limit: int | None,
    result: FederatedResult,
) -> bool:
    """Take up to `limit` entries of one host. False if it does not answer."""
    at_once = limit
    while True:
        message = question.ask(peer, federation.host.next_call(), "take", at_once, None)
        delivery = await federation.claim(peer, question, message)
        if delivery is None:
            return False
        result.add(delivery)
        got = len(delivery.entries)
        limit = None if limit is None else limit - got
        if not got or limit == 0 or not (delivery.cut or got == at_once):
            return True
        at_once = got if limit is None else min(limit, got)


async def read_from(
    federation: Federation,
    peer: EngagedPeer,
    question: FederatedQuery,
    limit: int | None,
    result: FederatedResult,
) -> bool:
    """Add the entries of one host to `result`; the caller chooses among them. False if the host
    does not answer."""
    read = None
    while read is None:  # A host that has forgotten the session is asked again, with all of it.
        message = question.ask(peer, federation.host.next_call(), "read", limit, None)
        future = peer.talk.call(message, "read")
        try:
            async with asyncio.timeout(federation.host.answer_seconds):
                answer = await future
            read = question.read_answer(peer, message, answer)
        except (TupeloError, TimeoutError):
            return False
    entries, cut = read
    result.entries += entries
    if cut:
        result.cut.add(peer.id)
    return True


class _AskedHost:
    """A host that a search has asked, and the state of its answer."""

    def __init__(self, peer: EngagedPeer, watch: int) -> None:
        self.peer = peer
        self.watch = watch
        self.state: Literal["asking", "empty", "ready", "missing"] = "asking"
        self.entries: list[Entry] = []
        self.outdated = False  # Were entries given back that the question listed as seen?
        self.watched = False  # Did it have no match, so that it has set up our watch?


class Search:
    """A read or take of one match, or of the first matches, over several hosts. Call `run` once."""

    def __init__(
        self,
        federation: Federation,
        question: FederatedQuery,
        rest_key: bytes | None = None,
    ) -> None:
        self._federation = federation
        self._rest_key = rest_key
        self._question = question
        self._next_call = federation.host.next_call
        self._places: dict[str, _AskedHost] = {}
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._watching: SpaceWatch | None = None
        self._waiting: asyncio.Task[Delivery | list[Entry] | None] | None = None  # at this host
        self._ticket: int | None = None  # its place in the queue of this host
        self._hinted_here = False
        self._timed_out = False
        self._impatient = False
        self._stopped: TupeloError | None = None
        self._failure: CannotSend | None = None
        self.found_here = False
        self._bridge = LoopBridge()
        self._holding = False
        self._result = FederatedResult(question.hosted, None if question.take else question.record)
        self._resting: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, federation: Federation, question: FederatedQuery) -> Search:
        """The search that rests in the session of the question, if it has the same template;
        otherwise a new one."""
        key = question.rest_key
        resting = {} if question.record is None or key is None else question.record.resting
        search = resting.pop(key, None) if key is not None else None
        if not isinstance(search, Search):
            return cls(federation, question, key)
        search._continue(question)
        return search

    def _continue(self, question: FederatedQuery) -> None:
        """Prepare a resting search to run for another read."""
        assert self._resting is not None
        self._resting.cancel()
        self._resting = None
        self._federation.resting.pop(self, None)
        self._question = question
        self._result = FederatedResult(question.hosted, question.record)
        self._timed_out = self._impatient = self.found_here = False
        self._failure = None
        self.ended.clear()
        peers = self._federation.host.peers
        for place in list(self._places.values()):
            if place.state == "missing" or peers.get(place.peer.id) is not place.peer:
                del self._places[place.peer.id]
                self._unwatch(place)
                continue
            if place.state != "asking":
                self._result.covered[place.peer.name] = None
            if not question.ahead:  # An entry may be gone since it came.
                place.entries = []
        self._hold()

    async def run(self) -> FederatedResult:
        """Search until there is a match or the deadline of the query is over. Hosts that did not
        answer are listed as missing in the result."""
        federation, hosted = self._federation, self._question.hosted
        alarms: list[Callable[[], None]] = []
        loop = asyncio.get_running_loop()
        federation.searches[self] = None
        if self._question.record is not None:
            self._question.record.readers[self] = None
        deadline = self._question.query.deadline
        self._timed_out = deadline == NOW
        if deadline is None or deadline == NOW:
            patience = loop.call_later(federation.host.answer_seconds, self._lose_patience)
            alarms.append(patience.cancel)
        else:
            alarms.append(alarm_at(loop, hosted.clock, deadline, self._time_out))
        try:
            if self._question.includes_here and await self._look_here():
                return self._result
            if not self._timed_out and (self._question.take or self._question.session is None):
                self._wait_here()
            if await self._ask_last_source():
                return self._result
            peers = list(federation.host.peers.values())
            record = self._question.record
            for peer in peers if record is None else record.in_turn(peers):
                self.engaged(peer)
            # Without waiting, a watch here is needed only once the others have no match.
            if not self._timed_out and await self._watch_here():
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
            federation.searches.pop(self, None)
            self.ended.set()
            if not self._rest():
                self._finish()

    def _time_out(self) -> None:
        self._timed_out = True
        self._changed.set()
        loop = asyncio.get_running_loop()
        loop.call_later(self._federation.host.answer_seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        self._impatient = True
        self._changed.set()

    def stop(self, error: TupeloError | None = None) -> None:
        """End the search with this error; by default, the host was closed."""
        self._stopped = error or HostClosed("the host was closed")
        self._changed.set()
        if self._resting is not None:
            self.end_rest()

    def _require_open(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    # At this host

    def _hint_here(self, _: Entry | None = None) -> None:
        self._hinted_here = True
        self._changed.set()

    def _wait_here(self) -> None:
        """Start to wait in the queue of this host."""
        if self._question.includes_here:
            question = self._question
            port = question.hosted.port
            self._ticket = self._ticket or question.query.ticket or port.ticket()
            query = question.query_here(question.limit, deadline=None).replace(ticket=self._ticket)
            got: Coroutine[Any, Any, Delivery | list[Entry] | None]
            got = port.reserve(query, question.holder) if question.take else port.fetch(query)
            self._waiting = asyncio.ensure_future(got)
            self._waiting.add_done_callback(lambda task: self._changed.set())

    def _came_here(self) -> bool:
        """Whether the queue of this host has served the search. Raises the error of the wait."""
        waiting = self._waiting
        if waiting is None or not waiting.done():
            return False
        self._waiting = None
        got = waiting.result()
        if isinstance(got, list):
            self._result.entries += got
        elif got is not None:
            self._result.add(got)
        self.found_here = bool(got)
        return self.found_here

    async def _watch_here(self) -> bool:
        """Set up a watch at this host. True if there is a match now."""
        if self._waiting is not None:
            return self._came_here()
        if not self._question.includes_here or self._watching is not None:
            return False
        question = self._question
        query = question.query
        self._watching = SpaceWatch(question.hosted, query.template, self._hint_here, query.order)
        return await self._look_here()

    async def _look_here(self) -> bool:
        question = self._question
        self._result.covered[self._federation.host.name] = None
        if question.take:
            port = question.hosted.port
            delivery = await port.reserve(question.query_here(question.limit), question.holder)
            if delivery is not None:
                self._result.add(delivery)
        else:
            with question.held():
                entries = await question.read_here(question.limit)
                self._result.entries += question.choose(entries, question.limit)
            if entries and not self._result.entries:  # Another reader of the session has them.
                self._hint_here()
        self.found_here = bool(self._result.entries)
        return self.found_here

    def look_again(self) -> None:
        """From any thread: another reader of the session has given an entry back."""
        self._bridge.soon(self._outdate)

    def _outdate(self) -> None:
        if self._question.includes_here:
            self._hint_here()
        for place in self._places.values():
            place.outdated = True
            if place.state == "empty":
                self._ready(place)

    # At other hosts

    async def _ask_last_source(self) -> bool:
        """Ask the host of the session's last entry alone, before all others."""
        question, record = self._question, self._question.record
        if record is None or question.take or question.query.many:
            return False
        peer = record.first_asked(
            self._federation.peers_for(question.hosted, self._question.includes)
        )
        if peer is None:
            return False
        there = FederatedResult(question.hosted)
        with question.held():
            await read_from(self._federation, peer, question, question.limit, there)
            there.entries = question.choose(there.entries, question.limit)
        if there.entries:
            record.source = record.latest = peer.id
            there.covered[peer.name] = None
            self._result.join(there)
        elif peer.id == record.source:
            record.source = ""
        return bool(there.entries)

    def engaged(self, peer: EngagedPeer) -> None:
        """Ask this host, which is engaged now."""
        if (
            self._question.includes(peer)
            and self._question.hosted.shared
            and (peer.id not in self._places or self._places[peer.id].peer is not peer)
        ):
            self._begin(peer)

    def departed(self, peer: EngagedPeer) -> None:
        place = self._places.get(peer.id)
        if place is not None and place.peer is peer:
            self._lose(place)

    def _begin(self, peer: EngagedPeer) -> None:
        place = self._places[peer.id] = _AskedHost(peer, self._next_call())
        peer.hints[place.watch] = lambda hint: self._hinted(place, hint)
        how: Literal["peek", "read"] = "peek" if self._question.take else "read"
        self._ask(place, how)

    def _ask(self, place: _AskedHost, how: Literal["peek", "read"]) -> None:
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

    def _hinted(self, place: _AskedHost, hint: wire.Hint) -> None:
        """A watch has seen something. For a read, the matches may come with the hint."""
        place.watched = True  # also if the answer, that there was nothing, is still on its way
        if hint.entries and not self._question.take:
            place.entries, _ = read_answer(hint.entries, self._question.hosted.clock.now())
            self._hold()
        self._ready(place)

    def _answered(self, place: _AskedHost, message: wire.Ask, answer: asyncio.Future[Any]) -> None:
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
                    place.entries = place.entries if read is None else read[0] or place.entries
                    self._hold()
                # A host that has forgotten the session must be asked again.
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

    def _ready(self, place: _AskedHost) -> None:
        if place.state != "missing":
            place.state = "ready"
            self._changed.set()

    def _lose(self, place: _AskedHost) -> None:
        place.state = "missing"
        self._result.covered.pop(place.peer.name, None)
        self._result.missing[place.peer.name] = None
        self._changed.set()

    @property
    def _during(self) -> str:
        return self._question.query.verb

    async def _round(self) -> bool:
        """Look at every host that may have a match now. True if one was found."""
        self._changed.clear()
        if self._came_here():
            return True
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
                self._places[place.peer.id] = self._places.pop(place.peer.id)  # its turn is over
                record = self._question.record
                if record is not None:
                    record.latest = place.peer.id
                    record.source = record.source if place.watched else place.peer.id
                return True
            self._ask(place, "read")
        self._hold()
        return False

    async def _claim(self, place: _AskedHost) -> bool:
        """Ask one host to reserve and deliver. Meanwhile the search does not wait at this host: a
        second reservation would hide an entry from others."""
        waits = self._waiting is not None
        if await self._stop_waiting():
            return True
        place.state = "asking"
        call = self._next_call()
        message = self._question.ask(place.peer, call, "take", self._question.limit, place.watch)
        delivery = await self._federation.claim(place.peer, self._question, message)
        if waits and not (delivery is not None and delivery.entries):
            self._wait_here()
        if delivery is None:
            self._lose(place)
        elif delivery.entries:
            self._result.add(delivery)
            place.state = "ready"
            return True
        else:
            place.watched = True
            if place.state == "asking":
                place.state = "empty"
        return False

    def _hold(self) -> None:
        """Let the session forget no entry while there are fetched entries to choose from."""
        record = self._question.record
        holding = any(place.entries for place in self._places.values())
        if record is not None and holding != self._holding:
            self._holding = holding
            with self._question.atomic():
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
        """Whether there was a moment without a match at any host. If not, ask again. Also True if
        there is a match at this host by now."""
        if self._places and await self._watch_here():
            return True
        empty = [place for place in self._places.values() if place.state == "empty"]
        answers = [
            place.peer.talk.call(wire.UnwatchRequest(self._next_call(), place.watch), self._during)
            for place in empty
        ]
        if answers:
            await asyncio.wait(answers, timeout=self._federation.host.answer_seconds)
        quiet = True
        for place, answer in zip(empty, answers, strict=True):
            place.peer.hints.pop(place.watch, None)
            if not answer.done() or answer.exception() is not None:
                self._lose(place)
            elif answer.result():
                quiet = False
        if self._watching is not None:
            self._watching.listen()
        waits = self._waiting is not None
        if await self._stop_waiting():  # It reserves nothing once the caller has its result.
            return True
        if quiet and not self._hinted_here and self._all_have_answered():
            return True
        if waits:
            self._wait_here()
        for place in empty:  # Its watch has ended.
            if place.state == "empty" and not place.peer.talk.over:
                self._begin(place.peer)
        return False

    def _rest(self) -> bool:
        """Keep the watches for the next read of this template in the session. False if there is no
        such read: outside a session, without a result, or if the session or the host has ended."""
        record, key = self._question.record, self._rest_key
        over = self._timed_out or self._stopped is not None or self._question.is_over
        if record is None or key is None or over or not (self._places and self._result.entries):
            return False
        if len(record.resting) >= RESTING_MAX:
            next(iter(record.resting.values())).end_rest()
        if key in record.resting:  # of another program that read in the session meanwhile
            record.resting[key].end_rest()
        record.resting[key] = self
        self._federation.resting[self] = None
        self._resting = self._bridge.loop.call_later(REST_SECONDS, self.end_rest)
        return True

    def end_rest(self) -> None:
        """End a resting search, with its watches."""
        assert self._resting is not None
        self._resting.cancel()
        self._resting = None
        self._federation.resting.pop(self, None)
        record, key = self._question.record, self._rest_key
        if record is not None and key is not None and record.resting.get(key) is self:
            del record.resting[key]
        self._finish()

    def _finish(self) -> None:
        if self._question.record is not None:
            self._question.record.readers.pop(self, None)
        for place in self._places.values():
            place.entries = []
        self._hold()
        if self._watching is not None:
            self._watching.end()
        for place in self._places.values():
            self._unwatch(place)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.add_done_callback(self._give_back)
            waiting.cancel()

    def _unwatch(self, place: _AskedHost) -> None:
        known = place.peer.hints.pop(place.watch, None) is not None
        may_stand = place.watched or place.state in ("asking", "missing")
        if known and may_stand:
            unwatch = wire.UnwatchRequest(self._next_call(), place.watch)
            # The one who waits gets the result first.
            self._bridge.loop.call_soon(place.peer.talk.call, unwatch, self._during)

    def _give_back(self, waiting: asyncio.Task[Delivery | list[Entry] | None]) -> None:
        """Give back an entry that was reserved here after the search had ended."""
        if not waiting.cancelled() and waiting.exception() is None:
            got = waiting.result()
            if got is not None and not isinstance(got, list):
                give_back(self._question.hosted, got)

    async def _stop_waiting(self) -> bool:
        """Leave the queue of this host. True if it has served the search just before."""
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait([self._waiting])
            if self._waiting.cancelled():
                self._waiting = None
        return self._came_here()


def ignore_error(answer: asyncio.Future[Any]) -> None:
    """A callback of futures whose errors do not matter."""
    if not answer.cancelled():
        answer.exception()
