"""A simulation: a world with a workload, a nemesis that injects faults, and a history to check.

All models are simulated alike. The seed determines a `SimulationPlan`. The programs of the workload
run while the nemesis cuts links, partitions the network and crashes hosts. Then all faults end, all
hosts come back, and pending operations are settled. At last a checker looks at the history and at
what the hosts hold, and reports the broken invariants (`Fault`).

A model adds a subclass of `Simulation` with its hosts and programs (its `workload`), and a function
that checks it (its `checker`); `simulate` has the table of the models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Literal, TypeVar

from tupelo.errors import TupeloError
from tupelo.federation.identity.keys import Identity
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.lab.loop import LabError, VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.virtual_world import ProgramLife, SlowFlusher, VirtualWorld, WorldHost

NAMES = "abcdefgh"
DOUBT_SECONDS = 25.0
"""Longer than a host is ever down: deliveries in doubt are only given up for programs that never
come back."""
SERVED_SECONDS = 5.0
"""A waiting request is served within so long after its entry was written."""
TRACE_LINES_MAX = 100_000
DELAYS = ((0.001, 0.01), (0.001, 0.1), (0.02, 0.05))
"""The least and the longest delay of a frame: a plan chooses one of these pairs."""

DISK_FAULTS = ("full disk", "full disk", "failed disk")
"""Drawn as well if the disks of a simulation have faults."""

OperationOutcome = Literal["killed", "done", "cancelled", "failed"]
"""How an operation ended. Killed: its program ended before it knew."""


@dataclass(frozen=True)
class Fault:
    """An invariant that is broken, and how."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


@dataclass(frozen=True)
class Report:
    """The result of one seed. The same seed has the same digest in every run."""

    seed: int
    digest: str
    faults: tuple[Fault, ...]
    acts: int
    """How many operations the workload has called."""
    seconds: float
    """How long it lasted in virtual time."""
    trace: tuple[str, ...]
    model: str
    disks: bool
    """Whether disks had faults as well."""


# The history


class Operation:
    """One operation of the workload; each model adds its fields."""

    how: OperationOutcome
    error: str

    def answered(self, answer: Any) -> None:
        """Called with the result of an operation that is done."""
        raise NotImplementedError

    def ended(self, tick: int) -> None:
        """Called when the operation has ended in any way. Ticks are unique and rise."""


Act = TypeVar("Act", bound=Operation)


