"""Models from a connected client: the host runs them for it. Real sockets, both doors."""

from __future__ import annotations

import asyncio
import operator
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.conftest import Call, Program, until_true
from tupelo import ANY, aio
from tupelo.errors import (
    BadArgument,
    BadInput,
    CannotSend,
    HeapDestroyed,
    HostClosed,
    LeaseLost,
    NotAllowed,
    PeerLost,
    SpaceClosed,
    UnknownType,
)
from tupelo.federation.identity.access import Access
from tupelo.federation.spaces.hosted import Doubt
from tupelo.models import lime
from tupelo.models.event_heap import Event, EventHeap
from tupelo.models.linda import TupleSpace, live
from tupelo.models.melon import Bound, Collected, Copies, Melon
from tupelo.models.melon.served import METHODS
from tupelo.models.pubsub import PubSub, Reply
from tupelo.models.rpc import Rpc

PAGE = Path(__file__).parents[2] / "docs" / "DOORS.md"
WAIT = 10.0


def connected(host: tupelo.Host, name: str, **options: Any) -> Any:
    return tupelo.connect(f"{host.url}{name}", **options)


@pytest.fixture
def host() -> Iterator[tupelo.Host]:
    with tupelo.Host("town", listen="127.0.0.1:0") as host:
        yield host


def waits_at(host: tupelo.Host) -> None:
    """Until some client waits for an answer of a service."""
    until_true(
        lambda: any(serving.requests.tasks for serving in host.core.servings.values()),
        "a client waits at its host",
    )


@dataclass
class Note:
    topic: str | None = None
    number: int | None = None


@pytest.fixture
def two_hosts() -> Iterator[tuple[tupelo.Host, tupelo.Host]]:
    """Two hosts that are engaged."""
    with (
        tupelo.Host("town", listen="127.0.0.1:0") as town,
        tupelo.Host("port", listen="127.0.0.1:0", peers=[town.address]) as port,
    ):
        town.presence.read(tupelo.HostPresence(name="port"), wait=WAIT)
        port.presence.read(tupelo.HostPresence(name="town"), wait=WAIT)
        yield town, port


@contextmanager
def killed_while(host: tupelo.Host, program: str) -> Iterator[None]:
    """Another process runs this program, with the address of the host as `url`, and is killed when
    it waits; then the block runs."""
    lines = f"import tupelo\nurl = {host.url!r}\n{program}"
    with Program(lines):
        waits_at(host)
    until_true(lambda: not host.core.servings, "the host has noticed")
    yield


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_an_event_that_a_client_was_given_and_has_not_received_goes_back(host, end):
    """It is closed, or killed, between the answer of the host and its confirmation."""
    host.space("room", doubt=Doubt(seconds=0.1))
    lines = f"""
import sys, tupelo
from tupelo.federation.client.services import invoke
from tupelo.space.dual_api import run_sync
space = tupelo.connect({host.url!r} + "room")
run_sync(lambda: invoke(space, "event_heap", "put", "door", [["n", 1]], None, about="room"))
removing = lambda: invoke(space, "event_heap", "remove", "door", None, about="room", wait=None)
print(run_sync(removing), flush=True)
sys.stdin.readline()
space.close()
"""
    with Program(lines) as process:
        assert process.line() == "[['n', 1]]"
        with heap_of(host) as ada:
            assert ada.snoop() is None  # It is on its way.
            waiting = Call(ada.wait_to_remove, ("n", int), wait=WAIT)
            if end == "killed":
                process.kill()
            else:
                process.tell()
            assert waiting.result() == ("n", 1)


# What the page says


def said() -> dict[str, list[str]]:
    """The rows of the table "From a connected client", by their first cells."""
    section = PAGE.read_text("utf-8").partition("## From a connected client")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0] == ["model", "opened by", "works", "refused"]
    return {row[0]: row[1:] for row in rows[2:]}


def names_in(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)", cell))


def operations_of(door: type) -> set[str]:
    return {
        name for name in dir(door) if not name.startswith("_") and callable(getattr(door, name))
    }


DOORS: dict[str, type] = {
    "Linda": TupleSpace,
    "MELON": Melon,
    "Event Heap": EventHeap,
    "pubsub": PubSub,
    "RPC": Rpc,
}


def test_the_page_names_every_operation_of_every_door():
    rows = said()
    assert list(rows) == ["Linda", "MELON", "Event Heap", "pubsub", "RPC", "LIME"]
    for model, door in DOORS.items():
        _, works, refused = rows[model]
        assert names_in(works).isdisjoint(names_in(refused))
        assert names_in(works) | names_in(refused) == operations_of(door), model


