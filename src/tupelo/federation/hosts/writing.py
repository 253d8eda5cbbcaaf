"""Writing: the writes of a client at its host, and those that wait until there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tupelo.errors import BadFrame, LimitReached
from tupelo.federation.links import wire
from tupelo.federation.links.spelled import read_spelled_entry
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.tasks import TaskSignal
from tupelo.space.writers import Mark, Writer
from tupelo.values.lease import Lease, check_lease

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.serving import Serving


class Writing:
    """The writes of one client."""

    def __init__(self, host: HostCore, serving: Serving) -> None:
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
            lease = hosted.port.write_plainly(tuple(entries[0]), serving.actor)
            if lease is not None:
                self._wrote(message.call, hosted, [lease], lease.thing.arrival)
                return
        items = [read_spelled_entry(entry) for entry in entries]
        leases = message.lease
        if isinstance(leases, list):
            asked: Any = [check_lease(seconds) for seconds in leases]
            if len(asked) != len(items):
                raise BadFrame("a lease for each entry, or one for all")
        else:
            asked = check_lease(leases)
        if message.at is not None and len(message.at) != len(items):
            raise BadFrame("a place for each entry")
        if message.wait != 0:
            serving.requests.require_new(message.call)
        txn = serving.possessions.transaction(hosted, message.txn)
        with hosted.port.acting(serving.actor):
            outcome, position = hosted.port.write_items(
                items,
                asked,
                txn,
                message.at,
                TaskSignal,
                message.wait,
                Mark(origin=serving.agent, to=message.to),
            )
        if isinstance(outcome, Writer):
            self._waiting[message.call] = hosted, outcome
            serving.requests.spawn(message.call, self._await(hosted, message, outcome))
            return
        self._wrote(message.call, hosted, self._wanted(hosted, message, outcome), position)

    def _require_known_shapes(self, hosted: HostedSpace, entries: list[Any]) -> None:
        """LimitReached if the space would learn a shape: it never forgets one."""
        shapes = hosted.port.shapes
        if any(read_spelled_entry(entry)[0] not in shapes for entry in entries):
            raise LimitReached(f"shapes of entries in {hosted.name!r}", self._shapes_max)

    def _wanted(self, hosted: HostedSpace, message: wire.Write, leases: list[Lease]) -> list[Lease]:
        """The leases that the client wants to hear of: all or none."""
        if message.txn is None and message.to is not None:
            self._host.mover.arrived()
        if not message.leases:
            return []
        if message.txn is not None:
            self._serving.possessions.wrote(hosted, leases)
        return leases

    def _wrote(self, call: int, hosted: HostedSpace, leases: list[Lease], position: int) -> None:
        if hosted.durable and position:
            self._serving.requests.spawn(call, self._flush(hosted, leases, position))
        else:
            self._serving.talk.say(wire.Answer(call, _spell_leases(leases)))

    async def _flush(
        self, hosted: HostedSpace, leases: list[Lease], position: int
    ) -> list[list[Any]]:
        await hosted.flush(position)
        return _spell_leases(leases)

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


def _spell_leases(leases: list[Lease]) -> list[list[Any]]:
    return [[lease.thing.n, lease.thing.arrival, lease.thing.expires] for lease in leases]
