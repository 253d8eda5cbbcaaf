"""Publish-subscribe-collect: the door with the words of Ceriotti, Murphy and Picco.

| the paper                  | Tupelo                                                            |
| -------------------------- | ----------------------------------------------------------------- |
| broker, node               | host; brokers of one name are one, where hosts reach each other   |
| publish(message)           | publish(update)                                                   |
| subscribe(pattern)         | subscribe(pattern): replies, each with one update                 |
| unsubscribe                | cancel()                                                          |
| local state                | what is offered here: offer(entry), withdraw(template); or what   |
|                            | the function `state=` says                                        |
| state pattern              | template; or any value that `state=` and `matches=` understand    |
| state update               | the entry that is offered or published; or any such value         |
| empty                      | nothing matches; `state=` says []                                 |
| probing-collect, any, all  | collect(p, "probing", "any"), ... "all": what was collected       |
| single-collect, any, all   | collect(p, "single", "any"), ... "all": replies, until satisfied  |
| persistent-collect         | collect(p, "persistent", ...): replies, until cancelled           |
| cached *empty* (7.4)       | prune=True                                                        |

It stands on a host of either door; on one of the async door its operations are awaited. The tree of
brokers forms by itself from the hosts that are engaged, and mends itself when one leaves: who
cannot answer any more is named as lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from inspect import isawaitable
from typing import Any, Literal, Self

import msgspec

from tupelo.errors import BadArgument, BadFrame, HostClosed, TupeloError
from tupelo.federation.brokers.broker import Broker, Collected, Reply, Standing
from tupelo.federation.brokers.standing import read_reply, readable
from tupelo.federation.brokers.tables import check_length
from tupelo.federation.groups.group import group_of
from tupelo.federation.hosts.doors import AsyncHost, Host, HostDoor
from tupelo.federation.hosts.peer import Peer
from tupelo.space.checks import check_wait
from tupelo.space.either import either, settled
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Shape, freeze, thaw
from tupelo.values.spelling import read_wire_extension, template_from_wire, template_to_wire
from tupelo.values.template import Template, as_template

__all__ = ["Collected", "PubSub", "Replies", "Reply"]

Duration = Literal["probing", "single", "persistent"]
Extent = Literal["any", "all"]

BACKLOG_MAX = 10_000
"""So many replies wait to be got; then the oldest is dropped."""

logger = logging.getLogger("tupelo")


class Offers:
    """The entries that are offered at this host: what brokers ask if nobody says otherwise."""

    asks_again = False

    def __init__(self) -> None:
        self._offered: list[tuple[Shape, tuple[Any, ...], bytes]] = []

    def add(self, spelled: bytes) -> None:
        self._offered.append((*decode_entry(spelled), spelled))

    def remove(self, template: object) -> list[Any]:
        asked = as_template(template)
        gone = [one for one in self._offered if _matches(asked, one[0], one[1])]
        self._offered = [one for one in self._offered if not _matches(asked, one[0], one[1])]
        return [thaw(shape, fields) for shape, fields, _ in gone]

    # As an application of the brokers

    def state(self, pattern: bytes) -> list[bytes]:
        template = _read_template(pattern)
        return [
            spelled for shape, fields, spelled in self._offered if _matches(template, shape, fields)
        ]

    def matches(self, pattern: bytes, update: bytes) -> bool:
        return _matches(_read_template(pattern), *decode_entry(update))

    def key(self, pattern: bytes) -> str:
        _read_template(pattern)
        return pattern.hex()

    def allows(self, neighbour: str, pattern: bytes) -> bool:
        return True

    # How users' values are said

    def spell_pattern(self, template: object) -> bytes:
        return msgspec.msgpack.encode(template_to_wire(template))

    def spell_update(self, entry: object) -> bytes:
        return encode_entry(*freeze(entry))

    def read_item(self, item: bytes) -> Any:
        return thaw(*decode_entry(item))


class Functions:
    """An application that a user has given as functions. All values are said as they are."""

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

    def allows(self, neighbour: str, pattern: Any) -> bool:
        return True

    def spell_pattern(self, pattern: Any) -> Any:
        return pattern

    def spell_update(self, update: Any) -> Any:
        return update

    def read_item(self, item: Any) -> Any:
        return item


class PubSub:
    """The broker of one name at a host.

    Without functions, patterns are templates, updates are entries, and the state of a host are the
    entries that it offers. With `state` (what is here for a pattern?) and `matches` (is this update
    one for this pattern?) they are any values that msgpack can hold; the functions are called on
    the host's own thread, and must not wait. `key` tells which patterns are empty together; unless
    it is given, only identical ones are. `prune` spares hosts questions that they would answer with
    nothing.
    """

    def __init__(
        self,
        host: Host | AsyncHost,
        name: str = "pubsub",
        *,
        state: Callable[[Any], list[Any]] | None = None,
        matches: Callable[[Any, Any], bool] | None = None,
        key: Callable[[Any], str] | None = None,
        prune: bool = True,
    ) -> None:
        if not isinstance(host, HostDoor):
            raise BadArgument("host", "a Host, of either door", host)
        if not isinstance(name, str) or not name:
            raise BadArgument("name", "a text that is not empty", name)
        for given, function in (("state", state), ("matches", matches), ("key", key)):
            if function is not None and not callable(function):
                raise BadArgument(given, "a function", function)
        if (state is None) != (matches is None) or (key is not None and state is None):
            raise BadArgument("state", "given together with matches=, and key= only then", state)
        self.is_async = host.is_async
        self.name = name
        self._host = host
        self._channel = f"pubsub {name}"
        self._closed = False
        if state is None or matches is None:
            self._application: Offers | Functions = Offers()
        else:
            self._application = Functions(state, matches, key or _own_key)
        self._prune = prune
        host._now(self._start())

    async def _start(self) -> None:
        core = self._host._core
        if self._channel in core.carriers:
            raise BadArgument("name", "one that is not in use at this host", self.name)
        core.carriers[self._channel] = _Ending(self)
        self._group = group_of(core)
        self._broker = Broker(
            self._group,
            self._channel,
            self._application,
            prune=self._prune,
            asks_again=self._application.asks_again,
        )
        self._joining = asyncio.ensure_future(self._group.renew())
        self._joining.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _taking_part(self) -> Broker:
        """The broker, once it is known to the others."""
        if self._closed:
            raise HostClosed("this broker was closed")
        await asyncio.shield(self._joining)
        return self._broker

    @property
    def hosts(self) -> frozenset[str]:
        """The ids of the hosts that take part now, this one among them."""
        return self._broker.hosts

    # State and updates

    @either
    async def offer(self, entry: object) -> None:
        """Make an entry part of the state of this host, and publish that."""
        offers = self._offers()
        spelled = offers.spell_update(entry)
        check_length(spelled, "entry")

        async def work() -> None:
            broker = await self._taking_part()
            async with self._group.operating():
                offers.add(spelled)
                await broker.publish(spelled)

        await self._host._on_loop(work())

    @either
    async def withdraw(self, template: object) -> list[Any]:
        """Offer these no more; what they were. Nobody is told of it."""
        offers = self._offers()

        async def work() -> list[Any]:
            return offers.remove(template)

        gone: list[Any] = await self._host._on_loop(work())
        return gone

    def _offers(self) -> Offers:
        if not isinstance(self._application, Offers):
            raise BadArgument("state", "left out, if entries are to be offered", "given")
        return self._application

    @either
    async def publish(self, update: object) -> None:
        """Tell everyone whose subscription or standing collect matches."""
        spelled = self._application.spell_update(update)

        async def work() -> None:
            await (await self._taking_part()).publish(spelled)

        await self._host._on_loop(work())

    # Subscriptions and collects

    @either
    async def subscribe(
        self,
        pattern: object,
        listener: Callable[[Reply], object] | None = None,
        *,
        backlog_max: int = BACKLOG_MAX,
    ) -> Replies:
        """Updates that match, from now on, of this host as well; to be got from what is returned,
        or told to a listener on a thread (or task) of its own."""
        spelled = self._application.spell_pattern(pattern)
        replies = Replies(self, backlog_max)

        async def work() -> None:
            broker = await self._taking_part()

            def deliver(host: str, update: Any) -> None:
                replies._put(Reply(host, [update], True))

            replies._stand(broker.subscribe(spelled, deliver))

        await self._host._on_loop(work())
        return replies._listened_to(listener)

    @either
    async def collect(
        self,
        pattern: object,
        duration: Duration = "probing",
        extent: Extent = "all",
        listener: Callable[[Reply], object] | None = None,
        *,
        backlog_max: int = BACKLOG_MAX,
    ) -> Any:
        """Collect the state of any host, or of all of them. A probing collect answers with what was
        Collected; single and persistent ones with Replies, that come as they are found."""
        if duration not in ("probing", "single", "persistent"):
            raise BadArgument("duration", '"probing", "single" or "persistent"', duration)
        if extent not in ("any", "all"):
            raise BadArgument("extent", '"any" or "all"', extent)
        spelled = self._application.spell_pattern(pattern)
        if duration == "probing":
            if listener is not None:
                raise BadArgument("listener", "left out: a probing collect answers", listener)
            return self._read(await self._host._on_loop(self._probe(spelled, extent)))
        replies = Replies(self, backlog_max)

        async def work() -> None:
            broker = await self._taking_part()
            replies._stand(
                broker.collect(spelled, duration, extent, replies._put, replies._tell_lost)
            )

        await self._host._on_loop(work())
        return replies._listened_to(listener)

    async def _probe(self, spelled: Any, extent: Extent) -> Collected:
        return await (await self._taking_part()).probe(spelled, extent)

    def _read(self, collected: Collected) -> Collected:
        replies = [self._read_reply(reply) for reply in collected.replies]
        return readable(Collected(replies, collected.empty, collected.lost))

    def _read_reply(self, reply: Reply) -> Reply:
        return read_reply(reply, self._application.read_item)

    # The end

    @either
    async def close(self) -> None:
        """Take part no more; what stands is cancelled."""

        async def work() -> None:
            if not self._closed:
                self._end()
                del self._host._core.carriers[self._channel]
                await self._group.renew()

        if not self._closed:
            try:
                await self._host._on_loop(work())
            except HostClosed:
                return  # It has ended with its host.

    def _end(self) -> None:
        """On the host's loop: it is over."""
        self._closed = True
        self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.shield(self._joining)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Replies:
    """What comes for a subscription or a standing collect. Iterate over it (`async for` at the
    async door), or `get` one; it is over when it was cancelled, or satisfied."""

    def __init__(self, pubsub: PubSub, backlog_max: int) -> None:
        if type(backlog_max) is not int or backlog_max < 1:
            raise BadArgument("backlog_max", "a whole number above 0", backlog_max)
        self.is_async = pubsub.is_async
        self.missed = 0
        """How many were dropped because too many were waiting."""
        self.lost: frozenset[str] = frozenset()
        """The hosts that became unreachable before they could answer."""
        self._pubsub = pubsub
        self._backlog: deque[Reply] = deque()
        self._backlog_max = backlog_max
        self._news = asyncio.Event()
        self._standing: Standing

    # For the broker, on the host's loop

    def _stand(self, standing: Standing) -> None:
        self._standing = standing
        standing.when_over = self._wake

    def _put(self, reply: Reply) -> None:
        if len(self._backlog) >= self._backlog_max:
            self._backlog.popleft()
            self.missed += 1
        self._backlog.append(reply)
        self._wake()

    def _tell_lost(self, hosts: frozenset[str]) -> None:
        self.lost |= hosts

    def _wake(self) -> None:
        self._news.set()
        self._news.clear()

    # For the user

    @property
    def is_over(self) -> bool:
        """Will no more come? Some may still wait to be got."""
        return self._standing.is_over

    @either
    async def get(self, *, wait: float | None = None) -> Reply | None:
        """The next one; None if none came in time, or no more will come."""
        check_wait(wait)
        reply: Reply | None
        while (reply := await self._pubsub._host._on_loop(self._get(wait))) is not None:
            if (reply := self._pubsub._read_reply(reply)).items:
                break
        return reply

    async def _get(self, wait: float | None) -> Reply | None:
        try:
            async with asyncio.timeout(wait):
                while not self._backlog and not self.is_over:
                    await self._news.wait()
        except TimeoutError:
            pass
        return self._backlog.popleft() if self._backlog else None

    @either
    async def cancel(self) -> None:
        async def work() -> None:
            self._standing.cancel()

        if not self.is_over:
            await self._pubsub._host._on_loop(work())

    def _listened_to(self, listener: Callable[[Reply], object] | None) -> Replies:
        if listener is not None:
            self._pubsub._host._start(partial(self._call, listener))
        return self

    async def _call(self, listener: Callable[[Reply], object]) -> None:
        try:
            while (reply := await settled(self.get())) is not None:
                answer = listener(reply)
                if self.is_async and isawaitable(answer):
                    await answer
        except Exception as error:
            if not isinstance(error, TupeloError):
                logger.exception("a listener raised; it is told no more")
            await settled(self.cancel())

    def __iter__(self) -> Any:
        while (reply := self.get()) is not None:
            yield reply

    async def __aiter__(self) -> Any:
        while (reply := await self.get()) is not None:
            yield reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.cancel()


class _Ending:
    """Hears of the end of the host. Brokers speak through the group, not over a channel."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    def engaged(self, peer: Peer) -> None:
        pass

    def departed(self, peer: Peer) -> None:
        pass

    def heard(self, peer: Peer, body: Any) -> None:
        raise BadFrame("nothing is said on this channel")

    async def stop(self) -> None:
        self._pubsub._end()


def _matches(template: Template, shape: Shape, fields: tuple[Any, ...]) -> bool:
    binding = template.bind(shape)
    return binding is not None and binding.test(fields)


_read_spelled = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode


@lru_cache(maxsize=1_024)
def _read_template(spelled: bytes) -> Template:
    return as_template(template_from_wire(_read_spelled(spelled)))


def _own_key(pattern: Any) -> str:
    return msgspec.msgpack.encode(pattern).hex()
