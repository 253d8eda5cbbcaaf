"""Calling the services that a host offers: see `federation.hosts.services`."""

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
    PeerLost,
    SpaceClosed,
    TupeloError,
    UnknownService,
)
from tupelo.federation.client.arguments import built, listed
from tupelo.federation.client.async_channel import AsyncChannel
from tupelo.federation.client.blocking_channel import BlockingChannel
from tupelo.federation.client.connect import config_of, network_of
from tupelo.federation.client.space import RemoteOperations, RemoteSpace
from tupelo.federation.links import wire
from tupelo.federation.links.address import parse_url
from tupelo.federation.links.encoding import read_encoded_entry
from tupelo.federation.names import PRESENCE
from tupelo.space.dual_api import run_sync
from tupelo.space.port import value_of
from tupelo.values.codec import entry_to_wire
from tupelo.values.template_encoding import template_from_wire, template_to_wire


class HostConnection(RemoteOperations):
    """A connection to a host, for the services there. On the async door it is awaited; see
    `connect_to_host`. Use it by `with`, or `async with`."""

    def __repr__(self) -> str:
        return f"<a connection to {self.peer}>"


def connect_to_host(url: str, *, about: str = PRESENCE, **options: Any) -> HostConnection:
    """A connection to the host at a URL such as tupelo://host:7700, with the options of
    `tupelo.connect`. A space that the URL names does not matter; a password is that of the space
    `about`, such as the hidden one of a service."""
    config, password = config_of(url, options)
    channel = BlockingChannel(config, random.Random())
    made: HostConnection = run_sync(partial(_opened, channel, about, password))
    return made


async def connect_to_host_async(
    url: str, *, about: str = PRESENCE, **options: Any
) -> HostConnection:
    """`connect_to_host`, for tasks of the running loop."""
    config, password = await asyncio.to_thread(config_of, url, options)  # which may read files
    channel = await AsyncChannel.made(config, random.Random(), network_of(config))
    return await _opened(channel, about, password)


async def _opened(channel: Any, about: str, password: str | None) -> HostConnection:
    connection = HostConnection(channel, about)
    await connection.open(password)
    return connection


def names_space(url: str) -> bool:
    """Does this URL name a space, or only a host?"""
    return parse_url(url)[1] is not None


async def invoke(
    space: RemoteOperations,
    service: str,
    method: str,
    *args: Any,
    about: str = "",
    wait: float | None = 0,
    again: bool = False,
    handed_over: bool = False,
    within: int | None = None,
    build: Callable[[Any], Any] = lambda answer: answer,
) -> Any:
    """Call a method of a service at the host of this space, or connection; its answer.

    `about` is the space that the call is about, whose rules of access the service checks. `wait`
    is how long the service may take to answer, and `again` marks a call that does no harm if it is
    done twice, so that it can be repeated when the link was lost. If the answer is `handed_over`
    it is confirmed when it is here and `build` has made of it what the caller gets; if that fails,
    or the caller is cancelled before, the host gives it back. `within` is the serial of the link to
    which the call belongs: PeerLost if that was lost.
    """
    message = wire.Invoke(0, service, method, about, list(args), wait, again)
    try:
        if not handed_over:
            return build(await space.ask(message, within))
        return await _received(space, message, within, build)
    except UnknownService as error:
        raise UnknownService(service, space.peer) from error


async def _received(
    space: RemoteOperations, message: wire.Invoke, within: int | None, build: Callable[[Any], Any]
) -> Any:
    space.require_open()
    channel = space.channel
    asked = channel.asking(message, space, within)
    try:
        while True:
            await channel.run(asked)
            value = build(asked.value)
            if channel.confirm(asked):
                return value
            if not message.again:
                raise PeerLost(space.peer, f"{message.service} {message.method}", "its link ended")
    except BaseException:
        if asked.error is None:
            channel.cancel(asked)
        raise


ANYTHING = "anything"


class ServiceCodec(NamedTuple):
    """How an argument or an answer is sent, and what the other end makes of it. `here` makes of an
    answer what a program gets that is the host itself."""

    encode: Callable[[Any], Any]
    read: Callable[[Any], Any]
    here: Callable[[Any], Any]


