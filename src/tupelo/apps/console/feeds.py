"""Feeds: what happens in a space, fetched from the host and encoded once for all browsers that
watch it.

A feed keeps its newest items. A browser that reads too slowly loses the older ones, and is told how
many: it slows down neither the host nor other browsers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import Any, Protocol

import msgspec

from tupelo.apps.console.json_values import fields_to_json
from tupelo.errors import LogTrimmed, SpaceClosed, TupeloError
from tupelo.values.change import Change, Notice, change_record
from tupelo.values.template import Template

KEPT_MAX = 1_000
"""A feed keeps so many changes or notices."""
CHANGES_EVERY_SECONDS = 0.5
NOTICES_EVERY_SECONDS = 0.02
"""Notices that come faster are sent together."""
IDLE_ROUNDS = 4
"""After so many rounds without a watcher a log is not read any more."""
KEEPALIVE_SECONDS = 15.0
STILL_HERE = b": still here\n\n"


class Source(Protocol):
    """The part of a gateway that feeds use."""

    async def space(self, name: str) -> Any:
        """The space of this name."""

    async def inspect(self, method: str, *args: Any) -> Any:
        """What the host says about itself."""

    def end(self, handle: Any) -> None:
        """Close a subscription in the background."""


class FeedItem:
    """A change or a notice, encoded once: its number in the feed, and the entry for filters."""

    __slots__ = ("fields", "json", "kind", "position", "shape")

    def __init__(self, position: int, kind: str, shape: Any, fields: Any, shown: Any) -> None:
        self.position = position
        self.kind = kind
        self.shape, self.fields = shape, fields
        self.json = msgspec.Raw(msgspec.json.encode(shown))

    def is_wanted(self, kinds: list[str] | None, template: Template | None) -> bool:
        """Is it of one of these kinds, and its entry one of this template?"""
        if kinds and self.kind not in kinds:
            return False
        if template is None:
            return True
        return self.shape is not None and template.admits(self.shape, self.fields)


class EventFeed:
    """The newest items of one kind in one space, for any number of watchers."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._name = name
        self._kept: deque[FeedItem] = deque(maxlen=KEPT_MAX)
        self._position = 0
        self._watchers = 0
        self._error: TupeloError | None = None
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._encoded: dict[Hashable, bytes] = {}

    @property
    def is_open(self) -> bool:
        """Are there watchers, and more to come for them?"""
        return self._watchers > 0 and self._error is None

    async def events(
        self,
        since: int | None = None,
        key: Hashable = None,
        is_wanted: Callable[[FeedItem], bool] = lambda item: True,
    ) -> AsyncGenerator[bytes]:
        """Server-sent events: "ready", then the items from now on, or those after the position
        `since`, that are wanted. Watchers with equal keys get the same bytes."""
        self._watchers += 1
        try:
            last = await self._start()
            past = last if since is None else min(since, last)
            yield self._ready(past)
            if past < last:
                found = await self._past(past, last)
                shown = [item for item in found if is_wanted(item)]
                yield self._encode(shown, last, last - past - len(found))
            while True:
                if self._position > last:
                    encoded = self._encoded.get((key, last))
                    if encoded is None:
                        items = [i for i in self._kept if last < i.position <= self._position]
                        missed = max(0, self._position - last - len(items))
                        shown = [item for item in items if is_wanted(item)]
                        encoded = self._encode(shown, self._position, missed)
                        self._encoded[key, last] = encoded
                    last = self._position
                    yield encoded
                elif self._error is not None:
                    raise self._error
                else:
                    news = self._news
                    try:
                        async with asyncio.timeout(KEEPALIVE_SECONDS):
                            await news.wait()
                    except TimeoutError:
                        yield STILL_HERE
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._unwatched()

    async def _start(self) -> int:
        """Begin to fetch items, unless that has begun; and the position up to now."""
        async with self._starting:
            if self._task is None or self._task.done():
                await self._open()
                self._error = None
                self._task = asyncio.create_task(self._run())
        return await self._now()

    async def _run(self) -> None:
        try:
            await self._fetch()
        except TupeloError as error:
            self._error = error
            self._tell(max([self._position, *(item.position for item in self._kept)]))

    def _tell(self, position: int) -> None:
        """Wake the watchers: items up to this position are here."""
        self._position = position
        self._encoded.clear()
        self._news.set()
        self._news = asyncio.Event()

    def stop(self) -> None:
        """Fetch no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # What a kind of feed does in its own way

    async def _open(self) -> None:
        """Open what items come from. Raises the errors of the host."""
        raise NotImplementedError

    async def _now(self) -> int:
        """The position of the newest item, known here or not yet."""
        raise NotImplementedError

    async def _fetch(self) -> None:
        """Keep new items, and `_tell`."""
        raise NotImplementedError

    async def _past(self, since: int, last: int) -> list[FeedItem]:
        """Items after `since`, up to `last`."""
        raise NotImplementedError

    def _ready(self, position: int) -> bytes:
        raise NotImplementedError

    def _encode(self, items: list[FeedItem], position: int, missed: int) -> bytes:
        raise NotImplementedError

    def _unwatched(self) -> None:
        """The last watcher has gone."""


class ChangeFeed(EventFeed):
    """The changes of a space. While there are watchers, the log is read twice a second; of a flood
    only the newest changes are read, and the rest is counted.

    Raises LogTrimmed if the space keeps no log, and NotAllowed if it may not be read.
    """

    async def _open(self) -> None:
        await changes_of(await self._source.space(self._name), 0, 1)
        self._position = await self._latest()

    async def _now(self) -> int:
        return self._position

    async def _latest(self) -> int:
        about = await self._source.inspect("space", self._name)
        position: int = about["position"]
        return position

    async def _past(self, since: int, last: int) -> list[FeedItem]:
        space = await self._source.space(self._name)
        found = await changes_of(space, max(since, last - KEPT_MAX), KEPT_MAX)
        return [_item(change) for change in found if change.position <= last]

    async def _fetch(self) -> None:
        space = await self._source.space(self._name)
        idle = 0
        while idle < IDLE_ROUNDS:
            idle = 0 if self._watchers else idle + 1
            latest = await self._latest()
            if latest > self._position:
                first = max(self._position, latest - KEPT_MAX // 2)
                for change in await changes_of(space, first, KEPT_MAX // 2):
                    self._kept.append(_item(change))
                    latest = max(latest, change.position)
                self._tell(latest)
            await asyncio.sleep(CHANGES_EVERY_SECONDS)

    def _ready(self, position: int) -> bytes:
        return event({"position": position}, "ready")

    def _encode(self, items: list[FeedItem], position: int, missed: int) -> bytes:
        shown = [item.json for item in items]
        return event({"changes": shown, "position": position, "skipped": missed})


class NoticeFeed(EventFeed):
    """The entries that are written in a space and match one template: one subscription at the
    host, as long as there are watchers. Positions are the sequence numbers of its notices."""

    def __init__(self, source: Source, name: str, template: Template) -> None:
        super().__init__(source, name)
        self._template = template
        self._subscription: Any = None
        self._pauses = False

    async def _open(self) -> None:
        space = await self._source.space(self._name)
        self._subscription = await space.subscribe(self._template, backlog_max=KEPT_MAX)

    async def _now(self) -> int:
        # Notices of entries that were written before may still be on their way.
        await self._subscription.refresh()
        position: int = self._subscription.sequence
        return position

    async def _fetch(self) -> None:
        async for notice in self._subscription:
            self._kept.append(_item(notice))
            if not self._pauses:
                self._tell_newest()
        raise SpaceClosed(f"the subscription in the space {self._name!r} has ended")

    def _tell_newest(self) -> None:
        newest = self._kept[-1].position
        self._pauses = newest > self._position
        if self._pauses:
            asyncio.get_running_loop().call_later(NOTICES_EVERY_SECONDS, self._tell_newest)
            self._tell(newest)

    def _ready(self, position: int) -> bytes:
        return event({}, "ready")

    def _encode(self, items: list[FeedItem], position: int, missed: int) -> bytes:
        told = [event({"entry": items[0].json, "missed": missed})]
        told += [event({"entry": item.json, "missed": 0}) for item in items[1:]]
        return b"".join(told)

    def _unwatched(self) -> None:
        self.stop()
        if self._subscription is not None:
            self._source.end(self._subscription)


def _item(thing: Change | Notice) -> FeedItem:
    if isinstance(thing, Change):
        said = change_to_json(thing)
        return FeedItem(thing.position, thing.kind, thing.shape, thing.fields, said)
    entry = thing.subject
    shown = fields_to_json(entry.shape.kind, entry.fields)
    return FeedItem(thing.sequence, thing.kind, entry.shape, entry.fields, shown)


async def changes_of(space: Any, since: int, limit: int) -> list[Change]:
    """Changes after this position, or from the oldest that is kept. LogTrimmed if none are."""
    try:
        found: list[Change] = await space.changes(since=since, limit=limit)
    except LogTrimmed as trimmed:
        if trimmed.first <= 1:
            raise
        found = await space.changes(since=max(since, trimmed.first - 1), limit=limit)
    return found


def change_to_json(change: Change) -> dict[str, Any]:
    """A change of a log as JSON, with its entry if it has one."""
    said = change_record(change)
    if change.shape is not None and change.fields is not None:
        said["entry"] = fields_to_json(change.shape.kind, change.fields)
    return said


def event(value: Any, name: str = "message") -> bytes:
    """One server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))
