"""A lookup service of a host, for programs elsewhere: they register, find, listen, die and come
back."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

import tupelo
from tests.conftest import Program, until_true
from tests.models.classes import forget, learn
from tests.models.javaspaces.remote.conftest import bare
from tupelo.errors import (
    BadArgument,
    BadEntry,
    CannotReach,
    DiscoveryFailed,
    LeaseLost,
    ListenerFailed,
    NotAllowed,
    PeerLost,
    SpaceClosed,
    SpaceFull,
    UnknownEvent,
    UnknownService,
)
from tupelo.models.javaspaces import (
    FOREVER,
    TRANSITION_MATCH_MATCH,
    TRANSITION_MATCH_NOMATCH,
    TRANSITION_NOMATCH_MATCH,
    Entry,
    EventMailbox,
    JavaSpace,
    JavaSpace05,
    Lease,
    LeaseMap,
    LeaseRenewalManager,
    LookupLocator,
    LookupService,
    RemoteLookupService,
    ServiceItem,
    ServiceLocation,
    ServiceMatches,
    ServiceTemplate,
    offer,
)
from tupelo.space.dual_api import run_sync
from tupelo.values import kind

ALL = TRANSITION_MATCH_MATCH | TRANSITION_MATCH_NOMATCH | TRANSITION_NOMATCH_MATCH
JOBS = ServiceLocation("space", "tupelo://127.0.0.1:7700/jobs")


@dataclass
class Name(Entry):
    name: str | None = None


@dataclass
class Place(Entry):
    building: str | None = None
    floor: int | None = None


@dataclass
class Room(Place):
    room: str | None = None
    tags: list[str] | None = field(default=None)


def item(service: Any, *attributes: Any, service_id: str | None = None) -> ServiceItem:
    return ServiceItem(service_id, service, attributes)


def of(*types: type | str) -> ServiceTemplate:
    return ServiceTemplate(types=types)


def like(*attributes: Any) -> ServiceTemplate:
    return ServiceTemplate(attributes=attributes)


# Registering and finding


def test_what_one_program_registers_another_finds(town, registrar):
    other = town.connect("lookup")
    registration = registrar.register(item(JOBS, Name("jobs"), Place("main", 2)), 60)
    assert registration.active and registration.service_id
    found = ServiceItem(registration.service_id, JOBS, (Name("jobs"), Place("main", 2)))
    for template in (
        None,
        of(JavaSpace05),
        of(JavaSpace),
        of(ServiceLocation),
        of("tupelo.models.javaspaces.space.JavaSpace05"),
        like(Name("jobs")),
        like(Place(floor=2), Name()),
        ServiceTemplate(registration.service_id, [JavaSpace05], [Name("jobs")]),
    ):
        assert other.lookup(template) == JOBS, template
        assert other.lookup_all(template) == ServiceMatches([found], 1)
    for template in (of(LookupService), like(Name("x")), like(Room()), ServiceTemplate("x")):
        assert other.lookup(template) is None
        assert other.lookup_all(template) == ServiceMatches([], 0)
    assert town.lookup.lookup(of(JavaSpace05)) == JOBS, "and so does a program at the host"
    assert other.lookup_all(None, 0) == ServiceMatches([], 1)


def test_what_the_host_registers_is_found_elsewhere(town, registrar):
    town.lookup.register(item("a value", Name("a")))
    town.lookup.register(item(object(), Name("no value")))
    town.lookup.register(item(town.mailbox, Name("mailbox")))
    assert registrar.lookup(like(Name("a"))) == "a value"
    assert registrar.lookup(like(Name("no value"))) is None
    items = registrar.lookup_all().items
    location = ServiceLocation("mailbox", town.url)
    assert [one.service for one in items] == ["a value", None, location]
    assert registrar.lookup(of(EventMailbox)) == location
    with location.open() as mailbox:
        assert mailbox.register(60).active


def test_an_equal_service_gets_the_same_id(town, registrar):
    first = registrar.register(item(JOBS, Name("a")), 60)
    again = town.connect("lookup").register(item(JOBS, Name("b")), 60)
    assert again.service_id == first.service_id
    assert [one.attributes for one in registrar.lookup_all().items] == [(Name("b"),)]
    with pytest.raises(LeaseLost):
        first.add_attributes([Name("c")])
    assert not first.active
    named = registrar.register(item(JOBS, service_id="mine"), 60)
    assert named.service_id == "mine"


def test_attributes_are_changed_from_elsewhere(town, registrar):
    registration = registrar.register(item(JOBS, Name("a"), Room("main", 1, "1.01")), 60)
    registration.add_attributes([Name("a"), Name("b")])
    assert registration.attributes == (Name("a"), Room("main", 1, "1.01"), Name("b"))
    registration.modify_attributes([Place(floor=1), Name("a")], [Place(floor=3), None])
    assert registration.attributes == (Room("main", 3, "1.01"), Name("b"))
    assert registrar.lookup(like(Room(floor=3))) == JOBS
    registration.set_attributes([Place("annex")])
    assert registration.attributes == (Place("annex"),)
    assert registrar.lookup(like(Name())) is None
    with pytest.raises(BadArgument, match="attributes="):
        registration.modify_attributes([Name()], [])
    with pytest.raises(BadArgument, match="attributes="):
        registration.add_attributes(["text"])


def test_browsing_from_elsewhere(town, registrar):
    registrar.register(item(JOBS, Name("a"), Place("main", 1)), 60)
    other = ServiceLocation("mailbox", "tupelo://127.0.0.1:7701")
    registrar.register(item(other, Name("b"), Room("main", 2, "x", ["new"])), 60)
    assert registrar.get_entry_classes() == [Name, Place, Room]
    assert registrar.get_entry_classes(like(Place())) == [Name, Room]
    assert registrar.get_field_values(like(Place()), 0, "floor") == [1, 2]
    assert registrar.get_field_values(like(Room()), 0, "tags") == [["new"]]
    names = registrar.get_service_types(None, "tupelo.models.javaspaces.space")
    assert names == ["tupelo.models.javaspaces.space.JavaSpace05"]
    assert registrar.get_service_types(of(ServiceLocation, JavaSpace05)) == []
    for index, name, argument in ((1, "floor", "index"), (0, "colour", "field")):
        with pytest.raises(BadArgument, match=f"{argument}="):
            registrar.get_field_values(like(Place()), index, name)
    with pytest.raises(BadArgument, match="prefix="):
        registrar.get_service_types(None, 5)


def test_who_it_is(town, registrar):
    assert registrar.service_id == town.lookup.service_id
    assert registrar.groups == ("public",)
    assert registrar.locator == LookupLocator(town.url)
    assert repr(bare(registrar)) == f"RemoteLookupService({town.url!r})"


def test_classes_that_the_host_does_not_know(town, registrar, monkeypatch):
    """The host keeps and matches what it cannot build; a finder that knows the class gets it."""

    @dataclass
    class Secret(Place):
        code: Any = None

    name = kind.name_of(Secret)
    events: list[Any] = []
    registrar.notify(None, ALL, events.append)
    forget(monkeypatch, Secret)
    registration = registrar.register(item(JOBS, Secret("main", 1, [7]), Name("a")), 60)
    forget(monkeypatch, Secret)
    assert town.lookup.lookup(like(Place("main", 1))) == JOBS
    (found,) = town.lookup.lookup_all().items
    assert found.attributes == (Name("a"),), "what has no class is left out"
    assert registrar.lookup_all(like(Place(floor=1))).items[0].attributes == (Name("a"),)
    assert registrar.get_entry_classes(like(Name())) == [name]
    registration.modify_attributes([Place()], [Place(floor=9)])
    learn(monkeypatch, Secret)
    assert registration.attributes == (Secret("main", 9, [7]), Name("a"))
    assert registrar.get_entry_classes(like(Name())) == [Secret]
    until_true(lambda: len(events) == 2)
    assert [event.service_id for event in events] == [registration.service_id] * 2


def test_bad_arguments_are_named(town, registrar):
    bad: list[tuple[str, Any, Any]] = [
        ("item", registrar.register, ("x",)),
        ("service", registrar.register, (item(None),)),
        ("service", registrar.register, (item(object()),)),
        ("service", registrar.register, (item(JavaSpace05("local")),)),
        ("service_id", registrar.register, (item(JOBS, service_id=""),)),
        ("lease", registrar.register, (item(JOBS), -7)),
        ("lease", registrar.register, (item(JOBS), "long")),
        ("attributes", registrar.register, (item(JOBS, "text"),)),
        ("template", registrar.lookup, ("x",)),
        ("types", registrar.lookup, (of(5),)),  # type: ignore[arg-type]
        ("max_matches", registrar.lookup_all, (None, -1)),
        ("transitions", registrar.notify, (None, 0, print)),
        ("listener", registrar.notify, (None, ALL, None)),
        ("lease", registrar.notify, (None, ALL, print, None, -7)),
    ]
    for argument, call, args in bad:
        with pytest.raises(BadArgument, match=f"^{argument}="):
            call(*args)
    with pytest.raises(BadEntry, match="name"):
        registrar.register(item(JOBS, Name({1, 2})))  # type: ignore[arg-type]
    assert town.lookup.lookup_all().total_matches == 0


@pytest.mark.parametrize("kind_given", ["shop", "", 5])
def test_a_location_is_checked(kind_given):
    with pytest.raises(BadArgument, match="kind="):
        ServiceLocation(kind_given, "tupelo://127.0.0.1:7700")
    for url in ("", "http://x", "tupelo://127.0.0.1:7700"):
        with pytest.raises(BadArgument, match="url="):
            ServiceLocation("space", url)


def test_what_a_hostile_program_sends_is_refused(town):
    """By the protocol itself, without what a client checks."""
    anything: list[Any] = [None, [], [], []]
    with RemoteLookupService.connect(town.url) as registrar:
        for method, args in (
            ("sing", ()),
            ("first", ()),
            ("first", (5,)),
            ("first", ([None, [], [], [], []],)),
            ("first", ([None, ["x" * 2_000], [], []],)),
            ("first", ([None, [], [b"\xff"], [None]],)),
            ("first", ([None, [], [["a"]], [None]],)),
            ("first", ([None, [], [], [None]],)),
            ("first", ([5, [], [], []],)),
            ("find", (anything, -1)),
            ("register", ("id", ["", "x", {}, []], "long")),
            ("register", ("id", ["", "x", {}, []], -7)),
            ("register", ("id", ["", "x", {}, [["a tuple"]]], 5)),
            ("register", ("id", ["", "x", {"a": "b"}, []], 5)),
            ("register", ("id", ["", "x", [], []], 5)),
            ("register", ("", ["", "x", {}, []], 5)),
            ("register", ("id", ["", "x", {}, [[]] * 101], 5)),
            ("modify_attributes", ("id", 1, 5, 5)),
            ("notify", ("id", anything, 99, ["q", "tag"], None, 5)),
            ("notify", ("id", anything, 1, [5, "tag"], None, 5)),
            ("notify", ("id", anything, 1, ["box"], None, 5)),
            ("notify", ("id", anything, 1, [], None, 5)),
            ("values", (anything, 0, "x")),
            ("events", ("nobody", 0)),
            ("events", (5, 0)),
            ("renew", (5, 5)),
            ("renew", ("nobody", 5)),
        ):
            with pytest.raises((BadArgument, LeaseLost)):
                run_sync(partial(registrar.call, method, *args))
        assert registrar.lookup() is None, "and it goes on serving"


# Leases


def test_a_registration_ends_with_its_lease(town, registrar):
    registration = registrar.register(item(JOBS), 0.3)
    assert registrar.lookup() == JOBS
    town.clock.advance(0.3)
    assert registrar.lookup() is None and not registration.active
    with pytest.raises(LeaseLost):
        registration.lease.renew(10)
    with pytest.raises(LeaseLost):
        registration.lease.cancel()
    with pytest.raises(LeaseLost):
        registration.set_attributes([])
    gone = registrar.register(item(JOBS), 0)
    assert not gone.active and registrar.lookup() is None


def test_leases_are_renewed_cancelled_and_limited(town, registrar):
    registration = registrar.register(item(JOBS), 5)
    now = bare(registrar).clock.now
    lease = registration.lease
    assert 0 < lease.expiration - now() <= 5
    lease.renew(60)
    assert 50 < lease.expiration - now() <= 60
    for much in (FOREVER, Lease.ANY, 1e9):
        lease.renew(much)
        assert 290 < lease.expiration - now() <= 300, "the host does not allow more"
    with pytest.raises(BadArgument, match="duration="):
        lease.renew("long")
    lease.cancel()
    assert registrar.lookup() is None and not registration.active
    with pytest.raises(LeaseLost):
        lease.cancel()


def test_a_host_may_allow_other_leases(town):
    other = LookupService()
    offer(town.host, other, lease_max=FOREVER)
    registrar = town.connect("lookup")
    assert registrar.register(item(JOBS)).lease.expiration == FOREVER
    offer(town.host, other, lease_max=7)
    limited = registrar.register(item(JOBS)).lease
    assert limited.expiration - bare(registrar).clock.now() <= 7
    other.close()


def test_the_renewal_manager_keeps_a_registration(town, registrar):
    if town.is_async:
        pytest.skip("the renewal manager renews leases of the blocking door here")
    lease = registrar.register(item(JOBS), 0.3).lease
    with LeaseRenewalManager(town.clock) as manager:
        manager.renew_until(lease, FOREVER, 0.3)
        town.clock.advance(1.0)
        assert registrar.lookup() == JOBS
        outcome = LeaseMap({lease: 60}).renew_all()
        assert outcome.renewed == [lease]
    assert LeaseMap({lease: 60}).cancel_all().cancelled == [lease]
    assert registrar.lookup() is None


def test_a_program_may_have_so_many_leases(town, registrar, monkeypatch):
    monkeypatch.setattr("tupelo.models.javaspaces.remote.hosting.LEASES_MAX", 3)
    leases = [registrar.register(item(f"{n}"), 60).lease for n in range(3)]
    with pytest.raises(SpaceFull, match="3 leases"):
        registrar.register(item("one more"), 60)
    leases[0].cancel()
    registrar.register(item("one more"), 60)


# Programs that die, and links that are lost

PROGRAM = """
import sys, threading
from tupelo.models.javaspaces import LookupLocator, ServiceItem, ServiceLocation
registrar = LookupLocator(sys.argv[1]).get_registrar()
location = ServiceLocation("space", "tupelo://127.0.0.1:7700/jobs")
registration = registrar.register(ServiceItem("a program", location), float(sys.argv[2]))
heard = threading.Event()
registrar.notify(None, 7, lambda event: heard.set())
print("registered", flush=True)
threading.Event().wait()
"""


def test_the_registration_of_a_program_that_is_killed_ends_with_its_lease(town, registrar):
    events: list[Any] = []
    registrar.notify(ServiceTemplate("a program"), ALL, events.append)
    with Program(PROGRAM, f"tupelo://{town.host.address}", 1.5) as child:
        assert child.line() == "registered"
        assert registrar.lookup(ServiceTemplate("a program")) == JOBS
    town.clock.advance(1.5)
    assert registrar.lookup() is None, "its lease has ended"
    until_true(lambda: len(events) == 2)
    assert [event.transition for event in events] == [
        TRANSITION_NOMATCH_MATCH,
        TRANSITION_MATCH_NOMATCH,
    ]


def test_a_lost_link_loses_nothing(town, registrar):
    events: list[Any] = []
    registration = registrar.register(item(JOBS, Name("0")), 60)
    told = registrar.notify(None, ALL, events.append)
    for n in range(1, 6):
        town.cut()
        registration.set_attributes([Name(str(n))])
        town.cut()
        assert registrar.lookup(like(Name(str(n)))) == JOBS
    until_true(lambda: len(events) == 5, "all events come, each once")
    assert [event.sequence_number for event in events] == [1, 2, 3, 4, 5]
    assert [event.attributes for event in events] == [(Name(str(n)),) for n in range(1, 6)]
    assert told.active and registration.active


def test_a_host_that_is_gone(town):
    with LookupService() as own, tupelo.Host("other", listen="127.0.0.1:0", heartbeat=2.0) as host:
        location = offer(host, own)
        registrar = town.connect("lookup", location.url, reconnect=0.3)
        registration = registrar.register(item(JOBS), 60)
        events: list[Any] = []
        told = registrar.notify(None, ALL, events.append)
    for call in (registrar.lookup, lambda: registration.lease.renew(5)):
        with pytest.raises((PeerLost, CannotReach)):
            call()
    until_true(lambda: not told.active, "no more events come")
    assert isinstance(told.error, (PeerLost, CannotReach))


def test_a_closed_registrar_refuses_everything(town):
    registrar = town.connect("lookup")
    registration = registrar.register(item(JOBS), 60)
    told = registrar.notify(None, ALL, print)
    registrar.close()
    for call in (registrar.lookup, registration.lease.cancel, registrar.get_service_types):
        with pytest.raises(SpaceClosed):
            call()
    until_true(lambda: not told.active)
    assert town.lookup.lookup() == JOBS, "the registration lasts as long as its lease"


# Events


def test_arrivals_changes_and_departures_are_told(town, registrar):
    events: list[Any] = []
    told = registrar.notify(of(JavaSpace05), ALL, events.append, {"hand": ["back"]}, 60)
    assert told.active and told.source == town.lookup.name and told.sequence_number == 0
    other = town.connect("lookup")
    registration = other.register(item(JOBS, Name("a")), 60)
    other.register(item("no space"), 60)
    registration.set_attributes([Name("b")])
    registration.lease.cancel()
    until_true(lambda: len(events) == 3)
    assert [event.transition for event in events] == [
        TRANSITION_NOMATCH_MATCH,
        TRANSITION_MATCH_MATCH,
        TRANSITION_MATCH_NOMATCH,
    ]
    assert all(event.handback == {"hand": ["back"]} for event in events)
    assert {event.service_id for event in events} == {registration.service_id}
    assert [event.attributes for event in events] == [(Name("a"),), (Name("b"),), None]
    first = ServiceItem(registration.service_id, JOBS, (Name("a"),))
    assert events[0].item == first and events[2].item is None


def test_a_handback_need_not_be_a_value(town, registrar):
    events: list[Any] = []
    handback = object()
    registrar.notify(None, ALL, events.append, handback)
    registrar.register(item(JOBS), 60)
    until_true(lambda: events)
    assert events[0].handback is handback


def test_listeners_come_and_go(town, registrar):
    first, second = list[Any](), list[Any]()
    one = registrar.notify(None, ALL, first.append)
    two = registrar.notify(None, ALL, second.append)
    assert one.event_id != two.event_id
    registrar.register(item("a"), 60)
    until_true(lambda: first and second)
    one.lease.cancel()
    assert not one.active
    registrar.register(item("b"), 60)
    until_true(lambda: len(second) == 2)
    assert len(first) == 1
    two.cancel()
    again = registrar.notify(None, ALL, first.append)
    registrar.register(item("c"), 60)
    until_true(lambda: len(first) == 2)
    assert again.active and not two.active and len(second) == 2


def test_a_listener_ends_with_its_lease(town, registrar):
    events: list[Any] = []
    told = registrar.notify(None, ALL, events.append, None, 0.3)
    registrar.register(item("a"), 60)
    until_true(lambda: events)
    town.clock.advance(0.3)
    assert not told.active
    assert not town.lookup.registry._watching, "the host has forgotten it"
    registrar.register(item("b"), 60)
    assert len(events) == 1


@pytest.mark.parametrize("error", [RuntimeError("never"), UnknownEvent("not mine")])
def test_a_listener_that_fails_is_dropped(town, registrar, error):
    tries: list[Any] = []

    def fails(event: Any) -> None:
        tries.append(event)
        raise error

    told = registrar.notify(None, ALL, fails)
    registrar.register(item("a"), 60)
    town.pass_until(lambda: not told.active)
    assert len(tries) == (4 if isinstance(error, RuntimeError) else 1)
    assert isinstance(told.error, ListenerFailed) and told.error.__cause__ is error


def test_a_listener_may_use_the_registrar(town, registrar):
    if town.is_async:
        pytest.skip(
            "on the async door a listener is called from a thread, and the registrar awaited"
        )
    found: list[Any] = []

    def look(event: Any) -> None:
        found.append(registrar.lookup(ServiceTemplate(event.service_id)))

    registrar.notify(None, TRANSITION_NOMATCH_MATCH, look)
    registrar.register(item(JOBS), 60)
    until_true(lambda: found == [JOBS])


def test_many_events_come_in_order(town, registrar):
    events: list[Any] = []
    registrar.notify(None, ALL, events.append)
    with nullcontext(town.lookup) if town.is_async else town.connect("lookup") as other:
        for n in range(250):
            other.register(item(f"{n}", service_id="s"), 60)
    until_true(lambda: len(events) == 250)
    assert [event.sequence_number for event in events] == list(range(1, 251))


# Who may do what


def test_rules_of_access(town):
    closed = LookupService()
    offer(town.host, closed, access=tupelo.Access(write=(), subscribe=()))
    registrar = town.connect("lookup")
    assert registrar.lookup() is None
    with pytest.raises(NotAllowed, match="write"):
        registrar.register(item(JOBS))
    with pytest.raises(NotAllowed, match="subscribe"):
        registrar.notify(None, ALL, print)
    closed.close()


def test_a_queue_is_its_programs_own(town):
    with RemoteLookupService.connect(town.url) as mine:
        mine.notify(None, ALL, print)
        queue = mine._pump.queue_id  # type: ignore[union-attr]
        town.host.core.services["jini.lookup"].queues[queue].agent = "another"
        with pytest.raises(LeaseLost):
            run_sync(partial(mine.call, "events", queue, 0))
        with pytest.raises(BadArgument, match="queue="):
            mine.notify(None, ALL, print)


# Offering, and discovery by address


def test_a_host_that_offers_nothing(town):
    with tupelo.Host("bare", listen="127.0.0.1:0") as host:
        with pytest.raises(UnknownService, match=r"offers no 'jini\.lookup' service"):
            town.connect("lookup", host.url)
        with pytest.raises(DiscoveryFailed, match=str(LookupLocator(host.url))):
            LookupLocator(host.url).get_registrar()
    with pytest.raises(DiscoveryFailed):
        LookupLocator("tupelo://127.0.0.1:1").get_registrar()


def test_discovery_by_address(town):
    locator = LookupLocator(f"tupelo://{town.host.address}")
    assert locator.elsewhere and locator == LookupLocator(str(locator)) == LookupLocator(town.url)
    assert LookupLocator("tupelo://kitchen").port == 7700
    if town.is_async:
        registrar = town.loop.call(locator.get_registrar_async)
        assert town.loop.call(registrar.lookup) is None
        town.loop.call(registrar.close)
    else:
        with locator.get_registrar(name="a program") as registrar:
            assert registrar.lookup() is None
    for bad in ("tupelo://", "http://x", "tupelo://host:7700/space", "tupelo://a@b"):
        with pytest.raises(BadArgument, match="address="):
            LookupLocator(bad)
    with pytest.raises(BadArgument, match="address="):
        LookupService("tupelo://127.0.0.1:7700")


@pytest.mark.parametrize("bad", ["host", "service", "lease_max", "access", "listens"])
def test_what_cannot_be_offered_is_refused(town, bad):
    arguments: dict[str, Any] = {"host": town.host, "service": town.lookup}
    silent = tupelo.Host("silent") if bad == "listens" else None
    if silent is not None:
        arguments["host"] = silent
    else:
        arguments[bad] = {"host": "host", "service": "x", "lease_max": 0, "access": "all"}[bad]
    with pytest.raises(BadArgument, match=f"^{'host' if bad == 'listens' else bad}="):
        offer(**arguments)
    if silent is not None:
        silent.close()
