"""One implementation for the blocking and the async API: an operation is written once, as a
coroutine.

On a blocking space the coroutine never has to wait for a loop, so it runs to its end at once and
its result is returned; on an async space the coroutine is returned, to be awaited. To a type
checker the result is Any; the protocols in `tupelo.space.protocol` give the types.

Python raises KeyboardInterrupt only at certain bytecodes. None of them is between the creation of a
coroutine and its start, nor between its end and the return of its result, so no coroutine is left
unstarted and no result is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from datetime import datetime
from decimal import Decimal
from functools import partial, wraps
from inspect import isawaitable, iscoroutinefunction
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)
from uuid import UUID

from tupelo.errors import BadArgument

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    from tupelo.space.protocol import AsyncMatchSetLike, MatchSetLike

    DoorT = WithDefault("DoorT", default="Blocking")
else:
    DoorT = TypeVar("DoorT")


class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


# No tuples and no types: inside a tuple these are templates, with other overloads.
Value = (
    str | float | bytes | datetime | UUID | Decimal | list[Any] | dict[Any, Any] | Dataclass | None
)

Self_ = TypeVar("Self_")
P = ParamSpec("P")
D = TypeVar("D", bound=Dataclass)
A = TypeVar("A", bound=Value)
B = TypeVar("B", bound=Value)
C = TypeVar("C", bound=Value)
E = TypeVar("E", bound=Value)
Two = tuple[A | type[A], B | type[B]]
Three = tuple[A | type[A], B | type[B], C | type[C]]
Four = tuple[A | type[A], B | type[B], C | type[C], E | type[E]]
T = TypeVar("T")
Later = Coroutine[Any, Any, T]
Method = Callable[Concatenate[Self_, Any, P], Any]


class One(Protocol[P]):
    """One match, or None."""

    @overload
    def __call__(self, template: D | type[D], *args: P.args, **kwargs: P.kwargs) -> D | None: ...
    @overload
    def __call__(
        self, template: Two[A, B], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[A, B] | None: ...
    @overload
    def __call__(
        self, template: Three[A, B, C], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[A, B, C] | None: ...
    @overload
    def __call__(
        self, template: Four[A, B, C, E], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[A, B, C, E] | None: ...
    @overload
    def __call__(
        self, template: tuple[Any, ...], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Any, ...] | None: ...
    @overload
    def __call__(self, template: object, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...


class Many(Protocol[P]):
    """All matches."""

    @overload
    def __call__(self, template: D | type[D], *args: P.args, **kwargs: P.kwargs) -> list[D]: ...
    @overload
    def __call__(
        self, template: Two[A, B], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[A, B]]: ...
    @overload
    def __call__(
        self, template: Three[A, B, C], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[A, B, C]]: ...
    @overload
    def __call__(
        self, template: Four[A, B, C, E], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[A, B, C, E]]: ...
    @overload
    def __call__(
        self, template: tuple[Any, ...], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[Any, ...]]: ...
    @overload
    def __call__(self, template: object, *args: P.args, **kwargs: P.kwargs) -> list[Any]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> list[Any]: ...


class AsyncOne(Protocol[P]):
    """One match or None, as a coroutine."""

    @overload
    def __call__(
        self, template: D | type[D], *args: P.args, **kwargs: P.kwargs
    ) -> Later[D | None]: ...
    @overload
    def __call__(
        self, template: Two[A, B], *args: P.args, **kwargs: P.kwargs
    ) -> Later[tuple[A, B] | None]: ...
    @overload
    def __call__(
        self, template: Three[A, B, C], *args: P.args, **kwargs: P.kwargs
    ) -> Later[tuple[A, B, C] | None]: ...
    @overload
    def __call__(
        self, template: Four[A, B, C, E], *args: P.args, **kwargs: P.kwargs
    ) -> Later[tuple[A, B, C, E] | None]: ...
    @overload
    def __call__(
        self, template: tuple[Any, ...], *args: P.args, **kwargs: P.kwargs
    ) -> Later[tuple[Any, ...] | None]: ...
    @overload
    def __call__(self, template: object, *args: P.args, **kwargs: P.kwargs) -> Later[Any]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Later[Any]: ...


class AsyncMany(Protocol[P]):
    """All matches, as a coroutine."""

    @overload
    def __call__(
        self, template: D | type[D], *args: P.args, **kwargs: P.kwargs
    ) -> Later[list[D]]: ...
    @overload
    def __call__(
        self, template: Two[A, B], *args: P.args, **kwargs: P.kwargs
    ) -> Later[list[tuple[A, B]]]: ...
    @overload
    def __call__(
        self, template: Three[A, B, C], *args: P.args, **kwargs: P.kwargs
    ) -> Later[list[tuple[A, B, C]]]: ...
    @overload
    def __call__(
        self, template: Four[A, B, C, E], *args: P.args, **kwargs: P.kwargs
    ) -> Later[list[tuple[A, B, C, E]]]: ...
    @overload
    def __call__(
        self, template: tuple[Any, ...], *args: P.args, **kwargs: P.kwargs
    ) -> Later[list[tuple[Any, ...]]]: ...
    @overload
    def __call__(self, template: object, *args: P.args, **kwargs: P.kwargs) -> Later[list[Any]]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Later[list[Any]]: ...


class Matches(Protocol[P]):
    """A match set."""

    @overload
    def __call__(
        self, template: D | type[D], *args: P.args, **kwargs: P.kwargs
    ) -> MatchSetLike[D]: ...
    @overload
    def __call__(
        self, template: tuple[Any, ...], *args: P.args, **kwargs: P.kwargs
    ) -> MatchSetLike[tuple[Any, ...]]: ...
    @overload
    def __call__(
        self, template: object, *args: P.args, **kwargs: P.kwargs
    ) -> MatchSetLike[Any]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> MatchSetLike[Any]: ...


class AsyncMatches(Protocol[P]):
    """A match set, as a coroutine."""

    @overload
    def __call__(
        self, template: D | type[D], *args: P.args, **kwargs: P.kwargs
    ) -> Later[AsyncMatchSetLike[D]]: ...
    @overload
    def __call__(
        self, template: tuple[Any, ...], *args: P.args, **kwargs: P.kwargs
    ) -> Later[AsyncMatchSetLike[tuple[Any, ...]]]: ...
    @overload
    def __call__(
        self, template: object, *args: P.args, **kwargs: P.kwargs
    ) -> Later[AsyncMatchSetLike[Any]]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Later[AsyncMatchSetLike[Any]]: ...


def one(method: Method[Self_, P]) -> One[P]:
    return method  # type: ignore[return-value]


def many(method: Method[Self_, P]) -> Many[P]:
    return method  # type: ignore[return-value]


def matches(method: Method[Self_, P]) -> Matches[P]:
    return method  # type: ignore[return-value]


def async_one(method: Method[Self_, P]) -> AsyncOne[P]:
    return method  # type: ignore[return-value]


def like(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[[Self_], T]], Callable[Concatenate[Self_, P], T]]:
    """Decorator: the async counterpart of a method is the same function, which returns a coroutine
    on an async space. The decorated function gives the return type, and is never called."""
    return lambda typed: method


def one_like(method: One[P]) -> Callable[[object], AsyncOne[P]]:
    return like(method)  # type: ignore[return-value]


def many_like(method: Many[P]) -> Callable[[object], AsyncMany[P]]:
    return like(method)  # type: ignore[return-value]


def matches_like(method: Matches[P]) -> Callable[[object], AsyncMatches[P]]:
    return like(method)  # type: ignore[return-value]


class Blocking:
    """Type argument for the blocking API: `JavaSpace05[Blocking]`, or `JavaSpace05`."""


class Async:
    """Type argument for the async API: `JavaSpace05[Async]`."""


class OnDoor(Generic[DoorT]):
    """Base of generic classes with one implementation for both APIs."""

    is_async: bool


class EitherOne(Protocol[P]):
    """One match or None; a coroutine in the async API."""

    @overload
    def __get__(self, thing: OnDoor[Blocking], owner: Any) -> One[P]: ...
    @overload
    def __get__(self, thing: OnDoor[Async], owner: Any) -> AsyncOne[P]: ...
    @overload
    def __get__(self, thing: None, owner: Any) -> Callable[Concatenate[Any, Any, P], Any]: ...
    @overload
    def __get__(self, thing: object, owner: Any) -> Callable[Concatenate[Any, P], Any]: ...


class EitherMany(Protocol[P]):
    """All matches; a coroutine in the async API."""

    @overload
    def __get__(self, thing: OnDoor[Blocking], owner: Any) -> Many[P]: ...
    @overload
    def __get__(self, thing: OnDoor[Async], owner: Any) -> AsyncMany[P]: ...
    @overload
    def __get__(self, thing: None, owner: Any) -> Callable[Concatenate[Any, Any, P], Any]: ...
    @overload
    def __get__(self, thing: object, owner: Any) -> Callable[Concatenate[Any, P], Any]: ...


def either_one(method: Method[Self_, P]) -> EitherOne[P]:
    return method


def either_many(method: Method[Self_, P]) -> EitherMany[P]:
    return method


class DualApi(Protocol):
    """An object on a blocking or an async space."""

    @property
    def is_async(self) -> bool: ...


E_contra = TypeVar("E_contra", bound=DualApi, contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class DualMethod(Protocol[E_contra, P, R_co]):
    """The type of a method of both APIs: its return type depends on the API."""

    @overload
    def __get__(self, thing: None, owner: Any) -> Callable[Concatenate[E_contra, P], Any]: ...
    @overload
    def __get__(self, thing: OnDoor[Blocking], owner: Any) -> Callable[P, R_co]: ...
    @overload
    def __get__(
        self, thing: OnDoor[Async], owner: Any
    ) -> Callable[P, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(self, thing: object, owner: Any) -> Callable[P, Any]: ...


def dual_api(
    method: Callable[Concatenate[E_contra, P], Coroutine[Any, Any, R_co]],
) -> DualMethod[E_contra, P, R_co]:
    """Decorator: makes a coroutine function a method of both APIs."""

    @wraps(method)
    def call(self: E_contra, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        if self.is_async:
            return method(self, *args, **kwargs)
        return run_sync(partial(method, self, *args, **kwargs))

    return call  # type: ignore[return-value]


def run_sync(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Call a function that returns a coroutine which never waits for a loop, and run it."""
    for work in iter(make, None):  # No KeyboardInterrupt is raised in the head of a loop.
        try:
            work.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        work.close()
        break
    raise RuntimeError("an operation of the blocking API waits for an event loop")


