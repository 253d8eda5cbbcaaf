"""Jini services of a real host on the loopback, used by both doors."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable, ismethod
from typing import Any

import pytest

import tupelo
from tests.conftest import until_true
from tests.laws.doors import LoopThread
from tupelo.models.javaspaces import (
    EventMailbox,
    EventRegistration,
    Lease,
    LeaseRenewalService,
    LookupService,
    RemoteEventIterator,
    RemoteEventMailbox,
    RemoteLeaseRenewalService,
    RemoteLeaseRenewalSet,
    RemoteLookupService,
    RemoteMailboxRegistration,
    ServiceRegistration,
    offer,
)
from tupelo.models.javaspaces.remote.clients import MailboxListener

KINDS: dict[str, Any] = {
    "lookup": RemoteLookupService,
    "mailbox": RemoteEventMailbox,
    "renewals": RemoteLeaseRenewalService,
}


class Async:
    """A thing of the async door that is called like one of the blocking door."""

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not ismethod(found):
            answer = self._loop.call(lambda: found) if isawaitable(found) else found
            return self._wrapped(answer)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._wrapped(self._loop.call(found, *map(bare, args), **kwargs))

        return call

    def __eq__(self, other: object) -> bool:
        return bool(bare(other) == self._inner)

    def __hash__(self) -> int:
        return hash(self._inner)

    def __iter__(self) -> Any:
        async def gather() -> list[Any]:
            return [event async for event in self._inner]

        return iter(self._loop.call(gather))

    def _wrapped(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self._wrapped(one) for one in answer]
        return Async(answer, self._loop) if isinstance(answer, ASYNC_THINGS) else answer


HEARTBEAT_SECONDS = 2.0  # So that a busy machine loses no link.
ASYNC_THINGS = (
    *(ServiceRegistration, RemoteMailboxRegistration, RemoteLeaseRenewalSet),
    *(Lease, EventRegistration, RemoteEventIterator, MailboxListener),
)


def bare(argument: Any) -> Any:
    return argument._inner if isinstance(argument, Async) else argument


class Town:
    """A host that offers all services, and programs elsewhere that use them by one door. Leases are
    counted by a clock that is moved by hand."""

    def __init__(self, door: str, loop: LoopThread, clock: Any) -> None:
        self.is_async = door == "async"
        self.loop = loop
        self.clock = clock
        self.host = tupelo.Host("town", listen="127.0.0.1:0", heartbeat=HEARTBEAT_SECONDS)
        self.lookup, self.mailbox, self.renewals = (
            LookupService(clock=clock),
            EventMailbox(clock=clock),
            LeaseRenewalService(clock),
        )
        for service in (self.lookup, self.mailbox, self.renewals):
            offer(self.host, service)
        self._connected: list[Any] = []

    @property
    def url(self) -> str:
        return self.host.url

    def connect(self, kind: str, url: str | None = None, **options: Any) -> Any:
        """One more program that uses a service."""
        made = KINDS[kind]
        if self.is_async:
            inner = self.loop.call(made.connect_async, url or self.url, **options)
            connected: Any = Async(inner, self.loop)
        else:
            connected = made.connect(url or self.url, **options)
        bare(connected).clock = self.clock  # It counts its leases by this one, too.
        self._connected.append(connected)
        return connected

    def pass_until(self, condition: Callable[[], object]) -> None:
        """Time passes, a tenth of a second at a time."""

        def passed() -> object:
            self.clock.advance(0.1)
            return condition()

        until_true(passed)

    def cut(self) -> None:
        """Cut the links of all programs elsewhere."""

        def abort() -> None:
            for serving in list(self.host.core.servings.values()):
                serving.talk.link._transport.abort()  # type: ignore[attr-defined]

        self.host.soon(abort)

    def close(self) -> None:
        for connected in self._connected:
            connected.close()
        for service in (self.lookup, self.mailbox, self.renewals):
            service.close()
        self.host.close()


@pytest.fixture(params=["blocking", "async"])
def town(request, loop_thread, clock):
    town = Town(request.param, loop_thread, clock)
    yield town
    town.close()


@pytest.fixture
def registrar(town):
    return town.connect("lookup")
