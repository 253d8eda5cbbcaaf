"""A process of MELON, at either door: at a host of this program, or a connection to one."""

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
from tupelo.models.melon.collecting import Bound, Collections
from tupelo.models.melon.copying import Copies
from tupelo.models.melon.message_store import MessageStore, check_name, post_of
from tupelo.models.melon.served import METHODS, HostedMelon
from tupelo.space.dual_api import Closing, dual_api, maybe_await
from tupelo.space.port import value_of
from tupelo.space.query import check_wait
from tupelo.values.entry import freeze
from tupelo.values.scope import Coverage

NO_KEYS = (
    "left out by a client: directed messages are sealed with the keys of a host; use a Melon at a "
    "tupelo.Host of your own"
)


class Melon(Closing):
    """One process that exchanges messages with all that use the same name, at hosts that meet. It
    has a record of its own of what it has read.

    It stands on a host, or on a connection to one: `Melon(tupelo.connect("tupelo://host/news"))` is
    a process of MELON of the name "news" that this host runs for a client. It sends and gets no
    directed messages, and what it has read is forgotten when its link is lost: then PeerLost. When
    it is closed, its connection is.

    Who reads or takes waits for `wait` seconds at most, and beyond that for the answer of a host
    that is engaged and silent, until that is passed over, which takes some seconds.

    `bound` says how much this host keeps, and `copies` how many others hold what is written here,
    and how much is held here for others. The first Melon of a name at a host says so.
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
            return HostedMelon(post_of(core, self.name, bound, copies, core.identity))

        self._door: LocalDoor[HostedMelon] | ServedDoor
        self._door = open_door(host, "melon", "Melon", METHODS, make)
        self.is_async = self._door.is_async
        self.collected = Collections(self._door)
        """What this host had to let go of, from now on."""

    async def __aenter__(self) -> Self:
        await self._door.open()
        return self

    @property
    def _post(self) -> MessageStore:
        assert isinstance(self._door, LocalDoor)
        return self._door.served.post

    # Adding messages

    @dual_api
    async def store(self, message: object, to: str | None = None, *, pin: bool = False) -> None:
        """Add a message that one process may take. It stays here until then, and gives way to
        others if it must, unless it is pinned. `to` an identity: only a process at the host of that
        identity can take it, and nobody else read it, whoever carries it there."""
        self._door.require_open()
        _check_pin(pin)
        if to is not None:
            if isinstance(self._door, ServedDoor):
                raise BadArgument("to", NO_KEYS, to)
            await self._door.host.on_loop(self._door.served.direct(message, to, pin))
            return
        _check_message(message)
        if pin:
            await self._door.tell("store", freeze(message), pin)
        elif isinstance(self._door, ServedDoor):
            await maybe_await(self._door.space.write(message))
        else:
            await self._written(self._post.stored, message)

    @dual_api
    async def write(self, message: object, *, pin: bool = False) -> None:
        """Add a message that every process may read, once each, and nobody take. It gives way to
        others if it must, unless it is pinned. CannotSend if it is too long to be sent, or to be
        copied at a host that has `copies`."""
        self._door.require_open()
        _check_pin(pin)
        size = _check_message(message)
        if pin or isinstance(self._door, ServedDoor):
            await self._door.tell("write", freeze(message), pin)
        else:
            self._post.check_copied(size)
            await self._written(self._post.written, message)

    async def _written(self, hosted: HostedSpace, message: object) -> None:
        """The short way, which need not go by the host's loop."""
        door: Any = hosted.door if self.is_async else hosted.space
        await maybe_await(door.write(message))

    @dual_api
    async def unpin(self, template: object) -> int:
        """The messages of this host that match and were pinned may give way from now on; how many
        there are. Not those that are directed: nobody can look into them."""
        count: int = await self._door.tell("unpin", template)
        return count

    # Retrieving messages

    @dual_api
    async def take(
        self, template: object, wait: float | None = None, *, sender: str | None = None
    ) -> Any:
        """The oldest message of some host that matches and was stored; nobody else gets it. With
        `sender`, one that this identity has directed to ours. None if there is none in time."""
        return _first(await self._take(template, wait, False, sender))

    @dual_api
    async def take_all(
        self, template: object, wait: float | None = None, *, sender: str | None = None
    ) -> list[Any]:
        """All messages that match and were stored; until there is one, or time is up, it waits."""
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
        # A client takes in the space itself, so what it takes is delivered to it or stays.
        door.require_open()
        if sender is not None:
            raise BadArgument("sender", NO_KEYS, sender)
        # With a coverage, hosts that do not answer are passed over.
        how: dict[str, Any] = {"wait": wait, "coverage": Coverage()}
        if many:
            return list(await maybe_await(door.space.take_all(template, **how)))
        one = await maybe_await(door.space.take(template, **how))
        return [] if one is None else [one]

    @dual_api
    async def read(self, template: object, wait: float | None = None) -> Any:
        """The oldest message of some host that matches, was written, and has not been read here by
        this Melon. None if there is none in time."""
        return _first(await self._read(template, wait, False))

    @dual_api
    async def read_all(self, template: object, wait: float | None = None) -> list[Any]:
        """All messages that match, were written and have not been read by this Melon; until there
        is one, or time is up, it waits."""
        return await self._read(template, wait, True)

    async def _read(self, template: object, wait: float | None, many: bool) -> list[Any]:
        check_wait(wait)
        self._door.require_open()
        found: list[Any] = await self._door.call("read", template, many, wait=wait)
        return found

    @property
    def identity(self) -> str | None:
        """The address of the processes at this host; None if it has no identity, and for a client,
        to which nothing can be directed."""
        if isinstance(self._door, ServedDoor):
            return None
        identity = self._post.directed.identity
        return None if identity is None else identity.key

    @property
    def refused(self) -> int:
        """How many messages came that were directed to us and could not be opened."""
        return 0 if isinstance(self._door, ServedDoor) else self._post.directed.refused

    @dual_api
    async def close(self) -> None:
        """It reads and takes no more, and who waits is told: HostClosed. What it has stored and
        written stays at its host; a connection is closed."""
        await self._door.close()

    def __repr__(self) -> str:
        return f"<Melon {self.name!r} {self._door.where}>"


def _check_message(message: object) -> int:
    """How many bytes it has when it is sent."""
    try:
        return check_sendable(message)
    except CannotSend as error:
        raise CannotSend(f"message= cannot be sent to other hosts: {error}") from error


def _check_pin(pin: object) -> None:
    if not isinstance(pin, bool):
        raise BadArgument("pin", "True or False", pin)


def _first(found: list[Any]) -> Any:
    return found[0] if found else None
