"""A peer: another host while it is engaged. Requests of that host for its agents are answered here;
our requests go through its conversation. Extensions are parts of a host that talk to the same part
of its peers."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
from pyroaring import BitMap64

from tupelo.errors import AccessError, BadFrame, CannotSend
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers, InboundCalls
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.encoding import (
    encode_answer,
    encode_numbers,
    encode_seen,
    encode_whole,
    read_numbers,
    read_order,
)
from tupelo.federation.links.reception import require_names
from tupelo.federation.spaces.hosted import HostedSpace, give_back
from tupelo.federation.spanning.question import choosing, read_some, read_unseen
from tupelo.federation.spanning.watching import (
    MissingSpaceWatch,
    RemoteWatch,
    SpaceWatch,
    WatchPlaceholder,
)
from tupelo.space.delivery import Delivery
from tupelo.space.log import Actor
from tupelo.space.order import Fifo
from tupelo.space.query import Query
from tupelo.space.session import Seen, SessionState, seen_of
from tupelo.store.index import Accept
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder
from tupelo.values.template_encoding import template_from_wire

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

logger = logging.getLogger("tupelo")


SESSIONS_CACHED_MAX = 1_000
"""Sessions of one host that are cached. The least recently used is dropped; if it asks again, it
sends its complete record."""
SESSION_CACHE_BYTES = 64 * 2**20
"""Bytes of the cached records of one host, beside the session that asks."""
ORIGIN_BYTES = 256
"""Bytes that are counted for an origin, however few its numbers."""


class PeerSeen(Seen):
    """What a session at the peer has seen, and which of these entries, or of those that were sent
    to it, were removed here since it asked."""

    __slots__ = ("_gone", "_sent")

    def __init__(self) -> None:
        super().__init__()
        self._gone: dict[str, BitMap64] = {}
        self._sent = Seen()

    def sent(self, entries: list[Entry]) -> None:
        self._sent.add_all(seen_of(entries))

    def prune(self, gone: Seen) -> None:
        none = BitMap64()
        for origin, numbers in gone.bits.items():
            common = numbers & self.bits.get(origin, none)
            common |= numbers & self._sent.bits.get(origin, none)
            if common:
                self._gone[origin] = self._gone.get(origin, none) | common
        super().prune(gone)
        self._sent.prune(gone)

    def heard(self, notes: wire.SessionDelta) -> None:
        gone, unseen, seen = Seen(), Seen(), Seen()
        gone.bits, unseen.bits = read_numbers(notes.gone), read_numbers(notes.unseen)
        seen.bits = read_numbers(notes.seen)
        self.add_all(seen)
        self._sent.prune(seen)
        super().prune(gone)
        if unseen.bits:
            super().prune(unseen)
            self.discards += 1

    def pop_gone(self) -> wire.Numbers | None:
        gone, self._gone = self._gone, {}
        return encode_numbers(gone) if gone else None


class PeerSession:
    """A copy of a session at the peer: its reader and what it has seen. `version` is the version of
    its record there."""

    def __init__(self, hosted: HostedSpace, number: int, actor: Actor) -> None:
        self.hosted = hosted
        self.actor = actor
        self.seen = PeerSeen()
        self.state = SessionState(str(number), self.seen, None)
        self.version = 0
        self.size = 0
        self.answering = 0

    def pop_gone(self) -> tuple[wire.Numbers | None, int]:
        """The numbers that the session may forget, and the position at which their removal is
        durable. None while other answers to the session are made: they may contain such an entry,
        which would then seem new to the session."""
        if self.answering > 1:
            return None, 0
        with self.hosted.port.atomic():
            return self.seen.pop_gone(), self.hosted.port.position

    def heard(self, notes: wire.SessionDelta) -> None:
        """Apply a delta. Raises BadFrame, and does nothing, if it is malformed."""
        with self.hosted.port.atomic():
            new = [origin for origin in notes.seen if origin not in self.seen.bits]
            self.seen.heard(notes)
        self.version = notes.upto
        self.size += sum(map(_size, notes.seen.values()))
        self.size += sum(ORIGIN_BYTES + len(origin) for origin in new)


class PeerSessionCache:
    """Copies of the sessions of one peer, by their numbers there."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, PeerSession] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def heard(
        self, hosted: HostedSpace, notes: wire.SessionDelta, actor: Actor
    ) -> PeerSession | None:
        """Apply a delta; returns the session, or None if the delta does not continue the copy.
        Raises BadFrame if it is malformed."""
        number = notes.number
        if not notes.since:
            self.forget(number)
            kept = PeerSession(hosted, number, actor)
            kept.heard(notes)
            hosted.port.remember(kept.seen)
            self._kept[number] = kept
        else:
            known = self._kept.get(number)
            if known is None or known.version != notes.since or known.hosted is not hosted:
                return None
            kept, before = known, known.size
            kept.heard(notes)
            self._size -= before
            self._kept.move_to_end(number)
        self._size += kept.size
        while len(self._kept) > 1 and (
            len(self._kept) > SESSIONS_CACHED_MAX or self._size > SESSION_CACHE_BYTES
        ):
            self.forget(next(iter(self._kept)))
        return kept

    def forget(self, number: int) -> None:
        kept = self._kept.pop(number, None)
        if kept is not None:
            self._size -= kept.size
            kept.hosted.port.forget(kept.seen)

    def forget_all(self) -> None:
        for number in list(self._kept):
            self.forget(number)


