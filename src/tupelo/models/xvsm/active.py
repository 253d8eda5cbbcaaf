"""The ActiveCoordinator (section 8.3 of the thesis): entries that carry work.

The method `evaluate` of an ActiveEntry returns a list of tasks, each a function and its arguments.
Workers compute them; `finalize` gets the results in the same order; then the entry can be read. If
something fails, an ActiveError with the reason takes the place of the entry.

The work consists of entries in a space beside the container. A worker takes an entry in a
transaction that lasts until its result is written. So a worker that dies loses nothing, work in a
folder survives the program, and hosts can share it. Functions are stored by name: they must be
found in a loaded module, and nothing else is ever run. Work whose classes are unknown in this
program is set aside until they are known, and a program looks for results.

Programs elsewhere share the tasks by their capacity (`site.Helper`): each takes a task when one of
its workers is free. `evaluate` and `finalize` run in this program.

| in that space | content                                    | what a worker writes for it  |
| ------------- | ------------------------------------------ | ---------------------------- |
| active        | an entry as it was written, with its keys  | waiting, left, tasks         |
| task          | a function and its arguments               | a result; of `left` one less |
| finish        | instead of `left`, when all results are in | the entry in the container   |

The size of a container limits finished entries, not the work: a finished entry waits until there is
room, and so does its worker. A key is in use from the moment that the work is written: a second
entry with it is refused at once. A task that waits for entries that it has written occupies its
worker too: if tasks wait for tasks more deeply than there are workers, they wait for ever.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tupelo.aio import Space as AsyncSpace
from tupelo.errors import BadArgument, DuplicateKey, SpaceClosed, TupeloError, UnknownType
from tupelo.models.xvsm.aspects import Point
from tupelo.models.xvsm.chain import PayloadTemplate
from tupelo.models.xvsm.container import Books
from tupelo.models.xvsm.coordinators import Coordinator, KeyCoordinator, found_by, name_of
from tupelo.models.xvsm.notifications import Notification
from tupelo.models.xvsm.selectors import Selector
from tupelo.space.blocking import Space
from tupelo.space.blocking import Transaction as WorkTransaction
from tupelo.space.dual_api import dual_api, maybe_await, run_sync
from tupelo.space.order import Order
from tupelo.space.port import port_of
from tupelo.space.query import check_count
from tupelo.space.shared import SharedTransaction
from tupelo.values.entry import Entry as CoreEntry
from tupelo.values.entry import freeze, require_known, thaw
from tupelo.values.kind import entry as named_entry
from tupelo.values.lease import Lease
from tupelo.values.parts import ANY, OneOf
from tupelo.values.template import Template

if TYPE_CHECKING:
    from tupelo.models.xvsm.capi import AnyCapi, Capi
    from tupelo.models.xvsm.container import Container
    from tupelo.models.xvsm.site import RemoteContainer

logger = logging.getLogger("tupelo")

TaskRow = tuple[Any, ...]
"""A function and its arguments."""
WorkPlace = Callable[[], "tuple[Capi, Container | RemoteContainer]"]
"""Returns the Capi and the container for which a task is computed."""

_TASK = ("task", str, int, str, tuple)  # id, number, function, arguments
_RESULT = ("result", str, int, bool, object)  # id, number, whether it succeeded, result or error
_FINISH = ("finish", str)  # id
_LOOK = ("look",)  # Work that was set aside may be possible now.
_FRONT = 4  # fields of "active" and "waiting" before the keys: kind, id, stored entry, place
_KEYS = 6  # where the keys begin, beyond the fields of all others

_here = threading.local()


@dataclass
class ActiveEntry:
    """An entry with work. Subclass it, as a dataclass."""

    def evaluate(self) -> list[TaskRow]:
        """The tasks, computed independently: `[(function, argument, ...), ...]`."""
        raise NotImplementedError

    def finalize(self, results: list[Any]) -> None:
        """All tasks are done: store their results in the fields that readers will see."""


@named_entry("xvsm.active_error")
@dataclass
class ActiveError:
    """Takes the place of an entry whose work failed."""

    entry: Any = None
    reason: str | None = None
    detail: str | None = None


class Workers:
    """Threads that do the work that `take` finds: as many as there is work for, at most `most`.

    A worker that fails is replaced. When `FAILURES_MAX` workers have failed without a success in
    between, the remaining work waits until the folder is opened again.
    """

    FAILURES_MAX = 100

    def __init__(self, most: int, take: Callable[[], Any], do: Callable[[Any], None]) -> None:
        self._most = most
        self._take = take
        self._do = do
        self._lock = threading.Lock()
        self.count = self.idle = self._failures = 0
        self.closed = False

    def hire(self) -> None:
        """Start another worker if all are busy and there may be more."""
        with self._lock:
            if self.idle or self.closed or self.count >= self._most:
                return
            self.count += 1
            self.idle += 1
        threading.Thread(target=self._run, name="tupelo-active", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                try:
                    found = self._take()
                finally:
                    with self._lock:
                        self.idle -= 1
                self.hire()
                self._do(found)
                with self._lock:
                    self.idle += 1
                    self._failures = 0
        except SpaceClosed:
            self.closed = True
        except BaseException:
            if not self.closed:
                logger.exception("a worker of an ActiveCoordinator failed; another takes over")
            with self._lock:
                self._failures += 1
                self.closed = self.closed or self._failures >= self.FAILURES_MAX
        with self._lock:
            self.count -= 1
        self.hire()


class DoableWork(Order):
    """Entries that are not set aside and whose classes are known."""

    def __init__(self, aside: set[str]) -> None:
        self._aside = aside

    def arrange(self, found: list[CoreEntry]) -> Iterable[CoreEntry]:
        return [entry for entry in found if self._is_doable(entry)]

    def _is_doable(self, entry: CoreEntry) -> bool:
        try:
            require_known(entry)
        except UnknownType:
            return False
        return len(entry.fields) < 2 or entry.fields[1] not in self._aside


class ActiveCoordinator(Coordinator):
    """Accepts only ActiveEntries; they can be found once their work is done.

    At most `workers` threads work, as many as there is work for.
    """

    default_name = "active"
    works = True
    commutes = True

    def __init__(self, workers: int = 16, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._workers_max = check_count(workers, "workers")
        self.workers: Workers | None = None
        self.work: Space | None = None
        self._aio: AsyncSpace | None = None
        self._work_template: Template = Template(_LOOK)
        self._waiting: tuple[Any, ...] = ()
        self._coming_out = threading.Lock()
        self._aside: set[str] | None = None  # ids of work that was set aside, if any
        self._lookups = 0  # how often results were looked for

    def options(self) -> tuple[Any, ...]:
        return (self._workers_max,)

    def needs_all(self, selector: Selector) -> bool:
        return False

    def check(self, payload: Any) -> None:
        if not isinstance(payload, ActiveEntry):
            raise BadArgument(
                "entry", "an ActiveEntry, for the container has an ActiveCoordinator", payload
            )

    # Opening and closing

    def opened(self) -> None:
        container = self._container()
        path = container.path
        keys = [KeyCoordinator() for c in container.given if isinstance(c, KeyCoordinator)]
        for place, key in enumerate(keys, _KEYS):
            key.position = place
        wide = (ANY,) * (_KEYS - _FRONT + len(keys))
        self._waiting = ("waiting", str, object, object, *wide)
        active = Template(("active", *self._waiting[1:]))
        self._work_template = active | Template(_TASK) | Template(_FINISH) | Template(_LOOK)
        self.work = Space(
            f"{container.name}.work",
            path=None if path is None else path.with_name(path.name + ".work"),
            order=Books(list(keys)) if keys else None,
            clock=container.owner.clock,
        )
        container.owner.settle(self.work)
        self._aside = None
        self.workers = Workers(self._workers_max, self._take, self._do)
        self.workers.hire()

    def closed(self) -> None:
        if self.workers is not None:
            self.workers.closed = True
        if self.work is not None:
            self.work.close()
        self._aio = None

    def results_wanted(self) -> None:
        """Called when a program looks for results: try again the work that was set aside."""
        self._lookups += 1
        self._retry_set_aside()

    def _retry_set_aside(self) -> None:
        if self._aside is not None and self.work is not None:
            self._aside = None
            self.work.write(_LOOK)

    def _set_aside(self, error: UnknownType, asked: int, name: str | None = None) -> None:
        logger.warning("work is left until its class is known: %s", error)
        aside = self._aside or set()
        self._aside = aside | {name} if name is not None else aside
        if self._lookups != asked:  # Somebody has looked meanwhile: the class may be known by now.
            self._retry_set_aside()

    def _container(self) -> Container:
        if self.container is None:
            raise BadArgument("coordinator", "one of a container", self)
        return self.container

    def _work(self) -> Space:
        if self.work is None:
            raise BadArgument("coordinator", "one of a container", self)
        return self.work

    # Work

    @property
    def aio(self) -> AsyncSpace:
        """The async API of the work space."""
        if self._aio is None:
            self._aio = AsyncSpace(self._work())
        return self._aio

    async def begin(
        self, capi: AnyCapi, made: list[tuple[Any, Any]], txn: SharedTransaction | None
    ) -> list[Lease]:
        """Write the work for these entries. Cancelling the lease of an entry before its work begins
        removes it."""
        container, work = self._container(), self._work()
        container.require_distinct([stored for stored, _ in made])
        door: Any = self.aio if capi.is_async else work
        rows = []
        for stored, at in made:
            keys = [key for _, key in container.key_of(stored)]
            front = ("active", uuid4().hex, stored, at)
            rows.append((*front, *(None,) * (_KEYS - _FRONT), *keys))
        inner = container.owner.begin(None, txn)
        try:
            try:
                leases = await maybe_await(door.write_all(rows, txn=inner))
            except DuplicateKey:
                # The key may be that of an entry that is just being finished.
                with self._coming_out:
                    pass
                leases = await maybe_await(door.write_all(rows, txn=inner))
            for stored, _ in made:
                for coordinator, key in container.key_of(stored):
                    there = PayloadTemplate(container.width, {coordinator.position: key}, None)
                    if key is not None and container.space.count(there, txn=inner):
                        raise DuplicateKey(key)
        except BaseException:
            await capi._end(inner, commit=False)
            raise
        await capi._end(inner, commit=True)
        return list(leases)

    def _take(self) -> tuple[WorkTransaction, Any]:
        """The next piece of work, and the transaction that holds it."""
        work = self._work()
        while True:
            txn = work.transaction()
            aside, asked = self._aside, self._lookups
            order = None if aside is None else DoableWork(aside)
            try:
                return txn, work.take(self._work_template, txn=txn, order=order)
            except UnknownType as error:
                self._set_aside(error, asked)
                txn.abort()

    def _do(self, found: tuple[WorkTransaction, Any]) -> None:
        txn, job = found
        asked = self._lookups
        try:
            with txn:
                if job[0] == "active":
                    self._plan(job, txn)
                elif job[0] == "task":
                    self._compute(job, txn)
                elif job[0] == "finish":
                    self._finish(job[1])
        except UnknownType as error:
            self._set_aside(error, asked, job[1])

    def _plan(self, job: Any, txn: WorkTransaction) -> None:
        """Write the tasks of an entry, or the error of its `evaluate`."""
        name = job[1]
        try:
            tasks: list[Any] = [
                ("task", name, i, name_of_task(task[0]), tuple(task[1:]))
                for i, task in enumerate(self._payload(job[2]).evaluate())
            ]
            for task in tasks:
                freeze(task)  # refuses arguments that are no values
        except BaseException as error:
            failed = ("result", name, 0, False, describe_error(error))
            rows = [failed, ("finish", name)]
        else:
            rows = [*tasks, ("left", name, len(tasks)) if tasks else ("finish", name)]
        self._work().write_all([("waiting", *job[1:]), *rows], txn=txn)

    def _compute(self, job: Any, txn: WorkTransaction) -> None:
        """Compute a task, and write its result."""
        result = run_task(_function, job[3], job[4], self._place)
        run_sync(partial(self.record, self._work(), job, *result, txn))

    async def record(self, door: Any, job: Any, ok: bool, value: Any, txn: WorkTransaction) -> None:
        """Write the result of a task; with the last one the entry can be finished."""
        _, name, number, *_ = job
        _, _, left = await maybe_await(door.take(("left", name, int), txn=txn))
        rest = ("left", name, left - 1) if left > 1 else ("finish", name)
        await maybe_await(door.write_all([("result", name, number, ok, value), rest], txn=txn))

    def _place(self) -> tuple[Capi, Container]:
        from tupelo.models.xvsm.capi import Capi

        container = self._container()
        return Capi(container.owner), container

    async def assign(self, names: list[str], wait: float | None) -> AssignedTask | None:
        """A task for a helper that computes these functions; None if there is none before the
        timeout."""
        work = self._work()
        port, txn = port_of(work), work.transaction()
        wanted = ("task", str, int, OneOf(*names), tuple)
        try:
            query = port.query(wanted, True, wait, False, 1, txn, None, False)
            found = await port.fetch(query.replace(known=False))
        except BaseException:
            with suppress(TupeloError):
                port.abort(txn.core_state)
            raise
        if not found:
            port.abort(txn.core_state)
            return None
        return AssignedTask(self, txn, thaw(found[0].shape, found[0].fields, stand_ins=True))

    def _finish(self, name: str) -> None:
        """Write the finished entry to the container, and remove its work, in one transaction."""
        container, work = self._container(), self._work()
        txn = container.owner.begin(None)
        try:
            # The container must commit before the work space: `begin` looks at the container last,
            # and must find each key in one of the two.
            container.space.count(txn=txn)
            waiting = work.take((self._waiting[0], name, *self._waiting[2:]), wait=0, txn=txn)
            if waiting is None:
                SharedTransaction.abort(txn)
                return
            _, _, stored, at, *_ = waiting
            results = work.take_all(("result", name, *_RESULT[2:]), txn=txn)
            out = self._outcome(stored, sorted(results, key=lambda result: result[2]))
            try:
                container.space.write(out, txn=txn, at=at, wait=None)
            except SpaceClosed:
                raise
            except TupeloError as error:
                out = self._failed(stored, *describe_error(error))
                container.space.write(out, txn=txn, wait=None)
            with self._coming_out:
                SharedTransaction.commit(txn)
        except BaseException:
            with suppress(TupeloError):
                SharedTransaction.abort(txn)
            raise
        for registration in container.aspects.at(Point.POST_WRITE):
            if isinstance(registration.aspect, Notification):
                registration.aspect.report_finished(self._payload(out))

    def _outcome(self, stored: Any, results: list[Any]) -> Any:
        for result in results:
            if not result[3]:
                return self._failed(stored, *result[4])
        carrier = self._payload(stored)
        try:
            carrier.finalize([result[4] for result in results])
            freeze(carrier)
        except BaseException as error:
            return self._failed(stored, *describe_error(error))
        return self._with_fields(stored, carrier)

    def _failed(self, stored: Any, reason: str, detail: str) -> Any:
        return self._with_fields(stored, ActiveError(self._payload(stored), reason, detail))

    def _payload(self, stored: Any) -> Any:
        return self._container().value(stored)

    def _with_fields(self, stored: Any, payload: Any) -> Any:
        """The payload with the fields of the coordinators in front."""
        width = self._container().width
        return (*stored[:width], payload) if width else payload


class AssignedTask:
    """A task that a helper elsewhere computes. A transaction holds it until there is a result."""

    def __init__(self, coordinator: ActiveCoordinator, txn: WorkTransaction, job: Any) -> None:
        self._coordinator = coordinator
        self._txn = txn
        self._port = port_of(coordinator.aio)
        self.job = job

    async def finish(self, ok: bool, value: Any) -> None:
        """Record the result. LeaseLost or SpaceClosed if the task was given to another program."""
        try:
            await self._coordinator.record(self._coordinator.aio, self.job, ok, value, self._txn)
            await self._port.flushed(self._port.commit(self._txn.core_state))
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """Return the task, so that another program can compute it."""
        with suppress(TupeloError):
            self._port.abort(self._txn.core_state)


class ActiveSpace:
    """A container with an ActiveCoordinator as a space, for other models: a JavaSpace on it accepts
    ActiveEntries, which can be read and taken, and are notified, once their work is done. All
    operations but the writes are those of `cref.space`. The container must be in this program, and
    have no coordinators with fields, such as a key."""

    def __init__(self, capi: AnyCapi, cref: Container) -> None:
        container = capi.embedded.require(cref)
        active_of(container)
        if container.width:
            raise BadArgument("cref", "a container without keys, labels and places", cref)
        self._capi = capi
        self._container = container
        self._door: Any = container.aio if capi.is_async else container.space
        self.is_async = capi.is_async

    def __repr__(self) -> str:
        return f"<ActiveSpace of {self._container!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._door, name)

    @dual_api
    async def write(
        self,
        entry: Any,
        *,
        lease: None = None,
        txn: SharedTransaction | None = None,
        at: None = None,
        wait: float | None = 0,
        to: None = None,
    ) -> Any:
        """Write an ActiveEntry, perhaps in a transaction over several spaces. Cancelling its lease
        before the work begins removes it. There is always room for it, and the finished entry lives
        for ever."""
        return (await self._write_all([entry], txn, lease=lease, at=at, to=to))[0]

    @dual_api
    async def write_all(
        self,
        entries: list[Any],
        *,
        lease: None = None,
        txn: SharedTransaction | None = None,
        at: None = None,
        wait: float | None = 0,
        to: None = None,
    ) -> list[Any]:
        """Write several ActiveEntries, all or none."""
        return await self._write_all(list(entries), txn, lease=lease, at=at, to=to)

    async def _write_all(self, entries: list[Any], txn: Any, **options: Any) -> list[Any]:
        if txn is not None and not isinstance(txn, SharedTransaction):
            raise BadArgument("txn", "one that may span spaces, such as tupelo.transaction()", txn)
        for name, value in options.items():
            if value is not None:
                raise BadArgument(name, "None, for what is worked on", value)
        write = self._capi.write(self._container, 0, txn, *entries)
        leases: list[Any] = await maybe_await(write)
        return leases

    @dual_api
    async def close(self) -> None:
        """Does nothing: the Capi closes the container."""


def active_of(container: Container) -> ActiveCoordinator:
    """The ActiveCoordinator of a container. BadArgument if it has none."""
    active = container.active
    if not isinstance(active, ActiveCoordinator):
        raise BadArgument("cref", "a container with an ActiveCoordinator", container)
    return active


def current() -> tuple[Capi, Container | RemoteContainer]:
    """To be called by a task: the Capi and the container for which it is run_task, so that it can
    write further ActiveEntries."""
    place: WorkPlace | None = getattr(_here, "place", None)
    if place is None:
        raise BadArgument("current", "called by a task of an ActiveEntry", None)
    return place()


def run_task(
    find: Callable[[str], Any], name: str, arguments: tuple[Any, ...], place: WorkPlace
) -> tuple[bool, Any]:
    """Run a task: True and its result, or False and the description of its error."""
    _here.place = place
    try:
        value = find(name)(*arguments)
        freeze(("result", name, 0, True, value))  # refuses what is no value
    except BaseException as error:  # A task may call sys.exit(), which ends the task only.
        return False, describe_error(error)
    finally:
        _here.place = None
    return True, value


def name_of_task(function: Any, argument: str = "task") -> str:
    """The name under which a function is stored. BadArgument if it is not found by its name."""
    where = name_of(function)
    if found_by(where) is not function or not callable(function):
        raise BadArgument(argument, "a function that a module has by its name", function)
    return where


def _function(where: str) -> Any:
    found = found_by(where)
    if not callable(found):
        raise LookupError(f"there is no function {where!r} in this program")
    return found


def describe_error(error: BaseException) -> tuple[str, str]:
    """The summary and the traceback of an error."""
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
