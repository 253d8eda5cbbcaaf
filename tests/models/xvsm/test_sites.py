"""Containers at a site elsewhere: sites and URIs, lost links, what is not sent, who may do what."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

import tupelo
from tests.conftest import core_of, parked_at, until_true
from tests.laws.talk import refused
from tests.models.classes import forget, learn
from tests.models.xvsm.conftest import Door, answered, cancel
from tupelo.errors import (
    AspectVeto,
    BadArgument,
    BadEntry,
    BadSelector,
    BadTemplate,
    CannotReach,
    CannotSend,
    ContainerNotFound,
    CountNotMet,
    LeaseLost,
    NotAllowed,
    PeerLost,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
    UnknownService,
    UnknownType,
    WrongPassword,
)
from tupelo.federation.client.services import connect_to_host, invoke
from tupelo.federation.identity.access import Access
from tupelo.federation.links.wire import MESSAGE_MAX
from tupelo.federation.spaces.hosted import Doubt
from tupelo.models.javaspaces import TransactionManager
from tupelo.models.xvsm import (
    COUNT_ALL,
    COUNT_MAX,
    INFINITE,
    INFINITE_TIMEOUT,
    TRY_ONCE,
    ActiveCoordinator,
    AnySelector,
    Aspect,
    AsyncCapi,
    Capi,
    Coordinator,
    Entry,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    LindaCoordinator,
    LindaSelector,
    Point,
    Query,
    QueryCoordinator,
    QuerySelector,
    RemoteContainer,
    Request,
    Veto,
    notifications,
)
from tupelo.models.xvsm import serving as xvsm_serving
from tupelo.models.xvsm.wire import METHODS
from tupelo.space.dual_api import run_sync

HEARTBEAT_SECONDS = 2.0  # So that a busy machine loses no link.
SHORT_DOUBT = Doubt(0.05)


@tupelo.entry("tests.xvsm.stranger")
@dataclass
class Stranger:
    name: str | None = None
    tags: list[str] | None = field(default_factory=list)


@tupelo.entry("tests.xvsm.still_stranger")
@dataclass
class StillStranger(Stranger):
    size: int | None = None


class Place:
    """A program with containers, and the host that offers them."""

    def __init__(self, folder: Path | None, **options: Any) -> None:
        self.host = tupelo.Host("site", listen="127.0.0.1:0", heartbeat=HEARTBEAT_SECONDS)
        self.capi = Capi(folder)
        self.uri = self.capi.offer(self.host, **{"doubt": SHORT_DOUBT, **options})

    def container(self, name: str = "queue") -> Any:
        return self.capi.lookup_container(None, None, name)

    def values(self, name: str = "queue") -> list[Any]:
        return list(self.capi.read(self.container(name), 0, None, FifoSelector(COUNT_MAX)))

    def cut(self) -> None:
        """Cut the links of all clients."""
        servings = self.host.core.servings
        lost = list(servings)
        for session in lost:
            self.host.soon(servings[session].talk.link._transport.abort)  # type: ignore[attr-defined]
        until_true(lambda: not set(lost) & set(servings), "the links are cut")

    def close(self) -> None:
        self.capi.close()
        self.host.close()


@pytest.fixture(params=["memory", "folder"])
def make_place(request, folder):
    made: list[Place] = []

    def make(**options: Any) -> Place:
        path = folder / f"{len(made)}" if request.param == "folder" else None
        made.append(Place(path, **options))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def there(make_place):
    return make_place()


@pytest.fixture(params=["blocking", "async"])
def dial(request, loop_thread):
    """`dial(site=...)`: a Capi at this door."""
    made: list[Any] = []

    def call(**options: Any) -> Any:
        if request.param == "blocking":
            made.append(Capi(**options))
        else:
            inner = loop_thread.call(lambda: AsyncCapi(**options))
            made.append(Door(inner, loop_thread))
        return made[-1]

    yield call
    for capi in made:
        capi.close()


@pytest.fixture
def capi(dial, there):
    return dial(site=there.uri)


@pytest.fixture
def queue(capi):
    return capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())


# Sites and URIs


@pytest.mark.parametrize("name", ["jobs", "a b/c?#%", "Grüße", "x" * 200])
def test_a_container_is_named_by_its_uri(capi, dial, there, name):
    cref = capi.create_container(None, None, name, INFINITE, FifoCoordinator())
    assert cref.site == there.uri and cref.uri.startswith(f"{there.uri}/")
    other = dial()  # of a program that has a space of its own
    assert other.lookup_container(None, None, cref.uri) == cref
    assert other.lookup_container(None, there.uri, name) == cref
    other.write(cref.uri, 0, None, 1)
    other.write(cref, 0, None, 2)
    assert capi.take(cref, 0, None, FifoSelector(2)) == [1, 2]
    tupelo_uri = there.uri.replace("xvsm://", "tupelo://")
    assert other.lookup_container(None, tupelo_uri, name) == cref
    other.destroy_container(None, cref.uri)
    with pytest.raises(ContainerNotFound, match="was destroyed"):
        capi.read(cref, 0, None)
    with pytest.raises(ContainerNotFound, match="there is no container"):
        capi.read(cref.uri, 0, None)
    again = capi.create_container(None, None, name, INFINITE, FifoCoordinator())
    assert again != cref and {again, cref, again} == {again, cref}
    capi.write(again, 0, None, 3)
    assert other.read(cref.uri, 0, None, FifoSelector()) == [3]


def test_a_name_that_looks_like_a_uri_is_refused(capi, there):
    for door in (capi, there.capi):
        refused(
            BadArgument,
            "name=",
            partial(door.create_container, None, None, "xvsm://a:1/b", 1),
            partial(door.lookup_container, None, there.uri, "xvsm://a:1/b"),
        )


@pytest.mark.parametrize("uri", ["queue", "xvsm://127.0.0.1:1", "http://a/b", "xvsm://a:b/c", ""])
def test_what_names_no_container_is_refused(capi, uri):
    refused(
        BadArgument,
        "cref=",
        lambda: capi.read(uri, 0, None),
        lambda: capi.write(uri, 0, None, 1),
        lambda: capi.destroy_container(None, uri),
        lambda: capi.create_notification(uri, print, "write"),
    )


def test_a_site_where_nobody_is_cannot_be_reached(dial):
    capi = dial(site="xvsm://127.0.0.1:1")
    with pytest.raises(CannotReach):
        capi.create_transaction(None, 1)
    with pytest.raises(CannotReach):
        dial().lookup_container(None, None, "xvsm://127.0.0.1:1/queue")


def test_a_host_that_offers_no_containers_says_so(dial):
    with tupelo.Host("bare", listen="127.0.0.1:0") as host:
        for options in ({}, {"password": "secret"}):
            capi = dial(site=f"xvsm://{host.address}", **options)
            with pytest.raises(UnknownService, match="xvsm"):
                capi.create_container(None, None, "a", INFINITE)


def test_options_that_make_no_sense_are_refused(dial, folder, there):
    refused(
        BadArgument,
        "site=",
        lambda: dial(site="nowhere"),
        lambda: dial(site=there.uri + "/queue"),
        lambda: dial(path=folder, site=there.uri),
        lambda: dial(clock=tupelo.ManualClock(), site=there.uri),
    )
    with pytest.raises(BadArgument, match="reconnect="):
        dial(site=there.uri, reconnect=-1).create_transaction(None, 1)


def test_one_capi_uses_its_own_space_and_several_sites(dial, make_place):
    places = [make_place(), make_place()]
    capi = dial()
    crefs = [
        capi.create_container(None, site, "c", INFINITE, FifoCoordinator())
        for site in (None, places[0].uri, places[1].uri)
    ]
    for i, cref in enumerate(crefs):
        capi.write(cref, 0, None, i)
    assert [capi.read(cref, 0, None) for cref in crefs] == [[0], [1], [2]]
    assert [place.values("c") for place in places] == [[1], [2]]
    capi.clear_space(places[0].uri)
    with pytest.raises(ContainerNotFound):
        capi.read(crefs[1], 0, None)
    assert capi.read(crefs[2], 0, None) == [2] and capi.read(crefs[0], 0, None) == [0]


def test_a_transaction_of_one_site_is_refused_at_another(dial, make_place, clock):
    places = [make_place(), make_place()]
    capi, other = dial(), dial()
    sites = [None, places[0].uri, places[1].uri]
    crefs = [capi.create_container(None, site, "c", INFINITE) for site in sites]
    txns = [capi.create_transaction(site, 60) for site in sites]
    manager = TransactionManager(clock=clock)
    foreign = manager.create().transaction
    for i, cref in enumerate(crefs):
        for j, tx in enumerate(txns):
            if i != j:
                refused(
                    BadArgument,
                    "tx=",
                    partial(capi.write, cref, 0, tx, 1),
                    partial(capi.take, cref, 0, tx),
                    partial(capi.destroy_container, tx, cref),
                    partial(capi.lookup_container, tx, sites[i], "c"),
                )
    refused(
        BadArgument,
        "tx=",
        lambda: capi.write(crefs[1], 0, foreign, 1),
        lambda: capi.write(crefs[1], 0, "tx", 1),
        lambda: other.write(crefs[1], 0, txns[1], 1),
        lambda: other.commit_transaction(txns[1]),
    )
    for tx in txns:
        capi.commit_transaction(tx)
    manager.close()


# Offering


def test_what_cannot_be_offered_is_refused(there, dial):
    with pytest.raises(BadArgument, match="host="):
        there.capi.offer("host")
    with tupelo.Host("quiet") as quiet, Capi() as capi, pytest.raises(BadArgument, match="listens"):
        capi.offer(quiet)
    with Capi() as capi:
        with pytest.raises(BadArgument, match="no other containers"):
            capi.offer(there.host)
        with pytest.raises(BadArgument, match="aspects="):
            capi.offer(there.host, aspects=["audit"])  # type: ignore[arg-type]
    with tupelo.Host("other", listen="127.0.0.1:0") as other:
        with pytest.raises(BadArgument, match="a host offers"):
            there.capi.offer(other)
        with Capi() as capi, pytest.raises(BadArgument, match="access="):
            capi.offer(other, access="anyone")  # type: ignore[arg-type]
    remote = dial(site=there.uri)
    with pytest.raises(BadArgument, match="no embedded space"):
        remote.offer(there.host)


def test_a_host_may_offer_the_containers_of_the_next_capi(there, dial):
    capi = dial(site=there.uri)
    capi.create_container(None, None, "first", INFINITE)
    there.capi.close()
    with pytest.raises(SpaceClosed):
        capi.lookup_container(None, None, "first")
    there.capi = Capi()
    assert there.capi.offer(there.host) == there.uri
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(None, None, "first")


def test_an_async_capi_is_offered_by_an_async_host(folder):
    async def story() -> list[Any]:
        async with (
            tupelo.aio.Host("site", listen="127.0.0.1:0") as host,
            AsyncCapi(folder) as here,
            AsyncCapi(site=await here.offer(host)) as capi,
        ):
            cref = await capi.create_container(None, None, "c", INFINITE, FifoCoordinator())
            taking = [
                asyncio.create_task(capi.take(cref, INFINITE_TIMEOUT, None, FifoSelector()))
                for _ in range(20)
            ]
            await asyncio.gather(*[capi.write(cref, 0, None, i) for i in range(20)])
            return sorted(value for (value,) in await asyncio.gather(*taking))

    assert asyncio.run(story()) == list(range(20))
    with pytest.raises(TupeloError, match="has not started"), Capi() as capi:
        capi.offer(tupelo.aio.Host("unborn", listen=0))


# Who may do what


def test_the_rules_of_access_are_those_of_the_offer(make_place, dial):
    there = make_place(access=Access(write=[], take=[], subscribe=[], administer=[]))
    there.capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
    (lease,) = there.capi.write(there.container(), 0, None, 1)
    capi = dial(site=there.uri)
    cref = capi.lookup_container(None, None, "queue")
    assert capi.read(cref, 0, None) == [1]
    tx = capi.create_transaction(None, 10)
    refused(
        NotAllowed,
        "tupelo.xvsm",
        lambda: capi.create_container(None, None, "c", INFINITE),
        lambda: capi.destroy_container(None, cref),
        lambda: capi.write(cref, 0, None, 2),
        lambda: capi.shift(cref, tx, 2),
        lambda: capi.take(cref, 0, tx),
        lambda: capi.destroy(cref, 0, None),
        lambda: capi.create_notification(cref, print, "write"),
        lambda: capi.clear_space(None),
        lambda: capi.shutdown(None),
        lambda: capi.add_aspect(cref, Point.PRE_READ, "audit"),
    )
    capi.rollback_transaction(tx)
    assert there.values() == [1]
    connection = connect_to_host(there.host.url)
    token = [there.container().id, False, lease.thing.n, lease.thing.arrival]
    for how in ("renew", "cancel"):
        with pytest.raises(NotAllowed):
            run_sync(partial(invoke, connection, "xvsm", "lease", "queue", token, how, 1, None))
    connection.__exit__(None, None, None)


def test_a_password_is_shown_to_its_own_site_only(make_place, dial):
    secret, bare = make_place(access=Access(password="open sesame")), make_place()
    for options in ({}, {"password": "wrong"}):
        with pytest.raises(WrongPassword):
            dial(site=secret.uri, **options).create_container(None, None, "c", INFINITE)
    capi = dial(site=secret.uri, password="open sesame")
    cref = capi.create_container(None, None, "c", INFINITE)
    capi.write(cref, 0, None, 1)
    secret.cut()
    assert capi.read(cref, 0, None) == [1]  # It is shown again over the next link.
    other = dial(site=bare.uri, password="open sesame")
    with pytest.raises(WrongPassword):
        other.lookup_container(None, None, cref.uri)


# What is not sent


class Last(Coordinator):
    default_name = "last"


class Holding(FifoSelector):
    """Holds something, which may be no value."""

    default_name = "fifo"

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what


def test_code_is_not_sent(capi, queue, there):
    queries = capi.create_container(None, None, "q", INFINITE, QueryCoordinator())
    refused(
        BadArgument,
        "code is not sent",
        lambda: capi.add_aspect(queue, Point.PRE_WRITE, Aspect()),
        lambda: capi.create_container(None, None, "c", INFINITE, Last()),
        lambda: capi.create_container(None, None, "c", INFINITE, optional=[Last()]),
        lambda: capi.read(queries, 0, None, QuerySelector(Query().sort_by(lambda e: e))),
        lambda: capi.read(queries, 0, None, QuerySelector(Query().distinct(lambda e: e))),
        lambda: capi.read(queue, 0, None, Holding(print)),
    )
    with pytest.raises(BadTemplate, match="its function is code"):
        capi.take(queue, 0, None, LindaSelector(tupelo.Where(bool)))
    capi.set_aspect_context({"user": object()})
    with pytest.raises(BadArgument, match="properties="):
        capi.write(queue, 0, None, 1)
    capi.set_aspect_context({})
    assert there.values() == []
    with pytest.raises(BadArgument, match="coordinators="):
        capi.create_container(None, None, "c", INFINITE, FifoSelector())
    with pytest.raises(ContainerNotFound):
        capi.lookup_container(None, None, "c")


def test_a_selector_of_a_class_that_is_unknown_there_is_refused(capi, queue):
    class Unknown(FifoSelector):
        default_name = "fifo"

    capi.write(queue, 0, None, 1)
    assert capi.read(queue, 0, None, Holding(5)) == [1]
    with pytest.raises(BadSelector, match="Unknown' is known at the site"):
        capi.read(queue, 0, None, Unknown())


def test_aspects_are_added_by_the_names_under_which_they_are_offered(make_place, dial):
    class Audit(Aspect):
        """Counts writes, and forbids some."""

        users: ClassVar[list[Any]] = []

        async def pre_write(self, request: Request) -> Any:
            assert request.container is not None
            if request.container.name == "log":
                return None
            self.users.append(request.context.get("user"))
            log = await request.capi.lookup_container(request.transaction, None, "log")
            await request.capi.write(log, 0, request.transaction, *request.entries)
            return Veto("not today") if request.entries == ["bad"] else None

    there = make_place(aspects={"audit": Audit()})
    capi = dial(site=there.uri)
    queue = capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
    capi.create_container(None, None, "log", INFINITE, FifoCoordinator())
    refused(
        BadArgument,
        "must be",
        lambda: capi.add_aspect(queue, Point.PRE_WRITE, "unknown"),
        lambda: capi.add_aspect(queue, Point.PRE_SHUTDOWN, "audit"),
        lambda: capi.add_aspect(queue, Point.PRE_READ, "audit"),
        lambda: capi.add_aspect(queue, [], "audit"),
    )
    added = capi.add_aspect(queue, Point.PRE_WRITE, "audit")
    capi.set_aspect_context({"user": "ann"})
    capi.write(queue, 0, None, "good")
    with pytest.raises(AspectVeto, match="not today"):
        capi.write(queue, 0, None, "bad")
    assert (there.values(), there.values("log"), Audit.users) == (["good"], ["good"], ["ann"] * 2)
    capi.remove_aspect(queue, None, added)
    capi.write(queue, 0, None, "bad")
    assert there.values("log") == ["good"]
    with pytest.raises(BadArgument, match="points="):
        capi.remove_aspect(queue, Point.PRE_WRITE, added)
    whole = capi.add_aspect(None, Point.PRE_WRITE, "audit")
    with pytest.raises(AspectVeto):
        capi.write(queue, 0, None, "bad")
    capi.remove_aspect(there.uri, None, whole)
    capi.write(queue, 0, None, "bad")


# Entries of classes that are not known there


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nobody in this program knows the classes any more, until it is told."""

    def know(known: bool) -> None:
        for cls in (Stranger, StillStranger):
            (learn if known else forget)(monkeypatch, cls)

    return know


