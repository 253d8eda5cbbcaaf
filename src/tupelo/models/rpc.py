"""Remote procedure calls, as Collins' dissertation compares them with MELON (3.2.2.2 and 6.5.2).

| the dissertation              | Tupelo                                                          |
| ----------------------------- | --------------------------------------------------------------- |
| to enable an object           | `export(thing)`: its public methods, or those in `methods=`     |
| to search for it by its class | `find("Board")`, which waits, `find_all("Board")`; subclasses   |
|                               | too, and one `name=` if several objects have the class          |
| handle, invoke()              | `RemoteObject`, `invoke("draw", figure, wait=2.0)`              |
| asynchronous, with a callback | `start("draw", figure, listener=print)`: an `Invocation`        |
| group invocation              | the same of a `RemoteGroup`: a `GroupResult`, or each `Outcome` |

Hosts find each other's objects by a collect of their brokers (`tupelo.models.pubsub`), and call
them along the tree of their group, also through other hosts. A method is called at most once. The
error tells whether it was called: not with NotExported, NotAllowed, LimitReached, UnknownType, or
PeerLost that is not `in_doubt`; yes with RemoteError and AnswerTooLarge; perhaps with NoAnswer, or
PeerLost in doubt.

The access rules of the space of the same name apply: another host, or a client, finds exported
objects if it may read and subscribe there, and calls them if it may write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, ClassVar, NamedTuple, Self
from weakref import WeakSet

import msgspec

from tupelo.errors import (
    AnswerTooLarge,
    BadArgument,
    BadFrame,
    BadInput,
    CannotSend,
    HostClosed,
    LimitReached,
    NoAnswer,
    NotAllowed,
    NotExported,
    PeerLost,
    RemoteError,
    TupeloError,
    UnknownHost,
)
from tupelo.federation.brokers.broker import Reply, StandingRequest
from tupelo.federation.brokers.standing import read_reply
from tupelo.federation.brokers.tables import EncodedPattern, check_length
from tupelo.federation.client.services import ServedDoor, ServiceMethod, check_client, plain
from tupelo.federation.client.space import AsyncRemoteSpaceLike, RemoteSpace, RemoteSpaceLike
from tupelo.federation.groups.group import GroupPart
from tupelo.federation.groups.membership import Membership
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import AsyncHost, Host, HostDoor
from tupelo.federation.hosts.local import LocalDoor, open_door
from tupelo.federation.hosts.peer import SilentExtension
from tupelo.federation.hosts.services import DoorService
from tupelo.federation.links.calls import InboundCall
from tupelo.federation.links.encoding import encode_any, encode_error, read_any, read_error
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.pubsub import Replies
from tupelo.models.pubsub.served import METHODS as BROKER_METHODS
from tupelo.models.pubsub.served import HostBroker, HostedRequests, NoticeBacklog, Offers
from tupelo.space.dual_api import Closing, dual_api, maybe_await
from tupelo.space.query import check_wait, deadline_of
from tupelo.space.tasks import timeout_at
from tupelo.values.checks import check_text
from tupelo.values.parts import ANY
from tupelo.values.template_encoding import read_wire_extension

__all__ = ["GroupResult", "Invocation", "Outcome", "RemoteGroup", "RemoteObject", "Rpc"]

CALLS_MAX = 1_000
"""How many calls run at a host at a time."""
TEXT_MAX = 10_000
"""How many bytes are sent of the text of an error that a method has raised."""
INVOCATIONS_MAX = 10_000
"""How many invocations of one Rpc may have outcomes that the program has not got yet."""

_EXPORTS = Offers()
"""Encodes an exported object for the brokers: its class, its name, its id."""


class Rpc(Closing):
    """The objects that are exported under one name, at hosts that reach each other.

    `host` is a `tupelo.Host` or `tupelo.aio.Host`, or a connection to a host:
    `Rpc(tupelo.connect("tupelo://host/rpc"))` finds and calls the objects that the host finds. A
    client cannot export objects. If its connection is lost, its calls raise PeerLost, in doubt.
    Closing the Rpc closes the connection.
    """

    def __init__(
        self,
        host: Host | AsyncHost | RemoteSpaceLike | AsyncRemoteSpaceLike,
        name: str | None = None,
    ) -> None:
        if isinstance(host, RemoteSpace):
            check_client(host, name)
            name = host.name
        self.name = check_text("name", "rpc" if name is None else name)

        def make(core: HostCore) -> Calls:
            return Calls(registry_of(core, self.name))

        self._door: LocalDoor[Calls] | ServedDoor = open_door(host, "rpc", "Rpc", METHODS, make)
        self.is_async = self._door.is_async

    async def __aenter__(self) -> Self:
        await self._door.open()
        if isinstance(self._door, LocalDoor):
            await self._door.served.broker().taking_part()
        return self

    @dual_api
    async def export(
        self, thing: object, *, name: str = "", methods: Iterable[str] | None = None
    ) -> None:
        """Let other programs call the public methods of a `thing`, or only these `methods`. It is
        found by its class or a base class, and by its `name`, if one is given.

        Each call runs on a thread of its own. With an async host, a coroutine runs as a task, and
        any other method on the loop, where it must not block. Several calls may run at once."""
        door = self._local()
        if not isinstance(name, str):
            raise BadArgument("name", "a text", name)
        exported = Export(thing, _methods_of(thing, methods, door.is_async), door.host)
        await door.run(door.served.export, exported, name)

    @dual_api
    async def withdraw(self, thing: object) -> bool:
        """End the export of a `thing`; False if it was not exported. Running calls continue."""
        door = self._local()
        gone: bool = await door.run(door.served.recall, thing)
        return gone

    def _local(self) -> LocalDoor[Calls]:
        if isinstance(self._door, ServedDoor):
            raise BadInput("a client exports nothing: use an Rpc at a tupelo.Host of your own")
        return self._door

    @dual_api
    async def find(
        self, cls: type | str, name: str | None = None, *, wait: float | None = None
    ) -> RemoteObject | None:
        """Find an object of the class `cls` or a subclass, with this `name` if one is given; also
        those of this host. Waits for at most `wait` seconds; None if there is none in time."""
        check_wait(wait)
        title, pattern = _asked(cls, name)
        id = await self._door.call("collect", pattern, "single", "any", 1)
        found = Replies(self._door, id, partial(self._objects, title))
        try:
            reply = await maybe_await(found.get(wait=wait))
        finally:
            await maybe_await(found.cancel())
        self._door.require_open()
        return None if reply is None else reply.items[0]

    @dual_api
    async def find_all(self, cls: type | str, name: str | None = None) -> RemoteGroup:
        """All objects of the class `cls` or a subclass, at all hosts that can be reached now; with
        this `name`, if one is given."""
        title, pattern = _asked(cls, name)
        found = await self._door.call("probe", pattern, "all", wait=None)
        objects = [one for reply in found.replies for one in self._objects(title, reply).items]
        return RemoteGroup(self._door, objects, found.lost)

    def _objects(self, title: str, reply: Reply) -> Reply:
        found = read_reply(reply, _EXPORTS.read_item).items
        objects = [
            RemoteObject(self._door, Target(reply.host, id, title), name) for _, name, id in found
        ]
        return Reply(reply.host, objects, False)

    @dual_api
    async def close(self) -> None:
        """Withdraw all objects; a client's connection is closed. Waiting calls raise HostClosed."""
        await self._door.close()

    def __repr__(self) -> str:
        return f"<Rpc {self.name!r} {self._door.where}>"