def plain(kind: Any) -> ServiceCodec:
    """For values of this type, of which msgspec knows how they are sent."""
    return ServiceCodec(_to_builtins, partial(msgspec.convert, type=kind), _as_it_is)


_to_builtins = partial(msgspec.to_builtins, builtin_types=(bytes,))


def _as_it_is(value: Any) -> Any:
    return value


ENTRIES = ServiceCodec(
    lambda entries: [entry_to_wire(entry.shape, entry.fields) for entry in entries],
    lambda found: [built(one) for one in listed(found)],
    lambda entries: [value_of(entry) for entry in entries],
)
"""For an answer of entries, of which the caller gets the values."""
ITEM = ServiceCodec(lambda item: entry_to_wire(*item), read_encoded_entry, _as_it_is)
"""For an entry that is to be written: its shape and fields."""
TEMPLATE = ServiceCodec(template_to_wire, template_from_wire, _as_it_is)


class ServiceMethod(NamedTuple):
    """A method of a door that a host runs. `rule` is what it is under the space's rules of access:
    "read", "write", "take", "subscribe" or "administer"; ANYTHING for what may be done by whoever
    may do one of them. One that `waits` is told how long, as `wait=`; the answer of one that
    `hands_over` goes back if it does not arrive."""

    rule: str
    arguments: tuple[ServiceCodec, ...] = ()
    answer: ServiceCodec = plain(Any)
    waits: bool = False
    hands_over: bool = False


class ServedDoor:
    """A door of a model that the host of this space runs for us, as a `DoorService`. What it keeps
    there ends with the link: then PeerLost, and another door is to be opened. `LocalDoor` is the
    same at a host of this program; `title` is what users call it."""

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
        """Is done with the first call, if not before."""
        message = wire.Invoke(0, self._service, "open", self.space.name, [self._id], 0, True)
        try:
            self._serial = (await self.space.asked(message)).serial
        except UnknownService as error:
            raise UnknownService(self._service, self.space.peer) from error

    async def call(self, name: str, *args: Any, wait: float | None = 0) -> Any:
        """Call a method that needs what the host keeps for this door. HostClosed if the door is
        closed; SpaceClosed if it is closed meanwhile: then what is handed over goes back."""
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
                within=self._serial,
            )
        except TupeloError:
            self._require_still_open()
            raise

    async def tell(self, name: str, *args: Any) -> Any:
        """Call a method that needs nothing of it, over whatever link there is."""
        self.require_open()
        return await self._invoke(name, args, self._methods[name].answer.read)

    async def _invoke(
        self, name: str, args: tuple[Any, ...], build: Callable[[Any], Any], **options: Any
    ) -> Any:
        codecs = self._methods[name].arguments
        encoded = [codec.encode(one) for codec, one in zip(codecs, args, strict=True)]
        return await invoke(
            *(self.space, self._service, name, self._id, *encoded),
            about=self.space.name,
            build=build,
            **options,
        )

    def require_open(self) -> None:
        if self.closed:
            raise HostClosed(f"this {self.title} was closed")

    def _require_still_open(self) -> None:
        if self.closed:
            raise SpaceClosed(f"the space {self.space.name!r} was closed here")

    def run_apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this on a thread, or as a task, of its own."""
        self.space.channel.start(work, "tupelo-notices")

    async def close(self) -> None:
        """The host keeps nothing more for this door, and the connection is closed. Whoever waits
        is told: SpaceClosed."""
        if self.closed:
            return
        self.closed = True
        if self._serial is not None:
            message = wire.Invoke(0, self._service, "close", self.space.name, [self._id])
            with suppress(TupeloError):
                await self.space.ask(message, self._serial)
        await self.space.leave(None)


def check_client(space: RemoteSpace, name: object, **decided: tuple[object, object]) -> None:
    """BadArgument, if a client gives its door another name than its space has, or an option that
    the host decides: of each, what was given and what it is if nothing was."""
    if name is not None and name != space.name:
        raise BadArgument("name", f"left out, or {space.name!r}: the connection names it", name)
    for argument, (given, default) in decided.items():
        if given is not default and given != default:
            raise BadArgument(argument, "left out by a client: the host decides it", given)