@pytest.mark.parametrize("watched", [False, True])
def test_the_site_need_not_know_the_classes_of_entries(capi, there, until, forgotten, watched):
    kinds = [KeyCoordinator(), QueryCoordinator(), LindaCoordinator()]
    cref = capi.create_container(None, None, "c", 3, *kinds)
    heard: list[Any] = []
    told: list[Any] = []
    if watched:
        here = there.container("c")
        there.capi.create_notification(here, lambda *args: heard.append(args[2]), "write", "take")
    forgotten(False)
    for i, name in enumerate(("b", "a", "c")):
        entry = Entry(Stranger(name, ["x"]), KeySelector(i))
        capi.write(cref, 0, None, entry)
    with pytest.raises(UnknownType):
        capi.take(cref, 0, None, KeySelector(1))
    forgotten(True)
    assert capi.read(cref, 0, None, KeySelector(1)) == [Stranger("a", ["x"])]  # It has stayed.
    forgotten(False)
    capi.shift(cref, None, Entry(("new",), KeySelector(7)))  # One of them gives way.
    forgotten(True)
    by_name = QuerySelector(Query().filter(Stranger).sort_by("name"), COUNT_ALL)
    assert [found.name for found in capi.take(cref, 0, None, by_name)] == ["a", "c"]
    assert capi.take(cref, 0, None, LindaSelector(("new",))) == [("new",)]
    if watched:
        until(lambda: len(heard) == 5)
        assert [type(entry).__name__ for entry in heard[0]] == ["stranger"]
        assert (heard[0][0].name, heard[0][0].tags) == ("b", ["x"])
    assert told == []


