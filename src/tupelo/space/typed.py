"""What reads and takes return, to a type checker.

| template | `take` returns | `take_all` returns |
| --- | --- | --- |
| an instance of a dataclass, or the class `Job` | `Job \\| None` | `list[Job]` |
| a tuple of 2 to 4 values and types, `("job", int)` | `tuple[str, int] \\| None` | a list |
| another tuple | `tuple[Any, ...] \\| None` | `list[tuple[Any, ...]]` |
| anything else | `Any` | `list[Any]` |

The decorators return the method as it is. Its first parameter is the template; it keeps the others.
A class that serves both doors is an `OnDoor`: its constructor says which door it stands at.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)
from uuid import UUID

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    from tupelo.space.protocol import AsyncMatchSetLike, MatchSetLike

    DoorT = WithDefault("DoorT", default="Blocking")
else:
    DoorT = TypeVar("DoorT")


class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


# Not a tuple or a union of types: within a tuple they are templates, and have other types.
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
    """One match, or None, to be awaited."""

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
    """All matches, to be awaited."""

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
    """A match set, to be awaited."""

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


def async_one(method: Method[Self_, P]) -> AsyncOne[P]:
    return method  # type: ignore[return-value]


def async_many(method: Method[Self_, P]) -> AsyncMany[P]:
    return method  # type: ignore[return-value]


def matches(method: Method[Self_, P]) -> Matches[P]:
    return method  # type: ignore[return-value]


def async_matches(method: Method[Self_, P]) -> AsyncMatches[P]:
    return method  # type: ignore[return-value]


class Blocking:
    """The door for threads, as a type: `JavaSpace05[Blocking]`, or `JavaSpace05`."""


class Async:
    """The door for coroutines, as a type: `JavaSpace05[Async]`."""


class OnDoor(Generic[DoorT]):
    """What stands at one of the doors, and is written once for both."""

    is_async: bool


class EitherOne(Protocol[P]):
    """One match, or None; at the async door to be awaited."""

    @overload
    def __get__(self, thing: OnDoor[Blocking], owner: Any) -> One[P]: ...
    @overload
    def __get__(self, thing: OnDoor[Async], owner: Any) -> AsyncOne[P]: ...
    @overload
    def __get__(self, thing: None, owner: Any) -> Callable[Concatenate[Any, Any, P], Any]: ...
    @overload
    def __get__(self, thing: object, owner: Any) -> Callable[Concatenate[Any, P], Any]: ...


class EitherMany(Protocol[P]):
    """All matches; at the async door to be awaited."""

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
