"""The ground on which every world of the lab stands: a loop, a network, a folder, members, and what
may befall them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from tupelo.federation.identity.keys import Identity
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.space.clock import LoopClock
from tupelo.space.dual_api import maybe_await

MEMORY_DISK = Path("/dev/shm")
"""How long a disk takes is not asked here."""


class SimulatedProgram(Protocol):
    """A host of a world, through all its lives."""

    name: str

    @property
    def is_up(self) -> bool: ...

    async def start(self) -> None: ...

    async def crash(self) -> None: ...

    async def leave(self) -> None: ...


Member = TypeVar("Member", bound=SimulatedProgram)


class SeededIdentity(Identity):
    """An identity whose every key is drawn from a seed, so that a run can be played again."""

    rng: Random

    @classmethod
    def drawn(cls, rng: Random) -> SeededIdentity:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        identity = cls(Ed25519PrivateKey.from_private_bytes(rng.randbytes(32)))
        identity.rng = rng
        return identity

    def draw(self) -> bytes:
        return self.rng.randbytes(32)


class Simulation(Generic[Member]):
    """What all worlds have. Each says who its `members` are."""

    members: list[Member]

    def __init__(self, loop: VirtualLoop, seed: int, network: VirtualNetwork) -> None:
        self.loop = loop
        self.seed = seed
        self.network = network
        self.clock = LoopClock(loop)
        self.populate: Callable[[Member], Any] = lambda member: None
        """Called when a host has come back; its answer may be awaited."""

    @cached_property
    def folder(self) -> Path:
        root = MEMORY_DISK if MEMORY_DISK.is_dir() else None
        return Path(tempfile.mkdtemp(prefix="tupelo-", dir=root))

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_id(self) -> str:
        return f"id{self.loop.number('id')}"

    def new_identity(self, name: str) -> SeededIdentity:
        """The identity of the host at this place, which its links prove from now on."""
        identity = SeededIdentity.drawn(Random(f"{self.seed} {name} identity"))
        self.network.identities[name] = identity.key
        return identity

    def note(self, text: str) -> None:
        self.network.note(text)

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> bool:
        """Let time pass until this holds, or for so long."""
        end = self.loop.time() + seconds
        while not condition():
            if self.loop.time() >= end:
                return False
            await asyncio.sleep(0.05)
        return True

    async def stop(self) -> None:
        for member in self.members:
            await member.leave()

    # What befalls them

    async def befall(
        self, rng: Random, kinds: Sequence[str], *, slower: Sequence[float], crashes: float = 0.7
    ) -> tuple[str, Member]:
        """One fault of these kinds, as chance will have it; `crashes` says how often a host that
        ends does so without a goodbye. Which it was, and at whom: one that is not known here is
        for the caller."""
        network = self.network
        one, other = rng.sample(self.members, 2)
        kind = rng.choice(kinds)
        match kind:
            case "partition":
                names = [member.name for member in self.members]
                rng.shuffle(names)
                at = rng.randrange(1, len(names))
                network.partition(names[:at], names[at:])
            case "heal":
                network.heal()
            case "cut":
                network.cut(one.name, other.name)
            case "crash":
                await (one.crash() if crashes == 1 or rng.random() < crashes else one.leave())
            case "return":
                for member in self.members:
                    if not member.is_up:
                        await self.bring_back(member)
                        break
            case "slow":
                network.slow(one.name, other.name, rng.choice(slower))
        return kind, one

    async def bring_back(self, member: Member) -> None:
        await member.start()
        await maybe_await(self.populate(member))

    def calm_down(self) -> None:
        """The network has no more faults."""
        self.network.heal()
        for one in self.members:
            for other in self.members:
                self.network.slow(one.name, other.name, 1)
