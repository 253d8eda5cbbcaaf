"""No request stops a host: while one client asks what takes long, others are served."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import tupelo
from tupelo import ANY, Between, Lifo, Not, OneOf, Template, aio
from tupelo.errors import BadArgument, BadTemplate, CannotSend
from tupelo.federation.links.wire import BULK_MAX
from tupelo.values.template_encoding import TEMPLATE_COST_MAX

MANY = 120_000
NONE = (ANY, Between(-9, -1))

REQUESTS: dict[str, Callable[[Any], Any]] = {
    "read": lambda space: space.read(NONE, wait=0),
    "take": lambda space: space.take(NONE, wait=0),
    "newest first": lambda space: space.read(NONE, wait=0, order=Lifo()),
    "combined": lambda space: space.read(
        Template((OneOf(Between("x", "y"), Not(Between("a", "z"))), ANY)) | NONE, wait=0
    ),
    "read_all": lambda space: space.read_all((ANY, Between(0, 9_999))),
    "count": lambda space: space.count((ANY, Between(0, None))),
    "an index": lambda space: space.read(("none", -1), wait=0),
}


@asynccontextmanager
async def two_clients(**options: Any) -> AsyncIterator[tuple[aio.Host, Any, Any]]:
    """A host with many entries, and two of its clients."""
    async with aio.Host("home", listen=0, **options) as host:
        await host.space("jobs").here.write_all([("job", n) for n in range(MANY)])
        url = f"tupelo://{host.address}/jobs"
        async with await aio.connect(url) as one, await aio.connect(url) as other:
            yield host, one, other


@pytest.mark.parametrize("name", REQUESTS)
def test_others_are_served_while_a_request_takes_long(name):
    async def run() -> None:
        async with asyncio.timeout(120), two_clients() as (_, one, other):
            # All are on one loop. A request that is served in one piece is answered after a few
            # rounds of it, which is less than four others need one after another.
            asked = asyncio.ensure_future(REQUESTS[name](one))
            for n in range(4):
                await other.write(("short", n))
            assert not asked.done()
            await asked

    asyncio.run(run())


def test_a_session_goes_on_where_it_was():
    async def run() -> None:
        async with (
            asyncio.timeout(120),
            two_clients() as (_, one, other),
            one.session() as session,
        ):
            wanted = (ANY, Between(MANY - 2, None))
            assert await session.read(wanted, wait=0) == ("job", MANY - 2)
            assert await session.read(wanted, wait=0) == ("job", MANY - 1)
            waits = asyncio.ensure_future(session.read(wanted))
            await other.write(("job", MANY))
            assert await waits == ("job", MANY)

    asyncio.run(run())


def test_a_taker_of_a_durable_space_gets_what_comes(tmp_path):
    async def run() -> None:
        async with asyncio.timeout(120), two_clients(path=tmp_path) as (_, one, other):
            waits = asyncio.ensure_future(one.take(NONE))
            await other.write_all([("job", 1), ("late", -1), ("late", -2)])
            assert await waits == ("late", -1)
            assert await other.count(NONE) == 1

    asyncio.run(run())


def test_one_request_writes_or_takes_so_many_at_most():
    async def run() -> None:
        async with asyncio.timeout(120), two_clients() as (_, one, _other):
            with pytest.raises(BadArgument, match=f"at most {BULK_MAX:,}"):
                await one.write_all([("n", n) for n in range(BULK_MAX + 1)])
            with pytest.raises(CannotSend, match=f"more than {BULK_MAX:,} entries match.*limit="):
                await one.take_all()
            assert await one.count() == MANY
            assert len(await one.take_all(limit=BULK_MAX)) == BULK_MAX
            assert await one.count() == MANY - BULK_MAX
            assert len(await one.write_all([("n", n) for n in range(BULK_MAX)])) == BULK_MAX
            assert len(await one.take_all(("n", int))) == BULK_MAX

    asyncio.run(run())


def test_what_a_template_may_cost_is_limited():
    costly = OneOf(*[Between(f"{n}", f"{n}x") for n in range(TEMPLATE_COST_MAX)])
    long = OneOf(*[f"{n:0100}" for n in range(2_000)])
    cheap = OneOf(*range(5_000))
    with tupelo.Host("home", listen=0) as host:
        space = host.space("jobs")
        space.write(("job", 7))
        with tupelo.connect(f"tupelo://{host.address}/jobs") as client:
            with pytest.raises(BadTemplate, match=f"allows {TEMPLATE_COST_MAX:,}"):
                client.read((costly, ANY), wait=0)
            with pytest.raises(BadTemplate, match="bytes"):
                client.read((long, ANY), wait=0)
            assert client.read((ANY, cheap), wait=0) == ("job", 7)
        assert space.here.read((costly, ANY), wait=0) is None, "here, it is our own time"
