"""LimeSystem: who is in the group, and what they share; as tuples to read and react to.

Every host keeps it for itself, from the cards of the roster in force: so it is the same everywhere
in a group, and changes at once, before operations go on.

    ("host", host id, name)
    ("agent", agent id, host id, state)
    ("space", name, agent id, host id)
"""

from __future__ import annotations

from collections.abc import Callable

from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.hosted import Doubt, HostedSpace
from tupelo.federation.identity.access import Access
from tupelo.models.lime.directory import Directory
from tupelo.models.lime.spaces import SYSTEM_NAME, Ground
from tupelo.space import blocking
from tupelo.values.entry import Entry, freeze


class LimeSystem:
    """LimeSystem at one host."""

    def __init__(self, core: HostCore, soon: Callable[[Ground], object]) -> None:
        # Tuples are told apart by it and a number, which begins anew in every life of the host.
        self._origin = f"{core.id}:{core.incarnation}"
        space = blocking.Space(SYSTEM_NAME, clock=core.clock, agent=core.id, new_id=core.new_id)
        hosted = HostedSpace(space, Access(), Doubt(), commit_in_place=True)
        self.ground = Ground(hosted, core.id, lambda entry: core.id, soon)
        self._number = 0

    def install(self, directory: Directory) -> None:
        """Say what is so now, all at once; what has not changed stays the same tuple."""
        said = directory.tuples()
        wanted = set(said)
        with self.ground.hosted.engine.lock:
            self.ground.take_out(lambda entry: entry.fields not in wanted)
            there = {entry.fields for entry in self.ground.operations.core.store}
            self.ground.put([self._entry(fields) for fields in said if fields not in there])

    def _entry(self, fields: tuple[str, ...]) -> Entry:
        self._number += 1
        shape, values = freeze(fields)
        return Entry(values, shape, self._origin, self._number, 0)

    def close(self) -> None:
        self.ground.close()
