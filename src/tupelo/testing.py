"""For the tests of programs that use Tupelo: a space, a clock to move, and hosts in virtual time.

The fixtures are for pytest: write `pytest_plugins = ["tupelo.testing"]` in `conftest.py`. Without
pytest, use `run_federation` and `tupelo.ManualClock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import tupelo
from tupelo.errors import BadArgument
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.virtual_world import VirtualWorld, WorldHost, play

__all__ = [
    "VirtualFederation",
    "run_federation",
    "tupelo_clock",
    "tupelo_federation",
    "tupelo_space",
]


class VirtualFederation(VirtualWorld[WorldHost]):
    """Hosts that reach each other in virtual time: `asyncio.sleep(3600)` takes no time, and the
    same seed gives the same order of events.

    The hosts are durable: a host that crashes and starts again has its spaces.
    """

    def __init__(self, names: tuple[str, ...], loop: VirtualLoop) -> None:
        super().__init__(loop)
        for name in names:
            earlier = [member.name for member in self.members]
            self.members.append(WorldHost(self, name, peers=earlier, path=self.folder / name))

    def __repr__(self) -> str:
        return f"<VirtualFederation of {', '.join(member.name for member in self.members)}>"

    def host(self, name: str) -> tupelo.aio.Host:
        """The host of this name, which has started."""
        member = self[name]
        if not member.is_up:
            raise BadArgument("name", "a host that is up", name)
        return member.api

    def part(self, *groups: tuple[str, ...]) -> None:
        """Let each group of hosts reach only its own hosts: `part(("a", "b"), ("c",))`. Their
        connections break as in a real network: a host is missed after three heartbeats."""
        for name in (name for group in groups for name in group):
            self[name]
        self.network.partition(*groups)

    def meet(self) -> None:
        """Let all hosts reach each other again."""
        self.network.heal()

    async def crash(self, name: str) -> None:
        """End a host as a killed process ends."""
        await self[name].crash()

    async def restart(self, name: str) -> None:
        """Start a host that has crashed, with what is on its disk."""
        member = self[name]
        if member.is_up:
            raise BadArgument("name", "a host that has crashed", name)
        await member.start()

    async def engaged(self, *names: str, within: float = 60.0) -> None:
        """Wait until each of these hosts (all of them, if none is named) knows the others. Raises
        TimeoutError if that does not happen within so many virtual seconds."""
        wanted = set(names or (member.name for member in self.members))

        async def knows_others(name: str) -> bool:
            present = await self.host(name).presence.read_all(tupelo.HostPresence(state="engaged"))
            return wanted <= {name, *(seen.name for seen in present)}

        for name in wanted:
            end = self.loop.time() + within
            while not await knows_others(name):
                if self.loop.time() > end:
                    raise TimeoutError(f"host {name!r} does not know {sorted(wanted)}")
                await asyncio.sleep(0.1)


def run_federation(
    scene: Callable[[VirtualFederation], Awaitable[Any]], *names: str, seed: int = 1
) -> None:
    """Start hosts of these names in virtual time, run `await scene(federation)`, and stop them.

    Raises the error of the scene, and an error if tasks still run at its end or no task can go on.
    """
    if not names or len(set(names)) < len(names):
        raise BadArgument("names", "one name or more, each once", names)
    play(partial(VirtualFederation, names), scene, seed)


@pytest.fixture
def tupelo_clock() -> tupelo.ManualClock:
    """A clock that only `advance` moves, for the leases, delays and waits of `tupelo_space`."""
    return tupelo.ManualClock()


@pytest.fixture
def tupelo_space(tupelo_clock: tupelo.ManualClock) -> Iterator[tupelo.Space]:
    """A space in memory, on `tupelo_clock`."""
    with tupelo.Space("test", clock=tupelo_clock) as space:
        yield space


@pytest.fixture
def tupelo_federation() -> Callable[..., None]:
    """The function `run_federation`."""
    return run_federation
