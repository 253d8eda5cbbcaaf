"""Boards: the whiteboard of a host, and its tray in the jigsaw. All browsers at the console of the
host use them together."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.services import Caller
from tupelo.federation.links import wire


class Board(Protocol):
    """A board at a host."""

    @property
    def ended(self) -> bool:
        """Must another be opened?"""
        ...


B = TypeVar("B", bound=Board)


class BoardService(ABC, Generic[B]):
    """A service with one board, which is opened when a client first asks for it."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self._board: B | None = None
        self._opening = asyncio.Lock()

    @abstractmethod
    async def open(self) -> B:
        """Open the board."""

    @abstractmethod
    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        """The answer to one call of a client; BadArgument if there is no such method."""

    async def opened(self) -> B:
        """The board, open."""
        async with self._opening:
            if self._board is None or self._board.ended:
                self._board = await self.open()
        return self._board

    def left(self, caller: Caller) -> None:
        """Nothing is kept for a client."""
