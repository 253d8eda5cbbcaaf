"""Directed: the entries of a space that are for an agent, which may be elsewhere."""

from __future__ import annotations

from tupelo.values.entry import Entry


class DirectedIndex:
    """Those that are here, by the agents that they are for."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[Entry, None]] = {}

    def add(self, entry: Entry) -> None:
        """It is here, or here again."""
        if entry.to is not None:
            self._entries.setdefault(entry.to, {})[entry] = None

    def to(self, agent: str) -> list[Entry]:
        """What is here for this agent, and not in anybody's hands."""
        here = [entry for entry in self._entries.pop(agent, {}) if not entry.gone]
        if here:
            self._entries[agent] = dict.fromkeys(here)
        return here
