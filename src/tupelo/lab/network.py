"""A network in virtual time, with faults that a test or a seed decides on.

Every program is at a place with a name, and uses `network.place(name)` to listen and to dial. A
link behaves like a TCP connection: frames arrive in order, each with a random delay, and none is
lost while the link is open. The faults:

- `partition`: frames between the groups are held back, and the ends are not told. After `heal` they
  are delivered, if both ends still have the link; if one end has closed it, the other is told then.
- `cut`: both ends lose the link at once, with all frames under way.
- `crash`: the program at a place is gone. The frames that it had sent still arrive, then its links
  are lost. It receives nothing more; the caller cancels its tasks. `place` returns a new place
  then.
- `slow`: delays between two places are multiplied.
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
"""How long a closed link goes on to deliver the frames that were sent before."""
WAITING_HIGH, WAITING_LOW = 256 * 1024, 64 * 1024
"""A link with more bytes waiting than the first calls `eased` when it has no more than the
second."""
RETRY_SECONDS = (0.2, 10.0)
"""The first and the longest pause before a frame that could not be sent is tried again."""
HEAD_BYTES = 4
"""The size of the header of a frame."""


class _State(Enum):
    OPEN = 1
    CLOSING = 2  # Closed by this end, which receives nothing more; its frames are still under way.
    OVER = 3


class LinkSignal(Enum):
    """What goes over a link besides frames."""

    DIAL = 1
    OPENED = 2
    REFUSED = 3
    END = 4
    RESET = 5


@dataclass
class _Dialling:
    """A dial that has no answer yet: `opened` ends with the answer."""

    address: str
    answer: Answering
    opened: asyncio.Future[None]


class VirtualLink:
    """One end of a link; `name` is the place of this end."""

    def __init__(self, network: VirtualNetwork, name: str, label: str) -> None:
        self.label = label
        self.identity: str | None = None
        self.here = False
        self.message_max = wire.FRAME_MAX
        self.in_pieces = 0  # The lab sends every message as a whole.
        self.name = name
        self.number = network.loop.number("link")
        self.other: VirtualLink
        self.outgoing: Direction
        self.paused = False
        self.state = _State.OPEN
        self._network = network
        self._receiver: FrameReceiver | None = None
        self._full = False
        self._dialling: _Dialling | None = None
        self._linger: asyncio.TimerHandle | None = None

    def __hash__(self) -> int:
        return self.number  # So that sets of links have the same order in every run.

    def meet(self, other: VirtualLink) -> None:
        self.other = other
        self.identity = self._network.identities.get(other.name)
        self.here = other.name == self.name
        self.outgoing = self._network.direction(self, other)

    # Called by the program

    def admit(self, message_max: int) -> None:
        """The virtual network does not limit frames of unknown senders."""
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
            self._receiver = None  # The end that closes is not told.
            self.outgoing.push(LinkSignal.END)
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
            self._receiver = None
            self.end("hung up")
            self.outgoing.push(LinkSignal.RESET)

    # Called by the network

    def dial_up(self, address: str, answer: Answering) -> asyncio.Future[None]:
        """Ask the other end to open the link. The future ends with the answer."""
        opened = self._network.loop.create_future()
        self._dialling = _Dialling(address, answer, opened)
        self.outgoing.push(LinkSignal.DIAL)
        return opened

    def heard(self, contents: list[bytes]) -> None:
        if self.state is _State.OPEN and self._receiver is not None:
            for content in contents:
                self._network.note_frame(self.other.name, self.name, content)
            self._receiver.heard(contents)

    def signalled(self, signal: LinkSignal) -> None:
        if self.state is _State.OVER:
            return
        match signal:
            case LinkSignal.DIAL:
                if self.other._dialling is not None:
                    self._accept(self.other._dialling.address)
            case LinkSignal.OPENED:
                if self._dialling is not None:
                    self._opened(self._dialling)
            case LinkSignal.REFUSED:
                self.end("refused")
                self.other.end("refused")
            case LinkSignal.END:
                self.end("closed by the other end")
                self.other.end("hung up")
            case LinkSignal.RESET:
                self.end("reset")

    def _accept(self, address: str) -> None:
        listening = self._network.listening.get(address)
        if listening is None:
            self.outgoing.push(LinkSignal.REFUSED)
            return
        self.outgoing.push(LinkSignal.OPENED)
        try:
            self._listen(listening.answer)
        except BaseException:
            self.abort()
            raise

    def _opened(self, dialling: _Dialling) -> None:
        self._dialling = None
        if dialling.opened.done():  # The dial was cancelled, and is about to abort.
            return
        try:
            self._listen(dialling.answer)
        except Exception as error:
            dialling.opened.set_exception(error)
        else:
            self._network.note(f"{self.name} is linked to {self.label}")
            dialling.opened.set_result(None)

    def _listen(self, answer: Answering) -> None:
        receiver = answer(self)
        if self.state is _State.OPEN:  # It may have been closed in `answer`.
            self._receiver = receiver

    def never_opened(self) -> None:
        """The other end has given up, and its reset was lost: an end without a program ends too."""
        if self._receiver is None:
            self.end("reset")

    def die(self) -> None:
        """Close this end without telling its program, which has crashed. An end that was not
        answered yet does not belong to the program; it is refused in time."""
        if self._receiver is not None or self._dialling is not None:
            self._receiver = self._dialling = None
            self.close()

    def end(self, reason: str) -> None:
        """Close this end. The receiver is told later, never within a call of its own."""
        if self.state is _State.OVER:
            return
        self.state = _State.OVER
        self.outgoing.clear()
        if self._linger is not None:
            self._linger.cancel()
        dialling, self._dialling = self._dialling, None
        if dialling is not None and not dialling.opened.done():
            dialling.opened.set_exception(CannotReach(dialling.address, reason))
        self._network.loop.call_soon(self._tell, reason)

    def _tell(self, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            self._network.note(f"{self.name} loses {self.label}: {reason}")
            receiver.lost(reason)
        self.arrived()

    def arrived(self) -> None:
        """A frame or signal of this end has arrived. The network forgets an end that is over when
        its receiver was told, and no reset of it is held back by a partition."""
        if self._full and self.outgoing.waiting <= WAITING_LOW:
            self._full = False
            if self.state is _State.OPEN and self._receiver is not None:
                self._receiver.eased()
        if self.state is _State.OVER and self._receiver is None and self.outgoing.empty:
            self._network.forget(self)


class Direction:
    """One direction of a link: a queue of the frames and signals under way, with the moments of
    their arrival. None overtakes another; a partition or a pause stops the queue. What the network
    cannot transmit now is unsent, and tried again with back-off, as TCP does it."""

    def __init__(self, network: VirtualNetwork, source: VirtualLink, target: VirtualLink) -> None:
        self.waiting = 0
        self._network = network
        self._source = source
        self._target = target
        self._under_way: deque[tuple[float, bytes | LinkSignal]] = deque()
        self._unsent: deque[bytes | LinkSignal] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._retries = 0
        self._free_at = 0.0  # when the line has sent all that was pushed
        self._arrival = 0.0  # of the last frame: the next must not overtake it
        self._timer: asyncio.TimerHandle | None = None

    @property
    def empty(self) -> bool:
        return not self._under_way and not self._unsent

    def push(self, thing: bytes | LinkSignal) -> None:
        self._unsent.append(thing)
        self.waiting += size_of(thing)
        if self._retry is None:
            self._transmit()

    def _transmit(self) -> None:
        """Send the unsent frames, until one of them cannot be sent now."""
        network, unsent = self._network, self._unsent
        self._retry = None
        while unsent:
            earliest = max(self._free_at, network.loop.time())
            sent = network.transmit(
                self._source.name, self._target.name, size_of(unsent[0]), earliest
            )
            if sent is None:
                self._not_sent()
                break
            self._retries = 0
            self._free_at, arrival = sent
            self._arrival = max(self._arrival, arrival)
            self._under_way.append((self._arrival, unsent.popleft()))
        self.schedule()

    def _not_sent(self) -> None:
        loop = self._network.loop
        if self._unsent[0] is LinkSignal.RESET:  # Nobody repeats a reset: the other end times out.
            self._unsent.clear()
            loop.call_soon(self._source.arrived)
            self._target.never_opened()
        else:
            seconds = min(RETRY_SECONDS[1], RETRY_SECONDS[0] * 2**self._retries)
            self._retries += 1
            self._retry = loop.call_later(seconds, self._transmit)

    def clear(self) -> None:
        self._under_way.clear()
        self._unsent.clear()
        self.waiting = 0
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = None

    def schedule(self) -> None:
        if self._timer is None and self.moves:
            self._timer = self._network.loop.call_at(self._under_way[0][0], self._arrive)

    def wake(self) -> None:
        """The partition has changed: deliver the frames that were held back."""
        if self._timer is None and self.moves:
            delay = self._network.delay(self._source.name, self._target.name)
            moment = max(self._under_way[0][0], self._network.loop.time() + delay)
            self._timer = self._network.loop.call_at(moment, self._arrive)

    @property
    def moves(self) -> bool:
        """Whether the next frame or signal can be delivered."""
        if not self._under_way or self._network.parted(self._source.name, self._target.name):
            return False
        # A paused receiver does not notice the end of the link, but a reset.
        return not self._target.paused or self._under_way[0][1] is LinkSignal.RESET

    def _arrive(self) -> None:
        self._timer = None
        if not self.moves:
            return
        now = self._network.loop.time()
        thing = self._under_way[0][1]
        try:
            if isinstance(thing, LinkSignal):
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
            if isinstance(thing, LinkSignal):
                break
            self._under_way.popleft()
            self.waiting -= len(thing) + HEAD_BYTES
            frames.append(thing)
        return frames


def size_of(thing: bytes | LinkSignal) -> int:
    """How many bytes of a link it takes."""
    return len(thing) + HEAD_BYTES if isinstance(thing, bytes) else 0


KEPT_BYTES_MAX = 4_096
TEXT_MAX = 120


@dataclass(frozen=True)
class Frame:
    """A message that has arrived: when, from where to where, its size with the header, and the name
    of its type."""

    time: float
    source: str
    target: str
    bytes: int
    kind: str


class FrameTrace:
    """The last `lines_max` frames and events of a network, and a digest of all of them.

    Two runs with the same digest had the same frames and events at the same moments.
    """

    def __init__(self, lines_max: int) -> None:
        # Frames are formatted when the trace is read, which is rare.
        self._kept: deque[str | tuple[float, str, str, bytes]] = deque(maxlen=lines_max)
        self._digest = hashlib.blake2b(digest_size=16)
        self.random_name = ""
        """A name that differs in each run, as that of a folder: it is replaced by zeros."""

    def frame(self, now: float, source: str, target: str, content: bytes) -> None:
        if name := self.random_name.encode():
            content = content.replace(name, b"0" * len(name))
        self._digest.update(f"{now!r} {source} {target} {len(content)}\n".encode())
        self._digest.update(content)
        if len(content) > KEPT_BYTES_MAX:
            self._kept.append(_format_frame(now, source, target, content))
        else:
            self._kept.append((now, source, target, content))

    def event(self, now: float, text: str) -> None:
        if name := self.random_name:
            text = text.replace(name, "0" * len(name))
        self._digest.update(f"{now!r} {text}\n".encode())
        self._kept.append(f"{now:12.6f}  {text}")

    @property
    def lines(self) -> list[str]:
        return [kept if isinstance(kept, str) else _format_frame(*kept) for kept in self._kept]

    @property
    def frames(self) -> list[Frame]:
        frames = (kept for kept in self._kept if not isinstance(kept, str))
        return [
            Frame(now, source, target, len(content) + HEAD_BYTES, _kind_of(content))
            for now, source, target, content in frames
        ]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def _kind_of(content: bytes) -> str:
    """The type of the message in a frame; of a message for a part of a host, the inner one."""
    try:
        message = wire.decode(content)
    except BadFrame:
        return "unknown"
    return type(getattr(message, "message", message)).__name__


def _format_frame(now: float, source: str, target: str, content: bytes) -> str:
    try:
        text = repr(wire.decode(content))
    except BadFrame:
        text = f"not a message, {len(content)} bytes: {content[:40]!r}"
    short = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
    return f"{now:12.6f}  {source} → {target}  {short}"


DIAL_SECONDS = 10.0
"""How long a dial waits for an answer."""


@dataclass
class Traffic:
    """How much was sent from one place to another."""

    frames: int = 0
    bytes: int = 0


class VirtualNetwork:
    """Places, the links between them, and their faults.

    `delay` is the shortest and the longest delay of a frame, in seconds; `bandwidth` is in bytes a
    second, for each direction of a link.
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
        self._trace = FrameTrace(trace_max)
        self._places: dict[str, HostNetwork] = {}
        self.identities: dict[str, str] = {}
        """The public keys of the programs, by place, if they have an identity."""
        self.listening: dict[str, VirtualListening] = {}
        self.owners: dict[str, str] = {}  # the place of every address that was ever used
        self._links: dict[int, VirtualLink] = {}
        self._groups: tuple[frozenset[str], ...] = ()
        self._slowness: dict[frozenset[str], float] = {}

    def place(self, name: str) -> HostNetwork:
        """The place of this name; after a crash, a new one."""
        if name not in self._places:
            self._places[name] = HostNetwork(self, name)
        return self._places[name]

    def hide(self, name: str) -> None:
        """Leave a name that differs in each run out of the trace and the digest."""
        self._trace.random_name = name

    @property
    def trace(self) -> list[str]:
        """The last frames and events, one line each."""
        return self._trace.lines

    @property
    def frames(self) -> list[Frame]:
        """The last frames of at most 4 KiB that have arrived."""
        return self._trace.frames

    @property
    def digest(self) -> str:
        """A digest of all frames and events: the same for every run of the same seed."""
        return self._trace.digest

    # Faults

    def partition(self, *groups: Collection[str]) -> None:
        """From now on two places reach each other only if they share a group; a place in no group
        reaches nobody. The partition before is replaced."""
        self._groups = tuple(frozenset(group) for group in groups)
        names = " | ".join(",".join(sorted(group)) for group in self._groups)
        self.note(f"partition {names}" if groups else "heal")
        for link in list(self._links.values()):
            link.outgoing.wake()

    def heal(self) -> None:
        """End the partition."""
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
            for listening in [one for one in self.listening.values() if one.place is place]:
                listening.close()
            for link in [one for one in self._links.values() if one.name == name]:
                link.die()

    def slow(self, a: str, b: str, factor: float) -> None:
        """Multiply the delays between two places; 1 is normal."""
        self.note(f"slow {a} – {b} × {factor!r}")
        self._slowness[frozenset((a, b))] = factor

    # Called by links

    def parted(self, a: str, b: str) -> bool:
        return (
            bool(self._groups)
            and a != b
            and not any(a in group and b in group for group in self._groups)
        )

    def transmit(
        self, source: str, target: str, size: int, earliest: float
    ) -> tuple[float, float] | None:
        """Send so many bytes: the moments at which the line is free again, and at which they
        arrive. None if they cannot be sent now, which a radio says."""
        free = earliest + (size / self._bandwidth if self._bandwidth else 0.0)
        return free, free + self.delay(source, target)

    def direction(self, source: VirtualLink, target: VirtualLink) -> Direction:
        """The way from one end of a new link to the other."""
        return Direction(self, source, target)

    def position(self, name: str) -> tuple[float, float]:
        """Where the place of this name is, in metres, if the network knows places."""
        return 0.0, 0.0

    def delay(self, a: str, b: str) -> float:
        drawn = self.loop.rng.uniform(*self._delay)
        return drawn * self._slowness.get(frozenset((a, b)), 1.0) if self._slowness else drawn

    def note(self, text: str) -> None:
        self._trace.event(self.loop.time(), text)

    def note_frame(self, source: str, target: str, content: bytes) -> None:
        self._trace.frame(self.loop.time(), source, target, content)

    def count(self, source: str, target: str, size: int) -> None:
        traffic = self.sent.setdefault((source, target), Traffic())
        traffic.frames += 1
        traffic.bytes += size

    def join(self, near: str, address: str) -> VirtualLink:
        """A new link from a place to an address, not answered yet."""
        far = self.owners.get(address, address.partition(":")[0])
        here, there = VirtualLink(self, near, address), VirtualLink(self, far, near)
        here.meet(there)
        there.meet(here)
        self._links[here.number] = here
        self._links[there.number] = there
        return here

    def forget(self, link: VirtualLink) -> None:
        self._links.pop(link.number, None)


class HostNetwork:
    """The network as one program uses it: to listen and to dial."""

    def __init__(self, network: VirtualNetwork, name: str) -> None:
        self.name = name
        self.alive = True
        self._network = network

    async def listen(self, address: str, answer: Answering) -> VirtualListening:
        """Listen at an address, which may be any text. CannotReach if it is in use."""
        self._check_alive(address)
        network = self._network
        if address in network.listening:
            raise CannotReach(address, "the address is already in use")
        network.owners[address] = self.name
        listening = network.listening[address] = VirtualListening(network, self, address, answer)
        return listening

    async def dial(self, address: str, answer: Answering) -> Link:
        self._check_alive(address)
        link = self._network.join(self.name, address)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await link.dial_up(address, answer)
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


@dataclass(eq=False)
class VirtualListening:
    """An address at which a program listens."""

    network: VirtualNetwork
    place: HostNetwork
    address: str
    answer: Answering

    def close(self) -> None:
        if self.network.listening.get(self.address) is self:
            del self.network.listening[self.address]
