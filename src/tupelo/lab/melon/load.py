"""Load: processes that do at random all that MELON has, and at last read and take all there is."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tupelo.lab.life import ProgramLife
from tupelo.lab.melon.history import MelonAct, MelonQuery, Message
from tupelo.lab.melon.world import SECRET, MelonHost
from tupelo.models.melon import Melon

JOBS = ("job", "task")
"""Kinds of messages that are stored;"""
NEWS = ("news", "gossip")
"""that are written;"""
MAIL = ("mail", "letter")
"""that are directed to one host."""

VERBS = {
    "store": 8,
    "send": 6,
    "write": 8,
    "take": 6,
    "take_all": 2,
    "read": 8,
    "read_all": 3,
    "renew": 1,
}
DRAINED_MAX = 300
"""There are never so many messages of a kind."""
CANCELLED = 0.15
"""So often someone gives up before the end."""


class MelonProcess:
    """One process: a Melon, and who it is in a history."""

    def __init__(self, member: MelonHost, name: str) -> None:
        assert member.life is not None
        self.member = member
        self.name = name
        self.life: ProgramLife = member.life
        self._world = member.world
        self._history = member.world.history
        self._rng = Random(f"{member.world.seed} {name}")

    @property
    def melon(self) -> Melon:
        return self.member.melons[self.name]

    # What it can do

    def act(self, verb: str, **more: Any) -> MelonAct:
        history, member = self._history, self.member
        return MelonAct(verb, self.name, member.name, member.lives, history.tick(), **more)

    async def add(
        self, verb: str, kind: str, to: MelonHost | None = None, pin: bool = False
    ) -> None:
        """Store a message, direct it to someone, or write it."""
        number = self._world.loop.number("message")
        text = f"{SECRET}{number}" if to is not None else ""
        message: Message = (kind, self.member.name, number, text)
        addressee = None if to is None else to.name
        act = self.act(verb, messages=[message], to=addressee, pin=pin)
        if verb == "write":
            work = self.melon.write(message, pin=pin)
        else:
            work = self.melon.store(message, None if to is None else to.identity.key, pin=pin)
        await self._history.record(act, self.life, work)

    async def get(
        self,
        verb: str,
        asked: MelonQuery,
        wait: float | None,
        sender: MelonHost | None = None,
        **more: Any,
    ) -> None:
        """Take or read, one or all."""
        act = self.act(verb, asked=asked, sender=None if sender is None else sender.name, **more)
        template = (asked.kind or str, asked.source or str, int, str)
        how: dict[str, Any] = {} if sender is None else {"sender": sender.identity.key}
        work = getattr(self.melon, verb)(template, wait, **how)
        await self._history.record(act, self.life, work)

    # What it does at random

    async def run(self) -> None:
        rng = self._rng
        while True:
            await asyncio.sleep(rng.choice((0.0, rng.expovariate(6.0))))
            doing = asyncio.ensure_future(self._do_something())
            try:
                if rng.random() < CANCELLED:
                    await asyncio.wait([doing], timeout=rng.choice((0.0, rng.expovariate(3.0))))
                    doing.cancel()
                    if rng.random() < 0.5:  # The next thing may begin before this one is over.
                        await asyncio.sleep(0)
                        continue
                await asyncio.wait([doing])
            finally:
                doing.cancel()
            if not doing.cancelled():
                doing.result()

    async def _do_something(self) -> None:
        rng = self._rng
        (verb,) = rng.choices(list(VERBS), weights=list(VERBS.values()))
        wait = rng.choice((0, 0, 0.05, 0.5, 3.0))
        pin = rng.random() < 0.05
        match verb:
            case "store":
                await self.add(verb, rng.choice(JOBS), pin=pin)
            case "write":
                await self.add(verb, rng.choice(NEWS), pin=pin)
            case "send":
                await self.add(verb, rng.choice(MAIL), rng.choice(self._world.members), pin)
            case "take" | "take_all":
                kind = rng.choice((*JOBS, *MAIL, None))
                sender = rng.choice(self._world.members) if rng.random() < 0.1 else None
                await self.get(verb, MelonQuery(kind, self._somewhere()), wait, sender)
            case "read" | "read_all":
                await self.get(verb, MelonQuery(rng.choice((*NEWS, None)), self._somewhere()), wait)
            case "renew":
                await self._renew()

    def _somewhere(self) -> str | None:
        return self._rng.choice((None, None, None, self._rng.choice(self._world.members).name))

    async def _renew(self) -> None:
        """It ends, and another begins in its place; but for the first of its host."""
        if self.name != next(iter(self.member.melons)) and not self.life.leaving:
            before, self.name = self.name, self.member.open()
            await self.member.close(before)

    # What it does at last

    async def drain(self, verbs: tuple[str, str], kind: str) -> None:
        """Whatever there is of a kind, and whatever comes."""
        for _ in range(DRAINED_MAX):  # else there is something wrong that would never end
            await self.get(self._rng.choice(verbs), MelonQuery(kind), None)
