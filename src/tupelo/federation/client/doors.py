"""Both doors by one text, as in `tupelo.space.either`, and no harm done by an interrupt.

Ctrl-C is noticed at some steps of the interpreter. Here none of these comes after a coroutine was
made and before it runs, nor after it has ended and before its answer is returned: so no coroutine
is left behind, and no answer is lost on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any

from tupelo.space.either import Either


def either(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Make a coroutine a method of both doors."""

    @wraps(method)
    def call(self: Either, *args: Any, **kwargs: Any) -> Any:
        if self.is_async:
            return method(self, *args, **kwargs)
        return at_once(partial(method, self, *args, **kwargs))

    return call


def at_once(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Make a coroutine that never has to wait for a loop, and run it to its end."""
    for work in iter(make, None):  # An interrupt is noticed after a call, but not in a loop's head.
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        work.close()
        break
    raise RuntimeError("an operation of the blocking door waits for an event loop")
