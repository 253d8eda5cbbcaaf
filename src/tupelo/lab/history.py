"""A history: what the agents of a world have done, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from tupelo.errors import TupeloError
from tupelo.lab.world import Member, World

Kind = Literal["write", "read", "take", "count", "commit"]
Entry = tuple[Any, ...]
"""Its class, the agent that wrote it, and its number among all that this agent wrote."""


@dataclass
class Act:
    """One operation of one agent.

    `how` it ended: it was "done", "cancelled", has "failed" with an error, or its program was
    "killed" before it knew.
    """

    kind: Kind
    agent: str
    member: Member
    life: int
    key: str | None
    """The class of entries; None for all."""

    call: int
    began: float
    many: bool = False
    ret: int | None = None
    how: Literal["killed", "done", "cancelled", "failed"] = "killed"
    entries: list[Entry] = field(default_factory=list)
    error: TupeloError | None = None
    covered: frozenset[str] = frozenset()

    def __str__(self) -> str:
        said = repr(self.error) if self.error else ", ".join(map(name_of, self.entries)) or "-"
        many = "_all" if self.many else ""
        return f"{self.agent}: {self.kind}{many} {self.key or 'any'} {self.how}: {said}"


class History:
    """All that was done in a world."""

    def __init__(self, world: World) -> None:
        self.acts: list[Act] = []
        self._world = world

    async def record(self, act: Act, work: Coroutine[Any, Any, Any]) -> Any:
        """Do it, and write down what comes of it. None if it fails."""
        self.acts.append(act)
        life = act.member.life
        answer = None
        try:
            answer = await work
            act.how = "done"
            if act.kind in ("read", "take"):
                found = answer if act.many else [] if answer is None else [answer]
                act.entries = list(found)
        except asyncio.CancelledError:
            act.how = "cancelled" if act.member.life is life else "killed"
            raise
        except TupeloError as error:
            act.how = "failed" if act.member.life is life else "killed"
            act.error = error
        finally:
            if act.how != "killed":
                act.ret = self._world.tick()
            self._world.note(str(act))
        return answer

    def of(self, *kinds: Kind) -> list[Act]:
        return [act for act in self.acts if act.kind in kinds]


def name_of(entry: Entry) -> str:
    return ":".join(map(str, entry))