def test_a_client_is_no_host_of_lime_agents(host):
    reason = r"host= .* agents live at a host"
    with connected(host, "camp") as space, pytest.raises(BadArgument, match=reason):
        lime.Host(space)


# Linda


@pytest.mark.parametrize("kind", ["memory", "client", "federated", "here"])
def test_linda_at_the_async_door_of_every_kind_of_space(kind):
    async def main() -> None:
        async with AsyncExitStack() as stack:
            host = await stack.enter_async_context(aio.Host("town", listen="127.0.0.1:0"))
            spanning = host.space("linda")
            space: aio.SpaceLike = aio.Space("linda") if kind == "memory" else spanning
            if kind == "client":
                space = await aio.connect(f"{host.url}linda")
            elif kind == "here":
                space = spanning.here
            ts = await stack.enter_async_context(TupleSpace(space))
            assert ts.is_async
            await ts.out(("a", 1))
            assert await ts.rd(("a", int)) == await ts.rdp(("a", int)) == ("a", 1)
            waiting = asyncio.ensure_future(ts.in_(("b", int)))
            await ts.out(("b", 2))
            assert await waiting == ("b", 2)
            assert await ts.inp(("b", int)) is None
            await ts.out(("a", 2))
            assert await ts.rdg(("a", int)) == [("a", 1), ("a", 2)]
            assert await ts.count(("a", int)) == 2
            async with TupleSpace(aio.Space("other")) as other:
                assert await ts.copy_collect(other, ("a", int)) == 2
                assert await ts.collect(other, ("a", 1)) == 1
                assert await other.count(ANY) == 3
            assert await ts.ing(("a", int)) == [("a", 2)]
            assert await ts.delete(("a", int)) is False
            made = ts.eval(("sum", live(operator.add, 2, 3)))
            assert await made.result(wait=WAIT) == await ts.in_(("sum", int)) == ("sum", 5)
            failing = ts.eval(("ratio", live(operator.truediv, 1, 0)))
            with pytest.raises(tupelo.TupeloError, match="ZeroDivisionError"):
                await failing.result(wait=WAIT)
            with pytest.raises(BadArgument, match="destination="):
                await ts.collect(TupleSpace(), ANY)
            if kind == "federated":
                with pytest.raises(BadArgument, match=r"space= .* \.here"):
                    await ts.exchange(("mine", 1))
                return
            met: Any = await asyncio.gather(ts.exchange(("mine", 1)), ts.exchange(("yours", 2)))
            assert met == [("yours", 2), ("mine", 1)]
            assert await ts.exchange(("mine", 1), wait=0.01) is None

    asyncio.run(main())


def test_an_exchange_spans_hosts_nowhere(host):
    with pytest.raises(BadArgument, match=r"space= .* \.here"):
        TupleSpace(host.space("market")).exchange(("a", 1))


def test_clients_of_one_host_and_its_own_program_exchange(host):
    with (
        TupleSpace(connected(host, "market")) as ada,
        TupleSpace(connected(host, "market")) as ben,
    ):
        offer = Call(ada.exchange, ("ada's", 1))
        assert ben.exchange(("ben's", 2), wait=WAIT) == ("ada's", 1)
        assert offer.result() == ("ben's", 2)
        offer = Call(ada.exchange, ("ada's", 3))
        here = TupleSpace(host.space("market").here)
        assert here.exchange(("town's", 4), wait=WAIT) == ("ada's", 3)
        assert offer.result() == ("town's", 4)
        with pytest.raises(BadArgument, match="wait="):
            ada.exchange(("ada's", 1), wait=-1)


def test_a_client_that_leaves_withdraws_its_offer(host):
    ada = connected(host, "market")
    offer = Call(TupleSpace(ada).exchange, ("ada's", 1))
    waits_at(host)
    ada.close()
    with pytest.raises(SpaceClosed):
        offer.result()
    here = TupleSpace(host.space("market").here)
    assert here.exchange(("town's", 2), wait=0.05) is None


def test_an_exchange_ends_with_its_host():
    with tupelo.Host("town", listen="127.0.0.1:0") as host:
        ada = connected(host, "market", reconnect=0)
        offer = Call(TupleSpace(ada).exchange, ("ada's", 1))
        waits_at(host)
    with pytest.raises(PeerLost) as lost:
        offer.result()
    assert lost.value.in_doubt


