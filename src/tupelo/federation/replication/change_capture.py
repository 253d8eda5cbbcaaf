"""The change capture: what is written in a space of this host, through whatever door, and what goes
from there for good, in order. It is heard on any thread, and told on the loop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from threading import get_ident

from tupelo.federation.links.wire import MESSAGE_MAX
from tupelo.federation.replication.copies import encode_item
from tupelo.federation.replication.streams import Numbered
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.parts import ANY

logger = logging.getLogger("tupelo")

ITEM_BYTES_MAX = MESSAGE_MAX // 2
"""An entry that needs more bytes than this stays where it is."""
CONTENT_BYTES_MAX = ITEM_BYTES_MAX - 4 * 1024
"""What has at most so many bytes can be copied, with all that goes with it."""


class ChangeCapture:
    """A change capture on one space. `entries` are those that were told of and live, by their
    arrival; `only` says which are told of; `soon` is called on the loop when there is something to
    `draw`, until which it is `awake`. What comes after it has `begun` has greater numbers than
    this."""

    def __init__(
        self,
        hosted: HostedSpace,
        only: Callable[[Entry], bool] | None,
        soon: Callable[[], object],
    ) -> None:
        self.entries: dict[int, Entry] = {}
        self._hosted = hosted
        self._port = hosted.port
        self._only = only
        self._soon = soon
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._gone: list[Entry] = []
        self._memory = Seen()  # While there is one, the space says what is gone for good.
        self.awake = True
        port = self._port
        with port.atomic():
            self._news = port.subscribe(
                ANY, None, None, None, None, sys.maxsize, available=False, returned=False
            )
            port.listen_to_removals(self._removed, self._memory)
            self._first = port.entries(held=True)
            self.begun = port.latest_arrival
        self._loop.call_soon(soon)

    def close(self) -> None:
        self._port.end_subscription(self._news)
        self._port.ignore_removals(self._removed, self._memory)

    # On any thread, under the lock of the space

    def _removed(self, entry: Entry) -> None:
        self._gone.append(entry)
        self.wake()

    def wake(self) -> bool:
        """There is news."""
        if not self.awake:
            self.awake = True
            try:
                if get_ident() == self._thread:
                    self._loop.call_soon(self._soon)
                else:
                    self._loop.call_soon_threadsafe(self._soon)
            except RuntimeError:  # The loop is closed.
                return False
        return True

    # On the loop

    def draw(self, after: int) -> tuple[Numbered, list[int], int]:
        """What has come, with its number, which is beyond `after`; the numbers of what has gone;
        and the position at which all that is durable."""
        with self._port.atomic():
            came = [*self._first, *(notice.subject for notice in self._news.backlog)]
            self._first = []
            self._news.backlog.clear()
            gone, self._gone = self._gone, []
            self.awake = bool(came or gone)
            if not self.awake and not self._news.waiting and not self._news.ended:
                self._news.waiting.append(self)
            position = self._port.position
        items = []
        for entry in came:
            if not entry.ended and entry.arrival > after and self._is_wanted(entry):
                after = entry.arrival
                self.entries[after] = entry
                items.append((after, entry))
        numbers = []
        for entry in gone:
            if self.entries.get(entry.arrival) is entry:
                del self.entries[entry.arrival]
                numbers.append(entry.arrival)
        return items, numbers, position

    def adopt(self, numbers: set[int]) -> set[int]:
        """These were told of in an earlier life: those that are not there any more."""
        there = {entry.arrival: entry for entry in self._first if entry.arrival in numbers}
        self.entries.update(there)
        return numbers - there.keys()

    def _is_wanted(self, entry: Entry) -> bool:
        if self._only is not None and not self._only(entry):
            return False
        try:
            size = len(encode_item(entry, 0.0))
        except UnicodeEncodeError as error:
            logger.warning("an entry of %r is not copied: %s", self._hosted.name, error)
            return False
        if size > ITEM_BYTES_MAX:
            logger.warning(
                "an entry of %r is not copied: it has %d bytes, and %d can be copied",
                self._hosted.name,
                size,
                ITEM_BYTES_MAX,
            )
            return False
        return True