class History(Generic[Act]):
    """What the programs of a simulation have called, and what they were told."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.acts: list[Act] = []
        self.faults: list[Fault] = []
        """Broken invariants that were found while the simulation ran."""
        self.note = note
        self._ticks = 0

    def tick(self) -> int:
        """The next moment: unique, although several things may happen at one virtual time."""
        self._ticks += 1
        return self._ticks

    def fault(self, invariant: str, text: str) -> None:
        self.note(f"FAULT {invariant}: {text}")
        self.faults.append(Fault(invariant, text))

    async def act(self, operation: Act, life: ProgramLife, work: Coroutine[Any, Any, Any]) -> Any:
        """Run an operation of this program and record its outcome. Returns None if it fails with
        a TupeloError."""
        self.acts.append(operation)
        answer = None
        try:
            answer = await work
            operation.how = "done"
            operation.answered(answer)
        except asyncio.CancelledError:
            operation.how = "killed" if life.leaving else "cancelled"
            raise
        except TupeloError as error:
            operation.how = "killed" if life.leaving else "failed"
            operation.error = repr(error)
        finally:
            operation.ended(self.tick())
            self.note(str(operation))
        return answer


def name_of(entry: Iterable[object]) -> str:
    """An entry in a report: its fields, with colons."""
    return ":".join(map(str, entry))


# The world


@dataclass(frozen=True, kw_only=True)
class SimulationPlan:
    """What the seed decides before a simulation begins."""

    hosts: int
    durable: frozenset[int] = frozenset()
    """The numbers of the hosts with a folder."""
    shape: str = "mesh"
    """Which hosts dial each other, see `neighbours`."""
    load_seconds: float
    """How long the programs work, and faults happen."""
    delay: tuple[float, float]
    disk_seconds: float = 0.0
    """A commit of a durable host takes up to so long."""


@dataclass(frozen=True)
class Nemesis:
    """Which faults are drawn, and how often."""

    kinds: tuple[str, ...]
    """Drawn with equal chances: a kind may be repeated."""
    slower: Sequence[float]
    """Factors for the delays of a slow link."""
    crashes: float = 0.7
    """The chance that a host that ends does so without a goodbye."""
    rate: float = 1.2
    """Faults a second, on average."""


def neighbours(shape: str, number: int, hosts: int) -> list[int]:
    """The numbers of the hosts that this host dials."""
    match shape:
        case "line":
            others = [number + 1]
        case "row":
            others = [number - 1]
        case "ring":
            others = [(number + 1) % hosts]
        case "star":
            others = [0]
        case _:
            others = list(range(hosts))
    return [other for other in others if 0 <= other < hosts and other != number]


class SimulatedHost(WorldHost):
    """A host of a simulation; durable, with an identity, and slow to commit as the plan says."""

    def __init__(
        self,
        world: Simulation[Any],
        number: int,
        *,
        identity: Identity | None = None,
        **options: Any,
    ) -> None:
        plan = world.plan
        self.number = number
        self.durable = number in plan.durable
        name = NAMES[number]
        super().__init__(
            world,
            name,
            peers=[NAMES[other] for other in neighbours(plan.shape, number, plan.hosts)],
            identity=identity,
            path=world.folder / name if self.durable else None,
            durability="process" if self.durable else None,
            **options,
        )

    def meets(self, other: SimulatedHost) -> bool:
        """Whether the two hosts are connected directly when there are no faults."""
        return other.name in self.peers or self.name in other.peers

    @property
    def owed(self) -> list[str]:
        """The hosts whose deliveries are not confirmed to them."""
        unsettled = self.core.federation.unsettled
        return [one.name for one in self.world.members if unsettled(one.core.id)]

    @property
    def unreached(self) -> list[str]:
        """Those of them that a goodbye does not reach."""
        reaches = {one.name for one in self.core.peers.values()}
        parted = self.world.network.parted
        return [one for one in self.owed if one not in reaches or parted(self.name, one)]

    def slow_down(self, hosted: HostedSpace, seconds: float) -> None:
        """Let the commits of a durable space take up to so long."""
        if hosted.durable and seconds:
            hosted.port.flusher = SlowFlusher(hosted.port, self.core.rng, seconds)


def space_remains(host: WorldHost) -> dict[str, Any]:
    """The transactions, deliveries and waiters that are left in the spaces of a host."""
    return {
        f"{what} in {name}": hosted.port.under_way()[what]
        for name, hosted in host.core.spaces.items()
        for what in ("transactions", "transactions of deliveries", "deliveries", "waiters")
    }


def left_behind(remains: Mapping[WorldHost, Mapping[str, Any]]) -> list[Fault]:
    """A fault for everything that is left at a host and should be over."""
    return [
        Fault("left behind", f"{what} at {host.name}: {things!r}")
        for host, found in remains.items()
        for what, things in found.items()
        if things
    ]


Host = TypeVar("Host", bound=SimulatedHost)


class Simulation(VirtualWorld[Host], Generic[Host]):
    """A world, its workload and its nemesis. A model defines `nemesis`, `history`, `populate`,
    `end_load` and `settle`."""

    nemesis: Nemesis
    history: History[Any]

    def __init__(
        self,
        loop: VirtualLoop,
        plan: SimulationPlan,
        network: type[VirtualNetwork] = VirtualNetwork,
    ) -> None:
        super().__init__(loop, network(loop, delay=plan.delay, trace_max=TRACE_LINES_MAX))
        self.plan = plan
        self.faults: list[Fault] = []
        self.rng = Random(f"{self.seed} trouble")
        """Draws the faults."""
        self.disk_faults = False
        """Whether disks fill and fail."""

    # What a model defines

    @property
    def acts(self) -> int:
        """How many operations were called."""
        return len(self.history.acts)

    async def populate(self, host: Host) -> None:
        """Start the programs of a host that is new or has come back."""
        raise NotImplementedError

    async def end_load(self) -> None:
        """The load is over: stop the programs."""

    async def settle(self) -> None:
        """All faults are over: wait until everything is settled."""
        raise NotImplementedError

    # A run

    async def play(self) -> None:
        """Run the simulation up to the moment at which it can be checked."""
        await self.start()
        for host in self.members:
            await self.populate(host)
        await self.run_nemesis()
        await self.end_load()
        await self.heal()
        await self.settle()

    async def start(self) -> None:
        await super().start()
        await self.wait_for(self.is_connected)

    def is_connected(self) -> bool:
        """Whether all hosts are up and connected as the plan says."""
        return all(
            host.is_up
            and all(other.core.id in host.core.peers for other in self.members if host.meets(other))
            for host in self.members
        )

    async def settle_connected(self) -> None:
        """Wait until all hosts have met again; it is a fault if they do not."""
        if not await self.wait_for(self.is_connected):
            self.faults.append(Fault("apart", "not all hosts have met again"))

    async def isolate(self) -> list[Host]:
        """Cut every host off from all others. Returns the hosts that are up, when they know."""
        self.network.partition(*([host.name] for host in self.members))
        up = [host for host in self.members if host.is_up]
        await self.wait_for(lambda: not any(host.core.peers for host in up))
        return up

    # Faults

    async def run_nemesis(self) -> None:
        """Inject faults until the load is over."""
        end = self.loop.time() + self.plan.load_seconds
        while (pause := self.rng.expovariate(self.nemesis.rate)) + self.loop.time() < end:
            await asyncio.sleep(pause)
            await self.strike()

    async def strike(self) -> None:
        """Inject one fault."""
        network, rng = self.network, self.rng
        host, other = rng.sample(self.members, 2)
        kinds = self.nemesis.kinds + (DISK_FAULTS if self.disk_faults else ())
        kind = rng.choice(kinds)
        match kind:
            case "partition":  # in two groups
                names = [member.name for member in self.members]
                rng.shuffle(names)
                at = rng.randrange(1, len(names))
                network.partition(names[:at], names[at:])
            case "groups":  # in up to three groups
                groups: dict[int, list[str]] = {}
                for member in self.members:
                    groups.setdefault(rng.randrange(3), []).append(member.name)
                network.partition(*groups.values())
            case "heal":
                network.heal()
            case "cut":
                network.cut(host.name, other.name)
            case "crash":
                chance = self.nemesis.crashes
                await (host.crash() if chance == 1 or rng.random() < chance else host.leave())
            case "return":
                for member in self.members:
                    if not member.is_up:
                        await member.start()
                        await self.populate(member)
                        break
            case "slow":
                network.slow(host.name, other.name, rng.choice(self.nemesis.slower))
            case "full disk":  # or one that has room again
                if host.is_up and host.durable:
                    if host.disk.full:
                        host.disk.full = False
                    else:
                        host.fill_disk()
            case "failed disk":
                if host.is_up and host.durable:
                    await host.fail_disk(rng.uniform(0.0, 0.3))
            case _:
                await self.strike_model(kind, host)

    async def strike_model(self, kind: str, host: Host) -> None:
        """Inject a fault that only this model has."""
        raise LabError(f"there is no fault {kind}")

    def end_faults(self) -> None:
        """End the faults of the network and of the disks."""
        self.network.heal()
        for host in self.members:
            host.disk.full = False
            for other in self.members:
                self.network.slow(host.name, other.name, 1)

    async def heal(self) -> None:
        """End all faults, and start the hosts that are down."""
        self.end_faults()
        for host in self.members:
            if not host.is_up:
                await host.start()


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks of programs and wait for them. LabError if one has failed."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    raise_failures(await asyncio.gather(*tasks, return_exceptions=True))


def raise_failures(results: Iterable[object]) -> None:
    """LabError if a program has ended with an exception that is not a cancellation."""
    for result in results:
        if isinstance(result, Exception):
            raise LabError(f"a program of the workload has failed: {result!r}") from result
