"""Trade: transactions that span two hosts, led by a program of its own.

It speaks the protocol step by step, as `federation.transactions` does, so that it may be killed, or
lose either host, between any two of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

from tupelo.errors import TupeloError
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.decisions import branch_id, spanning_id
from tupelo.federation.links import wire
from tupelo.lab.history import Deal, History
from tupelo.lab.life import ProgramLife
from tupelo.lab.load import reach
from tupelo.lab.world import SPACE, World, WorldHost
from tupelo.values.codec import entry_to_wire
from tupelo.values.entry import freeze

TRADE = "trade"
"""The class of entries that are written in trades, and taken by nobody."""


class Trader:
    """Writes one entry at each of two durable hosts, in one transaction; the first decides."""

    def __init__(self, history: History, world: World) -> None:
        self.name = "trader"
        self.life = ProgramLife(world.loop, world.network, self.name)
        self._history = history
        self._world = world
        self._rng = Random(f"{world.seed} {self.name}")
        self._members: list[WorldHost] = []
        self._spaces: list[RemoteSpace] = []
        self._trades = 0

    async def run(self) -> None:
        durable = [member for member in self._world.members if member.durable]
        self._members = self._rng.sample(durable, 2)
        for member in self._members:
            self._spaces.append(await reach(member, self.name, self._rng, self.life))
        while True:
            await asyncio.sleep(self._rng.expovariate(4.0))
            await self._trade()

    async def _trade(self) -> None:
        self._trades += 1
        deal = Deal(self.name, self._members[0], self._world.tick())
        self._history.deals.append(deal)
        first = self._spaces[0]
        session = first.channel.session
        txn = spanning_id(first.host_id, self._members[0].address, session, str(self._trades))
        branches = [
            (space, space.serial, branch_id(txn, number))
            for number, space in enumerate(self._spaces)
        ]
        try:
            for number, (space, serial, branch) in enumerate(branches):
                entry = (TRADE, self.name, 2 * self._trades + number)
                deal.written.append(entry)
                await self._write(space, serial, branch, entry)
            for space, serial, branch in branches:
                await space.ask(wire.End(0, SPACE, branch, "prepare"), serial)
            told = [(branch, space.engine_id) for space, _, branch in branches]
            deal.how = "unknown"
            stands = await first.ask(wire.Decide(0, txn, told), branches[0][1])
            deal.how = "committed" if stands else "aborted"
        except TupeloError as error:
            deal.error = error
        finally:
            deal.ret = self._world.tick()
            self._world.note(str(deal))
        if deal.how != "unknown":
            await self._tell(branches, deal.how == "committed")

    async def _write(self, space: RemoteSpace, serial: int, branch: str, entry: Any) -> None:
        await space.ask(wire.Begin(0, SPACE, None, None, branch), serial)
        encoded = [entry_to_wire(*freeze(entry))]
        await space.ask(wire.Write(0, SPACE, encoded, None, branch, None, 0.0, None), serial)

    async def _tell(self, branches: list[tuple[RemoteSpace, int, str]], commits: bool) -> None:
        """Who cannot be told asks the decider."""
        for space, serial, branch in branches:
            with suppress(TupeloError):
                how = "commit" if commits else "abort"
                await space.ask(wire.End(0, SPACE, branch, how), serial)  # type: ignore[arg-type]
                if commits:
                    await self._spaces[0].ask(wire.Forget(0, branch, space.engine_id))
