"""Registering: the operations of the Capi that add and remove aspects, and notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tupelo.errors import BadArgument
from tupelo.models.xvsm.around import Around
from tupelo.models.xvsm.aspects import Point, Registration, Request, check_points
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.notifications import Notification, check_operations
from tupelo.models.xvsm.transactions import at_end
from tupelo.space.either import either


class Registering(Around):
    """Aspects come and go by operations, which have aspects around them as any other."""

    @either
    async def create_notification(
        self,
        cref: Container,
        listener: Callable[[Notification, str, list[Any]], object],
        *operations: str,
        times: int | None = None,
    ) -> Notification:
        """Call `listener(notification, operation, entries)` after each of these operations on the
        container ("read", "write", "take", "shift", "destroy"); at most `times`.

        A notification is an aspect: those before and after `add_aspect` are asked.
        """
        container = self.embedded.require(cref)
        points = check_operations(operations)
        notification = Notification(self, container, listener, times)
        notification.registration = await self._add(container, points, notification)
        notification.start()
        return notification

    @either
    async def add_aspect(
        self, cref_or_site: Container | None, points: Any, aspect: Any
    ) -> Registration:
        """Register an aspect at points of a container, or (with the site) of the whole space."""
        _, allowed = self._where(cref_or_site)
        return await self._add(cref_or_site, check_points(points, allowed, aspect), aspect)

    async def _add(
        self, cref_or_site: Container | None, points: list[Point], aspect: Any
    ) -> Registration:
        where, allowed = self._where(cref_or_site)

        async def work(request: Request) -> Registration:
            chosen = check_points(request.points, allowed, request.aspect)
            registration = Registration(request.aspect, chosen)
            where.add(registration, chosen)
            self.embedded.reconsider()
            self._unless_committed(request, lambda: where.remove(registration, chosen))
            return registration

        request = Request(
            "add_aspect", self, container=cref_or_site, aspect=aspect, points=list(points)
        )
        added: Registration = await self._around(request, work)
        return added

    @either
    async def remove_aspect(
        self, cref_or_site: Container | None, points: Any, registration: Registration
    ) -> None:
        """Remove an aspect from some or all of the points that it was added at."""
        where, allowed = self._where(cref_or_site)
        if not isinstance(registration, Registration):
            raise BadArgument("registration", "what add_aspect answered", registration)
        chosen = registration.points if points is None else check_points(points, allowed)

        async def work(request: Request) -> None:
            removed = where.remove(registration, check_points(request.points, allowed))
            if not removed:
                raise BadArgument("points", "where the aspect is", points)
            self.embedded.reconsider()
            self._unless_committed(request, lambda: where.add(registration, removed))

        request = Request(
            "remove_aspect",
            self,
            container=cref_or_site,
            aspect=registration.aspect,
            points=list(chosen),
        )
        await self._around(request, work)

    def _unless_committed(self, request: Request, undo: Callable[[], object]) -> None:
        """If aspects stop the operation, do this."""

        def end(committed: bool | None) -> None:
            if not committed:
                undo()
                self.embedded.reconsider()

        if request.transaction is not None:
            at_end(request.transaction, end)