class RemoteGroup:
    """Exported `objects` that are called together. `lost` are the hosts that did not answer the
    search."""

    def __init__(
        self, door: LocalDoor[Calls] | ServedDoor, objects: list[RemoteObject], lost: frozenset[str]
    ) -> None:
        self.is_async = door.is_async
        self.objects = objects
        self.lost = lost
        self._door = door

    def __repr__(self) -> str:
        return f"<RemoteGroup of {len(self.objects)} objects>"

    @dual_api
    async def invoke(self, method: str, *args: Any, wait: float | None = None) -> GroupResult:
        """Call a method of all objects at once, and wait for all results, at most `wait`
        seconds."""
        result = GroupResult(lost=self.lost)
        for outcome in await self._outcomes(method, args, wait):
            if outcome.error is None:
                result.results[outcome.object] = outcome.value
            else:
                result.errors[outcome.object] = outcome.error
        return result

    @dual_api
    async def start(
        self,
        method: str,
        *args: Any,
        listener: Callable[[Outcome], object] | None = None,
        wait: float | None = None,
    ) -> Invocation:
        """Call a method of all objects and return at once. Get each Outcome from the Invocation, or
        pass a `listener`, which is called with it on a thread (async: task) of its own. An object
        that has not answered after `wait` seconds has the outcome NoAnswer."""
        return await self._begin(method, args, wait, listener)

    async def _outcomes(
        self, method: str, args: tuple[Any, ...], wait: float | None
    ) -> list[Outcome]:
        invocation = await self._begin(method, args, wait)
        try:
            outcomes = [await maybe_await(invocation.get()) for _ in self.objects]
        except (asyncio.CancelledError, KeyboardInterrupt):
            await maybe_await(invocation.cancel())
            raise
        if None in outcomes:
            raise HostClosed("this Rpc was closed during a call: it may have been done or not")
        return outcomes

    async def _begin(
        self,
        method: str,
        args: tuple[Any, ...],
        wait: float | None,
        listener: Callable[[Outcome], object] | None = None,
    ) -> Invocation:
        check_wait(wait)
        check_text("method", method)
        if listener is not None and not callable(listener):
            raise BadArgument("listener", "a function, or None", listener)
        encoded = _encode([encode_any(one, f"args[{at}]") for at, one in enumerate(args)], "args")
        by_target = {one._target: one for one in self.objects}

        def read(reply: Reply) -> Reply:
            target, done = _read(reply.items[0], tuple[Target, CallDone])
            try:
                if done.failure is not None:
                    raise read_error(*done.failure)
                outcome = Outcome(by_target[target], read_any(_read(done.value, Any)))
            except TupeloError as error:
                outcome = Outcome(by_target[target], error=error)
            return Reply(reply.host, [outcome], False)

        id = await self._door.call("begin", list(by_target), method, encoded, wait)
        return Invocation(self._door, id, read, listener)


