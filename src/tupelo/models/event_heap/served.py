"""The part of an EventHeap at its host, for the program of the host or for a client."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from tupelo.errors import BadArgument, BadInput, LeaseLost, TokenAway
from tupelo.federation.client.arguments import listed
from tupelo.federation.client.services import ENTRIES, ITEM, ServiceCodec, ServiceMethod, plain
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.services import Caller, DoorService, HandOver
from tupelo.federation.links import wire
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.event_heap import factories as requests
from tupelo.models.event_heap import readings
from tupelo.models.event_heap.events import BothMatch, Event, event_template
from tupelo.models.event_heap.factories import PATIENCE_SECONDS, check_heap
from tupelo.models.event_heap.orders import ViewCloned
from tupelo.models.event_heap.readings import EventReading, Ordered, Unordered
from tupelo.models.event_heap.replica import heaps_of
from tupelo.models.event_heap.seen import encode_seen
from tupelo.space.query import deadline_of
from tupelo.space.tasks import timeout_at
from tupelo.space.waiting import Items
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY
from tupelo.values.template import Named
from tupelo.values.template_encoding import template_from_wire, template_to_wire

OWN = ""
"""The id of the heap's own reading; sessions, queries and views have others."""


class HostedHeap:
    """One EventHeap at its host, on the loop of the host. Its readings have ids. Unless `known`,
    events of classes that this program does not know are returned, for a client; otherwise they
    raise UnknownType."""

    def __init__(
        self, core: HostCore, name: str, patience: float = PATIENCE_SECONDS, *, known: bool = True
    ) -> None:
        self._core = core
        self._known = known
        self.replica = heaps_of(core).replica(name, patience)
        self.readings: dict[str, EventReading] = {
            OWN: readings.HeapCopies(self.replica, known=known)
        }

    def close(self) -> None:
        for reading in self.readings.values():
            reading.close()
        self.readings.clear()

    async def put(self, events: Items, ttl: float | None) -> None:
        await self.replica.put(events, check_lease(ttl, "ttl"))

    async def next(self, id: str, template: object, *, wait: float | None) -> HandOver:
        reading = self._reading(id)
        found = await reading.next(event_template(template), wait)
        return _handed([] if found is None else [found], reading.unsee)

    async def rest(self, id: str, template: object) -> HandOver:
        reading = self._reading(id)
        return _handed(await reading.rest(event_template(template)), reading.unsee)

    async def find(self, template: object, limit: int | None) -> list[Entry]:
        return readings.without_duplicates(
            self.replica.find(event_template(template), limit, known=self._known)
        )

    async def remove(
        self, template: object, *, wait: float | None, holder: Holder | None = None
    ) -> HandOver:
        removing = self.replica.removing
        removed = await removing.remove(event_template(template), wait, holder, known=self._known)
        return removed or _handed([], list)

    async def adopt(self, host: str) -> None:
        await self.replica.adopt(host)

    async def hosts(self) -> list[str]:
        return self.replica.feed.partners

    async def destroy(self) -> None:
        self.replica.require_open()
        await self._ask_factory(requests.DestroyRequest(heap=self.replica.name))

    async def _ask_factory(self, request: requests.FactoryRequest) -> str:
        return await heaps_of(self._core).factory.ask(request)

    # What is read from

    def _reading(self, id: str) -> EventReading:
        self.replica.require_open()
        if id not in self.readings:
            raise LeaseLost("this session was closed")
        return self.readings[id]

    def _opened(self, reading: EventReading) -> str:
        id = self._core.new_id()
        self.readings[id] = reading
        return id

    async def copies(self) -> str:
        return self._opened(readings.HeapCopies(self.replica, known=self._known))

    async def news(self, template: object) -> str:
        return self._opened(
            readings.future_events(self.replica, event_template(template), known=self._known)
        )

    async def shared(self, session: str, *, wait: float | None) -> str:
        await self._until_known("session", session, wait)
        return self._opened(readings.Shared(self.replica, session, known=self._known))

    async def clone(self, id: str) -> str:
        seen = await self._reading(id).record()
        return self._opened(readings.HeapCopies(self.replica, seen, known=self._known))

    async def share(self, id: str, lease: float | None) -> str:
        """Share a new session that has seen what this reading has seen; returns its id."""
        self.replica.require_open()
        record = encode_seen(await self._reading(id).record())
        return await self._ask_factory(
            requests.SessionRequest(heap=self.replica.name, record=record, lease=lease)
        )

    async def resume(self, id: str) -> None:
        reading = self._reading(id)
        if not isinstance(reading, readings.Shared):
            raise BadInput("only a shared session can be resumed: one that was opened by its id")
        await reading.resume()

    async def end(self, id: str) -> None:
        reading = self.readings.pop(id, None)
        if reading is not None:
            reading.close()

    async def end_for_all(self, id: str) -> None:
        """End the view or shared session of this reading for everyone; close any other reading."""
        reading = self._reading(id)
        if isinstance(reading, Ordered):
            await self.replica.uses.end(reading.order.id)
        elif isinstance(reading, (readings.Shared, Unordered)):
            await self.replica.uses.end(reading.of)
        await self.end(id)

    async def _until_known(
        self, what: Literal["session", "view"], id: str, wait: float | None
    ) -> None:
        """Wait until a shared session or view is known here. BadArgument if it is not in time."""
        replica = self.replica
        replica.require_open()
        known: Container[str] = replica.sessions if what == "session" else replica.orders.made
        clock = replica.core.clock
        try:
            async with timeout_at(clock, deadline_of(clock, wait)):
                await replica.until(lambda: id in known)
        except TimeoutError:
            raise BadArgument("id", f"that of a {what} that is known here", id) from None

    # Views, which clients do not have

    async def make_view(self, order: str, lease: float | None, horizon: int | None) -> str:
        self.replica.require_open()
        name = self.replica.name
        request = requests.ViewRequest(heap=name, order=order, lease=lease, horizon=horizon)
        return await self._ask_factory(request)

    async def order_of_view(self, view: str, wait: float | None) -> str:
        await self._until_known("view", view, wait)
        return self.replica.orders.made[view].order or "none"

    async def open_view(
        self,
        view: str,
        order: str,
        like: str | None,
        on_clone: Callable[[ViewCloned], object] | None,
    ) -> str:
        """Open a reading of a view, which has seen what the reading `like` has seen."""
        seen = None if like is None else await self._reading(like).record()
        if order != "total":
            return self._opened(Unordered(self.replica, view, seen))
        total = self.replica.orders.order(view)
        return self._opened(Ordered(self.replica, total, seen, on_clone))

    async def put_through(
        self, id: str, items: Items, ttl: float | None, wait: float | None
    ) -> None:
        """Put events that have their places in this view when this returns."""
        reading = self._reading(id)
        assert isinstance(reading, (Ordered, Unordered))
        reading.require_open()
        if isinstance(reading, Unordered):
            await self.replica.put(items, ttl)
            return
        deadline = deadline_of(self._core.clock, wait)
        while True:
            order = reading.order
            try:
                await order.put(items, ttl, deadline)
                return
            except TokenAway:
                reading.require_open()
                if reading.order is order:
                    raise

    async def replay(self, id: str, template: object) -> list[Entry]:
        reading = self._reading(id)
        if isinstance(reading, Ordered):
            return reading.replay(event_template(template))
        return await self.find(template, None)


