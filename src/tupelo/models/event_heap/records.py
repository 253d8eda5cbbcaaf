"""Records: the system events of a heap, in its companion space, which is copied to every replica.

Each record names the generation of the heap: a heap that is created again has nothing of the one
before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from tupelo.errors import BadFrame
from tupelo.models.event_heap.ordering import Place
from tupelo.values.kind import entry

PLACES_MAX = 10_000
"""Most places in one record."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Order = Literal["none", "source", "total"]
_MADE = tuple[str, _Order, str, str | None, str | None, int | None, int | None, int | None]
_PLACES = tuple[str, _Count, list[str], list[_Count], list[_Count]]
_FOLDED = tuple[_Count, _Count, _Count, list[_Count], dict[str, int]]


@entry("tupelo.heap.view")
@dataclass
class ViewMade:
    """A view exists, until it was unused for `lease` seconds. A clone continues its `parent`, whose
    whole order up to `length` it has; `root` is the first view of the chain of clones, `depth` the
    number of clones since."""

    view: str | None = None
    order: str | None = None
    parent: str | None = None
    length: int | None = None
    host: str | None = None
    generation: int | None = None
    lease: float | None = None
    horizon: int | None = None
    root: str | None = None
    depth: int | None = None


@entry("tupelo.heap.placed")
@dataclass
class Placed:
    """Places of a view from the position `start` on: the numbers of events, and for each the index
    of its source."""

    view: str | None = None
    start: int | None = None
    sources: list[str] | None = None
    which: list[int] | None = None
    numbers: list[int] | None = None
    generation: int | None = None


@entry("tupelo.heap.folded")
@dataclass
class Folded:
    """The order of a view is folded before the position `base`: only these places are left there,
    with their positions. The record comes in `parts`; each has the last placed number of some
    sources."""

    view: str | None = None
    base: int | None = None
    part: int | None = None
    parts: int | None = None
    positions: list[int] | None = None
    sources: list[str] | None = None
    which: list[int] | None = None
    numbers: list[int] | None = None
    last: dict[str, int] | None = None
    generation: int | None = None


@entry("tupelo.heap.session")
@dataclass
class SessionMade:
    """A shared session exists, until it was unused for `lease` seconds."""

    session: str | None = None
    generation: int | None = None
    lease: float | None = None


@entry("tupelo.heap.seen")
@dataclass
class SessionSeen:
    """Events that were seen in a shared session; all of them, if `whole`. `epoch` and `fold`
    identify the last whole record before; `losses` is how often the token was replaced."""

    session: str | None = None
    epoch: int | None = None
    fold: int | None = None
    whole: bool | None = None
    losses: int | None = None
    seen: bytes | None = None
    generation: int | None = None


@entry("tupelo.heap.ended")
@dataclass
class Ended:
    """A view or shared session has ended everywhere. Users of a view may go on with the view
    `into`."""

    id: str | None = None
    into: str | None = None
    generation: int | None = None


@entry("tupelo.heap.made")
@dataclass
class HeapMade:
    """A destroyed heap was created again; the first generation is 1."""

    generation: int | None = None


@entry("tupelo.heap.destroyed")
@dataclass
class Destroyed:
    """This generation of the heap, and all before, are destroyed everywhere."""

    generation: int | None = None


@entry("tupelo.heap.adopted")
@dataclass
class Adopted:
    """The host of a source is gone for good: its events up to this number live at the host that
    writes this record."""

    source: str | None = None
    upto: int | None = None
    generation: int | None = None


GENERATION_RECORDS = (ViewMade, Placed, Folded, SessionMade, SessionSeen, Ended, Adopted)
"""Records that belong to one generation."""


def encode_places(view: str, start: int, places: list[Place]) -> Placed:
    names = sorted({source for source, _ in places})
    index = {source: i for i, source in enumerate(names)}
    return Placed(
        view, start, names, [index[source] for source, _ in places], [n for _, n in places]
    )


def read_places(placed: Placed) -> list[Place]:
    """The places of a record. BadFrame if it is invalid."""
    read = placed.view, placed.start, placed.sources, placed.which, placed.numbers
    try:
        _, _, sources, which, numbers = msgspec.convert(read, _PLACES)
        return [(sources[i], number) for i, number in zip(which, numbers, strict=True)]
    except (msgspec.ValidationError, IndexError, ValueError) as error:
        raise BadFrame(f"invalid Placed record: {error}") from error


def encode_folded(
    view: str, base: int, kept: list[tuple[int, Place]], last: dict[str, int]
) -> list[Folded]:
    """The records of a folded order, as many as needed."""
    some = [kept[begin : begin + PLACES_MAX] for begin in range(0, len(kept), PLACES_MAX)] or [[]]
    folded = []
    for part, pairs in enumerate(some):
        placed = encode_places(view, 0, [place for _, place in pairs])
        folded.append(
            Folded(
                view,
                base,
                part,
                len(some),
                [position for position, _ in pairs],
                placed.sources,
                placed.which,
                placed.numbers,
                {} if part else last,
            )
        )
    return folded


def read_folded(folded: Folded) -> tuple[list[tuple[int, Place]], dict[str, int]]:
    """The places of one part, and the last numbers of some sources. BadFrame if the record is
    invalid."""
    places = read_places(Placed(folded.view, 0, folded.sources, folded.which, folded.numbers))
    read = folded.base, folded.part, folded.parts, folded.positions, folded.last
    try:
        base, part, parts, positions, last = msgspec.convert(read, _FOLDED)
    except msgspec.ValidationError as error:
        raise BadFrame(f"invalid Folded record: {error}") from error
    is_sorted = positions == sorted(positions) and all(one < base for one in positions[-1:])
    if part >= parts or len(positions) != len(places) or not is_sorted:
        raise BadFrame("invalid Folded record")
    return list(zip(positions, places, strict=True)), last


def is_valid(made: ViewMade) -> bool:
    """Whether a record has valid types."""
    names = made.view, made.order, made.host, made.parent, made.root
    try:
        msgspec.convert((*names, made.length, made.depth, made.horizon), _MADE)
    except msgspec.ValidationError:
        return False
    return made.parent != made.view
