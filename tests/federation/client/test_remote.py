"""Remote spaces at a real host: what the laws do not ask of them."""

import asyncio
import threading
from typing import Any

import pytest
import uvloop

import tupelo
from tests.conftest import waiting_at
from tests.federation.client.hosting import Hosting
from tests.laws.kinds import Job
from tupelo.errors import (
    BadArgument,
    BadTemplate,
    IdentityChanged,
    PeerLost,
    SpaceClosed,
    Stranger,
    UnknownHost,
)
from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.tls import client_context, key_of, server_context
from tupelo.federation.identity.trust import Trust
from tupelo.federation.links.tcp import LinkSecurity
from tupelo.space.port import port_of
from tupelo.values.scope import HERE, Scope

# Nothing lost, nothing twice


@pytest.mark.parametrize("wait", [0, None])
def test_each_entry_is_taken_once_though_links_are_cut(dial, host, later, wait):
    host.space.write_all([("n", i) for i in range(200)])
    space = dial(host.url)
    taken: list[int] = []

    def consume() -> None:
        for _ in range(50):
            taken.append(space.take(("n", int), wait=wait)[1])
            if len(taken) % 9 == 0:
                host.cut()

    for consumer in [later(consume) for _ in range(4)]:
        consumer.result()
    assert sorted(taken) == list(range(200))
    assert space.count() == 0


def test_those_who_wait_are_served_after_a_cut(dial, host, later, until):
    space = dial(host.url)
    takers = [later(space.take, ("n", int)) for _ in range(5)]
    until(lambda: waiting_at(host.space) == 5)
    host.cut()
    host.space.write_all([("n", i) for i in range(5)])
    assert sorted(taker.result()[1] for taker in takers) == list(range(5))
    assert host.space.count() == 0


def test_writes_during_cuts_are_done_once_or_in_doubt(dial, host):
    space = dial(host.url)
    done, in_doubt = [], []
    for i in range(60):
        if i % 5 == 0:
            host.cut()
        try:
            space.write(("n", i))
            done.append(i)
        except PeerLost as lost:
            assert lost.in_doubt
            in_doubt.append(i)
    there = [entry[1] for entry in host.space.read_all()]
    assert len(there) == len(set(there))
    assert set(done) <= set(there) <= set(done) | set(in_doubt)


def test_what_a_lost_client_held_is_free(dial, host, until):
    host.space.write(("a",))
    space = dial(host.url, reconnect=0)
    txn = space.transaction()
    assert space.take(("a",), wait=0, txn=txn) == ("a",)
    host.cut()
    assert host.space.take(("a",)) == ("a",)
    with pytest.raises(PeerLost):
        space.write(("b",), txn=txn)


def test_a_prepared_transaction_outlives_its_link(dial, host):
    space = dial(host.url)
    txn = space.transaction()
    space.write(("a",), txn=txn)
    assert txn.prepare() == "prepared"
    host.cut()
    assert [one.id for one in space.in_doubt()] == [txn.id]
    txn.commit()
    assert txn.state == "committed" and host.space.read_all() == [("a",)]


def test_many_threads_share_a_channel(dial, host, later):
    space = dial(host.url)

    def work(k: int) -> list[int]:
        got = []
        for i in range(50):
            space.write((f"queue {k}", i))
            got.append(space.take((f"queue {k}", int))[1])
        return got

    workers = [later(work, k) for k in range(8)]
    assert [worker.result() for worker in workers] == [list(range(50))] * 8


def test_large_entries_go_both_ways_at_once(dial, host, later):
    space = dial(host.url)
    blob = b"x" * 3_000_000

    def work(k: int) -> bool:
        space.write((k, blob))
        return bool(space.take((k, bytes)) == (k, blob))

    assert all(call.result() for call in [later(work, k) for k in range(4)])


# Cancelled tasks


def test_a_cancelled_take_takes_nothing(host, until):
    async def play() -> None:
        async with await tupelo.aio.connect(host.url) as space:
            for _ in range(30):
                task = asyncio.ensure_future(space.take(("a",)))
                await space.count()
                writing = asyncio.ensure_future(space.write(("a",)))
                task.cancel()
                await asyncio.wait([task, writing])
                if task.cancelled():
                    assert await space.take(("a",)) == ("a",)
                assert await space.count() == 0

    asyncio.run(play())


# The async door