def test_the_site_need_not_know_the_classes_of_what_finds_templates(capi, forgotten):
    cref = capi.create_container(None, None, "c", 3, LindaCoordinator(reverse_matching=True))
    capi.write(cref, 0, None, Stranger("a", None), ("of", Stranger(None, None)))
    forgotten(False)
    for entry in (StillStranger("a", ["x"], 5), ("of", StillStranger("b", [], 5))):
        assert capi.test(cref, 0, None, LindaSelector(entry, count=COUNT_ALL)) == 1
    assert capi.test(cref, 0, None, LindaSelector(StillStranger("b"), count=COUNT_ALL)) == 0
    forgotten(True)
    entry = StillStranger("a", ["x"], 5)
    assert capi.take(cref, 0, None, LindaSelector(entry)) == [Stranger("a", None)]


# Deliveries


def take_unconfirmed(there: Place, name: str = "queue") -> Any:
    """A client that takes, and has not confirmed what it got."""
    connection = connect_to_host(there.host.url)
    selectors = [["fifo", "fifo", None, 1, 1, None]]
    answer = run_sync(
        lambda: invoke(connection, "xvsm", "take", [None, name], None, selectors, None)
    )
    return connection, answer


@pytest.mark.parametrize("watched", [False, True])
def test_what_is_taken_and_not_confirmed_goes_back(capi, queue, there, until, watched):
    if watched:  # Then a transaction holds it.
        there.capi.create_notification(there.container(), lambda *told: None, "take")
    capi.write(queue, 0, None, ("first", 1), "second")
    connection, answer = take_unconfirmed(there)
    assert answer == [["first", 1]]
    assert capi.read(queue, 0, None, FifoSelector(COUNT_MAX)) == ["second"]
    connection.__exit__(None, None, None)  # It has said goodbye.
    until(lambda: there.values() == [("first", 1), "second"])
    connection, _ = take_unconfirmed(there)
    assert there.values() == ["second"]
    there.cut()  # It may come back, for a while.
    until(lambda: there.values() == [("first", 1), "second"])
    connection.__exit__(None, None, None)
    assert capi.take(queue, 0, None, FifoSelector(2)) == [("first", 1), "second"]
    until(lambda: there.values() == [])


