"""A lease renewal service of a host: it keeps what programs elsewhere have leased there, while they
are away."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import tupelo
from tests.conftest import until_true
from tests.models.javaspaces.remote.conftest import bare
from tupelo.errors import BadArgument, CannotReach, LeaseLost, PeerLost
from tupelo.models.javaspaces import (
    FOREVER,
    JavaSpace,
    Lease,
    LeaseRenewalService,
    LookupService,
    RemoteLeaseRenewalService,
    RenewalFailureEvent,
    ServiceItem,
    offer,
)
from tupelo.space.dual_api import run_sync


@pytest.fixture
def renewals(town):
    return town.connect("renewals")


def service(n: int = 1) -> ServiceItem:
    return ServiceItem(f"service {n}", f"service {n}")


def test_a_lease_is_kept_though_the_program_has_hung_up(town, renewals):
    registrar = town.connect("lookup")
    registration = registrar.register(service(), 0.5)
    kept = renewals.create_lease_renewal_set(60)
    name = kept.renew_for(registration.lease, FOREVER, 0.5)
    assert name and kept.leases == [registration.lease]
    registrar.close()
    town.clock.advance(1.2)
    assert town.lookup.lookup() == "service 1"
    assert kept.remove(registration.lease) == registration.lease and kept.leases == []
    assert kept.remove(registration.lease) is None
    town.clock.advance(0.5)
    assert town.lookup.lookup() is None, "it lives as long as it was granted"


def test_a_set_ends_with_its_lease(town, renewals):
    registration = town.connect("lookup").register(service(), 0.3)
    kept = renewals.create_lease_renewal_set(0.6)
    kept.renew_for(registration.lease, FOREVER, 0.3)
    town.clock.advance(0.6)
    assert not kept.active and town.renewals.space.count() == 0
    town.clock.advance(0.3)
    assert town.lookup.lookup() is None, "nobody renews it any more"
    for use in (
        lambda: kept.leases,
        lambda: kept.renew_for(registration.lease),
        lambda: kept.remove(registration.lease),
        lambda: kept.set_expiration_warning_listener(print, 5),
        lambda: kept.set_renewal_failure_listener(print),
        kept.clear_expiration_warning_listener,
        lambda: kept.lease.renew(5),
    ):
        with pytest.raises(LeaseLost):
            use()


def test_a_duration_is_kept(town, renewals):
    registration = town.connect("lookup").register(service(), 0.3)
    kept = renewals.create_lease_renewal_set(60)
    kept.renew_for(registration.lease, 0.8, 0.3)
    town.clock.advance(0.5)
    assert town.lookup.lookup() == "service 1"
    town.clock.advance(0.3)
    assert town.lookup.lookup() is None and kept.leases == []


def test_leases_of_all_services_of_the_host(town, renewals):
    registrar = town.connect("lookup")
    events: list[Any] = []
    leases = [
        registrar.register(service(), 0.4).lease,
        registrar.notify(None, 7, events.append, None, 0.4).lease,
        town.connect("mailbox").register(0.4).lease,
    ]
    kept = renewals.create_lease_renewal_set(60)
    for lease in leases:
        kept.renew_for(lease, FOREVER, 0.4)
    town.clock.advance(1.0)
    assert kept.leases == leases
    assert town.lookup.lookup() == "service 1" and len(town.mailbox.registrations()) == 1
    town.lookup.register(service(2))
    until_true(lambda: events, "the listener is still told")


def test_a_lease_that_is_lost_is_told_of(town, renewals):
    registration = town.connect("lookup").register(service(), 0.5)
    kept, events = renewals.create_lease_renewal_set(60), list[RenewalFailureEvent]()
    told = kept.set_renewal_failure_listener(events.append, "back")
    assert told.active and told.source
    name = kept.renew_for(registration.lease, FOREVER, 0.5)
    town.lookup.register(service())  # takes its place
    town.clock.advance(0.3)
    until_true(lambda: events)
    (event,) = events
    assert event.lease == bare(registration.lease) and event.lease_id == name
    assert event.handback == "back" and "gone" in str(event.reason)
    assert not registration.active and kept.leases == []


def test_a_warning_comes_before_the_set_is_over(town, renewals):
    kept, events = renewals.create_lease_renewal_set(1.0), list[Any]()
    kept.set_expiration_warning_listener(events.append, 0.7, "back")
    town.clock.advance(0.3)
    until_true(lambda: len(events) == 1)
    assert kept.active and events[0].handback == "back"
    kept.lease.renew(60)
    kept.lease.renew(0.5)
    until_true(lambda: len(events) == 2)
    kept.lease.renew(60)
    kept.clear_expiration_warning_listener()
    kept.lease.renew(0.5)
    town.clock.advance(0.5)
    assert not kept.active and len(events) == 2


def test_a_new_listener_takes_the_place_of_the_old_one(town, renewals):
    kept, first, second = renewals.create_lease_renewal_set(60), list[Any](), list[Any]()
    kept.set_expiration_warning_listener(first.append, 100)
    until_true(lambda: first)
    kept.set_expiration_warning_listener(second.append, 100)
    until_true(lambda: second)
    assert [event.sequence_number for event in first + second] == [1, 2]


def test_bad_arguments_are_named(town, renewals):
    kept = renewals.create_lease_renewal_set(60)
    lease = town.connect("lookup").register(service(), 60).lease
    local = JavaSpace("local").write(RenewalFailureEvent("s", 1, 1))
    with tupelo.Host("other", listen="127.0.0.1:0") as host, LookupService() as own:
        offer(host, own)
        elsewhere = town.connect("lookup", host.url)
        foreign = elsewhere.register(service(), 60).lease
        cases: list[tuple[str, Any]] = [
            ("lease", lambda: kept.renew_for("lease")),
            ("lease", lambda: kept.renew_for(local)),
            ("lease", lambda: kept.renew_for(foreign)),
            ("lease", lambda: kept.renew_for(kept.lease)),
            ("lease", lambda: kept.remove(local)),
            ("duration", lambda: kept.renew_for(lease, "long")),
            ("renew_duration", lambda: kept.renew_for(lease, 10, 0)),
            ("renew_duration", lambda: kept.renew_for(lease, 10, Lease.ANY)),
            ("min_warning", lambda: kept.set_expiration_warning_listener(print, -1)),
            ("listener", lambda: kept.set_expiration_warning_listener(None, 5)),
            ("listener", lambda: kept.set_renewal_failure_listener("x")),
            ("lease", lambda: renewals.create_lease_renewal_set(0)),
            ("lease", lambda: renewals.create_lease_renewal_set("x")),
        ]
        for argument, call in cases:
            with pytest.raises(BadArgument, match=f"^{argument}="):
                call()
        elsewhere.close()
    assert kept.leases == []
    kept.renew_for(lease, FOREVER, Lease.ANY)


def test_leases_of_sets_are_limited(town, renewals):
    kept = renewals.create_lease_renewal_set()
    assert kept.lease.expiration - bare(renewals).clock.now() <= 300


def test_a_lost_link(town, renewals):
    kept, events = renewals.create_lease_renewal_set(60), list[Any]()
    kept.set_renewal_failure_listener(events.append)
    registrar = town.connect("lookup")
    for n in range(3):
        registration = registrar.register(service(n), 0.6)
        town.cut()
        kept.renew_for(registration.lease, FOREVER, 0.6)
        town.cut()
        assert kept.leases == [registration.lease]
        town.lookup.register(service(n))
        town.clock.advance(0.3)
        town.cut()
        wanted = n + 1
        until_true(lambda: len(events) == wanted)  # noqa: B023
    assert [event.sequence_number for event in events] == [1, 2, 3]


def test_a_host_that_is_gone(town):
    with (
        LeaseRenewalService() as own,
        tupelo.Host("other", listen="127.0.0.1:0", heartbeat=2.0) as host,
    ):
        offer(host, own)
        renewals = town.connect("renewals", host.url, reconnect=0.3)
        kept = renewals.create_lease_renewal_set(60)
    for call in (renewals.create_lease_renewal_set, lambda: kept.leases):
        with pytest.raises((PeerLost, CannotReach)):
            call()


def test_what_a_hostile_program_sends_is_refused(town):
    with RemoteLeaseRenewalService.connect(town.url) as renewals:
        kept = renewals.create_lease_renewal_set(60)
        for method, args in (
            ("create", (5, 5)),
            ("create", ("id", "long")),
            ("renew_for", (kept.id, ["nobody"], 5, 5)),
            ("renew_for", (kept.id, "nobody", 5, 5)),
            ("renew_for", (kept.id, [kept.id], 5, 5)),
            ("renew_for", ("nobody", [kept.id], 5, 5)),
            ("remove", (kept.id, 5)),
            ("lease_ids", ("nobody",)),
            ("warn", (kept.id, [5, "tag"], 5, None)),
            ("warn", (kept.id, ["q", "tag"], "soon", None)),
            ("tell_failures", (kept.id, ["q", 5], None)),
            ("clear_warnings", ("nobody",)),
        ):
            with pytest.raises((BadArgument, LeaseLost)):
                run_sync(partial(renewals.call, method, *args))
        assert kept.active
