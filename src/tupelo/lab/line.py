"""A line of the virtual network: its two ends, and what is under way between them.

Each direction is a queue. Frames and signals stand in it in the order in which they were sent, each
with the moment of its arrival; nothing overtakes. A partition or a pause only stops the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tupelo.errors import CannotReach
from tupelo.federation.links.link import Answering, FrameReceiver
from tupelo.federation.links.wire import FRAME_MAX

if TYPE_CHECKING:
    from tupelo.lab.network import VirtualNetwork

LINGER_SECONDS = 1.0
"""How long a link that was closed goes on to deliver what was sent before."""
WAITING_HIGH, WAITING_LOW = 256 * 1024, 64 * 1024
"""A link with more bytes waiting than the first eases when it has no more than the second."""
HEAD_BYTES = 4
"""What a frame has besides its content."""


class _State(Enum):
    OPEN = 1
    CLOSING = 2  # It has hung up, and hears no more; what it sent is still under way.
    OVER = 3


class _Signal(Enum):
    """What goes through a line besides frames."""

    KNOCK = 1
    OPENED = 2
    REFUSED = 3
    END = 4
    RESET = 5


@dataclass
class _Knocking:
    """Someone dials: who will own the link, and what ends when it is there."""

    address: str
    answer: Answering
    opened: asyncio.Future[None]


class VirtualLink:
    """One end of a line. `name` is the place where it is."""

    def __init__(self, network: VirtualNetwork, name: str, label: str) -> None:
        self.label = label
        self.identity: str | None = None
        self.here = False
        self.message_max = FRAME_MAX
        self.in_pieces = 0  # The lab sends every message as a whole.
        self.name = name
        self.number = network.loop.number("link")
        self.other: VirtualLink
        self.outgoing: _Direction
        self.paused = False
        self.state = _State.OPEN
        self._network = network
        self._ear: FrameReceiver | None = None
        self._full = False
        self._knocking: _Knocking | None = None
        self._linger: asyncio.TimerHandle | None = None

    def __hash__(self) -> int:
        return self.number  # So that sets of links have the same order in every run.

    def meet(self, other: VirtualLink) -> None:
        self.other = other
        self.identity = self._network.identities.get(other.name)
        self.here = other.name == self.name
        self.outgoing = _Direction(self._network, self, other)

    # What a program does

    def admit(self, message_max: int) -> None:
        """Nobody in the lab sends long frames before it is known."""
        self.message_max = message_max

    def send(self, content: bytes, *, overtake: bool = False) -> None:
        if self.state is _State.OPEN:
            self._network.count(self.name, self.other.name, len(content) + HEAD_BYTES)
            self.outgoing.push(content)
            self._full = self._full or self.outgoing.waiting > WAITING_HIGH

    @property
    def waiting(self) -> int:
        return self.outgoing.waiting

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.other.outgoing.schedule()

    def close(self) -> None:
        if self.state is _State.OPEN:
            self.state = _State.CLOSING
            self._ear = None  # Who hangs up knows it, and hears no more.
            self.outgoing.push(_Signal.END)
            self._set_linger()

    def _set_linger(self) -> None:
        self._linger = self._network.loop.call_later(LINGER_SECONDS, self._lingered)

    def _lingered(self) -> None:
        if self.outgoing.moves:
            self._set_linger()
        else:
            self.abort()

    def abort(self) -> None:
        if self.state is not _State.OVER:
            self._ear = None
            self.end("hung up")
            self.outgoing.push(_Signal.RESET)

    # What happens to it

    def knock(self, address: str, answer: Answering) -> asyncio.Future[None]:
        """Ask to be let in. The future ends when the answer is there."""
        opened = self._network.loop.create_future()
        self._knocking = _Knocking(address, answer, opened)
        self.outgoing.push(_Signal.KNOCK)
        return opened

    def heard(self, contents: list[bytes]) -> None:
        if self.state is _State.OPEN and self._ear is not None:
            for content in contents:
                self._network.note_frame(self.other.name, self.name, content)
            self._ear.heard(contents)

    def signalled(self, signal: _Signal) -> None:
        if self.state is _State.OVER:
            return
        match signal:
            case _Signal.KNOCK:
                if self.other._knocking is not None:
                    self._let_in(self.other._knocking.address)
            case _Signal.OPENED:
                if self._knocking is not None:
                    self._enter(self._knocking)
            case _Signal.REFUSED:
                self.end("refused")
                self.other.end("refused")
            case _Signal.END:
                self.end("closed by the other end")
                self.other.end("hung up")
            case _Signal.RESET:
                self.end("reset")

    def _let_in(self, address: str) -> None:
        answer = self._network.who_answers(address)
        if answer is None:
            self.outgoing.push(_Signal.REFUSED)
            return
        self.outgoing.push(_Signal.OPENED)
        try:
            self._listen(answer)
        except BaseException:
            self.abort()
            raise

    def _enter(self, knocking: _Knocking) -> None:
        self._knocking = None
        if knocking.opened.done():  # Whoever dialled was cancelled, and is about to hang up.
            return
        try:
            self._listen(knocking.answer)
        except Exception as error:
            knocking.opened.set_exception(error)
        else:
            self._network.note(f"{self.name} is linked to {self.label}")
            knocking.opened.set_result(None)

    def _listen(self, answer: Answering) -> None:
        ear = answer(self)
        if self.state is _State.OPEN:  # else it has hung up already
            self._ear = ear

    def die(self) -> None:
        """The program is gone, and is told nothing. An end that nobody has answered yet was never
        its own, and is refused in time."""
        if self._ear is not None or self._knocking is not None:
            self._ear = self._knocking = None
            self.close()

    def end(self, reason: str) -> None:
        """It is over at this end. The ear is told soon: never in the middle of its own call."""
        if self.state is _State.OVER:
            return
        self.state = _State.OVER
        self.outgoing.clear()
        if self._linger is not None:
            self._linger.cancel()
        knocking, self._knocking = self._knocking, None
        if knocking is not None and not knocking.opened.done():
            knocking.opened.set_exception(CannotReach(knocking.address, reason))
        self._network.loop.call_soon(self._tell, reason)

    def _tell(self, reason: str) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            self._network.note(f"{self.name} loses {self.label}: {reason}")
            ear.lost(reason)
        self.arrived()

    def arrived(self) -> None:
        """Something that was sent has arrived. The network forgets an end that is over when nothing
        is left to be told there, and no reset of it is held back by a partition."""
        if self._full and self.outgoing.waiting <= WAITING_LOW:
            self._full = False
            if self.state is _State.OPEN and self._ear is not None:
                self._ear.eased()
        if self.state is _State.OVER and self._ear is None and self.outgoing.empty:
            self._network.forget(self)


class _Direction:
    """One direction of a line: what was sent and has not arrived, in order."""

    def __init__(self, network: VirtualNetwork, source: VirtualLink, target: VirtualLink) -> None:
        self.waiting = 0
        self._network = network
        self._source = source
        self._target = target
        self._under_way: deque[tuple[float, bytes | _Signal]] = deque()
        self._free_at = 0.0  # when the line has sent what it was given
        self._arrival = 0.0  # of the last one: the next must not overtake it
        self._timer: asyncio.TimerHandle | None = None

    @property
    def empty(self) -> bool:
        return not self._under_way

    def push(self, thing: bytes | _Signal) -> None:
        network = self._network
        size = len(thing) + HEAD_BYTES if isinstance(thing, bytes) else 0
        self._free_at = max(self._free_at, network.loop.time()) + network.sending_seconds(size)
        delay = network.delay(self._source.name, self._target.name)
        self._arrival = max(self._arrival, self._free_at + delay)
        self._under_way.append((self._arrival, thing))
        self.waiting += size
        self.schedule()

    def clear(self) -> None:
        self._under_way.clear()
        self.waiting = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def schedule(self) -> None:
        if self._timer is None and self.moves:
            self._timer = self._network.loop.call_at(self._under_way[0][0], self._arrive)

    def wake(self) -> None:
        """The partition has changed: what was held back is sent once more."""
        if self._timer is None and self.moves:
            delay = self._network.delay(self._source.name, self._target.name)
            moment = max(self._under_way[0][0], self._network.loop.time() + delay)
            self._timer = self._network.loop.call_at(moment, self._arrive)

    @property
    def moves(self) -> bool:
        """Is something under way that nothing holds back?"""
        if not self._under_way or self._network.parted(self._source.name, self._target.name):
            return False
        # One that hears nothing for now does not notice the end of the line either, but a reset.
        return not self._target.paused or self._under_way[0][1] is _Signal.RESET

    def _arrive(self) -> None:
        self._timer = None
        if not self.moves:
            return
        now = self._network.loop.time()
        thing = self._under_way[0][1]
        try:
            if isinstance(thing, _Signal):
                self._under_way.popleft()
                self._target.signalled(thing)
            else:
                self._target.heard(self._frames_until(now))
            self._source.arrived()
        finally:
            self.schedule()

    def _frames_until(self, now: float) -> list[bytes]:
        frames = []
        while self._under_way and self._under_way[0][0] <= now:
            thing = self._under_way[0][1]
            if isinstance(thing, _Signal):
                break
            self._under_way.popleft()
            self.waiting -= len(thing) + HEAD_BYTES
            frames.append(thing)
        return frames