def test_who_may_not_take_may_not_exchange(host):
    host.space("market", access=Access(take=()))
    with TupleSpace(connected(host, "market")) as ada, pytest.raises(NotAllowed):
        ada.exchange(("ada's", 1), wait=0)


# MELON


def melon_of(host: tupelo.Host, name: str = "news") -> Melon:
    return Melon(connected(host, name))


def test_a_client_stores_and_takes_writes_and_reads(host):
    with melon_of(host) as ada, melon_of(host) as ben:
        ada.store(("job", 1))
        ada.store(("job", 2))
        assert ben.take(("job", int)) == ("job", 1)
        assert ada.take_all(("job", int)) == [("job", 2)]
        assert ben.take(("job", int), 0) is None and ben.take_all(("job", int), 0) == []
        ada.write(("news", 1))
        ada.write(("news", 2))
        assert ben.read(("news", int)) == ("news", 1)
        assert ben.read_all(("news", int)) == [("news", 2)]
        assert ben.read(("news", int), 0) is None and ben.read_all(("news", int), 0.01) == []
        assert ada.read_all(("news", int)) == [("news", 1), ("news", 2)]
        assert ada.identity is None and ada.refused == 0
        assert "client" in repr(ada)


def test_a_client_waits_for_messages(host):
    with melon_of(host) as ada, melon_of(host) as ben:
        waiting = {
            "take": Call(ada.take, ("a", int)),
            "take_all": Call(ada.take_all, ("b", int), WAIT),
            "read": Call(ada.read, ("c", int)),
            "read_all": Call(ada.read_all, ("d", int), WAIT),
        }
        for name in "ab":
            ben.store((name, 1))
        for name in "cd":
            ben.write((name, 1))
        got = {verb: call.result() for verb, call in waiting.items()}
        assert got == {
            "take": ("a", 1),
            "take_all": [("b", 1)],
            "read": ("c", 1),
            "read_all": [("d", 1)],
        }


def test_clients_and_programs_of_two_hosts_share_one_melon(two_hosts):
    town, port = two_hosts
    with melon_of(town) as ada, melon_of(port) as ben, Melon(port, "news") as there:
        there.write(("news", 1))
        assert ada.read(("news", int), WAIT) == ben.read(("news", int), WAIT) == ("news", 1)
        ben.write(("news", 2))
        assert ada.read(("news", int), WAIT) == ("news", 2)
        assert there.read_all(("news", int), WAIT) == [("news", 1), ("news", 2)]
        there.store(("job", 1))
        assert ada.take(("job", int), WAIT) == ("job", 1)
        assert there.take(("job", int), 0) is None and ben.take(("job", int), 0) is None
        ada.store(("job", 2))
        assert there.take(("job", int), WAIT) == ("job", 2)
        each = [Call(one.take, ("turn", int), WAIT) for one in (ada, ben, there)]
        for number in range(3):
            ada.store(("turn", number))
        assert sorted(call.result()[1] for call in each) == [0, 1, 2]


def test_a_host_passes_on_messages_of_classes_that_it_does_not_know(host):
    program = """
from dataclasses import dataclass
from tupelo.models.melon import Melon
@tupelo.entry("tests.Strange")
@dataclass
class Strange:
    number: int | None = None
melon = Melon(tupelo.connect(url + "news"))
melon.write(Strange(7))
melon.store(Strange(8))
print(melon.read(Strange()), melon.take(Strange()))
melon.write(Strange(9))
"""
    lines = f"import tupelo\nurl = {host.url!r}\n{program}"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Strange(number=7) Strange(number=8)\n", done.stderr
    with melon_of(host) as ada:
        for _ in range(2):  # What cannot be built here has not been read.
            with pytest.raises(UnknownType):
                ada.read(ANY, WAIT)
        ada.write(Note("tea", 1))
        assert ada.read(Note("tea"), WAIT) == Note("tea", 1)


def test_pins_and_what_was_collected_at_the_host(host):
    Melon(host, "news", bound=Bound(count=2))
    with melon_of(host) as ada:
        ada.write(("n", 0), pin=True)
        ada.store(("job", 0), pin=True)
        told = Call(ada.collected.get, WAIT)
        for number in (1, 2, 3):
            ada.write(("n", number))
        assert told.result() == Collected(("n", 1), "written")
        assert ada.collected.get(WAIT) == Collected(("n", 2), "written")
        assert ada.collected.count == 2
        assert ada.collected.get(0) is None
        assert ada.unpin(("n", int)) == 1 and ada.unpin(("job", int)) == 1
        ada.write(("n", 4))
        assert ada.collected.get(WAIT) == Collected(("n", 0), "written")


