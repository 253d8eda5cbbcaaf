"""The ActiveCoordinator (section 8.3 of the thesis): entries that carry work.

An ActiveEntry says in `evaluate` what is to be computed: a list of tasks, each a function and its
arguments. Workers compute them; `finalize` is given the results in the same order; then the entry
can be read. If something fails, an ActiveError with the reason comes out in its stead.

Tasks and results are entries of a space beside the container, each taken in a transaction that
lasts until its result is written. So a worker that dies loses nothing, with a folder they outlive
the program, and hosts can share the work. For that functions go by name: they must be found in a
module that is loaded, and nothing else is ever run.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tupelo.aio import Space as AsyncSpace
from tupelo.errors import BadArgument, SpaceClosed, TupeloError
from tupelo.models.either import settled
from tupelo.models.xvsm.coordinators import Coordinator
from tupelo.models.xvsm.selectors import Selector
from tupelo.space.blocking import Space
from tupelo.space.shared import SharedTransaction
from tupelo.values.entry import freeze
from tupelo.values.kind import entry as named_entry
from tupelo.values.lease import Lease
from tupelo.values.template import Template

if TYPE_CHECKING:
    from tupelo.models.xvsm.around import Around
    from tupelo.models.xvsm.capi import Capi
    from tupelo.models.xvsm.container import Container

logger = logging.getLogger("tupelo")

Task = tuple[Any, ...]
"""A function, and its arguments."""

_ENTRY = ("active", str, object, object)  # id, as it is to be kept, its place
_WAITING = ("waiting", str, int, object, object)  # id, tasks, as it is to be kept, its place
_TASK = ("task", str, int, str, tuple)  # id, number, function, arguments
_RESULT = ("result", str, int, bool, object)  # id, number, whether it went well, what it gave
_WORK = Template(_ENTRY) | Template(_TASK)

_here = threading.local()


@dataclass
class ActiveEntry:
    """An entry that carries work. Subclass it, as a dataclass."""

    def evaluate(self) -> list[Task]:
        """What is to be computed, each on its own: `[(function, argument, ...), ...]`."""
        raise NotImplementedError

    def finalize(self, results: list[Any]) -> None:
        """All is computed: make of the results what a reader of this entry shall find."""


@named_entry("xvsm.active_error")
@dataclass
class ActiveError:
    """What comes out in the stead of an entry whose work failed."""

    entry: Any = None
    reason: str | None = None
    detail: str | None = None


class ActiveCoordinator(Coordinator):
    """Takes ActiveEntries only; they can be found once their work is done.

    At most `workers` threads work, as many as there is work for.
    """

    default_name = "active"
    works = True
    commutes = True

    def __init__(self, workers: int = 16, *, name: str | None = None) -> None:
        super().__init__(name=name)
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise BadArgument("workers", "a whole number above 0", workers)
        self._workers_max = workers
        self._lock = threading.Lock()
        self._workers = self._idle = 0
        self.work: Space | None = None
        self._aio: AsyncSpace | None = None

    def options(self) -> tuple[Any, ...]:
        return (self._workers_max,)

    def needs_all(self, selector: Selector) -> bool:
        return False

    def check(self, payload: Any) -> None:
        if not isinstance(payload, ActiveEntry):
            raise BadArgument(
                "entry", "an ActiveEntry, for the container has an ActiveCoordinator", payload
            )

    # The life of its workers

    def opened(self) -> None:
        container = self._container()
        path = container.path
        self.work = Space(
            f"{container.name}.work",
            path=None if path is None else path.with_name(path.name + ".work"),
            clock=container.owner.clock,
        )
        container.owner.settle(self.work)
        self._hire()

    def closed(self) -> None:
        if self.work is not None:
            self.work.close()
        if self._aio is not None:
            self._aio._flusher.close()

    def _hire(self) -> None:
        """One more worker, if all are busy and there may be more."""
        with self._lock:
            if self._idle or self._workers >= self._workers_max:
                return
            self._workers += 1
            self._idle += 1
        threading.Thread(target=self._run, name="tupelo-active", daemon=True).start()

    def _container(self) -> Container:
        assert self.container is not None
        return self.container

    # Work

    async def begin(
        self, capi: Around, made: list[tuple[Any, Any]], txn: SharedTransaction | None
    ) -> list[Lease]:
        """These entries are to be worked on; to cancel one's lease before that calls it off."""
        assert self.work is not None
        if capi.is_async and self._aio is None:
            self._aio = AsyncSpace(self.work)
        door: Any = self._aio if capi.is_async else self.work
        rows = [("active", uuid4().hex, stored, at) for stored, at in made]
        leases = await settled(door.write_all(rows, txn=txn))
        return list(leases)

    def _run(self) -> None:
        with suppress(SpaceClosed):
            while True:
                self._do_one()

    def _do_one(self) -> None:
        assert self.work is not None
        work = self.work
        with work.transaction() as txn:
            job = work.take(_WORK, txn=txn)
            with self._lock:
                self._idle -= 1
            try:
                self._hire()
                if job[0] == "active":
                    work.write_all(self._planned(*job[1:]), txn=txn)
                else:
                    work.write(self._computed(*job[1:]), txn=txn)
            finally:
                with self._lock:
                    self._idle += 1
        self._finish(job[1])

    def _planned(self, name: str, stored: Any, at: Any) -> list[Any]:
        """What an entry wants to be done; or that it could not say so."""
        carrier = self._payload(stored)
        try:
            tasks = [
                ("task", name, i, _name_of(task[0]), tuple(task[1:]))
                for i, task in enumerate(carrier.evaluate())
            ]
            for task in tasks:
                freeze(task)  # refuses arguments that are no values
            return [("waiting", name, len(tasks), stored, at), *tasks]
        except Exception as error:
            return [
                ("waiting", name, 1, stored, at),
                ("result", name, 0, False, _described(error)),
            ]

    def _computed(self, name: str, number: int, where: str, arguments: tuple[Any, ...]) -> Any:
        _here.coordinator = self
        try:
            value = _function(where)(*arguments)
            result = ("result", name, number, True, value)
            freeze(result)  # refuses what is no value
        except Exception as error:
            result = ("result", name, number, False, _described(error))
        finally:
            _here.coordinator = None
        return result

    def _finish(self, name: str) -> None:
        """If all results are in, let the entry come out, in one step with their going."""
        assert self.work is not None
        container = self._container()
        with container.owner.begin(None) as txn:
            # Another worker may be looking; it then sees fewer results than there are by now.
            waiting = self.work.take(("waiting", name, *_WAITING[2:]), if_exists=True, txn=txn)
            if waiting is None:
                return
            _, _, count, stored, at = waiting
            results = self.work.take_all(("result", name, *_RESULT[2:]), txn=txn)
            if len(results) < count:
                txn.abort()
                return
            out = self._outcome(stored, sorted(results, key=lambda result: result[2]))
            try:
                container.space.write(out, txn=txn, at=at, wait=None)
            except SpaceClosed:
                raise
            except TupeloError as error:
                failed = self._failed(stored, *_described(error))
                container.space.write(failed, txn=txn, wait=None)

    def _outcome(self, stored: Any, results: list[Any]) -> Any:
        for result in results:
            if not result[3]:
                return self._failed(stored, *result[4])
        carrier = self._payload(stored)
        try:
            carrier.finalize([result[4] for result in results])
            freeze(carrier)
        except Exception as error:
            return self._failed(stored, *_described(error))
        return self._framed(stored, carrier)

    def _failed(self, stored: Any, reason: str, detail: str) -> Any:
        return self._framed(stored, ActiveError(self._payload(stored), reason, detail))

    def _payload(self, stored: Any) -> Any:
        return self._container().value(stored)

    def _framed(self, stored: Any, payload: Any) -> Any:
        """With the same kept fields in front."""
        width = self._container().width
        return (*stored[:width], payload) if width else payload


def current() -> tuple[Capi, Container]:
    """For a function that is a task: the Capi and the container that it works for, so that it may
    write further ActiveEntries."""
    from tupelo.models.xvsm.capi import Capi

    coordinator: ActiveCoordinator | None = getattr(_here, "coordinator", None)
    if coordinator is None or coordinator.container is None:
        raise BadArgument("current", "called by a task of an ActiveEntry", None)
    return Capi(coordinator.container.owner), coordinator.container


def _name_of(function: Any) -> str:
    where = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    try:
        known = _function(where)
    except LookupError:
        known = None
    if known is not function:
        raise BadArgument("task", "a function that a module has by its name", function)
    return where


def _function(where: str) -> Any:
    module, _, path = where.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise LookupError(f"there is no function {where!r} in this program")
    return found


def _described(error: Exception) -> tuple[str, str]:
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
