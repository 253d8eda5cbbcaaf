"""Either door by one text: a model's operation is written once, as a coroutine.

On a blocking space nothing in it ever has to wait for a loop, so the coroutine runs to its end at
once and its answer is returned; on an async space it is returned to be awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import isawaitable
from typing import Any, Protocol, Self


class Either(Protocol):
    """What stands on a blocking or on an async space."""

    @property
    def is_async(self) -> bool: ...


def either(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Make a coroutine a method of both doors."""

    @wraps(method)
    def call(self: Either, *args: Any, **kwargs: Any) -> Any:
        work = method(self, *args, **kwargs)
        return work if self.is_async else finished(work)

    return call


class Closing:
    """What is closed at the end of a `with`, or an `async with`."""

    close: Callable[..., Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


async def settled(answer: Any) -> Any:
    """The answer of a space at either door."""
    return await answer if isawaitable(answer) else answer


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never has to wait for a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("an operation of the blocking door waits for an event loop")
