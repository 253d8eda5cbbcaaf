"""Dataclasses for the laws, at module level: a class is known by its qualified name."""

from dataclasses import dataclass, field
from typing import Any

import tupelo


@dataclass
class Job:
    name: str | None = None
    size: int | None = None


@dataclass
class PrintJob(Job):
    pages: int | None = None


@dataclass
class Poster(PrintJob):
    framed: bool | None = None


@dataclass(frozen=True, slots=True)
class Point:
    x: Any = None
    y: Any = None


@dataclass
class Basket:
    items: list[Any] | None = field(default_factory=list)
    labels: dict[Any, Any] | None = field(default_factory=dict)
    at: Point | None = None


@dataclass
class Empty:
    pass


class Loud(Job):
    """A subclass that is no dataclass itself."""


@dataclass
class Other:
    name: str | None = None


@tupelo.entry("laws.renamed")
@dataclass
class Renamed:
    value: Any = None


@dataclass
class Unfinished:
    """Its second field gets no value when it is made."""

    now: int
    later: int = field(init=False)
