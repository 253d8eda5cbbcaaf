"""Leases on what spans hosts: sessions and subscriptions of `host.space()`, which no single space
could end."""

from __future__ import annotations

from collections.abc import Callable

from tupelo.errors import LeaseLost
from tupelo.space.port import Port


class SpanningLease:
    """Until when a session or a subscription lives; `on_end` ends it. It is its own landlord, and
    the thing that is leased."""

    def __init__(
        self, port: Port, kind: str, seconds: float | None, on_end: Callable[[], object]
    ) -> None:
        self.expires: float | None = None
        self._ended = False
        self._port = port
        self._kind = kind
        self._clock = port.clock
        self._on_end = on_end
        self._cancel_alarm: Callable[[], None] = lambda: None
        self._grant(seconds)

    def _grant(self, seconds: float | None) -> None:
        self._cancel_alarm()
        self.expires = self._port.grant(self._kind, seconds)
        if self.expires is not None:
            self._cancel_alarm = self._clock.call_at(self.expires, self._look)

    @property
    def ended(self) -> bool:
        """Was it closed, or has it run out?"""
        self._look()
        return self._ended

    def _look(self) -> None:
        if not self._ended and self.expires is not None and self.expires <= self._clock.now():
            self.end()
            self._on_end()

    def end(self) -> None:
        """It was closed, or has run out."""
        self._ended = True
        self._cancel_alarm()

    def now(self) -> float:
        return self._clock.now()

    def _require(self) -> None:
        if self.ended:
            raise LeaseLost("it is over: it was closed, or its lease ran out")

    def renew_lease(self, thing: object, seconds: float | None) -> None:
        self._require()
        self._grant(seconds)

    def cancel_lease(self, thing: object) -> None:
        self._require()
        self.end()
        self._on_end()

    async def renew_lease_async(self, thing: object, seconds: float | None) -> None:
        self.renew_lease(thing, seconds)

    async def cancel_lease_async(self, thing: object) -> None:
        self.cancel_lease(thing)