class RemoteObject(RemoteGroup):
    """A handle of an exported object, by which it is called: the id of its `host`, and the `name`
    by which it was exported."""

    def __init__(self, door: LocalDoor[Calls] | ServedDoor, target: Target, name: str) -> None:
        super().__init__(door, [self], frozenset())
        self.host = target.host
        self.name = name
        self._target = target

    def __repr__(self) -> str:
        return f"<{self._target.title} {self.name!r} at the host {self.host}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteObject) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, str]:
        return self._target.host, self._target.object

    @dual_api
    async def invoke(self, method: str, *args: Any, wait: float | None = None) -> Any:
        """Call a method and return its result. Waits for at most `wait` seconds, then NoAnswer. The
        docstring of this module says what each error means."""
        (outcome,) = await self._outcomes(method, args, wait)
        return outcome.result()


@dataclass(frozen=True)
class Outcome:
    """The result of the call of one object: a value, or an error."""

    object: RemoteObject
    value: Any = None
    error: TupeloError | None = None

    def result(self) -> Any:
        """The value that the method has returned; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass
class GroupResult:
    """The values that the objects of a group have returned, and the errors of the others. `lost`
    are the hosts that did not answer the search."""

    results: dict[RemoteObject, Any] = field(default_factory=dict)
    errors: dict[RemoteObject, TupeloError] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()

    @property
    def unanswered(self) -> list[RemoteObject]:
        """The objects that did not answer. The error of each says whether it may have been
        called."""
        return [one for one, error in self.errors.items() if isinstance(error, NoAnswer | PeerLost)]


class Invocation(Replies):
    """A call that was started: an Outcome of each object, as they arrive. Iterate over it (`async
    for` with an async host), or `get` one. It ends after the last Outcome, or when it is cancelled;
    methods that run by then go on."""

    @dual_api
    async def get(self, *, wait: float | None = None) -> Any:
        """The next Outcome; None if there is none within `wait` seconds, or after the last."""
        try:
            reply = await maybe_await(super().get(wait=wait))
        except PeerLost as error:  # of a client, with its link
            raise PeerLost(error.peer, "a call", in_doubt=True) from error
        return None if reply is None else reply.items[0]


def _asked(cls: type | str, name: str | None) -> tuple[str, bytes]:
    """The name of a class, and the pattern of its exported objects."""
    title = cls.__name__ if isinstance(cls, type) else check_text("cls", cls)
    if name is not None and not isinstance(name, str):
        raise BadArgument("name", "a text, or None", name)
    return title, _EXPORTS.encode_pattern((title, ANY if name is None else name, str))


def _methods_of(
    thing: object, methods: Iterable[str] | None, is_async: bool
) -> dict[str, Callable[..., Any]]:
    """The methods that can be called, bound to their object."""
    cls = type(thing)
    public = {one for one in dir(cls) if one[0] != "_" and callable(getattr(cls, one))}
    names = public if methods is None else set(methods)
    if isinstance(methods, str) or not names or not names <= public:
        raise BadArgument("methods", f"some of {', '.join(sorted(public))}", methods)
    bound = {one: getattr(thing, one) for one in names}
    if not is_async and (found := [one for one in bound if iscoroutinefunction(bound[one])]):
        raise BadArgument("methods", "no coroutines, which need a tupelo.aio.Host", sorted(found))
    return bound


# Messages


class Target(msgspec.Struct, frozen=True, array_like=True):
    """An exported object: its host, its id there, and the class by which it was found."""

    host: str
    object: str
    title: str


class InvokeRequest(msgspec.Struct, array_like=True, tag="invoke"):
    """Call a method. The answer acknowledges it, before the method runs."""

    call: str
    object: str
    method: str
    args: bytes


class CallDone(msgspec.Struct, array_like=True, tag="done"):
    """The call has ended: with a value, or with an error's class, text and data."""

    call: str
    value: bytes = b""
    failure: tuple[str, str, dict[str, Any]] | None = None


