"""The service "jigsaw" of a host: the host's player in the game of `tupelo.apps.jigsaw`.

All browsers at the console of a host play as this one player. It is an agent of LIME, at the
lime.Host that a program has made of the host, or else at one that is made here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tupelo.apps.console.boards import BoardService
from tupelo.apps.jigsaw import PUZZLES_MAX, SIDE_MAX, SPACE, Player
from tupelo.errors import BadArgument, TupeloError
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.services import Caller
from tupelo.federation.links import wire
from tupelo.federation.replication.feeds import Broadcast
from tupelo.models.lime.host import host_on
from tupelo.space.query import deadline_of
from tupelo.space.tasks import timeout_at

SERVICE = "jigsaw"
LEAVING_SECONDS = 2.0
"""A host that is closed waits so long at most until its pieces are with another player."""


class JigsawService(BoardService["Table"]):
    """Answers `new_puzzle(columns, rows)`, `select(puzzle, cells)`, `assemble(puzzle, one, other)`,
    `put_away(puzzle)` and `tray(mark)` on the loop of the host; a client needs the right to read in
    the space "jigsaw", and for all but the last also those to write and to take."""

    def __init__(self, core: HostCore) -> None:
        super().__init__(core)
        core.extensions.leaving.append(self._leave)

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        caller.hosted(SPACE, "read")
        match message.method, message.args:
            case "tray", [str() as mark]:
                return await (await self.opened()).show(mark, message.wait)
            case ("new_puzzle", [_, _]) | ("put_away", [str()]):
                args = message.args
            case "select", [str(), cells]:
                args = [message.args[0], check_cells("cells", cells)]
            case "assemble", [str(), one, other]:
                args = [message.args[0], check_cells("one", one), check_cells("other", other)]
            case _:
                raise BadArgument("method", "one of jigsaw, with its arguments", message.method)
        for right in ("write", "take"):
            caller.hosted(SPACE, right)
        table = await self.opened()
        return await table.call(getattr(table.player, message.method), *args)

    async def open(self) -> Table:
        table = Table(self.core)
        await table.open()
        return table

    async def _leave(self) -> None:
        """The host is about to be closed: its pieces stay in the game."""
        if self._board is not None and not self._board.ended:
            with suppress(TupeloError, TimeoutError):
                async with asyncio.timeout(LEAVING_SECONDS):
                    await self._board.call(self._board.player.leave)


def check_cells(name: str, cells: object) -> list[int]:
    """The checked cells of a piece. BadArgument names the argument."""
    if (
        not isinstance(cells, list)
        or not 1 <= len(cells) <= SIDE_MAX**2
        or not all(type(one) is int and 0 <= one < SIDE_MAX**2 for one in cells)
    ):
        raise BadArgument(name, f"an array of numbers from 0 to {SIDE_MAX**2 - 1}", cells)
    return cells


class Table:
    """The player of this host, on its loop."""

    player: Player

    def __init__(self, core: HostCore) -> None:
        self._core = core
        self._news = Broadcast()

    async def open(self) -> None:
        """Join the game."""
        loop = asyncio.get_running_loop()
        host = await host_on(self._core)

        def changed() -> None:
            with suppress(RuntimeError):  # The loop of the host was closed.
                loop.call_soon_threadsafe(self._news.notify)

        join = Player.join if host.is_async else _in_thread(Player.join)
        self.player = await join(host, changed=changed)

    @property
    def ended(self) -> bool:
        return self.player.ended

    async def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the player."""
        return await (method if self.player.is_async else _in_thread(method))(*args)

    async def show(self, mark: str, wait: float | None) -> dict[str, Any]:
        """The tray as soon as it is another than that of the mark, or after `wait` seconds."""
        player, tray, clock = self.player, self.player.tray, self._core.clock
        with suppress(TimeoutError):
            async with timeout_at(clock, deadline_of(clock, wait)):
                await self._news.until(lambda: mark != str(tray.version))
        version, players = tray.version, tray.players
        puzzles = [(puzzle, tray.pieces(puzzle)) for puzzle in tray.puzzles[:PUZZLES_MAX]]
        return {
            "mark": str(version),
            "me": player.id,
            "players": [
                {"id": id, "name": name, "colour": colour} for id, (name, colour) in players.items()
            ],
            "puzzles": [
                {
                    "puzzle": puzzle,
                    "columns": pieces[0].columns,
                    "rows": pieces[0].rows,
                    "pieces": [{"cells": one.cells, "owner": one.owner.id} for one in pieces],
                }
                for puzzle, pieces in puzzles
                if pieces
            ],
        }


def _in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(method, *args, **kwargs)

    return call
