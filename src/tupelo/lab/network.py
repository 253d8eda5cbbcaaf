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
from collections.abc import Collection
from dataclasses import dataclass

from tupelo.errors import CannotReach
from tupelo.federation.links.link import Answering, Link
from tupelo.lab.line import VirtualLink
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.trace import Trace

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
