"""Services: what a host offers to its clients beyond the operations of its spaces, by name.

A model registers a service with a host (`core.services["lookup"] = service`, or `core.offer`, with
rules of access of its own), or names it in the entry point group "tupelo.services": then every host
makes it when a client first asks for it, by calling what is named there with its core. A client
calls the methods of a service over its link (`federation.client.services`). Arguments and answers
are what msgpack can hold; `encode_any` and `read_any` turn values of entries into that and back.

A service may answer with a `HandOver`: what it took for the caller is kept when the caller has
confirmed that it received the answer, and given back if the caller vanishes first.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from tupelo.errors import BadArgument, BadFrame, NotAllowed, UnknownService
from tupelo.federation.client.services import ANYTHING, ServiceMethod
from tupelo.federation.links import wire
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spaces.stored import StoredSpace
from tupelo.space.query import check_wait
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.serving import ClientServer

GROUP = "tupelo.services"
DOORS_MAX = 10_000
"""The most doors that one client may have open at a service."""

D = TypeVar("D", bound="ServedObject")


class Caller(Protocol):
    """A client that calls a service: one program on one link."""

    @property
    def agent(self) -> str:
        """The id of the program at this host; the same on its next link."""
        ...

    @property
    def session(self) -> str:
        """The id of this link."""
        ...

    @property
    def holder(self) -> Holder:
        """The holder of what the program takes, without the number of its call."""
        ...

    @property
    def message_max(self) -> int:
        """The longest message that the program accepts, in bytes."""
        ...

    def hosted(self, space: str, operation: str) -> HostedSpace:
        """The space, if the caller may do this in it; else NotAllowed. Refused if it is in a
        database."""
        ...

    def allowed(self, space: str, operation: str) -> HostedSpace | StoredSpace:
        """The space, also one in a database, if the caller may do this in it; else NotAllowed."""
        ...


class Service(Protocol):
    """A service of a host. It lives on the host's loop."""

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        """The answer to a call, or a HandOver. It is cancelled if the caller gives up or is lost.
        BadArgument if there is no such method."""
        ...

    def left(self, caller: Caller) -> None:
        """The link of this caller has ended: free what it holds."""
        ...


class HandOver:
    """An answer with entries that were taken for the caller, as a delivery: `confirm` is called
    once the caller has received it, otherwise `give_back`. If the caller vanishes, the `Doubt` of
    `space` decides; by default that is the space of the call."""

    def __init__(
        self,
        value: Any,
        confirm: Callable[[], object] | None,
        give_back: Callable[[], object],
        forget: Callable[[], object] | None = None,
        space: str = "",
    ) -> None:
        self.entries: list[Entry] = []
        self.space = space
        self.value = value
        self._confirm = confirm
        self._give_back = give_back
        self._forget = forget

    def confirm(self) -> int:
        if self._confirm is not None:
            self._confirm()
        return 0

    @property
    def is_final(self) -> bool:
        """Whether there is nothing to confirm or return."""
        return self._confirm is None

    def received(self) -> None:
        """On the loop of the host: a program of this process has the answer. It is confirmed when
        that program has gone on; if the process is killed before, the entries are not lost."""
        asyncio.get_running_loop().call_soon(self.confirm)

    def give_back(self) -> int:
        self._give_back()
        return 0

    def forget(self) -> None:
        """The caller has the entries and will not return them any more."""
        if self._forget is not None:
            self._forget()


class Services(dict[str, Service]):
    """The services of a host, by name."""

    def __init__(self, core: HostCore) -> None:
        super().__init__()
        self._core = core
        core.from_clients.later[wire.Invoke] = self.invoke

    async def invoke(self, caller: ClientServer, message: wire.Invoke) -> Any:
        """Call a method of a service for a client. Raises UnknownService."""
        service = self.get(message.service) or self._made(message.service)
        answer = await service.invoke(caller, message)
        if not isinstance(answer, HandOver):
            return answer
        # Its Doubt decides, if the client does not come back.
        answer.space = answer.space or message.space
        caller.hold(message.call, answer)
        return answer.value

    def _made(self, name: str) -> Service:
        """The service that an entry point names. UnknownService if there is none, or what it needs
        is not installed here."""
        for found in entry_points(group=GROUP, name=name):
            try:
                make = found.load()
            except ModuleNotFoundError as error:
                raise UnknownService(name) from error
            service: Service = make(self._core)
            self[name] = service
            return service
        raise UnknownService(name)

    def left(self, caller: ClientServer) -> None:
        """The link of a client has ended: all services free what it has."""
        for service in list(self.values()):
            service.left(caller)


class ServedObject(Protocol):
    """The object at a host behind one open door of a model; it has the methods that the service
    names."""

    def close(self) -> None:
        """End it: free what it holds."""
        ...


class DoorService(ABC, Generic[D]):
    """A service that makes an object for each door that a client opens (`ServedDoor`). The object
    ends with the door, or with the link of its client."""

    methods: ClassVar[Mapping[str, ServiceMethod]]
    """The methods of a door, beside open and close."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self._doors: dict[str, dict[str, D]] = {}  # by link, and by door

    @abstractmethod
    def open(self, hosted: HostedSpace) -> D:
        """Begin a door of the name of this space."""

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        name = message.method
        method = _ENDS if name in ("open", "close") else self.methods.get(name)
        if method is None:
            raise no_such_method(message)
        if method.rule == ANYTHING:
            hosted = _hosted_for_anything(caller, message.space)
        else:
            hosted = caller.hosted(message.space, method.rule)
        if not message.args or type(message.args[0]) is not str:
            raise BadFrame("the first argument is the id of a door")
        check_wait(message.wait)
        id, *args = message.args
        doors = self._doors.setdefault(caller.session, {})
        if name == "close":
            if id in doors:
                doors.pop(id).close()
            return None
        if id not in doors:
            if len(doors) >= DOORS_MAX:
                raise BadArgument("doors", f"at most {DOORS_MAX} at a time")
            doors[id] = self.open(hosted)
        return None if name == "open" else await _called(doors[id], method, args, message, caller)

    def left(self, caller: Caller) -> None:
        for door in self._doors.pop(caller.session, {}).values():
            door.close()


_ENDS = ServiceMethod(ANYTHING)


async def _called(
    door: Any, method: ServiceMethod, args: list[Any], message: wire.Invoke, caller: Caller
) -> Any:
    if len(args) != len(method.arguments):
        raise no_such_method(message)
    try:
        read = [codec.read(one) for codec, one in zip(method.arguments, args, strict=True)]
    except msgspec.ValidationError as error:
        raise no_such_method(message) from error
    options: dict[str, Any] = {"wait": message.wait} if method.waits else {}
    if method.reserves:
        options["holder"] = caller.holder.of_call(message.call)
    answer = await getattr(door, message.method)(*read, **options)
    if isinstance(answer, HandOver):
        answer.value = method.answer.encode(answer.value)
        return answer
    return method.answer.encode(answer)


def _hosted_for_anything(caller: Caller, space: str) -> HostedSpace:
    """The space, if the caller may do at least one operation in it; else NotAllowed."""
    for operation in ("read", "write", "subscribe"):
        with suppress(NotAllowed):
            return caller.hosted(space, operation)
    return caller.hosted(space, "take")


def no_such_method(message: wire.Invoke) -> BadArgument:
    """The error for a method, or arguments, that a service does not know."""
    return BadArgument("method", f"one of {message.service}, with its arguments", message.method)
