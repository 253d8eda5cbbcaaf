"""A space in a database that a host serves. The host keeps nothing of it: any number of hosts may
serve the same space, and programs may use it beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument, Refused
from tupelo.federation.identity.access import Access
from tupelo.federation.links.address import is_database
from tupelo.federation.spaces.hosted import Doubt
from tupelo.space.dual_api import AwaitableHandle, DualHandle, dual_api
from tupelo.space.protocol import SpaceLike, names_of, takes_longer, takes_longer_to_write

if TYPE_CHECKING:
    from tupelo.postgres.space import PostgresSpace

OPTIONS = ("order", "capacity", "log_keep", "clock")
"""The options of a space in a database; the other options are those of a host's own spaces."""


class StoredSpace:
    """A space of a host that is in a database, with its access rules. `store` is the URL of the
    database; the name of the space there is that here, unless the URL names one."""

    durable = True
    shared = False
    """Other hosts are not asked: those with the same store have the same space."""

    def __init__(
        self, name: str, store: str, access: Access, doubt: Doubt, options: Mapping[str, Any]
    ) -> None:
        from tupelo.postgres.connect import address_of

        for option in options:
            if option not in OPTIONS:
                raise BadArgument(option, "left out: the space is in a database")
        self.name = name
        self.access = access
        self.doubt = doubt
        self._url, self.where = address_of(store, name)
        self._options = dict(options)
        self.declared = False
        """Whether the program of the host has named it, and not a client."""
        self._own: asyncio.Task[PostgresSpace] | None = None

    def check(self, operation: str, who: str | None, passwords_given: Container[str] = ()) -> None:
        """Raise WrongPassword or NotAllowed if `who` may not do this here."""
        self.access.check(operation, self.name, who, self.name in passwords_given)

    @property
    def protected(self) -> bool:
        """Whether it has a password."""
        return self.access.protected

    def flush_soon(self, position: int) -> None:
        """The database does that."""

    async def open(
        self, *, is_async: bool = True, agent: str = "", label: str = "", create: bool = True
    ) -> PostgresSpace:
        """The space, as one agent uses it. Raises CannotReach, UnknownSpace or BadArgument."""
        from tupelo.postgres.connect import open_space

        return await open_space(
            self._url, is_async=is_async, agent=agent, label=label, create=create, **self._options
        )

    async def own(self, label: str) -> PostgresSpace:
        """The space, as the host itself uses it: opened once, on its loop."""
        if self._own is None or (self._own.done() and self._own.exception() is not None):
            self._own = asyncio.ensure_future(self.open(label=label))
        return await asyncio.shield(self._own)

    async def close(self) -> None:
        """Close what the host itself has opened."""
        if self._own is not None:
            await asyncio.wait([self._own])
            if self._own.exception() is None:
                await self._own.result().leave(None)


def check_store(store: object, is_default: bool = False) -> str:
    """The argument `store=` of a space, or of a host with many: the URL, or "" for none."""
    if store is None or store == "":
        return ""
    expected = "the URL of a database: postgresql://host/database"
    if not isinstance(store, str) or not is_database(store):
        raise BadArgument("store", expected, store)
    from tupelo.postgres.connect import split_url

    if is_default and split_url(store)[1] is not None:
        raise BadArgument("store", f"{expected}, for all spaces: without space=", store)
    return store


def in_database(name: str) -> Refused:
    """The error for an operation that only a space of the host's own can have."""
    return Refused(
        f"the space {name!r} of this host is in a database: the operations of spaces work there,"
        " the models that run at hosts (LIME, MELON, Event Heap) do not;"
        f' host.space({name!r}, store="") would keep a new space at the host'
    )


def _awaited(name: str) -> Any:
    def call(self: LazySpace, *args: Any, **options: Any) -> Any:
        return self.call(name, *args, **options)

    return call


def _handle(name: str) -> Any:
    def call(self: LazySpace, *args: Any, **options: Any) -> Any:
        return AwaitableHandle(self.call(name, *args, **options))

    return call


class LazySpace(DualHandle, SpaceLike):
    """A space for coroutines that is opened at its first operation."""

    is_async = True
    _get_fast = staticmethod(takes_longer)
    _write_fast = staticmethod(takes_longer_to_write)

    def __init__(self, name: str, open_it: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._name = name
        self._open = open_it
        self._lock = asyncio.Lock()
        self._space: Any = None

    @property
    def name(self) -> str:
        return self._name

    async def opened(self) -> Any:
        """The space itself."""
        async with self._lock:
            if self._space is None:
                self._space = await self._open()
        return self._space

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the space."""
        return await getattr(await self.opened(), method)(*args, **options)

    _get, _count, _match_set = map(_awaited, ("_get", "_count", "_match_set"))
    _write, _write_all = map(_awaited, ("_write", "_write_all"))
    in_doubt, in_hand, delayed = map(_awaited, ("in_doubt", "in_hand", "delayed"))
    changes, trim, compact = map(_awaited, ("changes", "trim", "compact"))
    _subscribe, _react = map(_handle, ("_subscribe", "_react"))
    transaction, session = map(_handle, ("transaction", "session"))

    @dual_api
    async def close(self) -> None:
        await self.leave(None)

    async def leave(self, error: BaseException | None) -> None:
        if self._space is not None:
            await self._space.leave(error)

    def __dir__(self) -> list[str]:
        return names_of(SpaceLike)
