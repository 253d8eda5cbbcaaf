"""A network in virtual time, whose faults are ordered by a test or drawn from a seed.

Programs stand at places, and places have names: `network.place("a")` is what the program there uses
to listen and to dial. A link is as TCP makes it: whole frames in order, none lost while it lives,
each with a delay of its own. What can go wrong is said here:

- `partition`: silence. What is sent is held back, and both ends hear nothing. After `heal` it is
  delivered, if both ends still have the link; if one has hung up, the other hears of that then.
- `cut`: both ends lose the link at once, with all that was under way.
- `crash`: the program at a place is gone. What it had sent still arrives, then its links are lost.
  It hears no more; its tasks are cancelled by whoever simulates it. `place` begins a new life.
- `slow`: the delays between two places grow.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from tupelo.errors import BadFrame, CannotReach
from tupelo.federation.links import wire
from tupelo.federation.links.link import Answering, FrameReceiver, Link
from tupelo.lab.loop import VirtualLoop

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

    def admit(self) -> None:
        """Nobody in the lab sends long frames before it is known."""

    def send(self, content: bytes) -> None:
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


KEPT_BYTES_MAX = 4_096
TEXT_MAX = 120


class Trace:
    """The last `lines_max` things that happened, and a digest of all that ever did.

    Two runs with the same digest carried the same frames at the same moments.
    """

    def __init__(self, lines_max: int) -> None:
        # A frame is put into words when somebody reads the trace: mostly nobody does.
        self._kept: deque[str | tuple[float, str, str, bytes]] = deque(maxlen=lines_max)
        self._digest = hashlib.blake2b(digest_size=16)

    def frame(self, now: float, source: str, target: str, content: bytes) -> None:
        self._digest.update(f"{now!r} {source} {target} {len(content)}\n".encode())
        self._digest.update(content)
        if len(content) > KEPT_BYTES_MAX:
            self._kept.append(_in_words(now, source, target, content))
        else:
            self._kept.append((now, source, target, content))

    def event(self, now: float, text: str) -> None:
        self._digest.update(f"{now!r} {text}\n".encode())
        self._kept.append(f"{now:12.6f}  {text}")

    @property
    def lines(self) -> list[str]:
        return [kept if isinstance(kept, str) else _in_words(*kept) for kept in self._kept]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def _in_words(now: float, source: str, target: str, content: bytes) -> str:
    try:
        text = repr(wire.decode(content))
    except BadFrame:
        text = f"no message, {len(content)} bytes: {content[:40]!r}"
    short = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
    return f"{now:12.6f}  {source} → {target}  {short}"


DIAL_SECONDS = 10.0
"""How long someone who dials waits for an answer."""


@dataclass
class Traffic:
    """What was sent from one place to another."""

    frames: int = 0
    bytes: int = 0


class VirtualNetwork:
    """Places, the links between them, and their faults.

    `delay` is the least and the most that a frame is under way, in seconds; `bandwidth` how many
    bytes a second go through each direction of a link.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        *,
        delay: tuple[float, float] = (0.001, 0.010),
        bandwidth: float | None = None,
        trace_max: int = 10_000,
    ) -> None:
        self.loop = loop
        self.sent: dict[tuple[str, str], Traffic] = {}
        self._delay = delay
        self._bandwidth = bandwidth
        self._trace = Trace(trace_max)
        self._places: dict[str, Place] = {}
        self.identities: dict[str, str] = {}
        """The key that the program at a place proves to the others, if it has one."""
        self._listening: dict[str, VirtualListening] = {}
        self._owners: dict[str, str] = {}  # the place of every address that ever was listened at
        self._links: dict[int, VirtualLink] = {}
        self._groups: tuple[frozenset[str], ...] = ()
        self._slowness: dict[frozenset[str], float] = {}

    def place(self, name: str) -> Place:
        """The place of this name; after a crash, a new one."""
        if name not in self._places:
            self._places[name] = Place(self, name)
        return self._places[name]

    @property
    def trace(self) -> list[str]:
        """What happened last, one line each."""
        return self._trace.lines

    @property
    def digest(self) -> str:
        """Of everything that happened: the same for every run of the same seed."""
        return self._trace.digest

    # Faults

    def partition(self, *groups: Collection[str]) -> None:
        """From now on two places hear each other only if they share a group. A place that is in no
        group hears everybody. It replaces the partition that was there before."""
        self._groups = tuple(frozenset(group) for group in groups)
        said = " | ".join(",".join(sorted(group)) for group in self._groups)
        self.note(f"partition {said}" if groups else "heal")
        for link in list(self._links.values()):
            link.outgoing.wake()

    def heal(self) -> None:
        """Everybody hears everybody again."""
        self.partition()

    def cut(self, a: str, b: str) -> None:
        """Reset the links between two places."""
        self.note(f"cut {a} – {b}")
        for link in list(self._links.values()):
            if {link.name, link.other.name} == {a, b}:
                link.end("reset")

    def crash(self, name: str) -> None:
        """Kill the program at this place."""
        self.note(f"crash {name}")
        place = self._places.pop(name, None)
        if place is not None:
            place.alive = False
            for listening in [one for one in self._listening.values() if one.place is place]:
                listening.close()
            for link in [one for one in self._links.values() if one.name == name]:
                link.die()

    def slow(self, a: str, b: str, factor: float) -> None:
        """From now on frames between these two are under way so many times longer; 1 is normal."""
        self.note(f"slow {a} – {b} × {factor!r}")
        self._slowness[frozenset((a, b))] = factor

    # For links

    def parted(self, a: str, b: str) -> bool:
        return (
            bool(self._groups)
            and any(a in group for group in self._groups)
            and any(b in group for group in self._groups)
            and not any(a in group and b in group for group in self._groups)
        )

    def delay(self, a: str, b: str) -> float:
        drawn = self.loop.rng.uniform(*self._delay)
        return drawn * self._slowness.get(frozenset((a, b)), 1.0) if self._slowness else drawn

    def sending_seconds(self, size: int) -> float:
        return size / self._bandwidth if self._bandwidth else 0.0

    def note(self, text: str) -> None:
        self._trace.event(self.loop.time(), text)

    def note_frame(self, source: str, target: str, content: bytes) -> None:
        self._trace.frame(self.loop.time(), source, target, content)

    def count(self, source: str, target: str, size: int) -> None:
        traffic = self.sent.setdefault((source, target), Traffic())
        traffic.frames += 1
        traffic.bytes += size

    def join(self, near: str, address: str) -> VirtualLink:
        """A line from a place to whoever is at an address; nobody has answered yet."""
        far = self._owners.get(address, address.partition(":")[0])
        here, there = VirtualLink(self, near, address), VirtualLink(self, far, near)
        here.meet(there)
        there.meet(here)
        self._links[here.number] = here
        self._links[there.number] = there
        return here

    def forget(self, link: VirtualLink) -> None:
        self._links.pop(link.number, None)

    def who_answers(self, address: str) -> Answering | None:
        listening = self._listening.get(address)
        return listening.answer if listening is not None else None

    def start_listening(self, listening: VirtualListening) -> None:
        if listening.address in self._listening:
            raise CannotReach(listening.address, "somebody listens there already")
        self._listening[listening.address] = listening
        self._owners[listening.address] = listening.place.name

    def stop_listening(self, listening: VirtualListening) -> None:
        if self._listening.get(listening.address) is listening:
            del self._listening[listening.address]


class Place:
    """Where one program stands: its way to listen and to dial."""

    def __init__(self, network: VirtualNetwork, name: str) -> None:
        self.name = name
        self.alive = True
        self._network = network

    async def listen(self, address: str, answer: Answering) -> VirtualListening:
        """Any text is an address; most simply, the name of the place, also with a port."""
        self._check_alive(address)
        listening = VirtualListening(self._network, self, address, answer)
        self._network.start_listening(listening)
        return listening

    async def dial(self, address: str, answer: Answering) -> Link:
        self._check_alive(address)
        link = self._network.join(self.name, address)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await link.knock(address, answer)
        except TimeoutError:
            link.abort()
            raise CannotReach(address, f"no answer within {DIAL_SECONDS:g} s") from None
        except BaseException:
            link.abort()
            raise
        return link

    def _check_alive(self, address: str) -> None:
        if not self.alive:
            raise CannotReach(address, f"the program at {self.name} has crashed")


class VirtualListening:
    """A place where a host can be dialled."""

    def __init__(
        self, network: VirtualNetwork, place: Place, address: str, answer: Answering
    ) -> None:
        self.address = address
        self.place = place
        self.answer = answer
        self._network = network

    def close(self) -> None:
        self._network.stop_listening(self)
