"""Conversations: messages, calls and heartbeats between two programs over one link. A conversation
ends when the other end is silent or too slow."""

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
"""The other end is lost after so many heartbeats in which nothing was received from it."""
STALLED_AFTER = 10
"""The other end is too slow if it takes nothing that is sent to it for so many heartbeats."""
UNSENT_HIGH = 2**20
"""With more bytes unsent, reading is paused: the calls of the other end would add more answers."""
UNSENT_MAX = 2 * MESSAGE_MAX
"""With more bytes unsent, the other end is too slow and the link is ended."""
OVERTAKING = frozenset({Answer, Failure, Ping, Ask, MoveEntry})
"""Messages that may overtake a long one of these types: answers and calls that refer to no message
sent before them. All others arrive in the order in which they were sent."""


class Conversation:
    """One conversation. `serve` is called with each message that is not an answer, `ended` with the
    reason of the end. With `turns`, received messages are served in turns with those of other
    programs, and nothing more is read while some of them wait.
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
        self._paused = False  # reading, because the other end does not take its answers
        self._held = False  # reading, because as many of its calls are worked on as may be
        self._queued = False  # for a turn
        self._unheard: list[bytes] = []
        self._waited = 0
        self.bytes_sent = self.bytes_received = 0
        """The length of all messages so far, in each direction."""
        self._timer = self._loop.call_later(heartbeat, self._beat)

    # Sending

    def say(self, message: Message) -> None:
        """Send a message that needs no answer; after the end it is dropped. Raises CannotSend if it
        is too long for the other end, or contains text that is not valid Unicode."""
        if self.over:
            return
        try:
            content = encode(message, self.link.message_max)
        except UnicodeEncodeError as error:
            raise CannotSend(f"a text is not valid Unicode: {error}") from error
        self._said = True
        self.bytes_sent += len(content)
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
        """Send a call. The future gets its answer, or its error: PeerLost if the conversation ends
        before. `during` names the operation in that error."""
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

    # Receiving

    def heard(self, contents: list[bytes]) -> None:
        self._heard = True
        for content in contents:
            self.bytes_received += len(content)
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
        """Serve at most so many of these messages; return how many were. The rest is kept."""
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
        """Some received messages are not served yet. While they wait for a turn the link is read
        once more: most programs have sent no more, and pausing costs two system calls."""
        if self._turns is None or not self.awaits_turn:
            self.link.pause()
        elif not self._queued:
            self._queued = True
            self._turns.queue(self)

    @property
    def awaits_turn(self) -> bool:
        """Whether there are messages that can be served now."""
        return bool(self._unheard) and not (self._paused or self._held or self.over)

    def serve_turn(self, most: int) -> int:
        """Serve at most so many messages; return how many were served."""
        self._queued = False
        if not self.awaits_turn:
            return 0
        unheard, self._unheard = self._unheard, []
        self._queued = True  # The scheduler asks for `awaits_turn` after this.
        served = self._hear(unheard, most)
        self._queued = self.awaits_turn
        self._read_on()
        return served

    def _read_on(self) -> None:
        if not (self._unheard or self._paused or self._held or self.over):
            self.link.resume()

    def _go_on(self) -> None:
        """Serve what was kept, and read on."""
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
        """Stop serving while too many calls of the other end are worked on, or go on."""
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
            moves = True  # It may have sent something that we do not read.
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
        """End without a call of `ended`, before the conversation has begun."""
        self.over = True
        self._timer.cancel()

    def goodbye(self, reason: str = "") -> None:
        """Send Goodbye and close the link."""
        if not self.over:
            self.say(Goodbye(reason))
            self._finish("we left", self.link.close)

    def end(self, reason: str) -> None:
        """End the conversation for a reason that is the other end's: open calls get PeerLost."""
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
