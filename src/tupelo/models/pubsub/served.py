"""The host's side of PubSub: the broker of one name, and the requests of one PubSub, of a program
at the host or of a client. All of it runs on the loop of the host."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, ClassVar

import msgspec

from tupelo.errors import BadArgument, HostClosed
from tupelo.federation.brokers.broker import Broker, Collected, Reply, StandingRequest
from tupelo.federation.brokers.messages import Duration, Extent
from tupelo.federation.client.services import ANYTHING, ServiceMethod, plain
from tupelo.federation.groups.group import group_of
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.peer import SilentExtension
from tupelo.federation.hosts.services import DoorService, HandOver
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.query import deadline_of
from tupelo.space.tasks import timeout_at
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Shape, freeze, thaw
from tupelo.values.template import Template, as_template
from tupelo.values.template_encoding import (
    read_wire_extension,
    template_from_wire,
    template_to_wire,
)


class CheckedApplication:
    """The access rule of brokers: a neighbour gets the state here if it may read and subscribe in
    the space with the broker's name, as clients must."""

    _core: HostCore
    _name: str

    def rule(self, core: HostCore, name: str) -> None:
        """Set the host and the name of the broker."""
        self._core, self._name = core, name

    def allows(self, neighbour: str, pattern: Any) -> bool:
        return all(
            self._core.may(operation, self._name, neighbour, neighbour)
            for operation in ("read", "subscribe")
        )


class Offers(CheckedApplication):
    """The default application: the entries that are offered at this host."""

    asks_again = False

    def __init__(self) -> None:
        self._offered: list[tuple[Shape, tuple[Any, ...], bytes]] = []

    def add(self, encoded: bytes) -> None:
        self._offered.append((*decode_entry(encoded), encoded))

    def remove(self, template: object) -> list[Any]:
        asked = as_template(template)
        gone = [one for one in self._offered if asked.admits(one[0], one[1])]
        self._offered = [one for one in self._offered if not asked.admits(one[0], one[1])]
        return [thaw(shape, fields) for shape, fields, _ in gone]

    # See `Application`

    def state(self, pattern: bytes) -> list[bytes]:
        template = _read_template(pattern)
        return [
            encoded for shape, fields, encoded in self._offered if template.admits(shape, fields)
        ]

    def matches(self, pattern: bytes, update: bytes) -> bool:
        return _read_template(pattern).admits(*decode_entry(update))

    def key(self, pattern: bytes) -> str:
        _read_template(pattern)
        return pattern.hex()

    # Encoding of users' values

    def encode_pattern(self, template: object) -> bytes:
        return msgspec.msgpack.encode(template_to_wire(template))

    def encode_update(self, entry: object) -> bytes:
        return encode_entry(*freeze(entry))

    def read_item(self, item: bytes) -> Any:
        return thaw(*decode_entry(item))


class Functions(CheckedApplication):
    """The application that a user gives as functions; values are not encoded."""

    asks_again = True

    def __init__(
        self,
        state: Callable[[Any], list[Any]],
        matches: Callable[[Any, Any], bool],
        key: Callable[[Any], str],
    ) -> None:
        self.state = state
        self.matches = matches
        self.key = key

    def encode_pattern(self, pattern: Any) -> Any:
        return pattern

    def encode_update(self, update: Any) -> Any:
        return update

    def read_item(self, item: Any) -> Any:
        return item


class HostBroker(SilentExtension):
    """The broker of one name at a host, for the model `kind`."""

    def __init__(
        self,
        core: HostCore,
        name: str,
        application: Offers | Functions,
        prune: bool,
        kind: str = "pubsub",
    ) -> None:
        application.rule(core, name)
        self.application = application
        self.prune = prune
        self.for_clients = False
        """Whether it was made for clients of the host, and not by a program there."""
        self._core = core
        self._channel = channel_of(name, kind)
        self._closed = False
        core.extensions[self._channel] = self
        self.group = group_of(core)
        self._broker = Broker(
            self.group, self._channel, application, prune=prune, asks_again=application.asks_again
        )
        self._joining = asyncio.ensure_future(self.group.renew())
        self._joining.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def hosts(self) -> frozenset[str]:
        return self._broker.hosts

    async def taking_part(self) -> Broker:
        """Wait until the other hosts know the broker, and return it."""
        if self._closed:
            raise HostClosed("this broker was closed")
        await asyncio.shield(self._joining)
        return self._broker

    async def close(self) -> None:
        """Cancel all requests and take part no more."""
        if not self._closed:
            await self.stop()
            del self._core.extensions[self._channel]
            await self.group.renew()

    async def stop(self) -> None:
        self._closed = True
        self._broker.close()


