"""Adopting: entries from elsewhere live here from now on, under the identity that they have."""

from __future__ import annotations

import logging

from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.space import reaction
from tupelo.space.core import Core
from tupelo.space.tasks import TaskSignal
from tupelo.space.writers import Mark
from tupelo.values.entry import Entry

logger = logging.getLogger("tupelo")


def take_in(hosted: HostedSpace, entry: Entry) -> int:
    """Write this entry here, as any other; the position at which that is durable. If the space
    refuses it nothing was done, and it stays where it is."""
    lease = None if entry.expires is None else entry.expires - hosted.clock.now()
    if lease is not None and lease <= 0:
        return 0
    _, position = hosted.operations.write_items(
        [(entry.shape, entry.fields)],
        lease,
        None,
        None,
        TaskSignal,
        0,
        Mark(entry.origin, entry.n, entry.to),
    )
    return position


def adopt(hosted: HostedSpace, entries: list[Entry]) -> None:
    """Let entries live here which have no other place any more. What the space would refuse is
    let in all the same, as what returns to it is; only a space that is closed cannot have it."""
    position = 0
    for entry in entries:
        try:
            try:
                position = max(position, take_in(hosted, entry))
            except Exception as refusal:
                logger.info(
                    "%r is over its limits for what returns to it: %r", hosted.name, refusal
                )
                position = max(position, let_in(hosted, [entry]))
        except Exception as error:
            logger.warning("an entry for %r is lost: %r", hosted.name, error)
    hosted.flush_soon(position)


def let_in(hosted: HostedSpace, entries: list[Entry]) -> int:
    """Past the capacity, the keys and the reactions of the space, all of them in one step; the
    position at which that is durable."""
    engine, core = hosted.engine, hosted.operations.core
    with engine.lock:
        engine.begin()
        try:
            core.expire()
            come = [_moved_in(core, entry) for entry in entries]
            for entry in come:
                core.subscriptions.notify(entry, "visible")
            if core.reactions and reaction.wanted(core, come):
                reaction.catch_up(core, come)
            for entry in come:
                if not entry.gone:
                    core.offer(entry)
        finally:
            engine.settle()
        return core.log.position


def _moved_in(core: Core, entry: Entry) -> Entry:
    here = Entry(
        entry.fields,
        entry.shape,
        entry.origin,
        entry.n,
        core.next_arrival(),
        entry.expires,
        to=entry.to,
    )
    if core.log.on:
        here.arrival = core.log.position + 1
    if core.books is not None:
        core.books.readmit(here)
    if core.room is not None:
        core.room.add([here])
    core.store.add(here)
    core.deadlines.add(here)
    core.directed.add(here)
    core.log.add("written", here)
    return here
