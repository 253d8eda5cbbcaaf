"""The part of a Melon that runs at its host: for the program of the host, or for a client."""

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
from tupelo.models.melon.message_store import MessageStore, check_name, message_store_of
from tupelo.models.melon.reading import MessageReader
from tupelo.values.codec import encode_entry, entry_to_wire
from tupelo.values.entry import FrozenEntry


class HostedMelon:
    """A process of MELON at its host; used on the host's loop. With `known`, a message whose class
    is unknown in this program raises UnknownType; without, it is for a client."""

    def __init__(self, message_store: MessageStore, *, known: bool = True) -> None:
        self.message_store = message_store
        self.reader = MessageReader(message_store, known=known)
        self.backlog = CollectedBacklog(message_store.core.clock, known)
        message_store.listeners.add(self.backlog)

    def close(self) -> None:
        self.reader.close()
        self.backlog.close()
        self.message_store.listeners.discard(self.backlog)

    async def store(self, item: FrozenEntry, pin: bool) -> None:
        await self.message_store.add(self.message_store.stored, item, pin)

    async def write(self, item: FrozenEntry, pin: bool) -> None:
        self.message_store.check_copied(len(encode_entry(*item)))
        await self.message_store.add(self.message_store.written, item, pin)

    async def unpin(self, template: object) -> int:
        return await self.message_store.unpin(template)

    async def take(
        self, template: object, many: bool, sender: str | None, *, wait: float | None
    ) -> HandOver:
        taking = self.message_store.taking
        taken = await taking.take(template, wait, many, sender)
        confirm = partial(taking.confirm, taken) if taking.is_unconfirmed(taken) else None
        return HandOver(taken, confirm, partial(taking.put_back, taken))

    async def read(self, template: object, many: bool, *, wait: float | None) -> HandOver:
        found = await self.reader.read(template, wait, many)
        return HandOver(found, None, partial(self.reader.undo, found))

    async def collected(self, *, wait: float | None) -> HandOver:
        """How many messages were collected, and the next one of the backlog, or None."""
        backlog = self.backlog
        one = await backlog.next(wait)
        return HandOver((backlog.count, one), None, partial(backlog.put_back, one))


def _encode_collected(answer: tuple[int, Collected | None]) -> list[Any]:
    count, one = answer
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
        ServiceCodec(_encode_collected, _read_collected, lambda answer: answer),
        waits=True,
        hands_over=True,
    ),
}


class MelonService(DoorService[HostedMelon]):
    """The service "melon" of a host: a HostedMelon for each Melon of a client."""

    methods: ClassVar[Mapping[str, ServiceMethod]] = METHODS

    def open(self, hosted: HostedSpace) -> HostedMelon:
        store = message_store_of(self.core, check_name(hosted.name))
        return HostedMelon(store, known=False)