def broker_at(core: HostCore, name: str) -> HostBroker | None:
    """The broker of this name at the host, if there is one."""
    found = core.extensions.get(channel_of(name))
    return found if isinstance(found, HostBroker) else None


def broker_for_program(
    core: HostCore, name: str, application: Offers | Functions, prune: bool
) -> HostBroker:
    """A new broker of a program; or that of clients that came first, which it takes over."""
    before = broker_at(core, name)
    if before is None and channel_of(name) not in core.extensions:
        return HostBroker(core, name, application, prune)
    if before is None or not before.for_clients:
        raise BadArgument("name", "one that is not in use at this host", name)
    if not isinstance(application, Offers):
        raise BadArgument("state", "left out: clients use this broker with templates")
    if prune != before.prune:
        raise BadArgument("prune", f"{before.prune}, as it is at this host by now", prune)
    before.for_clients = False
    return before


def broker_for_clients(core: HostCore, name: str) -> HostBroker:
    """The broker of a program at this host, or a new one for clients."""
    found = broker_at(core, name)
    if found is None:
        found = HostBroker(core, name, Offers(), True)
        found.for_clients = True
    if not isinstance(found.application, Offers):
        raise BadArgument("name", "that of a broker whose patterns are templates", name)
    return found


def channel_of(name: str, kind: str = "pubsub") -> str:
    """The key of a broker among the extensions of its host, and its name in the group."""
    return f"{kind} {name}"


class DeliveredNotice(msgspec.Struct, array_like=True):
    """The next reply, if there is one, and the state of the request."""

    reply: Reply | None = None
    is_over: bool = False
    missed: int = 0
    lost: frozenset[str] = frozenset()


class NoticeBacklog:
    """The waiting replies to a subscription or a standing collect."""

    def __init__(self, core: HostCore, backlog_max: int) -> None:
        self.missed = 0
        self.lost: frozenset[str] = frozenset()
        self._clock = core.clock
        self._replies: deque[Reply] = deque()
        self._max = backlog_max
        self._news = asyncio.Event()
        self._standing: StandingRequest

    @property
    def is_over(self) -> bool:
        return self._standing.is_over

    @property
    def is_empty(self) -> bool:
        return not self._replies

    def attach(self, standing: StandingRequest) -> None:
        self._standing = standing
        standing.when_over = self._wake

    def cancel(self) -> None:
        self._standing.cancel()

    def put(self, reply: Reply) -> None:
        if len(self._replies) >= self._max:
            self._replies.popleft()
            self.missed += 1
        self._replies.append(reply)
        self._wake()

    def put_back(self, notice: DeliveredNotice) -> None:
        """Return a reply that did not arrive."""
        if notice.reply is not None:
            self._replies.appendleft(notice.reply)
            self._wake()

    def add_lost(self, hosts: frozenset[str]) -> None:
        self.lost |= hosts

    def _wake(self) -> None:
        self._news.set()
        self._news.clear()

    async def next(self, deadline: float | None) -> DeliveredNotice:
        with suppress(TimeoutError):
            async with timeout_at(self._clock, deadline):
                while not self._replies and not self.is_over:
                    await self._news.wait()
        reply = self._replies.popleft() if self._replies else None
        return DeliveredNotice(reply, self.is_over, self.missed, self.lost)


