"""Guesses: passwords are checked in threads of their own, a few at a time for each address, and
slower after each wrong one. A flood of them costs whoever sends it, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tupelo.errors import LimitReached

FREE_GUESSES = 4
"""So many wrong passwords of one address cost no time: people mistype."""
FIRST_PAUSE_SECONDS = 0.25
"""So long is the pause after the next wrong one; each further one doubles it."""
PAUSE_MAX_SECONDS = 30.0
FORGET_SECONDS = 900.0
"""After so long without a wrong password an address begins anew."""
PENDING_MAX = 16
"""So many checks of one address may wait at a time."""
ADDRESSES_MAX = 1_024
"""Of so many addresses it is remembered that they were wrong; the oldest is forgotten first."""
THREADS = 1


class _AddressGuesses:
    """One address: how often it was wrong, and until when it has to pause."""

    def __init__(self) -> None:
        self.wrong = 0
        self.last = 0.0
        self.not_before = 0.0
        self.pending = 0
        self.turn = asyncio.Lock()


class PasswordGuard:
    """The password checks of one host."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._guessers: dict[str, _AddressGuesses] = {}
        self._pool: ThreadPoolExecutor | None = None

    def wrong_from(self, address: str) -> int:
        """How many wrong passwords came from this address, as far as it is remembered."""
        found = self._guessers.get(address)
        return 0 if found is None else found.wrong

    async def check(self, address: str, matches: Callable[[], bool]) -> bool:
        """Whether the password matches, once this address may be told. LimitReached if too many of
        its checks wait already."""
        guesser = self._guesser(address)
        if guesser.pending >= PENDING_MAX:
            raise LimitReached("password checks of one address", PENDING_MAX)
        guesser.pending += 1
        try:
            # One after another, and the pause before the check: who hangs up early gains nothing.
            async with guesser.turn:
                pause = guesser.not_before - self._loop.time()
                if pause > 0:
                    await asyncio.sleep(pause)
                right = await self._loop.run_in_executor(self._threads(), matches)
                if not right:
                    self._was_wrong(guesser)
                return right
        finally:
            guesser.pending -= 1

    def _guesser(self, address: str) -> _AddressGuesses:
        guesser = self._guessers.pop(address, None) or _AddressGuesses()
        if guesser.wrong and self._loop.time() - guesser.last > FORGET_SECONDS:
            guesser.wrong = 0
        self._guessers[address] = guesser
        if len(self._guessers) > ADDRESSES_MAX:
            idle = (name for name, one in self._guessers.items() if not one.pending)
            self._guessers.pop(next(idle, address), None)
        return guesser

    def _was_wrong(self, guesser: _AddressGuesses) -> None:
        guesser.wrong += 1
        guesser.last = self._loop.time()
        steps = guesser.wrong - FREE_GUESSES
        if steps > 0:
            doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(steps - 1, 32)
            guesser.not_before = guesser.last + min(doubled, PAUSE_MAX_SECONDS)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "tupelo-passwords")
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
