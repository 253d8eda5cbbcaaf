"""Pins: which messages of this host never give way. They are kept on disk, if the host has a
folder, until the message is taken or may go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from tupelo.errors import SpaceClosed
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.models.melon.collecting import PinnedRoom
from tupelo.models.melon.private import Pinned, Private
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.template import as_template


class Pins:
    """The pins of one post. They are changed on the loop."""

    def __init__(self, private: Private) -> None:
        self._private = private
        self._loop = asyncio.get_running_loop()
        self._records: dict[HostedSpace, dict[tuple[str, int], Entry]] = {}
        self._rooms: dict[HostedSpace, PinnedRoom] = {}
        self._memory = Seen()  # While there is one, a space says what is gone for good.

    def load(self, spaces: Iterable[HostedSpace], rooms: dict[HostedSpace, PinnedRoom]) -> None:
        """Those of an earlier life, as far as their messages are still there."""
        self._rooms = rooms
        kept = {(one.space, one.origin, one.n): record for one, record in self._private.all(Pinned)}
        for hosted in spaces:
            if hosted in rooms:
                rooms[hosted].returned = partial(self._soon, self._keep, hosted)
            with hosted.engine.lock:
                for entry in hosted.operations.core.store if kept else ():
                    record = kept.pop((hosted.name, entry.origin, entry.n), None)
                    if record is not None:
                        self._pin(hosted, entry, record)
        for record in kept.values():  # Its message is gone by now.
            self._private.forget(record)

    def add(self, hosted: HostedSpace, entry: Entry) -> int:
        """This never gives way; the position at which that is durable."""
        record, position = self._private.keep(Pinned(hosted.name, entry.origin, entry.n))
        self._pin(hosted, entry, record)
        if entry.ended:  # It was given to one who waited.
            self._forget(hosted, entry)
        return position

    def remove(self, spaces: Iterable[HostedSpace], template: Any) -> tuple[int, int]:
        """What matches may give way from now on: how many that are, and the position at which that
        is durable."""
        asked = as_template(template)
        count = position = 0
        for hosted in spaces:
            pinned = self._records.get(hosted, {})
            with hosted.engine.lock:
                found = [
                    entry
                    for entry in (hosted.operations.core.store if pinned else ())
                    if (entry.origin, entry.n) in pinned
                    and (binding := asked.bind(entry.shape)) is not None
                    and binding.test(entry.fields)
                ]
                for entry in found:
                    position = self._private.forget(pinned.pop((entry.origin, entry.n)))
                    if hosted in self._rooms:
                        self._rooms[hosted].unpin(entry)
            count += len(found)
        return count, position

    def _pin(self, hosted: HostedSpace, entry: Entry, record: Entry) -> None:
        with hosted.engine.lock:
            if hosted not in self._records:
                self._records[hosted] = {}
                core = hosted.operations.core
                core.mourners.append(partial(self._soon, self._forget, hosted))
                core.pruning.memories[self._memory] = None
                core.reconsider()
            self._records[hosted][entry.origin, entry.n] = record
            if hosted in self._rooms:
                self._rooms[hosted].pin(entry)

    # What comes and goes, on whatever thread, under the lock of the space

    def _soon(self, change: Any, hosted: HostedSpace, entry: Entry) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(change, hosted, entry)

    def _forget(self, hosted: HostedSpace, entry: Entry) -> None:
        """It was taken; what is kept of it need not be."""
        record = self._records[hosted].pop((entry.origin, entry.n), None)
        if record is not None:
            with suppress(SpaceClosed):
                self._private.forget(record)

    def _keep(self, hosted: HostedSpace, entry: Entry) -> None:
        """Who took it has given up, and it is back."""
        if (entry.origin, entry.n) not in self._records[hosted] and not entry.ended:
            with suppress(SpaceClosed):
                self.add(hosted, entry)