def _read(encoded: bytes, kind: Any) -> Any:
    """Decode a value of another program. BadFrame if it is malformed."""
    try:
        return msgspec.msgpack.decode(encoded, type=kind, ext_hook=read_wire_extension)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame(f"a call cannot be read: {error}") from error


def _encode(value: Any, what: str) -> bytes:
    try:
        encoded = msgspec.msgpack.encode(value)
    except UnicodeEncodeError as error:
        raise CannotSend(f"a text in {what} is not valid Unicode: {error}") from error
    check_length(encoded, what)
    return encoded


def _failed(call: str, error: TupeloError) -> CallDone:
    return CallDone(call, failure=encode_error(error))


def _text_of(error: BaseException) -> str:
    """The text of an error, cut to the length that is sent."""
    try:
        text = str(error)
    except Exception as failed:
        text = f"(its text failed: {type(failed).__name__})"
    return text.encode(errors="replace")[:TEXT_MAX].decode(errors="ignore")


# At a host, on its loop


class Export(NamedTuple):
    """An exported object, and the host that runs its methods."""

    thing: object
    methods: Mapping[str, Callable[..., Any]]
    host: HostDoor


class ExportRegistry(SilentExtension, GroupPart):
    """The exported objects of one name at a host, and the calls that it makes and runs. It is a
    part of the group; a call survives a change of the group if both its hosts stay members."""

    def __init__(self, core: HostCore, name: str) -> None:
        self.core = core
        self.offers = Offers()
        self.broker = HostBroker(core, name, self.offers, True, kind="rpc objects")
        self.exports: dict[str, Export] = {}
        self._name = name
        self._group = self.broker.group
        # Calls of this host, by id, with the incarnation of the host that was called.
        self.awaited: dict[str, tuple[InboundCall, str]] = {}
        self.running = 0
        self.sender = self._group.part(f"rpc calls {name}", self, asked=InvokeRequest | CallDone)
        core.extensions[f"rpc calls {name}"] = self

    async def call(
        self, target: Target, method: str, args: bytes, deadline: float | None
    ) -> CallDone:
        """Call a method and wait for its end. Errors, also NoAnswer, are part of the result."""
        during = f"a call of {target.title}.{method}"
        id = self.core.new_id()
        try:
            async with timeout_at(self.core.clock, deadline):
                await self.broker.taking_part()
                return await self._call(
                    target, InvokeRequest(id, target.object, method, args), during
                )
        except TimeoutError:
            return _failed(id, NoAnswer(during))
        except TupeloError as error:
            return _failed(id, error)

    async def _call(self, target: Target, invoke: InvokeRequest, during: str) -> CallDone:
        member = self._group.membership.members.get(target.host)
        if member is None:
            raise PeerLost(f"the host {target.host!r}", during, "nothing was done")
        call = InboundCall(f"the host {member.name!r}", during, target.host)
        self.awaited[invoke.call] = call, member.incarnation
        try:
            async with self._group.operating():
                await self.sender.ask(target.host, invoke)
            done: CallDone = await call.answer
            return done
        except (PeerLost, UnknownHost) as error:
            in_doubt = getattr(error, "in_doubt", False)
            reason = "" if in_doubt else "nothing was done"
            raise PeerLost(call.peer, during, reason, in_doubt=in_doubt) from error
        finally:
            del self.awaited[invoke.call]

    async def asked(self, neighbour: str, source: str, message: InvokeRequest | CallDone) -> None:
        if isinstance(message, CallDone):
            call, _ = self.awaited.get(message.call, (None, ""))
            if call is not None and call.target == source:
                call.answered(message)
            return
        if source != self.core.id and not self.core.may("write", self._name, neighbour, source):
            raise NotAllowed("write", self._name, f"the host {source}")
        export = self.exports.get(message.object)
        if export is None or message.method not in export.methods:
            owner = "this object" if export is None else type(export.thing).__name__
            raise NotExported(f"{owner}.{message.method}" if export else owner)
        args = [read_any(one) for one in _read(message.args, list[Any])]
        if self.running >= CALLS_MAX:
            raise LimitReached("calls under way at this host", CALLS_MAX)
        self.running += 1
        incarnation = self._group.membership.members[source].incarnation
        export.host.run_apart(partial(self._run, export, message, args, source, incarnation))

    async def _run(
        self, export: Export, invoke: InvokeRequest, args: list[Any], source: str, incarnation: str
    ) -> None:
        """Run a method and send its result; with a blocking host on a thread, not on the loop."""
        title = f"{type(export.thing).__name__}.{invoke.method}"
        try:
            value = export.methods[invoke.method](*args)
            if export.host.is_async and isawaitable(value):
                value = await value
        except (Exception, SystemExit) as error:
            done = _failed(invoke.call, RemoteError(title, type(error).__name__, _text_of(error)))
        else:
            try:
                done = CallDone(invoke.call, _encode(encode_any(value, "its result"), "result"))
            except TupeloError as error:
                text = f"{title} was done, but its result cannot be sent: {error}"
                done = _failed(invoke.call, AnswerTooLarge(text))
        await export.host.on_loop(self._answer(done, source, incarnation))

    async def _answer(self, done: CallDone, source: str, incarnation: str) -> None:
        """Send a result to the caller's host, as soon as it is in reach; drop it if that host has
        left or was restarted."""
        self.running -= 1
        with suppress(HostClosed):
            membership = self._group.membership
            while (member := membership.members.get(source)) and member.incarnation == incarnation:
                try:
                    async with self._group.operating():
                        await self.sender.ask(source, done)
                    return
                except (PeerLost, UnknownHost):
                    await self._group.changed(membership)
                    membership = self._group.membership

    def metadata(self) -> None:
        """Nothing: exported objects are found by a collect."""

    def install(self, membership: Membership) -> None:
        for call, incarnation in self.awaited.values():
            member = membership.members.get(call.target)
            if member is None or member.incarnation != incarnation:
                call.lost("it has left", in_doubt=True)

    def cut(self, hosts: frozenset[str]) -> None:
        for call, _ in self.awaited.values():
            if call.target in hosts:
                call.lost("out of reach", in_doubt=True)

    async def stop(self) -> None:
        for call, _ in self.awaited.values():
            text = f"the host was closed during {call.during}: it may have been done or not"
            call.failed(HostClosed(text))