class HostedRequests:
    """The requests of one PubSub at its host, by id. `find()` returns its broker."""

    def __init__(self, core: HostCore, find: Callable[[], HostBroker]) -> None:
        self.broker = find
        self.backlogs: dict[str, NoticeBacklog] = {}
        self._core = core
        find()

    async def publish(self, update: Any) -> None:
        await (await self.broker().taking_part()).publish(update)

    async def offer(self, offers: Offers, encoded: bytes) -> None:
        broker = await self.broker().taking_part()
        async with self.broker().group.operating():
            offers.add(encoded)
            await broker.publish(encoded)

    async def withdraw(self, offers: Offers, template: object) -> list[Any]:
        return offers.remove(template)

    async def subscribe(self, pattern: Any, backlog_max: int) -> str:
        broker = await self.broker().taking_part()
        backlog = NoticeBacklog(self._core, backlog_max)

        def deliver(host: str, update: Any) -> None:
            backlog.put(Reply(host, [update], True))

        return self._added(backlog, broker.subscribe(pattern, deliver))

    async def collect(
        self, pattern: Any, duration: Duration, extent: Extent, backlog_max: int
    ) -> str:
        broker = await self.broker().taking_part()
        backlog = NoticeBacklog(self._core, backlog_max)
        standing = broker.collect(pattern, duration, extent, backlog.put, backlog.add_lost)
        return self._added(backlog, standing)

    def _added(self, backlog: NoticeBacklog, standing: StandingRequest) -> str:
        backlog.attach(standing)
        id = self._core.new_id()
        self.backlogs[id] = backlog
        return id

    async def probe(self, pattern: Any, extent: Extent) -> Collected:
        return await (await self.broker().taking_part()).probe(pattern, extent)

    async def get(self, id: str, *, wait: float | None) -> HandOver:
        """The next reply of a request. A request that is over is forgotten when its last reply has
        arrived."""
        backlog = self.backlogs.get(id)
        if backlog is None:
            return HandOver(DeliveredNotice(is_over=True), None, lambda: None)
        notice = await backlog.next(deadline_of(self._core.clock, wait))

        def arrived() -> None:
            if backlog.is_over and backlog.is_empty:
                self.backlogs.pop(id, None)

        return HandOver(notice, arrived, partial(backlog.put_back, notice))

    async def cancel(self, id: str) -> None:
        backlog = self.backlogs.get(id)
        if backlog is not None:
            backlog.cancel()
            if backlog.is_empty:
                del self.backlogs[id]

    async def hosts(self) -> frozenset[str]:
        return self.broker().hosts

    def close(self) -> None:
        """End all requests. They are still found, because a call may be about to return one."""
        for backlog in self.backlogs.values():
            backlog.cancel()


_BYTES, _ID, _COUNT, _EXTENT = plain(bytes), plain(str), plain(int), plain(Extent)

METHODS: Mapping[str, ServiceMethod] = {
    "publish": ServiceMethod("write", (_BYTES,)),
    "subscribe": ServiceMethod("subscribe", (_BYTES, _COUNT)),
    "collect": ServiceMethod("read", (_BYTES, plain(Duration), _EXTENT, _COUNT)),
    "probe": ServiceMethod("read", (_BYTES, _EXTENT), plain(Collected)),
    "get": ServiceMethod(ANYTHING, (_ID,), plain(DeliveredNotice), waits=True, hands_over=True),
    "cancel": ServiceMethod(ANYTHING, (_ID,)),
    "hosts": ServiceMethod(ANYTHING, (), plain(frozenset[str])),
}


class PubSubService(DoorService[HostedRequests]):
    """The service by which the clients of a host use its brokers."""

    methods: ClassVar[Mapping[str, ServiceMethod]] = METHODS

    def open(self, hosted: HostedSpace) -> HostedRequests:
        return HostedRequests(self.core, partial(broker_for_clients, self.core, hosted.name))


_read_encoded = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode


@lru_cache(maxsize=1_024)
def _read_template(encoded: bytes) -> Template:
    return as_template(template_from_wire(_read_encoded(encoded)))


def own_key(pattern: Any) -> str:
    return msgspec.msgpack.encode(pattern).hex()
