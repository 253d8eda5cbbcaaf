"""Shifting: a write before which gives way what stands in its way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tupelo.errors import BadArgument, SpaceFull
from tupelo.models.xvsm.chain import template_for
from tupelo.models.xvsm.container import Container, Entry
from tupelo.models.xvsm.coordinators import AnyCoordinator, Coordinator, VectorCoordinator
from tupelo.models.xvsm.selectors import VectorSelector
from tupelo.space.either import settled
from tupelo.space.order import Order
from tupelo.space.shared import SharedTransaction
from tupelo.values.entry import Entry as CoreEntry
from tupelo.values.lease import Lease
from tupelo.values.parts import ANY


class GivesWay(Order):
    """Who is shifted out first, as a coordinator says."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def arrange(self, found: list[CoreEntry]) -> Iterable[CoreEntry]:
        return self._coordinator.gives_way(found)


async def shift(
    container: Container, space: Any, txn: SharedTransaction, entries: list[Any]
) -> list[Lease]:
    """Write each entry; the transaction makes it all one step, or nothing."""
    if container.active is not None:
        raise BadArgument("cref", "a container without an ActiveCoordinator", container)
    leases = []
    for entry in entries:
        stored, at = container.stored(entry)
        await _clear_place(container, space, txn, entry)
        await _clear_keys(container, space, txn, stored)
        while True:
            try:
                leases.append(await settled(space.write(stored, txn=txn, at=at)))
                break
            except SpaceFull as full:
                if not await _clear_one(container, space, txn):
                    raise SpaceFull(
                        f"the container {container.name!r} is full, and nothing may give way"
                    ) from full
    return leases


async def _clear_place(
    container: Container, space: Any, txn: SharedTransaction, entry: Any
) -> None:
    """What stands at the index where a vector is to be written."""
    for selector in entry.selectors if isinstance(entry, Entry) else ():
        if isinstance(selector, VectorSelector) and selector.index is not None:
            there = container.question((VectorSelector(selector.index, name=selector.name),))
            await settled(space.take_all(there.template, txn=txn, order=there.chain))


async def _clear_keys(
    container: Container, space: Any, txn: SharedTransaction, stored: Any
) -> None:
    """The entries with its keys; if another transaction holds one, the write will be refused."""
    for coordinator, key in container.key_of(stored):
        if key is not None:
            kept = {coordinator.position: key}
            template = template_for(container.width, container.arity, kept, [])
            await settled(space.take(template, wait=0, txn=txn))


async def _clear_one(container: Container, space: Any, txn: SharedTransaction) -> bool:
    """The first that the first coordinator lets go."""
    first = next((c for c in container.given if not c.optional), None) or AnyCoordinator()
    kind = type(first)
    oldest = (
        kind.gives_way is Coordinator.gives_way
        and kind.arrange is Coordinator.arrange
        and not isinstance(first, VectorCoordinator)
    )
    order = None if oldest else GivesWay(first)
    return await settled(space.take(ANY, wait=0, txn=txn, order=order)) is not None
