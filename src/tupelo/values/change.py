"""Changes: what happened in a space. Everything that happens is one, and they form a log."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tupelo.values.entry import Entry, Shape, thaw
from tupelo.values.holder import Holder

ChangeKind = Literal[
    "written",  # an entry became visible
    "read",  # logged where the space asks for it
    "taken",
    "returned",  # its taker was cancelled at the moment of delivery
    "expired",  # its lease ran out
    "cancelled",  # its lease was cancelled
    "renewed",
    "evicted",  # to make room
    "prepared",  # a transaction promised to commit
    "committed",  # a prepared transaction was committed
    "aborted",  # a prepared transaction was aborted
    "moved",  # it went to the agent that it is for, at another host
    "engaged",  # of a host that the entry speaks of: from now on it is met
    "disengaged",  # of a host that the entry speaks of: it has departed, or was lost
]

ENDINGS: tuple[ChangeKind, ...] = ("taken", "expired", "cancelled", "evicted", "moved")
"""After these the entry is no longer there, unless it is returned."""


class Promise(msgspec.Struct, frozen=True, eq=False):
    """What a prepared transaction will do: the entries it wrote, and the arrivals of those that it
    took and of those that it holds by reading. `holder` is who gets what it took, if the
    transaction is a delivery."""

    written: tuple[Entry, ...]
    taken: tuple[int, ...]
    read: tuple[int, ...]
    holder: Holder | None = None


class Change(msgspec.Struct, frozen=True, eq=False):
    """One change of one space.

    `position` numbers the changes of a space without gaps. `arrival` names the entry within its
    space, (`origin`, `n`) names it anywhere. `agent` acted, in `session` and transaction `txn` if
    there were any, after it had `waited` so many seconds. `expires` is the lease after the change.
    `shape` and `fields` are the entry's, as they are kept; `payload` is their encoding in bytes.
    `to` is the agent that the entry is for.
    """

    position: int
    time: float
    kind: ChangeKind
    arrival: int = 0
    origin: str = ""
    n: int = 0
    agent: str = ""
    txn: str | None = None
    waited: float = 0.0
    expires: float | None = None
    shape: Shape | None = None
    fields: tuple[Any, ...] | None = None
    payload: bytes | None = None
    promise: Promise | None = None
    to: str | None = None
    session: str | None = None

    @property
    def entry(self) -> Any:
        """The entry as a reader gets it; UnknownType if its class is not known here."""
        if self.shape is None or self.fields is None:
            return None
        return thaw(self.shape, self.fields)


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
