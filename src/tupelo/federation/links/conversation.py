"""Conversations: what two programs say to each other over one link. Calls go both ways, each with
a number and one answer; silence and slowness end it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from tupelo.errors import BadFrame, CannotSend
from tupelo.federation.links.calls import FIRST_MESSAGES, InboundCall, PendingCalls, TurnScheduler
from tupelo.federation.links.link import Link
from tupelo.federation.links.wire import (
    MESSAGE_MAX,
    Answer,
    Ask,
    Failure,
    Goodbye,
    Message,
    MoveEntry,
    Ping,
    decode,
    encode,
)

logger = logging.getLogger("tupelo")

SILENT_AFTER = 3
"""So many heartbeats without a word, and the other end is held for lost."""
STALLED_AFTER = 10
"""So many heartbeats in which it takes nothing of what it is told, and it is too slow."""
UNSENT_HIGH = 2**20
"""With so many bytes unsent nothing more is heard from the other end: its calls would add more."""
UNSENT_MAX = 2 * MESSAGE_MAX
"""With so many bytes unsent the other end is too slow to be kept."""
OVERTAKING = frozenset({Answer, Failure, Ping, Ask, MoveEntry})
"""Messages that may overtake a long one of these types: answers and calls that refer to no message
sent before them. All others arrive in the order in which they were sent."""


class Conversation:
    """One conversation. `serve` is given what is not an answer; `ended` the reason of the end. With
    `turns`, what comes is served when it is its turn, and nothing is read while some of it waits.
    """

    def __init__(
        self,
        link: Link,
        *,
        serve: Callable[[Message], None],
        ended: Callable[[str], None],
        next_call: Callable[[], int],
        heartbeat: float,
        turns: TurnScheduler | None = None,
    ) -> None:
        self.link = link
        self.over = False
        self.label = link.label
        self._serve = serve
        self._ended = ended
        self._next_call = next_call
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._calls: PendingCalls[InboundCall] = PendingCalls()
        self._said = self._heard = False
        self._silence = 0
        self._turns = turns
        self._first = FIRST_MESSAGES
        self._paused = False  # The other end does not take its answers.
        self._held = False  # It has as many calls under way as it may.
        self._queued = False  # It waits for its turn.
        self._unheard: list[bytes] = []
        self._waited = 0
        self._timer = self._loop.call_later(heartbeat, self._beat)

    # Speaking

    def say(self, message: Message) -> None:
        """Say something that needs no answer. Nothing is said once it is over; CannotSend if it
        cannot be said at all."""
        if self.over:
            return
        try:
            content = encode(message, self.link.message_max)
        except UnicodeEncodeError as error:
            raise CannotSend(f"a text is not valid Unicode: {error}") from error
        self._said = True
        self.link.send(content, overtake=type(message) in OVERTAKING)
        waiting = self.link.waiting
        # A long message does not keep the other end from asking for more.
        if waiting - self.link.in_pieces > UNSENT_HIGH and not self._paused:
            self._paused = True
            self.link.pause()
        if waiting > UNSENT_MAX:
            self.end("too slow")

    def next_call(self) -> int:
        return self._next_call()

    def call(self, message: Any, during: str) -> asyncio.Future[Any]:
        """Say something and get its answer, or its error; PeerLost if the end comes before."""
        call = InboundCall(self.label, during)
        if self.over:
            call.lost("")
            return call.answer
        self._calls[message.call] = call
        try:
            self.say(message)
        except CannotSend:
            del self._calls[message.call]
            raise
        return call.answer

    # Hearing

    def heard(self, contents: list[bytes]) -> None:
        self._heard = True
        if self._unheard:
            self._unheard += contents
            self.link.pause()
        elif contents:
            turns = self._turns
            most = count = len(contents)
            if turns is not None:
                most = turns.take(count)
                if self._first:
                    now = min(count, self._first)
                    self._first -= now
                    most = max(most, now)
            self._hear(contents, most)

    def _hear(self, contents: list[bytes], most: int) -> int:
        """Serve so many of these; how many were. The rest is kept."""
        for place, content in enumerate(contents):
            if self.over:
                return place
            if place == most or self._paused or self._held:
                self._unheard = contents[place:]
                self._keep_unheard()
                return place
            try:
                message = decode(content)
                cls = type(message)
                if cls is Answer or cls is Failure:
                    self._calls.resolve(message)  # type: ignore[arg-type]
                elif cls is Goodbye:
                    self.end("goodbye")
                elif cls is not Ping:
                    self._serve(message)
            except BadFrame as error:
                logger.warning("%s: %s", self.label, error)
                self.end(f"garbage: {error}")
        return len(contents)

    def _keep_unheard(self) -> None:
        """Some of what came is not served yet. Who waits for a turn is read once more meanwhile:
        most programs have said no more, and to stop and go on costs two system calls."""
        if self._turns is None or not self.awaits_turn:
            self.link.pause()
        elif not self._queued:
            self._queued = True
            self._turns.queue(self)

    @property
    def awaits_turn(self) -> bool:
        """Are there messages that can be served now?"""
        return bool(self._unheard) and not (self._paused or self._held or self.over)

    def serve_turn(self, most: int) -> int:
        """It is its turn: serve at most so many messages. How many were."""
        self._queued = False
        if not self.awaits_turn:
            return 0
        unheard, self._unheard = self._unheard, []
        self._queued = True  # The queue looks itself whether there are more.
        served = self._hear(unheard, most)
        self._queued = self.awaits_turn
        self._read_on()
        return served

    def _read_on(self) -> None:
        if not (self._unheard or self._paused or self._held or self.over):
            self.link.resume()

    def _go_on(self) -> None:
        """What stood in the way is gone."""
        if self._unheard and self._turns is None:
            unheard, self._unheard = self._unheard, []
            self._hear(unheard, len(unheard))
        elif self._unheard:
            self._keep_unheard()
        self._read_on()

    def eased(self) -> None:
        if self._paused and not self.over:
            self._paused = False
            self._go_on()

    def hold(self, held: bool) -> None:
        """Serve nothing more for now, since so many calls of the other end are under way; or go
        on."""
        if held:
            self._held = True
            self.link.pause()
        elif self._held and not self.over:
            self._held = False
            self._go_on()

    # The end

    def _beat(self) -> None:
        waiting = self.link.waiting
        moves = self._heard or (self._paused and waiting < self._waited)
        if not self._paused and (self._held or self._unheard):
            moves = True  # It may have said something that we do not read.
        self._waited = waiting
        self._silence = 0 if moves else self._silence + 1
        if self._silence >= (STALLED_AFTER if self._paused else SILENT_AFTER):
            self.end("too slow" if self._paused else "silent")
            return
        if not self._said:
            self.say(Ping())
        self._heard = self._said = False
        if not self.over:
            self._timer = self._loop.call_later(self._heartbeat, self._beat)

    def forget(self) -> None:
        """It never began: nobody is told of its end."""
        self.over = True
        self._timer.cancel()

    def goodbye(self, reason: str = "") -> None:
        """Leave, and say so."""
        if not self.over:
            self.say(Goodbye(reason))
            self._finish("we left", self.link.close)

    def end(self, reason: str) -> None:
        """It is over: for this reason, which is not ours."""
        if not self.over:
            self._finish(reason, self.link.abort)

    def lost(self, reason: str) -> None:
        self.end(reason)

    def _finish(self, reason: str, hang_up: Callable[[], None]) -> None:
        self.over = True
        self._unheard = []
        self._timer.cancel()
        hang_up()
        for call in self._calls.pop_all():
            call.lost(reason)
        self._ended(reason)
