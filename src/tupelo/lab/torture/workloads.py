"""The workloads: the clients of each model call random operations, one after the other.

Each client is a thread with a unique name in the round, so the values that it writes are unique. It
logs every operation before it begins and after it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import tupelo
from tupelo.errors import CountNotMet, PeerLost, TupeloError
from tupelo.lab.torture.checker import ACCOUNT, amount_of
from tupelo.lab.torture.history import Begun, HistoryLog, Verb
from tupelo.models.event_heap import Event, EventHeap
from tupelo.models.javaspaces import NO_WAIT, JavaSpace05, TransactionManager
from tupelo.models.lime import Host as LimeHost
from tupelo.models.lime import LimeTupleSpace
from tupelo.models.linda import TupleSpace
from tupelo.models.melon import Melon
from tupelo.models.pubsub import PubSub
from tupelo.models.xvsm import INFINITE, Capi, FifoCoordinator, FifoSelector
from tupelo.models.xvsm.selectors import COUNT_MAX

RECONNECT_SECONDS = 3_600.0
"""Longer than a round: a client that gives up could not confirm its deliveries any more."""
CONNECT_SECONDS = 0.2
"""The pause before the next attempt to reach a host."""
PAUSE_SECONDS = 0.01
"""The mean pause between two operations."""
WAITS_SECONDS = (0.0, 0.05, 0.3)
TXN_SECONDS = 8.0
"""The lease of a transaction."""
FEW = 5
ABORT_CHANCE = 0.15
ACCOUNTS = ("ada", "ben", "cyd")
OPENING_AMOUNT = 100
READS_MAX = 40
"""The number of reads in a session; then another session is begun."""
VIEW_FILE = "view"
HEARD_SECONDS = 40.0
"""Without faults a subscriber gets a value that is published repeatedly within so long."""


class Node(msgspec.Struct):
    """A host of the round: its address for clients (a proxy) and its own address. A `member` is a
    program with clients at its own host; one of them offers a `site`."""

    name: str
    durable: bool
    member: bool
    site: bool = False
    address: str = ""
    direct: str = ""
    identity: str = ""


class WorkloadSecurity(msgspec.Struct):
    """Whether links use TLS, and the folder with the identity of this process."""

    tls: bool = False
    home: str = ""

    def options(self) -> dict[str, Any]:
        if not self.tls:
            return {}
        identity = tupelo.Identity.at(Path(self.home) / "identity.pem")
        return {"tls": True, "identity": identity, "trust": tupelo.Trust.anyone()}


@dataclass
class Setting:
    """The hosts, the history and the options that the clients of a process share."""

    folder: Path
    log: HistoryLog
    nodes: list[Node]
    security: WorkloadSecurity
    stop: threading.Event
    operations_max: int
    host: tupelo.Host | None = None
    """The host of this program, if it has one."""
    node: str = ""
    lime: LimeHost | None = None
    site: Capi | None = None


@dataclass
class WorkloadJob:
    """An entry for JavaSpaces."""

    key: str | None = None
    value: str | None = None


Steps = list[tuple[int, Callable[[], object]]]


class WorkloadClient:
    """One client of one model. `steps` are its operations, each with a weight."""

    model = ""
    needs_identity = False
    """Whether it needs a host with an identity, so links under TLS."""

    def __init__(self, setting: Setting, name: str, seed: str) -> None:
        self.setting = setting
        self.log = setting.log
        self.name = name
        self.rng = Random(seed)
        self.where = setting.node
        """The host that serves the operations."""
        self._written = 0
        self._reading: Any = None
        self._reader = ""

    def open(self) -> None:
        """Connect to the hosts that the operations use."""

    def steps(self) -> Steps:
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""

    def drain(self) -> None:
        """After the faults: take or read all that is left, directly at the hosts."""
        raise NotImplementedError

    def run(self) -> None:
        stop = self.setting.stop
        try:
            while not stop.is_set():
                try:
                    self.open()
                    break
                except TupeloError:
                    stop.wait(CONNECT_SECONDS)
            else:
                return
            weights, works = zip(*self.steps(), strict=True)
            done = 0
            while not stop.is_set() and done < self.setting.operations_max:
                (work,) = self.rng.choices(works, weights)
                with suppress(TupeloError):
                    work()
                done += 1
                stop.wait(self.rng.expovariate(1 / PAUSE_SECONDS))
            stop.wait()
            with suppress(TupeloError):
                self.close()
        finally:
            self.log.end(self.name)

    def value(self) -> str:
        self._written += 1
        return f"{self.name}-{self._written}"

    def key(self, name: str) -> str:
        return f"{self.model}:{name}"

    @contextmanager
    def logged(self, verb: Verb, key: str, where: str = "", **facts: Any) -> Iterator[Begun]:
        """Log an operation from its beginning to its end. Call `told` inside, with its values."""
        begun = self.log.begin(self.name, verb, self.key(key), where or self.where, **facts)
        try:
            yield begun
        except TupeloError as error:
            begun.failed(error)
            raise

    def add(self, key: str, write: Callable[[str], object], where: str = "", **facts: Any) -> str:
        """Write a new value, and return it."""
        value = self.value()
        with self.logged("write", key, where, wrote=[value], **facts) as begun:
            write(value)
            begun.told()
        return value

    def get(
        self, verb: Verb, key: str, find: Callable[[], Any], where: str = "", **facts: Any
    ) -> list[str]:
        """Take or read, and return the values."""
        with self.logged(verb, key, where, **facts) as begun:
            got = _values(find())
            begun.told(got)
        return got

    def read_once(self, key: str, open: Callable[[], Any], read: Callable[[Any], Any]) -> None:
        """Read in a session of this client. What `open` returns has its own connection: it is
        closed when the session is lost, and a closed connection could not confirm to its host what
        it has taken."""
        if self._reading is None:
            self._reading, self._reader = open(), f"{self.name}/{self.value()}"
        try:
            self.get("once", key, partial(read, self._reading), reader=self._reader)
        except PeerLost:
            with suppress(TupeloError):
                self._reading.close()
            self._reading = None
            raise

    @contextmanager
    def transfer(
        self,
        key: str,
        where: str,
        begin: Callable[[], Any],
        commit: Callable[[Any], object] = lambda txn: txn.commit(),
        abort: Callable[[Any], object] = lambda txn: txn.abort(),
    ) -> Iterator[tuple[Begun, Any]]:
        """Log a transaction, which is committed or aborted at the end; aborted, if nothing was
        written."""
        with self.logged("transfer", key, where) as begun:
            txn = begin()
            try:
                yield begun, txn
                if not begun.has_written or self.rng.random() < ABORT_CHANCE:
                    abort(txn)
                    begun.undone("called off" if begun.has_written else "there is nothing to move")
                else:
                    begun.committing()
                    commit(txn)
                    begun.told()
            except TupeloError:
                with suppress(TupeloError):
                    abort(txn)
                raise

    def drain_space(self, node: Node, name: str, **templates: Any) -> None:
        """Take all that is left in a space of a host, by key."""
        with self.connect(node, name, direct=True) as space:
            for key, template in templates.items():
                find = partial(space.take_all, template, scope=tupelo.HERE)
                self.get("take", key, find, node.name, many=True)

    def wait(self) -> float:
        return self.rng.choice(WAITS_SECONDS)

    def connect(self, node: Node, space: str, *, direct: bool = False) -> Any:
        address = node.direct if direct else node.address
        return tupelo.connect(
            f"tupelo://{address}/{space}",
            name=self.name,
            reconnect=RECONNECT_SECONDS,
            **self.setting.security.options(),
        )

    def nodes(self, *, members: bool = False) -> list[Node]:
        """The hosts that serve this model, in a random order for each client."""
        nodes = [one for one in self.setting.nodes if one.member == members]
        return self.rng.sample(nodes, len(nodes))

    def durable(self) -> list[Node]:
        """The durable hosts, in one order for all clients."""
        return [one for one in self.setting.nodes if one.durable and not one.member]


# Spaces


class SpaceClient(WorkloadClient):
    """write, take and read with unique values; sessions; transfers at one host and over two."""

    model = "space"

    def open(self) -> None:
        node = self.nodes()[0]
        self.where, self._space = node.name, self.connect(node, "jobs")
        self._banks = [(node, self.connect(node, "bank")) for node in self.durable()[:2]]
        self._session: Any = None
        self._reads = 0

    def steps(self) -> Steps:
        write, read, job = self._space.write, self._space.read, ("job", str)
        transfers: Steps = [(3, self.transfer_here)] * bool(self._banks)
        transfers += [(3, self.transfer_between)] * (len(self._banks) > 1)
        return [
            (6, partial(self.add, "job", lambda value: write(("job", value)))),
            (1, self.write_many),
            (6, self.take),
            (1, self.take_many),
            (2, partial(self.get, "read", "job", lambda: read(job, wait=self.wait()), spans=True)),
            (2, partial(self.add, "news", lambda value: write(("news", value)))),
            (3, self.read_news),
            *transfers,
        ]

    def write_many(self) -> None:
        values = [self.value() for _ in range(self.rng.randint(2, FEW))]
        with self.logged("write", "job", wrote=values) as begun:
            self._space.write_all([("job", value) for value in values])
            begun.told()

    def take(self) -> None:
        scope = self.rng.choice((tupelo.HERE, None))
        find = partial(self._space.take, ("job", str), wait=self.wait(), scope=scope)
        self.get("take", "job", find, spans=scope is None)

    def take_many(self) -> None:
        scope = self.rng.choice((tupelo.HERE, None))
        find = partial(self._space.take_all, ("job", str), limit=FEW, scope=scope)
        self.get("take", "job", find, many=True, spans=scope is None)

    def read_news(self) -> None:
        if self._session is None or self._reads >= READS_MAX:
            self._session = self._space.session()
            self._reader, self._reads = f"{self.name}/{self.value()}", 0
        self._reads += 1
        try:
            read = partial(self._session.read, ("news", str), wait=self.wait())
            self.get("once", "news", read, reader=self._reader)
        except TupeloError:
            self._session = None
            raise

    def transfer_here(self) -> None:
        node, bank = self.rng.choice(self._banks)
        one, other = self.rng.sample(ACCOUNTS, 2)
        begin = partial(bank.transaction, lease=TXN_SECONDS)
        self._move(node, begin, bank, f"{one}.{node.name}", bank, f"{other}.{node.name}")

    def transfer_between(self) -> None:
        (here, one), (there, other) = self.rng.sample(self._banks, 2)
        names = self.rng.choice(ACCOUNTS), self.rng.choice(ACCOUNTS)
        begin = partial(tupelo.transaction, one, other, lease=TXN_SECONDS)
        self._move(here, begin, one, f"{names[0]}.{here.name}", other, f"{names[1]}.{there.name}")

    def _move(
        self, node: Node, begin: Callable[[], Any], one: Any, name: str, other: Any, other_name: str
    ) -> None:
        """Take an account here and one there, and write both with an amount moved between them."""
        with self.transfer(ACCOUNT, node.name, begin) as (begun, txn):
            got = one.take((ACCOUNT, name, str), wait=0.5, txn=txn)
            if got is None:
                return
            begun.doing([got[2]])
            more = other.take((ACCOUNT, other_name, str), wait=0.5, txn=txn)
            if more is None:
                return
            amount = self.rng.randint(1, 10)
            wrote = [
                self.account(name, amount_of(got[2]) - amount),
                self.account(other_name, amount_of(more[2]) + amount),
            ]
            begun.doing([got[2], more[2]], wrote)
            one.write((ACCOUNT, name, wrote[0]), txn=txn)
            other.write((ACCOUNT, other_name, wrote[1]), txn=txn)

    def account(self, name: str, amount: int) -> str:
        return f"{name}@{self.value()}={amount}"

    def open_accounts(self) -> None:
        """Before the faults: pay in the opening amounts."""
        for node in self.durable()[:2]:
            with self.connect(node, "bank", direct=True) as bank:
                for name in ACCOUNTS:
                    value = self.account(f"{name}.{node.name}", OPENING_AMOUNT)
                    with self.logged("write", ACCOUNT, node.name, wrote=[value]) as begun:
                        bank.write((ACCOUNT, f"{name}.{node.name}", value))
                        begun.told()

    def drain(self) -> None:
        for node in self.nodes():
            self.drain_space(node, "jobs", job=("job", str), news=("news", str))
            self.drain_space(node, "bank", account=(ACCOUNT, str, str))


class LindaClient(WorkloadClient):
    """out, inp, in_, ing and rdp."""

    model = "linda"

    def open(self) -> None:
        self._node = self.nodes()[0]
        self.where = self._node.name
        self._space: Any = TupleSpace(self.connect(self._node, "linda"))

    def steps(self) -> Steps:
        space, asked = self._space, ("tuple", str)
        get = partial(self.get, spans=True)
        return [
            (6, partial(self.add, "tuple", lambda value: space.out(("tuple", value)))),
            (5, partial(get, "take", "tuple", lambda: space.inp(asked))),
            (1, partial(get, "take", "tuple", lambda: space.ing(asked), many=True)),
            (2, partial(get, "read", "tuple", lambda: space.rdp(asked))),
            (2, self.out_and_in),
        ]

    def out_and_in(self) -> None:
        """Write a tuple that nobody else wants, and wait for it: it must come."""
        value = self.add("own", lambda value: self._space.out(("own", value)))
        if self._node.durable:  # A host in memory may have been killed meanwhile.
            self.get("take", "own", lambda: self._space.in_(("own", value)), spans=True)

    def drain(self) -> None:
        for node in self.nodes():
            self.drain_space(node, "linda", tuple=("tuple", str), own=("own", str))


class JavaSpacesClient(WorkloadClient):
    """write, take and read of entries, and transactions of a TransactionManager."""

    model = "javaspaces"

    def open(self) -> None:
        node = self.nodes()[0]
        self.where = node.name
        self._space: Any = JavaSpace05(self.connect(node, "javaspaces"))
        self._durable: list[tuple[Node, Any]] = [
            (node, JavaSpace05(self.connect(node, "javaspaces"))) for node in self.durable()[:2]
        ]
        self._manager = TransactionManager()

    def steps(self) -> Steps:
        space, job, wait = self._space, WorkloadJob("job"), self.wait
        moves: Steps = [(3, self.write_move), (3, self.move)] * bool(self._durable)
        get = partial(self.get, spans=True)
        return [
            (5, partial(self.add, "job", lambda value: space.write(WorkloadJob("job", value)))),
            (4, partial(get, "take", "job", lambda: space.take(job, None, wait()))),
            (2, partial(get, "read", "job", lambda: space.read(job, None, wait()))),
            *moves,
        ]

    def write_move(self) -> None:
        node, space = self.rng.choice(self._durable)
        self.add("moved", lambda value: space.write(WorkloadJob("moved", value)), node.name)

    def move(self) -> None:
        """Take an entry of one space and write another in the same or another one."""
        here, one = self.rng.choice(self._durable)
        _, other = self.rng.choice(self._durable)
        with self.transfer("moved", here.name, self._begin) as (begun, txn):
            found = one.take(WorkloadJob("moved"), txn, NO_WAIT)
            if found is not None:
                value = self.value()
                begun.doing([found.value], [value])
                other.write(WorkloadJob("moved", value), txn)

    def _begin(self) -> Any:
        return self._manager.create(lease=TXN_SECONDS).transaction

    def close(self) -> None:
        self._manager.close()

    def drain(self) -> None:
        for node in self.nodes():
            templates = {key: WorkloadJob(key) for key in ("job", "moved")}
            self.drain_space(node, "javaspaces", **templates)


# XVSM

CONTAINERS = ("jobs", "done")


class XvsmClient(WorkloadClient):
    """write, take and read of containers at a site, and transactions over two of them."""

    model = "xvsm"

    def open(self) -> None:
        node = self._site()
        self.where, self._capi = node.name, self._capi_at(node.address)
        self._jobs, self._done = (
            self._capi.lookup_container(None, None, name) for name in CONTAINERS
        )

    def _site(self) -> Node:
        return next(node for node in self.setting.nodes if node.site)

    def _capi_at(self, address: str) -> Capi:
        options = self.setting.security.options()
        return Capi(site=f"xvsm://{address}", reconnect=RECONNECT_SECONDS, **options)

    def steps(self) -> Steps:
        capi, jobs = self._capi, self._jobs
        return [
            (6, partial(self.add, "job", lambda value: capi.write(jobs, 0, None, (value,)))),
            (4, partial(self.get, "take", "job", partial(self._find, capi.take))),
            (2, partial(self.get, "read", "job", partial(self._find, capi.read))),
            (3, self.move),
        ]

    def _find(self, verb: Any, tx: Any = None) -> Any:
        with suppress(CountNotMet):
            return verb(self._jobs, self.wait(), tx, FifoSelector())

    def move(self) -> None:
        capi = self._capi
        begin = partial(capi.create_transaction, None, TXN_SECONDS)
        ends = capi.commit_transaction, capi.rollback_transaction
        with self.transfer("job", self.where, begin, *ends) as (begun, tx):
            got = _values(self._find(capi.take, tx))
            if got:
                value = self.value()
                begun.doing(got, [value])
                capi.write(self._done, 0, tx, (value,))

    def close(self) -> None:
        self._capi.close()

    def drain(self) -> None:
        node = self._site()
        with self._capi_at(node.direct) as capi:
            for name in CONTAINERS:
                container = capi.lookup_container(None, None, name)
                find = partial(capi.take, container, 0, None, FifoSelector(COUNT_MAX))
                self.get("take", "job", find, node.name, many=True)


def offer_site(host: tupelo.Host, path: Path) -> Capi:
    """The containers of a program, as its last run has left them, offered by its host."""
    capi = Capi(path)
    known = {row[1] for row in capi.embedded.rows()}
    for name in CONTAINERS:
        if name not in known:
            capi.create_container(None, None, name, INFINITE, FifoCoordinator())
    capi.offer(host)
    return capi


# MELON


class MelonClient(WorkloadClient):
    """store and take; write, and read each message once."""

    model = "melon"

    def open(self) -> None:
        node = self.nodes(members=not self.nodes())[0]
        self.where = node.name
        self._connect = partial(self.connect, node, "melon")
        self._melon = self._open()

    def steps(self) -> Steps:
        melon, wait = self._melon, self.wait
        take = partial(self.get, "take", "stored", lambda: melon.take(("stored", str), wait()))
        return [
            (5, partial(self.add, "stored", lambda value: melon.store(("stored", value)))),
            (5, partial(take, spans=True)),
            (3, partial(self.add, "written", lambda value: melon.write(("written", value)))),
            (4, partial(self.read_once, "written", self._open, self._read)),
        ]

    def _open(self) -> Melon:
        return Melon(self._connect())

    def _read(self, melon: Melon) -> Any:
        return melon.read(("written", str), self.wait())

    def drain(self) -> None:
        for node in self.setting.nodes:
            self.drain_space(node, "melon", stored=("stored", str))
            # A process that has read nothing yet; its host opens the messages for it.
            with Melon(self.connect(node, "melon", direct=True)) as melon:
                read = partial(melon.read_all, ("written", str), wait=0)
                self.get("read", "written", read, node.name, many=True)


class MelonMember(WorkloadClient):
    """Messages directed to the identity of a host: nobody else may have them."""

    model = "melon"
    needs_identity = True

    def open(self) -> None:
        assert self.setting.host is not None
        self._melon = Melon(self.setting.host, "melon")
        self._others = [one for one in self.setting.nodes if one.identity and one.member]

    def steps(self) -> Steps:
        return [(3, self.direct), (4, self.take)]

    def direct(self) -> None:
        to = self.rng.choice(self._others)
        self.add(
            "directed",
            lambda value: self._melon.store(("directed", value), to=to.identity),
            to=to.name,
        )

    def take(self) -> None:
        self._take(self.rng.choice(self._others), self.wait())

    def _take(self, sender: Node, wait: float) -> list[str]:
        take = partial(self._melon.take, ("directed", str), wait, sender=sender.identity)
        return self.get("take", "directed", take, spans=True)

    def drain(self) -> None:
        self.open()
        for sender in self._others:
            while self._take(sender, 0.2):
                pass


# The Event Heap


class HeapClient(WorkloadClient):
    """put, wait (in a session) and remove."""

    model = "event-heap"

    def open(self) -> None:
        node = self.nodes(members=not self.nodes())[0]
        self.where = node.name
        self._connect = partial(self.connect, node, "heap")
        self._heap = self._open()

    def steps(self) -> Steps:
        remove = partial(self._heap.remove, Event("event"))
        return [
            (5, self.put),
            (4, partial(self.read_once, "lasting", self._open, self._read)),
            (3, partial(self.get, "take", "event", remove, spans=True)),
        ]

    def put(self) -> None:
        kind = self.rng.choice(("event", "lasting"))
        self.add(kind, lambda value: self._heap.put(Event(kind, value=value)))

    def _open(self) -> EventHeap:
        return EventHeap(self._connect())

    def _read(self, heap: EventHeap) -> Any:
        return heap.wait(Event("lasting"), wait=self.wait())

    def drain(self) -> None:
        for node in self.setting.nodes:
            with EventHeap(self.connect(node, "heap", direct=True)) as heap:
                for kind in ("event", "lasting", "viewed"):
                    self.get("read", kind, partial(heap.snoop_all, Event(kind)), node.name)


class HeapMember(WorkloadClient):
    """Puts and reads in a view of total order, that all members share."""

    model = "event-heap"

    def open(self) -> None:
        assert self.setting.host is not None
        self._heap = EventHeap(self.setting.host, "heap")
        self._view: Any = None

    def steps(self) -> Steps:
        return [(4, self.put), (6, self.read)]

    def view(self) -> Any:
        """The view, which the first member creates; its id is in a file of the round."""
        if self._view is None:
            file = self.setting.folder / VIEW_FILE
            first = next(node for node in self.setting.nodes if node.member)
            if file.exists():
                known = file.read_text()
                self._view = self._heap.view(known, wait=2.0, on_clone=self._cloned)
            elif first.name == self.setting.node:
                self._view = self._heap.view(order="total", on_clone=self._cloned)
                self._tell(self._view.id)
        return self._view

    def _cloned(self, clone: Any) -> None:
        self._tell(clone.new)

    def _tell(self, view: str) -> None:
        file = self.setting.folder / VIEW_FILE
        written = file.with_suffix(f".{self.name}")
        written.write_text(view)
        written.replace(file)

    def put(self) -> None:
        if (view := self.view()) is not None:
            self.add("viewed", lambda value: view.put(Event("viewed", value=value), wait=1.0))

    def read(self) -> None:
        if (view := self.view()) is not None:
            self._read(view, self.wait())

    def _read(self, view: Any, wait: float) -> list[str]:
        # The view may be cloned while it is read: what is read then has a place in both.
        before = view.id
        reader = f"{before}/{self.name}"
        with self.logged("ordered", "viewed", reader=reader) as begun:
            got = _values(view.wait(Event("viewed"), wait=wait))
            begun.told(got if view.id == before else ())
        return got

    def drain(self) -> None:
        self.open()
        with suppress(TupeloError):
            view = self.view()
            while view is not None and self._read(view, 0.2):
                pass


# LIME


class LimeMember(WorkloadClient):
    """An agent that writes and takes tuples in a space that agents of all members share."""

    model = "lime"

    def open(self) -> None:
        assert self.setting.lime is not None
        agent = self.setting.lime.agent(self.name)
        self._space = LimeTupleSpace("lime", agent)
        self._space.set_shared(True)

    def steps(self) -> Steps:
        space, asked = self._space, ("tuple", str)
        get = partial(self.get, spans=True)
        return [
            (5, partial(self.add, "tuple", lambda value: space.out(("tuple", value)))),
            (4, partial(get, "take", "tuple", lambda: space.inp(asked))),
            (3, partial(get, "take", "tuple", lambda: space.in_(asked, wait=self.wait()))),
            (2, partial(get, "read", "tuple", lambda: space.rdp(asked))),
        ]

    def drain(self) -> None:
        for node in self.setting.nodes:
            self.drain_space(node, "lime", tuple=("tuple", str))


# Publish-subscribe


class PubSubClient(WorkloadClient):
    """Publishes, and subscribes to what others publish."""

    model = "pubsub"

    def open(self) -> None:
        here, self._elsewhere = (self.nodes() * 2)[:2]
        self.where, self._here = self._elsewhere.name, here.name
        self._publisher = PubSub(self.connect(here, "news"))

    def steps(self) -> Steps:
        publish = self._publisher.publish
        return [
            (3, partial(self.add, "told", lambda value: publish(("told", value)), self._here)),
            (5, partial(self.read_once, "told", self._subscribe, self._next)),
        ]

    def _subscribe(self) -> PubSub:
        subscriber = PubSub(self.connect(self._elsewhere, "news"))
        self._replies = subscriber.subscribe(("told", str))
        return subscriber

    def _next(self, subscriber: PubSub) -> Any:
        reply = self._replies.get(wait=self.wait())
        return reply and reply.items

    def drain(self) -> None:
        """Nothing is stored: after the faults, a subscriber must get what is published."""
        here, there = (self.nodes() * 2)[:2]
        with (
            PubSub(self.connect(here, "news", direct=True)) as publisher,
            PubSub(self.connect(there, "news", direct=True)) as subscriber,
            subscriber.subscribe(("told", str)) as replies,
        ):
            with self.logged("write", "kept", here.name, wrote=[kept := self.value()]) as begun:
                begun.told()
            until = time.monotonic() + HEARD_SECONDS
            while time.monotonic() < until:
                publisher.publish(("told", kept))
                reply = replies.get(wait=1.0)
                if reply is not None and ("told", kept) in reply.items:
                    with self.logged("read", "kept", there.name) as begun:
                        begun.told([kept])
                    return


def _values(found: Any) -> list[str]:
    """The values of a tuple, entry or event, or of a list of them; none of None."""
    if isinstance(found, list):
        return [value for one in found for value in _values(one)]
    if found is None:
        return []
    if isinstance(found, tuple):
        return [found[-1]]
    return [found["value"] if isinstance(found, Event) else found.value]


CLIENTS: dict[str, list[type[WorkloadClient]]] = {
    "space": [SpaceClient, SpaceClient],
    "linda": [LindaClient],
    "javaspaces": [JavaSpacesClient],
    "xvsm": [XvsmClient],
    "melon": [MelonClient],
    "event-heap": [HeapClient],
    "pubsub": [PubSubClient],
}
"""The clients of each model in a process of clients."""
MEMBERS: dict[str, list[type[WorkloadClient]]] = {
    "lime": [LimeMember],
    "melon": [MelonMember],
    "event-heap": [HeapMember],
}
"""The clients of each model in a program with its own host."""
