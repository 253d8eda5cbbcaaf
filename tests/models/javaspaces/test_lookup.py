"""The lookup service: services come, are found by what they are, and go with their leases."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from tests.models.classes import forget
from tupelo import Space, Where
from tupelo.errors import (
    BadArgument,
    BadEntry,
    BadTemplate,
    DiscoveryFailed,
    LeaseLost,
    ListenerFailed,
    SpaceClosed,
    UnknownEvent,
)
from tupelo.models.javaspaces.events import Retry
from tupelo.models.javaspaces.leases import FOREVER, FixedLeasePeriodPolicy, Lease, LeaseMap
from tupelo.models.javaspaces.lookup import (
    TRANSITION_MATCH_MATCH,
    TRANSITION_MATCH_NOMATCH,
    TRANSITION_NOMATCH_MATCH,
    LookupLocator,
    LookupService,
    ServiceEntry,
    ServiceEvent,
    ServiceRegistration,
)
from tupelo.models.javaspaces.mailbox import EventMailbox
from tupelo.models.javaspaces.renewal import LeaseRenewalManager
from tupelo.models.javaspaces.service_items import ServiceItem, ServiceMatches, ServiceTemplate
from tupelo.models.javaspaces.space import Entry
from tupelo.values import kind

ALL = TRANSITION_MATCH_MATCH | TRANSITION_MATCH_NOMATCH | TRANSITION_NOMATCH_MATCH


class Device:
    pass


class Printer(Device):
    pass


class ColourPrinter(Printer):
    pass


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


@dataclass(frozen=True)
class Label:
    text: str | None = None
    tags: list[str] = field(default_factory=list)


@pytest.fixture
def lookup(clock):
    with LookupService(clock=clock) as lookup:
        yield lookup


def item(service: Any, *attributes: Any, service_id: str | None = None) -> ServiceItem:
    return ServiceItem(service_id, service, attributes)


def of(*types: type | str) -> ServiceTemplate:
    return ServiceTemplate(types=types)


def like(*attributes: Any) -> ServiceTemplate:
    return ServiceTemplate(attributes=attributes)


def services(lookup: LookupService, template: ServiceTemplate | None = None) -> list[Any]:
    return [found.service for found in lookup.lookup_all(template).items]


class Listener:
    """Remembers events; fails as often as it is told to."""

    def __init__(self, failures: int = 0, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or RuntimeError("not now")
        self.tries = 0
        self.events: list[ServiceEvent] = []

    def notify(self, event: ServiceEvent) -> None:
        self.tries += 1
        if self.failures:
            self.failures -= 1
            raise self.error
        self.events.append(event)

    @property
    def transitions(self) -> list[int]:
        return [event.transition for event in self.events]


# Registering and looking up


def test_a_service_is_found_by_its_class_and_those_above(lookup):
    printer = ColourPrinter()
    registration = lookup.register(item(printer), 60)
    assert lookup.lookup(of(ColourPrinter)) is printer
    assert lookup.lookup(of(Printer)) is printer
    assert lookup.lookup(of(Device, Printer)) is printer
    assert lookup.lookup(of(f"{__name__}.Printer")) is printer
    assert lookup.lookup(of(object)) is printer
    assert lookup.lookup() is printer
    assert lookup.lookup(of(Name)) is None and lookup.lookup(of(Printer, Name)) is None
    assert str(UUID(registration.service_id)) == registration.service_id
    assert registration.service_id in repr(registration)


def test_a_class_above_is_not_one_below(lookup):
    lookup.register(item(Printer()))
    assert lookup.lookup(of(ColourPrinter)) is None


def test_a_service_is_found_by_its_id(lookup):
    first, second = Printer(), Printer()
    lookup.register(item(first))
    known = UUID(int=7)
    registration = lookup.register(ServiceItem(known, second))
    assert registration.service_id == str(known)
    assert lookup.lookup(ServiceTemplate(known)) is second
    assert lookup.lookup(ServiceTemplate(str(known), [Printer])) is second
    assert lookup.lookup(ServiceTemplate(str(known), [Name])) is None
    assert lookup.lookup(ServiceTemplate("another")) is None


def test_attributes_are_matched_as_entries_are(lookup):
    printer = Printer()
    lookup.register(item(printer, Name("laser"), Room("main", 2, "a")))
    assert lookup.lookup(like(Name("laser"))) is printer
    assert lookup.lookup(like(Name())) is printer
    assert lookup.lookup(like(Place(floor=2))) is printer, "subclasses match"
    assert lookup.lookup(like(Entry())) is printer
    assert lookup.lookup(like(Room())) is printer
    assert lookup.lookup(like(Name("laser"), Place("main"))) is printer, "each has a match"
    assert lookup.lookup(like(Name("ink"))) is None
    assert lookup.lookup(like(Name("laser"), Name("ink"))) is None
    assert lookup.lookup(like(Room("main", 3))) is None
    assert lookup.lookup(ServiceTemplate(None, [Printer], [Name("laser")])) is printer
    assert lookup.lookup(ServiceTemplate(None, [Name], [Name("laser")])) is None


def test_templates_may_say_more_than_values(lookup):
    printer = Printer()
    lookup.register(item(printer, Place("main", 2)))
    assert lookup.lookup(like(Place(floor=Where(lambda floor: floor > 1)))) is printer
    assert lookup.lookup(like(Place)) is printer
    with pytest.raises(BadTemplate):
        lookup.lookup(like(Place(floor=Where(lambda floor: 1 // 0))))


def test_lookup_all_tells_how_many_there_are(lookup):
    printers = [Printer() for _ in range(5)]
    for printer in printers:
        lookup.register(item(printer, Name("p")))
    lookup.register(item(Device()))
    found = lookup.lookup_all(of(Printer), 3)
    assert [one.service for one in found.items] == printers[:3] and found.total_matches == 5
    assert lookup.lookup_all(of(Printer), 0) == ServiceMatches([], 5)
    assert lookup.lookup_all().total_matches == 6
    assert lookup.lookup_all(of(Name)) == ServiceMatches([], 0)
    assert found.items[0].attributes == (Name("p"),)


def test_what_is_handed_out_is_a_copy(lookup):
    label = Label("a", ["x"])
    registration = lookup.register(item(Printer(), label))
    label.tags.append("y")
    found = lookup.lookup_all().items[0].attributes[0]
    assert found == Label("a", ["x"])
    found.tags.append("z")
    assert registration.attributes == (Label("a", ["x"]),)


def test_the_same_attribute_twice_is_one(lookup):
    registration = lookup.register(item(Printer(), Name("a"), Name("a"), Name("b")))
    assert registration.attributes == (Name("a"), Name("b"))


def test_the_registrations_are_entries_of_a_space(lookup):
    lookup.register(item(Printer(), Name("a"), service_id="p"), 60)
    stands = lookup.space.read(ServiceEntry("p"), wait=0)
    assert stands.attributes == (Name("a"),) and f"{__name__}.Printer" in stands.types


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("a printer", "item="),
        (ServiceItem(None, None), "service="),
        (ServiceItem(None, Printer), "service="),
        (ServiceItem("", Printer()), "service_id="),
        (ServiceItem(7, Printer()), "service_id="),  # type: ignore[arg-type]
        (ServiceItem(None, Printer(), Name("a")), "attributes="),  # type: ignore[arg-type]
        (ServiceItem(None, Printer(), [("a", 1)]), "attributes="),
        (ServiceItem(None, Printer(), [Name]), "attributes="),
    ],
)
def test_bad_items_are_refused(lookup, bad, named):
    with pytest.raises(BadArgument, match=named):
        lookup.register(bad)
    with pytest.raises(BadEntry):
        lookup.register(item(Printer(), Label(object())))  # type: ignore[arg-type]
    assert lookup.space.count() == 0 and lookup.lookup() is None


def test_an_equal_service_gets_the_same_id(lookup, clock):
    printer = Printer()
    first = lookup.register(item(printer, Name("a")), 60)
    again = lookup.register(item(printer, Name("b")), 60)
    assert again.service_id == first.service_id
    (found,) = lookup.lookup_all().items
    assert found == item(printer, Name("b"), service_id=first.service_id)
    with pytest.raises(LeaseLost):
        first.lease.renew(10)
    assert lookup.register(item(Printer())).service_id != first.service_id
    urls = [lookup.register(item("tupelo://here/jobs")).service_id for _ in range(2)]
    assert urls[0] == urls[1] != lookup.register(item("tupelo://here/other")).service_id
    assert lookup.register(item(1)).service_id != lookup.register(item(True)).service_id
    named = lookup.register(item(printer, service_id="another"))
    assert named.service_id == "another", "a service that names an id gets that one"


def test_a_registration_with_a_lease_of_0_is_over_at_once(lookup):
    registration = lookup.register(item(Printer()), 0)
    assert not registration.active and lookup.lookup() is None
    told = lookup.notify(None, ALL, Listener(), lease=0)
    assert not told.active


@pytest.mark.parametrize("lease", [-7, "x", None, True])
def test_bad_leases_are_refused(lookup, lease):
    with pytest.raises(BadArgument, match="lease="):
        lookup.register(item(Printer()), lease)
    with pytest.raises(BadArgument, match="lease="):
        lookup.notify(None, ALL, Listener(), lease=lease)
    assert lookup.space.count() == 0


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("a printer", "template="),
        (ServiceTemplate(7), "service_id="),  # type: ignore[arg-type]
        (ServiceTemplate(types=Printer), "types="),  # type: ignore[arg-type]
        (ServiceTemplate(types="Printer"), "types="),
        (ServiceTemplate(types=[7]), "types="),  # type: ignore[list-item]
        (ServiceTemplate(attributes=Name("a")), "attributes="),  # type: ignore[arg-type]
    ],
)
def test_bad_templates_are_refused(lookup, bad, named):
    for call in (lookup.lookup, lookup.lookup_all, lambda bad: lookup.notify(bad, ALL, print)):
        with pytest.raises(BadArgument, match=named):
            call(bad)
    with pytest.raises(BadTemplate):
        lookup.lookup(like(7))


@pytest.mark.parametrize("most", [-1, True, "3", 1.5])
def test_a_bad_maximum_is_refused(lookup, most):
    with pytest.raises(BadArgument, match="max_matches="):
        lookup.lookup_all(None, most)


# Leases


def test_a_registration_ends_with_its_lease(lookup, clock):
    printer = Printer()
    registration = lookup.register(item(printer), 60)
    assert registration.lease.expiration == clock.now() + 60 and registration.active
    clock.advance(59)
    assert lookup.lookup() is printer
    clock.advance(1)
    assert lookup.lookup() is None and not registration.active
    assert lookup.lookup_all() == ServiceMatches([], 0)


def test_a_renewed_registration_goes_on(lookup, clock):
    registration = lookup.register(item(Printer()), 60)
    clock.advance(50)
    registration.lease.renew(60)
    clock.advance(50)
    assert lookup.lookup() is not None
    registration.lease.renew(5)
    clock.advance(5)
    assert lookup.lookup() is None
    registration = lookup.register(item(Printer()))
    assert registration.lease.expiration == FOREVER


def test_a_cancelled_registration_is_gone(lookup):
    registration = lookup.register(item(Printer()), 60)
    registration.lease.cancel()
    assert lookup.lookup() is None and lookup.space.count() == 0
    for call in (
        registration.lease.cancel,
        lambda: registration.lease.renew(10),
        lambda: registration.add_attributes([Name("a")]),
        lambda: registration.set_attributes([Name("a")]),
        lambda: registration.modify_attributes([Name()], [Name("a")]),
    ):
        with pytest.raises(LeaseLost):
            call()
    assert lookup.space.count() == 0


@pytest.mark.parametrize("how", ["cancelled", "expired", "replaced", "closed"])
def test_live_objects_are_let_go(lookup, clock, how):
    printer = Printer()
    registration = lookup.register(item(printer, service_id="p"), 60)
    if how == "cancelled":
        registration.lease.cancel()
    elif how == "expired":
        clock.advance(60)
    elif how == "replaced":
        lookup.register(item(Device(), service_id="p"))
    else:
        lookup.close()
    there = weakref.ref(printer)
    del printer, registration
    gc.collect()
    assert there() is None


def test_a_policy_grants_leases(clock):
    with LookupService(clock=clock, lease_policy=FixedLeasePeriodPolicy(60, 10)) as lookup:
        assert lookup.register(item(Printer())).lease.expiration == clock.now() + 60
        asked = lookup.register(item(Printer()), Lease.ANY)
        assert asked.lease.expiration == clock.now() + 10
        asked.lease.renew(Lease.ANY)
        asked.lease.renew(1000)
        assert asked.lease.expiration == clock.now() + 60
        clock.advance(59)
        asked.set_attributes([Name("a")])
        assert asked.lease.expiration == clock.now() + 1


def test_leases_of_services_and_entries_are_renewed_together(lookup, clock):
    with Space(clock=clock) as space:
        entry = Lease(space.write(("a",), lease=60))
        first, second, gone = (lookup.register(item(Printer()), 60) for _ in range(3))
        gone.lease.cancel()
        assert first.lease.can_batch(second.lease) and not first.lease.can_batch(entry)
        leases = LeaseMap({entry: 100, first.lease: 100, second.lease: 100, gone.lease: 100})
        outcome = leases.renew_all()
        assert outcome.renewed == [entry, first.lease, second.lease]
        assert isinstance(outcome.failed[gone.lease], LeaseLost)
        assert first.lease.expiration == clock.now() + 100
        assert len(leases.cancel_all().cancelled) == 3 and lookup.lookup() is None


def test_a_renewal_manager_keeps_a_registration(lookup, clock):
    with LeaseRenewalManager(clock) as manager:
        registration = lookup.register(item(Printer()), 10)
        manager.renew_until(registration.lease, FOREVER, 10)
        clock.advance(100)
        registration.add_attributes([Name("a")])
        clock.advance(100)
        assert lookup.lookup(like(Name("a"))) is not None


# The same id again


def test_the_same_id_replaces(lookup, clock):
    old, new = Printer(), ColourPrinter()
    before = lookup.register(item(old, Name("old"), service_id="p"), 60)
    after = lookup.register(item(new, Name("new"), service_id="p"), 90)
    assert lookup.lookup_all().total_matches == 1 and lookup.lookup() is new
    assert lookup.lookup(like(Name("old"))) is None and lookup.lookup(of(ColourPrinter)) is new
    assert not before.active and after.active
    with pytest.raises(LeaseLost):
        before.lease.renew(10)
    with pytest.raises(LeaseLost):
        before.lease.cancel()
    with pytest.raises(LeaseLost):
        before.set_attributes([])
    clock.advance(60)
    assert lookup.lookup() is new, "the lease of the old one has no meaning any more"
    clock.advance(30)
    assert lookup.lookup() is None


def test_a_refused_replacement_leaves_the_old_one(clock):
    refuses = False

    def policy(kind: str, asked: float | None) -> float | None:
        return 0 if refuses else asked

    with LookupService(clock=clock, lease_policy=policy) as lookup:
        old = lookup.register(item(Printer(), Name("old"), service_id="p"), 60)
        refuses = True
        with pytest.raises(BadArgument):
            lookup.register(item(Printer(), Name("new"), service_id="p"), 60)
        with pytest.raises(BadArgument):
            old.set_attributes([Name("new")])
        refuses = False
        assert lookup.lookup(like(Name("old"))) is not None and old.active
        old.lease.renew(10)


def test_nobody_ever_sees_two_or_none(lookup, later):
    """Through the service, and in its space."""
    lookup.register(item(Printer(), Name("0"), service_id="p"))
    stop = threading.Event()
    through: set[int] = set()
    within: set[int] = set()

    def watch() -> None:
        while not stop.is_set():
            through.add(lookup.lookup_all().total_matches)
            within.update(lookup.space.count(ServiceEntry("p")) for _ in range(5))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that the threads meet at every point
    try:
        watchers = [later(watch) for _ in range(2)]
        for n in range(200):
            registration = lookup.register(item(Printer(), Name(str(n)), service_id="p"), 60)
            registration.set_attributes([Name("changed")])
    finally:
        stop.set()
        sys.setswitchinterval(interval)
    for watcher in watchers:
        watcher.result()
    assert through == {1} and within == {1}


# Attributes


def registered(lookup: LookupService, *attributes: Any) -> ServiceRegistration:
    return lookup.register(item(Printer(), *attributes), 60)


def test_attributes_are_added(lookup, clock):
    registration = registered(lookup, Name("a"))
    clock.advance(10)
    registration.add_attributes([Name("b"), Name("a")])
    assert registration.attributes == (Name("a"), Name("b"))
    assert lookup.lookup(like(Name("a"), Name("b"))) is not None
    assert registration.lease.expiration == clock.now() + 50, "the lease goes on"
    registration.lease.renew(60)
    clock.advance(59)
    assert registration.active
    clock.advance(1)
    assert not registration.active and lookup.space.count() == 0


def test_attributes_are_set(lookup):
    registration = registered(lookup, Name("a"), Place("main"))
    registration.set_attributes([Name("b")])
    assert registration.attributes == (Name("b"),)
    registration.set_attributes([])
    assert not registration.attributes and lookup.lookup(like(Name())) is None


def test_attributes_are_modified(lookup):
    registration = registered(lookup, Name("a"), Room("main", 1, "x"), Place("main", 2))
    registration.modify_attributes([Place(building="main")], [Place(floor=7)])
    assert list(registration.attributes) == [Name("a"), Room("main", 7, "x"), Place("main", 7)]
    registration.modify_attributes([Room(), Name("z")], [None, None])
    assert list(registration.attributes) == [Name("a"), Place("main", 7)]
    registration.modify_attributes([Room(room="x")], [Place("other")])
    assert list(registration.attributes) == [Name("a"), Place("main", 7)], "nothing matched"


def test_frozen_attributes_can_be_modified(lookup):
    registration = registered(lookup, Label("a", ["x"]))
    registration.modify_attributes([Label(text="a", tags=["x"])], [Label("b", ["y"])])
    assert registration.attributes == (Label("b", ["y"]),)


@pytest.mark.parametrize(
    ("templates", "attributes", "named"),
    [
        ([Name()], [], "attributes="),
        (Name(), [None], "templates="),
        ([7], [None], "templates="),
        ([Name()], [Place()], "attributes="),
        ([Place()], [Room()], "attributes="),
        ([Name()], [7], "attributes="),
    ],
)
def test_bad_modifications_are_refused(lookup, templates, attributes, named):
    registration = registered(lookup, Name("a"))
    with pytest.raises(BadArgument, match=named):
        registration.modify_attributes(templates, attributes)
    for change in (registration.add_attributes, registration.set_attributes):
        for bad in ("ab", [7], None):
            with pytest.raises(BadArgument, match="attributes="):
                change(bad)
    assert registration.attributes == (Name("a"),)


# Browsing


class Scanner:
    pass


class CopyMachine(ColourPrinter, Scanner):
    pass


@pytest.fixture
def office(lookup):
    lookup.register(item(Printer(), Name("a"), Place("main", 1)))
    lookup.register(item(ColourPrinter(), Name("b"), Room("main", 2, "2.14")))
    lookup.register(item(CopyMachine(), Name("b"), Place("annex", 1), Label("x", ["new"])))
    lookup.register(item(Scanner(), Name("c")))
    return lookup


def test_which_classes_of_attributes_there_are(office):
    assert office.get_entry_classes() == [Name, Place, Room, Label]
    assert office.get_entry_classes(of(Scanner)) == [Name, Place, Label]
    assert office.get_entry_classes(like(Name("b"))) == [Room, Place, Label]
    assert office.get_entry_classes(like(Place())) == [Name, Room, Label], "a Room is more"
    assert office.get_entry_classes(of(Device)) == [Name, Place, Room, Label]
    assert office.get_entry_classes(like(Name("nobody"))) == []


def test_a_class_of_attributes_that_is_not_known_here_is_named(office, monkeypatch):
    name = kind.name_of(Label)
    forget(monkeypatch, Label)
    assert office.get_entry_classes(like(Name("b"), Place("annex"))) == [name]


def test_which_values_a_field_has(office):
    template = like(Name(), Place())
    labelled = like(Label("x", None))  # type: ignore[arg-type]
    assert office.get_field_values(template, 0, "name") == ["a", "b"], "of those with a place"
    assert office.get_field_values(template, 1, "floor") == [1, 2]
    assert office.get_field_values(like(Place(floor=1)), 0, "building") == ["main", "annex"]
    assert office.get_field_values(labelled, 0, "tags") == [["new"]]
    assert office.get_field_values(like(Name("nobody")), 0, "name") == []
    tags = office.get_field_values(labelled, 0, "tags")[0]
    tags.append("old")
    assert office.get_field_values(labelled, 0, "tags") == [["new"]], "they are copies"


@pytest.mark.parametrize(
    ("index", "name", "argument"),
    [
        *[(index, "name", "index") for index in (1, -1, True, "0", None)],
        *[(0, name, "field") for name in ("colour", None, 5)],
    ],
)
def test_a_field_that_is_not_there_is_refused(office, index, name, argument):
    with pytest.raises(BadArgument, match=f"{argument}="):
        office.get_field_values(like(Name()), index, name)


def test_which_types_of_services_there_are(office):
    def names(*classes: type) -> list[str]:
        return [f"{cls.__module__}.{cls.__qualname__}" for cls in classes]

    assert office.get_service_types() == names(Printer, ColourPrinter, CopyMachine, Scanner)
    assert office.get_service_types(of(Printer)) == names(ColourPrinter, CopyMachine)
    assert office.get_service_types(of(ColourPrinter)) == names(CopyMachine)
    assert office.get_service_types(of(Scanner), f"{__name__}.C") == names(CopyMachine)
    assert office.get_service_types(of(CopyMachine)) == []
    assert office.get_service_types(None, f"{__name__}.Dev") == names(Device)
    assert office.get_service_types(None, f"{__name__}.Colour") == names(ColourPrinter)
    assert office.get_service_types(None, "nowhere.") == []
    with pytest.raises(BadArgument, match="prefix="):
        office.get_service_types(None, 5)


def test_a_lookup_service_has_an_id_groups_and_perhaps_an_address(clock):
    with LookupService(clock=clock) as lookup, LookupService(clock=clock) as other:
        assert UUID(lookup.service_id) and lookup.service_id != other.service_id
        assert lookup.groups == ("public",) and lookup.locator is None
    name, groups = UUID(int=7), ["printing", "floor 2", "printing"]
    with LookupService("127.0.0.1:4199", clock, service_id=name, groups=groups) as lookup:
        assert lookup.service_id == str(name) and lookup.groups == ("printing", "floor 2")
        assert lookup.locator == LookupLocator("127.0.0.1:4199")
    bad_groups: list[Any] = ["public", [""], [5], ["a\nb"], None]
    for bad in bad_groups:
        with pytest.raises(BadArgument, match="groups="):
            LookupService(groups=bad)
    with pytest.raises(BadArgument, match="service_id="):
        LookupService(service_id="")


# Notification


def test_arrivals_changes_and_departures_are_told(lookup, until):
    listener = Listener()
    told = lookup.notify(like(Name("a")), ALL, listener, "hand back", 60)
    printer = Printer()
    registration = lookup.register(item(printer, Name("a"), service_id="p"))
    registration.add_attributes([Name("b")])
    registration.set_attributes([Name("b")])
    registration.set_attributes([Name("c")])
    registration.set_attributes([Name("a")])
    lookup.register(item(Device(), Name("a"), service_id="p")).lease.cancel()
    until(lambda: len(listener.events) == 6)
    come, changed, went = (
        TRANSITION_NOMATCH_MATCH,
        TRANSITION_MATCH_MATCH,
        TRANSITION_MATCH_NOMATCH,
    )
    assert listener.transitions == [come, changed, went, come, changed, went]
    assert [event.sequence_number for event in listener.events] == [1, 2, 3, 4, 5, 6]
    first, last = listener.events[0], listener.events[-1]
    assert first.source == lookup.name == told.source
    assert first.event_id == told.event_id and told.sequence_number == 0
    assert first.handback == "hand back" and first.service_id == "p"
    assert first.item == ServiceItem("p", printer, (Name("a"),))
    assert listener.events[2].item == ServiceItem("p", printer, (Name("b"),)), "as it is after"
    assert last.item is None and last.attributes is None
    assert told.active and told.error is None


def test_departures_by_expiry_are_told_at_their_time(lookup, clock, until):
    listener = Listener()
    lookup.notify(of(Printer), TRANSITION_MATCH_NOMATCH, listener)
    registration = lookup.register(item(Printer(), service_id="p"), 60)
    clock.advance(50)
    registration.lease.renew(60)
    clock.advance(59)
    assert listener.events == []
    clock.advance(1)
    until(lambda: listener.events)
    assert listener.events[0].service_id == "p" and listener.events[0].item is None


def test_only_the_transitions_asked_for_are_told(lookup, until):
    listeners = {
        transition: Listener()
        for transition in (
            TRANSITION_MATCH_MATCH,
            TRANSITION_NOMATCH_MATCH,
            TRANSITION_MATCH_NOMATCH,
        )
    }
    for transition, listener in listeners.items():
        lookup.notify(of(Printer), transition, listener)
    registration = lookup.register(item(Printer()))
    lookup.register(item(Device()))
    registration.set_attributes([Name("a")])
    registration.lease.cancel()
    until(lambda: all(listener.events for listener in listeners.values()))
    for transition, listener in listeners.items():
        assert listener.transitions == [transition]


def test_a_listener_may_be_a_function(lookup, until):
    events: list[Any] = []
    lookup.notify(None, ALL, events.append)
    lookup.register(item(Printer()))
    until(lambda: events)


@pytest.mark.parametrize("by", ["registration", "lease", "lease map"])
def test_events_that_wait_do_not_come_after_the_lease_was_cancelled(lookup, until, by):
    entered, go_on = threading.Event(), threading.Event()
    events: list[Any] = []

    def slow(event: ServiceEvent) -> None:
        events.append(event)
        entered.set()
        assert go_on.wait(20)

    told = lookup.notify(None, ALL, slow)
    for _ in range(3):
        lookup.register(item(Printer()))
    assert entered.wait(20)
    if by == "registration":
        told.cancel()
    elif by == "lease":
        told.lease.cancel()
    else:
        assert LeaseMap({told.lease: 1}).cancel_all().cancelled == [told.lease]
    go_on.set()
    until(lambda: not [t for t in threading.enumerate() if t.name == "tupelo-events"])
    assert len(events) == 1, "it was on its way"


def test_events_of_before_its_end_come_to_a_slow_listener(lookup, clock, until):
    entered, go_on = threading.Event(), threading.Event()
    events: list[Any] = []

    def slow(event: ServiceEvent) -> None:
        events.append(event)
        entered.set()
        assert go_on.wait(20)

    lookup.notify(None, ALL, slow, lease=5)
    for _ in range(3):
        lookup.register(item(Printer()))
    assert entered.wait(20)
    clock.advance(5)
    go_on.set()
    until(lambda: len(events) == 3)


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_a_listener_is_told_no_more_when_its_lease_ends(lookup, clock, until, how):
    listener, other = Listener(), Listener()
    told = lookup.notify(None, ALL, listener, lease=60)
    lookup.notify(None, ALL, other)
    assert told.lease.expiration == clock.now() + 60
    if how == "cancelled":
        told.cancel()
    else:
        told.lease.renew(70)
        clock.advance(69)
        assert told.active
        clock.advance(1)
    assert not told.active
    lookup.register(item(Printer()))
    until(lambda: other.events)
    assert listener.events == []
    with pytest.raises(LeaseLost):
        told.lease.renew(10)
    with pytest.raises(LeaseLost):
        told.cancel()
    assert lookup.space.count() == 2


def test_a_listener_that_fails_is_told_again(lookup, clock, until):
    listener = Listener(failures=2)
    before = clock.sleepers
    lookup.notify(None, ALL, listener)
    lookup.register(item(Printer(), service_id="a"))
    lookup.register(item(Printer(), service_id="b"))
    for tries in (1, 2):
        until(lambda tries=tries: clock.sleepers == before + tries)
        assert listener.tries == tries
        clock.advance(0.2)
    until(lambda: [event.service_id for event in listener.events] == ["a", "b"])


@pytest.mark.parametrize("error", [RuntimeError("never"), UnknownEvent("not mine")])
def test_a_listener_that_fails_too_often_is_dropped(clock, until, error, caplog):
    with LookupService(clock=clock, retry=Retry(tries=3)) as lookup:
        listener, other = Listener(99, error), Listener()
        told = lookup.notify(None, ALL, listener)
        lookup.notify(None, ALL, other)
        lookup.register(item(Printer()))

        def dropped() -> bool:
            clock.advance(1)
            return not told.active

        until(dropped)
        until(lambda: "was dropped" in caplog.text)
        assert listener.tries == (3 if isinstance(error, RuntimeError) else 1)
        assert isinstance(told.error, ListenerFailed) and told.error.__cause__ is error
        lookup.register(item(Printer()))
        until(lambda: len(other.events) == 2)
        assert listener.tries <= 3


def test_a_listener_whose_template_fails_is_dropped(lookup, until):
    listener, other = Listener(), Listener()
    bad = like(Place(floor=Where(lambda floor: 1 // floor)))
    told = lookup.notify(bad, ALL, listener)
    lookup.notify(None, ALL, other)
    lookup.register(item(Printer(), Place("main", 0)))
    until(lambda: other.events)
    assert not told.active and isinstance(told.error, BadTemplate)
    assert lookup.lookup() is not None


def test_a_listener_may_use_the_lookup_service(lookup, until):
    found: list[Any] = []

    def look(event: ServiceEvent) -> None:
        found.append(lookup.lookup(ServiceTemplate(event.service_id)))

    lookup.notify(None, TRANSITION_NOMATCH_MATCH, look)
    printer = Printer()
    lookup.register(item(printer))
    until(lambda: found == [printer])


@pytest.mark.parametrize("transitions", [0, 8, -1, True, "1", None])
def test_bad_transitions_are_refused(lookup, transitions):
    with pytest.raises(BadArgument, match="transitions="):
        lookup.notify(None, transitions, Listener())


def test_bad_listeners_are_refused(lookup):
    async def waits(event: ServiceEvent) -> None:
        pass

    for bad in (None, 7, waits):
        with pytest.raises(BadArgument, match="listener="):
            lookup.notify(None, ALL, bad)
    assert lookup.space.count() == 0


def test_a_slow_listener_has_a_bounded_backlog(lookup, until, monkeypatch):
    monkeypatch.setattr("tupelo.models.javaspaces.events.BACKLOG_MAX", 5)
    entered, go_on = threading.Event(), threading.Event()
    numbers: list[int] = []

    def slow(event: ServiceEvent) -> None:
        entered.set()
        assert go_on.wait(20)
        numbers.append(event.sequence_number)

    lookup.notify(None, ALL, slow)
    lookup.register(item(Printer()))
    assert entered.wait(20)
    for _ in range(10):
        lookup.register(item(Printer()))
    go_on.set()
    until(lambda: len(numbers) == 6)
    assert numbers == [1, 7, 8, 9, 10, 11], "the gap shows that some were dropped"


def test_events_can_be_kept_in_a_mailbox(lookup, clock, until):
    with EventMailbox(clock=clock) as mailbox:
        kept = mailbox.register()
        lookup.notify(of(Printer), ALL, kept.listener, {"hand": ["back"]})
        printer = Printer()
        registration = lookup.register(item(printer, Name("a"), service_id="p"))
        until(lambda: kept.pending == 1)
        came = next(kept.get_remote_events())
        assert type(came) is ServiceEvent and came.handback == {"hand": ["back"]}
        assert came.item == ServiceItem("p", printer, (Name("a"),)), "found again by its id"
        registration.lease.cancel()
        until(lambda: kept.pending == 1)
        went = next(kept.get_remote_events())
        assert isinstance(went, ServiceEvent) and went.item is None
        assert came.item is None, "it is gone by now"
        lookup.close()
        assert came.item is None


# Discovery


def test_discovery_by_address(clock):
    address = "127.0.0.1:4160"
    locator = LookupLocator(f"jini://{address}")
    with pytest.raises(DiscoveryFailed, match=r"no lookup service at jini://127\.0\.0\.1:4160"):
        locator.get_registrar()
    with LookupService(address, clock) as lookup:
        assert locator.get_registrar() is lookup
        assert LookupLocator(address).get_registrar() is lookup
        assert LookupLocator("127.0.0.1").get_registrar() is lookup, "the port of Jini"
        assert lookup.locator == locator
        with pytest.raises(DiscoveryFailed) as failed:
            LookupLocator("127.0.0.1:4161").get_registrar()
        assert failed.value.address == "jini://127.0.0.1:4161"
    with pytest.raises(DiscoveryFailed):
        locator.get_registrar()


def test_an_address_is_claimed_once_and_freed(clock):
    first = LookupService("kitchen:1", clock)
    with pytest.raises(BadArgument, match="address="):
        LookupService("jini://kitchen:1/", clock)
    assert LookupLocator("kitchen:1").get_registrar() is first
    first.close()
    with LookupService("kitchen:1", clock) as second:
        first.close()
        assert LookupLocator("KITCHEN:1").get_registrar() is second


def test_services_without_an_address_are_apart(clock):
    with LookupService(clock=clock) as one, LookupService(clock=clock) as other:
        one.register(item(Printer()))
        assert other.lookup() is None and one.locator is None and one.name != other.name


@pytest.mark.parametrize(
    "address",
    ["", ":4160", "host:port", "host:0", "host:99999", "http://host:1", "host:1/x", "a b:1", 7,
     "jini://user@host:1", "host:1?x", "[::1:4160", None],
)  # fmt: skip
def test_bad_addresses_are_refused(address):
    with pytest.raises(BadArgument, match="address="):
        LookupLocator(address)
    if address is not None:
        with pytest.raises(BadArgument, match="address="):
            LookupService(address)


def test_locators_are_values():
    locator = LookupLocator("[::1]:7")
    assert (locator.host, locator.port) == ("::1", 7)
    assert locator == LookupLocator("jini://[::1]:7") != LookupLocator("[::1]:8")
    assert len({locator, LookupLocator("[::1]:7")}) == 1
    assert repr(locator) == "LookupLocator('jini://[::1]:7')"


# Closing


def test_a_closed_lookup_service_refuses_everything(lookup, clock):
    registration = lookup.register(item(Printer()), 60)
    told = lookup.notify(None, ALL, Listener())
    lookup.close()
    lookup.close()
    for call in (
        lookup.lookup,
        lookup.lookup_all,
        lambda: lookup.register(item(Printer())),
        lambda: lookup.notify(None, ALL, Listener()),
        lambda: registration.set_attributes([]),
        lambda: registration.lease.renew(5),
    ):
        with pytest.raises(SpaceClosed):
            call()
    assert not registration.active and not told.active
    clock.advance(60)
    assert "LookupService" in repr(lookup)


def test_bad_retry_is_refused():
    with pytest.raises(BadArgument, match="retry="):
        LookupService(retry=3)  # type: ignore[arg-type]


def test_on_the_system_clock_a_registration_ends_by_itself(until):
    listener = Listener()
    with LookupService() as lookup:
        lookup.notify(None, TRANSITION_MATCH_NOMATCH, listener)
        lookup.register(item(Printer()), 0.05)
        until(lambda: listener.events)
        assert lookup.lookup() is None