def test_what_a_client_of_melon_cannot_do(host):
    with melon_of(host) as ada:
        uses: dict[str, Callable[[], object]] = {
            "to": lambda: ada.store(("a", 1), to="k" * 64),
            "sender": lambda: ada.take(("a", int), sender="k" * 64),
            "wait": lambda: ada.read(("a", int), -1),
            "pin": lambda: ada.write(("a", 1), pin=1),  # type: ignore[arg-type]
        }
        for name, use in uses.items():
            with pytest.raises(BadArgument, match=f"{name}="):
                use()
        with pytest.raises(BadArgument, match="wait="):
            ada.take(("a", int), -1)
        with pytest.raises(CannotSend, match="message="):
            ada.write(("a", "\ud800"))
        with pytest.raises(tupelo.TupeloError):
            ada.read(tupelo.Where(bool), 0)  # code is not sent
        with pytest.raises(BadArgument, match="name="):
            Melon(connected(host, "news"), "olds")
        with pytest.raises(BadArgument, match="bound="):
            Melon(connected(host, "news"), bound=Bound(count=1))
        with pytest.raises(BadArgument, match="copies="):
            Melon(connected(host, "news"), copies=Copies())
        with pytest.raises(BadArgument, match="name="):
            melon_of(host, "tupelo.written.news")
    with pytest.raises(HostClosed):
        ada.write(("a", 1))


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (Access(read=()), {"store", "write", "take"}),
        (Access(write=()), {"read", "take", "collected", "unpin"}),
        (Access(take=()), {"store", "write", "read", "collected"}),
    ],
    ids=["no read", "no write", "no take"],
)
def test_the_rules_of_the_space_are_those_of_its_melon(host, rules, allowed):
    host.space("news", access=rules)
    with melon_of(host) as ada:
        uses: dict[str, Callable[[], object]] = {
            "store": lambda: ada.store(("a", 1), pin=True),
            "write": lambda: ada.write(("a", 1)),
            "take": lambda: ada.take(("a", int), 0),
            "read": lambda: ada.read(("a", int), 0),
            "collected": lambda: ada.collected.get(0),
            "unpin": lambda: ada.unpin(("a", int)),
        }
        for name, use in uses.items():
            if name in allowed or (name == "unpin" and "take" in allowed):
                use()
            else:
                with pytest.raises(NotAllowed):
                    use()


def test_a_password_is_shown_once(host):
    host.space("news", access=Access(password="tea"))
    with pytest.raises(tupelo.TupeloError, match="password"):
        connected(host, "news")
    with Melon(connected(host, "news", password="tea")) as ada:
        ada.write(("a", 1))
        assert ada.read(("a", int), WAIT) == ("a", 1)


@pytest.mark.parametrize("verb", ["take", "take_all", "read", "read_all"])
def test_a_wait_of_melon_ends_with_its_connection(host, verb):
    ada = melon_of(host)
    call = Call(getattr(ada, verb), ("a", int))
    waits_at(host)
    ada.close()
    ada.close()
    with pytest.raises(SpaceClosed):
        call.result()


@pytest.mark.parametrize("verb", ["take", "read"])
def test_a_wait_of_melon_ends_with_its_host(verb):
    with tupelo.Host("town", listen="127.0.0.1:0") as host:
        ada = Melon(connected(host, "news", reconnect=0))
        call = Call(getattr(ada, verb), ("a", int))
        waits_at(host)
    with pytest.raises(PeerLost):
        call.result()


@pytest.mark.parametrize("verb", ["take", "read"])
def test_a_client_that_is_killed_while_it_waits_takes_nothing_along(host, verb):
    program = f"""
from tupelo.models.melon import Melon
Melon(tupelo.connect(url + "news")).{verb}(("a", int))
"""
    with killed_while(host, program), melon_of(host) as ada:
        (ada.store if verb == "take" else ada.write)(("a", 1))
        assert getattr(ada, verb)(("a", int), WAIT) == ("a", 1)


def test_melon_at_the_async_door(host):
    async def main() -> None:
        async with Melon(await aio.connect(f"{host.url}news")) as ada:
            await ada.store(("a", 1))
            assert await ada.take(("a", int)) == ("a", 1)
            waiting = asyncio.ensure_future(ada.read(("b", int)))
            await ada.write(("b", 1))
            assert await waiting == ("b", 1)
            assert await ada.read_all(("b", int), 0) == []
            for verb in (ada.read, ada.take):  # What a task that gave up did not get is there.
                giving_up = asyncio.ensure_future(verb(("c", int)))
                await asyncio.sleep(0)
                giving_up.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await giving_up
            await ada.write(("c", 1))
            await ada.store(("c", 2))
            assert await ada.read(("c", int), WAIT) == ("c", 1)
            assert await ada.take(("c", int), WAIT) == ("c", 2)
            assert await ada.collected.get(0) is None
            with pytest.raises(BadArgument, match="to="):
                await ada.store(("a", 1), to="k" * 64)

    asyncio.run(main())


