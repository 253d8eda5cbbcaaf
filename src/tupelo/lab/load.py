"""Load: what the agents of a world do, at random, until they are told to stop.

Some live at a host, in its process; clients are programs of their own, which reach a host over the
network. Both do the same things.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

from tupelo.errors import TupeloError
from tupelo.federation.client.async_channel import AsyncChannel
from tupelo.federation.client.channel import ConnectionConfig
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.links.address import Address
from tupelo.lab.history import Act, Deal, History, Kind
from tupelo.lab.life import ProgramLife
from tupelo.lab.world import PORT, SPACE, World, WorldHost
from tupelo.values.coverage import Coverage
from tupelo.values.scope import HERE

KEYS = ("red", "green")
NEWS = "news"
"""The class of entries that are only read, in sessions and by subscribers: nobody takes them."""
MAIL = "mail"
"""The class of entries that are for an agent."""

VERBS = {
    "write": 6,
    "take": 6,
    "read": 2,
    "take_all": 2,
    "read_all": 1,
    "count": 1,
    "news": 3,
    "session": 3,
    "mail": 1,
    "deal": 2,
}
SESSION_READS_MAX = 30
RECONNECT_SECONDS = 20.0
"""Longer than any host is away."""


class RandomAgent:
    """One agent. It does one thing after the other, in the space that it is given."""

    def __init__(
        self, history: History, world: World, member: WorldHost, life: ProgramLife, name: str
    ) -> None:
        self.name = name
        self.life = life
        self._history = history
        self._world = world
        self._member = member
        self._rng = Random(f"{world.seed} {name}")
        self._written = 0
        self._sessions = 0
        self._session: Any = None
        self._covers = True
        self._lease: float | None = 5.0  # for transactions: who is cancelled leaves them open

    async def run(self) -> None:
        await self.work(self._member.space)

    async def work(self, space: Any) -> None:
        verbs, weights = list(VERBS), list(VERBS.values())
        while True:
            await asyncio.sleep(self._rng.expovariate(8.0))
            (verb,) = self._rng.choices(verbs, weights)
            if self._rng.random() < 0.15:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(0.0, 0.3)):
                        await self._do(space, verb)
            else:
                await self._do(space, verb)

    async def _do(self, space: Any, verb: str) -> None:
        key = self._rng.choice(KEYS)
        match verb:
            case "write":
                await self._write(space, key)
            case "news":
                await self._write(space, NEWS)
            case "mail":
                await self._write(space, MAIL, to=self._rng.choice(self._world.members).name)
            case "session":
                await self._read_on(space)
            case "deal":
                await self._deal(space, key)
            case _:
                await self._get(space, verb, key)

    async def _write(self, space: Any, key: str, **options: Any) -> None:
        act = self._act("write", key)
        act.entries = [self._next(key)]
        await self._history.record(act, space.write(act.entries[0], **options))

    async def _get(self, space: Any, verb: str, key: str) -> None:
        rng = self._rng
        template = (key, str, int)
        wait = rng.choice((0, 0, 0.3, 1.5))
        act = self._act(
            "take" if verb.startswith("take") else "count" if verb == "count" else "read", key
        )
        act.many = verb.endswith("_all")
        options: dict[str, Any] = {}
        coverage = Coverage()
        if self._covers:
            options["coverage"] = coverage
        if rng.random() < 0.1:
            options["scope"] = HERE
        if act.many:
            options["limit"] = rng.choice((None, 1, 3))
        if verb != "count":
            options["wait"] = wait
        call = getattr(space, verb)
        await self._history.record(act, call(template, **options))
        act.covered = frozenset(coverage.covered)

    async def _read_on(self, space: Any) -> None:
        """Read the news that this session has not seen."""
        if self._session is None or self._rng.random() < 1 / SESSION_READS_MAX:
            try:
                session = space.session()
                self._session = await session if hasattr(session, "__await__") else session
            except TupeloError:
                return
            self._sessions += 1
        act = self._act("read", NEWS)
        act.session = f"{self.name}/{self._sessions}"
        await self._history.record(act, self._session.read((NEWS, str, int), wait=0.2))
        if act.how != "done":
            self._session = None  # It may be over, or have seen what nobody was told.

    async def _deal(self, space: Any, key: str) -> None:
        """Take one and write two, in a transaction that may be called off."""
        deal = Deal(self.name, self._member, self._world.tick())
        self._history.deals.append(deal)
        commits = self._rng.random() < 0.7
        try:
            txn = space.transaction(lease=self._lease)
            txn = await txn if hasattr(txn, "__await__") else txn
            taken = await space.take((key, str, int), wait=0, txn=txn)
            if taken is not None:
                deal.taken.append(taken)
            for _ in range(2):
                deal.written.append(self._next(key))
                await space.write(deal.written[-1], txn=txn)
            if commits:
                deal.how = "unknown"
                await txn.commit()
                deal.how = "committed"
            else:
                await txn.abort()
        except TupeloError as error:
            deal.error = error
            if deal.how != "unknown":
                with suppress(TupeloError, UnboundLocalError):
                    await txn.abort()
        finally:
            deal.ret = self._world.tick()
            self._world.note(str(deal))

    def _next(self, key: str) -> tuple[Any, ...]:
        self._written += 1
        return (key, self.name, self._written)

    def _act(self, kind: Kind, key: str) -> Act:
        return Act(kind, self.name, self._member, self.life, key, self._world.tick())


class RandomClient(RandomAgent):
    """An agent that is a program of its own."""

    def __init__(self, history: History, world: World, number: int) -> None:
        name = f"k{number}"
        life = ProgramLife(world.loop, world.network, name)
        member = Random(f"{world.seed} {name}").choice(world.members)
        super().__init__(history, world, member, life, name)
        self._covers = False
        self._lease = None  # They end with its link.
        self.space: Any = None

    async def run(self) -> None:
        self.space = await reach(self._member, self.name, self._rng, self.life)
        await self.work(self.space)

    async def leave(self) -> None:
        """Close the space, and end."""
        if not self.life.over:
            await self.life.start(self._leave(), f"{self.name} leaves")
            await self.life.end()

    async def _leave(self) -> None:
        if self.space is not None:
            with suppress(TupeloError):  # What it has received is said on the next link.
                await self.space.count((NEWS, str, int))
            await self.space.close()


async def reach(member: WorldHost, name: str, rng: Random, life: ProgramLife) -> RemoteSpace:
    """The space of a host, for a program elsewhere, as soon as the host can be reached."""
    address = Address(member.name, PORT)
    party = ConnectionConfig(address, name, name, name, None, lambda key: None, RECONNECT_SECONDS)
    while True:
        try:
            return await RemoteSpace.opened(await AsyncChannel.made(party, rng, life), SPACE, None)
        except TupeloError:
            await asyncio.sleep(0.5)


async def listen(history: History, member: WorldHost) -> None:
    """A subscriber of a host: it hears the news from everywhere."""
    heard = history.listeners.setdefault((member.name, member.lives), [])
    async with member.space.subscribe((NEWS, str, int), backlog_max=100_000) as news:
        history.stood[member.name, member.lives] = member.world.tick()
        async for notice in news:
            heard.append(notice.subject.fields)
