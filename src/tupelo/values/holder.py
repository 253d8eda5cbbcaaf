"""Holders: for whom entries are reserved, so that a delivery can be settled after a crash."""

from __future__ import annotations

from typing import Literal

import msgspec

HolderKind = Literal["here", "client", "host", "move", "lime-take", "lime-move"]
"""What a delivery is: a take of this host's own agents, of a client, or of another host; an entry
that moves to its agent; a tuple that LIME hands over to a taker, or moves."""


class ClientCall(msgspec.Struct, frozen=True, array_like=True):
    """A call of a client, for which its host takes from another: the client's agent, its session
    at its host, and the number of the call there."""

    agent: str
    session: str
    call: int

    @property
    def owner(self) -> tuple[str, str, str]:
        """The client, whichever of its calls this is: the `owner` of its holders at its host."""
        return "client", self.agent, self.session


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """The taker of a delivery: a program or host (`who`), which life of it (`incarnation`), and
    the number of its call, which it uses once. If a host takes for one of its clients, `client`
    is the call of that client, which outlives the host."""

    kind: HolderKind
    who: str
    incarnation: str = ""
    call: int = 0
    client: ClientCall | None = None

    @property
    def id(self) -> str:
        """The id of the transaction that keeps the delivery. It is compared, never taken apart."""
        if self.kind in ("lime-take", "lime-move"):
            return f"{self.kind}:{self.incarnation}:{self.who}:{self.call}"
        name = ":".join(filter(None, (self.kind, self.who, self.incarnation)))
        return f"{name}:{self.call}" if self.kind == "move" else f"handover:{name}:{self.call}"

    @property
    def owner(self) -> tuple[str, str, str]:
        """The taker, whichever of its calls this is."""
        return self.kind, self.who, self.incarnation

    @property
    def moves(self) -> bool:
        """Does the entry live on at another host?"""
        return self.kind in ("move", "lime-move")

    def of_call(self, call: int, client: ClientCall | None = None) -> Holder:
        """The same taker, in another call, perhaps for a client of it."""
        return Holder(self.kind, self.who, self.incarnation, call, client)

    @property
    def as_client(self) -> ClientCall | None:
        """This call, as another host is told of it, if the taker is a client."""
        if self.kind != "client":
            return None
        return ClientCall(self.who, self.incarnation, self.call)