# The Event Heap


def heap_of(host: tupelo.Host, name: str = "room") -> EventHeap:
    return EventHeap(connected(host, name))


def test_a_client_puts_gets_snoops_and_removes(host):
    with heap_of(host) as ada, heap_of(host) as ben:
        ada.put(Event("tea", cups=2))
        ada.put_all([Event("tea", cups=3), ("plain", 1), Note("tea", 4)])
        assert ben.get(Event("tea")) == Event("tea", cups=2)
        assert ben.get(Event("tea", cups=int)) == Event("tea", cups=3)
        assert ben.get(Event("tea")) is None and ben.wait(Event("tea"), wait=0.01) is None
        assert ben.snoop(Event("tea", cups=tupelo.Between(3, 9))) == Event("tea", cups=3)
        assert ben.snoop(Event(None, cups=2)) == Event("tea", cups=2)
        assert ben.snoop(Event("tea", cups=str)) is None
        assert len(ben.snoop_all()) == 4
        assert ben.get_all() == [("plain", 1), Note("tea", 4)] and ben.get_all() == []
        assert ben.remove(Event("tea", cups=2)) == Event("tea", cups=2)
        assert ben.remove(Event("tea", cups=2)) is None
        assert ada.wait_to_remove(("plain", int), wait=WAIT) == ("plain", 1)
        assert ada.wait_to_remove(("plain", int), wait=0.01) is None
        assert ada.get_all() == [Event("tea", cups=3), Note("tea", 4)]
        ada.put(("brief",), ttl=0.01)
        until_true(lambda: ada.snoop(("brief",)) is None, "its time is over")
        assert ada.hosts == [] and "client" in repr(ada)


def test_a_client_waits_for_events(host):
    with heap_of(host) as ada, heap_of(host) as ben:
        seeing, removing = Call(ada.wait, ("a", int)), Call(ada.wait_to_remove, ("b", int))
        ben.put(("a", 1))
        ben.put(("b", 1))
        assert seeing.result() == ("a", 1) and removing.result() == ("b", 1)
        assert ben.get_all() == [("a", 1)]


def test_sessions_and_queries_of_clients(host):
    with heap_of(host) as ada, heap_of(host) as ben:
        ada.put(("n", 1))
        with ada.session() as session:
            assert session.id is None
            assert session.get(("n", int)) == ("n", 1) and session.get() is None
            clone = session.clone()
            shared = session.share()
            ada.put(("n", 2))
            assert clone.wait(wait=WAIT) == session.get() == ("n", 2)
        with pytest.raises(LeaseLost, match="closed"):
            session.get()
        there = ben.session(shared, wait=WAIT)
        assert there.id == shared and there.get_all() == [("n", 2)]
        assert ada.session(shared).get() is None
        with pytest.raises(BadArgument, match="id="):
            ada.session("unknown", wait=0)
        with pytest.raises(BadArgument, match="id="):
            ada.session(3)  # type: ignore[arg-type]

        query = ada.query(Event("tea"))
        told: list[Any] = []
        come: list[Any] = []
        ada.query(("n", int), told.append)
        ben.register(("n", int), come.append)
        ben.put(Event("tea", cups=1))
        ben.put(Event("tea", cups=2))
        assert query.get(Event(None, cups=2)) == Event("tea", cups=2)  # both templates
        assert query.wait(wait=WAIT) == Event("tea", cups=1)
        assert query.get_all() == []
        ada.put(("n", 3))
        until_true(lambda: told == [("n", 1), ("n", 2), ("n", 3)], "the query is told")
        until_true(lambda: come == [("n", 3)], "who registers is told what comes")
        with pytest.raises(BadArgument, match="callback="):
            ada.query(ANY, 3)  # type: ignore[arg-type]


