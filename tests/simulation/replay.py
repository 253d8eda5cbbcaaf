"""The contents of a space, made from its log alone."""

from __future__ import annotations

import tupelo


class Replay:
    """Follows a log from its beginning; every change must fit what was said before."""

    def __init__(self) -> None:
        self.position = 0
        self._living: dict[int, tuple[str, float | None]] = {}
        self._ended: dict[int, tuple[str, float | None]] = {}

    def follow(self, changes: list[tupelo.Change]) -> None:
        for change in changes:
            self.position += 1
            assert change.position == self.position
            arrival, said = change.arrival, (repr(change.entry), change.expires)
            match change.kind:
                case "written":
                    assert arrival not in self._living and arrival not in self._ended
                    self._living[arrival] = said
                case "taken" | "expired" | "cancelled" | "evicted":
                    self._ended[arrival] = self._living.pop(arrival)
                    assert self._ended[arrival] == said
                case "returned":
                    assert self._ended.pop(arrival) == said
                    self._living[arrival] = said
                case "renewed":
                    assert self._living[arrival][0] == said[0]
                    self._living[arrival] = said
                case "released":
                    assert self._living[arrival] == said and change.deliveries > 0
                case "prepared" | "committed" | "aborted":
                    assert change.txn is not None

    def contents(self) -> list[tuple[str, float | None]]:
        """Encoding and expiry of the living entries, in order of arrival."""
        return [self._living[arrival] for arrival in sorted(self._living)]
