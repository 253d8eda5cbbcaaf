"""A history of heaps: what was put, read and removed, and what is excused because it went down with
a host. It is plain data: the judge knows nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from tupelo.lab.judge import Fault

How = Literal["killed", "done", "failed"]
"""Killed: the host crashed meanwhile, or it is in doubt, so that nobody knows."""


@dataclass
class Put:
    """An event was put; it has a number that no other has."""

    number: int
    kind: str
    heap: str
    source: str
    """A host; of one without a folder, one of its lives."""
    begun: float
    ended: float = inf
    how: How = "killed"
    lasts: bool = True
    """Or has it a time to live?"""


@dataclass
class Removal:
    """What was removed: None, if nothing was found."""

    heap: str
    number: int | None = None
    how: How = "killed"


@dataclass(frozen=True)
class Read:
    """An event was read: by what kind was asked for ("" is any), and in which view."""

    number: int
    asked: str = ""
    view: str = ""
    at: str = ""
    """The host, and which life of it."""


@dataclass
class HeapReader:
    """Someone who sees no event twice: a session, which may be shared, a view, a query."""

    name: str
    heap: str
    reads: list[Read] = field(default_factory=list)
    inherited: frozenset[int] = frozenset()
    """What the one that it is a clone of had seen."""
    wants: str = ""
    """The kind that it gets; "" is all."""
    stands: bool = True
    """Does it read to the end? Then it must have got all."""
    fifo: bool = True
    """Has it all from one host? Those who share a session have each their part."""
    resumed: bool = False
    """Has somebody gone on with it without the host that had it? Then an event may be read again,
    by one who does not reach those who have."""
    pending: int = 0
    """Reads of a shared session that have not ended: what they were to get may be lost."""
    announced: set[tuple[str, str]] = field(default_factory=set)
    """Of which clones it was told: the old view, and the new one."""

    @property
    def seen(self) -> set[int]:
        return {read.number for read in self.reads} | self.inherited


@dataclass
class Remains:
    """What is there after everyone has met again; the orders are those of one heap."""

    heap: str = ""
    held: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """At each host, in each heap: the numbers of the events."""
    orders: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """At each host, of each view: the whole order, with those that are gone."""
    replays: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """At each host, of each view that is used there: what it replays."""
    horizons: dict[str, int] = field(default_factory=dict)
    """Of the views of which only so many of the latest places can be replayed."""
    known: dict[str, set[str]] = field(default_factory=dict)
    """At each host: the views and shared sessions that are known there."""
    open: dict[str, int] = field(default_factory=dict)
    """The hosts that have the heap that comes and goes, and which one it is: its generation."""
    destroyed: int = 0
    """The last generation that was destroyed."""
    left: dict[str, list[int]] = field(default_factory=dict)
    """What these hosts have in it."""


class HeapHistory:
    """All that was done in a world. What cannot be is said at once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.puts: dict[int, Put] = {}
        self.removals: list[Removal] = []
        self.readers: list[HeapReader] = []
        self.shared: dict[str, HeapReader] = {}
        """The shared sessions, by their ids."""
        self.excused: set[int] = set()
        """What no host had any more when the last that had it crashed."""
        self.untold: set[int] = set()
        """What a host had removed, and had told nobody when it crashed for good."""
        self.unordered: set[tuple[str, int]] = set()
        """The places in views that went down with the only host that knew of them."""
        self.destroyed: set[str] = set()
        """The views and shared sessions that were ended for everyone; `destroying` are those too of
        which that is not sure."""
        self.destroying: set[str] = set()
        self.adopted: dict[int, str] = {}
        """The events that were adopted, and in which life of which host."""
        self.adoptions: set[str] = set()
        """The hosts of which events were adopted."""
        self.loose: set[int] = set()
        """What may be there, or be removed, twice: its host came back, or nobody knows whether it
        was adopted."""
        self.brief: dict[int, tuple[int, str]] = {}
        """What was put in the heap that comes and goes: its generation, and the source."""
        self.ended: set[str] = set()
        """The sources that have ended for good, or have not come back to the heap that comes and
        goes."""
        self.faults: list[Fault] = []
        self.acts = 0
        self._note = note
        self._moments = 0

    def moment(self) -> int:
        self._moments += 1
        return self._moments

    def note(self, text: str) -> None:
        self._note(text)

    def fault(self, invariant: str, text: str) -> None:
        self._note(f"FAULT {invariant}: {text}")
        self.faults.append(Fault(invariant, text))

    def reader(self, name: str, heap: str, inherited: frozenset[int] = frozenset()) -> HeapReader:
        reader = HeapReader(name, heap, inherited=inherited)
        self.readers.append(reader)
        return reader
