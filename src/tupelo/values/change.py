"""Changes: the events of a space, which form its log; and notices, which subscriptions deliver."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from tupelo.values.entry import Entry, Shape, thaw
from tupelo.values.holder import Holder

ChangeKind = Literal[
    "written",  # an entry became visible
    "read",  # only if the space logs reads
    "taken",
    "returned",  # its taker was lost before delivery
    "expired",  # its lease ran out
    "cancelled",  # its lease was cancelled
    "renewed",
    "evicted",  # to make room
    "prepared",  # a transaction promised to commit
    "committed",  # a prepared transaction was committed
    "aborted",  # a prepared transaction was aborted
    "moved",  # it moved to its agent at another host
    "engaged",  # the host that the entry describes is engaged
    "disengaged",  # the host that the entry describes departed, or was lost
    "released",  # a transaction that had taken it was aborted
    "delayed",  # an entry was written that becomes visible later; then "written" follows
    # New kinds are added at the end: a file has their numbers.
]

Ending = Literal["taken", "expired", "cancelled", "evicted", "moved"]
ENDINGS: tuple[Ending, ...] = get_args(Ending)
"""Kinds of changes that remove an entry; a later "returned" brings it back."""


BY_REACTION = "reaction:"
"""The `txn` of an entry that a reaction wrote outside a transaction: this, and the arrival of the
entry to which it reacted."""


class Promise(msgspec.Struct, frozen=True, eq=False):
    """The content of a prepared transaction: the entries that it wrote, and the arrivals of the
    entries that it took and read. `holder` is the taker, if the transaction is a delivery."""

    written: tuple[Entry, ...]
    taken: tuple[int, ...]
    read: tuple[int, ...]
    holder: Holder | None = None


class Change(msgspec.Struct, frozen=True, eq=False):
    """One change of one space.

    `position` numbers the changes of a space without gaps. `arrival` identifies the entry within
    its space, (`origin`, `n`) anywhere. `agent` made the change, in `session` and transaction `txn`
    if any (see `BY_REACTION`), after waiting for `waited` seconds. `expires` is the lease after the
    change. `shape` and `fields` are the stored form of the entry, `payload` its encoding. `to` is
    the agent that the entry is for. `agent_name` is the name that the agent has given itself, which
    proves nothing. `deliveries` counts how often the entry was returned or released, this change
    included. A "delayed" change says when the entry becomes `visible`, and the "written" change
    that follows has the position of the `delayed` one.
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
    agent_name: str = ""
    deliveries: int = 0
    visible: float | None = None
    delayed: int | None = None

    @property
    def entry(self) -> Any:
        """The entry as a read returns it. Raises UnknownType if its class is not known here."""
        if self.shape is None or self.fields is None:
            return None
        return thaw(self.shape, self.fields)


NoticeKind = Literal["visible", "available"] | Ending


def change_record(change: Change) -> dict[str, Any]:
    """What happened, when, and by whom, for JSON. The entry is left out: its form depends on the
    reader."""
    return {
        "position": change.position,
        "time": change.time,
        "kind": change.kind,
        "agent": change.agent,
        "agent_name": change.agent_name,
        "txn": change.txn,
        "waited": change.waited,
        "deliveries": change.deliveries,
    }


class Notice(msgspec.Struct, frozen=True, eq=False):
    """An entry became visible or, if the subscription asks for it, available to takers again, or
    it was removed: then the kind is that of the change in the log.

    `event_id` identifies what was subscribed to; subscriptions to the same thing share it and the
    `sequence`, which has no gaps. A jump means that notices were dropped because the backlog was
    full; `missed` is their number.
    """

    event_id: int
    sequence: int
    kind: NoticeKind
    subject: Entry
    handback: Any = None
    missed: int = 0

    @property
    def deliveries(self) -> int:
        """How often the entry was taken and came back, so far."""
        return self.subject.deliveries

    @property
    def entry(self) -> Any:
        """The entry as a read returns it. Raises UnknownType if its class is not known here."""
        return thaw(self.subject.shape, self.subject.fields)

    def __repr__(self) -> str:
        return f"<Notice {self.sequence}: {self.kind} {self.subject!r}>"
