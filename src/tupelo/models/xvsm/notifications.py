"""Notifications: a listener is called for operations on a container, by aspects after them.

The listener runs on a thread (or task) of its own, one call after the other, after the transaction
of the operation has committed; operations that were rolled back are not reported. Concurrent
operations may be reported in another order than the container has them. When `backlog_max` reports
wait, the oldest is dropped and counted in `dropped`. A listener that raises is called no more;
`error` has the reason.

Reports have the name of the operation: "shift" has the written entries, and "destroy" is the
operation destroy. With `every_removal`, "destroy" is reported for each entry that leaves for good,
one by one and in order: taken, destroyed, shifted out, expired, by any API, or left when the
container is destroyed. An entry that a transaction takes leaves with the commit; an entry that a
client elsewhere takes leaves when the client has received it.

An entry for an ActiveCoordinator is reported as written when its work is done: before that, it
cannot be found.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument
from tupelo.models.xvsm.aspects import ChangeSignal, Point, Registration, Request
from tupelo.models.xvsm.container import Container, Entry
from tupelo.space.dual_api import run_sync
from tupelo.space.query import check_count
from tupelo.space.session import Seen
from tupelo.values.checks import check_bool
from tupelo.values.entry import Entry as CoreEntry
from tupelo.values.entry import thaw

if TYPE_CHECKING:
    from tupelo.models.xvsm.capi import AnyCapi

logger = logging.getLogger("tupelo")

OPERATIONS = ("read", "write", "take", "shift", "destroy")
Listener = Callable[[Any, str, list[Any]], object]


NotificationReport = tuple[str, list[Any]]
"""The name of an operation, and its entries."""


class ListenerQueue:
    """Calls a listener with reports, at most `times`."""

    def __init__(self, is_async: bool, listener: Listener, times: int | None) -> None:
        if not callable(listener):
            raise BadArgument(
                "listener", "a function of a notification, a name and entries", listener
            )
        if times is not None:
            check_count(times, "times")
        self.error: Exception | None = None
        self.dropped = 0
        self.active = True
        self._is_async = is_async
        self._listener = listener
        self._left = times

    def destroy(self) -> None:
        """End the notification: no further calls."""
        raise NotImplementedError

    async def _tell(self, report: NotificationReport) -> bool:
        """Call the listener. False if it gets no further reports."""
        try:
            answer = self._listener(self, *report)
            if asyncio.iscoroutine(answer):
                if not self._is_async:
                    answer.close()
                    raise TypeError("an async listener needs an AsyncCapi")
                await answer
        except Exception as error:
            logger.exception("a notification's listener raised; it is called no more")
            self.error = error
            self.destroy()
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.destroy()
        return self.active


class Notification(ListenerQueue):
    """A registered listener: an aspect at the points after its operations."""

    def __init__(
        self,
        capi: AnyCapi,
        container: Container,
        listener: Listener,
        times: int | None,
        every_removal: bool = False,
        backlog_max: int = 10_000,
    ) -> None:
        super().__init__(capi.is_async, listener, times)
        self.container = container
        self._memory = Seen() if every_removal else None
        self._ending = False
        self.registration: Registration | None = None
        self._embedded = capi.embedded
        self._backlog_max = backlog_max
        self._backlog: deque[NotificationReport] = deque()
        self._lock = threading.Lock()
        self._changed = ChangeSignal(capi.embedded.clock)

    def __repr__(self) -> str:
        return f"<Notification of {self.container!r}>"

    def start(self, calls: bool = True) -> None:
        """Start calling the listener, unless an aspect has skipped the registration. Without
        `calls`, the reports are fetched by `next_report`."""
        self.container.endings[self._end] = None
        if self._memory is not None:
            self.container.port.listen_to_removals(self._removed, self._memory)
        if self.registration is None or self.container.destroyed:
            self.destroy()
        elif calls and self._is_async:
            self._task = asyncio.ensure_future(self._serve())
        elif calls:
            serve = partial(run_sync, self._serve)
            threading.Thread(target=serve, name="tupelo-notification", daemon=True).start()

    # As an aspect

    def post_read(self, request: Request) -> None:
        """Report the result of the operation."""
        self._after(request, request.result)

    def post_take(self, request: Request) -> None:
        """Report the result of the operation."""
        self._after(request, request.result)

    def post_write(self, request: Request) -> None:
        """Report the entries of the operation."""
        if self.container.active is None:
            self._after(request, request.entries)

    def report_finished(self, entry: Any) -> None:
        """The work of an entry is done: report it as written."""
        self._add("write", [entry])

    def post_shift(self, request: Request) -> None:
        """Report the entries of the operation."""
        self._after(request, request.entries)

    def post_destroy(self, request: Request) -> None:
        """Report the destroyed entries of the operation."""
        if self._memory is None:
            self._after(request, request.values.get("destroyed", []))

    def _after(self, request: Request, entries: list[Any]) -> None:
        values = [entry.value if isinstance(entry, Entry) else entry for entry in entries]
        operation = request.operation

        def end(committed: bool | None) -> None:
            if committed:
                self._add(operation, values)

        if request.transaction is not None:  # always, for an operation of a container
            request.transaction.at_end(end)

    # Removals

    def _removed(self, entry: CoreEntry) -> None:
        """Called on any thread, under the lock of the space."""
        self._add("destroy", [self.container.value(thaw(entry.shape, entry.fields, True))])

    def _end(self) -> None:
        """The container is closed. If it was destroyed, its remaining entries are still
        reported."""
        if self._memory is None or not self.container.destroyed:
            self.destroy()
            return
        for entry in self.container.port.entries(held=True):
            self._removed(entry)
        self._leave()
        self._ending = True
        self._changed.tell()

    async def on_disk(self) -> None:
        """Wait until the reported removals are on disk."""
        port = self.container.port
        if self._memory is not None and port.durable and not port.closed:
            if self._is_async:
                await port.flushed(port.position)
            else:
                port.flush(port.position)

    # Telling

    def _add(self, operation: str, entries: list[Any]) -> None:
        with self._lock:
            if not self.active:
                return
            self._backlog.append((operation, entries))
            if len(self._backlog) > self._backlog_max:
                self._backlog.popleft()
                self.dropped += 1
        self._changed.tell()

    async def _serve(self) -> None:
        while (report := await self.next_report()) is not None:
            await self.on_disk()
            if not await self._tell(report):
                return

    async def next_report(self) -> NotificationReport | None:
        """Wait for the next report; None if there will be none."""
        while True:
            count = self._changed.count
            report = self.waiting_report()
            if report is not None or not self.active:
                return report
            if self._ending:
                self.active = False
                return None
            await self._changed.after(count, None, self._is_async)

    def waiting_report(self) -> NotificationReport | None:
        """The next report, or None."""
        with self._lock:
            return self._backlog.popleft() if self._backlog else None

    def put_back(self, report: NotificationReport) -> None:
        """Return a report that was not sent."""
        self._backlog.appendleft(report)

    def destroy(self) -> None:
        self._leave()
        with self._lock:
            self.active = False
            self._backlog.clear()
        self._changed.tell()

    def _leave(self) -> None:
        """Remove the registration."""
        if self.container.endings.pop(self._end, self) is self:
            return
        if self._memory is not None:
            self.container.port.ignore_removals(self._removed, self._memory)
        if self.registration is not None:
            self.container.aspects.remove(self.registration, self.registration.points)
            self._embedded.update_fast_paths()


def check_operations(operations: tuple[str, ...], every_removal: object) -> list[Point]:
    """The points of these operations. BadArgument for other names."""
    check_bool("every_removal", every_removal)
    if every_removal and "destroy" not in operations:
        raise BadArgument("every_removal", 'False, if "destroy" is not listened to', every_removal)
    if not operations:
        raise BadArgument("operations", f"some of {', '.join(OPERATIONS)}", operations)
    for operation in operations:
        if operation not in OPERATIONS:
            raise BadArgument("operations", f"some of {', '.join(OPERATIONS)}", operation)
    return [Point(f"post_{operation}") for operation in dict.fromkeys(operations)]
