"""What a host keeps for one Melon, of a program that is the host or of a client of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from tupelo.federation.client.arguments import built, parts
from tupelo.federation.client.services import (
    ENTRIES,
    ITEM,
    TEMPLATE,
    ServiceCodec,
    ServiceMethod,
    plain,
)
from tupelo.federation.hosts.services import DoorService, HandOver
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.melon.collecting import Collected, CollectedBacklog
from tupelo.models.melon.message_store import Item, MessageStore, check_name, post_of
from tupelo.models.melon.reading import MessageReader
from tupelo.values.codec import entry_to_wire


class HostedMelon:
    """A process of MELON at its host, on the host's loop. Messages of classes that are not `known`
    in this program are for a client; else UnknownType."""

    def __init__(self, post: MessageStore, *, known: bool = True) -> None:
        self.post = post
        self.reader = MessageReader(post, known=known)
        self.backlog = CollectedBacklog(post.core.clock, known)
        post.listeners.add(self.backlog)

    def close(self) -> None:
        self.reader.close()
        self.backlog.close()
        self.post.listeners.discard(self.backlog)

    async def store(self, item: Item, pin: bool) -> None:
        await self.post.add(self.post.stored, item, pin)

    async def direct(self, message: object, to: str, pin: bool) -> None:
        await self.post.direct(message, to, pin)

    async def write(self, item: Item, pin: bool) -> None:
        await self.post.write(item, pin)

    async def unpin(self, template: object) -> int:
        return await self.post.unpin(template)

    async def take(
        self, template: object, many: bool, sender: str | None, *, wait: float | None
    ) -> HandOver:
        taking = self.post.taking
        taken = await taking.take(template, wait, many, sender)
        confirm = partial(taking.confirm, taken) if taking.is_unconfirmed(taken) else None
        return HandOver(taken, confirm, partial(taking.put_back, taken))

    async def read(self, template: object, many: bool, *, wait: float | None) -> HandOver:
        found = await self.reader.read(template, wait, many)
        return HandOver(found, None, partial(self.reader.undo, found))

    async def collected(self, *, wait: float | None) -> HandOver:
        """How many were collected, and the next one that was not told yet."""
        backlog = self.backlog
        one = await backlog.next(wait)
        return HandOver((backlog.count, one), None, partial(backlog.put_back, one))


def _encode_collected(told: tuple[int, Collected | None]) -> list[Any]:
    count, one = told
    if one is None:
        return [count, None, None]
    message = one.message
    if not isinstance(message, str):
        message = entry_to_wire(message.shape, message.fields)
    return [count, one.kind, message]


def _read_collected(answer: Any) -> tuple[int, Collected | None]:
    count, kind, message = parts(answer, 3)
    if kind is None:
        return count, None
    return count, Collected(message if isinstance(message, str) else built(message), kind)


METHODS: Mapping[str, ServiceMethod] = {
    "store": ServiceMethod("write", (ITEM, plain(bool))),
    "write": ServiceMethod("write", (ITEM, plain(bool))),
    "unpin": ServiceMethod("take", (TEMPLATE,)),
    "read": ServiceMethod("read", (TEMPLATE, plain(bool)), ENTRIES, waits=True, hands_over=True),
    "collected": ServiceMethod(
        "read",
        (),
        ServiceCodec(_encode_collected, _read_collected, lambda told: told),
        waits=True,
        hands_over=True,
    ),
}


class MelonService(DoorService[HostedMelon]):
    """Runs processes of MELON for the clients of a host."""

    methods: ClassVar[Mapping[str, ServiceMethod]] = METHODS

    def open(self, hosted: HostedSpace) -> HostedMelon:
        name = check_name(hosted.name)
        return HostedMelon(post_of(self.core, name, None, None, self.core.identity), known=False)
