"""A history: what the agents of a world have done, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from tupelo.errors import TupeloError
from tupelo.lab.life import ProgramLife
from tupelo.lab.world import World, WorldHost

Kind = Literal["write", "read", "take", "count"]
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
    member: WorldHost
    """The host where it was done, or over which."""

    life: ProgramLife
    key: str
    """The class of entries."""

    call: int
    many: bool = False
    session: str | None = None
    ret: float = inf
    how: Literal["killed", "done", "cancelled", "failed"] = "killed"
    entries: list[Entry] = field(default_factory=list)
    error: TupeloError | None = None
    covered: frozenset[str] = frozenset()

    @property
    def is_client(self) -> bool:
        return self.life.name != self.member.name

    @property
    def host_went(self) -> bool:
        """Did its host end while this was under way?"""
        return any(self.call < end < self.ret for end in self.member.ends)

    def __str__(self) -> str:
        said = repr(self.error) if self.error else ", ".join(map(name_of, self.entries)) or "-"
        many = "_all" if self.many else ""
        session = f" in session {self.session}" if self.session else ""
        return f"{self.agent}: {self.kind}{many} {self.key}{session} {self.how}: {said}"


@dataclass
class Deal:
    """A transaction at one host, and what it took and wrote there."""

    agent: str
    member: WorldHost
    call: int
    ret: float = inf
    taken: list[Entry] = field(default_factory=list)
    written: list[Entry] = field(default_factory=list)
    how: Literal["aborted", "committed", "unknown"] = "aborted"
    error: TupeloError | None = None

    def __str__(self) -> str:
        taken, written = (", ".join(map(name_of, some)) for some in (self.taken, self.written))
        error = f" {self.error!r}" if self.error else ""
        return f"{self.agent}: transaction {self.how}: took {taken}, wrote {written}{error}"


class History:
    """All that was done in a world."""

    def __init__(self, world: World) -> None:
        self.acts: list[Act] = []
        self.deals: list[Deal] = []
        self.listeners: dict[tuple[str, int], list[Entry]] = {}
        """What each subscriber heard, by the host and the life in which it listened."""
        self.stood: dict[tuple[str, int], int] = {}
        """Since when each subscriber hears of what is written anywhere."""
        self._world = world

    async def record(self, act: Act, work: Coroutine[Any, Any, Any]) -> Any:
        """Do it, and write down what comes of it. None if it fails."""
        self.acts.append(act)
        answer = None
        try:
            answer = await work
            act.how = "done"
            if act.kind in ("read", "take"):
                act.entries = list(answer) if act.many else [] if answer is None else [answer]
        except asyncio.CancelledError:
            act.how = "killed" if act.life.leaving else "cancelled"
            raise
        except TupeloError as error:
            act.how = "killed" if act.life.leaving else "failed"
            act.error = error
        finally:
            if act.how != "killed":
                act.ret = self._world.tick()
            self._world.note(str(act))
        return answer

    def of(self, kind: Kind) -> list[Act]:
        return [act for act in self.acts if act.kind == kind]


def name_of(entry: Entry) -> str:
    return ":".join(map(str, entry))
