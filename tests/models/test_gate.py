"""One gate: the rules of a space hold at every door, at a client and at another host.

A host keeps a secret by every model under two names: `kept`, whose rules forbid everything to
everybody, and `locked`, which has a password. Whatever a client or another host says is refused, or
answered as if there were nothing; and afterwards all is as it was, the rules too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import tupelo
from tests.conftest import until_true
from tests.federation.raw import Raw, encoded
from tupelo import ANY, Access
from tupelo.errors import (
    AccessError,
    BadArgument,
    BadFrame,
    MigrationFailed,
    NotAllAnswered,
    NotAllowed,
    PeerLost,
    TupeloError,
    UnknownHost,
)
from tupelo.federation.hosts.stored import StoredCall
from tupelo.federation.identity.access import NOBODY
from tupelo.federation.links import wire
from tupelo.federation.replication import messages as feeds
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models import lime
from tupelo.models.event_heap import Event, EventHeap
from tupelo.models.event_heap import factories as requests
from tupelo.models.event_heap import served as heap_served
from tupelo.models.event_heap.records import Destroyed, Placed
from tupelo.models.event_heap.replica import heaps_of
from tupelo.models.javaspaces import JavaSpace05, LookupService, offer
from tupelo.models.javaspaces.remote.wire import SERVICE_NAMES
from tupelo.models.lime import Agent, HostLocation, LimeTupleSpace
from tupelo.models.linda import TupleSpace
from tupelo.models.melon import Copies, Melon
from tupelo.models.melon import served as melon_served
from tupelo.models.pubsub import PubSub
from tupelo.models.pubsub import served as pubsub_served
from tupelo.models.rpc import METHODS as RPC_METHODS
from tupelo.models.rpc import RemoteObject, Rpc, Target, registry_of
from tupelo.models.xvsm import INFINITE, Capi, FifoCoordinator
from tupelo.models.xvsm.wire import METHODS as XVSM_METHODS
from tupelo.values.codec import entry_to_wire
from tupelo.values.entry import freeze

PASSWORD = "open sesame"
SECRET = ("secret", 1)
SECRET_WORD = "secret"
RULES = {"kept": NOBODY, "locked": Access(password=PASSWORD)}
COMPANIONS = [
    f"tupelo.{kind}.{name}"
    for name, kinds in (("kept", ("written", "sealed", "system")), ("locked", ("written",)))
    for kind in kinds
]
PRIVATE = ["tupelo.copies.kept", "tupelo.copies.tupelo.system.kept", "tupelo.melon.kept"]


class Spy(Agent):
    """Goes to another host to look there, and writes where it is from."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.failed = ""
        self.board = LimeTupleSpace("kept")

    def run(self) -> None:
        self.board.set_shared(True)
        self.board.out(("x", 2))
        try:
            self.migrate(HostLocation(self.target))
        except MigrationFailed as error:
            self.failed = error.reason


