"""Holders: the takers of deliveries, as recorded in the journal and settled after a crash."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

HolderKind = Literal["here", "client", "host", "move", "lime-take", "lime-move"]
"""The kinds of deliveries: a take by an agent of this host, by a client or by another host; an
entry that moves to its agent; a tuple that LIME delivers to a taker, or moves."""


class ClientCall(msgspec.Struct, frozen=True, array_like=True):
    """A call of a client that its host forwards to another host: the client's agent, its session at
    its host, and the number of the call."""

    agent: str
    session: str
    call: int

    @property
    def owner(self) -> tuple[str, str, str]:
        """The `owner` of all holders of this client at its host."""
        return "client", self.agent, self.session


class InHand(msgspec.Struct, frozen=True, array_like=True):
    """Entries that one taker has, and that may come back: how many, in which transaction or
    delivery, and the agent with the name that it has given itself."""

    agent: str
    agent_name: str
    entries: int
    txn: str | None = None


class Delayed(msgspec.Struct, frozen=True):
    """Entries that are not visible yet: how many there are, and the first of them, each with the
    moment at which it becomes visible, on the clock of its space."""

    count: int
    entries: list[tuple[float, Any]]


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """The taker of a delivery: a program or host (`who`), its `incarnation`, and the number of its
    call, which is unique. If a host takes for one of its clients, `client` is the call of that
    client, which outlives the host. `name` is the name that the taker has given itself."""

    kind: HolderKind
    who: str
    incarnation: str = ""
    call: int = 0
    client: ClientCall | None = None
    name: str = ""

    @property
    def id(self) -> str:
        """The id of the transaction that keeps the delivery. Ids are compared, never parsed."""
        if self.kind in ("lime-take", "lime-move"):
            return f"{self.kind}:{self.incarnation}:{self.who}:{self.call}"
        name = ":".join(filter(None, (self.kind, self.who, self.incarnation)))
        return f"{name}:{self.call}" if self.kind == "move" else f"handover:{name}:{self.call}"

    @property
    def owner(self) -> tuple[str, str, str]:
        """The taker without its call."""
        return self.kind, self.who, self.incarnation

    @property
    def moves(self) -> bool:
        """Whether the entry continues to live at another host."""
        return self.kind in ("move", "lime-move")

    def of_call(self, call: int, client: ClientCall | None = None) -> Holder:
        """The same taker with another call, perhaps for one of its clients."""
        return Holder(self.kind, self.who, self.incarnation, call, client, self.name)

    @property
    def as_client(self) -> ClientCall | None:
        """This call as it is sent to another host; None if the taker is not a client."""
        if self.kind != "client":
            return None
        return ClientCall(self.who, self.incarnation, self.call)
