"""Writing: the writes of a client at its host, and those that wait until there is room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tupelo.errors import AnswerTooLarge, BadArgument, BadFrame, LimitReached
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import SPELLED_AT_ONCE, encode_leases, read_encoded_entry
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.tasks import TaskSignal, turn
from tupelo.space.waiting import Items, WriteOutcome, Writer
from tupelo.values.lease import Lease, check_lease

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.serving import ClientServer


RUN_BYTES = 32
"""No run of leases needs more, but for those that do not expire together: of these the question had
one lease each, which were as long."""


class ClientWrites:
    """The writes of one client."""

    def __init__(self, host: HostCore, serving: ClientServer) -> None:
        self._host = host
        self._serving = serving
        self._shapes_max = host.limits.shapes
        self._waiting: dict[int, tuple[HostedSpace, Writer]] = {}

    def write(self, message: wire.Write) -> None:
        serving = self._serving
        hosted = serving.hosted(message.space, "write")
        entries = message.entries
        if len(hosted.port.shapes) >= self._shapes_max:
            self._require_known_shapes(hosted, entries)
        if (
            len(entries) == 1
            and message.txn is None
            and message.lease is None
            and message.at is None
            and message.to is None
            and message.wait == 0
            and message.leases
            and type(entries[0]) is list
        ):
            lease = hosted.port.write_fast(tuple(entries[0]), serving.actor)
            if lease is not None:
                self._wrote(message.call, hosted, [lease], lease.thing.arrival)
                return
        if len(entries) > wire.BULK_MAX:
            raise BadArgument(
                "entries", f"at most {wire.BULK_MAX:,} at a time", f"{len(entries):,}"
            )
        if len(entries) > SPELLED_AT_ONCE:
            serving.requests.spawn(message.call, self._write_many(message, hosted))
            return
        items = [read_encoded_entry(entry) for entry in entries]
        if message.wait != 0:
            serving.requests.require_new(message.call)
        outcome, position = self._write_items(message, hosted, items)
        if isinstance(outcome, Writer):
            serving.requests.spawn(message.call, self._await(hosted, message, outcome))
            return
        self._wrote(message.call, hosted, self._wanted(hosted, message, outcome), position)

    async def _write_many(self, message: wire.Write, hosted: HostedSpace) -> list[list[Any]]:
        """Read the entries in slices, in between of which others get their turn, and write them in
        one step."""
        items: Items = []
        for start in range(0, len(message.entries), SPELLED_AT_ONCE):
            async with turn():
                some = message.entries[start : start + SPELLED_AT_ONCE]
                items += [read_encoded_entry(entry) for entry in some]
                await asyncio.sleep(0)
        outcome, position = self._write_items(message, hosted, items)
        if isinstance(outcome, Writer):
            return await self._await(hosted, message, outcome)
        await asyncio.sleep(0)  # The step was long, and so is the answer.
        return await self._flush(hosted, self._wanted(hosted, message, outcome), position)

    def _write_items(
        self, message: wire.Write, hosted: HostedSpace, items: Items
    ) -> tuple[list[Lease] | Writer, int]:
        """What was written, or a writer that waits; and the position to make durable."""
        serving = self._serving
        leases = message.lease
        if isinstance(leases, list):
            asked: Any = [check_lease(seconds) for seconds in leases]
            if len(asked) != len(items):
                raise BadFrame("a lease for each entry, or one for all")
        else:
            asked = check_lease(leases)
        if message.at is not None and len(message.at) != len(items):
            raise BadFrame("a place for each entry")
        txn = serving.resources.transaction(hosted, message.txn)
        with hosted.port.acting(serving.actor):
            outcome, position = hosted.port.write_items(
                items,
                asked,
                txn,
                message.at,
                TaskSignal,
                message.wait,
                WriteOutcome(origin=serving.agent, to=message.to),
            )
        if isinstance(outcome, Writer):
            self._waiting[message.call] = hosted, outcome
        return outcome, position

    def _require_known_shapes(self, hosted: HostedSpace, entries: list[Any]) -> None:
        """LimitReached if the space would learn a shape: it never forgets one."""
        shapes = hosted.port.shapes
        if any(read_encoded_entry(entry)[0] not in shapes for entry in entries):
            raise LimitReached(f"shapes of entries in {hosted.name!r}", self._shapes_max)

    def _wanted(self, hosted: HostedSpace, message: wire.Write, leases: list[Lease]) -> list[Lease]:
        """The leases that the client wants to hear of: all or none."""
        if message.txn is None and message.to is not None:
            self._host.mover.arrived()
        if not message.leases:
            return []
        if message.txn is not None:
            self._serving.resources.wrote(hosted, leases)
        return leases

    def _wrote(self, call: int, hosted: HostedSpace, leases: list[Lease], position: int) -> None:
        if hosted.durable and position:
            self._serving.requests.spawn(call, self._flush(hosted, leases, position))
        else:
            self._serving.talk.say(wire.Answer(call, _answer(leases)))

    async def _flush(
        self, hosted: HostedSpace, leases: list[Lease], position: int
    ) -> list[list[Any]]:
        await hosted.flush(position)
        return _answer(leases)

    async def _await(
        self, hosted: HostedSpace, message: wire.Write, writer: Writer
    ) -> list[list[Any]]:
        try:
            leases, position = await hosted.port.writing_of(writer, message.wait)
        finally:
            self._waiting.pop(message.call, None)
        return await self._flush(hosted, self._wanted(hosted, message, leases), position)

    def stop(self, call: int) -> None:
        """Nobody waits for this any more. Its task may not even have begun, so it is not left to
        that: an entry that comes into the space now would be nobody's."""
        hosted, writer = self._waiting.pop(call, (None, None))
        if hosted is not None and writer is not None:
            hosted.port.stop_writing(writer)

    def stop_all(self) -> None:
        for call in list(self._waiting):
            self.stop(call)


def _answer(leases: list[Lease]) -> list[list[Any]]:
    """The leases, as they are sent. AnswerTooLarge if they do not fit in a frame."""
    things = [lease.thing for lease in leases]
    if len(things) == 1:  # as most are
        return [[things[0].n, things[0].arrival, things[0].expires]]
    runs = encode_leases((one.n, one.arrival, one.expires) for one in things)
    if len(runs) * RUN_BYTES > wire.FRAME_MAX:
        raise AnswerTooLarge(
            f"all {len(leases):,} entries were written, but their leases do not fit in an answer "
            f"of {wire.FRAME_MAX:,} bytes; write fewer at a time, to renew or cancel them"
        )
    return runs
