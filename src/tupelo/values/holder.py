"""Holders: for whom entries are reserved, so that a delivery can be settled after a crash."""

from __future__ import annotations

from typing import Literal

import msgspec

HolderKind = Literal["here", "client", "host", "move", "lime-take", "lime-move"]
"""What a delivery is: a take of this host's own agents, of a client, or of another host; an entry
that moves to its agent; a tuple that LIME hands over to a taker, or moves."""


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """The taker of a delivery: a program or host (`who`), which life of it (`incarnation`), and
    the number of its call, which it uses once."""

    kind: HolderKind
    who: str
    incarnation: str = ""
    call: int = 0

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

    def of_call(self, call: int) -> Holder:
        """The same taker, in another call."""
        return Holder(self.kind, self.who, self.incarnation, call)
