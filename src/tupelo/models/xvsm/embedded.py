"""The embedded space: the containers of one program, and the registry of their names.

The registry is a space, so creating and destroying containers takes part in transactions. With a
folder it is durable, with a file for each container.
"""

from __future__ import annotations

import logging
import random as chance
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from tupelo.aio import Space as AsyncSpace
from tupelo.errors import (
    BadArgument,
    ContainerError,
    ContainerNotFound,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
)
from tupelo.federation.hosts.core import HostCore
from tupelo.models.xvsm.aspects import LOCAL_POINTS, Interceptors
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.coordinators import Coordinator, KeyCoordinator, found_by, name_of
from tupelo.space.blocking import Space
from tupelo.space.clock import Clock, system_clock
from tupelo.space.delivery import Prepared
from tupelo.space.port import Port, port_of
from tupelo.space.shared import SharedTransaction
from tupelo.space.twophase import DecisionLog, Outcome
from tupelo.values.holder import Holder
from tupelo.values.parts import ANY

logger = logging.getLogger("tupelo")

_FILE = re.compile(r"([0-9a-f]{32})\.tupelo.*")  # of a container

ENDING_THREADS = 4
"""How many threads end transactions of clients when that waits for the disk."""

ContainerRow = tuple[str, str, str, int | None, tuple[Any, ...]]
"""A row of the registry: "container", its name, id, size and coordinators."""


