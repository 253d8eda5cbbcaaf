"""Spans of the operations on a space."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tupelo
from tupelo.errors import BadArgument
from tupelo.queue import JobQueue
from tupelo.telemetry import traced


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


def seen(spans: InMemorySpanExporter) -> list[Any]:
    return [
        (span.name, (span.attributes or {}).get("tupelo.matches"), span.status.is_ok)
        for span in spans.get_finished_spans()
    ]


def test_every_operation_has_a_span(space, spans, tracer):
    watched = traced(space, tracer)
    watched.write(("job", 1))
    assert watched.read(("job", int)) == ("job", 1)
    assert watched.take_all(("job", int)) == [("job", 1)]
    assert watched.take(("job", int), wait=0) is None
    assert seen(spans) == [
        ("write jobs", None, True),
        ("read jobs", 1, True),
        ("take_all jobs", 1, True),
        ("take jobs", 0, True),
    ]
    assert {span.attributes["tupelo.space"] for span in spans.get_finished_spans()} == {"jobs"}


def test_an_error_is_recorded(space, spans, tracer):
    with pytest.raises(BadArgument):
        traced(space, tracer).read(("job", int), wait=-1)
    [span] = spans.get_finished_spans()
    assert not span.status.is_ok
    assert span.events[0].attributes["exception.type"].endswith("BadArgument")


def test_the_span_of_an_awaited_operation_ends_with_it(spans, tracer):
    async def main() -> None:
        async with traced(tupelo.aio.Space("jobs"), tracer) as space:
            waiting = asyncio.create_task(space.take(("job", int)))
            await asyncio.sleep(0)
            assert seen(spans) == []
            await space.write(("job", 1))
            assert await waiting == ("job", 1)

            lost = asyncio.create_task(space.take(("job", int)))
            await asyncio.sleep(0)
            lost.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lost

    asyncio.run(main())
    assert [name for name, _, _ in seen(spans)] == ["write jobs", "take jobs", "take jobs"]


def test_a_queue_works_on_it(space, spans, tracer):
    queue = JobQueue(traced(space, tracer))
    queue.task(name="upper")(str.upper)
    job = queue.submit("upper", "a")
    queue.work(until_empty=True)
    assert job.result(0) == "A"
    assert "take jobs" in {name for name, _, _ in seen(spans)}


def test_what_is_no_space_is_refused(tracer):
    with pytest.raises(BadArgument, match="space"):
        traced(7, tracer)  # type: ignore[type-var]
