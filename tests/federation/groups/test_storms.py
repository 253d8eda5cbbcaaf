"""Groups in a storm: hosts crash, leave, return and lose each other while operations go on.

Every operation asks all hosts of its membership which membership they are in. They must be in the
same: no operation sees half of a change. When the storm is over, all are one group again."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from tests.conftest import seeds
from tests.federation.groups.neighbourhood import Neighbourhood, Resident
from tupelo.errors import HostClosed, PeerLost
from tupelo.lab.loop import VirtualLoop, run

NAMES = "abcdef"


class Storm:
    """Operations at every host, and faults."""

    def __init__(self, near: Neighbourhood, rng: Random) -> None:
        self.near = near
        self.rng = rng
        self.over = False
        self.asked = 0
        self.lost = 0
        self.tasks: list[asyncio.Task[Any]] = []

    def populate(self, one: Resident) -> None:
        async def membership_there(source: str, body: Any) -> Any:
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.02)))
            return list(one.group.membership.id)

        async def settle(membership: Any) -> None:
            for host in membership.members:
                if host > one.name:
                    answer = await one.voice.ask(host, "settle")
                    assert answer == list(membership.id), (
                        "a part that settles finds all hosts in the new membership"
                    )

        async def settle_quietly(membership: Any) -> None:
            try:
                await settle(membership)
            except PeerLost:
                self.lost += 1

        one.part.on_asked = membership_there
        one.part.on_settle = settle_quietly
        for _ in range(2):
            self.tasks.append(one.do(self._operate(one)))
        self.tasks.append(one.do(self._renew(one)))

    async def _operate(self, one: Resident) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.expovariate(5.0))
            try:
                async with one.group.operating():
                    await self._look_around(one)
            except HostClosed:
                return

    async def _look_around(self, one: Resident) -> None:
        membership = one.group.membership
        for host in membership.members:
            try:
                answer = await one.voice.ask(host, "membership?")
            except PeerLost:
                self.lost += 1
            else:
                self.asked += 1
                assert answer == list(membership.id), "half of a change was seen"
            assert one.group.membership is membership

    async def _renew(self, one: Resident) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.expovariate(2.0))
            one.part.value += 1
            wanted = one.part.value
            try:
                await one.group.renew()
            except HostClosed:
                return
            assert one.metadata_of()[one.name] >= wanted

    async def rage(self, seconds: float) -> None:
        near, rng = self.near, self.rng
        end = near.loop.time() + seconds
        while near.loop.time() < end:
            await asyncio.sleep(rng.expovariate(3.0))
            one, other = (near[name] for name in rng.sample(NAMES, 2))
            match rng.randrange(9):
                case 0:
                    names = "".join(rng.sample(NAMES, len(NAMES)))
                    at = rng.randrange(1, len(names))
                    near.network.partition(names[:at], names[at:])
                case 1 | 2:
                    near.network.heal()
                case 3:
                    near.network.cut(one.name, other.name)
                case 4 if one.is_up:
                    await (one.crash() if rng.random() < 0.7 else one.leave())
                case 5 | 6:
                    for down in near.hosts.values():
                        if not down.is_up:
                            await down.start()
                            self.populate(down)
                            break
                case 7 if one.is_up:
                    self.tasks.append(one.do(self._come_or_go(one)))
                case 8:
                    near.network.slow(one.name, other.name, rng.choice((1, 10, 50)))

    async def _come_or_go(self, one: Resident) -> None:
        try:
            await one.group.leave()
            await asyncio.sleep(self.rng.random())
            await one.group.join()
        except HostClosed:
            return

    async def calm(self) -> None:
        near = self.near
        near.network.heal()
        for name in NAMES:
            for other in NAMES:
                near.network.slow(name, other, 1)
            if not near[name].is_up:
                await near[name].start()
                self.populate(near[name])
        await asyncio.sleep(10)  # Who is looked for is found again, and who has left is back.
        self.over = True
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            if not task.cancelled():  # Its host has not crashed.
                task.result()
        await near.agreed(NAMES)
        for one in near.hosts.values():
            assert one.metadata_of() == {name: near[name].part.value for name in NAMES}


async def weather(loop: VirtualLoop) -> Storm:
    rng = Random(f"storm {loop.seed}")
    edges = [
        rng.choice(NAMES[:number]) + name for number, name in enumerate(NAMES) if number
    ] + rng.sample([a + b for a in NAMES for b in NAMES if a < b], rng.randrange(8))
    near = Neighbourhood(loop, sorted(set(edges)))
    storm = Storm(near, rng)
    for one in near.hosts.values():
        await one.start()
        storm.populate(one)
    await near.agreed(NAMES)
    await storm.rage(rng.uniform(2.0, 8.0))
    await storm.calm()
    await near.stop()
    return storm


@pytest.mark.parametrize("seed", seeds(3))
def test_no_operation_sees_half_of_a_change(seed):
    storm = run(weather, seed)
    assert storm.asked > 100


def test_the_same_seed_is_the_same_storm():
    one, other = run(weather, 3), run(weather, 3)
    assert one.near.network.digest == other.near.network.digest