def _size(numbers: bytes | list[int]) -> int:
    return len(numbers) if isinstance(numbers, bytes) else 8 * len(numbers)


WATCHES_MAX = 100_000
"""The most watches of one host."""
ANSWER_BYTES = 2 * 2**20
"""The approximate size of an answer, unless it is a single entry; the asker asks again for more.
Encoded entries may be several times as large."""

_OPERATIONS = {"read": "read", "peek": "read", "take": "take"}


class HostRequest(NamedTuple):
    """A request of the other host for matches in a space, for an actor there."""

    message: wire.Ask
    hosted: HostedSpace
    template: Any
    session: PeerSession | None
    actor: Actor


class Peer:
    """One engaged host. `who` is its proved identity, as for a client; `holder` is the name under
    which it holds reservations here; `level` is the `wire.LEVEL` of the host."""

    def __init__(
        self,
        host: HostCore,
        peer_id: str,
        name: str,
        incarnation: str,
        address: str,
        who: str | None,
        level: int = 0,
    ) -> None:
        self.id = peer_id
        self.name = name
        self.incarnation = incarnation
        self.address = address
        self.level = level
        self.holder = Holder("host", peer_id, incarnation, name=name)
        self.spaces: set[str] = set()
        self.agents: set[str] = set()
        self.talk: Conversation
        self.dialled_by = ""
        self.replaced = False
        self.hints: dict[int, Callable[[wire.Hint], None]] = {}
        self._host = host
        self.who = who
        self._allowed: dict[tuple[str, str], bool] = {}
        self._held: dict[int, Delivery] = {}
        self._watches: dict[
            int, SpaceWatch | RemoteWatch | WatchPlaceholder | MissingSpaceWatch
        ] = {}
        self._sessions = PeerSessionCache()
        self.requests: InboundCalls[Peer] = InboundCalls(self, host.from_hosts, strict=True)

    @staticmethod
    def register(handlers: Handlers[Peer]) -> None:
        """Add the handlers of the messages that hosts send for their agents."""
        handlers.now |= {
            wire.Hint: Peer.hint,
            wire.HintAck: Peer.hint_acknowledged,
            wire.ForgetSession: Peer.forget_session,
            wire.Returned: Peer.returned,
            wire.PresenceUpdate: Peer.presence,
        }
        handlers.later |= {
            wire.Ask: Peer.ask,
            wire.Settle: Peer.settle,
            wire.WatchRequest: Peer.watch,
            wire.UnwatchRequest: Peer.unwatch,
            wire.CountRequest: Peer.count,
        }

    # As a caller

    @property
    def label(self) -> str:
        return f"the host {self.name!r}"

    def holds(self, call: int) -> bool:
        return call in self._held

    def give_back(self, call: int) -> None:
        delivery = self._held.pop(call, None)
        if delivery is not None:
            give_back(self._host.spaces.get(delivery.space), delivery)

    # What it says

    def hint(self, message: wire.Hint) -> None:
        heard = self.hints.get(message.watch)
        if heard is not None:
            heard(message)

    def hint_acknowledged(self, message: wire.HintAck) -> None:
        watch = self._watches.get(message.watch)
        if isinstance(watch, RemoteWatch):
            watch.arrived(message.entries)

    def forget_session(self, message: wire.ForgetSession) -> None:
        self._sessions.forget(message.number)

    def returned(self, message: wire.Returned) -> None:
        for agent, session, received in message.clients:
            if self._is_home_of(agent):
                self._host.doubts.client_back(("client", agent, session), received)

    def presence(self, message: wire.PresenceUpdate) -> None:
        agents = [
            (agent, name)
            for agent, name in zip_longest(message.agents, message.names, fillvalue="")
            if self._is_home_of(agent)
        ]
        self._host.update_presence(self, message.spaces, agents)

    def _is_home_of(self, agent: str) -> bool:
        """Whether an agent of this id can be at that host. Other agents in its messages are
        ignored."""
        return agent == self.id or agent.endswith(f"@{self.id}")

    def may(self, operation: str, hosted: HostedSpace) -> bool:
        """Whether this host's agents may do this in the space."""
        allowed = self._allowed.get((operation, hosted.name))
        if allowed is None:
            try:
                hosted.check(operation, self.who)
                allowed = True
            except AccessError:
                allowed = False
            self._allowed[operation, hosted.name] = allowed
        return allowed

    def still_may(self, name: str) -> bool:
        """The rules of the space `name` have changed: may this host do the same as before there,
        and in the companions of the space? If not, it must engage again."""
        before, self._allowed = self._allowed, {}
        return all(
            self.may(operation, hosted) == allowed
            for (operation, known), allowed in before.items()
            if (hosted := self._host.spaces.get(known)) is not None
        )

    def hosted(self, space: str, operation: str) -> HostedSpace | None:
        """The space, if there is a shared one of this name. Raises AccessError if the agents of
        that host may not do this in it."""
        hosted = self._host.spaces.get(space)
        if hosted is None or not hosted.shared:
            return None
        hosted.check(operation, self.who)
        self._allowed[operation, space] = True
        return hosted

    async def ask(self, message: wire.Ask) -> list[Any] | msgspec.Raw | None:
        hosted = self.hosted(message.space, _OPERATIONS[message.how])
        notes = message.seen
        by = message.by if message.by and self._is_home_of(message.by) else self.id
        require_names([message.name], 1)
        actor = Actor(by, message.session, self.name if by == self.id else message.name)
        number = message.watch
        if hosted is None and number is not None:
            self._await_space(number, message.space, lambda _: self.talk.say(wire.Hint(number)))
        if hosted is None:
            return [] if notes is None or not notes.number else [[], None]
        if notes is None or not notes.number:
            template = template_from_wire(message.template)
            return await self._answer(HostRequest(message, hosted, template, None, actor))
        # At once: what is said of a session is said in order.
        session = self._sessions.heard(hosted, notes, actor)
        if session is None:
            return None
        session.answering += 1
        try:
            template = template_from_wire(message.template)
            request = HostRequest(message, hosted, template, session, session.actor)
            entries = await self._answer(request)
            gone, position = session.pop_gone()
        finally:
            session.answering -= 1
        if gone is not None:
            await hosted.flush(position)  # After a crash it would be there again.
        return [entries, gone]

    async def _answer(self, request: HostRequest) -> list[Any] | msgspec.Raw:
        message, number = request.message, request.message.watch
        look = partial(self._look, request)
        watching = None if number is None else self._watches.get(number)
        if number is not None and (watching is None or isinstance(watching, MissingSpaceWatch)):
            watch = partial(
                SpaceWatch,
                request.hosted,
                request.template,
                partial(self._send_hint, request),
                read_order(message.order),
            )
            entries, encoded = await self._look_or_watch(number, look, watch)
        else:
            if isinstance(watching, SpaceWatch):
                watching.begin()  # before it is looked, so that nothing comes between
            entries, encoded = await look()
            if isinstance(watching, SpaceWatch):
                watching.had_nothing = not entries
        if message.how == "peek":
            return [None] if entries else []
        return encoded

    async def _look_or_watch(
        self,
        number: int,
        look: Callable[[], Awaitable[tuple[list[Entry], msgspec.Raw]]],
        watch: Callable[[], SpaceWatch],
    ) -> tuple[list[Entry], msgspec.Raw]:
        """The current matches; if there are none, a watch begins."""
        self._require_room()
        self._watches[number] = WatchPlaceholder()
        try:
            entries, encoded = await look()
            if not entries and number in self._watches:  # It may have been called off meanwhile.
                self._watches[number] = standing = watch()
                entries, encoded = await look()  # Something may have come between.
                standing.had_nothing = not entries
        except BaseException:
            self._end_watch(number)
            raise
        if entries:
            self._end_watch(number)
        return entries, encoded

    def _send_hint(self, request: HostRequest, entry: Entry | None) -> None:
        """The watch of a search has a hit. If that is a single entry, which a read would get now,
        the entry goes with the hint, which saves the reader a question."""
        message, hosted, _, session, actor = request
        assert message.watch is not None
        entries: Any = []
        if entry is not None and message.how == "read" and message.order is None:
            if session is None:
                only = _choosing(message, hosted)
            else:
                only = choosing(session.seen, message.agent)
            with hosted.port.atomic(), suppress(CannotSend):
                if (only is None or only(entry)) and hosted.port.read_at_once(entry, actor):
                    message_max = self.talk.link.message_max
                    entries = encode_answer([entry], hosted.clock.now(), False, message_max)
                    if session is not None:
                        session.seen.sent([entry])
        self.talk.say(wire.Hint(message.watch, entries))

    def _await_space(self, number: int, space: str, made: Callable[[HostedSpace], None]) -> None:
        if number not in self._watches:
            self._require_room()
            self._watches[number] = MissingSpaceWatch(space, made)

    def space_created(self, hosted: HostedSpace) -> None:
        """A space was made here: answer the watches of that host that wait for it."""
        for watch in list(self._watches.values()):
            if isinstance(watch, MissingSpaceWatch) and watch.space == hosted.name:
                watch.made(hosted)

    def _end_watch(self, number: int) -> int:
        """End a watch; returns how many hits it had."""
        watching = self._watches.pop(number, None)
        if watching is None:
            return 0
        if isinstance(watching, SpaceWatch):
            watching.listen()  # What came just now counts.
        watching.end()
        return watching.hits

    async def _look(self, request: HostRequest) -> tuple[list[Entry], msgspec.Raw]:
        """The current matches, and their encoding. Entries that cannot be sent are passed over."""
        message, hosted, _, session, _ = request
        limit = message.limit
        while True:
            entries, cut = await self._get(request, limit)
            cut = cut or limit != message.limit
            try:
                message_max = self.talk.link.message_max
                return entries, encode_answer(entries, hosted.clock.now(), cut, message_max)
            except CannotSend as error:
                self.give_back(message.call)
                if len(entries) > 1:  # Fewer may have room.
                    limit = len(entries) // 2
                    continue
                hosted.pass_over(entries[0], error)
                if session is not None:
                    with hosted.port.atomic():
                        session.seen.add(entries[0])
                limit = message.limit

    async def _get(self, request: HostRequest, limit: int | None) -> tuple[list[Entry], bool]:
        """The current matches, and whether there are more than fit in an answer."""
        message, hosted, template, session, actor = request
        query = Query(
            template,
            message.how == "take",
            many=True,
            limit=limit,
            order=read_order(message.order),
            actor=actor,
            known=False,
            in_slices=True,
        )
        if session is not None and message.how == "read":
            entries, cut = await read_unseen(
                hosted, session.state, query, message.agent, ANSWER_BYTES
            )
            with hosted.port.atomic():
                session.seen.sent(entries)
            return entries, cut
        query = query.replace(only=_choosing(message, hosted))
        if message.how != "take":
            return await read_some(hosted, query, ANSWER_BYTES)
        cut = False
        if limit != 1:
            limit, cut = await hosted.port.room_for(query, ANSWER_BYTES)
            query = query.replace(limit=limit)
        holder = self.holder.of_call(message.call, message.client)
        if message.client is not None:
            holder = msgspec.structs.replace(holder, name=message.name)
        delivery = await hosted.port.reserve(query, holder)
        if delivery is None:
            return [], False
        if self.talk.over:
            give_back(hosted, delivery)
        else:
            self._held[message.call] = delivery
        return delivery.entries, cut

    def _require_room(self) -> None:
        if len(self._watches) >= WATCHES_MAX:
            raise BadFrame(f"more than {WATCHES_MAX} watches")

    async def settle(self, message: wire.Settle) -> bool:
        doubts, owner = self._host.doubts, self.holder.owner
        delivery = self._held.pop(message.of, None)
        if delivery is None:
            delivery = doubts.of(owner).get(message.of)
            doubts.forget(owner, message.of)
        if delivery is None:
            confirmed = self._host.federation.was_confirmed(self, message)
            space = self._host.spaces.get(message.space)
            if confirmed and space is not None:  # A full disk may have kept it in memory only.
                await space.flush(space.port.position)
            return confirmed
        hosted = self._host.spaces.get(delivery.space)
        if not message.keep:
            give_back(hosted, delivery)
            return False
        position = delivery.confirm()
        self._host.federation.remember_confirmed(self.holder.of_call(message.of))
        if hosted is not None:
            await hosted.flush(position)
        return True

    async def watch(self, message: wire.WatchRequest) -> dict[str, bytes] | None:
        hosted = self.hosted(message.space, "subscribe")
        template = template_from_wire(message.template)
        if hosted is None:
            later = msgspec.structs.replace(message, existing=True)  # All that comes is new.
            stand = partial(self._begin_watch_later, template, later)
            self._await_space(message.watch, message.space, stand)
            return None
        self._begin_watch(template, message, hosted)
        if message.existing:
            return None
        passed = Seen()  # It is not told of these, also not when we part and meet again.
        query = Query(template, many=True, limit=None, order=Fifo(), known=False, in_slices=True)
        for entry in await hosted.port.fetch(query):
            passed.add(entry)
        return encode_seen(passed)

    def _begin_watch_later(
        self, template: Any, message: wire.WatchRequest, hosted: HostedSpace
    ) -> None:
        """Begin a watch on a space that was made after the request."""
        if self.may("subscribe", hosted):
            self._begin_watch(template, message, hosted)
        else:
            logger.info("the host %r may not watch %r", self.name, hosted.name)

    def _begin_watch(self, template: Any, message: wire.WatchRequest, hosted: HostedSpace) -> None:
        """Begin a watch that sends the entries of a space."""
        self._end_watch(message.watch)
        self._require_room()
        watch = RemoteWatch(
            hosted,
            template,
            message,
            None if message.seen is None else choosing(_seen(message.seen), None),
            lambda kind, entry, missed: self.talk.say(
                wire.Hint(message.watch, [[kind, encode_whole(entry, hosted.clock.now())]], missed)
            ),
        )
        self._watches[message.watch] = watch

    async def unwatch(self, message: wire.UnwatchRequest) -> int:
        return self._end_watch(message.watch)

    async def count(self, message: wire.CountRequest) -> int:
        hosted = self.hosted(message.space, "read")
        if hosted is None:
            return 0
        template = template_from_wire(message.template)
        return await hosted.port.count_in_slices(template, None)

    def under_way(self) -> dict[str, list[Any]]:
        """Reservations, watches and tasks of that host, for the lab and for debugging."""
        return {
            "reservations": list(self._held),
            "watches": list(self._watches),
            "hints": list(self.hints),
            "tasks": list(self.requests.tasks),
        }

    # The end

    def end(self, reason: str) -> None:
        """The host is lost: unsettled deliveries are in doubt, everything else is freed."""
        self.requests.stop()
        for watching in self._watches.values():
            watching.end()
        self._watches.clear()
        self._sessions.forget_all()
        held, self._held = self._held, {}
        self._host.doubts.leave(self.holder.owner, held, reason)


