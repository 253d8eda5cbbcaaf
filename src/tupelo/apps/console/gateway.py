"""The connection between HTTP and a host: an async client whose spaces, transactions and pages are
used by HTTP requests.

The gateway is an ordinary client, so the access rules of the host apply to it. It runs on one event
loop, of its own process or of a thread beside the host.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

import tupelo
from tupelo.apps.console import whiteboard
from tupelo.apps.console.history import CHANGES_MAX, history_of
from tupelo.apps.console.inspection import SERVICE
from tupelo.apps.console.json_values import entry_to_json, fields_to_json
from tupelo.errors import BadArgument, LimitReached, LogTrimmed, TupeloError
from tupelo.federation.client.services import connect_to_host_async, invoke
from tupelo.federation.client.space import HostConnection, RemoteSpace
from tupelo.values.change import Change
from tupelo.values.lease import AsyncLease
from tupelo.values.template import Template
from tupelo.values.text import one_line

T = TypeVar("T")

PAGE_MAX = 1_000
"""At most so many entries are returned by one request."""
CURSORS_MAX = 200
CURSOR_SECONDS = 300.0
TRANSACTIONS_MAX = 1_000
TRANSACTION_SECONDS = 30.0
LEASES_MAX = 10_000
LEASE_SECONDS = 86_400.0
"""A lease can be renewed and cancelled over HTTP for so long; then it runs out."""
CHANGES_KEPT = 1_000
CHANGES_EVERY_SECONDS = 0.5
IDLE_ROUNDS = 4
"""After so many rounds without a watcher a log is not read any more."""
NOTICES_MAX = 1_000
"""Backlog of a subscription over HTTP; a slow reader is told how many it has missed."""


class Handles(Generic[T]):
    """Objects that HTTP requests name by a random id: pages and transactions. The oldest is dropped
    when there are too many, or when its time is over."""

    def __init__(self, what: str, limit: int, seconds: float, refuses: bool) -> None:
        self._what = what
        self._limit = limit
        self._seconds = seconds
        self._refuses = refuses
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def add(self, thing: T) -> tuple[str, list[T]]:
        """The id of the new handle, and the handles that were dropped for it.

        LimitReached if there are too many and this kind of handle is not dropped.
        """
        dropped = self.expired()
        if len(self._kept) >= self._limit:
            if self._refuses:
                raise LimitReached(f"{self._what}s over HTTP", self._limit)
            dropped.append(self._kept.popitem(last=False)[1][1])
        key = secrets.token_urlsafe(12)
        self._kept[key] = (time.monotonic() + self._seconds, thing)
        return key, dropped

    def get(self, key: str) -> T:
        """The handle with this id; BadArgument if it is over."""
        found = self._kept.get(key)
        if found is None or found[0] < time.monotonic():
            raise BadArgument(self._what, f"a {self._what} that is open", key)
        return found[1]

    def pop(self, key: str) -> T:
        thing = self.get(key)
        del self._kept[key]
        return thing

    def expired(self) -> list[T]:
        """Remove and return the handles whose time is over."""
        now = time.monotonic()
        return [
            self._kept.pop(key)[1] for key, (until, _) in list(self._kept.items()) if until < now
        ]


class Gateway:
    """One connection to a host, for all HTTP requests. Create it with `Gateway.connect`."""

    def __init__(self, host: HostConnection, password: str | None) -> None:
        self.host = host
        self._password = password
        self._spaces: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._cursors: Handles[tuple[str, Template, Any]] = Handles(
            "cursor", CURSORS_MAX, CURSOR_SECONDS, False
        )
        self.transactions: Handles[tuple[str, Any]] = Handles(
            "transaction", TRANSACTIONS_MAX, TRANSACTION_SECONDS * 120, True
        )
        self.leases: Handles[AsyncLease] = Handles("lease", LEASES_MAX, LEASE_SECONDS, False)
        self._feeds: dict[str, ChangeFeed] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, url: str, password: str | None = None, **options: Any) -> Gateway:
        """A gateway to the host at this URL, with the options of `tupelo.connect`."""
        host = await connect_to_host_async(url, **({"name": "console"} | options))
        return cls(host, password)

    async def space(self, name: str) -> Any:
        """The space of this name, opened at the first use."""
        found = self._spaces.get(name)
        if found is None:
            async with self._opening:
                found = self._spaces.get(name)
                if found is None:
                    found = await RemoteSpace.opened(self.host.channel, name, self._password)
                    self._spaces[name] = found
        return found

    async def inspect(self, method: str, *args: Any) -> Any:
        """What the host says about itself: see `inspection`."""
        return await invoke(self.host, SERVICE, method, *args, again=True)

    async def whiteboard(self, method: str, *args: Any, wait: float = 0) -> Any:
        """A method of the service `whiteboard` of the host."""
        return await invoke(self.host, whiteboard.SERVICE, method, *args, wait=wait)

    async def page(
        self, name: str, template: Template, limit: int, cursor: str | None
    ) -> tuple[list[Any], str | None]:
        """The next entries of this space that match, and a cursor for the page after them, or None.

        A session of the host returns each entry once, whatever is written and taken meanwhile.
        """
        if cursor is not None:
            of, wanted, session = self._cursors.pop(cursor)
            if of != name or wanted.raw != template.raw:
                self.end(session)
                raise BadArgument("cursor", "one of this space and template", cursor)
        else:
            space = await self.space(name)
            session = await space.session(lease=CURSOR_SECONDS)
        entries = await session.read_all(template, limit=limit, wait=0, scope=tupelo.HERE)
        found = [entry_to_json(entry) for entry in entries]
        if len(found) < limit:
            self.end(session)
            return found, None
        key, dropped = self._cursors.add((name, template, session))
        for *_, old in dropped:
            self.end(old)
        return found, key

    async def history(self, name: str, template: Template | None) -> dict[str, Any]:
        """What has happened in this space, by the newest changes of its log: see `history`."""
        space = await self.space(name)
        latest: int = (await self.inspect("space", name))["position"]
        host = await self.inspect("host")
        names = {one["agent"]: one["name"] for one in host["clients"]}
        names |= {one["id"]: one["name"] for one in [host, *host["peers"]]}
        changes: list[Change] = []
        since = max(0, latest - CHANGES_MAX)
        while len(changes) < CHANGES_MAX:
            some = await _changes(space, since, CHANGES_KEPT)
            changes += some
            if len(some) < CHANGES_KEPT:
                break
            since = some[-1].position
        return history_of(changes[:CHANGES_MAX], template, lambda agent: names.get(agent, ""))

    def end(self, handle: Any) -> None:
        """Close a session or subscription in the background: its request may be cancelled."""
        task = asyncio.create_task(_close(handle))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def feed(self, name: str) -> ChangeFeed:
        """The changes of this space, read once for all browsers that watch it."""
        found = self._feeds.get(name)
        if found is None:
            found = self._feeds[name] = ChangeFeed(self, name)
        return found

    async def close(self) -> None:
        """End the watchers, and the connection with all that it holds at the host."""
        for feed in self._feeds.values():
            feed.stop()
        await asyncio.gather(*self._ending, return_exceptions=True)
        for handle in (*self._spaces.values(), self.host):
            with suppress(TupeloError):
                await handle.leave(None)
        await asyncio.sleep(0.01)  # The loop closes the sockets.


class ShownChange:
    """A change of a log, encoded once for all browsers."""

    def __init__(self, change: Change) -> None:
        self.position = change.position
        self.kind = change.kind
        self.shape, self.fields = change.shape, change.fields
        self.json = msgspec.Raw(msgspec.json.encode(change_to_json(change)))

    def is_wanted(self, kinds: list[str] | None, template: Template | None) -> bool:
        """Is it of one of these kinds, and its entry one of this template?"""
        if kinds and self.kind not in kinds:
            return False
        if template is None:
            return True
        if self.shape is None or self.fields is None:
            return False
        return template.admits(self.shape, self.fields)


class ChangeFeed:
    """The newest changes of one space, for any number of watchers. While there are any, the log is
    read twice a second; of a flood only the newest changes are read, and the rest is counted."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self._gateway = gateway
        self._name = name
        self._kept: deque[ShownChange] = deque(maxlen=CHANGES_KEPT)
        self._position = 0
        self._watchers = 0
        self._error: TupeloError | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()

    async def start(self) -> int:
        """Begin to read the log, unless that has begun; and the position up to which it was read.

        Raises LogTrimmed if the space keeps no log, and NotAllowed if it may not be read.
        """
        if self._task is None or self._task.done():
            await _changes(await self._gateway.space(self._name), 0, 1)
            self._error = None
            self._position = await self._latest()
            self._task = asyncio.create_task(self._read())
        return self._position

    async def watch(self, last: int) -> AsyncIterator[tuple[list[ShownChange], int]]:
        """Batches of changes after the position `last`, each with the position up to which the
        watcher now knows the log. Positions that are missing were skipped. Call `start` first."""
        self._watchers += 1
        try:
            if last < self._position:
                batch, last = await self._past(last), self._position
                yield batch, last
            while True:
                async with self._news:
                    while self._position <= last and self._error is None:
                        await self._news.wait()
                if self._error is not None:
                    raise self._error
                batch = [one for one in self._kept if one.position > last]
                last = self._position
                yield batch, last
        finally:
            self._watchers -= 1

    async def _past(self, since: int) -> list[ShownChange]:
        space = await self._gateway.space(self._name)
        first = max(since, self._position - CHANGES_KEPT)
        return [ShownChange(one) for one in await _changes(space, first, CHANGES_KEPT)]

    async def _latest(self) -> int:
        about = await self._gateway.inspect("space", self._name)
        position: int = about["position"]
        return position

    async def _read(self) -> None:
        space = await self._gateway.space(self._name)
        idle = 0
        try:
            while idle < IDLE_ROUNDS:
                idle = 0 if self._watchers else idle + 1
                latest = await self._latest()
                if latest > self._position:
                    first = max(self._position, latest - CHANGES_KEPT // 2)
                    for change in await _changes(space, first, CHANGES_KEPT // 2):
                        self._kept.append(ShownChange(change))
                        latest = max(latest, change.position)
                    async with self._news:
                        self._position = latest
                        self._news.notify_all()
                await asyncio.sleep(CHANGES_EVERY_SECONDS)
        except TupeloError as error:
            async with self._news:
                self._error = error
                self._news.notify_all()

    def stop(self) -> None:
        """End the reading of the log; for the end of the gateway."""
        if self._task is not None:
            self._task.cancel()


async def _changes(space: Any, since: int, limit: int) -> list[Change]:
    try:
        found: list[Change] = await space.changes(since=since, limit=limit)
    except LogTrimmed as trimmed:
        if trimmed.first <= 1:
            raise
        found = await space.changes(since=max(since, trimmed.first - 1), limit=limit)
    return found


def change_to_json(change: Change) -> dict[str, Any]:
    """A change of a log as JSON, with its entry if it has one."""
    said: dict[str, Any] = {
        "position": change.position,
        "time": change.time,
        "kind": change.kind,
        "agent": change.agent,
        "agent_name": change.agent_name,
        "txn": change.txn,
        "waited": change.waited,
        "deliveries": change.deliveries,
    }
    if change.shape is not None and change.fields is not None:
        said["entry"] = fields_to_json(change.shape.kind, change.fields)
    return said


async def _close(handle: Any) -> None:
    with suppress(TupeloError):
        await handle.close()


def error_to_json(error: TupeloError) -> dict[str, Any]:
    """An error as JSON: the name of its class, and its text on one line."""
    return {"error": type(error).__name__, "message": one_line(str(error))}
