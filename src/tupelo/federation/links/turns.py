"""Turns: how a host divides its time among the programs it serves.

A program may send thousands of messages at once, and a thousand programs may. What each of them
sends is served some messages at a time, in turn, and the loop comes round in between: so whoever
dials is answered, heartbeats go out, and nobody waits behind all that another has asked for. What
is not served yet stays unread in its line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

ROUND_MESSAGES = 128
"""So many messages of all programs are served before the loop comes round. A newcomer waits for
several rounds until it is connected, and a message of a durable space may take a millisecond. With
1,024 newcomers among 200 busy clients waited two to five times longer; what the host did in a
second of its processor was the same within what such measurements differ (about a tenth)."""
TURN_MIN = 64
"""No turn is shorter, in messages: the answers of a turn go out together, in two writes."""
FIRST_MESSAGES = 8
"""So many messages of a program that has just come are served before all that wait."""
WORKING_MAX = 2_048
"""So many calls of all programs may be worked on at a time."""


class TurnTaker(Protocol):
    """A conversation with messages that were not served yet."""

    def serve_turn(self, most: int) -> int:
        """Serve at most so many of them; how many were."""
        ...

    @property
    def awaits_turn(self) -> bool:
        """Are there more, that can be served now?"""
        ...


class TurnScheduler:
    """The turns of one host. `working` counts the calls that are being worked on, as tasks: when
    there are `working_max`, nothing more is served until one has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, working_max: int = WORKING_MAX) -> None:
        self.working = 0
        self._working_max = working_max
        self._loop = loop
        self._waiting: deque[TurnTaker] = deque()
        self._left = ROUND_MESSAGES
        self._scheduled = False

    def take(self, wanted: int) -> int:
        """How many messages that have just come may be served at once. The rest waits for a
        turn: see `queue`."""
        if self._waiting or self._left <= 0 or self.working >= self._working_max:
            return 0
        granted = min(wanted, self._left)
        self._left -= granted
        if self._left <= 0:
            self._schedule()
        return granted

    def queue(self, one: TurnTaker) -> None:
        """This conversation has messages that wait for a turn, and is not in the queue yet."""
        self._waiting.append(one)
        self._schedule()

    def ended(self, calls: int = 1) -> None:
        """So many calls are not worked on any more."""
        full = self.working >= self._working_max
        self.working -= calls
        if full:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._scheduled = False
        self._left = ROUND_MESSAGES
        waiting = self._waiting
        # The more wait, the shorter is a turn, so that each has one soon.
        turn = max(TURN_MIN, ROUND_MESSAGES // max(1, len(waiting)))
        while waiting and self._left > 0 and self.working < self._working_max:
            one = waiting.popleft()
            self._left -= max(1, one.serve_turn(min(turn, self._left)))
            if one.awaits_turn:
                waiting.append(one)
        if self._left <= 0 or (waiting and self.working < self._working_max):
            self._schedule()