def test_clients_and_programs_of_two_hosts_share_one_heap(two_hosts):
    town, port = two_hosts
    with heap_of(town) as ada, heap_of(port) as ben, EventHeap(port, "room") as there:
        there.put(("a", 1))
        assert ada.wait(wait=WAIT) == ben.wait(wait=WAIT) == there.wait(wait=WAIT) == ("a", 1)
        ada.put(("a", 2))
        assert there.wait_to_remove(("a", 2), wait=WAIT) == ("a", 2)
        assert ada.wait_to_remove(("a", 1), wait=WAIT) == ("a", 1)
        until_true(lambda: not ben.snoop_all() and not there.snoop_all(), "they are gone")
        assert ada.hosts == [port.core.id]
        each = [Call(one.wait_to_remove, ("t", int), wait=WAIT) for one in (ada, ben, there)]
        for number in range(3):
            ben.put(("t", number))
        assert sorted(call.result()[1] for call in each) == [0, 1, 2]


def test_what_a_client_of_a_heap_cannot_do(host):
    with heap_of(host) as ada:
        with pytest.raises(BadInput, match="views"):
            ada.view()
        with pytest.raises(BadArgument, match="wait="):
            ada.wait(wait=-1)
        with pytest.raises(BadArgument, match="ttl="):
            ada.put(("a", 1), ttl=-1)
        with pytest.raises(BadArgument, match="events="):
            ada.put_all("text")
        with pytest.raises(tupelo.TupeloError, match="code"):
            ada.get(Event("tea", cups=tupelo.Where(bool)))
        with pytest.raises(tupelo.TupeloError):
            ada.get(3)
        with pytest.raises(BadArgument, match="name="):
            EventHeap(connected(host, "room"), "hall")
        with pytest.raises(BadArgument, match="patience="):
            EventHeap(connected(host, "room"), patience=1.0)
        with pytest.raises(BadArgument, match="name="):
            heap_of(host, "tupelo.system.room")
    closed: list[Callable[[], object]] = [
        ada.get,
        lambda: ada.put(("a", 1)),
        ada.remove,
        ada.destroy,
    ]
    for use in closed:
        with pytest.raises(HostClosed):
            use()


@pytest.mark.parametrize("denied", ["read", "write", "take", "administer"])
def test_the_rules_of_the_space_are_those_of_its_heap(host, denied):
    rules: dict[str, Any] = {denied: ()}
    host.space("room", access=Access(**rules))
    with heap_of(host) as ada:
        uses: list[tuple[str, Callable[[], object]]] = [
            ("read", lambda: ada.get()),
            ("read", lambda: ada.snoop()),
            ("read", lambda: ada.query()),
            ("read", lambda: ada.session()),
            ("write", lambda: ada.put(("a", 1))),
            ("take", lambda: ada.remove()),
            ("administer", lambda: ada.destroy()),
        ]
        for operation, use in uses:
            if operation != denied:
                use()
            else:
                with pytest.raises(NotAllowed):
                    use()


def test_a_client_destroys_a_heap_and_creates_it_again(host):
    with heap_of(host) as ada, connected(host, "room") as space:
        ada.put(("a", 1))
        waiting = Call(ada.wait, ("b", int))
        waits_at(host)
        ada.destroy()
        with pytest.raises(HeapDestroyed):
            waiting.result()
        with pytest.raises(HeapDestroyed):
            ada.get()
        with EventHeap.create(space) as again:
            assert again.snoop_all() == []
            again.put(("a", 2))
            assert again.get() == ("a", 2)


@pytest.mark.parametrize("verb", ["wait", "wait_to_remove"])
def test_a_wait_of_a_heap_ends_with_its_connection_or_its_host(verb):
    with tupelo.Host("town", listen="127.0.0.1:0") as host:
        ada, ben = heap_of(host), EventHeap(connected(host, "room", reconnect=0))
        call = Call(getattr(ada, verb), ("a", int))
        waits_at(host)
        ada.close()
        with pytest.raises(SpaceClosed):
            call.result()
        call = Call(getattr(ben, verb), ("a", int))
        waits_at(host)
    with pytest.raises(PeerLost):
        call.result()


@pytest.mark.parametrize("verb", ["wait", "wait_to_remove"])
def test_a_client_that_is_killed_removes_nothing(host, verb):
    program = f"""
from tupelo.models.event_heap import EventHeap
EventHeap(tupelo.connect(url + "room")).{verb}(("a", int))
"""
    with killed_while(host, program), heap_of(host) as ada:
        ada.put(("a", 1))
        assert ada.wait_to_remove(("a", int), wait=WAIT) == ("a", 1)


