"""Notices: what a subscription delivers, after the step in which it happened."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tupelo.values.entry import Entry, thaw


class Notice(msgspec.Struct, frozen=True, eq=False):
    """One entry became visible, or (where asked for) available to takers again.

    `event_id` names what was subscribed to; subscriptions to the same thing share it, and with it
    the `sequence`, which has no gaps: a jump means that notices were dropped because the backlog
    was full, and `missed` says how many before this one.
    """

    event_id: int
    sequence: int
    kind: Literal["visible", "available"]
    subject: Entry
    handback: Any = None
    missed: int = 0

    @property
    def entry(self) -> Any:
        """The entry, as a read would give it; UnknownType if its class is not known here."""
        return thaw(self.subject.shape, self.subject.fields)
