"""Either door by one text: an operation is written once, as a coroutine.

On a blocking space nothing in it ever has to wait for a loop, so the coroutine runs to its end at
once and its answer is returned; on an async space it is returned to be awaited. To a type checker
the answer is Any; the protocols in `tupelo.space.protocol` say what it is at each door.

Ctrl-C is noticed at some steps of the interpreter. None of these comes after a coroutine was made
and before it runs, nor after it has ended and before its answer is returned: so no coroutine is
left behind, and no answer is lost on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial, wraps
from inspect import isawaitable
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from tupelo.space.typed import Async, Blocking, OnDoor

T = TypeVar("T")
P = ParamSpec("P")


class DualApi(Protocol):
    """What stands on a blocking or on an async space."""

    @property
    def is_async(self) -> bool: ...


E_contra = TypeVar("E_contra", bound=DualApi, contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class DualMethod(Protocol[E_contra, P, R_co]):
    """A method of both doors, to a type checker: what it returns depends on the door."""

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
    """Make a coroutine a method of both doors, with the same parameters."""

    @wraps(method)
    def call(self: E_contra, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        if self.is_async:
            return method(self, *args, **kwargs)
        return run_sync(partial(method, self, *args, **kwargs))

    return call  # type: ignore[return-value]


def run_sync(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Make a coroutine that never has to wait for a loop, and run it to its end."""
    for work in iter(make, None):  # An interrupt is noticed after a call, but not in a loop's head.
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        work.close()
        break
    raise RuntimeError("an operation of the blocking door waits for an event loop")


class Closing:
    """What is closed at the end of a `with`, or an `async with`."""

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
    """The answer of a space at either door."""
    return await answer if isawaitable(answer) else answer


def run_coroutine(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never has to wait for a loop."""
    return run_sync(lambda: work)


def await_at_once(thing: T) -> Generator[Any, None, T]:
    """For `__await__` of a thing that is there at once, where others of its kind have to come from
    elsewhere: `await space.transaction()` works on every kind of space."""
    return thing
    yield  # It makes this a generator.
