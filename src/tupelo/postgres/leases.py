"""What is leased: entries in the database, and handles of this program, which end with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from tupelo.errors import LeaseLost, Refused, TransactionEnded
from tupelo.space.dual_api import DualHandle, dual_api, run_sync
from tupelo.space.protocol import names_of

if TYPE_CHECKING:
    from tupelo.postgres.prepared import Row
    from tupelo.postgres.space import PostgresSpace
    from tupelo.postgres.transactions import PostgresTransaction


class WrittenEntry(msgspec.Struct, gc=False):
    """An entry that this program has written, for its lease."""

    id: int
    expires: float | None
    txn: PostgresTransaction | None = None
    n: int = 0


class PostgresLandlord:
    """Renews and cancels the leases of entries in the database, and of handles here."""

    def __init__(self, space: PostgresSpace) -> None:
        self._space = space

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        space = self._space
        space.require_open()
        if isinstance(thing, WrittenEntry):
            rows = await self._change_entry(thing, "renewed", space.sql.renew, lease=seconds)
            thing.expires = rows[0][1]
        else:
            self._require(thing)
            thing.expires = None if seconds is None else space.server_time() + seconds
            thing.lease_renewed()

    async def cancel_lease_async(self, thing: Any) -> None:
        self._space.require_open()
        if isinstance(thing, WrittenEntry):
            await self._change_entry(thing, "cancelled", self._space.sql.delete, ids=[thing.id])
        else:
            self._require(thing)
            await thing.cancelled()

    async def _change_entry(
        self, thing: WrittenEntry, kind: str, statement: str, **values: Any
    ) -> list[Row]:
        """Renew or cancel the lease of an entry, within the transaction that wrote it if that is
        open. LeaseLost if the entry is gone; Refused while another transaction has it in hand."""
        space = self._space
        txn = thing.txn
        while txn is not None and txn.state == "committed":
            txn = txn.parent
        if txn is not None and txn.state != "active":
            txn = None
        token = space.new_token()

        async def change(link: Any) -> tuple[list[Row], Any]:
            change = space.change(kind, token=token)
            rows = await space.run(
                link,
                statement,
                id=thing.id,
                logs=txn is None,
                tells=txn is None,
                **values,
                **change,
            )
            if rows and txn is not None and kind == "cancelled":
                txn.took([(thing.id,)])
            is_there = "SELECT FROM tupelo.entries WHERE id = %(id)s"
            if not rows and txn is None and await space.run(link, is_there, id=thing.id):
                raise Refused("a transaction has the entry in hand: try again when it has ended")
            return rows, rows or None

        if txn is None:
            await space.tidy()
        rows: list[Row] = await space.within(txn, change, True, token)
        if not rows:
            raise LeaseLost("the entry is gone: it was taken, cancelled or has expired")
        return rows

    @staticmethod
    def _require(thing: Any) -> None:
        try:
            thing.require()
        except TransactionEnded as ended:
            raise LeaseLost(str(ended)) from None

    async def refresh(self) -> None:
        """Ask the server for its time."""
        await self._space.reading(self._space.look_at_clock)

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        run_sync(partial(self.renew_lease_async, thing, seconds))

    def cancel_lease(self, thing: Any) -> None:
        run_sync(partial(self.cancel_lease_async, thing))

    def now(self) -> float:
        return self._space.server_time()


class LeasedHandle(DualHandle):
    """A leased resource of this program. It has ended when its lease has, even before anything
    notices that."""

    what: str
    protocol: type

    def __init__(self, space: PostgresSpace, seconds: float | None) -> None:
        self.space = space
        self.is_async = space.is_async
        self.id = uuid4().hex
        self.expires = None if seconds is None else space.server_time() + seconds
        self.ended = False
        self._cancel_alarm: Callable[[], None] | None = None
        space.handles.add(self)
        self.lease_renewed()

    @property
    def lease(self) -> Any:
        """The lease, to renew or cancel."""
        return self.space.lease_of(self)

    @property
    def ran_out(self) -> bool:
        return self.expires is not None and self.expires <= self.space.server_time()

    def require(self) -> None:
        """Raise LeaseLost if it has ended."""
        self.space.require_open()
        if self.ended or self.ran_out:
            raise LeaseLost(f"this {self.what} is over: it was closed or its lease ran out")

    def lease_renewed(self) -> None:
        """Set the alarm for the end of the lease."""
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = None
        if self.expires is not None:
            offset = self.space.server_time() - self.space.clock.now()
            self._cancel_alarm = self.space.clock.call_at(self.expires - offset, self._on_alarm)

    def _on_alarm(self) -> None:
        if self.ran_out and not self.ended:
            self.space.database.call_soon(self.expired)

    async def expired(self) -> None:
        """Its lease has ended, was cancelled, or its space is closed."""
        self.finish()

    cancelled = end_with_space = expired

    def finish(self) -> None:
        self.ended = True
        self.space.handles.discard(self)
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = None
        self.space.database.listener.tell(self.space.id)

    @dual_api
    async def close(self) -> None:
        """End it."""
        self.finish()

    async def leave(self, error: BaseException | None) -> None:
        self.finish()

    def __dir__(self) -> list[str]:
        return names_of(self.protocol)

    def __repr__(self) -> str:
        return f"<a {self.what} of the space {self.space.name!r} at {self.space.database.where}>"
