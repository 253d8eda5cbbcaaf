"""Notifications: a listener is told of operations on a container, by aspects after them.

It is called from a thread (or task) of its own, one call after the other, after the transaction of
the operation is committed; of what was rolled back it never hears. What several threads do at once
it may hear in another order than the container has it. When `backlog_max` are yet to be told, the
oldest is dropped, and `dropped` counts it. A listener that raises is told no more; `error` says
why.

It hears of operations by their names: "shift" tells what was written, and "destroy" is the
operation, not what became of an entry. Who wants to know of all that leaves listens to take, shift
and destroy. An entry for an ActiveCoordinator is told as written when its work is done and it comes
out, for before that nobody can find it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument
from tupelo.models.xvsm.aspects import Point, Registration, Request
from tupelo.models.xvsm.container import Container, Entry
from tupelo.models.xvsm.transactions import at_end

if TYPE_CHECKING:
    from tupelo.models.xvsm.around import Around

logger = logging.getLogger("tupelo")

OPERATIONS = ("read", "write", "take", "shift", "destroy")
Listener = Callable[["Notification", str, list[Any]], object]


class Notification:
    """A registered listener, which is an aspect at the points after its operations."""

    def __init__(
        self,
        capi: Around,
        container: Container,
        listener: Listener,
        times: int | None,
        backlog_max: int = 10_000,
    ) -> None:
        if not callable(listener):
            raise BadArgument(
                "listener", "a function of a notification, a name and entries", listener
            )
        if times is not None and (
            isinstance(times, bool) or not isinstance(times, int) or times < 1
        ):
            raise BadArgument("times", "a whole number above 0, or None", times)
        self.container = container
        self.registration: Registration | None = None
        self.error: Exception | None = None
        self.dropped = 0
        self.active = True
        self._embedded = capi.embedded
        self._listener = listener
        self._left = times
        self._backlog_max = backlog_max
        self._backlog: deque[tuple[str, list[Any]]] = deque()
        self._wake = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        if capi.is_async:
            self._loop = asyncio.get_running_loop()
            self._come = asyncio.Event()

    def start(self) -> None:
        """Begin to tell, now that it is registered; it is not if an aspect has skipped that."""
        self.container.endings[self.destroy] = None
        if self.registration is None or self.container.destroyed:
            self.destroy()
        elif self._loop is not None:
            self._task = self._loop.create_task(self._serve_async())
        else:
            threading.Thread(target=self._serve, name="tupelo-notification", daemon=True).start()

    # As an aspect

    def post_read(self, request: Request) -> None:
        self._after(request, request.result)

    def post_take(self, request: Request) -> None:
        self._after(request, request.result)

    def post_write(self, request: Request) -> None:
        if self.container.active is None:
            self._after(request, request.entries)

    def came_out(self, entry: Any) -> None:
        """The work of an entry is done: only now is it written for those who look."""
        self._add("write", [entry])

    def post_shift(self, request: Request) -> None:
        self._after(request, request.entries)

    def post_destroy(self, request: Request) -> None:
        self._after(request, request.values.get("destroyed", []))

    def _after(self, request: Request, entries: list[Any]) -> None:
        told = [entry.value if isinstance(entry, Entry) else entry for entry in entries]
        operation = request.operation

        def end(committed: bool | None) -> None:
            if committed:
                self._add(operation, told)

        if request.transaction is not None:  # It is, around an operation of a container.
            at_end(request.transaction, end)

    # Telling

    def _add(self, operation: str, entries: list[Any]) -> None:
        with self._wake:
            if not self.active:
                return
            self._backlog.append((operation, entries))
            if len(self._backlog) > self._backlog_max:
                self._backlog.popleft()
                self.dropped += 1
            self._wake.notify()
        self._rouse()

    def _rouse(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._come.set)

    def _next(self) -> tuple[str, list[Any]] | None:
        return self._backlog.popleft() if self._backlog else None

    def _serve(self) -> None:
        while True:
            with self._wake:
                while self.active and not self._backlog:
                    self._wake.wait()
                told = self._next()
            if told is None or not self._tell(told):
                return

    def _tell(self, told: tuple[str, list[Any]]) -> Any:
        """Tell the listener; is it to be told of more?"""
        try:
            self._listener(self, *told)
        except Exception as error:
            self._failed(error)
        return self._goes_on()

    async def _serve_async(self) -> None:
        while True:
            self._come.clear()
            told = self._next()
            if told is None:
                if not self.active:
                    return
                await self._come.wait()
                continue
            try:
                answer = self._listener(self, *told)
                if asyncio.iscoroutine(answer):
                    await answer
            except Exception as error:
                self._failed(error)
            if not self._goes_on():
                return

    def _failed(self, error: Exception) -> None:
        logger.exception("a notification's listener raised; it is told no more")
        self.error = error
        self.destroy()

    def _goes_on(self) -> bool:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.destroy()
        return self.active

    def destroy(self) -> None:
        """Tell the listener no more."""
        self.container.endings.pop(self.destroy, None)
        if self.registration is not None:
            self.container.aspects.remove(self.registration, self.registration.points)
            self._embedded.reconsider()
        with self._wake:
            self.active = False
            self._backlog.clear()
            self._wake.notify_all()
        self._rouse()


def check_operations(operations: tuple[str, ...]) -> list[Point]:
    if not operations:
        raise BadArgument("operations", f"some of {', '.join(OPERATIONS)}", operations)
    for operation in operations:
        if operation not in OPERATIONS:
            raise BadArgument("operations", f"some of {', '.join(OPERATIONS)}", operation)
    return [Point(f"post_{operation}") for operation in dict.fromkeys(operations)]