def test_the_heap_at_the_async_door(host):
    async def main() -> None:
        async with EventHeap(await aio.connect(f"{host.url}room")) as ada:
            waiting = asyncio.ensure_future(ada.wait(("a", int)))
            await ada.put(("a", 1))
            assert await waiting == ("a", 1)
            giving_up = asyncio.ensure_future(ada.wait_to_remove(("b", int)))
            await asyncio.sleep(0)
            giving_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving_up
            await ada.put_all([("b", 1)])
            assert await ada.snoop_all(("b", int)) == [("b", 1)]
            assert await ada.remove(("b", int)) == ("b", 1)
            async with await ada.session() as session:
                assert await session.get_all() == [("a", 1)]
            told: list[Any] = []
            await ada.register(("c", int), told.append)
            await ada.put(("c", 1))
            assert await ada.wait(("c", int), wait=WAIT) == ("c", 1)
            while not told:
                await asyncio.sleep(0.01)
            hosts: Any = ada.hosts
            assert told == [("c", 1)] and await hosts == []
            await ada.destroy()
            with pytest.raises(HeapDestroyed):
                await ada.get()

    asyncio.run(main())


def test_what_was_read_and_not_received_is_read_again(host, monkeypatch):
    """An answer of the host that nobody has confirmed before a task gave up."""

    async def main() -> None:
        async with Melon(await aio.connect(f"{host.url}news")) as ada:
            door: Any = ada._door
            await ada.write(("n", 1))
            read = METHODS["read"]
            fails = read._replace(answer=read.answer._replace(read=fail))
            with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="be built"):
                patch.setattr(door, "_methods", {"read": fails})
                await door.call("read", ("n", 1), False)
            assert await ada.read(("n", int), WAIT) == ("n", 1)
            assert await ada.read(("n", int), 0) is None

    def fail(answer: object) -> None:
        raise RuntimeError("it cannot be built")

    asyncio.run(main())


# Publish-subscribe-collect


def broker_of(host: tupelo.Host, name: str = "wire") -> PubSub:
    return PubSub(connected(host, name))


def test_a_client_publishes_and_subscribes(host):
    with broker_of(host) as ada, broker_of(host) as ben:
        news = ben.subscribe(("news", int))
        told: list[Reply] = []
        ben.subscribe(Note("tea"), told.append)
        assert news.get(wait=0) is None
        waiting = Call(news.get)
        ada.publish(("news", 1))
        ada.publish(("other", 1))
        ada.publish(Note("tea", 1))
        assert waiting.result() == Reply(host.core.id, [("news", 1)], True)
        ada.publish(("news", 2))
        assert next(iter(news)).items == [("news", 2)]
        until_true(lambda: [one.items for one in told] == [[Note("tea", 1)]], "it is told")
        assert ada.hosts == frozenset([host.core.id])
        assert not news.is_over
        news.cancel()
        assert news.is_over
        assert news.get(wait=0) is None
        brief = ben.subscribe(("news", int), backlog_max=1)
        ada.publish(("news", 3))
        ada.publish(("news", 4))
        got = brief.get(wait=WAIT)
        assert got is not None and got.items == [("news", 4)] and brief.missed == 1


def test_a_client_collects_what_hosts_offer(two_hosts):
    town, port = two_hosts
    there = PubSub(port, "wire")
    with broker_of(town) as ada:
        until_true(lambda: ada.hosts == {town.core.id, port.core.id}, "the brokers have met")
        found = ada.collect(("stock", int))
        assert found.replies == [] and found.empty == {town.core.id, port.core.id}
        single = ada.collect(("stock", int), "single", "any")
        standing = ada.collect(("stock", int), "persistent", "all")
        assert single.get(wait=0.01) is None
        there.offer(("stock", 7))
        assert single.get(wait=WAIT).items == [("stock", 7)]
        assert single.get(wait=WAIT) is None and single.is_over
        assert standing.get(wait=WAIT).items == [("stock", 7)] and not standing.is_over
        found = ada.collect(("stock", int), "probing", "any")
        assert [reply.items for reply in found.replies] == [[("stock", 7)]]
        ada.publish(("stock", 8))
        assert standing.get(wait=WAIT) == Reply(town.core.id, [("stock", 8)], True)


def test_clients_and_programs_of_two_hosts_share_one_broker(two_hosts):
    town, port = two_hosts
    with broker_of(town) as ada, broker_of(port) as ben:
        both = {town.core.id, port.core.id}
        until_true(lambda: ada.hosts == ben.hosts == both, "the brokers have met")
        there = PubSub(port, "wire")  # clients were here first
        waiting = [one.subscribe(("a", int)) for one in (ada, ben, there)]
        for number, one in enumerate((ada, ben, there)):
            one.publish(("a", number))
            for replies in waiting:
                assert replies.get(wait=WAIT).items == [("a", number)]
        with pytest.raises(BadArgument, match="name="):
            PubSub(port, "wire")
        there.close()
        assert waiting[1].get(wait=WAIT) is None and waiting[1].is_over
        again = ben.subscribe(("a", int))
        ben.publish(("a", 3))
        assert again.get(wait=WAIT).items == [("a", 3)]