def test_what_is_taken_in_a_transaction_and_not_received_goes_back(loop_thread, there):
    """The task that takes is cancelled when the answer is on its way."""

    async def story() -> None:
        async with AsyncCapi(site=there.uri) as capi:
            cref = await capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
            await capi.write(cref, 0, None, 1)
            tx = await capi.create_transaction(None, 10)
            for take in (capi.take, capi.take):
                task = asyncio.ensure_future(take(cref, 0, tx, FifoSelector()))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await capi.take(cref, 5, tx, FifoSelector()) == [1]
            await capi.commit_transaction(tx)
            assert await capi.read(cref, 0, None, FifoSelector(COUNT_MAX)) == []

    loop_thread.call(story)


@pytest.mark.parametrize("watched", [False, True])
def test_who_is_cancelled_while_it_waits_takes_nothing(loop_thread, there, watched):
    async def story() -> None:
        async with AsyncCapi(site=there.uri) as capi:
            cref = await capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
            here = there.container()
            if watched:
                await capi.create_notification(cref, lambda *told: None, "take")
            taking = asyncio.create_task(capi.take(cref, INFINITE_TIMEOUT, None, FifoSelector()))
            while not parked_at(core_of(here.space)):
                await asyncio.sleep(0.001)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            await capi.write(cref, 0, None, 1)
            assert await capi.take(cref, 0, None, FifoSelector()) == [1]

    loop_thread.call(story)


