"""Simulating MELON: one seed is one world, its processes, its faults, and a verdict.

There is trouble: processes add, take and read messages while hosts crash, leave and return, and
links are cut, slow or silent. Then there is peace: everyone is back, those who waited alone are
served, and all that is there is taken and read. At last the judge looks at what has happened.
"""

from __future__ import annotations

import asyncio
from random import Random

from tupelo.lab.judge import Fault
from tupelo.lab.loop import LabError, VirtualLoop
from tupelo.lab.melon.history import READS, TAKES, MelonQuery
from tupelo.lab.melon.judge import judge
from tupelo.lab.melon.load import JOBS, MAIL, NEWS, MelonProcess
from tupelo.lab.melon.looking import look_at_last, watch
from tupelo.lab.melon.world import MelonHost, MelonWorld, heal, nemesis
from tupelo.lab.simulate import Report, bounded, played
from tupelo.lab.world import DOUBT_SECONDS

SETTLE_SECONDS = DOUBT_SECONDS + 15.0
SERVED_SECONDS = 5.0
LATE = {
    "late job": ("take", "store"),
    "late news": ("read", "write"),
    "late mail": ("take", "send"),
}
"""What is waited for before anyone could add it, and how both is done."""


def simulate(seed: int) -> Report:
    """Play one seed, from its beginning to the verdict."""
    return played(_MelonRun(seed), seed)


class _MelonRun:
    """One seed, while it is played."""

    def __init__(self, seed: int) -> None:
        self.faults: list[Fault] = []
        self._seed = seed
        self._world: MelonWorld
        self._running: list[asyncio.Task[None]] = []

    async def play(self, loop: VirtualLoop) -> None:
        self._world = MelonWorld(loop, self._seed)
        try:
            async with bounded():
                await self._play()
        finally:
            self._world.clear()

    async def _play(self) -> None:
        world = self._world
        watch(world)
        world.populate = self._populate
        await world.start()
        for member in world.members:
            self._populate(member)
        await nemesis(world, Random(f"{self._seed} trouble"), world.plan.load_seconds)
        await self._end()
        late = await self._wait_alone()
        await heal(world)
        if not await world.until(world.all_engaged):
            self.faults.append(Fault("apart", "not all hosts have met again"))
        await self._serve(late)
        await self._drain()
        await self._probe()
        await asyncio.sleep(SETTLE_SECONDS)
        look_at_last(world)
        self.faults += judge(world.history)
        await world.stop()

    def _populate(self, member: MelonHost) -> None:
        for name in list(member.melons):
            self._start(process := MelonProcess(member, name), process.run())

    def _start(self, process: MelonProcess, work: object) -> asyncio.Task[None]:
        task = process.life.start(work, process.name)  # type: ignore[arg-type]
        self._running.append(task)
        return task

    async def _end(self) -> None:
        """They stop what they do."""
        for task in self._running:
            task.cancel()
        for ended in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(ended, Exception):
                raise LabError(f"a process has failed: {ended!r}") from ended
        self._running = []
        await asyncio.sleep(1.0)

    async def _wait_alone(self) -> dict[MelonHost, list[asyncio.Task[None]]]:
        """While no host hears another, a process at each begins to wait for messages."""
        world = self._world
        world.history.faults.append(world.history.tick())
        world.network.partition(*([member.name] for member in world.members))
        up = [member for member in world.members if member.is_up]
        await world.until(lambda: not any(member.core.peers for member in up))
        late = {}
        for member in up:
            process = MelonProcess(member, next(iter(member.melons)))
            late[member] = [
                self._start(process, process.get(verb, _for(kind, member), None, is_late=True))
                for kind, (verb, _) in LATE.items()
            ]
        return late

    async def _serve(self, late: dict[MelonHost, list[asyncio.Task[None]]]) -> None:
        """They are added at a host that is near now, and must be found there."""
        world = self._world
        for member, waiting in late.items():
            near = next(other for other in world.members if world.meets(member, other))
            process = MelonProcess(near, next(iter(near.melons)))
            for verb, kind in (
                ("store", "late job"),
                ("write", "late news"),
                ("send", "late mail"),
            ):
                to = member if verb == "send" else None
                await self._start(process, process.add(verb, f"{kind} {member.name}", to))
            await asyncio.wait(waiting, timeout=SERVED_SECONDS)
        await self._end()

    async def _drain(self) -> None:
        """Everyone reads, and one at each host takes, until nothing more comes."""
        for member in self._world.members:
            for number, name in enumerate(member.melons):
                process = MelonProcess(member, name)
                for kind in NEWS:
                    self._start(process, process.drain(READS, kind))
                for kind in (*JOBS, *MAIL) if number == 0 else ():
                    self._start(process, process.drain(TAKES, kind))
        await asyncio.sleep(SETTLE_SECONDS)
        await self._end()

    async def _probe(self) -> None:
        """Is there something left that nobody was woken for?"""
        for member in self._world.members:
            for number, name in enumerate(member.melons):
                process = MelonProcess(member, name)
                for kinds, verb in ((NEWS, "read_all"), ((*JOBS, *MAIL), "take_all")):
                    for kind in kinds if number == 0 or verb == "read_all" else ():
                        await self._start(
                            process, process.get(verb, MelonQuery(kind), 0, is_probe=True)
                        )
        await self._end()

    def report(self) -> Report:
        network = self._world.network
        acts = len(self._world.history.acts)
        return Report(self._seed, network.digest, tuple(self.faults), acts, tuple(network.trace))


def _for(kind: str, member: MelonHost) -> MelonQuery:
    return MelonQuery(f"{kind} {member.name}")
