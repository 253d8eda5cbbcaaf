"""Load: what the agents of a world do, at random, until they are told to stop."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tupelo.federation.space import Coverage, FederatedSpace
from tupelo.lab.history import Act, History, Kind
from tupelo.lab.world import Member, World

KEYS = ("red", "green")
VERBS = ("write", "write", "write", "take", "take", "take", "read", "take_all", "read_all", "count")


class Agent:
    """One agent of a host. It does one thing after the other."""

    def __init__(self, history: History, world: World, member: Member, number: int) -> None:
        self.name = f"{member.name}{number}.{member.lives}"
        self._history = history
        self._world = world
        self._member = member
        self._life = member.lives
        self._rng = Random(f"{world.seed} {self.name}")
        self._written = 0

    async def run(self) -> None:
        space = self._member.space
        while True:
            await asyncio.sleep(self._rng.expovariate(8.0))
            await self._do(space)

    async def _do(self, space: FederatedSpace) -> None:
        rng = self._rng
        key = rng.choice(KEYS)
        verb = rng.choice(VERBS)
        wait = rng.choice((0, 0, 0.3, 1.5))
        if verb == "write":
            await self._write(space, key)
        elif rng.random() < 0.2:
            try:
                async with asyncio.timeout(rng.uniform(0.0, 0.3)):
                    await self._get(space, verb, key, wait)
            except TimeoutError:
                pass
        else:
            await self._get(space, verb, key, wait)

    async def _write(self, space: FederatedSpace, key: str) -> None:
        self._written += 1
        act = self._act("write", key)
        act.entries = [(key, self.name, self._written)]
        await self._history.record(act, space.write(act.entries[0]))

    async def _get(self, space: FederatedSpace, verb: str, key: str, wait: float) -> None:
        template = (key, str, int)
        kind: Kind = "take" if "take" in verb else "count" if verb == "count" else "read"
        act = self._act(kind, key)
        coverage = Coverage()
        if verb == "count":
            work = space.count(template, coverage=coverage)
        elif act.kind == "take" and verb == "take_all":
            act.many = True
            limit = self._rng.choice((None, 1, 3))
            work = space.take_all(template, wait=wait, limit=limit, coverage=coverage)
        elif verb == "read_all":
            act.many = True
            work = space.read_all(template, wait=wait, coverage=coverage)
        else:
            call: Any = space.take if kind == "take" else space.read
            work = call(template, wait=wait, coverage=coverage)
        await self._history.record(act, work)
        act.covered = frozenset(coverage.covered)

    def _act(self, kind: Kind, key: str | None) -> Act:
        world = self._world
        return Act(kind, self.name, self._member, self._life, key, world.tick(), world.loop.time())
