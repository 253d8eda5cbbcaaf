"""Calling the services of a host; `federation.hosts.services` is the other end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from tupelo.errors import (
    BadArgument,
    HostClosed,
    SpaceClosed,
    TupeloError,
    UnknownService,
)
from tupelo.federation.client.arguments import built, listed
from tupelo.federation.client.async_channel import AsyncChannel
from tupelo.federation.client.blocking_channel import BlockingChannel
from tupelo.federation.client.connect import config_of, network_of
from tupelo.federation.client.space import HostConnection, RemoteSpace
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_fields, read_encoded_entry
from tupelo.federation.names import PRESENCE
from tupelo.space.dual_api import run_sync
from tupelo.space.port import value_of
from tupelo.values.codec import entry_to_wire
from tupelo.values.template_encoding import template_from_wire, template_to_wire


def connect_to_host(url: str, *, about: str = PRESENCE, **options: Any) -> HostConnection:
    """Connect to the host at a URL such as tupelo://host:7700, for its services. The `options` are
    those of `tupelo.connect`. A space in the URL is ignored; a password is that of the space
    `about`, such as the hidden space of a service."""
    config, password = config_of(url, options)
    channel = BlockingChannel(config, random.Random())
    return run_sync(partial(HostConnection.opened, channel, about, password))


async def connect_to_host_async(
    url: str, *, about: str = PRESENCE, on_behalf: str = "", **options: Any
) -> HostConnection:
    """`connect_to_host`, for tasks of the running loop. A program with the identity of the host
    itself may act `on_behalf` of another identity: then it has the rights of that one."""
    # In a thread, since it may read files.
    config, password = await asyncio.to_thread(config_of, url, options)
    config = msgspec.structs.replace(config, on_behalf=on_behalf)
    channel = await AsyncChannel.made(config, random.Random(), network_of(config))
    return await HostConnection.opened(channel, about, password)


async def invoke(
    connection: HostConnection,
    service: str,
    method: str,
    *args: Any,
    about: str = "",
    wait: float | None = 0,
    again: bool = False,
    handed_over: bool = False,
    on_link: int | None = None,
    build: Callable[[Any], Any] = lambda answer: answer,
) -> Any:
    """Call a method of a service at the host of this connection or space, and return its answer.

    `about` is the space whose access rules the service checks, and `wait` how long the service may
    take to answer. `again` marks a call that may be repeated after a lost link. An answer that is
    `handed_over` is confirmed after `build` has turned it into the result; if that fails or the
    caller is cancelled, the host takes it back. With `on_link` the call is only sent over the link
    with that serial number: PeerLost if it was lost. UnknownService if the host has none of this
    name.
    """
    message = wire.Invoke(0, service, method, about, list(args), wait, again)
    try:
        if not handed_over:
            return build(await connection.ask(message, on_link))
        return await connection.receive(message, build, on_link)
    except UnknownService as error:
        raise UnknownService(service, connection.peer) from error


ANYTHING = "anything"
"""The rule of a method for which any permission in the space is enough."""


class ServiceCodec(NamedTuple):
    """How an argument or answer is encoded and decoded. `here` converts an answer for a caller in
    the process of the host."""

    encode: Callable[[Any], Any]
    read: Callable[[Any], Any]
    here: Callable[[Any], Any]


def plain(kind: Any) -> ServiceCodec:
    """The codec for values of a type that msgspec can convert."""
    return ServiceCodec(_to_builtins, partial(msgspec.convert, type=kind), _as_it_is)


_to_builtins = partial(msgspec.to_builtins, builtin_types=(bytes,))


def _as_it_is(value: Any) -> Any:
    return value


ENTRIES = ServiceCodec(
    lambda entries: [encode_fields(entry) for entry in entries],
    lambda found: [built(one) for one in listed(found)],
    lambda entries: [value_of(entry) for entry in entries],
)
"""For an answer of entries; the caller gets their values."""
ITEM = ServiceCodec(lambda item: entry_to_wire(*item), read_encoded_entry, _as_it_is)
"""For an entry to be written: its shape and fields."""
TEMPLATE = ServiceCodec(template_to_wire, template_from_wire, _as_it_is)


class ServiceMethod(NamedTuple):
    """A method of a served model API. `rule` is the permission that it needs in the space: "read",
    "write", "take", "subscribe", "administer", or ANYTHING. A method that `waits` gets `wait=`; the
    answer of a method that `hands_over` returns to the host if it does not arrive. A method that
    `reserves` gets `holder=`, the call of the client, for the deliveries that it begins."""

    rule: str
    arguments: tuple[ServiceCodec, ...] = ()
    answer: ServiceCodec = plain(Any)
    waits: bool = False
    hands_over: bool = False
    reserves: bool = False


class ServedDoor:
    """The API of a model, run by the host of this space as a `DoorService`. Its state at the host
    ends with the link: calls then raise PeerLost, and a new door must be opened. `LocalDoor` is its
    counterpart at a host of this program; `title` is its name in error messages."""

    def __init__(
        self, space: RemoteSpace, service: str, title: str, methods: Mapping[str, ServiceMethod]
    ) -> None:
        self.space = space
        self.is_async = space.is_async
        self.where = f"of a client of {space.peer}"
        self.title = title
        self.closed = False
        self._service = service
        self._methods = methods
        self._id = uuid4().hex
        self._serial: int | None = None

    async def open(self) -> None:
        """Create the state at the host; the first call does so too."""
        message = wire.Invoke(0, self._service, "open", self.space.name, [self._id], 0, True)
        try:
            self._serial = (await self.space.call(message)).serial
        except UnknownService as error:
            raise UnknownService(self._service, self.space.peer) from error

    async def call(self, name: str, *args: Any, wait: float | None = 0) -> Any:
        """Call a method that needs the state at the host. HostClosed if the door is closed;
        SpaceClosed if it is closed meanwhile: then a handed-over answer returns to the host."""
        self.require_open()
        method = self._methods[name]

        def received(answer: Any) -> Any:
            self._require_still_open()
            return method.answer.read(answer)

        if self._serial is None:
            await self.open()
        try:
            return await self._invoke(
                *(name, args, received),
                wait=wait,
                handed_over=method.hands_over,
                on_link=self._serial,
            )
        except TupeloError:
            self._require_still_open()
            raise

    async def tell(self, name: str, *args: Any) -> Any:
        """Call a method that needs no state at the host, over any link."""
        self.require_open()
        return await self._invoke(name, args, self._methods[name].answer.read)

    async def _invoke(
        self, name: str, args: tuple[Any, ...], build: Callable[[Any], Any], **options: Any
    ) -> Any:
        codecs = self._methods[name].arguments
        encoded = [codec.encode(arg) for codec, arg in zip(codecs, args, strict=True)]
        return await invoke(
            *(self.space, self._service, name, self._id, *encoded),
            about=self.space.name,
            build=build,
            **options,
        )

    def require_open(self) -> None:
        """Raise HostClosed if the door was closed."""
        if self.closed:
            raise HostClosed(f"this {self.title} was closed")

    def _require_still_open(self) -> None:
        if self.closed:
            raise SpaceClosed(f"the space {self.space.name!r} was closed here")

    def run_apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this in a thread, or a task, of its own."""
        self.space.channel.start(work, "tupelo-notices")

    async def close(self) -> None:
        """Drop the state at the host and close the connection; waiting calls get SpaceClosed."""
        if self.closed:
            return
        self.closed = True
        if self._serial is not None:
            message = wire.Invoke(0, self._service, "close", self.space.name, [self._id])
            with suppress(TupeloError):
                await self.space.ask(message, self._serial)
        await self.space.leave(None)


def check_client(space: RemoteSpace, name: object, **decided: tuple[object, object]) -> None:
    """Raise BadArgument if a client opens a door with another name than that of its space, or with
    an option that only the host may set. `decided` has the given and the default value of each."""
    if name is not None and name != space.name:
        raise BadArgument("name", f"left out, or {space.name!r}: the connection names it", name)
    for argument, (given, default) in decided.items():
        if given is not default and given != default:
            raise BadArgument(argument, "left out by a client: the host decides it", given)