class Closing:
    """Closes itself at the end of a `with` or `async with`."""

    def close(self) -> Any:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


async def maybe_await(answer: Any) -> Any:
    """Await the result of a space of either API."""
    return await answer if isawaitable(answer) else answer


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for a loop."""
    return run_sync(lambda: work)


class OpenedHandle:
    """A handle that is open already, and may be awaited all the same, so that
    `await space.transaction()` works on every kind of space."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self
        yield  # makes this a generator


class AwaitableHandle:
    """A handle of the async API that is being opened: `await` it, or use it with `async with`."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._thing: Any = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    async def __aenter__(self) -> Any:
        self._thing = await self._work
        return await self._thing.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._thing.__aexit__(*error)


class DualHandle:
    """A handle of the blocking or of the async API, closed at the end of its `with` or `async with`
    block."""

    is_async: bool

    def dual_call(self, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Run the coroutine function `work`; on the async API return an `AwaitableHandle`."""
        return AwaitableHandle(work(*args)) if self.is_async else run_sync(partial(work, *args))

    def require_door(self, is_async: bool, instead: str) -> None:
        """Raise TypeError if the handle belongs to the other API; `instead` is what to write."""
        if self.is_async is not is_async:
            raise TypeError(f"use {instead} with this {type(self).__name__}")

    def require_function(self, argument: str, function: Any, of: str) -> None:
        """Raise BadArgument unless this is a function that the API in use can call."""
        if not callable(function):
            raise BadArgument(argument, f"a function of {of}", function)
        if iscoroutinefunction(function) and not self.is_async:
            raise BadArgument(argument, "a plain function, or use tupelo.aio", function)

    def __enter__(self) -> Self:
        self.require_door(False, "'async with'")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run_sync(partial(self.leave, error))

    async def __aenter__(self) -> Self:
        self.require_door(True, "'with'")
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.leave(error)

    async def leave(self, error: BaseException | None) -> None:
        """The end of the block, and the error that ended it, if any."""
        raise NotImplementedError


class ThreadLock:
    """A threading.Lock with the interface of an asyncio.Lock, for blocking spaces."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()
