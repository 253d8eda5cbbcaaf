"""Publish-subscribe-collect at both doors, over real links, at hosts and at clients of them."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Queue
from typing import Any

import pytest

import tupelo
from tests.kinds import HOSTED, KINDS, MEMORY
from tests.laws.doors import LoopThread
from tupelo import ANY, Between, Host, aio, entry
from tupelo.errors import BadArgument, BadEntry, BadTemplate, HostClosed
from tupelo.models.pubsub import PubSub, Replies, Reply

PATIENCE_SECONDS = 20.0


@entry("tests.pubsub.Reading")
@dataclass
class Reading:
    place: str | None = None
    degrees: int | None = None


class Driven:
    """A thing of the async door, used like a blocking one."""

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if inspect.isawaitable(found):
            return self._loop.call(lambda: found)
        if not callable(found):
            return found
        return lambda *args, **kwargs: self._wrapped(self._loop.call(found, *args, **kwargs))

    def _wrapped(self, answer: Any) -> Any:
        return Driven(answer, self._loop) if isinstance(answer, Replies) else answer

    def __iter__(self) -> Iterator[Any]:
        replies = self._inner.__aiter__()
        while True:
            try:
                yield self._loop.call(replies.__anext__)
            except StopAsyncIteration:
                return

    def __enter__(self) -> Driven:
        self._loop.call(self._inner.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call(self._inner.__aexit__, *error)


class Fair:
    """Hosts in a line, each engaged with the one before, and what is made on them."""

    def __init__(self, loop: LoopThread | None, is_afar: bool) -> None:
        self.loop = loop
        self.is_afar = is_afar
        """Is the first broker one of a client?"""
        self.hosts: list[Any] = []
        self._clients: list[Any] = []

    def host(self, **options: Any) -> Any:
        name = f"host {len(self.hosts)}"
        options = {"listen": 0, "heartbeat": 0.2, **options}
        if self.loop is None:
            host: Any = Host(name, **options)
        else:
            host = self.loop.call(lambda: aio.Host(name, **options))
            self.loop.call(host.start)
        self.hosts.append(host)
        return host

    def pubsub(self, host: Any, name: str = "fair", **options: Any) -> Any:
        if self.loop is None:
            return PubSub(host, name, **options)
        return Driven(self.loop.call(lambda: PubSub(host, name, **options)), self.loop)

    def line(self, length: int, **options: Any) -> list[Any]:
        """The brokers of hosts in a line, which all know of each other."""
        for place in range(length):
            self.host(peers=[self.hosts[-1].address] if place else [])
        brokers = [self.pubsub(host, **options) for host in self.hosts[self.is_afar :]]
        if self.is_afar:
            brokers.insert(0, self.client(self.hosts[0]))
        if not options:
            meet(brokers, brokers[self.is_afar :])
        return brokers

    def client(self, host: Any, name: str = "fair") -> Any:
        """A PubSub of a program that is connected to this host."""
        url = f"{host.url}{name}"
        if self.loop is None:
            client: Any = PubSub(tupelo.connect(url))
        else:
            space = self.loop.call(aio.connect, url)
            client = Driven(self.loop.call(PubSub, space), self.loop).__enter__()
        self._clients.append(client)
        return client

    def close(self, host: Any) -> None:
        self.hosts.remove(host)
        if self.loop is None:
            host.close()
        else:
            self.loop.call(host.close)

    def close_all(self) -> None:
        for client in self._clients:
            client.close()
        for host in list(self.hosts):
            self.close(host)


def meet(brokers: list[Any], offering: list[Any]) -> None:
    """Until each of the brokers knows of all those that can offer something."""
    for broker in offering:
        broker.offer(("here",))
    for broker in brokers:
        with broker.collect(("here",), "persistent", "all") as replies:
            seen: set[str] = set()
            while len(seen) < len(offering):
                seen.add(got(replies).host)
    for broker in offering:
        broker.withdraw(("here",))


def got(replies: Any) -> Reply:
    reply = replies.get(wait=PATIENCE_SECONDS)
    assert isinstance(reply, Reply), "nothing came in time"
    return reply


IN_MEMORY = [place for place in HOSTED if KINDS[place[1]].store == MEMORY]
at_hosts = pytest.mark.parametrize(
    "place",
    [place for place in IN_MEMORY if KINDS[place[1]].where == "spanning"],
    ids="-".join,
    indirect=True,
)
"""For what a client has no part in: see docs/DOORS.md."""


@pytest.fixture(params=IN_MEMORY, ids="-".join)
def place(request):
    """A door and a kind of space. Brokers keep nothing: their hosts need no store."""
    return request.param


@pytest.fixture
def fair(place, loop_thread):
    door, kind = place
    fair = Fair(loop_thread if door == "async" else None, KINDS[kind].where == "remote")
    yield fair
    fair.close_all()


def test_subscribers_are_told_by_content(fair):
    a, b, c = fair.line(3)
    warm = a.subscribe(Reading(degrees=Between(20, 100)))
    everything = b.subscribe(ANY)
    c.publish(Reading("cellar", 12))
    c.publish(Reading("roof", 31))
    a.publish(("a tuple", 1))
    first = got(warm)
    assert (first.host, first.items, first.is_update) == (
        fair.hosts[2].id,
        [Reading("roof", 31)],
        True,
    )
    found = Counter(str(got(everything).items[0]) for _ in range(3))
    assert found == Counter(map(str, [Reading("cellar", 12), Reading("roof", 31), ("a tuple", 1)]))
    assert warm.get(wait=0) is None
    warm.cancel()
    assert warm.is_over


def test_probing_answers_with_what_is_offered(fair):
    a, b, c = fair.line(3)
    ids = [host.id for host in fair.hosts]
    assert a.collect(("job", int), "probing", "any").replies == []
    b.offer(("job", 1))
    c.offer(("job", 2))
    c.offer(("job", 3))
    every = a.collect(("job", int))
    assert {reply.host: reply.items for reply in every.replies} == {
        ids[1]: [("job", 1)],
        ids[2]: [("job", 2), ("job", 3)],
    }
    assert (every.empty, every.lost) == (frozenset(ids[:1]), frozenset())
    (one,) = a.collect(("job", int), "probing", "any").replies
    assert one.host in ids[1:]
    assert c.withdraw(("job", Between(3, 9))) == [("job", 3)]
    assert len(a.collect(("job", 3), "probing", "all").replies) == 0
    assert a.hosts == frozenset(ids)


def test_single_collects_wait_until_they_are_satisfied(fair):
    a, b, c = fair.line(3)
    one, each = (a.collect(("job", int), "single", extent) for extent in ("any", "all"))
    assert one.get(wait=0) is None
    c.offer(("job", 1))
    assert got(one).items == got(each).items == [("job", 1)]
    assert one.get() is None
    assert one.is_over and not each.is_over
    for broker in (a, b):
        broker.offer(("job", 2))
    assert sorted(reply.host for reply in each) == sorted(host.id for host in fair.hosts[:2])
    assert each.is_over


def test_persistent_collects_go_on(fair):
    a, b, c = fair.line(3)
    b.offer(("job", 1))
    with (
        a.collect(("job", int), "persistent", "all") as every,
        a.collect(("job", int), "persistent", "any") as one,
    ):
        assert got(every).items == got(one).items == [("job", 1)]
        c.offer(("job", 2))
        b.offer(("job", 3))
        assert sorted(got(every).items for _ in range(2)) == [[("job", 2)], [("job", 3)]]
        assert got(one).items == [("job", 3)]
    assert every.is_over and one.is_over
    assert every.get() is None


def test_a_listener_is_told_on_a_thread_of_its_own(fair):
    a, b = fair.line(2)
    heard: list[Any] = []
    enough = threading.Event()

    def listen(reply: Reply) -> None:
        heard.extend(reply.items)  # Both come together, if the collect comes after the offers.
        if len(heard) == 2:
            enough.set()

    replies = a.collect(("job", int), "persistent", "all", listen)
    b.offer(("job", 1))
    b.offer(("job", 2))
    assert enough.wait(PATIENCE_SECONDS)
    assert heard == [("job", 1), ("job", 2)]
    replies.cancel()


def test_a_listener_that_fails_is_told_no_more(fair, caplog):
    a, b = fair.line(2)
    told = a.subscribe(("job", int), _refuse)
    other = a.subscribe(("job", int))
    b.publish(("job", 1))
    got(other)
    assert told.get(wait=PATIENCE_SECONDS) is None
    assert told.is_over
    assert "a listener raised" in caplog.text


def _refuse(reply: Reply) -> None:
    raise RuntimeError("I do not like it")


@at_hosts
def test_an_application_says_itself_what_its_state_is(fair):
    """Pages, and updates that only say which page has changed: they tell no state."""
    pages: list[dict[str, str]] = [{}, {}]
    fair.host()
    fair.host(peers=[fair.hosts[0].address])
    a, b = (
        fair.pubsub(
            host,
            state=lambda name, mine=mine: [mine[name]] if name in mine else [],
            matches=lambda name, changed: False,
        )
        for host, mine in zip(fair.hosts, pages, strict=True)
    )
    waiting = a.collect("news", "single", "any")
    pages[1]["news"] = "rain"
    b.publish({"changed": "news"})
    reply = got(waiting)
    assert (reply.items, reply.is_update) == (["rain"], False)
    assert [one.items for one in a.collect("news").replies] == [["rain"]]
    with pytest.raises(BadArgument, match="state="):
        a.offer(("an", "entry"))


@at_hosts
def test_a_host_that_closes_is_lost_and_nobody_waits_for_it(fair):
    a, b, c = fair.line(3)
    gone = fair.hosts[2].id
    with a.collect(("job", int), "persistent", "all") as every:
        waiting = c.collect(("job", int), "single", "any")
        fair.close(fair.hosts[2])
        assert waiting.is_over
        b.offer(("job", 1))
        assert got(every).items == [("job", 1)]
        while gone in a.hosts:
            a.collect(("job", int))
        assert every.lost == {gone}
    with pytest.raises(HostClosed):
        c.publish(("job", 2))
    c.close()


@at_hosts
def test_who_waits_at_a_host_that_closes_is_told(fair):
    (a,) = fair.line(1)
    replies = a.subscribe(("job", int))
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(replies.get()))
    waiting.start()
    fair.close(fair.hosts[0])
    waiting.join(PATIENCE_SECONDS)
    assert answers == [None]


@at_hosts
def test_a_broker_that_is_closed_can_be_made_again(fair):
    a, b = fair.line(2)
    b.offer(("job", 1))
    with pytest.raises(BadArgument, match="name="):
        fair.pubsub(fair.hosts[1])
    standing = b.subscribe(("job", int))
    b.close()
    b.close()
    assert standing.is_over
    with pytest.raises(HostClosed):
        b.offer(("job", 2))
    assert a.collect(("job", int)).replies == []
    with fair.pubsub(fair.hosts[1]) as again:
        again.offer(("job", 3))
        assert [one.items for one in a.collect(("job", int)).replies] == [[("job", 3)]]


def test_too_many_replies_drop_the_oldest(fair):
    (a,) = fair.line(1)
    replies = a.subscribe(("job", int), backlog_max=3)
    for number in range(5):
        a.publish(("job", number))
    assert [got(replies).items for _ in range(3)] == [[("job", n)] for n in (2, 3, 4)]
    assert replies.missed == 2


@at_hosts
def test_items_that_encode_no_entry_are_left_out(fair, caplog):
    a, b = fair.line(2)
    b.close()
    told: Queue[Reply] = Queue()
    standing = a.collect(("room", int), "persistent", "all", told.put)
    other = fair.pubsub(
        fair.hosts[1], state=lambda pattern: [b"no entry"], matches=lambda pattern, update: True
    )
    other.publish(b"no entry")
    a.offer(("room", 1))
    found = a.collect(("room", int))
    assert [one.items for one in found.replies] == [[("room", 1)]]
    assert found.lost == {fair.hosts[1].id}
    assert told.get(timeout=PATIENCE_SECONDS).items == [("room", 1)]
    assert not standing.is_over
    assert f"an item of the host {fair.hosts[1].id!r} cannot be read" in caplog.text


@at_hosts
def test_who_collects_while_the_host_is_closed_is_told(fair):
    asked, may_answer = threading.Event(), threading.Event()
    ended: Queue[Exception] = Queue()

    def state(pattern: Any) -> list[Any]:
        asked.set()
        may_answer.wait(PATIENCE_SECONDS)
        return []

    def matches(pattern: Any, update: Any) -> bool:
        return False

    here = fair.pubsub(fair.host(), state=lambda pattern: [], matches=matches)

    def collect() -> None:
        try:
            while True:
                here.collect("anything")
        except Exception as error:
            ended.put(error)

    with Host("slow", peers=[fair.hosts[0].address]) as slow:
        PubSub(slow, "fair", state=state, matches=matches)
        collecting = threading.Thread(target=collect)
        collecting.start()
        try:
            assert asked.wait(PATIENCE_SECONDS)
            fair.close(fair.hosts[0])
            assert isinstance(ended.get(timeout=PATIENCE_SECONDS), HostClosed)
        finally:
            may_answer.set()
            collecting.join(PATIENCE_SECONDS)


BAD: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "duration": (BadArgument, lambda a: a.collect(ANY, "for ever")),
    "extent": (BadArgument, lambda a: a.collect(ANY, "single", "some")),
    "listener": (BadArgument, lambda a: a.collect(ANY, "probing", "all", print)),
    "backlog_max": (BadArgument, lambda a: a.subscribe(ANY, backlog_max=0)),
    "wait": (BadArgument, lambda a: a.subscribe(ANY).get(wait=-1)),
    "template": (BadTemplate, lambda a: a.collect(["a list"])),
    "entry": (BadEntry, lambda a: a.publish(["a list"])),
    "offer": (BadEntry, lambda a: a.offer(object())),
}


@at_hosts
@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_used_is_refused(fair, what):
    (a,) = fair.line(1)
    error, call = BAD[what]
    with pytest.raises(error):
        call(a)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("host", {"host": "a name"}),
        ("name", {"name": ""}),
        ("state", {"state": print}),
        ("state", {"key": print}),
        ("matches", {"state": print, "matches": 5}),
    ],
)
def test_a_broker_that_cannot_be_made_is_refused(given, options):
    with Host("alone") as host, pytest.raises(BadArgument, match=f"{given}="):
        PubSub(**{"host": host, **options})
