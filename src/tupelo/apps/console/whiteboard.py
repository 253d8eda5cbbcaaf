"""The service "whiteboard" of a host: one drawing that all hosts share, on a total view of an event
heap (the scenario of Storz, Friday and Davies).

Strokes and wipes are events. A total view gives them one order, so all hosts show the same picture.
A host that is parted from the others goes on with a clone of the view; when they meet, one view
remains, and every picture follows its order.
"""

from __future__ import annotations

import asyncio
import re
from hashlib import blake2b
from typing import Any

from tupelo.apps.console.boards import BoardService
from tupelo.errors import BadArgument, LimitReached, TupeloError
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.services import Caller
from tupelo.federation.links import wire
from tupelo.models.event_heap import Event
from tupelo.models.event_heap.readings import Ordered
from tupelo.models.event_heap.served import HostedHeap
from tupelo.space.query import deadline_of
from tupelo.space.tasks import timeout_at
from tupelo.values.entry import freeze, thaw

SERVICE = "whiteboard"
HEAP = "whiteboard"
PATIENCE_SECONDS = 1.0
"""The owner of the view may be away for so long before it is cloned."""
STROKES_MAX = 1_000
POINTS_MAX = 500
STROKE_SECONDS = 86_400.0
SIZE = (1_000, 600)
"""The width and height of the board, in its own units."""
_COLOUR = re.compile(r"#[0-9a-f]{6}")


class WhiteboardService(BoardService["Whiteboard"]):
    """Answers `draw(colour, width, points)`, `wipe()` and `picture(mark)` on the loop of the host;
    a client needs the rights to write and to read in the space "whiteboard"."""

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        match message.method, message.args:
            case "draw", [colour, width, points]:
                event = stroke(self.core.new_id(), colour, width, points)
                caller.hosted(HEAP, "write")
                return await (await self.opened()).put(event)
            case "wipe", []:
                caller.hosted(HEAP, "write")
                return await (await self.opened()).put(Event("wipe", id=self.core.new_id()))
            case "picture", [str() as mark]:
                caller.hosted(HEAP, "read")
                return await (await self.opened()).picture(mark, message.wait)
        raise BadArgument("method", "draw, wipe or picture, with its arguments", message.method)

    async def open(self) -> Whiteboard:
        board = Whiteboard(self.core)
        await board.open()
        return board


def stroke(id: str, colour: object, width: object, points: object) -> Event:
    """A line through these points, x and y in turns. BadArgument names what is wrong."""
    if not isinstance(colour, str) or not _COLOUR.fullmatch(colour):
        raise BadArgument("colour", 'one such as "#1c5d4a"', colour)
    if type(width) is not int or not 1 <= width <= 60:
        raise BadArgument("width", "a whole number from 1 to 60", width)
    if not isinstance(points, list) or len(points) % 2 or not 2 <= len(points) <= 2 * POINTS_MAX:
        raise BadArgument("points", f"x and y of 1 to {POINTS_MAX} points, in one array", points)
    for number, at in enumerate(points):
        if type(at) is not int or not 0 <= at <= SIZE[number % 2]:
            raise BadArgument("points", f"whole numbers on a board of {SIZE[0]} x {SIZE[1]}", at)
    return Event("stroke", id=id, colour=colour, width=width, points=points)


def is_of_board(event: Event) -> bool:
    """Any program may write in the space: what is no stroke and no wipe is not shown."""
    try:
        return event.type == "wipe" or bool(event.type == "stroke" and stroke(**event.fields))
    except (TupeloError, TypeError):
        return False


class Whiteboard:
    """The board at this host: its picture is all strokes since the last wipe, in the order of the
    view."""

    ended = False

    def __init__(self, core: HostCore) -> None:
        self._core = core
        self._heap = HostedHeap(core, HEAP, PATIENCE_SECONDS)
        self._replica = self._heap.replica
        self._view = self._reading = ""
        self._notified = -1
        self._strokes: list[dict[str, Any]] = []
        self._marks = [""]  # _marks[n] stands for the first n strokes
        self._placed = 0
        self._removing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the view that the hosts within reach use; make one if there is none."""
        if not self._first_view():
            await self._heap.make_view("total", None, None)
        await self._follow()

    def _first_view(self) -> str:
        """Hosts that have made a view each, before they met, go on with that of the lowest id."""
        made = self._replica.orders.made.values()
        return min((one.view or "" for one in made if one.parent is None), default="")

    async def _follow(self) -> None:
        view = self._first_view()
        if view != self._view:
            before, self._view = self._reading, view
            self._reading = await self._heap.open_view(view, "total", None, None)
            await self._heap.end(before)

    async def put(self, event: Event) -> str:
        """Put a stroke or wipe, and return its id; LimitReached if there are too many."""
        if event.type == "stroke" and self._placed >= STROKES_MAX:
            raise LimitReached("strokes on the whiteboard (wipe it)", STROKES_MAX)
        await self._heap.put([freeze(event)], STROKE_SECONDS)
        return str(event["id"])

    async def picture(self, mark: str, wait: float | None) -> dict[str, Any]:
        """The picture as soon as it is another than that of the mark, or after `wait` seconds: how
        many strokes to keep of the one before, and the strokes after them."""
        clock, broadcast = self._core.clock, self._replica.broadcast
        try:
            async with timeout_at(clock, deadline_of(clock, wait)):
                await self._look()
                while mark == self._marks[-1]:
                    await broadcast.wait(self._notified)
                    await self._look()
        except TimeoutError:
            pass
        keep = self._marks.index(mark) if mark in self._marks else 0
        opened = self._heap.readings[self._reading]
        return {
            "mark": self._marks[-1],
            "keep": keep,
            "strokes": self._strokes[keep:],
            "cloned": isinstance(opened, Ordered) and opened.order.id != self._view,
        }

    async def _look(self) -> None:
        """Read the view again, if anything has happened since the last time."""
        if self._notified == self._replica.broadcast.count:
            return
        await self._follow()
        self._notified = self._replica.broadcast.count
        placed = await self._heap.replay(self._reading, Event(None, id=str))
        read = [(entry.origin, thaw(entry.shape, entry.fields)) for entry in placed]
        events = [(origin, event) for origin, event in read if is_of_board(event)]
        wipe = max((at for at, (_, one) in enumerate(events) if one.type == "wipe"), default=-1)
        self._placed = len(events)
        self._strokes = [one.fields for _, one in events[wipe + 1 :]]
        self._marks = [""]
        for one in self._strokes:
            told = self._marks[-1] + str(one["id"])
            self._marks.append(blake2b(told.encode(), digest_size=12).hexdigest())
        own = [one for origin, one in events[: max(0, wipe)] if origin == self._core.id]
        if own and not self._removing:
            task = asyncio.create_task(self._remove(own))
            self._removing.add(task)
            task.add_done_callback(self._removing.discard)

    async def _remove(self, wiped: list[Event]) -> None:
        """Remove events of this host that a later wipe has covered."""
        try:
            for event in wiped:
                await self._heap.remove(Event(event.type, id=event["id"]), wait=0)
        except TupeloError:
            pass  # The host was closed, or the heap destroyed; the rest expires.
