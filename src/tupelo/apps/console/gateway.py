"""The connection between HTTP and a host: an async client whose spaces, transactions and pages are
used by HTTP requests.

The gateway is an ordinary client, so the access rules of the host apply to it. It runs on one event
loop, of its own process or of a thread beside the host.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Generic, TypeVar

import tupelo
from tupelo.apps.console.feeds import ChangeFeed, NoticeFeed, changes_of
from tupelo.apps.console.history import CHANGES_MAX, history_of
from tupelo.apps.console.inspection import SERVICE
from tupelo.apps.console.json_values import encoded_to_json, entry_to_json
from tupelo.errors import BadArgument, LimitReached, TupeloError
from tupelo.federation.client.services import connect_to_host_async, invoke
from tupelo.federation.client.space import HostConnection, RemoteSpace
from tupelo.values.change import Change
from tupelo.values.entry import About
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
        dropped = []
        now = time.monotonic()
        while self._kept and next(iter(self._kept.values()))[0] < now:  # The oldest end first.
            dropped.append(self._kept.popitem(last=False)[1][1])
        return dropped


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
        self._changes: dict[str, ChangeFeed] = {}
        self._notices: dict[tuple[str, bytes], NoticeFeed] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, url: str, password: str | None = None, **options: Any) -> Gateway:
        """A gateway to the host at this URL, with the options of `tupelo.connect`."""
        host = await connect_to_host_async(url, **({"name": "console"} | options))
        return cls(host, password)

    async def space(self, name: str, *, create: bool = False) -> Any:
        """The space of this name, opened at the first use. UnknownSpace if there is none, unless
        `create`."""
        found = self._spaces.get(name)
        if found is None:
            async with self._opening:
                found = self._spaces.get(name)
                if found is None:
                    found = await RemoteSpace.opened(
                        self.host.channel, name, self._password, create
                    )
                    self._spaces[name] = found
        return found

    async def inspect(self, method: str, *args: Any) -> Any:
        """What the host says about itself: see `inspection`."""
        return await invoke(self.host, SERVICE, method, *args, again=True)

    async def board(self, service: str, method: str, *args: Any, wait: float = 0) -> Any:
        """A method of a service with a board: see `boards`."""
        return await invoke(self.host, service, method, *args, wait=wait)

    async def page(
        self,
        name: str,
        template: Template,
        limit: int,
        cursor: str | None,
        about: list[About] | None = None,
    ) -> tuple[list[Any], str | None]:
        """The next entries of this space that match, and a cursor for the page after them, or None.

        A session of the host returns each entry once, whatever is written and taken meanwhile.
        """
        space = await self.space(name)
        if cursor is not None:
            of, wanted, session = self._cursors.pop(cursor)
            if of != name or wanted.raw != template.raw:
                self.end(session)
                raise BadArgument("cursor", "one of this space and template", cursor)
        else:
            session = await space.session(lease=CURSOR_SECONDS)
        message = space.get_message(
            *(template, False, 0),
            scope=tupelo.HERE,
            many=True,
            limit=limit,
            session=session,
            whole=about is not None,
        )
        found = await space.get(message, session, None, about, encoded_to_json)
        if about is not None:
            found = [entry_to_json(entry) for entry in found]
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
        changes: list[Change] = []
        since = max(0, latest - CHANGES_MAX)
        while len(changes) < CHANGES_MAX:
            some = await changes_of(space, since, PAGE_MAX)
            changes += some
            if len(some) < PAGE_MAX:
                break
            since = some[-1].position
        return history_of(changes[:CHANGES_MAX], template)

    def end(self, handle: Any) -> None:
        """Close a session or subscription in the background: its request may be cancelled."""
        task = asyncio.create_task(_close(handle))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def changes(self, name: str) -> ChangeFeed:
        """The changes of this space, read once for all browsers that watch it."""
        found = self._changes.get(name)
        if found is None:
            found = self._changes[name] = ChangeFeed(self, name)
        return found

    def notices(self, name: str, key: bytes, template: Template) -> NoticeFeed:
        """The entries that are written in this space: one subscription for all browsers that have
        asked for the same template, which `key` stands for."""
        for old in [one for one, feed in self._notices.items() if not feed.is_open]:
            del self._notices[old]
        found = self._notices.get((name, key))
        if found is None:
            found = self._notices[name, key] = NoticeFeed(self, name, template)
        return found

    async def close(self) -> None:
        """End the watchers, and the connection with all that it holds at the host."""
        for feed in (*self._changes.values(), *self._notices.values()):
            feed.stop()
        await asyncio.gather(*self._ending, return_exceptions=True)
        for handle in (*self._spaces.values(), self.host):
            with suppress(TupeloError):
                await handle.leave(None)
        await asyncio.sleep(0.01)  # The loop closes the sockets.


async def _close(handle: Any) -> None:
    with suppress(TupeloError):
        await handle.close()


def error_to_json(error: TupeloError) -> dict[str, Any]:
    """An error as JSON: the name of its class, and its text on one line."""
    return {"error": type(error).__name__, "message": one_line(str(error))}