class Embedded:
    """The state that all Capis of one embedded space share."""

    def __init__(
        self, path: str | Path | None, clock: Clock | None, random: chance.Random | None
    ) -> None:
        if random is not None and not hasattr(random, "sample"):
            raise BadArgument("random", "a random.Random", random)
        self.path = None if path is None else Path(path)
        self.clock: Clock = clock or system_clock
        self.random = random or chance.Random()
        is_known = False
        if self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            is_known = (self.path / "containers.tupelo").exists()
        names = KeyCoordinator()
        names.position = 1
        self.registry = Space(
            "containers",
            path=None if self.path is None else self.path / "containers.tupelo",
            order=names,
            clock=self.clock,
        )
        self._log = Space(
            "decisions",
            path=None if self.path is None else self.path / "decisions.tupelo",
            clock=self.clock,
        )
        self._decisions = DecisionLog(self._log)
        self._mark = f"xvsm.{port_of(self._log).id}."
        self.settle(self.registry)
        if is_known:  # Without a registry it is unknown which files are needed.
            self._sweep()
        self.registry_aio = AsyncSpace(self.registry)
        self.aspects = Interceptors()
        self.lock = threading.Lock()
        self._containers: dict[str, Container] = {}
        self._ending: ThreadPoolExecutor | None = None
        self.closed = False
        self.site: HostCore | None = None  # the host that offers the containers
        # Open transactions that create or destroy a container, by its id.
        self._made_in: dict[str, SharedTransaction] = {}
        self._destroyed_in: dict[str, SharedTransaction] = {}

    def begin(
        self,
        seconds: float | None,
        parent: SharedTransaction | None = None,
        txn_id: str | None = None,
    ) -> SharedTransaction:
        """A transaction. With a folder, its decision is recorded there. A transaction with a given
        id that is prepared when the program crashes is in doubt, and is settled by the caller that
        gave the id."""
        return SharedTransaction(
            self.clock,
            seconds,
            txn_id=txn_id or self._mark + uuid4().hex,
            parent=parent,
            decisions=None if self.path is None else self._decisions,
        )

    def settle(self, space: Space) -> None:
        """Settle the transactions that a crash has left undecided in a space."""
        if self.path is not None:
            self._decisions.settle(port_of(space), self._outcome)

    def _outcome(self, txn_id: str) -> Outcome | None:
        """The outcome of a transaction before a crash; None if another party decides."""
        outcome = self._decisions.recorded_outcome(txn_id)
        return outcome if outcome == "committed" or txn_id.startswith(self._mark) else None

    def end_soon(self, work: Callable[[], object]) -> Future[object] | None:
        """End transactions: at once in memory, otherwise on another thread, because of the disk.
        `close` waits for it."""
        with self.lock:
            if self.path is not None and not self.closed:
                if self._ending is None:
                    self._ending = ThreadPoolExecutor(ENDING_THREADS, "tupelo-xvsm")
                return self._ending.submit(work)
        work()
        return None

    def deliveries_in_doubt(self) -> dict[Holder, list[tuple[Port, Prepared]]]:
        """The deliveries that were neither confirmed nor given back before a crash, by holder. All
        containers are opened, except those whose coordinators are unknown."""
        found: dict[Holder, list[tuple[Port, Prepared]]] = {}
        for row in self.rows():
            try:
                spaces = self.opened(row).spaces
            except ContainerNotFound as error:
                logger.warning("the container %r is left alone: %s", row[1], error)
                continue
            for port in map(port_of, spaces):
                for delivery in port.deliveries_in_doubt():
                    found.setdefault(delivery.holder, []).append((port, delivery))
        return found

    def end_delivery(self, branches: list[tuple[Port, Prepared]], confirmed: bool) -> None:
        """Confirm or give back a delivery that was in doubt, in all of its spaces."""
        decided = confirmed and len(branches) > 1
        if decided:
            self._decisions.record([(part.txn.id, port.id) for port, part in branches])
        for port, part in branches:
            with suppress(TransactionEnded):
                port.flush(part.confirm() if confirmed else part.give_back())
            if decided:
                self._decisions.forget(part.txn.id, port.id)

    def make(
        self,
        name: str,
        size: int | None,
        coordinators: list[Coordinator],
        optional: list[Coordinator],
    ) -> tuple[Container, ContainerRow]:
        """A new container. It can be found once its row is in the registry."""
        given = [*coordinators, *optional]
        free = [c for c in given if isinstance(c, Coordinator) and c.container is None]
        try:
            container = Container(self, name, uuid4().hex, size, coordinators, optional)
        except BaseException:
            _release(free)
            raise
        try:
            specs = tuple([_spec(coordinator) for coordinator in container.given])
            with self.lock:
                self._containers[container.id] = container
                self._ready(container)
        except BaseException:
            self.unmake(container)
            raise
        return container, ("container", name, container.id, size, specs)

    def unmake(self, container: Container) -> None:
        """Drop a container whose creation failed, and release its coordinators."""
        self.drop(container)
        _release(list(container.coordinators.values()))

    def opened(self, row: ContainerRow) -> Container:
        """The container of a row, opened from its file if it is not open yet."""
        _, name, container_id, size, specs = row
        with self.lock:
            container = self._containers.get(container_id)
            if container is None:
                made = [(_recreated(*spec), spec[2]) for spec in specs]
                container = Container(
                    self,
                    name,
                    container_id,
                    size,
                    [c for c, optional in made if not optional],
                    [c for c, optional in made if optional],
                )
                self.settle(container.space)
                self._containers[container_id] = container
                self._ready(container)
            return container

    def _ready(self, container: Container) -> None:
        container.fast_owner = self._fast_owner(container)
        for coordinator in container.given:
            coordinator.opened()

    def update_fast_paths(self) -> None:
        """Aspects were added or removed: set for each container whether the fast path applies."""
        with self.lock:
            for container in self._containers.values():
                container.fast_owner = self._fast_owner(container)

    def _fast_owner(self, container: Container) -> Embedded | None:
        everywhere = any(self.aspects.at(point) for point in LOCAL_POINTS)
        busy = container.aspects or everywhere or container.active is not None
        return None if busy or container.id in self._made_in else self

    # Containers that are created and destroyed in transactions

    def note_created(self, container: Container, txn: SharedTransaction) -> None:
        """The transaction creates this container: others do not see it before the commit."""

        def end(committed: bool | None) -> None:
            self._made_in.pop(container.id, None)
            if committed is False:
                self.unmake(container)
            else:
                self.update_fast_paths()

        self._made_in[container.id] = _root(txn)
        self.update_fast_paths()
        txn.at_end(end)

    def note_destroyed(self, container: Container, txn: SharedTransaction) -> None:
        """The transaction destroys this container."""

        def end(committed: bool | None) -> None:
            self._destroyed_in.pop(container.id, None)
            if committed:
                self.drop(container)

        self._destroyed_in[container.id] = _root(txn)
        txn.at_end(end)

    def require_exists(self, container: Container, txn: SharedTransaction | None) -> None:
        """ContainerNotFound if the container does not exist for this transaction."""
        root = None if txn is None else _root(txn)
        if self._made_in.get(container.id, root) is not root:
            raise ContainerNotFound(
                f"the container {container.name!r} is being made in a transaction that is not "
                "committed"
            )
        if root is not None and self._destroyed_in.get(container.id) is root:
            raise ContainerNotFound(
                f"the container {container.name!r} was destroyed in this transaction"
            )

    def error_of_row(self, container: Container) -> TupeloError:
        """The error for a row that could not be taken from the registry."""
        name = container.name
        if container.id in self._destroyed_in:
            return ContainerError(
                f"another transaction destroys the container {name!r}, and may yet roll back"
            )
        if self.registry.count(row_of(container)):
            return ContainerError(f"another transaction holds the container {name!r}: try again")
        return ContainerNotFound(f"the container {name!r} was destroyed")

    def drop(self, container: Container) -> None:
        """Destroy the container; operations that wait there fail."""
        with self.lock:
            self._containers.pop(container.id, None)
        container.destroyed = True
        container.fast_owner = None
        _close(container)
        self._remove_files(container.id)

    def _remove_files(self, container_id: str) -> None:
        if self.path is not None:
            for file in self.path.glob(f"{container_id}.tupelo*"):
                with suppress(OSError):
                    file.unlink()

    def _sweep(self) -> None:
        """Remove files of containers that are not in the registry, because of a crash."""
        if self.path is None or self.registry.in_doubt():
            return  # The outcome for some containers is not known yet.
        known = {row[2] for row in self.rows()}
        for file in self.path.iterdir():
            found = _FILE.fullmatch(file.name)
            if found is not None and found[1] not in known:
                with suppress(OSError):
                    file.unlink()

    def known(self, container_id: str) -> Container | None:
        """The open container with this id, also one that a transaction is creating; else None."""
        with self.lock:
            return self._containers.get(container_id)

    def rows(self) -> list[ContainerRow]:
        """All rows of the registry."""
        return self.registry.read_all(("container", str, str, ANY, tuple))

    def clear(self) -> None:
        """Destroy all containers, one after the other, without opening closed ones. Containers that
        open transactions create or destroy are left alone."""
        for _, name, container_id, _, _ in self.rows():
            row = ("container", name, container_id, ANY, tuple)
            if self.registry.take(row, wait=0) is not None:
                with self.lock:
                    container = self._containers.get(container_id)
                if container is not None:
                    self.drop(container)
                self._remove_files(container_id)

    def close(self) -> None:
        """Close all containers and the registry, after the transactions that are ending."""
        with self.lock:
            self.closed = True
            ending, self._ending = self._ending, None
        if ending is not None:
            ending.shutdown()
        with self.lock:
            containers = list(self._containers.values())
            self._containers.clear()
        for container in containers:
            _close(container)
        self.registry.close()
        self._log.close()

    def require(self, cref: object) -> Container:
        """The container of a reference. BadArgument or ContainerNotFound if it is not one of this
        space."""
        if not isinstance(cref, Container) or cref.owner is not self:
            raise BadArgument("cref", "a container of this space", cref)
        if cref.destroyed:
            raise ContainerNotFound(f"the container {cref.name!r} was destroyed")
        return cref