async def use(url: str) -> None:
    space = await tupelo.aio.connect(url)
    async with space:
        async with space.transaction() as txn:
            await space.write(("a", 1), txn=txn)
        txn = await space.transaction(lease=10)
        await txn.abort()
        assert txn.state == "aborted"
        lease = await space.write(("b",), lease=10)
        assert lease.remaining is not None and 9 < lease.remaining < 11  # by a clock elsewhere
        await lease.renew(None)
        assert lease.expires is None and lease.remaining is None
        async with space.session() as session:
            assert await session.read(("a", int)) == ("a", 1)
            await session.refresh()
            assert session.seen == 1
        heard = []
        async with space.subscribe(("c", int)) as listener:
            await space.write_all([("c", 1), ("c", 2)])
            async for notice in listener:
                heard.append(notice.entry)
                if len(heard) == 2:
                    break
        assert heard == [("c", 1), ("c", 2)]
        assert (await space.host)["name"] == "host"
        other = await space.space("others")
        assert await other.count() == 0
        await other.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_async_door_on_either_loop(host, run):
    run(use(host.url))


def test_a_with_block_of_the_wrong_door_is_refused(host):
    async def play() -> None:
        async with await tupelo.aio.connect(host.url) as space:
            wrong: Any = space
            with pytest.raises(TypeError, match="async with"), wrong:
                pass

    asyncio.run(play())
    with (
        tupelo.connect(host.url) as space,
        pytest.raises(TypeError, match="'for'"),
        space.subscribe() as listener,
    ):
        asyncio.run(listener.__aiter__().__anext__())  # type: ignore[attr-defined]


# Reactions


def test_a_reaction_runs_once_for_each_entry_that_is_there_or_comes(dial, host, until, loop_thread):
    host.space.write_all([("n", 0), ("n", 1)])
    space = dial(host.url)
    got: list[int] = []

    def react(entry: Any, step: Any) -> Any:
        got.append(entry[1])
        return step.write(("m", entry[1]))

    reaction = space.react(("n", int), react)
    host.space.write(("n", 2))
    txn = host.space.transaction()
    host.space.take(("n", 2), wait=0, txn=txn)
    txn.abort()  # The same entry becomes visible again.
    host.space.write(("n", 3))
    until(lambda: host.space.count(("m", int)) == 4)
    assert got == [0, 1, 2, 3] and reaction.active and reaction.error is None
    reaction.cancel()
    assert not reaction.active
    host.space.write(("n", 4))
    assert space.read(("m", 4), wait=0) is None


def test_a_reaction_that_raises_is_undone_and_goes_on(dial, host, until, caplog):
    space = dial(host.url)

    def react(entry: Any, step: Any) -> Any:
        if entry[1] == 0:
            raise ZeroDivisionError("oh")
        return step.write(("m", entry[1]))

    reaction = space.react(("n", int), react, once=True)
    host.space.write_all([("n", 0), ("n", 1), ("n", 2)])
    until(lambda: not reaction.active)
    assert host.space.read_all(("m", int)) == [("m", 1)]
    assert isinstance(reaction.error, ZeroDivisionError) and "undone" in caplog.text


def test_what_a_reaction_does_is_one_transaction(host, until):
    host.space.write_all([("stock", i) for i in range(3)])
    seen: dict[str, Any] = {}

    def react(entry: Any, step: Any) -> None:
        seen["count"] = step.count(("stock", int))
        seen["read"] = step.read(("stock", 1))
        seen["all"] = step.read_all(("stock", int), limit=2)
        seen["taken"] = step.take(("stock", 0)), step.take_all(("stock", int))
        step.write(("sold", 3), lease=50)
        seen["outside"] = host.space.count()

    with tupelo.connect(host.url) as space:
        reaction = space.react(("order",), react, existing=False)
        host.space.write(("order",))
        until(lambda: host.space.count(("sold", int)) == 1)
        assert reaction.active
    assert seen == {
        "count": 3,
        "read": ("stock", 1),
        "all": [("stock", 0), ("stock", 1)],
        "taken": (("stock", 0), [("stock", 1), ("stock", 2)]),
        "outside": 1,
    }


def test_a_reaction_that_lags_behind_catches_up(host, until, monkeypatch):
    monkeypatch.setattr("tupelo.federation.client.space.BACKLOG_MAX", 3)
    gate, got = threading.Event(), []

    def react(entry: Any, step: Any) -> None:
        gate.wait(10)
        got.append(entry[1])

    with tupelo.connect(host.url) as space:
        space.react(("n", int), react, existing=False)
        host.space.write(("n", 0))
        until(lambda: port_of(host.space).summary(1)[1])  # It has begun with the first.
        host.space.write_all([("n", i) for i in range(1, 101)])
        gate.set()
        until(lambda: len(got) == 101)
    assert sorted(got) == list(range(101))


def test_a_reaction_ends_with_its_space(dial, host, until):
    space = dial(host.url)
    reaction = space.react(("n", int), print)
    space.close()
    until(lambda: not reaction.active)