def test_what_a_client_of_a_broker_cannot_do(host):
    with broker_of(host) as ada:
        for use in (ada.offer, ada.withdraw):
            with pytest.raises(BadInput, match="no state"):
                use(("a", 1))
        with pytest.raises(BadArgument, match="duration="):
            ada.collect(("a", int), "eternal")  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="extent="):
            ada.collect(("a", int), "single", "none")  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="listener="):
            ada.collect(("a", int), "probing", "all", print)
        with pytest.raises(BadArgument, match="backlog_max="):
            ada.subscribe(("a", int), backlog_max=0)
        with pytest.raises(BadArgument, match="wait="):
            ada.subscribe(("a", int)).get(wait=-1)
        with pytest.raises(tupelo.TupeloError):
            ada.publish(3)
        with pytest.raises(tupelo.TupeloError, match="code"):
            ada.subscribe(tupelo.Where(bool))
        options: list[dict[str, Any]] = [
            {"name": "other"},
            {"state": list, "matches": bool},
            {"prune": False},
        ]
        for one in options:
            with pytest.raises(BadArgument, match=f"{next(iter(one))}="):
                PubSub(connected(host, "wire"), **one)
    with pytest.raises(HostClosed):
        ada.publish(("a", 1))
    with pytest.raises(HostClosed):
        ada.subscribe(("a", int))
    own = PubSub(host, "own", state=lambda pattern: [], matches=lambda pattern, update: False)
    with own, pytest.raises(BadArgument, match=r"name= .* templates"):
        broker_of(host, "own")


@pytest.mark.parametrize("denied", ["read", "write", "subscribe"])
def test_the_rules_of_the_space_are_those_of_its_broker(host, denied):
    rules: dict[str, Any] = {denied: ()}
    host.space("wire", access=Access(**rules))
    with broker_of(host) as ada:
        uses: list[tuple[str, Callable[[], object]]] = [
            ("read", lambda: ada.collect(("a", int))),
            ("read", lambda: ada.collect(("a", int), "single").cancel()),
            ("write", lambda: ada.publish(("a", 1))),
            ("subscribe", lambda: ada.subscribe(("a", int)).get(wait=0)),
        ]
        for operation, use in uses:
            if operation != denied:
                use()
            else:
                with pytest.raises(NotAllowed):
                    use()


def test_a_subscription_ends_with_its_connection_or_its_host():
    with tupelo.Host("town", listen="127.0.0.1:0") as host:
        ada, ben = broker_of(host), PubSub(connected(host, "wire", reconnect=0))
        call = Call(ada.subscribe(("a", int)).get)
        waits_at(host)
        ada.close()
        with pytest.raises(SpaceClosed):
            call.result()
        call = Call(ben.subscribe(("a", int)).get)
        waits_at(host)
    with pytest.raises(PeerLost):
        call.result()


def test_a_client_that_is_killed_leaves_nothing_that_stands(host):
    program = """
from tupelo.models.pubsub import PubSub
PubSub(tupelo.connect(url + "wire")).subscribe(("a", int)).get()
"""
    with killed_while(host, program), broker_of(host) as ada:
        mine = ada.subscribe(("a", int))
        ada.publish(("a", 1))
        assert mine.get(wait=WAIT).items == [("a", 1)]
        service: Any = host.core.services["pubsub"]
        assert len(service._doors) == 1  # mine


def test_the_broker_at_the_async_door(host):
    async def main() -> None:
        async with PubSub(await aio.connect(f"{host.url}wire")) as ada:
            news = await ada.subscribe(("a", int))
            giving_up = asyncio.ensure_future(news.get())
            await asyncio.sleep(0)
            giving_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving_up
            await ada.publish(("a", 1))
            assert (await news.get(wait=WAIT)).items == [("a", 1)]
            found = await ada.collect(("a", int))
            hosts: Any = ada.hosts
            assert found.empty == await hosts == {host.core.id}
            await ada.publish(("a", 2))
            async for reply in news:
                assert reply.items == [("a", 2)]
                await news.cancel()
                break
            with pytest.raises(BadInput, match="no state"):
                await ada.offer(("a", 1))

    asyncio.run(main())
