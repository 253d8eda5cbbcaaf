"""Records: the system events of a heap. They are entries of its second space, which is copied to
every replica like the first, so that what they say is known wherever the events are.

Each says of which generation of the heap it is: one made anew has nothing of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from tupelo.errors import BadFrame
from tupelo.models.event_heap.ordering import Place
from tupelo.values.kind import entry

PLACES_MAX = 10_000
"""So many places stand in one record."""


@entry("tupelo.heap.view")
@dataclass
class ViewMade:
    """There is a view of this id, until nobody has used it for the seconds of its lease. It may
    continue another, its `parent`, of which it has the whole order up to `length`; `root` is the
    first of which it is a clone, so many clones ago (`depth`)."""

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
    """These events stand in a view from the position `start` on: the numbers, and of each which of
    the sources it is of."""

    view: str | None = None
    start: int | None = None
    sources: list[str] | None = None
    which: list[int] | None = None
    numbers: list[int] | None = None
    generation: int | None = None


@entry("tupelo.heap.folded")
@dataclass
class Folded:
    """The order of a view is folded before the position `base`: these places are left there, with
    their positions. It comes in `parts`; each says of some sources which of their events was the
    last to get a place."""

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
    """There is a shared session of this id, until nobody has used it for the seconds of its
    lease."""

    session: str | None = None
    generation: int | None = None
    lease: float | None = None


@entry("tupelo.heap.seen")
@dataclass
class SessionSeen:
    """These events were seen in a shared session; or all that were, if it is the `whole`. It was
    told when the last whole was that of this epoch of the session's token, and this number, and
    when the token had been lost so many times."""

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
    """The view or shared session of this id is no more, anywhere. Those who use a view may go on
    with another, `into` which it was merged."""

    id: str | None = None
    into: str | None = None
    generation: int | None = None


@entry("tupelo.heap.made")
@dataclass
class HeapMade:
    """The heap was made anew after it had been destroyed; the first generation is 1."""

    generation: int | None = None


@entry("tupelo.heap.destroyed")
@dataclass
class Destroyed:
    """The heap of this generation, and all before, are no more, anywhere."""

    generation: int | None = None


@entry("tupelo.heap.adopted")
@dataclass
class Adopted:
    """The host of this source is gone for good: what it had put, up to this number, lives at the
    host that says so."""

    source: str | None = None
    upto: int | None = None
    generation: int | None = None


OF_ONE = (ViewMade, Placed, Folded, SessionMade, SessionSeen, Ended, Adopted)
"""What is said of one generation, and means nothing to the next."""


def encode_places(view: str, start: int, places: list[Place]) -> Placed:
    names = sorted({source for source, _ in places})
    index = {source: i for i, source in enumerate(names)}
    return Placed(
        view, start, names, [index[source] for source, _ in places], [n for _, n in places]
    )


def read_places(placed: Placed) -> list[Place]:
    """BadFrame if a stranger has written what cannot be."""
    sources, which, numbers = placed.sources, placed.which, placed.numbers
    if not (
        type(placed.view) is str
        and type(placed.start) is int
        and placed.start >= 0
        and isinstance(sources, list)
        and isinstance(which, list)
        and isinstance(numbers, list)
        and len(which) == len(numbers)
        and all(type(source) is str for source in sources)
        and all(type(i) is int and 0 <= i < len(sources) for i in which)
        and all(type(number) is int and number >= 0 for number in numbers)
    ):
        raise BadFrame("this is no part of an order")
    return [(sources[i], number) for i, number in zip(which, numbers, strict=True)]


def encode_folded(
    view: str, base: int, kept: list[tuple[int, Place]], last: dict[str, int]
) -> list[Folded]:
    """As many records as it takes."""
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
    """The places of one part, and the last of some sources. BadFrame if a stranger has written what
    cannot be."""
    places = read_places(Placed(folded.view, 0, folded.sources, folded.which, folded.numbers))
    base, part, parts, positions = folded.base, folded.part, folded.parts, folded.positions
    last = folded.last
    if not (
        type(base) is int
        and type(part) is int
        and type(parts) is int
        and 0 <= part < parts
        and isinstance(positions, list)
        and len(positions) == len(places)
        and all(type(position) is int and 0 <= position < base for position in positions)
        and positions == sorted(positions)
        and isinstance(last, dict)
        and all(type(one) is str and type(n) is int for one, n in last.items())
    ):
        raise BadFrame("this is no part of a folded order")
    return list(zip(positions, places, strict=True)), last


def is_sound(made: ViewMade) -> bool:
    """Or has a stranger written what cannot be?"""
    return (
        type(made.view) is str
        and made.order in ("none", "source", "total")
        and type(made.host) is str
        and (made.parent is None or (type(made.parent) is str and made.parent != made.view))
        and (made.length is None or type(made.length) is int)
        and (made.root is None or type(made.root) is str)
        and (made.depth is None or type(made.depth) is int)
        and (made.horizon is None or type(made.horizon) is int)
    )