@pytest.mark.parametrize("function", [None, 1, "print"])
def test_a_reaction_needs_a_function(dial, host, function):
    space = dial(host.url)
    with pytest.raises(BadArgument, match="function="):
        space.react(("n", int), function)


# Arguments


def test_what_cannot_be_sent_is_refused(dial, host):
    space = dial(host.url)
    with pytest.raises(BadTemplate, match="code"):
        space.read(("a", tupelo.Where(bool)), wait=0)
    with pytest.raises(BadArgument, match="order="):
        space.read(order=tupelo.Key(len), wait=0)
    with pytest.raises(BadArgument, match="scope="):
        space.read(scope="here", wait=0)
    with pytest.raises(BadArgument, match="to="):
        space.write(("a",), to="")
    with pytest.raises(BadArgument, match="txn="):
        space.write(("a",), txn=host.space.transaction())
    with pytest.raises(BadArgument, match="name="):
        space.space("")
    with pytest.raises(tupelo.errors.BadEntry, match="field 0"):
        space.write(("\ud800",))
    with pytest.raises(tupelo.errors.BadEntry, match="field 'name'"):
        space.write(Job("\ud800"))
    with pytest.raises(tupelo.errors.BadEntry, match="field 0"):
        space.write((Job("\ud800"),))
    with pytest.raises(BadTemplate, match="Unicode"):
        space.read(Job("\ud800"), wait=0)
    with pytest.raises(BadTemplate, match="Unicode"):
        space.read(("\ud800",), wait=0)
    assert space.count() == 0


def test_a_scope_narrows_where_to_look(dial, host):
    space = dial(host.url)
    space.write(("a",))
    assert space.read(scope=HERE, wait=0) == ("a",)
    assert space.count(scope=Scope.host("host")) == 1
    with pytest.raises(UnknownHost, match="nowhere"):
        space.read(scope=Scope.host("nowhere"), wait=0)
    for make in (Scope.host, Scope.agent):
        with pytest.raises(BadArgument):
            make("")


def test_spaces_over_one_link_are_closed_one_by_one(dial, host):
    space = dial(host.url)
    other = space.space("others")
    other.write(("a",))
    txn = other.transaction()
    assert other.take(("a",), wait=0, txn=txn) == ("a",)
    other.close()
    with pytest.raises(SpaceClosed, match="others"):
        other.count()
    with space.space("others") as again:
        assert again.take(("a",)) == ("a",)  # What was held went free.
    assert space.count() == 0


# TLS


@pytest.fixture
def secured():
    identity = Identity.new()
    security = LinkSecurity(
        server_context(identity), client_context(identity), require_tls=True, key_of=key_of
    )
    hosting = Hosting(security)
    yield hosting, identity
    hosting.close()


def test_under_tls_everything_is_the_same(secured, dial, later):
    host, identity = secured
    space = dial(host.url, identity=Identity.new(), trust=Trust.known([identity.key]))
    space.write(("a", b"x" * 1_000_000))
    assert space.take(("a", bytes)) == ("a", b"x" * 1_000_000)
    taker = later(space.take, ("b", int))
    workers = [later(lambda: [space.write(("n", i)) for i in range(30)]) for _ in range(3)]
    for worker in workers:
        worker.result()
    space.write(("b", 1))
    assert taker.result() == ("b", 1) and space.count(("n", int)) == 90
    host.cut()
    assert len(space.take_all(("n", int))) == 90


def test_a_host_that_is_not_trusted_is_not_met(secured, dial, tmp_path):
    host, identity = secured
    with pytest.raises(Stranger):
        dial(host.url, identity=Identity.new(), trust=Trust.known([Identity.new().key]))
    known = tmp_path / "known_hosts"
    space = dial(host.url, identity=Identity.new(), trust=Trust.on_first_use(known))
    space.close()
    known.write_text(known.read_text().replace(identity.key, Identity.new().key))
    with pytest.raises(IdentityChanged):
        dial(host.url, identity=Identity.new(), trust=Trust.on_first_use(known))


@pytest.mark.parametrize("position", [2**63, -(2**63) - 1, 2**70])
def test_the_key_of_a_field_fits_in_a_message(dial, host, position):
    host.space.write_all([("n", 2), ("n", 1)])
    space = dial(host.url)
    with pytest.raises(BadArgument, match="order="):
        space.read(("n", int), order=tupelo.Key(position))
    assert space.read(("n", int), order=tupelo.Key(2**63 - 1)) == ("n", 2)
    assert space.read(("n", int), order=tupelo.Key(-(2**63))) == ("n", 2)