def _choosing(message: wire.Ask, hosted: HostedSpace) -> Accept | None:
    unsendable, wanted = hosted.unsendable, None
    if message.entry is not None:
        return lambda entry: entry not in unsendable and (entry.origin, entry.n) == message.entry
    if message.seen is not None or message.agent is not None:
        wanted = choosing(_seen(message.seen.seen if message.seen else {}), message.agent)
    if not unsendable.bits:
        return wanted
    return lambda entry: entry not in unsendable and (wanted is None or wanted(entry))


def _seen(numbers: Mapping[str, bytes | list[int]]) -> Seen:
    seen = Seen()
    seen.bits = read_numbers(numbers)
    return seen


T = TypeVar("T")


class Extension(Protocol):
    """A part of a host that talks to the same part of its peers. A link that is replaced is one
    departure and one engagement."""

    def engaged(self, peer: Peer) -> None: ...

    def departed(self, peer: Peer) -> None: ...

    async def stop(self) -> None:
        """The host is closing: end everything that is open."""
        ...


class SilentExtension:
    """A part of a host that is not told of peers."""

    def engaged(self, peer: Peer) -> None:
        pass

    def departed(self, peer: Peer) -> None:
        pass


class Extensions(dict[str, Extension]):
    """The extensions of a host, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving: list[Callable[[], Awaitable[None]]] = []
        """Called before any of them is stopped, while all can still send messages."""
        self._heard: dict[str, Callable[[Peer, msgspec.Raw], None]] = {}

    def listen(
        self,
        name: str,
        extension: Extension,
        read: Callable[[msgspec.Raw], T],
        heard: Callable[[Peer, T], None],
    ) -> None:
        """Add an extension. `heard` is called with the messages of the same extension of a peer,
        decoded by `read`; a BadFrame closes the link to that peer."""
        self[name] = extension
        self._heard[name] = lambda peer, body: heard(peer, read(body))

    def engaged(self, peer: Peer) -> None:
        for extension in list(self.values()):
            extension.engaged(peer)

    def departed(self, peer: Peer) -> None:
        for extension in list(self.values()):
            extension.departed(peer)

    def heard(self, peer: Peer, notice: wire.PartNotice) -> None:
        heard = self._heard.get(notice.part)
        if heard is not None:
            heard(peer, notice.body)

    async def stop(self) -> None:
        leaving = [leave() for leave in self.leaving]
        for error in await asyncio.gather(*leaving, return_exceptions=True):
            if error is not None:
                logger.warning("the host stops before it has handed over everything: %s", error)
        for extension in list(self.values()):
            await extension.stop()
