"""A history of MELON: what the processes of a world have done, and what was found in the end.

It is plain: nothing in it comes from the program that is judged, but for what a user would see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from tupelo.errors import TupeloError
from tupelo.lab.life import ProgramLife

Message = tuple[str, str, int, str]
"""Its kind, the host that has added it, a number that no other has, and a text."""

How = Literal["killed", "done", "cancelled", "failed"]
ADDS = ("store", "send", "write")
TAKES = ("take", "take_all")
READS = ("read", "read_all")


@dataclass(frozen=True)
class MelonQuery:
    """A template: messages of this kind, and of this host; None for any."""

    kind: str | None = None
    source: str | None = None

    def matches(self, message: Message) -> bool:
        return self.kind in (None, message[0]) and self.source in (None, message[1])

    def __str__(self) -> str:
        return f"({self.kind or '*'}, {self.source or '*'})"


@dataclass
class MelonAct:
    """One operation of one process. `begin` and `end` are ticks: no two are the same."""

    verb: str
    melon: str
    host: str
    life: int
    """The how manieth of its host."""

    begin: int
    asked: MelonQuery | None = None
    messages: list[Message] = field(default_factory=list)
    to: str | None = None
    """The host to which a message is directed."""
    sender: str | None = None
    """The host whose messages alone were wanted."""
    pin: bool = False
    how: How = "killed"
    end: int | None = None
    error: str = ""
    is_late: bool = False
    """Did it wait when nobody was near, for what was added when everybody was?"""
    is_probe: bool = False
    """Did it look whether there is something left, after others have waited for it?"""

    @property
    def is_done(self) -> bool:
        return self.how == "done"

    def overlaps(self, begin: int, end: int | None) -> bool:
        after = end is not None and self.begin > end
        return not after and (self.end is None or self.end > begin)

    def __str__(self) -> str:
        said = self.error or " ".join(map(name_of, self.messages)) or "-"
        to = f" to {self.to}" if self.to else ""
        sender = f" of {self.sender}" if self.sender else ""
        return f"{self.melon}: {self.verb} {self.asked or ''}{to}{sender} {self.how}: {said}"


@dataclass(frozen=True)
class MelonResult:
    """A host said that it has collected this. Of what was directed, only to whom is known."""

    host: str
    kind: Literal["stored", "written", "directed"]
    message: Message | str


@dataclass(frozen=True)
class FoundMessage:
    """A message lies in a space of a host. `where` is "stored", "written", "copies" or "sealed";
    who has looked into what is sealed had the key."""

    host: str
    where: str
    message: Message


@dataclass(frozen=True)
class Plain:
    """The text of a directed message can be read at a host: in its memory, or on its disk."""

    host: str
    number: int
    where: str


@dataclass
class Ending:
    """What is so when everyone is back, and everything was taken and read."""

    near: dict[str, set[str]] = field(default_factory=dict)
    """The hosts with which each is engaged."""
    melons: dict[str, str] = field(default_factory=dict)
    """The processes that are there, and their hosts."""
    found: list[FoundMessage] = field(default_factory=list)
    remains: dict[str, str] = field(default_factory=dict)
    """What was under way, and should not be any more."""


class MelonHistory:
    """All that was done in a world."""

    def __init__(self, note: Callable[[str], None], durable: set[str]) -> None:
        self.durable = durable
        """The hosts with a folder."""
        self.bounded: set[str] = set()
        self.copying: set[str] = set()
        """The hosts that copy what was written elsewhere."""
        self.tight: set[str] = set()
        """Those that have not much room for it."""
        self.acts: list[MelonAct] = []
        self.told: list[MelonResult] = []
        self.given_way: set[Message] = set()
        """Of these some host said that it has no copy any more: there was no room."""
        self.evicted: set[Message] = set()
        """What the logs on disk say of what was collected."""
        self.strays: set[FoundMessage] = set()
        """What was seen in copies, at any time."""
        self.plain: set[Plain] = set()
        self.overheard: set[int] = set()
        """The directed messages whose text went over a link."""
        self.ends: dict[str, list[int]] = {}
        """When each host crashed, or left."""
        self.owed: dict[tuple[str, int], frozenset[str]] = {}
        """Of each crash of a host: those that had not heard yet that it has what they gave it."""
        self.faults: list[int] = []
        """When links were cut, silent or slow."""
        self.ending = Ending()
        self._note = note
        self._ticks = 0

    def tick(self) -> int:
        """The next moment."""
        self._ticks += 1
        return self._ticks

    def ended(self, host: str, owed: Iterable[str] = ()) -> None:
        """A host ends; if it crashes, these had not heard yet that it has what they gave it."""
        tick = self.tick()
        self.ends.setdefault(host, []).append(tick)
        self.owed[host, tick] = frozenset(owed)

    async def record(self, act: MelonAct, life: ProgramLife, work: Coroutine[Any, Any, Any]) -> Any:
        """Do it, and write down what comes of it. None if it fails."""
        self.acts.append(act)
        answer = None
        try:
            answer = await work
            act.how = "done"
            if act.verb not in ADDS:
                found = answer if isinstance(answer, list) else [] if answer is None else [answer]
                act.messages = found
        except asyncio.CancelledError:
            act.how = "killed" if life.leaving else "cancelled"
            raise
        except TupeloError as error:
            act.how = "killed" if life.leaving else "failed"
            act.error = repr(error)
        finally:
            act.end = self.tick()
            self._note(str(act))
        return answer


def name_of(message: Message) -> str:
    return ":".join(map(str, message[:3]))
