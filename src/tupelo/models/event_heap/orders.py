"""The total orders of a heap at one host: which host adds to them, and how they
survive the loss of that host.

The order of a view is a list of places, told by records of the host that owned the view at the
time. The owner is the host that holds the view's token; it places every event that it gets. A host
that puts through the view first gets the token, with the part of the order that it lacks, and
repeats that part in its own records, because the giver may go before others have heard of it.
Pending puts of one host share a record. If several hosts put at once, the token stays where it is:
the owner permits the others to put, and places the events of all of them together.

A view is orphaned when its owner has been out of the group for some seconds. Once there is an event
to place, the user of the view with the lowest id collects what the other users know of the order,
and makes a clone: a view with a new id that starts with that order, except events that no host has.
The users in that group switch to the clone and are notified.

If the owner comes back, or a part of the group that has made another clone, a view has several
orders. All but one are merged into the one that is nearest to the first view: the owner of a clone
ends it and names the view with which its users go on. They are notified, and get the events that
they have not seen in the order of that view.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from tupelo.errors import (
    BadFrame,
    CannotSend,
    DiskFull,
    LeaseLost,
    PeerLost,
    TokenAway,
    TupeloError,
    UnknownHost,
)
from tupelo.federation.groups.membership import MembershipId
from tupelo.federation.replication.tokens import TokenState
from tupelo.models.event_heap.ordering import Ordering, Place, deliver
from tupelo.models.event_heap.records import (
    PLACES_MAX,
    Folded,
    Placed,
    ViewMade,
    encode_folded,
    encode_places,
    is_valid,
    read_folded,
    read_places,
)
from tupelo.space.tasks import FULL_DISK_SECONDS, timeout_at
from tupelo.space.waiting import Items
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.models.event_heap.readings import Ordered
    from tupelo.models.event_heap.replica import Replica, WrittenEvents


PACKED_MAX = 100_000
"""Most places that are handed over with a token; a host that lacks more waits for the records."""
PERMITTED_MAX = 64
"""Puts that a permit allows. Then the host asks the owner again, and gets the token if no other
host puts."""
RETURNS_MAX = 4
"""After this many returns of the token in a row, each after few puts elsewhere, its holder keeps it
and permits the others to put."""
RETURN_PLACES = 4
"""A holder that has added at most this many places had the token only briefly."""


class PendingPut:
    """The events of one put through a view, until they have their places."""

    def __init__(self, items: Items, ttl: float | None) -> None:
        self.items = items
        self.ttl = ttl
        self.written: WrittenEvents | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: BaseException | None = None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class TotalOrder(TokenState):
    """One total order, as far as it is known here; the payload of its token."""

    def __init__(self, replica: Replica, view: str) -> None:
        self.id = view
        self.ordering = Ordering()
        self.token = replica.tokens.token(f"view {view}")
        self.token.payload = self
        self.waiting: dict[PendingPut, None] = {}
        """Puts that have not begun."""
        self.begun: list[PendingPut] = []
        """Puts that are being written."""
        self.horizon: int | None = None
        """At least this many of the latest places are kept; None keeps the places of all living
        events."""
        self._parts: dict[int, dict[int, Folded]] = {}
        self.successor: TotalOrder | None = None
        """The clone that has replaced this view at this host."""
        self.wanted_elsewhere = False
        self.asked_host: object = None  # the host that was asked for a clone, and the membership
        self.orphaned = False
        self.timer: asyncio.TimerHandle | None = None
        self._replica = replica
        self._permit: object = None  # the owner that permits this host to put, and the membership
        self._permitted = 0  # puts left
        self._turns: dict[str, int] = {}  # host → its last turn to put, since the token is here
        self._turn = 0
        self._had = 0, 0  # epoch and length when the token was here last
        self._returns = 0  # returns in a row, after few puts elsewhere

    @property
    def unplaced(self) -> list[Place]:
        streams = self._replica.feed.exchange.streams.items()
        return self.ordering.unplaced((source, one.numbers) for source, one in streams)

    @property
    def marks(self) -> dict[str, int]:
        """For each source with places: up to which number its events are here, or gone."""
        return {
            source: min(stream.upto, last)
            for source, last in self.ordering.last.items()
            if (stream := self._replica.feed.stream(source)) is not None
        }

    def reaches(self, marks: dict[str, int]) -> bool:
        """Whether this host has at least these marks."""
        here, last = self.marks, self.ordering.last
        return all(
            here.get(source, 0) >= min(upto, last.get(source, 0)) for source, upto in marks.items()
        )

    @property
    def known(self) -> list[Place]:
        """The places whose events are here, or gone."""
        marks = self.marks
        return [place for _, place in self.ordering.listed() if place[1] <= marks.get(place[0], -1)]

    def deliver(self, after: int) -> Iterator[tuple[int, Entry]]:
        return iter(deliver(self.ordering, after, self._replica.look_up, self._replica.is_gone))

    def dropped(self) -> Iterator[Entry]:
        """The living events whose places were dropped because of the horizon."""
        if self.horizon is None:
            return
        listed = {place for _, place in self.ordering.listed()}
        for source, last in self.ordering.last.items():
            stream = self._replica.feed.stream(source)
            for number in () if stream is None else stream.numbers(0):
                if number <= last and (source, number) not in listed:
                    entry = self._replica.look_up((source, number))
                    if entry is not None:
                        yield entry

    async def place_all(self) -> None:
        """Place all events that have no place. The token must be held."""
        await self.ready()
        own = self._replica.feed.source
        while self.unplaced:
            places = self.unplaced
            if any(source != own for source, _ in places):
                await self._replica.keep(self._replica.feed)  # before their places
            await self.publish(len(self.ordering), places)
        if len(self.ordering.places) >= max(self._replica.folded_after, len(self.ordering.kept)):
            await self._fold()

    async def _fold(self) -> None:
        """Drop the places of events that are gone, and those beyond the horizon. Other hosts follow
        the record."""
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
        """Handle one part of a Folded record. Returns whether the order is folded further now.
        BadFrame if the record is invalid."""
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
        """Wait until the whole order is here. The state of the token is the length of the order at
        the hand-over; after a crash this host may lack places of earlier owners, but has stored its
        own."""
        length = int(self.token.state or b"0")
        await self._replica.until(lambda: len(self.ordering) >= length)

    async def publish(self, start: int, places: list[Place]) -> None:
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
        """Put events that have their places when this returns. TokenAway if the token did not come
        before the deadline on the clock of the host; then nothing was put."""
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
                self._replica.orders.stop_serving(self)
        if missed:
            raise TokenAway(self.token.name, self.token.holder)
        await putting.done  # A timeout does not interrupt a step.

    async def serve(self) -> None:
        """Write all pending puts, as many at a time as there are."""
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
        """Write these, and wait until the owner (or the owner of a clone) has placed them, and all
        events before them are here."""
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
        """This order, or the clone that has replaced it here."""
        order = self
        while order.successor is not None:
            order = order.successor
        return order

    async def _write(self, begun: list[PendingPut]) -> list[Entry]:
        """Write these events in the heap; returns the entries."""
        for one in begun:
            try:
                one.written = self._replica.write(one.items, one.ttl)
            except TupeloError as error:
                one.end(error)
        entries: list[Entry] = []
        for one in begun:
            if one.written is not None:
                try:
                    await self._replica.wait_copied(one.written)
                    entries += one.written.entries
                except CannotSend as error:
                    one.end(error)
        return entries

    async def _may_put(self) -> bool:
        """Whether the owner, another host, permits this host to put. It does if other hosts put as
        well. The events of one `put_all` stay together, so they need the token."""
        holder = self.token.holder
        if self.token.here or holder is None or self.token.is_away:
            return False
        if any(len(one.items) > 1 for one in self.waiting):
            return False
        permit = holder, self._replica.membership.id
        if self._permit != permit or not self._permitted:
            try:
                allowed = await self._replica.sender.ask(holder, ["put", self.id])
            except (PeerLost, UnknownHost):
                return False
            if allowed is not True or any(len(one.items) > 1 for one in self.waiting):
                return False
            self._permit, self._permitted = permit, PERMITTED_MAX
        self._permitted -= 1
        return True

    def permits_put(self, host: str) -> bool:
        """Whether this owner permits another host to put. Not if no other host puts: then it should
        take the token."""
        if not self.token.here:
            return False
        before = self._turns.get(host)
        if before is None:  # The first request: puts of the owner do not count.
            others = [turn for one, turn in self._turns.items() if one != self._replica.me]
        else:
            others = [turn for turn in self._turns.values() if turn > before]
        self._note_turn(host)
        is_shared = self.token.busy or self.waiting or self.begun
        return bool(others or is_shared or self._returns >= RETURNS_MAX)

    def _note_return(self) -> None:
        """Count the returns of the token after few puts elsewhere."""
        (epoch, length), now = self._had, (self.token.epoch, len(self.ordering))
        self._had = now
        if now[0] != epoch:
            is_brief = epoch and now[1] - length <= RETURN_PLACES * (now[0] - epoch)
            self._returns = self._returns + 1 if is_brief else 0

    def _note_turn(self, host: str) -> None:
        self._turn += 1
        self._turns[host] = self._turn

    def end(self, error: Exception | None = None, *, waiting: bool = False) -> None:
        """Complete the begun puts, or fail them; with `waiting`, also those that have not begun."""
        ended, self.begun = self.begun, []
        if waiting:
            ended += self.waiting
            self.waiting = {}
        for putting in ended:
            putting.end(error)

    async def finish(self, begun: list[PendingPut]) -> None:
        """The view has ended while these puts were written: the events stay in the heap."""
        try:
            for one in begun:
                assert one.written is not None
                try:
                    await self._replica.wait_copied(one.written)
                    one.end()
                except TupeloError as error:
                    one.end(error)
        finally:
            for one in begun:
                one.end(self._replica.closing)

    def give_up_waiting(self) -> None:
        """Fail the puts that have not begun, so that they are put through another view."""
        waiting, self.waiting = self.waiting, {}
        for putting in waiting:
            putting.end(TokenAway(self.token.name, self.token.holder))

    # Payload of the token

    def state(self) -> bytes:
        return str(len(self.ordering)).encode()

    def known_here(self) -> Any:
        return len(self.ordering)

    def can_pack(self, known_there: Any) -> bool:
        if type(known_there) is not int or known_there < 0:
            raise BadFrame("the length of an order must be an int of at least 0")
        return self.ordering.base <= known_there and len(self.ordering) - known_there <= PACKED_MAX

    def pack(self, known_there: Any) -> Any:
        self.can_pack(known_there)
        start = max(known_there, self.ordering.base)  # The places before are in records.
        rest = self.ordering.places[start - self.ordering.base :][:PACKED_MAX]
        placed = encode_places(self.id, start, rest)
        return [placed.start, placed.sources, placed.which, placed.numbers]

    async def unpack(self, packed: Any) -> None:
        self._turns.clear()
        start, places = self.read(packed)
        lacking = places[len(self.ordering) - start :] if start <= len(self.ordering) else []
        if lacking:
            await self.publish(len(self.ordering), lacking)
        await self._replica.keep(self._replica.system)  # The owner stores the whole order.

    def read_known(self, answer: Any) -> tuple[tuple[int, list[Place]], dict[str, int]]:
        """Decode what another host knows of the order and of its events."""
        match answer:
            case [packed, dict() as marks] if all(
                type(source) is str and type(upto) is int for source, upto in marks.items()
            ):
                return self.read(packed), marks
        raise BadFrame("invalid order")

    def read(self, packed: Any) -> tuple[int, list[Place]]:
        try:
            start, sources, which, numbers = packed
        except (TypeError, ValueError) as error:
            raise BadFrame(f"invalid order: {error}") from error
        return start, read_places(Placed(self.id, start, sources, which, numbers))


logger = logging.getLogger("tupelo")


@dataclass(frozen=True)
class ViewCloned:
    """A view was replaced: its owner is gone, or is back."""

    old: str
    new: str


class TotalOrders:
    """All total orders of a heap that this host knows, and their users here."""

    def __init__(self, replica: Replica) -> None:
        self.made: dict[str, ViewMade] = {}
        self.used: dict[str, list[Ordered]] = {}
        """The users here, by view."""
        self._replica = replica
        self.orders: dict[str, TotalOrder] = {}
        self._clones: dict[str, set[str]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._metadata_version = 0
        self._closed = False

    def order(self, view: str) -> TotalOrder:
        found = self.orders.get(view)
        if found is None:
            found = self.orders[view] = TotalOrder(self._replica, view)
        return found

    async def make(
        self,
        view: str,
        order: str,
        lease: float | None = None,
        parent: TotalOrder | None = None,
        horizon: int | None = None,
    ) -> None:
        """Make a view. All events here get places at once, first those of the `parent` in its
        order."""
        made = ViewMade(view, order, host=self._replica.me, lease=lease, horizon=horizon)
        if order == "total":
            total = self.order(view)
            total.horizon = horizon
            if parent is not None:
                places = parent.known
                before = self.made.get(parent.id, ViewMade())
                made.parent, made.length = parent.id, len(places)
                made.root, made.depth = before.root or parent.id, (before.depth or 0) + 1
                await total.publish(0, places)
            await self._replica.tokens.create(f"view {view}", payload=total)
            await total.place_if_owned()
        await self._replica.record(made)

    def use(self, order: TotalOrder, user: Ordered) -> None:
        order.token.abandoned = False
        order.successor = None
        self.used.setdefault(order.id, []).append(user)
        self._replica.uses.changed(order.id)
        self.look()

    def leave(self, order: TotalOrder, user: Ordered) -> None:
        users = self.used.get(order.id, [])
        if user in users:
            users.remove(user)
            if not users:
                del self.used[order.id]
                self._reset(order)
                self._replica.uses.changed(order.id)

    def forget(self, view: str, into: str | None) -> None:
        """A view has ended: notify its users here, or switch them to another view."""
        if into is not None and into != view and into not in self._replica.uses.ended:
            # Puts that have not begun go through `into`; begun ones get their places there.
            order = self.order(view)
            if view in self.used:
                self._switch(order, self.order(into))
                order.give_up_waiting()
        made = self.made.pop(view, None)
        if made is not None and made.parent in self._clones:
            self._clones[made.parent].discard(view)
        self._clones.pop(view, None)
        ended = self.orders.pop(view, None)
        users = self.used.pop(view, [])
        is_served = ended is not None and ended.begun and ended.successor is not None
        for what in ("place", "clone", "ask", *([] if is_served else ["put"])):
            if (task := self._tasks.pop(f"{what} {view}", None)) is not None:
                task.cancel()
        if ended is not None:
            self._reset(ended)
            if ended.successor is None:
                begun, ended.begun = [one for one in ended.begun if one.written], []
                if begun:
                    self._start(f"finish {view}", partial(ended.finish, begun))
                ended.end(LeaseLost("this view has ended"), waiting=True)
        for user in users:
            user.end()

    def close(self) -> None:
        self._closed = True
        for order in self.orders.values():
            self._reset(order)
            order.end(self._replica.closing, waiting=True)
        for task in self._tasks.values():
            task.cancel()

    def _reset(self, order: TotalOrder) -> None:
        if order.timer is not None:
            order.timer.cancel()
            order.timer = None
        order.orphaned = order.wanted_elsewhere = False
        order.asked_host = None

    def look_again(self) -> None:
        """Let all users here look at skipped events again."""
        for user in chain.from_iterable(self.used.values()):
            user.look_again()

    def metadata_changed(self) -> None:
        self._metadata_version += 1
        self._start(f"metadata {self._metadata_version}", self._replica.group.renew)

    def serve(self, order: TotalOrder) -> None:
        """Start to serve the pending puts of an order."""
        self._start(f"put {order.id}", order.serve)
        self.look()

    def stop_serving(self, order: TotalOrder) -> None:
        """Stop serving an order without pending puts, so that the token is not fetched for
        nothing."""
        serving = self._tasks.pop(f"put {order.id}", None)
        if serving is not None:
            serving.cancel()

    def _start(self, name: str, work: Callable[[], Any]) -> None:
        """Run `work` unless a task of this name is running; call `look` when it has ended, or later
        if the disk is full."""
        running = self._tasks.get(name)
        # A finished task counts as ended, even if its callback has not run.
        if self._closed or (running is not None and not running.done()):
            return
        task = self._tasks[name] = asyncio.ensure_future(work())

        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(name) is task:
                del self._tasks[name]
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                self.look()
            elif isinstance(error, DiskFull):
                asyncio.get_running_loop().call_later(FULL_DISK_SECONDS, self.look)
            elif not isinstance(error, TupeloError):
                logger.error("a view of %r failed", self._replica.name, exc_info=error)

        task.add_done_callback(ended)

    # Records

    def heard(self, record: ViewMade | Placed | Folded) -> None:
        if record.view in self._replica.uses.ended:
            return
        if isinstance(record, ViewMade):
            if is_valid(record):
                self.made[record.view or ""] = record
                self._replica.uses.made(record.view or "", record.lease)
                if record.order == "total":
                    self.order(record.view or "").horizon = record.horizon
                if record.parent is not None:
                    self._clones.setdefault(record.parent, set()).add(record.view or "")
            return
        try:
            if isinstance(record, Folded):
                order = self.order(record.view or "")
                if order.heard_folded(record):
                    self._replica.forget_places(order.id, order.ordering.base)
                return
            places = read_places(record)
        except BadFrame as error:
            logger.info("a record of %r was passed over: %s", self._replica.name, error)
            return
        self.order(record.view or "").ordering.receive(record.start or 0, places)

    # Supervision

    def look(self) -> None:
        if self._closed:
            return
        for view in sorted(self._replica.uses.used):  # Unused views get their places later.
            order = self.orders.get(view)
            if order and order.token.here and not order.token.busy and order.unplaced:
                self._start(f"place {order.id}", order.place_if_owned)
            if order and order.token.here and (home := self._merge_target(order)) is not None:
                self._start(f"merge {order.id}", partial(self._merge_clone, order, home))
        for view in list(self.used):
            self._check_owner(self.order(view))

    def _check_owner(self, order: TotalOrder) -> None:
        if not order.token.is_away:
            self._reset(order)
            return
        clone = self._clone_of(order)
        if clone is not None:
            self._switch(order, clone)
        elif order.orphaned:
            first = self._users(order)[0]
            if first == self._replica.me:
                if order.waiting or order.wanted_elsewhere or order.unplaced:
                    self._start(f"clone {order.id}", lambda: self._clone(order))
            elif order.waiting and order.asked_host != (first, self._replica.membership.id):
                order.asked_host = first, self._replica.membership.id
                ask = self._replica.sender.ask
                self._start(f"ask {order.id}", partial(ask, first, ["clone", order.id]))
        elif order.timer is None:
            loop = asyncio.get_running_loop()
            order.timer = loop.call_later(self._replica.patience, self._orphan, order)

    def _orphan(self, order: TotalOrder) -> None:
        order.timer = None
        order.orphaned = True
        self.look()

    def _clone_of(self, order: TotalOrder) -> TotalOrder | None:
        """A clone whose maker is in the group, if there is one."""
        members = self._replica.membership.members
        for view in sorted(self._clones.get(order.id, ())):
            made = self.made[view]
            if made.host in members and len(self.order(view).ordering) >= (made.length or 0):
                return self.order(view)
        return None

    def _merge_target(self, order: TotalOrder) -> str | None:
        """The view into which a clone is merged: the nearest to the first view that is in use and
        owned within reach."""
        made = self.made.get(order.id)
        if made is None or made.root is None:
            return None
        best = made.depth or 0, order.id
        for view in self._replica.uses.used:
            other = self.made.get(view)
            if other is not None and made.root in (other.root, view):
                token = self.order(view).token
                is_owned = token.here or (token.holder is not None and not token.is_away)
                if is_owned and other.order == "total":
                    best = min(best, (other.depth or 0, view))
        return None if best[1] == order.id else best[1]

    async def _merge_clone(self, order: TotalOrder, home: str) -> None:
        """Merge a clone into `home`. The token is held, so that no put is under way."""
        with suppress(TokenAway):
            async with order.token.held(ask=False):
                if self._merge_target(order) == home:
                    await self._replica.uses.end(order.id, home)

    def _users(self, order: TotalOrder) -> list[str]:
        part = f"event heap {self._replica.name}"
        members = self._replica.membership.members.values()
        others = [one.host for one in members if order.id in (one.metadata_of.get(part) or [])]
        return sorted({self._replica.me, *others})

    def asked_for_clone(self, view: str) -> None:
        """Another user of the view wants to put: a clone is needed."""
        if view in self.used:
            self.order(view).wanted_elsewhere = True
            self.look()

    async def _clone(self, order: TotalOrder) -> None:
        """Collect what the hosts within reach know of the order, wait for the events that they
        have, and make a clone. Events that none of them has are not placed in the clone, until they
        turn up; no user here has read beyond them."""
        replica, membership = self._replica, self._replica.membership.id
        marks: dict[str, int] = {}
        for host in replica.others:
            more = True
            while more and replica.membership.id == membership:
                before = len(order.ordering)
                answer = await replica.sender.ask(host, ["order", order.id, before])
                if answer is None:
                    break
                (start, places), there = order.read_known(answer)
                order.ordering.receive(start, places)
                for source, upto in there.items():
                    marks[source] = max(marks.get(source, 0), upto)
                if start > len(order.ordering):  # The other host has folded it.
                    await replica.until(partial(self._has_heard, order, start, membership))
                more = len(order.ordering) > before
        await replica.until(lambda: order.reaches(marks) or replica.membership.id != membership)
        if replica.membership.id != membership:
            return  # Hosts have come or gone: `look` starts again.
        if order.orphaned and self._clone_of(order) is None:
            lease, horizon = replica.uses.leases.get(order.id), order.horizon
            await self.make(replica.core.new_id(), "total", lease, order, horizon)

    def _has_heard(self, order: TotalOrder, length: int, membership: MembershipId) -> bool:
        """Whether this much of the order is known here, or the group has changed."""
        return len(order.ordering) >= length or self._replica.membership.id != membership

    def _switch(self, old: TotalOrder, new: TotalOrder) -> None:
        """Switch the users here from the old view to the new one."""
        self._reset(old)
        users = self.used.pop(old.id)
        old.successor, new.successor = new, None
        old.token.abandoned, new.token.abandoned = True, False
        self._replica.tokens.broadcast.notify()
        self.used.setdefault(new.id, []).extend(users)
        for user in users:
            user.switch(new, ViewCloned(old.id, new.id))
        self._replica.uses.changed(old.id)
        self._replica.uses.changed(new.id)
