"""Dialling: a host looks for others at the addresses it knows, and again whenever one is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

from tupelo.errors import TupeloError

logger = logging.getLogger("tupelo")

BACK_OFF_SECONDS = (0.1, 5.0)
LASTING_SECONDS = 3.0
"""After an engagement that has lasted so long, the next attempt is not put off."""


class Dialler:
    """Looks for hosts. `greet` dials one and engages with it, and answers with its id; `has` says
    whether a host of this id, or at this address, is engaged."""

    def __init__(
        self,
        own_id: str,
        greet: Callable[[str], Awaitable[str]],
        has: Callable[[str, str], bool],
        rng: Random,
    ) -> None:
        self._own_id = own_id
        self._greet = greet
        self._has = has
        self._rng = rng
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._departed = asyncio.Event()
        self._stopped = False

    def dial(self, address: str) -> None:
        """Look for a host at this address, and again whenever it is lost."""
        if address not in self._tasks and not self._stopped:
            self._tasks[address] = asyncio.ensure_future(self._keep_dialling(address))

    def undial(self, address: str) -> None:
        """Look for a host there no more."""
        task = self._tasks.pop(address, None)
        if task is not None:
            task.cancel()

    def departed(self) -> None:
        """A host was lost, which may be one that is looked for."""
        self._departed.set()

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_dialling(self, address: str) -> None:
        pause, longest = BACK_OFF_SECONDS
        known = ""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                if not self._has(known, address):
                    known = await self._greet(address)
                if known == self._own_id:
                    return
                while self._has(known, address):
                    self._departed.clear()  # Another one may have departed before.
                    await self._departed.wait()
            except TupeloError as error:
                logger.info("%s: %s", address, error)
            if loop.time() - began > LASTING_SECONDS:
                pause = BACK_OFF_SECONDS[0]
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)
