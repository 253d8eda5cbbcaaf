"""The embedded space: the containers of one program, and the registry that names them.

The registry is a space like any other, so creating and destroying containers takes part in
transactions. With a folder it is durable, with a file for each container.
"""

from __future__ import annotations

import random as chance
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from tupelo.aio import Space as AsyncSpace
from tupelo.errors import BadArgument, ContainerNotFound, SpaceClosed, TupeloError
from tupelo.models.xvsm.aspects import LOCAL_POINTS, Interceptors
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.coordinators import Coordinator, KeyCoordinator
from tupelo.models.xvsm.transactions import Transaction
from tupelo.space.blocking import Space
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.decisions import DecisionLog
from tupelo.space.shared import SharedTransaction
from tupelo.values.parts import ANY

_system_clock = SystemClock()

Row = tuple[str, str, str, int | None, tuple[Any, ...]]
"""In the registry: "container", its name, its id, its size, its coordinators."""


class Embedded:
    """What the doors of one embedded space share."""

    def __init__(
        self, path: str | Path | None, clock: Clock | None, random: chance.Random | None
    ) -> None:
        if random is not None and not hasattr(random, "sample"):
            raise BadArgument("random", "a random.Random", random)
        self.path = None if path is None else Path(path)
        self.clock: Clock = clock or _system_clock
        self.random = random or chance.Random()
        if self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)
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
        self._mark = f"xvsm.{self._log._operations.engine.id}."
        self.settle(self.registry)
        self.registry_aio = AsyncSpace(self.registry)
        self.aspects = Interceptors()
        self.lock = threading.Lock()
        self._containers: dict[str, Container] = {}

    def begin(self, seconds: float | None, parent: SharedTransaction | None = None) -> Transaction:
        """A transaction. With a folder, its decision is recorded there, in case of a crash."""
        return Transaction(
            self.clock,
            seconds,
            txn_id=self._mark + uuid4().hex,
            parent=parent,
            decisions=None if self.path is None else self._decisions,
        )

    def settle(self, space: Space) -> None:
        """Bring to its end what a crash has left undecided in a space that was opened again."""
        if self.path is not None:
            self._decisions.settle(space._operations, lambda txn: txn.startswith(self._mark))

    def make(
        self,
        name: str,
        size: int | None,
        coordinators: list[Coordinator],
        optional: list[Coordinator],
    ) -> tuple[Container, Row]:
        """A new container, which is known once its row is in the registry."""
        container = Container(self, name, uuid4().hex, size, coordinators, optional)
        specs = tuple(
            [
                (f"{type(c).__module__}:{type(c).__qualname__}", c.name, c.optional, c.options())
                for c in container.given
            ]
        )
        self._enter(container)
        return container, ("container", name, container.id, size, specs)

    def opened(self, row: Row) -> Container:
        """The container of a row: it is open already, or it is opened from its file."""
        _, name, container_id, size, specs = row
        with self.lock:
            container = self._containers.get(container_id)
            if container is None:
                made = [(_made_again(*spec), spec[2]) for spec in specs]
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

    def _enter(self, container: Container) -> None:
        with self.lock:
            self._containers[container.id] = container
            self._ready(container)

    def _ready(self, container: Container) -> None:
        container.quick = self._is_quick(container)
        for coordinator in container.given:
            coordinator.opened()

    def reconsider(self) -> None:
        """Aspects have come or gone: which containers have none to heed?"""
        with self.lock:
            for container in self._containers.values():
                container.quick = self._is_quick(container)

    def _is_quick(self, container: Container) -> bool:
        everywhere = any(self.aspects.at(point) for point in LOCAL_POINTS)
        return not container.aspects and not everywhere and container.active is None

    def drop(self, container: Container) -> None:
        """The container is no more; those who wait there are told."""
        with self.lock:
            self._containers.pop(container.id, None)
        container.destroyed = True
        container.quick = False
        container.close()
        if container.path is not None:
            for file in container.path.parent.glob(container.path.name + "*"):
                with suppress(OSError):
                    file.unlink()

    def rows(self) -> list[Row]:
        return self.registry.read_all(("container", str, str, ANY, tuple))

    def clear(self) -> None:
        """Destroy all containers, those that were not opened yet too."""
        for row in self.registry.take_all(("container", str, str, ANY, tuple)):
            with suppress(TupeloError):
                self.drop(self.opened(row))

    def close(self) -> None:
        with self.lock:
            containers = list(self._containers.values())
            self._containers.clear()
        for container in containers:
            container.close()
        self.registry.close()
        self.registry_aio._flusher.close()
        self._log.close()

    def require(self, cref: object) -> Container:
        """The container of a reference."""
        if not isinstance(cref, Container) or cref.owner is not self:
            raise BadArgument("cref", "a container of this space", cref)
        if cref.destroyed:
            raise ContainerNotFound(f"the container {cref.name!r} was destroyed")
        return cref


def gone(container: Container, error: SpaceClosed) -> TupeloError:
    """What to say of a container whose space is closed."""
    if container.destroyed:
        return ContainerNotFound(f"the container {container.name!r} was destroyed")
    return error


def _made_again(where: str, name: str, optional: bool, options: tuple[Any, ...]) -> Coordinator:
    """A coordinator as a registry describes it. Its class must be known: nothing is imported."""
    module, _, path = where.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, Coordinator):
        raise ContainerNotFound(
            f"the container has a coordinator of the class {where!r}, which is not known in this "
            "program: import it, and ask again"
        )
    made: Coordinator = found(*options, name=name)
    return made