def error_of_closed(container: Container, error: SpaceClosed) -> TupeloError:
    """The error for an operation on a container whose space is closed."""
    if container.destroyed:
        return ContainerNotFound(f"the container {container.name!r} was destroyed")
    return error


def row_of(container: Container) -> tuple[Any, ...]:
    """The template of a container's row."""
    return ("container", container.name, container.id, ANY, tuple)


def _root(txn: SharedTransaction) -> SharedTransaction:
    return list(txn.line())[-1]


def _close(container: Container) -> None:
    try:
        container.close()
    except Exception:
        logger.exception("a coordinator of %r could not be closed", container)
    finally:
        container.space.close()


def _release(coordinators: list[Coordinator]) -> None:
    """Release coordinators whose container was not created."""
    for coordinator in coordinators:
        coordinator.container = coordinator.position = None
        coordinator.optional = False


def _spec(coordinator: Coordinator) -> tuple[Any, ...]:
    """A coordinator as a registry describes it."""
    return (
        name_of(type(coordinator)),
        coordinator.name,
        coordinator.optional,
        coordinator.options(),
    )


def _recreated(where: str, name: str, optional: bool, options: tuple[Any, ...]) -> Coordinator:
    """A coordinator as a registry describes it. Its class must be known: nothing is imported."""
    found = found_by(where)
    if not isinstance(found, type) or not issubclass(found, Coordinator):
        raise ContainerNotFound(
            f"the container has a coordinator of the class {where!r}, which is not known in this "
            "program: import it, and ask again"
        )
    try:
        made: Coordinator = found(*options, name=name)
    except Exception as error:
        raise ContainerNotFound(
            f"the container has a coordinator of the class {where!r}, which could not be made of "
            f"{options!r} and name={name!r}: {type(error).__name__}: {error}"
        ) from error
    return made