def registry_of(core: HostCore, name: str) -> ExportRegistry:
    """The registry of this name at a host, created if there is none."""
    found = core.extensions.get(f"rpc calls {name}")
    return found if isinstance(found, ExportRegistry) else ExportRegistry(core, name)


class Calls(HostedRequests):
    """The part of one Rpc that runs at its host: its exported objects, its searches and its
    invocations, which have ids like the requests of a broker."""

    def __init__(self, registry: ExportRegistry) -> None:
        self._registry = registry
        self._exported: dict[str, object] = {}
        self._standing: WeakSet[StandingRequest] = WeakSet()
        super().__init__(registry.core, lambda: registry.broker)

    async def export(self, export: Export, name: str) -> None:
        id = self._registry.core.new_id()
        self._registry.exports[id] = export
        self._exported[id] = export.thing
        for cls in type(export.thing).__mro__[:-1]:
            encoded = _EXPORTS.encode_update((cls.__name__, name, id))
            await self.offer(self._registry.offers, encoded)

    async def recall(self, thing: object) -> bool:
        return self._recall([id for id, one in self._exported.items() if one is thing])

    def _recall(self, ids: list[str]) -> bool:
        for id in ids:
            del self._exported[id], self._registry.exports[id]
            self._registry.offers.remove((ANY, ANY, id))
        return bool(ids)

    async def begin(
        self, targets: list[Target], method: str, args: bytes, wait: float | None
    ) -> str:
        """Call a method of each of these objects; the id under which `get` returns the results."""
        if len(self.backlogs) >= INVOCATIONS_MAX:
            raise LimitReached("invocations whose outcomes were not got", INVOCATIONS_MAX)
        backlog = NoticeBacklog(self._registry.core, len(targets) or 1)
        standing = StandingRequest(EncodedPattern(b"", None, ""), backlog.put, None)
        deadline = deadline_of(self._registry.core.clock, wait)

        under_way: dict[Target, asyncio.Task[None]] = {}

        async def call(target: Target) -> None:
            done = await self._registry.call(target, method, args, deadline)
            del under_way[target]
            standing.deliver(Reply(target.host, [msgspec.msgpack.encode((target, done))], False))
            if not under_way:
                standing.cancel()

        def stop() -> None:
            for task in under_way.values():
                task.cancel()

        standing.remove = stop
        under_way |= {target: asyncio.create_task(call(target)) for target in targets}
        if not targets:
            standing.cancel()
        return self._added(backlog, standing)

    def _added(self, backlog: NoticeBacklog, standing: StandingRequest) -> str:
        self._standing.add(standing)
        return super()._added(backlog, standing)

    def close(self) -> None:
        for standing in list(self._standing):
            standing.cancel()
        super().close()
        self._recall(list(self._exported))


METHODS: Mapping[str, ServiceMethod] = {
    **{name: BROKER_METHODS[name] for name in ("collect", "probe", "get", "cancel")},
    "begin": ServiceMethod(
        "write", (plain(list[Target]), plain(str), plain(bytes), plain(float | None))
    ),
}


class RpcService(DoorService[Calls]):
    """The service "rpc" of a host: its clients find and call the objects that the host reaches."""

    methods: ClassVar[Mapping[str, ServiceMethod]] = METHODS

    def open(self, hosted: HostedSpace) -> Calls:
        return Calls(registry_of(self.core, hosted.name))
