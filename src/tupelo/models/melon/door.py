"""The class Melon: a process of MELON, at a host of this program or over a connection to one."""

from __future__ import annotations

from typing import Any, Self

from tupelo.errors import BadArgument, CannotSend
from tupelo.federation.client.services import ServedDoor, check_client
from tupelo.federation.client.space import AsyncRemoteSpaceLike, RemoteSpace, RemoteSpaceLike
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import AsyncHost, Host
from tupelo.federation.hosts.local import LocalDoor, open_door
from tupelo.federation.identity.keys import check_key
from tupelo.federation.links.encoding import check_sendable
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.melon.collecting import Bound, Collections, Copies
from tupelo.models.melon.message_store import MessageStore, check_name, message_store_of
from tupelo.models.melon.served import METHODS, HostedMelon
from tupelo.space.dual_api import Closing, dual_api, maybe_await
from tupelo.space.port import value_of
from tupelo.space.query import check_wait
from tupelo.values.checks import check_bool
from tupelo.values.entry import freeze
from tupelo.values.scope import Coverage

NO_KEYS = (
    "left out by a client: directed messages are sealed with the keys of a host; use a Melon at a "
    "tupelo.Host of your own"
)


class Melon(Closing):
    """One process that exchanges messages with all Melons of the same name, at hosts that meet. It
    has its own record of the messages that it has read.

    `host` is a `tupelo.Host` or `tupelo.aio.Host`, or a connection to a host:
    `Melon(tupelo.connect("tupelo://host/news"))` is a process named "news" that the host runs for
    this client. A client has no directed messages. If its connection is lost, PeerLost is raised,
    and its record is forgotten. Closing the Melon closes the connection.

    Reads and takes wait for at most `wait` seconds, None for ever, 0 not at all. An engaged host
    that does not answer may add some seconds to that, until it is skipped.

    `bound` limits how many messages this host keeps; `copies` says how many hosts hold copies of
    its messages, and how much room it has for copies of others. The first Melon of a name at a host
    sets both.
    """

    def __init__(
        self,
        host: Host | AsyncHost | RemoteSpaceLike | AsyncRemoteSpaceLike,
        name: str | None = None,
        *,
        bound: Bound | None = None,
        copies: Copies | None = None,
    ) -> None:
        if isinstance(host, RemoteSpace):
            check_client(host, name, bound=(bound, None), copies=(copies, None))
            name = host.name
        self.name = check_name("melon" if name is None else name)
        if bound is not None and not isinstance(bound, Bound):
            raise BadArgument("bound", "a Bound(...), or None", bound)
        if copies is not None and not isinstance(copies, Copies):
            raise BadArgument("copies", "a Copies(...), or None", copies)

        def make(core: HostCore) -> HostedMelon:
            return HostedMelon(message_store_of(core, self.name, bound, copies))

        self._door: LocalDoor[HostedMelon] | ServedDoor
        self._door = open_door(host, "melon", "Melon", METHODS, make)
        self.is_async = self._door.is_async
        self.collected = Collections(self._door)
        """The messages that this host collects from now on, to make room."""

    async def __aenter__(self) -> Self:
        await self._door.open()
        return self

    @property
    def _message_store(self) -> MessageStore:
        assert isinstance(self._door, LocalDoor)
        return self._door.served.message_store

    # Adding messages

    @dual_api
    async def store(self, message: object, to: str | None = None, *, pin: bool = False) -> None:
        """Add a message that one process can take. It stays at this host until then; if room is
        needed it is collected, unless it is pinned. With `to`, only a process at the host of this
        identity can take it, and the hosts that carry it there cannot read it. CannotSend if the
        message is too long to be sent."""
        self._door.require_open()
        check_bool("pin", pin)
        if to is not None:
            if isinstance(self._door, ServedDoor):
                raise BadArgument("to", NO_KEYS, to)
            await self._door.host.on_loop(self._message_store.direct(message, to, pin))
            return
        _check_message(message)
        if pin:
            await self._door.tell("store", freeze(message), pin)
        elif isinstance(self._door, ServedDoor):
            await maybe_await(self._door.space.write(message))
        else:
            await self._written(self._message_store.stored, message)

    @dual_api
    async def write(self, message: object, *, pin: bool = False) -> None:
        """Add a message that every process can read, once each, and none can take. If room is
        needed it is collected, unless it is pinned. CannotSend if the message is too long to be
        sent, or to be copied at a host with `copies`."""
        self._door.require_open()
        check_bool("pin", pin)
        size = _check_message(message)
        if pin or isinstance(self._door, ServedDoor):
            await self._door.tell("write", freeze(message), pin)
        else:
            self._message_store.check_copied(size)
            await self._written(self._message_store.written, message)

    async def _written(self, hosted: HostedSpace, message: object) -> None:
        """Write on the calling thread, without the host's loop."""
        door: Any = hosted.door if self.is_async else hosted.space
        await maybe_await(door.write(message))

    @dual_api
    async def unpin(self, template: object) -> int:
        """Unpin the messages of this host that match, and return how many they are. Directed
        messages stay pinned: this host cannot read them."""
        count: int = await self._door.tell("unpin", template)
        return count

    # Retrieving messages

    @dual_api
    async def take(
        self, template: object, wait: float | None = None, *, sender: str | None = None
    ) -> Any:
        """Take the oldest stored message of some host that matches; None if there is none in time.
        With `sender`, only messages that this identity has directed to ours."""
        return _first(await self._take(template, wait, False, sender))

    @dual_api
    async def take_all(
        self, template: object, wait: float | None = None, *, sender: str | None = None
    ) -> list[Any]:
        """Take all stored messages that match. Waits until there is one; empty if there is none in
        time. With `sender`, only messages that this identity has directed to ours."""
        return await self._take(template, wait, True, sender)

    async def _take(
        self, template: object, wait: float | None, many: bool, sender: str | None
    ) -> list[Any]:
        door = self._door
        if isinstance(door, LocalDoor):
            if sender is not None:
                check_key(sender, "sender")
            check_wait(wait)
            door.require_open()
            taken = await door.run(door.served.take, template, many, sender, wait=wait)
            return [value_of(entry) for entry in taken]
        # A client takes from the space itself: the message is delivered to it, or stays there.
        door.require_open()
        if sender is not None:
            raise BadArgument("sender", NO_KEYS, sender)
        # With a coverage, hosts that do not answer are skipped.
        how: dict[str, Any] = {"wait": wait, "coverage": Coverage()}
        if many:
            return list(await maybe_await(door.space.take_all(template, **how)))
        one = await maybe_await(door.space.take(template, **how))
        return [] if one is None else [one]

    @dual_api
    async def read(self, template: object, wait: float | None = None) -> Any:
        """The oldest written message of some host that matches and that this Melon has not read
        yet; None if there is none in time."""
        return _first(await self._read(template, wait, False))

    @dual_api
    async def read_all(self, template: object, wait: float | None = None) -> list[Any]:
        """All written messages that match and that this Melon has not read yet. Waits until there
        is one; empty if there is none in time."""
        return await self._read(template, wait, True)

    async def _read(self, template: object, wait: float | None, many: bool) -> list[Any]:
        check_wait(wait)
        self._door.require_open()
        found: list[Any] = await self._door.call("read", template, many, wait=wait)
        return found

    @property
    def identity(self) -> str | None:
        """The identity of this host, to which others direct messages; None if it has none, and for
        a client."""
        if isinstance(self._door, ServedDoor):
            return None
        identity = self._message_store.directed.identity
        return None if identity is None else identity.key

    @property
    def refused(self) -> int:
        """How many messages arrived that were directed to this host and could not be decrypted."""
        return 0 if isinstance(self._door, ServedDoor) else self._message_store.directed.refused

    @dual_api
    async def close(self) -> None:
        """Close this Melon: waiting calls raise HostClosed. Its messages stay at the host; a
        client's connection is closed."""
        await self._door.close()

    def __repr__(self) -> str:
        return f"<Melon {self.name!r} {self._door.where}>"


def _check_message(message: object) -> int:
    """The size of a message in bytes, as it is sent."""
    try:
        return check_sendable(message)
    except CannotSend as error:
        raise CannotSend(f"message= cannot be sent to other hosts: {error}") from error


def _first(found: list[Any]) -> Any:
    return found[0] if found else None
