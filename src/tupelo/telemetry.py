"""OpenTelemetry: a span for every operation on a space. Needs the extra `tupelo[telemetry]`.

`traced(space)` is used like the space. How long an operation waited is the length of its span; a
job queue, a model or a program on it needs no change.
"""

from __future__ import annotations

from functools import wraps
from inspect import isawaitable
from typing import Any, TypeVar, cast

from opentelemetry import trace

from tupelo.errors import BadArgument
from tupelo.space.protocol import AsyncSpaceLike, SpaceLike

S = TypeVar("S", SpaceLike, AsyncSpaceLike)

OPERATIONS = frozenset(
    ("write", "write_all", "read", "take", "read_all", "take_all", "count", "match_set")
)
"""The operations that have a span."""


def traced(space: S, tracer: trace.Tracer | None = None) -> S:
    """The same space with a span for each operation, named like "take jobs".

    A span has the attributes `tupelo.space` and, of a read or take, `tupelo.matches`; an error is
    recorded in it. `tracer` is that of the global provider if none is given.
    """
    if not hasattr(space, "take"):
        raise BadArgument("space", "a space", space)
    traced_space = _TracedSpace(space, tracer or trace.get_tracer("tupelo"))
    return cast(S, traced_space)


class _TracedSpace:
    def __init__(self, space: Any, tracer: trace.Tracer) -> None:
        self._space = space
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._space, name)
        return self._with_span(name, found) if name in OPERATIONS else found

    def _with_span(self, name: str, operation: Any) -> Any:
        @wraps(operation)
        def call(*args: Any, **options: Any) -> Any:
            space = self._space.name
            span = self._tracer.start_span(f"{name} {space}", attributes={"tupelo.space": space})
            try:
                with trace.use_span(span):
                    result = operation(*args, **options)
            except BaseException:
                span.end()
                raise
            if isawaitable(result):
                return _await_in(span, name, result)
            return _ended(span, name, result)

        return call

    def __enter__(self) -> Any:
        self._space.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._space.__exit__(*error)

    async def __aenter__(self) -> Any:
        await self._space.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._space.__aexit__(*error)

    def __repr__(self) -> str:
        return f"<traced {self._space!r}>"


async def _await_in(span: trace.Span, name: str, result: Any) -> Any:
    try:
        with trace.use_span(span):
            found = await result
    except BaseException:
        span.end()
        raise
    return _ended(span, name, found)


def _ended(span: trace.Span, name: str, result: Any) -> Any:
    """Note how many matches there were, and end the span. Returns the result."""
    if name in ("read", "take"):
        span.set_attribute("tupelo.matches", int(result is not None))
    elif name in ("read_all", "take_all"):
        span.set_attribute("tupelo.matches", len(result))
    span.end()
    return result
