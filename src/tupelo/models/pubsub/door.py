"""PubSub: the broker of a host of this program, or of a host that a client is connected to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Literal, Self

from tupelo.errors import BadArgument, BadInput, HostClosed, TupeloError
from tupelo.federation.brokers.broker import Collected, Reply, check_word
from tupelo.federation.brokers.messages import Extent
from tupelo.federation.brokers.standing import read_reply, readable
from tupelo.federation.brokers.tables import check_length
from tupelo.federation.client.services import ServedDoor, check_client
from tupelo.federation.client.space import AsyncRemoteSpaceLike, RemoteSpace, RemoteSpaceLike
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import AsyncHost, Host
from tupelo.federation.hosts.local import LocalDoor, open_door
from tupelo.models.pubsub.served import (
    METHODS,
    DeliveredNotice,
    Functions,
    HostedRequests,
    NoticeBacklog,
    Offers,
    broker_for_program,
    own_key,
)
from tupelo.space.dual_api import Closing, dual_api, maybe_await, run_sync
from tupelo.space.query import check_count, check_wait, deadline_of
from tupelo.values.checks import check_text

Duration = Literal["probing", "single", "persistent"]

BACKLOG_MAX = 10_000
"""The default limit of waiting replies; then the oldest is dropped."""

logger = logging.getLogger("tupelo")


class PubSub(Closing):
    """The broker of one name at a host.

    By default, patterns are templates, updates are entries, and the state of a host is the entries
    that it offers. With `state(pattern)` (returns the matching items of this host) and
    `matches(pattern, update)` they are any values for msgpack; these functions are called on the
    loop of the host and must not wait. Patterns with the same `key(pattern)` are empty together; by
    default, only identical ones are. `prune` avoids probes of hosts that have promised to be empty.

    On a connection to a host this is the broker of that host with the name of the space. A client
    publishes, subscribes and collects; the state is that of the host. Its subscriptions end with
    the connection (PeerLost), and `close` closes the connection."""

    def __init__(
        self,
        host: Host | AsyncHost | RemoteSpaceLike | AsyncRemoteSpaceLike,
        name: str | None = None,
        *,
        state: Callable[[Any], list[Any]] | None = None,
        matches: Callable[[Any, Any], bool] | None = None,
        key: Callable[[Any], str] | None = None,
        prune: bool = True,
    ) -> None:
        if isinstance(host, RemoteSpace):
            decided = {"state": (state, None), "matches": (matches, None), "key": (key, None)}
            check_client(host, name, **decided, prune=(prune, True))
            name = host.name
        name = "pubsub" if name is None else name
        check_text("name", name)
        for given, function in (("state", state), ("matches", matches), ("key", key)):
            if function is not None and not callable(function):
                raise BadArgument(given, "a function", function)
        if (state is None) != (matches is None) or (key is not None and state is None):
            raise BadArgument("state", "given together with matches=, and key= only then", state)
        self.name = name
        self._application: Offers | Functions = Offers()
        if state is not None and matches is not None:
            self._application = Functions(state, matches, key or own_key)

        def make(core: HostCore) -> HostedRequests:
            broker = broker_for_program(core, name, self._application, prune)
            self._application = broker.application
            return HostedRequests(core, lambda: broker)

        self._door: LocalDoor[HostedRequests] | ServedDoor
        self._door = open_door(host, "pubsub", "broker", METHODS, make)
        self.is_async = self._door.is_async

    async def __aenter__(self) -> Self:
        await self._door.open()
        if isinstance(self._door, LocalDoor):
            await self._door.served.broker().taking_part()
        return self

    @property
    def hosts(self) -> Any:
        """The ids of the hosts that take part now, this host included. At the async door of a
        client it must be awaited."""
        if isinstance(self._door, LocalDoor):
            return self._door.served.broker().hosts
        work = partial(self._door.call, "hosts")
        return work() if self.is_async else run_sync(work)

    # State and updates

    @dual_api
    async def offer(self, entry: object) -> None:
        """Add an entry to the state of this host, and publish it."""
        door, offers = self._offers()
        encoded = offers.encode_update(entry)
        check_length(encoded, "entry")
        await door.run(door.served.offer, offers, encoded)

    @dual_api
    async def withdraw(self, template: object) -> list[Any]:
        """Remove the matching entries from the state of this host, and return them. Nothing is
        published."""
        door, offers = self._offers()
        gone: list[Any] = await door.run(door.served.withdraw, offers, template)
        return gone

    def _offers(self) -> tuple[LocalDoor[HostedRequests], Offers]:
        if isinstance(self._door, ServedDoor):
            raise BadInput(
                "a client has no state to offer or withdraw: brokers ask hosts for theirs; publish "
                "it, or offer it at a tupelo.Host of your own"
            )
        if not isinstance(self._application, Offers):
            raise BadArgument("state", "left out, if entries are to be offered")
        return self._door, self._application

    @dual_api
    async def publish(self, update: object) -> None:
        """Send an update to all hosts with a matching subscription or standing collect."""
        encoded = self._application.encode_update(update)
        if isinstance(self._door, ServedDoor):
            check_length(encoded, "update")
        await self._door.tell("publish", encoded)

    # Subscriptions and collects

    @dual_api
    async def subscribe(
        self,
        pattern: object,
        listener: Callable[[Reply], object] | None = None,
        *,
        backlog_max: int = BACKLOG_MAX,
    ) -> Replies:
        """Receive the matching updates from now on, also of this host: from the returned Replies,
        or by `listener(reply)` on a thread (or task) of its own. At most `backlog_max` replies
        wait."""
        encoded = self._application.encode_pattern(pattern)
        return await self._standing(
            listener, "subscribe", encoded, check_count(backlog_max, "backlog_max")
        )

    @dual_api
    async def collect(
        self,
        pattern: object,
        duration: Duration = "probing",
        extent: Extent = "all",
        listener: Callable[[Reply], object] | None = None,
        *,
        backlog_max: int = BACKLOG_MAX,
    ) -> Any:
        """Collect the state of hosts that matches the `pattern`; the `extent` is "any" host or
        "all".

        By its `duration` a collect is "probing": it asks once, and returns Collected; "single": it
        waits until one host, or each, has answered with a match; or "persistent": it goes on until
        it is cancelled. The last two return Replies, or call `listener(reply)`; at most
        `backlog_max` replies wait, then the oldest is dropped."""
        check_word("duration", duration, ("probing", "single", "persistent"))
        check_word("extent", extent, ("any", "all"))
        encoded = self._application.encode_pattern(pattern)
        if duration == "probing":
            if listener is not None:
                raise BadArgument(
                    "listener", "left out: a probing collect returns its result", listener
                )
            found: Collected = await self._door.call("probe", encoded, extent, wait=None)
            replies = [self._read_reply(reply) for reply in found.replies]
            return readable(Collected(replies, found.empty, found.lost))
        most = check_count(backlog_max, "backlog_max")
        return await self._standing(listener, "collect", encoded, duration, extent, most)

    async def _standing(
        self, listener: Callable[[Reply], object] | None, method: str, *args: Any
    ) -> Replies:
        id = await self._door.call(method, *args)
        return Replies(self._door, id, self._read_reply, listener)

    def _read_reply(self, reply: Reply) -> Reply:
        return read_reply(reply, self._application.read_item)

    # Closing

    @dual_api
    async def close(self) -> None:
        """Cancel subscriptions and collects, and take part no more, or close the connection."""
        door = self._door
        if isinstance(door, LocalDoor) and not door.closed:
            with suppress(HostClosed):  # It was closed with its host.
                await door.run(door.served.broker().close)
        await door.close()

    def __repr__(self) -> str:
        return f"<PubSub {self.name!r}>"


class Replies(Closing):
    """The replies to a subscription or a standing collect. Iterate over them (`async for` at the
    async door), or `get` the next. The properties of a client are those of its last `get`."""

    def __init__(
        self,
        door: LocalDoor[Any] | ServedDoor,
        id: str,
        read: Callable[[Reply], Reply],
        listener: Callable[[Any], object] | None = None,
    ) -> None:
        self.is_async = door.is_async
        self._door = door
        self._id = id
        self._read = read
        self._state: NoticeBacklog | DeliveredNotice
        self._state = (
            door.served.backlogs.pop(id) if isinstance(door, LocalDoor) else DeliveredNotice()
        )
        if listener is not None:
            door.run_apart(partial(self._call, listener))

    @property
    def is_over(self) -> bool:
        """Whether the request was cancelled or satisfied; replies may still wait."""
        return self._state.is_over

    @property
    def missed(self) -> int:
        """The number of replies that were dropped because too many were waiting."""
        return self._state.missed

    @property
    def lost(self) -> frozenset[str]:
        """The hosts that became unreachable before they could answer."""
        return self._state.lost

    @dual_api
    async def get(self, *, wait: float | None = None) -> Reply | None:
        """The next reply; None after `wait` seconds without one, or if no more will come."""
        check_wait(wait)
        state, door = self._state, self._door
        deadline = deadline_of(door.host.core.clock, wait) if isinstance(door, LocalDoor) else None
        while True:
            if isinstance(door, LocalDoor):
                assert isinstance(state, NoticeBacklog)
                notice: DeliveredNotice = await door.host.on_loop(
                    state.next(deadline), state.put_back
                )
            else:
                notice = await door.call("get", self._id, wait=wait)
                if notice.reply is not None or not state.is_over:
                    self._state = notice
            if notice.reply is None:
                return None
            reply = self._read(notice.reply)
            if reply.items:
                return reply

    @dual_api
    async def cancel(self) -> None:
        """End the subscription or collect; replies that wait can still be got."""
        state, door = self._state, self._door
        if self.is_over:
            return
        if isinstance(door, LocalDoor):
            assert isinstance(state, NoticeBacklog)

            async def work() -> None:
                state.cancel()

            await door.host.on_loop(work())
        elif not door.closed:
            self._state = DeliveredNotice(None, True, self.missed, self.lost)
            await door.call("cancel", self._id)

    close = cancel

    def __repr__(self) -> str:
        state = "over" if self.is_over else "open"
        return f"<{type(self).__name__}, {state}, {self.missed} missed>"

    async def _call(self, listener: Callable[[Any], object]) -> None:
        try:
            while (reply := await maybe_await(self.get())) is not None:
                answer = listener(reply)
                if self.is_async and isawaitable(answer):
                    await answer
        except Exception as error:
            if not isinstance(error, TupeloError):
                logger.exception("a listener raised; it is not called again")
            with suppress(TupeloError):  # The host or the connection may be closed.
                await maybe_await(self.cancel())

    def __iter__(self) -> Any:
        while (reply := self.get()) is not None:
            yield reply

    async def __aiter__(self) -> Any:
        while (reply := await self.get()) is not None:
            yield reply
