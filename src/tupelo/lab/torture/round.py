"""A round: hosts and clients as processes, links between them that fail, and a checker at the end.

Hosts run as `tupelo host`, some with a folder and one without; programs with a host of their own
and processes of clients are `worker`s. Every link goes through a proxy. When the faults are over
the clients end, new clients drain the spaces, and the checker compares.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

import tupelo
from tupelo.errors import TupeloError
from tupelo.lab.torture import worker
from tupelo.lab.torture.checker import DRAIN, NOT_SEEN, Facts, Violation, check, may_mend
from tupelo.lab.torture.history import HistoryLog, TortureHistory, read_history
from tupelo.lab.torture.nemesis import FAULTS, FaultRecord, ProcessNemesis
from tupelo.lab.torture.processes import (
    HOST_COMMAND,
    Command,
    Nursery,
    RoundProcess,
    TortureFailed,
)
from tupelo.lab.torture.proxy import Proxy
from tupelo.lab.torture.worker import Born, Go, HostOrders, WorkerDone, WorkerTask
from tupelo.lab.torture.workloads import (
    CLIENTS,
    LimeMember,
    Node,
    Setting,
    SpaceClient,
    WorkloadClient,
    WorkloadSecurity,
)

if sys.platform != "win32":
    import resource

MEMBERS_OF = {"lime": 3, "xvsm": 1, "melon": 2, "event-heap": 3}
"""How many programs with a host of their own a model needs."""
HOSTS_OF = frozenset({"space", "linda", "javaspaces", "pubsub", "melon", "event-heap"})
"""Models whose clients use hosts that are run as `tupelo host`."""
CLIENT_PROCESSES = 2
HEARTBEAT_SECONDS = 0.5
ENGAGED_SECONDS = 90.0
"""After the faults all hosts are engaged again within so long, also on a busy machine."""
PATIENCE_SECONDS = 60.0
"""A value that is not seen after so long is lost. Deliveries to a client that is gone are in doubt
for 30 s (`tupelo.Doubt`)."""
ENOUGH_SECONDS = 120.0
LOOK_SECONDS = 1.0
SPACE_FOR_ENGAGEMENT = "engaged"
FACTS_FILE = "facts.json"
FULL_DISK_BYTES = 4_096
"""No file may grow beyond this while the disk is full."""


@dataclass(frozen=True)
class RoundConfig:
    """The options of a round. `faults` limits the number of faults instead of `seconds`. The
    clients go on until they have done `operations`; none does more than `operations_max`."""

    folder: Path
    models: Sequence[str]
    seconds: float = 60.0
    seed: int = 0
    hosts: int = 3
    tls: bool = False
    faults: int | None = None
    kinds: Sequence[str] = FAULTS
    operations: int = 0
    operations_max: int = 1_000_000
    client_processes: int = CLIENT_PROCESSES
    patience_seconds: float = PATIENCE_SECONDS
    host_command: Sequence[str] = HOST_COMMAND
    worker_command: Sequence[str] = ()
    """The command that runs a worker, if workers are not forked from the nursery."""


@dataclass
class RoundResult:
    """The result of a round, or the sum of several."""

    operations: Counter[str] = field(default_factory=Counter)
    """By outcome."""
    errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    rounds: int = 1

    def add(self, other: RoundResult) -> None:
        self.operations += other.operations
        self.errors += other.errors
        self.faults += other.faults
        self.violations += other.violations
        self.rounds += other.rounds


class RestartedProcess:
    """A process of the round, which may be killed and restarted."""

    def __init__(self, round_: Round, name: str) -> None:
        self.name = name
        self.life = 0
        self.process: RoundProcess | None = None
        self._round = round_

    async def start(self) -> None:
        """Start the process, also again."""
        raise NotImplementedError

    async def kill(self) -> None:
        if self.process is not None:
            await self.process.kill()

    def pause(self) -> None:
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None:
            self.process.resume()


class RoundHost(RestartedProcess):
    """A node of the round: a `tupelo host`, or a program with a host."""

    def __init__(self, round_: Round, node: Node) -> None:
        super().__init__(round_, node.name)
        self.node = node
        self.lines: list[Proxy] = []
        """The proxies that lead to it."""
        self.peers: list[Proxy] = []
        """The proxies by which it dials other hosts."""
        self._listen = "127.0.0.1:0"
        self._is_program = node.member or round_.plan.tls
        """`tupelo host` has no identity here, and so no TLS: with TLS a program runs the host."""

    @property
    def has_disk(self) -> bool:
        # A member also writes its history, for which there must be room.
        return self.node.durable and not self.node.member and sys.platform == "linux"

    async def start(self) -> None:
        self.life += 1
        plan = self._round.plan
        home = plan.folder / f"{self.name}.home"
        name = f"{self.name}.{self.life}"
        process: RoundProcess
        if self._is_program:
            process = await self._round.work(self._task(home))
        else:
            process = await Command.start(name, self._host_command(), plan.folder, home)
        self.process = process
        if self._is_program:
            born = await process.hear(Born)
            self.node.direct, self.node.identity = born.address, born.identity
        else:
            said = await process.line()
            self.node.direct = said.split("tupelo://")[-1].partition("/")[0]
            process.discard_output()
        self._listen = self.node.direct  # the same in every life
        for line in self.lines:
            line.lead_to(self._listen)
        if self._round.begun:
            await self.go()

    async def go(self) -> None:
        """Let the clients of a program begin."""
        assert self.process is not None
        if not self.node.member:
            return
        await self.process.tell(self._round.go())
        await self.process.hear(WorkerDone)

    def _path(self) -> str | None:
        return str(self._round.plan.folder / f"{self.name}.data") if self.node.durable else None

    def _host_command(self) -> list[str]:
        plan = self._round.plan
        command = [*plan.host_command, "host", self.name, "--listen", self._listen]
        command += ["--heartbeat", str(HEARTBEAT_SECONDS)]
        command += ["--path", path] if (path := self._path()) else []
        for line in self.peers:
            command += ["--peer", line.address]
        return command

    def _task(self, home: Path) -> WorkerTask:
        plan = self._round.plan
        orders = HostOrders(
            self._listen,
            [line.address for line in self.peers],
            HEARTBEAT_SECONDS,
            self._path(),
            site="xvsm" in plan.models and self.node.site,
        )
        return WorkerTask(
            f"{self.name}.{self.life}",
            plan.seed,
            str(plan.folder),
            list(plan.models) if self.node.member else [],
            plan.operations_max,
            WorkloadSecurity(plan.tls, str(home)),
            self.name,
            orders,
        )

    def fill_disk(self) -> None:
        """No file of the process may grow: writes fail as on a full disk."""
        if self.process is not None:
            soft_and_hard = (FULL_DISK_BYTES, resource.RLIM_INFINITY)
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, soft_and_hard)


class ClientProcess(RestartedProcess):
    """A process of clients."""

    async def start(self) -> None:
        self.life += 1
        plan = self._round.plan
        name = f"{self.name}.{self.life}"
        home = plan.folder / f"{name}.home"
        task = WorkerTask(
            name,
            plan.seed,
            str(plan.folder),
            [model for model in plan.models if model in CLIENTS],
            plan.operations_max,
            WorkloadSecurity(plan.tls, str(home)),
        )
        self.process = await self._round.work(task)
        await self.process.tell(self._round.go())
        await self.process.hear(WorkerDone)


class Round:
    """A round in progress. `told` is called with the progress, from 0 to 1."""

    def __init__(self, plan: RoundConfig, told: Callable[[float], None]) -> None:
        self.plan = plan
        self.begun = False
        self._told = told
        self._rng = Random(plan.seed)
        self._links: dict[str, Proxy] = {}
        self._nodes: list[RoundHost] = []
        self._clients: list[ClientProcess] = []
        self._records: list[FaultRecord] = []
        self._drains = 0
        self._nursery: Nursery | None = None
        self._nursing = asyncio.Lock()

    def _restarted(self) -> list[RestartedProcess]:
        return [*self._clients, *self._nodes]

    def members(self) -> list[RoundHost]:
        return [one for one in self._nodes if one.node.member]

    async def work(self, task: WorkerTask) -> RoundProcess:
        """Start a worker for this task."""
        argument = msgspec.json.encode(task).decode()
        if self.plan.worker_command:
            command = [*self.plan.worker_command, argument]
            return await Command.start(
                task.name, command, self.plan.folder, Path(task.security.home)
            )
        async with self._nursing:
            if self._nursery is None:
                self._nursery = Nursery(worker.__name__, self.plan.folder)
                await self._nursery.start()
        return await self._nursery.fork(task.name, argument)

    def go(self) -> str:
        return msgspec.json.encode(Go([one.node for one in self._nodes])).decode()

    async def run(self) -> RoundResult:
        plan = self.plan
        plan.folder.mkdir(parents=True, exist_ok=True)
        nemesis: ProcessNemesis | None = None
        try:
            await self._begin()
            nemesis = ProcessNemesis(
                self._rng,
                self._links,
                self._nodes,
                self._clients,
                plan.kinds,
                self._records,
                plan.folder / "faults.jsonl",
            )
            await nemesis.run(plan.seconds, plan.faults, self._told)
            await self._heal()
            await self._enough()
            await self._stop()
            violations = await self._look()
        finally:
            if nemesis is not None:
                await nemesis.stop()
            await self._clear_up()
        result = RoundResult(faults=nemesis.counts(), violations=violations)
        for one in self._history().operations:
            result.operations[one.outcome] += 1
            if one.error:
                result.errors[one.error.partition(":")[0]] += 1
        return result

    # Beginning

    async def _begin(self) -> None:
        plan = self.plan
        members = max(MEMBERS_OF.get(model, 0) for model in plan.models)
        hosts = plan.hosts if HOSTS_OF.intersection(plan.models) else 0
        in_memory = hosts - 1 if hosts > 2 else None
        nodes = [Node(f"h{place + 1}", place != in_memory, False) for place in range(hosts)]
        nodes += [Node(f"m{place + 1}", True, True, site=place == 0) for place in range(members)]
        for node in nodes:
            member = RoundHost(self, node)
            line = await self._link(f"clients-{node.name}")
            node.address = line.address
            member.lines.append(line)
            for other in self._nodes:
                line = await self._link(f"{node.name}-{other.name}")
                other.lines.append(line)
                member.peers.append(line)
            self._nodes.append(member)
        await asyncio.gather(*(one.start() for one in self._nodes))
        await self._engaged()
        if "space" in plan.models:
            await asyncio.to_thread(self._open_accounts)
        self.begun = True
        await asyncio.gather(*(one.go() for one in self._nodes))
        if any(model in CLIENTS for model in plan.models):
            self._clients = [
                ClientProcess(self, f"c{place + 1}") for place in range(plan.client_processes)
            ]
            await asyncio.gather(*(one.start() for one in self._clients))

    async def _link(self, name: str) -> Proxy:
        proxy = self._links[name] = Proxy()
        await proxy.start()
        return proxy

    async def _engaged(self) -> None:
        """Wait until every host is engaged with every other."""
        until = time.monotonic() + ENGAGED_SECONDS
        while not await asyncio.to_thread(self._are_engaged):
            if time.monotonic() > until:
                raise TortureFailed(f"not all hosts are engaged after {ENGAGED_SECONDS:.0f} s")
            await asyncio.sleep(0.1)

    def _are_engaged(self) -> bool:
        names = {one.name for one in self._nodes}
        options = self._security().options()
        for one in self._nodes:
            url = f"tupelo://{one.node.direct}/{SPACE_FOR_ENGAGEMENT}"
            coverage = tupelo.Coverage()
            try:
                with tupelo.connect(url, reconnect=0, **options) as space:
                    space.count(coverage=coverage)
            except TupeloError:
                return False
            if set(coverage.covered) != names:
                return False
        return True

    def _security(self) -> WorkloadSecurity:
        return WorkloadSecurity(self.plan.tls, str(self.plan.folder / "round.home"))

    def _open_accounts(self) -> None:
        log, setting = self._setting(f"{DRAIN}.begin")
        client = SpaceClient(setting, "begin", "")
        client.open_accounts()
        log.end(client.name)
        log.close()

    def _setting(self, name: str) -> tuple[HistoryLog, Setting]:
        log = HistoryLog(self.plan.folder / f"{name}.history")
        nodes = [one.node for one in self._nodes]
        stop = threading.Event()
        return log, Setting(self.plan.folder, log, nodes, self._security(), stop, 0)

    # Ending

    async def _heal(self) -> None:
        for link in self._links.values():
            link.heal()
        for one in self._restarted():
            one.resume()
        await self._engaged()

    async def _enough(self) -> None:
        """Wait until the clients have done enough operations."""
        until = time.monotonic() + ENOUGH_SECONDS
        while time.monotonic() < until:
            ended = [one for one in self._history().operations if one.outcome != "pending"]
            if len(ended) >= self.plan.operations:
                return
            await asyncio.sleep(LOOK_SECONDS / 4)
        raise TortureFailed(f"there are fewer than {self.plan.operations} operations")

    async def _stop(self) -> None:
        talking: list[RestartedProcess] = [*self._clients, *self.members()]
        processes = [one.process for one in talking]
        for process in processes:
            assert process is not None
            await process.tell("stop")
        for process in processes:
            assert process is not None
            await process.hear(WorkerDone)
        for one in self._clients:
            await one.kill()
        await self._engaged()

    async def _look(self) -> list[Violation]:
        """Drain and check, until there is no violation that may go away, or for
        `PATIENCE_SECONDS`."""
        until = time.monotonic() + self.plan.patience_seconds
        while True:
            for one in self.members():
                assert one.process is not None
                await one.process.tell("drain")
            unseen = await asyncio.to_thread(self._drain)
            for one in self.members():
                assert one.process is not None
                await one.process.hear(WorkerDone)
            facts = self._facts()
            (self.plan.folder / FACTS_FILE).write_bytes(msgspec.json.encode(facts))
            violations = [*unseen, *check(self._history(), facts)]
            hopeless = any(not may_mend(one) for one in violations)
            if not violations or hopeless or time.monotonic() > until:
                return violations
            await asyncio.sleep(LOOK_SECONDS)

    def _drain(self) -> list[Violation]:
        """Drain all spaces. Returns a violation for each client that could not."""
        self._drains += 1
        unseen = []
        log, setting = self._setting(DRAIN)
        kinds: dict[type[WorkloadClient], None] = {}
        for model in self.plan.models:
            kinds |= dict.fromkeys(CLIENTS.get(model, ()))
        kinds |= {LimeMember: None} if "lime" in self.plan.models else {}
        for place, kind in enumerate(kinds):
            client = kind(setting, f"{DRAIN}.{self._drains}.{place}", "")
            try:
                client.drain()
            except TupeloError as error:
                unseen.append(Violation(NOT_SEEN, f"{client.model}: {error!r}"))
            finally:
                log.end(client.name)
        log.close()
        return unseen

    def _history(self) -> TortureHistory:
        return read_history(sorted(self.plan.folder.glob("*.history")))

    def _facts(self) -> Facts:
        facts = Facts({one.name for one in self._nodes if one.node.durable}, mortal={"lime"})
        for record in self._records:
            if record.at:
                facts.kills.setdefault(record.target, []).append(record.at)
        return facts

    async def _clear_up(self) -> None:
        for one in self._restarted():
            await one.kill()
        if self._nursery is not None:
            await self._nursery.close()
        for link in self._links.values():
            await link.close()


def check_again(folder: Path) -> list[Violation]:
    """Check the kept histories of a round again."""
    facts = msgspec.json.decode((folder / FACTS_FILE).read_bytes(), type=Facts)
    return check(read_history(sorted(folder.glob("*.history"))), facts)


def run_round(plan: RoundConfig, told: Callable[[float], None] = lambda share: None) -> RoundResult:
    """Run a round in its folder, which must be empty or not there yet."""
    if plan.folder.exists() and any(plan.folder.iterdir()):
        raise TortureFailed(f"{plan.folder} is not empty")
    return asyncio.run(Round(plan, told).run())