def test_a_key_is_free_when_its_entry_was_taken(capi, there):
    cref = capi.create_container(None, None, "queue", 1, KeyCoordinator(), FifoCoordinator())
    for watched in (False, True):
        if watched:
            capi.create_notification(cref, lambda *told: None, "take")
        for i in range(20):  # The container has room for one, and the key is the same.
            capi.write(cref, 0, None, Entry(i, KeySelector("k")))
            assert capi.take(cref, 0, None, KeySelector("k")) == [i]


def test_an_answer_that_is_too_long_gives_back_what_it_took(capi, there):
    cref = capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
    long = "x" * (MESSAGE_MAX // 3)
    for i in range(3):
        capi.write(cref, 0, None, (i, long))
    with pytest.raises(CannotSend):
        capi.take(cref, 0, None, FifoSelector(3))
    assert [number for number, _ in there.values()] == [0, 1, 2]
    assert capi.take(cref, 0, None, FifoSelector())[0][0] == 0
    with pytest.raises(CannotSend):
        capi.write(cref, 0, None, "x" * MESSAGE_MAX)


def test_what_is_not_unicode_is_refused_where_it_is_given(capi, queue):
    with pytest.raises(BadEntry, match="Unicode"):
        capi.write(queue, 0, None, ("a", "\ud800"))
    for operation in (capi.read, capi.take):
        with pytest.raises((BadSelector, BadTemplate), match="Unicode"):
            operation(queue, 0, None, LindaSelector(("\ud800", int)))
    capi.write(queue, 0, None, "fine")


# Lost links


class Gate(Aspect):
    """Holds operations up until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    async def _hold(self, request: Request) -> None:
        self.reached.set()
        while not self.open.is_set():
            await asyncio.sleep(0.001)

    pre_write = pre_transaction_commit = post_write = post_transaction_commit = _hold


@pytest.mark.parametrize("done", [False, True])
def test_a_write_whose_link_is_lost_is_in_doubt(capi, queue, there, later, done):
    gate = Gate()
    there.capi.add_aspect(there.container(), Point.POST_WRITE if done else Point.PRE_WRITE, gate)
    call = later(capi.write, queue, 0, None, 1)
    assert gate.reached.wait(10)
    there.cut()
    with pytest.raises(PeerLost, match="may have been done or not") as lost:
        call.result()
    assert lost.value.in_doubt
    gate.open.set()
    assert capi.read(queue, 0, None, FifoSelector(COUNT_MAX)) in ([], [1])


def test_a_commit_whose_link_is_lost_is_in_doubt(capi, queue, there, later):
    gate = Gate()
    there.capi.add_aspect(None, Point.PRE_TRANSACTION_COMMIT, gate)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    capi.write(queue, 0, tx, 1)
    call = later(capi.commit_transaction, tx)
    assert gate.reached.wait(10)
    there.cut()
    with pytest.raises(PeerLost) as lost:
        call.result()
    assert lost.value.in_doubt
    gate.open.set()
    with pytest.raises(TransactionEnded, match="unknown"):
        capi.commit_transaction(tx)


def test_who_only_asks_is_asked_again(capi, queue, there, later, until):
    core = core_of(there.container().space)
    taker = later(capi.take, queue, INFINITE_TIMEOUT, None, FifoSelector())
    reader = later(capi.read, queue, 60, None, FifoSelector())
    until(lambda: parked_at(core) == 2)
    there.cut()
    there.capi.write(there.container(), 0, None, 1, 2)  # perhaps before they have asked again
    assert taker.result() == [1]
    assert reader.result() in ([1], [2])
    there.cut()
    assert capi.lookup_container(None, None, "queue") == queue
    there.cut()
    assert capi.create_transaction(None, 1).state == "active"


def test_a_transaction_ends_with_its_link(capi, queue, there, until):
    capi.write(queue, 0, None, "there")
    tx, second = (capi.create_transaction(None, INFINITE_TIMEOUT) for _ in range(2))
    capi.write(queue, 0, tx, 1)
    assert capi.take(queue, 0, tx, FifoSelector()) == ["there"]
    there.cut()
    until(lambda: there.values() == ["there"])
    capi.lookup_container(None, None, "queue")  # There is a link again.
    for _ in range(2):
        with pytest.raises(TransactionEnded, match="aborted"):
            capi.write(queue, 0, tx, 2)
    assert tx.state == "aborted"
    for done in (tx, second, second):
        capi.rollback_transaction(done)
    assert there.values() == ["there"]


def test_what_was_done_in_a_transaction_is_not_in_doubt(capi, queue, there, later):
    gate = Gate()
    there.capi.add_aspect(there.container(), Point.POST_WRITE, gate)
    tx = capi.create_transaction(None, INFINITE_TIMEOUT)
    call = later(capi.write, queue, 0, tx, 1)
    assert gate.reached.wait(10)
    there.cut()
    with pytest.raises(PeerLost) as lost:
        call.result()
    assert not lost.value.in_doubt
    gate.open.set()
    with pytest.raises(TransactionEnded):
        capi.commit_transaction(tx)
    until_true(lambda: there.values() == [])


def test_when_the_site_stays_away_the_operation_fails(make_place, dial):
    there = make_place()
    capi = dial(site=there.uri, reconnect=0.2)
    cref = capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
    there.host.close()
    with pytest.raises(PeerLost) as lost:
        capi.take(cref, INFINITE_TIMEOUT, None, FifoSelector())
    assert not lost.value.in_doubt


def test_a_closed_capi_tells_those_that_wait(capi, queue, there, later, until):
    taker = later(capi.take, queue, INFINITE_TIMEOUT, None, FifoSelector())
    until(lambda: parked_at(core_of(there.container().space)) == 1)
    capi.close()
    with pytest.raises(SpaceClosed):
        taker.result()
    until(lambda: parked_at(core_of(there.container().space)) == 0)
    with pytest.raises(SpaceClosed):
        capi.read(queue, 0, None)


# Transactions and leases


def test_a_transaction_has_a_lease(capi, queue, until):
    tx = capi.create_transaction(None, 0.05)
    assert tx.expires is not None
    until(lambda: _is_over(capi, queue, tx))
    tx = capi.create_transaction(None, 60)
    assert 50 < tx.lease.remaining < 61
    answered(capi, tx.lease.renew(1_000))
    assert 900 < tx.lease.remaining < 1_001
    capi.write(queue, 0, tx, 1)
    cancel(capi, tx.lease)
    with pytest.raises(TransactionEnded, match="its lease was cancelled"):
        capi.write(queue, 0, tx, 1)
    assert capi.read(queue, 0, None, FifoSelector(COUNT_MAX)) == []


def _is_over(capi: Any, cref: Any, tx: Any) -> bool:
    try:
        capi.write(cref, 0, tx, 1)
    except TransactionEnded:
        return True
    return False


def test_the_system_time_was_changed_before_the_host_was_made(monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 45)
    place = Place(None)
    try:
        with Capi(site=place.uri) as capi:
            assert 50 < capi.create_transaction(None, 60).lease.remaining < 61
    finally:
        place.close()


def test_the_leases_of_entries_outlive_the_link(capi, queue, there):
    (first,), (second,) = capi.write(queue, 0, None, 1), capi.write(queue, 0, None, 2)
    tx = capi.create_transaction(None, 60)
    (third,) = capi.write(queue, 0, tx, 3)
    answered(capi, third.renew(500))
    capi.commit_transaction(tx)
    assert third.remaining > 400
    there.cut()
    capi.lookup_container(None, None, "queue")  # There is a link again.
    cancel(capi, first)
    assert there.values() == [2, 3]
    with pytest.raises(LeaseLost):
        cancel(capi, first)
    answered(capi, second.renew(60))
    assert 50 < second.remaining < 61 and second.expires is not None
    for bad in (-1, "soon"):
        with pytest.raises(BadArgument, match="lease="):
            answered(capi, second.renew(bad))
    assert capi.take(queue, 0, None, FifoSelector()) == [2]
    with pytest.raises(LeaseLost):
        answered(capi, second.renew(60))


def test_a_lease_of_another_space_finds_nothing(capi, queue):
    with Capi() as other:
        here = other.create_container(None, None, "c", INFINITE, LindaCoordinator())
        (lease,) = other.write(here, 0, None, ("a", 1))
    linda = capi.create_container(None, None, "linda", INFINITE, LindaCoordinator())
    with pytest.raises(BadSelector, match="no lease of an entry at a site"):
        capi.read(linda, 0, None, LindaSelector(entry=lease))
    (lease,) = capi.write(queue, 0, None, ("a", 1))
    capi.write(linda, 0, None, ("a", 1))
    with pytest.raises(CountNotMet):
        capi.read(linda, TRY_ONCE, None, LindaSelector(entry=lease))


# Notifications


def test_a_notification_ends_with_its_link(capi, queue, there, until):
    heard: list[Any] = []
    notification = capi.create_notification(queue, lambda *told: heard.append(told[2]), "write")
    capi.write(queue, 0, None, 1)
    until(lambda: heard == [[1]])
    there.cut()
    until(lambda: not notification.active)
    assert isinstance(notification.error, PeerLost)
    until(lambda: there.container().fast_owner)
    capi.write(queue, 0, None, 2)
    again = capi.create_notification(queue, lambda *told: heard.append(told[2]), "write")
    capi.write(queue, 0, None, 3)
    until(lambda: heard == [[1], [3]])
    again.destroy()
    again.destroy()
    until(lambda: there.container().fast_owner)


def test_a_notification_ends_with_its_container(capi, queue, until):
    notification = capi.create_notification(queue, lambda *told: None, "write")
    capi.destroy_container(None, queue)
    until(lambda: not notification.active)
    assert notification.error is None


def test_a_slow_listener_is_told_how_much_was_dropped(capi, queue, there, until, monkeypatch):
    go, called = threading.Event(), threading.Event()
    heard: list[Any] = []

    def listen(notification: Any, operation: str, entries: list[Any]) -> None:
        called.set()
        assert go.wait(10)
        heard.extend(entries)

    async def listen_async(notification: Any, operation: str, entries: list[Any]) -> None:
        called.set()
        while not go.is_set():
            await asyncio.sleep(0.001)
        heard.extend(entries)

    begin = notifications.Notification.__init__

    def small(watch: Any, *args: Any) -> None:
        begin(watch, *args)
        watch._backlog_max = 5

    monkeypatch.setattr(notifications.Notification, "__init__", small)
    blocking = isinstance(capi, Capi)
    notification = capi.create_notification(queue, listen if blocking else listen_async, "write")
    here = there.container()
    there.capi.write(here, 0, None, 0)
    assert called.wait(10)
    for i in range(1, 21):
        there.capi.write(here, 0, None, i)
    there.capi.write(here, 0, None, "x" * MESSAGE_MAX)  # It is too long to be told.
    there.capi.write(here, 0, None, "last")
    go.set()
    until(lambda: "last" in heard)
    assert heard == [0, 18, 19, 20, "last"] and notification.dropped == 18


def test_a_listener_must_fit_its_door(there, until):
    with Capi(site=there.uri) as capi:
        cref = capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())

        async def listen(*told: Any) -> None:
            raise AssertionError("never")

        notification: Any = capi.create_notification(cref, listen, "write")
        capi.write(cref, 0, None, 1)
        until(lambda: not notification.active)
        assert isinstance(notification.error, TypeError)


# What a client may ask for


def test_a_client_may_not_have_too_much(capi, there, monkeypatch):
    monkeypatch.setattr(xvsm_serving, "SPACES_MAX", 2)
    monkeypatch.setattr(xvsm_serving, "CLIENT_HANDLES_MAX", 2)
    crefs = [capi.create_container(None, None, name, INFINITE) for name in ("a", "b")]
    with pytest.raises(NotAllowed, match="one more container"):
        capi.create_container(None, None, "c", INFINITE)
    capi.create_notification(crefs[0], lambda *told: None, "write")
    tx = capi.create_transaction(None, 60)
    refused(
        BadArgument,
        "things=",
        lambda: capi.create_transaction(None, 60),
        lambda: capi.create_notification(crefs[0], lambda *told: None, "write"),
    )
    capi.commit_transaction(tx)
    capi.create_transaction(None, 60)
    capi.destroy_container(None, crefs[1])
    with pytest.raises(BadArgument, match="workers="):
        capi.create_container(None, None, "c", INFINITE, ActiveCoordinator(65))


@pytest.mark.parametrize("method", [*METHODS, "sing", ""])
def test_nonsense_is_refused_and_harms_nobody(there, method):
    there.capi.create_container(None, None, "queue", INFINITE, FifoCoordinator())
    there.capi.write(there.container(), 0, None, 1)
    bits: list[Any] = [None, 0, -1, "queue", b"\xff", [], [None, "queue"], [[]], {"a": 1}, 1e300]
    container = [there.container().id, "queue"]
    with connect_to_host(there.host.url) as connection:
        for count in range(7):
            for bit in bits:
                for first in (bit, bit if method == "destroy_container" else container):
                    args = [first, *[bit] * (count - 1)][:count]
                    if method in ("shutdown", "clear_space"):  # These would be obeyed.
                        args = [*args, 5]
                    ask = partial(invoke, connection, "xvsm", method, *args, again=True)
                    with suppress(TupeloError):
                        run_sync(ask)
    with Capi(site=there.uri) as capi:
        cref = capi.lookup_container(None, None, "queue")
        assert capi.read(cref, 0, None, AnySelector()) == [1]


def test_a_reference_to_a_container_is_a_value():
    cref = RemoteContainer.at("xvsm://127.0.0.1:7700/jobs")
    assert cref == RemoteContainer.at("XVSM://127.0.0.1/jobs")
    assert (cref.name, cref.id, cref.site) == ("jobs", None, "xvsm://127.0.0.1:7700")
    assert repr(cref) == "<container 'jobs' at 127.0.0.1:7700>"
    text: object = "xvsm://127.0.0.1:7700/jobs"
    assert cref != text
