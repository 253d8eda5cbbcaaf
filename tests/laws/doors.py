"""The async door, to be used like the blocking one: each call runs on a loop in a thread."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import tupelo
from tupelo.errors import PeerLost
from tupelo.federation.client.handles import RemoteHandle, RemoteLandlord
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.spanning.handles import (
    FederatedMatchSet,
    FederatedNotices,
    FederatedSession,
)
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.postgres.leases import LeasedHandle
from tupelo.postgres.space import PostgresSpace
from tupelo.space.fetching import FetchingReaction
from tupelo.values.lease import AsyncLease

ASYNC_THINGS = (
    tupelo.aio.Transaction,
    tupelo.aio.Session,
    tupelo.aio.Subscription,
    tupelo.aio.MatchSet,
    tupelo.aio.Space,
    RemoteSpace,
    FetchingReaction,
    FederatedSpace,
    FederatedSession,
    FederatedNotices,
    FederatedMatchSet,
    RemoteHandle,
    PostgresSpace,
    LeasedHandle,
)
ASKED_FOR = ("state", "seen", "active", "sequence", "error")
"""What a thing of a remote space knows only after a `refresh`, at the async door."""


class LoopThread:
    """An event loop that lives in a thread, for blocking callers."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            answer = function(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        work = run()
        if threading.current_thread() is self._thread:
            return self._call_inside(work)
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def _call_inside(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A function that runs on the loop cannot wait for it: drive the coroutine by hand."""
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        work.close()
        raise AssertionError("this call would wait inside the loop")

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.loop.shutdown_default_executor(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Door:
    """A thing of the async door (space, transaction, ...) that is called like a blocking one."""

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        if name in ASKED_FOR and hasattr(self._inner, "refresh"):
            self._loop.call(self._inner.refresh)
        found = getattr(self._inner, name)
        if inspect.isawaitable(found):
            return self._loop.call(lambda: found)
        if not inspect.ismethod(found):
            return self._wrapped(found)

        def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(kwargs.get("txn"), Door):
                kwargs["txn"] = kwargs["txn"]._inner
            return self._wrapped(self._loop.call(found, *args, **kwargs))

        return call

    def _wrapped(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self._wrapped(one) for one in answer]
        if isinstance(answer, AsyncLease):
            return tupelo.Lease(LoopLandlord(answer, self._loop), answer)
        return Door(answer, self._loop) if isinstance(answer, ASYNC_THINGS) else answer

    def __enter__(self) -> "Door":
        self._loop.call(self._inner.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call(self._inner.__aexit__, *error)

    def __iter__(self) -> Iterator[Any]:
        while (notice := self.get()) is not None:
            yield notice


class LoopLandlord:
    """Makes a lease of the async door one of the blocking door."""

    def __init__(self, lease: AsyncLease, loop: LoopThread) -> None:
        self._lease = lease
        self._loop = loop

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        await self._lease.renew(seconds)

    async def cancel_lease_async(self, thing: Any) -> None:
        await self._lease.cancel()

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        self._loop.call(self._lease.renew, seconds)

    def cancel_lease(self, thing: Any) -> None:
        self._loop.call(self._lease.cancel)

    def now(self) -> float:
        """The time at which as much remains as the lease says."""
        landlord = self._lease.landlord
        if isinstance(landlord, RemoteLandlord) and not landlord._space.channel.awaits_link:
            with suppress(PeerLost):  # Exactly: `remaining` knows it but for the way here.
                space = landlord._space
                return float(self._loop.call(space.describe_host, space.serial)["now"])
        remaining = self._lease.remaining
        assert remaining is not None and self._lease.expires is not None
        return float(self._lease.expires - remaining)