class Safe:
    """An object that only programs of its host may call."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self) -> str:
        self.opened += 1
        return SECRET_WORD


class House:
    """A host that keeps secrets, and all that a guest could look for there."""

    def __init__(self, stack: ExitStack) -> None:
        self.host = stack.enter_context(tupelo.Host("home", listen="127.0.0.1:0"))
        self.spaces = {name: self.host.space(name, access=access) for name, access in RULES.items()}
        for space in self.spaces.values():
            space.write(SECRET)
        self.melons = {
            "kept": Melon(self.host, "kept", copies=Copies(2)),
            "locked": Melon(self.host, "locked"),
        }
        for melon in self.melons.values():
            melon.write(SECRET)
        self.heap = EventHeap(self.host, "kept")
        self.heap.put(Event(SECRET_WORD))
        self.view = self.heap.view()
        self.session = self.heap.session().share()
        self.brokers = {name: PubSub(self.host, name) for name in RULES}
        for broker in self.brokers.values():
            broker.offer(SECRET)
        self.safe = Safe()
        self.remote = {}
        for name in RULES:
            rpc = Rpc(self.host, name)
            rpc.export(self.safe)
            (self.remote[name],) = rpc.find_all(Safe).objects
        self.lime = stack.enter_context(lime.Host(self.host, agents=[Spy]))
        LimeTupleSpace("kept", self.lime.agent("ada")).set_shared(True)
        capi = stack.enter_context(Capi())
        capi.create_container(None, None, "kept", INFINITE, FifoCoordinator())
        capi.offer(self.host, access=NOBODY)
        self.lookup = LookupService()
        offer(self.host, self.lookup, access=NOBODY)
        self.before = self.state()

    def url(self, name: str) -> str:
        return f"{self.host.url}{name}"

    def state(self) -> Any:
        """What there is, and the rules by which it is kept."""
        hosted = self.host.core.spaces
        return (
            {name: hosted[name].access for name in [*RULES, *COMPANIONS, *PRIVATE]},
            {name: space.here.read_all() for name, space in self.spaces.items()},
            {name: melon.read_all(ANY, 0) for name, melon in self.fresh_melons().items()},
            self.heap.snoop_all(),
            len(self.view.replay()),
            self.safe.opened,
            {name: hosted[name].space.count() for name in [*COMPANIONS, *PRIVATE]},
        )

    def fresh_melons(self) -> dict[str, Melon]:
        return {name: Melon(self.host, name) for name in self.melons}

    def is_as_before(self) -> bool:
        rules, *rest = self.state()
        rules_before, *rest_before = self.before
        return rest == rest_before and all(rules[name] is rules_before[name] for name in rules)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with ExitStack() as stack:
        yield House(stack)


# At a client

SAID: dict[type, Callable[[int, str], Any]] = {
    wire.Write: lambda call, space: wire.Write(call, space, [["x", 2]]),
    wire.Get: lambda call, space: wire.Get(call, space, encoded(ANY, ANY), False),
    wire.CountRequest: lambda call, space: wire.CountRequest(call, space, encoded(ANY, ANY)),
    wire.Changes: wire.Changes,
    wire.ReadLog: wire.ReadLog,
    wire.Trim: wire.Trim,
    wire.Begin: wire.Begin,
    wire.End: lambda call, space: wire.End(call, space, "some", "abort"),
    wire.ListPrepared: wire.ListPrepared,
    wire.ListInHand: wire.ListInHand,
    wire.ListDelayed: lambda call, space: wire.ListDelayed(call, space, encoded(ANY, ANY)),
    wire.OpenSession: wire.OpenSession,
    wire.Subscribe: lambda call, space: wire.Subscribe(call, space, encoded(ANY, ANY)),
    wire.Next: lambda call, space: wire.Next(call, space, "some"),
    wire.Match: lambda call, space: wire.Match(call, space, encoded(ANY, ANY)),
    wire.NextMatches: lambda call, space: wire.NextMatches(call, space, "some"),
    wire.State: lambda call, space: wire.State(call, space, "subscription", "some"),
    wire.Close: lambda call, space: wire.Close(call, space, "subscription", "some"),
    wire.Renew: lambda call, space: wire.Renew(call, space, "subscription", "some"),
    wire.CancelLease: lambda call, space: wire.CancelLease(call, space, "subscription", "some"),
}
NOT_ABOUT_A_SPACE = {
    *(wire.Confirm, wire.Cancel),  # of calls on the same link
    *(wire.Forget, wire.Decide, wire.AskOutcome),  # of transactions, by ids that cannot be guessed
    wire.DescribeHost,  # The names of spaces and agents are no secret.
    wire.Open,  # tried below: it gives nothing but the id of the space
    wire.Invoke,  # by service, below
    StoredCall,  # made by the host, of one of these; it cannot be received
}
SERVICES = {
    "linda": ["exchange"],
    "melon": [*melon_served.METHODS, "open", "close"],
    "event_heap": [*heap_served.METHODS, "open", "close"],
    "pubsub": [*pubsub_served.METHODS, "open", "close"],
    "rpc": [*RPC_METHODS, "open", "close"],
    "xvsm": [name for name, method in XVSM_METHODS.items() if method.rules],
    SERVICE_NAMES["lookup"]: ["describe", "register", "first", "find", "kinds", "types", "notify"],
}
INVOKED = [(service, method) for service, methods in SERVICES.items() for method in methods]


@pytest.fixture
def client(house: House) -> Iterator[Raw]:
    raw = Raw.met(house.host.address)
    yield raw
    raw.close()


def is_refusal(answer: Any) -> bool:
    return isinstance(answer, wire.Failure) and answer.kind in ("NotAllowed", "WrongPassword")


@pytest.mark.parametrize("space", [*RULES, *PRIVATE])
def test_every_message_of_a_client_is_refused(house: House, client: Raw, space: str) -> None:
    for number, make in enumerate(SAID.values(), start=1):
        client.say(make(number, space))
        answer = client.answer(number)
        assert is_refusal(answer), (make(number, space), answer)
    take = wire.Get(99, space, encoded(ANY, ANY), True)
    client.say(take)
    assert is_refusal(client.answer(99))
    assert house.is_as_before()


@pytest.mark.parametrize("space", COMPANIONS)
def test_what_a_model_keeps_beside_a_space_is_opened_by_no_client(
    house: House, client: Raw, space: str
) -> None:
    for number, make in enumerate([*SAID.values(), wire.Open], start=1):
        client.say(make(number, space))
        answer = client.answer(number)
        assert isinstance(answer, wire.Failure), answer
        assert answer.kind == "BadArgument" and "tupelo." in answer.message
    assert house.is_as_before()


def test_every_message_that_a_client_can_say_is_in_the_table(house: House) -> None:
    handlers = house.host.core.from_clients
    assert {*handlers.now, *handlers.later} == SAID.keys() | NOT_ABOUT_A_SPACE
    with pytest.raises(BadFrame):
        wire.decode(wire.encode(StoredCall(1, None, wire.Begin(1, "open"))))


@pytest.mark.parametrize("space", RULES)
def test_every_method_of_every_model_is_refused(house: House, client: Raw, space: str) -> None:
    for service, method in INVOKED:
        answer = client.call(wire.Invoke, service, method, space, ["door"])
        assert is_refusal(answer), (service, method, answer)
    assert house.is_as_before()


STOLEN = Target("home", "some id", "Safe")
"""As if a client knew where to find it."""
CLIENT_DOORS: dict[str, Callable[[Any], Any]] = {
    "read": lambda space: space.read(wait=0),
    "take": lambda space: space.take(wait=0),
    "write": lambda space: space.write(("x", 2)),
    "subscribe": lambda space: space.subscribe(ANY),
    "Linda": lambda space: TupleSpace(space).rdp(ANY),
    "JavaSpaces": lambda space: JavaSpace05(space).take_if_exists(None, None, 0),
    "Melon store": lambda space: Melon(space).store(("x", 2)),
    "Melon write": lambda space: Melon(space).write(("x", 2)),
    "Melon take": lambda space: Melon(space).take(ANY, 0),
    "Melon read": lambda space: Melon(space).read(ANY, 0),
    "heap": lambda space: EventHeap(space).get(),
    "heap anew": EventHeap.create,
    "heap destroyed": lambda space: EventHeap(space).destroy(),
    "publish": lambda space: PubSub(space).publish(("x", 2)),
    "collect": lambda space: PubSub(space).collect(ANY, "probing", "all"),
    "found": lambda space: Rpc(space).find(Safe, wait=0),
    "called": lambda space: RemoteObject(Rpc(space)._door, STOLEN, "").invoke("open"),
}


@pytest.mark.parametrize("door", CLIENT_DOORS)
def test_every_door_on_a_connection_is_refused(house: House, door: str) -> None:
    with tupelo.connect(house.url("kept")) as space, pytest.raises(AccessError):
        CLIENT_DOORS[door](space)
    with pytest.raises(AccessError), tupelo.connect(house.url("locked")) as space:
        CLIENT_DOORS[door](space)
    assert house.is_as_before()


def test_a_wrong_password_opens_nothing(house: House) -> None:
    with pytest.raises(AccessError):
        tupelo.connect(house.url("locked"), password="wrong")
    assert house.is_as_before()


REQUESTS: dict[str, Callable[[], requests.FactoryRequest]] = {
    "make": lambda: requests.HeapRequest(),
    "destroy": lambda: requests.DestroyRequest(),
    "view": lambda: requests.ViewRequest(order="total"),
    "session": lambda: requests.SessionRequest(),
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("heap", [*RULES, "tupelo.system.kept"])
def test_a_factory_has_no_more_rights_than_who_asks(
    house: House, request_name: str, heap: str
) -> None:
    request = REQUESTS[request_name]()
    request.request, request.heap = f"{request_name} {heap}", heap
    with tupelo.connect(house.url(requests.SPACE)) as space:
        space.write(request)
        made = space.take(requests.Made(request=request.request), wait=10)
    assert made is not None and made.id is None and made.error is not None
    assert made.error.partition(":")[0] in ("NotAllowed", "WrongPassword", "BadArgument")
    assert house.is_as_before()


def test_a_factory_serves_those_who_may(house: House) -> None:
    with tupelo.connect(house.url(requests.SPACE)) as space:
        for number, request in enumerate(
            [requests.HeapRequest(), requests.ViewRequest(order="none")]
        ):
            request.request, request.heap = f"{number}", "anyone's"
            space.write(request)
            made = space.take(requests.Made(request=f"{number}"), wait=10)
            assert made is not None and made.error is None
        # Only programs of this machine may administer it, as is usual.
        space.write(requests.DestroyRequest("end", "anyone's"))
        made = space.take(requests.Made(request="end"), wait=10)
    assert made is not None and made.id == "anyone's"


def test_with_the_password_all_of_it_is_used(house: House) -> None:
    with tupelo.connect(house.url("locked"), password=PASSWORD) as space:
        assert space.read(wait=0) == SECRET
        assert Melon(space).read(ANY, 0) == SECRET


# At another host


class Stranger(Raw):
    """A host that says what it likes."""

    def notices(self, *messages: Any) -> list[Any]:
        """Say these, and what is heard until the host has heard them all."""
        self.say(*messages)
        number = next(self._calls)
        self.say(wire.CountRequest(number, "nothing of this name", encoded(ANY)))
        heard: list[Any] = []
        while getattr(message := self.hear(), "call", None) != number:
            assert message is not None, "the host has hung up"
            heard.append(message)
        return [
            one for one in heard if isinstance(one, wire.PartNotice) and one.part == "replication"
        ]


@pytest.fixture
def stranger(house: House) -> Iterator[Stranger]:
    raw = Stranger(house.host.address)
    raw.greet("host", spaces=[*RULES, *COMPANIONS])
    yield raw
    raw.leave()


def entry_of(value: object) -> Any:
    return entry_to_wire(*freeze(value))


HOST_SAID: dict[str, Callable[[int, str], Any]] = {
    "read": lambda call, space: wire.Ask(call, space, encoded(ANY, ANY), "read", None),
    "peek": lambda call, space: wire.Ask(call, space, encoded(ANY, ANY), "peek"),
    "take": lambda call, space: wire.Ask(call, space, encoded(ANY, ANY), "take"),
    "watch": lambda call, space: wire.WatchRequest(call, space, encoded(ANY, ANY), call, True),
    "count": lambda call, space: wire.CountRequest(call, space, encoded(ANY, ANY)),
    "move": lambda call, space: wire.MoveEntry(
        call, space, [entry_of(("x", 2)), 1, "me", 1, None, "me"]
    ),
}


@pytest.mark.parametrize("space", [*RULES, *COMPANIONS, *PRIVATE])
def test_every_message_of_another_host_is_refused(
    house: House, stranger: Stranger, space: str
) -> None:
    for number, (name, make) in enumerate(HOST_SAID.items(), start=100):
        stranger.say(make(number, space))
        answer = stranger.answer(number)
        nothing = isinstance(answer, wire.Answer) and answer.value in ([], None, 0, False)
        assert nothing or is_refusal(answer), (name, answer)
    assert house.is_as_before()


def test_no_feed_has_a_stranger_as_its_partner(house: House, stranger: Stranger) -> None:
    mine = f"{stranger.id}/life"
    theirs = f"{house.host.id}/{house.host.core.spaces['kept'].port.id}"
    for feed in ("kept", *COMPANIONS, "tupelo.written.locked"):
        record = Destroyed(1) if "system" in feed else ("x", 2)
        placed = Placed("view", 0, [mine], [0], [7], 1)
        items = [
            (number, [entry_of(value), number, stranger.id, None, None])
            for number, value in enumerate((record, placed), start=1)
        ]
        told = stranger.notices(
            *(
                wire.PartNotice("replication", wire.body(message))
                for message in (
                    feeds.HasFeed(feed, mine, True, [], {mine: feeds.StreamMark(2)}, True),
                    feeds.FetchFrom(feed, theirs, feeds.NOTHING),
                    feeds.ItemBatch(feed, mine, 0, 2, 0, items, False),
                )
            )
        )
        assert not [one for one in told if feeds.read(one.body).feed == feed]
    assert house.is_as_before()


@pytest.fixture(scope="module")
def guest(house: House) -> Iterator[tupelo.Host]:
    with tupelo.Host("guest", listen="127.0.0.1:0", peers=[house.host.address]) as host:
        until_true(lambda: host.engaged and house.host.engaged, "they are engaged")
        yield host


def nothing_of(ask: Callable[[], Any]) -> bool:
    """Is what was asked refused, or answered with nothing of the secret?"""
    try:
        return SECRET_WORD not in repr(ask())
    except (AccessError, NotAllAnswered):
        return True


@pytest.mark.parametrize("name", RULES)
def test_a_federated_space_gets_nothing(house: House, guest: tupelo.Host, name: str) -> None:
    space = guest.space(name)
    for ask in (
        lambda: space.read(wait=0),
        lambda: space.take(wait=0),
        lambda: space.read_all(),
        lambda: space.take_all(),
        lambda: space.count() or None,
        lambda: Melon(guest, name).read_all(ANY, 0),
        lambda: Melon(guest, name).take_all(ANY, 0),
        lambda: TupleSpace(space).rdg(ANY),
        lambda: JavaSpace05(space).read(None, None, 0),
    ):
        assert nothing_of(ask)
    assert house.is_as_before()


@pytest.mark.parametrize("name", RULES)
def test_a_broker_is_told_nothing(house: House, guest: tupelo.Host, name: str) -> None:
    broker = PubSub(guest, name)
    told: list[Any] = []
    broker.subscribe(ANY, told.append)
    until_true(lambda: house.host.id in broker.hosts, "the brokers know each other")
    assert nothing_of(lambda: broker.collect(ANY, "probing", "all"))
    house.brokers[name].publish(SECRET)
    assert nothing_of(lambda: broker.collect(ANY, "probing", "all"))
    assert told == []
    broker.close()


@pytest.mark.parametrize("name", RULES)
def test_another_host_finds_and_calls_nothing(house: House, guest: tupelo.Host, name: str) -> None:
    with Rpc(guest, name) as rpc:
        target = house.remote[name]._target
        broker = registry_of(guest.core, name).broker
        until_true(lambda: target.host in broker.hosts, "the brokers know each other")
        assert rpc.find_all(Safe).objects == []
        with pytest.raises(NotAllowed):
            RemoteObject(rpc._door, target, "").invoke("open")
    assert house.safe.opened == 0
    assert house.is_as_before()


def test_an_agent_of_lime_gets_nothing(house: House, guest: tupelo.Host) -> None:
    with lime.Host(guest, agents=[Spy]) as there:
        until_true(lambda: house.lime.location in there.hosts, "the hosts are in one group")
        spy = there.load(Spy, house.lime.location.id)
        until_true(lambda: spy.failed, "it is sent back")
        assert "not allowed" in spy.failed
        space = LimeTupleSpace("kept", there.agent("ben"))
        space.set_shared(True)
        assert nothing_of(lambda: space.rdp(ANY))
        assert nothing_of(lambda: space.inp(ANY))
        assert nothing_of(lambda: space.rdg(ANY))
    assert house.is_as_before()


def is_refused(guest: tupelo.Host, voice: Any, home: str, question: list[Any]) -> bool:
    """Is it refused? If the group changes meanwhile it is asked again."""
    try:
        answer = guest.now(voice.ask(home, question))
    except NotAllowed:
        return True
    except (PeerLost, UnknownHost):
        return False
    raise AssertionError(f"{question} was answered: {answer}")


def test_a_heap_elsewhere_gets_nothing_and_ends_nothing(house: House, guest: tupelo.Host) -> None:
    home = house.host.id
    heap = EventHeap(guest, "kept")
    replica = heaps_of(guest.core).replicas[heap.name]
    until_true(lambda: home in replica.others, "the hosts of the heap know each other")
    assert heap.get_all() == [] and heap.hosts == []
    view = house.view.id
    for voice, questions in {
        replica.sender: (
            ["remove", heaps_of(house.host.core).replicas["kept"].feed.source, 1, "request"],
            ["order", view, 0],
            ["clone", view],
            ["put", view],
            ["destroy"],
        ),
        replica.tokens.sender: (
            ["take", f"view {view}", 0, 0, [0, home, None]],
            ["take", f"session {house.session}", 0, None, [0, home, None]],
            ["stays"],
        ),
    }.items():
        for question in questions:
            asked = partial(is_refused, guest, voice, home, question)
            until_true(asked, f"{question} is refused")
    heap.put(Event("forged"))
    system = guest.core.spaces["tupelo.system.kept"].space
    for record in (Destroyed(99), Placed(view, 0, [replica.feed.source], [0], [7], 1)):
        system.write(record)
    house.view.put(Event("more"))
    assert house.view.get() is not None
    assert house.heap.remove(Event("more")) is not None
    heap.close()


def test_every_message_that_a_host_can_say_is_known_here(house: House) -> None:
    """Who adds one says here by what it is refused."""
    handlers = house.host.core.from_hosts
    of_a_space = {wire.Ask, wire.WatchRequest, wire.CountRequest, wire.MoveEntry, wire.PartNotice}
    of_what_it_has = {
        *(
            wire.Hint,
            wire.HintAck,
            wire.ForgetSession,
            wire.Settle,
            wire.Returned,
            wire.UnwatchRequest,
        ),
        wire.PresenceUpdate,
    }
    of_transactions = {wire.Forget, wire.Decide, wire.AskOutcome}
    assert {*handlers.now, *handlers.later} == {
        *of_a_space,
        *of_what_it_has,
        *of_transactions,
        wire.Routed,
        wire.DescribeHost,  # answered with nothing
    }


# What may be said by some


def test_who_may_write_and_not_take_does_not_destroy_a_heap() -> None:
    with (
        tupelo.Host("home", listen="127.0.0.1:0") as home,
        tupelo.Host("guest", peers=[home.address]) as guest,
    ):
        home.space("room", access=Access(take=()))
        mine, its = EventHeap(home, "room"), EventHeap(guest, "room")
        replicas = heaps_of(guest.core).replicas
        until_true(lambda: replicas["room"].others and mine.hosts, "they are partners")
        mine.put(Event("tea"))
        assert its.wait(wait=10) == Event("tea")
        guest.core.spaces["tupelo.system.room"].space.write(Destroyed(1))
        until_true(lambda: "room" not in replicas, "it is destroyed there")
        EventHeap.create(guest, "room").put(Event("coffee"))
        assert mine.wait(Event("coffee"), wait=10) == Event("coffee")
        assert mine.snoop(Event("tea")) == Event("tea")


def test_what_a_host_writes_that_may_not_is_taken_from_nobody() -> None:
    """Nor from another that may, and has carried it."""
    home_key, carrier_key, guest_key = (tupelo.Identity.new() for _ in range(3))
    trust = tupelo.Trust.known([one.key for one in (home_key, carrier_key, guest_key)])
    with (
        tupelo.Host("home", listen="127.0.0.1:0", identity=home_key, trust=trust) as home,
        tupelo.Host(
            "carrier",
            listen="127.0.0.1:0",
            peers=[home.address],
            identity=carrier_key,
            trust=trust,
        ) as carrier,
        tupelo.Host("guest", peers=[carrier.address], identity=guest_key, trust=trust) as guest,
    ):
        home.space("room", access=Access(write=[carrier_key.key]))
        heaps = [EventHeap(host, "room") for host in (home, carrier, guest)]
        until_true(lambda: len(heaps[1].hosts) == 2, "the carrier has both as partners")
        heaps[2].put(Event("forged"))
        assert heaps[1].wait(Event("forged"), wait=10) is not None
        heaps[1].put(Event("true"))
        assert heaps[0].wait(wait=10) == Event("true")
        assert heaps[0].get() is None


def test_asking_for_a_heap_leaves_the_rules_of_a_space_as_they_are() -> None:
    rules = Access(read=(), password=PASSWORD)
    with tupelo.Host("home", listen="127.0.0.1:0") as home:
        for name in ("room.system", "room.written", "room.sealed"):
            home.space(name, access=rules)
        EventHeap(home, "room")
        Melon(home, "room")
        with tupelo.connect(f"{home.url}event heaps") as space:
            space.write(requests.HeapRequest("ask", "room"))
            made = space.take(requests.Made(request="ask"), wait=10)
            assert made is not None and made.id == "room"
        for name in ("room.system", "room.written", "room.sealed"):
            assert home.core.spaces[name].access is rules


# Names, and what earlier versions have kept


@pytest.mark.parametrize("name", ["tupelo.written.news", "tupelo.anything"])
def test_no_program_gives_a_name_that_is_reserved(house: House, name: str) -> None:
    with pytest.raises(BadArgument, match=r"tupelo\."):
        house.host.space(name)
    with pytest.raises(TupeloError, match=r"tupelo\."):
        tupelo.connect(house.url(name))


def test_what_an_earlier_version_has_kept_is_used_on(tmp_path: Any) -> None:
    """It was in spaces that programs could open as well, and their copies were named after them."""
    with tupelo.Host("home", path=tmp_path) as home:
        melon, heap = Melon(home, "news", copies=Copies(1)), EventHeap(home, "room")
        melon.write(("old", 1), pin=True)
        view = heap.view().id
        heap.put(Event("old"))
    for now, before in {
        "tupelo.written.news": "news.written",
        "tupelo.sealed.news": "news.sealed",
        "tupelo.system.room": "room.system",
    }.items():
        for prefix in ("", "tupelo.copies."):
            for file in list(tmp_path.glob(f"{prefix}{now}.tupelo*")):
                file.rename(tmp_path / file.name.replace(now, before))
        (tmp_path / f"{before}.own").touch()
    for _ in range(2):
        with tupelo.Host("home", path=tmp_path) as home:
            melon = Melon(home, "news", copies=Copies(1))
            assert melon.read(ANY, 0) == ("old", 1)
            heap = EventHeap(home, "room")
            assert heap.view(view).get() == Event("old")
            assert heap.view(view).is_owner
            assert not list(tmp_path.glob("tupelo.written.*"))
    with tupelo.Host("home", path=tmp_path) as home:
        assert Melon(home, "news", copies=Copies(1)).unpin(ANY) == 1


def test_a_companion_without_the_rules_of_its_space_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted bug: what a model keeps beside a space has rules of its own, and no others."""

    def check(
        hosted: HostedSpace, operation: str, who: str | None, shown: Container[str] = ()
    ) -> None:
        hosted.access.check(operation, hosted.name, who, hosted.name in shown)

    monkeypatch.setattr(HostedSpace, "check", check)
    monkeypatch.setattr(
        HostedSpace,
        "allows_host",
        lambda hosted, operation, host: hosted.access.allows_host(operation, host),
    )
    with ExitStack() as stack:
        house = House(stack)
        guest = stack.enter_context(tupelo.Host("guest", peers=[house.host.address]))
        reader = Melon(guest, "kept")
        until_true(lambda: reader.read(ANY, 0) == SECRET, "the secret is out")