def _handed(entries: list[Entry], undo: Callable[[list[Entry]], object]) -> HandOver:
    return HandOver(entries, None, partial(undo, entries))


# For clients


def encode_template(template: object) -> Any:
    """Encode a template for events. BadTemplate if it is invalid."""
    if template is ANY:
        return None
    if isinstance(template, BothMatch):
        return ["both", encode_template(template.one), encode_template(template.other)]
    if type(template) is Event and isinstance(template.fields, dict):
        kind = ANY if template.type is None else template.type
        fields = template_to_wire(Named(**template.fields)) if template.fields else None
        return ["event", template_to_wire(Named(type=kind)), fields]
    event_template(template)  # raises BadTemplate
    return ["entry", template_to_wire(template)]


def decode_template(encoded: Any) -> Any:
    """Decode a template for events, as the argument of `event_template`."""
    match encoded:
        case None:
            return ANY
        case ["both", one, other]:
            return BothMatch(decode_template(one), decode_template(other))
        case ["event", kind, fields]:
            named = template_from_wire(fields).raw.fields if fields is not None else {}
            event = Event(template_from_wire(kind).raw.fields["type"])
            event.fields = dict(named)
            return event
        case ["entry", template]:
            return template_from_wire(template)
    raise BadArgument("template", "one for events", encoded)


_ID = plain(str)
_ASKED = ServiceCodec(encode_template, decode_template, decode_template)
_EVENTS = ServiceCodec(
    lambda items: [ITEM.encode(item) for item in items],
    lambda encoded: [ITEM.read(one) for one in listed(encoded)],
    list,
)

METHODS: Mapping[str, ServiceMethod] = {
    "put": ServiceMethod("write", (_EVENTS, plain(float | None))),
    "next": ServiceMethod("read", (_ID, _ASKED), ENTRIES, waits=True, hands_over=True),
    "rest": ServiceMethod("read", (_ID, _ASKED), ENTRIES, hands_over=True),
    "find": ServiceMethod("read", (_ASKED, plain(int | None)), ENTRIES),
    "remove": ServiceMethod("take", (_ASKED,), ENTRIES, waits=True, hands_over=True, reserves=True),
    "adopt": ServiceMethod("administer", (plain(str),)),
    "hosts": ServiceMethod("read"),
    "copies": ServiceMethod("read"),
    "news": ServiceMethod("read", (_ASKED,)),
    "shared": ServiceMethod("read", (_ID,), waits=True),
    "clone": ServiceMethod("read", (_ID,)),
    "share": ServiceMethod("read", (_ID, plain(float | None))),
    "resume": ServiceMethod("read", (_ID,)),
    "end": ServiceMethod("read", (_ID,)),
    "end_for_all": ServiceMethod("take", (_ID,)),
    "create": ServiceMethod("write"),
    "destroy": ServiceMethod("administer"),
}


class HeapService(DoorService[HostedHeap]):
    """Serves event heaps to the clients of a host."""

    methods: ClassVar[Mapping[str, ServiceMethod]] = METHODS

    def open(self, hosted: HostedSpace) -> HostedHeap:
        return HostedHeap(self.core, check_heap(hosted.name, PATIENCE_SECONDS), known=False)

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        if message.method == "create":  # There may be none yet, or one that was destroyed.
            caller.hosted(message.space, METHODS["create"].rule)
            request = requests.HeapRequest(heap=message.space, patience=PATIENCE_SECONDS)
            return await heaps_of(self.core).factory.ask(request)
        return await super().invoke(caller, message)
