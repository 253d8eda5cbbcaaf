"""ROAMINGJIGSAW (the LIME paper, 5.1): players assemble puzzles together, also while disconnected.

A piece, or an assembly of pieces, is a tuple and belongs to the player in whose tuple space it is.
A weak reaction keeps the tray of each player up to date: at once while players are connected,
otherwise when they meet again. The numbers in comments are those of figure 11 of the paper.

A cell is the place of a piece in the picture: row by row, from 0. The tuples of the game are

- ("piece", puzzle, columns, rows, cells, moves): `moves` grows whenever a player selects it, so
  that news that come late are recognised;
- ("player", agent id, name, colour, changes): each player has another colour;
- ("away", puzzle): this puzzle was put away.

The game is played in the blocking and in the async API of LIME. In the latter, results are awaited,
and what was begun goes on to its end if its caller is cancelled: a piece is never left in a hand.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import wraps
from random import Random
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from tupelo.errors import BadArgument, LimitReached
from tupelo.models import lime
from tupelo.models.lime import (
    ONCE_PER_TUPLE,
    AgentLocation,
    LimeTupleSpace,
    ReactionEvent,
    UbiquitousReaction,
)
from tupelo.models.lime.locations import Location
from tupelo.space.dual_api import maybe_await, run_coroutine

SPACE = "jigsaw"
PIECE = ("piece", str, int, int, tuple, int)
PLAYER = ("player", str, str, int, int)
AWAY = ("away", str)
SIDE_MAX = 12
PUZZLES_MAX = 20
COLOURS = 8
"""The number of players with a colour of their own."""

Cells = tuple[int, ...]
P = ParamSpec("P")
Self_ = TypeVar("Self_", bound="Player")


class Piece(NamedTuple):
    """A piece or an assembly, and where it was last seen."""

    puzzle: str
    columns: int
    rows: int
    cells: Cells
    moves: int
    owner: Location

    @classmethod
    def of(cls, found: tuple[Any, ...], owner: Location) -> Piece | None:
        """The piece of a tuple; None for a tuple that is not a piece, from another program."""
        piece = cls._make((*found[1:], owner))
        sides = 1 <= piece.columns <= SIDE_MAX and 1 <= piece.rows <= SIDE_MAX
        cells = piece.cells
        inside = all(type(one) is int and 0 <= one < piece.columns * piece.rows for one in cells)
        good = sides and cells and inside and list(cells) == sorted(set(cells))
        return piece if good else None

    @property
    def template(self) -> tuple[Any, ...]:
        return (*PIECE[:1], self.puzzle, self.columns, self.rows, self.cells, int)

    @property
    def is_whole(self) -> bool:
        """Whether the piece is the whole picture."""
        return len(self.cells) == self.columns * self.rows

    def fits(self, other: Piece) -> bool:
        """Whether cells of the two pieces are neighbours in the picture."""
        if self.puzzle != other.puzzle or set(self.cells) & set(other.cells):
            return False
        width = self.columns
        beside = {one + 1 for one in self.cells if (one + 1) % width}
        beside |= {one - 1 for one in self.cells if one % width}
        beside |= {one + step for one in self.cells for step in (width, -width)}
        return not beside.isdisjoint(other.cells)


def check_sides(columns: object, rows: object) -> None:
    """BadArgument if there is no puzzle of so many columns and rows."""
    for name, side in (("columns", columns), ("rows", rows)):
        if type(side) is not int or not 1 <= side <= SIDE_MAX:
            raise BadArgument(name, f"a whole number from 1 to {SIDE_MAX}", side)
    if columns == rows == 1:
        raise BadArgument("columns", "2 or more, if there is one row", columns)


class Tray:
    """The puzzles as one player sees them: the last known state of each piece and player.

    `changed` is called after each change, in the thread that made it.
    """

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._pieces: dict[str, dict[Cells, Piece]] = {}
        self._players: dict[str, tuple[str, int, int]] = {}
        self._away: set[str] = set()
        self.version = 0

    @property
    def puzzles(self) -> list[str]:
        """The puzzles on the tray, the first that was seen first."""
        with self._lock:
            return list(self._pieces)

    def pieces(self, puzzle: str) -> list[Piece]:
        """The pieces of a puzzle, in the order of their first cells."""
        with self._lock:
            return sorted(self._pieces.get(puzzle, {}).values(), key=lambda one: one.cells)

    def find(self, puzzle: str, cells: Iterable[int]) -> Piece | None:
        """The piece of exactly these cells, if there is one."""
        with self._lock:
            return self._pieces.get(puzzle, {}).get(tuple(sorted(cells)))

    @property
    def players(self) -> dict[str, tuple[str, int]]:
        """The name and the colour of each player that was seen, by the id of its agent."""
        with self._lock:
            return {id: (name, colour) for id, (name, colour, _) in self._players.items()}

    def put(self, piece: Piece) -> None:
        """Note where a piece is, unless something newer is known."""
        with self._lock:
            if piece.puzzle in self._away:
                return
            known = self._pieces.setdefault(piece.puzzle, {})
            cells = set(piece.cells)
            for other in known.values():
                if cells < set(other.cells):
                    return  # It is already part of a larger piece.
                if other.cells == piece.cells and other.moves >= piece.moves:
                    return
            for part in [one for one in known if cells >= set(one)]:
                del known[part]
            known[piece.cells] = piece
            self.version += 1
        self._changed()

    def meet(self, id: str, name: str, colour: int, changes: int) -> None:
        """Note a player."""
        with self._lock:
            if self._players.get(id, ("", 0, -1))[2] >= changes or not 0 <= colour < COLOURS:
                return
            self._players[id] = (name, colour, changes)
            self.version += 1
        self._changed()

    def put_away(self, puzzle: str) -> None:
        """Forget a puzzle, also if other news of it come later."""
        with self._lock:
            self._away.add(puzzle)
            if self._pieces.pop(puzzle, None) is None:
                return
            self.version += 1
        self._changed()


def _by_agent(
    method: Callable[Concatenate[Self_, P], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[Self_, P], Any]:
    """Decorator: any thread or task may call this; it is done as the agent of the player."""

    @wraps(method)
    def call(self: Self_, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._act(method(self, *args, **kwargs))

    return call


class Player:
    """One player: an agent with its pieces, and its tray. Make it by `Player.join`."""

    def __init__(self, host: lime.Host, changed: Callable[[], object] = lambda: None) -> None:
        self.is_async = host.is_async
        self.tray = Tray(changed)
        self._host = host
        self._context = copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun = 0
        self._agent: lime.Agent
        self._space: LimeTupleSpace

    @classmethod
    def join(
        cls, host: lime.Host, name: str | None = None, changed: Callable[[], object] = lambda: None
    ) -> Any:
        """A new player at this host, by default with its name; it sees all players in reach.
        `changed` is called after each change of its tray."""
        player = cls(host, changed)
        return player._act(player._join(host.name if name is None else name))

    async def _join(self, name: str) -> Self:
        self._agent = await maybe_await(self._host.agent(name))
        self._space = LimeTupleSpace(SPACE, self._agent)  # 1
        self._context = copy_context()
        await maybe_await(self._space.set_shared(True))
        for one in await maybe_await(self._space.rdg(PLAYER)):
            self.tray.meet(*one[1:])
        await self._choose_colour()
        reactions = (
            UbiquitousReaction(template, self, ONCE_PER_TUPLE) for template in (PLAYER, AWAY, PIECE)
        )
        await maybe_await(self._space.add_weak_reaction(*reactions))  # 2
        return self

    @property
    def id(self) -> str:
        """The id of the agent."""
        return self._agent.id

    @property
    def ended(self) -> bool:
        """Whether the agent has ended, with its host."""
        return self._agent.ended

    def own(self, puzzle: str) -> list[Piece]:
        """The pieces of this player."""
        return [one for one in self.tray.pieces(puzzle) if one.owner == self._agent.location]

    @_by_agent
    async def new_puzzle(self, columns: int, rows: int) -> str:
        """Put the pieces of a new puzzle on the tray, as this player's; return its name."""
        check_sides(columns, rows)
        if len(self.tray.puzzles) >= PUZZLES_MAX:
            raise LimitReached("puzzles on the tray (put one away)", PUZZLES_MAX)
        self._begun += 1
        puzzle = f"{self.id}/{self._begun}"
        for cell in range(columns * rows):  # 3
            await self._out((*PIECE[:1], puzzle, columns, rows, (cell,), 0))
        return puzzle

    @_by_agent
    async def select(self, puzzle: str, cells: Iterable[int]) -> bool:
        """Make a piece this player's own. False if it is not to be had: the player who was last
        known to have it is away, or has it no more."""
        return await self._select(self.tray.find(puzzle, cells))

    async def _select(self, piece: Piece | None) -> bool:
        if piece is None:
            return False
        if piece.owner == self._agent.location:
            return True
        found = await maybe_await(self._space.inp(piece.template, current=piece.owner))  # 4
        if found is None:
            return False
        await self._out((*found[:-1], found[-1] + 1))
        return True

    @_by_agent
    async def assemble(self, puzzle: str, one: Iterable[int], other: Iterable[int]) -> bool:
        """Join two pieces of this player to one. False if they do not fit, or one of them is not,
        or no more, the player's own."""
        first, second = self.tray.find(puzzle, one), self.tray.find(puzzle, other)
        return await self._assemble(first, second)

    async def _assemble(self, one: Piece | None, other: Piece | None) -> bool:
        if one is None or other is None or not one.fits(other):
            return False
        taken: list[tuple[Any, ...]] = []
        try:
            for piece in (one, other):
                mine = self._agent.location
                found = await maybe_await(self._space.inp(piece.template, current=mine))  # 5
                if found is None:
                    return False
                taken.append(found)
            moves = max(found[-1] for found in taken) + 1
            cells = tuple(sorted(one.cells + other.cells))
            taken = [(*taken[0][:-2], cells, moves)]
        finally:
            for piece_or_assembly in taken:
                await self._out(piece_or_assembly)
        return True

    @_by_agent
    async def move(self, puzzle: str, rng: Random) -> bool:
        """One move of a scripted player: assemble two pieces that fit, and select the second before
        if another player has it. Only the player with the larger one does that, else both would
        go on to select from each other. A player without pieces selects one of a player with
        several. False if there is no such move, or the piece was not to be had."""
        pieces = self.tray.pieces(puzzle)
        mine = self.own(puzzle)
        if not mine:
            owned = Counter(one.owner for one in pieces)
            spare = [one for one in pieces if owned[one.owner] > 1]
            return bool(spare) and await self._select(rng.choice(spare))
        fitting = [(one, other) for one in mine for other in pieces if one.fits(other)]
        pairs = [(one, other) for one, other in fitting if other in mine] or [
            (one, other)
            for one, other in fitting
            if (len(one.cells), one.cells) > (len(other.cells), other.cells)
        ]
        one, other = rng.choice(pairs) if pairs else (None, None)
        return await self._select(other) and await self._assemble(one, other)

    @_by_agent
    async def put_away(self, puzzle: str) -> None:
        """Take a puzzle from all trays: from those of absent players when they come back."""
        if puzzle in self.tray.puzzles:
            await maybe_await(self._space.out((*AWAY[:1], puzzle)))
            await self._put_away(puzzle)

    @_by_agent
    async def leave(self) -> None:
        """End the game for this player, who hands the pieces to another player in reach. If there
        is none, they vanish with the agent."""
        players = await maybe_await(self._space.rdg(PLAYER))
        heirs = sorted(one[1] for one in players if one[1] != self.id)
        if heirs:
            mine = await maybe_await(self._space.ing(PIECE, current=self._agent.location))
            for piece in mine:
                handed = (*piece[:-1], piece[-1] + 1)
                await maybe_await(self._space.out(handed, AgentLocation(heirs[0])))
        await maybe_await(self._agent.end())

    def reacts_to(self, event: ReactionEvent) -> Any:  # 6
        """A weak reaction: something of the game is new, or has come into reach."""
        work = self._heard(event.tuple, event.source)
        return work if self.is_async else run_coroutine(work)

    async def _heard(self, heard: tuple[Any, ...], source: Location) -> None:
        if heard[0] == PIECE[0]:
            piece = Piece.of(heard, source)
            if piece is not None:
                self.tray.put(piece)
        elif heard[0] == AWAY[0]:
            await self._put_away(heard[1])
        else:
            self.tray.meet(*heard[1:])
            mine = self.tray.players[self.id][1]
            if heard[1] < self.id and heard[3] == mine:
                await self._choose_colour()  # Both have begun apart.

    async def _choose_colour(self) -> None:
        """Tell the others a colour that no other player has, as far as is known."""
        others = (colour for id, (_, colour) in self.tray.players.items() if id != self.id)
        used = Counter(others)
        colour = min(range(COLOURS), key=lambda one: used[one])
        own = (*PLAYER[:1], self.id, str, int, int)
        before = await maybe_await(self._space.inp(own, current=self._agent.location))
        changes = 0 if before is None else before[-1] + 1
        chosen = (*PLAYER[:1], self.id, self._agent.name, colour, changes)
        await maybe_await(self._space.out(chosen))
        self.tray.meet(*chosen[1:])

    async def _put_away(self, puzzle: str) -> None:
        self.tray.put_away(puzzle)
        template = (*PIECE[:1], puzzle, *PIECE[2:])
        await maybe_await(self._space.ing(template, current=self._agent.location))

    async def _out(self, made: tuple[Any, ...]) -> None:
        await maybe_await(self._space.out(made))
        piece = Piece.of(made, self._agent.location)
        assert piece is not None
        self.tray.put(piece)

    def _act(self, work: Coroutine[Any, Any, Any]) -> Any:
        context = self._context.copy()
        if not self.is_async:
            return context.run(run_coroutine, work)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    def __repr__(self) -> str:
        return f"<the player {self.id}>"
