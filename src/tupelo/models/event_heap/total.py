"""One total order, at one host: what is put through it, and gets its places.

Many that put at once share the work: whoever has the token puts all that waits, and tells of their
places in one record. If several hosts put at once the token stays where it is: its holder lets the
others put, and gives places to what comes from all of them, many at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadFrame, CannotSend, PeerLost, TokenAway, TupeloError, UnknownHost
from tupelo.federation.replication.token import TokenState
from tupelo.models.event_heap.ordering import Ordering, Place, deliver
from tupelo.models.event_heap.records import (
    PLACES_MAX,
    Folded,
    Placed,
    encode_folded,
    encode_places,
    read_folded,
    read_places,
)
from tupelo.space.tasks import timeout_at
from tupelo.space.writers import Items
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.models.event_heap.replica import Replica, WrittenEvent


PACKED_MAX = 100_000
"""With a token so many places are handed over at most; whoever lacks more hears of them before."""
PERMITTED_MAX = 64
"""So many times a host may put before it asks the owner again: if nobody else puts, it gets the
token then."""
RETURNS_MAX = 4
"""If the token has come back so many times in a row, each time after few puts elsewhere, its holder
keeps it and gives places to what others put."""
RETURN_PLACES = 4
"""So many places a holder has given at most if it had the token only briefly."""
GATHER_SECONDS = 0.02
"""If several sources put at once, the owner waits so long at most until all of them have put again,
and gives places to all of that in one record."""


class PendingPut:
    """Events that wait to be put through a view, all together."""

    def __init__(self, items: Items, ttl: float | None) -> None:
        self.items = items
        self.ttl = ttl
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: BaseException | None = None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class TotalOrder(TokenState):
    """One order, as far as it is known here. It is the luggage of its token."""

    def __init__(self, replica: Replica, view: str) -> None:
        self.id = view
        self.ordering = Ordering()
        self.token = replica.tokens.token(f"view {view}")
        self.token.luggage = self
        self.waiting: dict[PendingPut, None] = {}
        """What is to be put through it."""
        self.begun: list[PendingPut] = []
        """What is just being put."""
        self.horizon: int | None = None
        """So many of the latest places are kept, if it is not None, whatever becomes of others."""
        self._parts: dict[int, dict[int, Folded]] = {}
        self.successor: TotalOrder | None = None
        """The clone that is used here in its place."""
        self.wanted_elsewhere = False
        self.told: object = None  # who was asked to clone it, and in which membership
        self.orphaned = False
        self.timer: asyncio.TimerHandle | None = None
        self._replica = replica
        self._permit: object = None  # the owner that has allowed us to put, and in which membership
        self._permitted = 0  # so many times more
        self._turns: dict[str, int] = {}  # who has put since the token is here, and when
        self._turn = 0
        self._had = 0, 0  # the epoch in which we had the token the last time, and the length then
        self._returns = 0  # how often it has come back since, after few puts elsewhere
        self._putting: frozenset[str] = frozenset()  # the sources that the last record has placed

    @property
    def unplaced(self) -> list[Place]:
        streams = self._replica.feed.exchange.streams.items()
        return self.ordering.unplaced((source, one.numbers) for source, one in streams)

    @property
    def marks(self) -> dict[str, int]:
        """Of each source that has places: up to which of them its events are here, or gone."""
        return {
            source: min(stream.upto, last)
            for source, last in self.ordering.last.items()
            if (stream := self._replica.feed.stream(source)) is not None
        }

    def reaches(self, marks: dict[str, int]) -> bool:
        """Is as much here as these say?"""
        here, last = self.marks, self.ordering.last
        return all(
            here.get(source, 0) >= min(upto, last.get(source, 0)) for source, upto in marks.items()
        )

    @property
    def known(self) -> list[Place]:
        """The places of events that are here, or gone."""
        marks = self.marks
        return [place for _, place in self.ordering.listed() if place[1] <= marks.get(place[0], -1)]

    def deliver(self, after: int) -> Iterator[tuple[int, Entry]]:
        return iter(deliver(self.ordering, after, self._replica.look_up, self._replica.is_gone))

    async def place_all(self) -> None:
        """Give a place to all that have none. The token must be held."""
        await self.ready()
        own = self._replica.feed.source
        while self.unplaced:
            await self._gather()
            places = self.unplaced
            self._putting = frozenset(source for source, _ in places)
            if any(source != own for source, _ in places):
                await self._replica.keep(self._replica.feed)  # and what it gives places to
            await self.tell(len(self.ordering), places)
        if len(self.ordering.places) >= max(self._replica.folded_after, len(self.ordering.kept)):
            await self._fold()

    async def _gather(self) -> None:
        """Wait a moment for those that put at once with others the last time."""

        def have_put() -> bool:
            streams, last = self._replica.feed.exchange.streams, self.ordering.last
            return all(
                source in streams and streams[source].upto > last.get(source, 0)
                for source in self._putting
            )

        if len(self._putting) > 1:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._replica.until(have_put)

    async def _fold(self) -> None:
        """Forget the places of events that are gone, and those beyond the horizon. Everyone else
        does so when it hears of it."""
        base, horizon = len(self.ordering), self.horizon
        floor = 0 if horizon is None else base - horizon
        kept = [
            (position, place)
            for position, place in self.ordering.listed(floor)
            if not self._replica.is_gone(place)
        ]
        for folded in encode_folded(self.id, base, kept, dict(self.ordering.last)):
            await self._replica.record(folded)
        await self._replica.until(lambda: self.ordering.base >= base)

    def heard_folded(self, folded: Folded) -> bool:
        """Of one part. Is it folded further now? BadFrame if it cannot be."""
        read_folded(folded)
        base, parts = folded.base or 0, folded.parts or 1
        if base <= self.ordering.base:
            return False
        some = self._parts.setdefault(base, {})
        some[folded.part or 0] = folded
        if len(some) < parts:
            return False
        self._parts = {one: other for one, other in self._parts.items() if one > base}
        kept: list[tuple[int, Place]] = []
        last: dict[str, int] = {}
        for part in sorted(some):
            pairs, some_last = read_folded(some[part])
            kept += pairs
            last.update(some_last)
        return self.ordering.fold(base, kept, last)

    async def ready(self) -> None:
        """Until the whole order is here. The token says how long it was when it came: one that is
        back after a crash may not have kept all that others had placed, but has what it placed
        itself."""
        length = int(self.token.state or b"0")
        await self._replica.until(lambda: len(self.ordering) >= length)

    async def tell(self, start: int, places: list[Place]) -> None:
        for begin in range(0, len(places), PLACES_MAX):
            part = places[begin : begin + PLACES_MAX]
            await self._replica.record(encode_places(self.id, start + begin, part))
        await self._replica.until(lambda: len(self.ordering) >= start + len(places))

    async def place_if_owned(self) -> None:
        with suppress(TokenAway):
            async with self.token.held(ask=False):
                await self.place_all()

    # Putting

    async def put(self, items: Items, ttl: float | None, deadline: float | None) -> None:
        """Put events in the heap, which have their places when this returns. TokenAway if the token
        did not come before the deadline on the host's clock, and nothing was done."""
        self._replica.require_open()
        putting = PendingPut(items, ttl)
        self.waiting[putting] = None
        self._replica.orders.serve(self)
        try:
            with suppress(TimeoutError):
                async with timeout_at(self._replica.core.clock, deadline):
                    await asyncio.wait([putting.done])
        finally:
            missed = self.waiting.pop(putting, putting) is None
            if missed and not self.waiting and not self.begun:
                self._replica.orders.serve_no_more(self)
        if missed:
            raise TokenAway(self.token.name, self.token.holder)
        await putting.done  # Patience ends between steps.

    async def serve(self) -> None:
        """Put what waits, all that is there at a time: so they share the work."""
        try:
            while self.waiting:
                if await self._may_put():
                    self.begun, self.waiting = list(self.waiting), {}
                    await self._put_for_owner(self.begun)
                    self.end()
                    continue
                async with self.token.held():
                    await self.ready()
                    self._note_return()
                    self._note_turn(self._replica.me)
                    self.begun, self.waiting = list(self.waiting), {}
                    await self._put(self.begun)
                    self.end()
        except Exception as error:
            self.end(error, waiting=True)
            raise

    async def _put(self, begun: list[PendingPut]) -> None:
        await self._write(begun)
        await self.place_all()

    async def _put_for_owner(self, begun: list[PendingPut]) -> None:
        """Put these, and wait until the owner has given them places, or that of a clone has; and
        until what comes before them is here, as it is if we own the view."""
        written = await self._write(begun)
        source = self._replica.feed.source

        def are_placed() -> bool:
            last = self.latest.ordering.last.get(source, 0)
            return all(one.arrival <= last or one.ended for one in written)

        def are_readable() -> bool:
            return self.latest.reaches(before) or self.latest.token.is_away

        await self._replica.until(are_placed)
        before = dict(self.latest.ordering.last)
        await self._replica.until(are_readable)

    @property
    def latest(self) -> TotalOrder:
        """Itself, or the clone that is used here in its place."""
        order = self
        while order.successor is not None:
            order = order.successor
        return order

    async def _write(self, begun: list[PendingPut]) -> list[Entry]:
        """Put these in the heap: what is there then."""
        written: list[tuple[PendingPut, WrittenEvent]] = []
        for one in begun:
            try:
                written.append((one, self._replica.write(one.items, one.ttl)))
            except TupeloError as error:
                one.end(error)
        for one, what in written:
            try:
                await self._replica.drawn(what)
            except CannotSend as error:
                one.end(error)
        return [entry for one, what in written if not one.done.done() for entry in what.entries]

    async def _may_put(self) -> bool:
        """Does the owner, which is another host, let us put? It does if others put as well. Events
        that must stand together have to be put by the owner itself."""
        holder = self.token.holder
        if self.token.here or holder is None or self.token.is_away:
            return False
        if any(len(one.items) > 1 for one in self.waiting):
            return False
        permit = holder, self._replica.membership.id
        if self._permit != permit or not self._permitted:
            try:
                allowed = await self._replica.voice.ask(holder, ["put", self.id])
            except (PeerLost, UnknownHost):
                return False
            if allowed is not True or any(len(one.items) > 1 for one in self.waiting):
                return False
            self._permit, self._permitted = permit, PERMITTED_MAX
        self._permitted -= 1
        return True

    def lets_put(self, host: str) -> bool:
        """May another host put, and get its places from here? Not if nobody else puts: then it is
        better off with the token."""
        if not self.token.here:
            return False
        before = self._turns.get(host)
        if before is None:  # What was put here before matters only to whoever asks again.
            others = [turn for one, turn in self._turns.items() if one != self._replica.me]
        else:
            others = [turn for turn in self._turns.values() if turn > before]
        self._note_turn(host)
        is_shared = self.token.busy or self.waiting or self.begun
        return bool(others or is_shared or self._returns >= RETURNS_MAX)

    def _note_return(self) -> None:
        """We have the token: has it gone round since we had it, with few puts at each host?"""
        (epoch, length), now = self._had, (self.token.epoch, len(self.ordering))
        self._had = now
        if now[0] != epoch:
            is_brief = epoch and now[1] - length <= RETURN_PLACES * (now[0] - epoch)
            self._returns = self._returns + 1 if is_brief else 0

    def _note_turn(self, host: str) -> None:
        self._turn += 1
        self._turns[host] = self._turn

    def end(self, error: Exception | None = None, *, waiting: bool = False) -> None:
        """What was begun is done, or has failed; so has what waits."""
        ended, self.begun = self.begun, []
        if waiting:
            ended += self.waiting
            self.waiting = {}
        for putting in ended:
            putting.end(error)

    def give_up_waiting(self) -> None:
        """What waits is to be put through another view."""
        waiting, self.waiting = self.waiting, {}
        for putting in waiting:
            putting.end(TokenAway(self.token.name, self.token.holder))

    # What goes with the token

    def state(self) -> bytes:
        return str(len(self.ordering)).encode()

    def wish(self) -> Any:
        return len(self.ordering)

    def is_near(self, wish: Any) -> bool:
        if type(wish) is not int or wish < 0:
            raise BadFrame("this is no length of an order")
        return self.ordering.base <= wish and len(self.ordering) - wish <= PACKED_MAX

    def pack(self, wish: Any) -> Any:
        self.is_near(wish)
        start = max(wish, self.ordering.base)  # What was before is told by records.
        rest = self.ordering.places[start - self.ordering.base :][:PACKED_MAX]
        placed = encode_places(self.id, start, rest)
        return [placed.start, placed.sources, placed.which, placed.numbers]

    async def unpack(self, packed: Any) -> None:
        self._turns.clear()
        start, places = self.read(packed)
        lacking = places[len(self.ordering) - start :] if start <= len(self.ordering) else []
        if lacking:
            await self.tell(len(self.ordering), lacking)
        await self._replica.keep(self._replica.system)  # Whoever owns a view has all of it.

    def read_known(self, answer: Any) -> tuple[tuple[int, list[Place]], dict[str, int]]:
        """What another knows of the order, and of its events."""
        match answer:
            case [packed, dict() as marks] if all(
                type(source) is str and type(upto) is int for source, upto in marks.items()
            ):
                return self.read(packed), marks
        raise BadFrame("this is no order")

    def read(self, packed: Any) -> tuple[int, list[Place]]:
        try:
            start, sources, which, numbers = packed
        except (TypeError, ValueError) as error:
            raise BadFrame(f"this is no order: {error}") from error
        return start, read_places(Placed(self.id, start, sources, which, numbers))
