"""Hosts part and meet at random, and some crash: what MELON promises holds all the same."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from tests.conftest import seeds
from tests.models.melon.world import MelonHost, MelonWorld, play
from tupelo.models.melon import Copies

NAMES = "abcd"
MESH = ("ba", "ca", "da", "cb", "db", "dc")
STEPS = 25


class Storm:
    """Everyone writes, stores and sends at times, and reads and takes all the time."""

    def __init__(self, world: MelonWorld, seed: int) -> None:
        self.world = world
        self.random = Random(seed)
        self.count = 0
        self.written: dict[str, list[int]] = defaultdict(list)
        self.stored: set[int] = set()
        self.sent: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.read: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.taken: list[tuple[str, int]] = []
        self.got: dict[str, list[tuple[str, int]]] = defaultdict(list)

    async def step(self) -> None:
        name = self.random.choice(NAMES)
        member, chance = self.world[name], self.random.random()
        self.count += 1
        if chance < 0.3:
            self.written[name].append(self.count)
            await member.write(("news", name, self.count))
        elif chance < 0.5:
            self.stored.add(self.count)
            await member.store(("job", name, self.count))
        elif chance < 0.7:
            to = self.random.choice(NAMES)
            self.sent[name, to].append(self.count)
            await member.store(("mail", name, self.count), to=self.world[to].key)
        else:
            groups: dict[int, str] = defaultdict(str)
            for one in NAMES:
                groups[self.random.randrange(3)] += one
            self.world.network.partition(*groups.values())
        await asyncio.sleep(self.random.choice((0, 0.01, 0.5, 3)))

    async def use(self, member: MelonHost, random: Random) -> None:
        """Read and take, one or all, and sometimes give up."""
        while True:
            wait = random.choice((0, 0.2, 2.0))
            for kind in ("news", "job", "mail"):
                verb: Any = member.melon.read if kind == "news" else member.melon.take
                many: Any = member.melon.read_all if kind == "news" else member.melon.take_all
                if random.random() < 0.5:
                    found = await many((kind, str, int), wait)
                else:
                    one = await verb((kind, str, int), wait)
                    found = [] if one is None else [one]
                for _, who, number in found:
                    where: Any = {"news": self.read, "mail": self.got}.get(kind)
                    if where is None:
                        self.taken.append((who, number))
                    else:
                        where[member.name].append((who, number))
            await asyncio.sleep(random.choice((0.01, 0.3)))

    def are_all_there(self) -> bool:
        return (
            all(len(self.read[name]) == sum(map(len, self.written.values())) for name in NAMES)
            and len(self.taken) == len(self.stored)
            and sum(map(len, self.got.values())) == sum(map(len, self.sent.values()))
        )


@pytest.mark.parametrize("seed", seeds(3))
def test_nothing_is_lost_or_comes_twice_or_out_of_order(seed):
    async def scene(world: MelonWorld) -> None:
        storm = Storm(world, seed)
        users = [
            member.do(storm.use(member, Random(f"{seed} {name}")))
            for name, member in world.hosts.items()
        ]
        for _ in range(STEPS):
            await storm.step()
        world.network.heal()
        try:
            await world.until(storm.are_all_there, "all there")
        finally:
            for user in users:
                user.cancel()
            await asyncio.gather(*users, return_exceptions=True)
        for name in NAMES:
            for source in NAMES:
                read = [number for who, number in storm.read[name] if who == source]
                assert read == storm.written[source]
                got = [number for who, number in storm.got[name] if who == source]
                assert got == storm.sent[source, name]
        assert {number for _, number in storm.taken} == storm.stored

    play(scene, *MESH, identities=True, copies=Copies(hosts=2), seed=seed)


@pytest.mark.parametrize("seed", range(2))
def test_hosts_with_folders_crash_and_come_back(seed, tmp_path):
    async def scene(world: MelonWorld) -> None:
        storm = Storm(world, seed)
        chance = Random(f"{seed} crashes")
        lives: list[tuple[str, dict[str, list[int]]]] = []

        def use(name: str) -> asyncio.Task[Any]:
            return world[name].do(storm.use(world[name], Random(f"{seed} {name}")))

        def end_of_life(name: str) -> None:
            read: dict[str, list[int]] = defaultdict(list)
            for who, number in storm.read.pop(name, []):
                read[who].append(number)
            lives.append((name, read))

        users = {name: use(name) for name in NAMES}
        for step in range(STEPS):
            await storm.step()
            if step % 6 == 5:
                name = chance.choice(NAMES)
                await world[name].crash()
                end_of_life(name)
                await asyncio.sleep(chance.choice((0.1, 4.0)))
                await world[name].start()
                users[name] = use(name)
        world.network.heal()
        everything = sum(map(len, storm.written.values()))
        try:
            await world.until(
                lambda: all(len(storm.read[name]) == everything for name in NAMES), "all read"
            )
            await asyncio.sleep(60)  # What was on its way to one who crashed is settled.
        finally:
            for user in users.values():
                user.cancel()
            await asyncio.gather(*users.values(), return_exceptions=True)
        for name in NAMES:
            end_of_life(name)
        for _, read in lives:
            for source, numbers in read.items():
                assert numbers == sorted(set(numbers))
                assert set(numbers) <= set(storm.written[source])
        taken = [number for _, number in storm.taken]
        assert len(taken) == len(set(taken))
        for name in NAMES:
            for source in NAMES:
                got = [number for who, number in storm.got[name] if who == source]
                assert got == sorted(set(got))
                assert set(got) <= set(storm.sent[source, name])

    play(scene, *MESH, identities=True, copies=Copies(hosts=2), seed=seed, folder=tmp_path)
