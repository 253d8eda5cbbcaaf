"""Appendix B.6: leases of entries, registrations and match sets, with the ids of the thesis."""

# ruff: noqa: N802 (the ids are encoded as in the thesis)

from typing import Any

import pytest

from tests.models.javaspaces.doors import (
    EXTENDED,
    SIMPLE,
    TIMEOUT,
    Listener,
    Parked,
    SimpleEntry,
    availability,
    event_of,
    fill,
    in_order,
)
from tupelo.errors import LeaseLost, MatchSetInvalid
from tupelo.models.javaspaces import NO_WAIT

ENTRY = SimpleEntry(1, "one", True)
OTHER = SimpleEntry(2, "two", False)


class Registered:
    """A leased registration, and what its listener should be told."""

    def __init__(self, javaspace: Any, kind: str, lease: float) -> None:
        self.listener = Listener()
        if kind == "notify":
            self.registration = javaspace.notify(SimpleEntry(), None, self.listener, lease)
        else:
            self.registration = javaspace.register_for_availability_event(
                [SimpleEntry()], None, True, self.listener, lease
            )
        self._kind = kind

    def event(self, nth: int, entry: Any) -> Any:
        if self._kind == "notify":
            return event_of(self.registration, nth)
        return availability(self.registration, nth, entry)


@pytest.fixture(params=["notify", "availability"])
def register(request, javaspace):
    """Both ways to register: the appendix leaves out the second, "because the test cases are the
    same for both types"."""
    return lambda lease: Registered(javaspace, request.param, lease)


@pytest.fixture
def ten_of_each(javaspace):
    fill(javaspace, *SIMPLE, *EXTENDED)
    return javaspace


def test_appendix_b_L_1_an_entry_is_gone_when_its_lease_has_ended(javaspace, clock):
    lease = javaspace.write(ENTRY, None, 10)
    assert lease.expiration == clock.now() + 10
    clock.advance(5)
    assert javaspace.read(SimpleEntry(), None, TIMEOUT) == ENTRY
    clock.advance(10)
    reader = Parked(javaspace, javaspace.read, SimpleEntry(), None, timeout=TIMEOUT)
    assert reader.ends_after(TIMEOUT) is None


def test_appendix_b_L_2_an_entry_stays_as_long_as_its_lease_is_renewed(javaspace, clock):
    lease = javaspace.write(ENTRY, None, 10)
    for _ in range(6):
        clock.advance(5)
        lease.renew(10)
        assert lease.expiration == clock.now() + 10
        assert javaspace.read(SimpleEntry(), None, TIMEOUT) == ENTRY
    clock.advance(10)
    assert javaspace.read(SimpleEntry(), None, NO_WAIT) is None
    with pytest.raises(LeaseLost):
        lease.renew(10)


def test_appendix_b_L_3_an_entry_is_gone_when_its_lease_is_cancelled(javaspace, clock):
    lease = javaspace.write(ENTRY, None, 60)
    clock.advance(5)
    assert javaspace.read(SimpleEntry(), None, TIMEOUT) == ENTRY
    lease.cancel()
    clock.advance(5)
    reader = Parked(javaspace, javaspace.read, SimpleEntry(), None, timeout=TIMEOUT)
    assert reader.ends_after(TIMEOUT) is None


def test_appendix_b_L_4_a_registration_ends_with_its_lease(javaspace, register, clock):
    registered = register(10)
    assert registered.registration.lease.expiration == clock.now() + 10
    clock.advance(5)
    javaspace.write(ENTRY)
    assert registered.listener.next() == registered.event(1, ENTRY)
    clock.advance(10)
    later = register(60)
    javaspace.write(OTHER)
    assert later.listener.next() == later.event(1, OTHER)
    assert not registered.registration.active
    assert registered.listener.heard_nothing_else(registered.registration)


def test_appendix_b_L_5_a_registration_ends_when_its_lease_is_cancelled(javaspace, register, clock):
    registered = register(60)
    clock.advance(5)
    javaspace.write(ENTRY)
    assert registered.listener.next() == registered.event(1, ENTRY)
    registered.registration.lease.cancel()
    clock.advance(5)
    later = register(60)
    javaspace.write(OTHER)
    assert later.listener.next() == later.event(1, OTHER)
    assert not registered.registration.active
    assert registered.listener.heard_nothing_else(registered.registration)


def test_appendix_b_L_6_a_registration_stays_as_long_as_its_lease_is_renewed(
    javaspace, register, clock
):
    registered = register(10)
    for nth in range(1, 7):
        clock.advance(5)
        registered.registration.lease.renew(10)
        entry = SimpleEntry(nth, "again", True)
        javaspace.write(entry)
        assert registered.listener.next() == registered.event(nth, entry)
    clock.advance(10)
    javaspace.write(OTHER)
    assert not registered.registration.active
    assert registered.listener.heard_nothing_else(registered.registration)


def test_appendix_b_L_7_a_match_set_ends_with_its_lease(ten_of_each, clock):
    matches = ten_of_each.contents([SimpleEntry()], None, 10)
    assert matches.lease.expiration == clock.now() + 10
    clock.advance(5)
    assert matches.next() in SIMPLE + EXTENDED
    clock.advance(10)
    with pytest.raises(MatchSetInvalid):
        matches.next()


def test_appendix_b_L_8_a_match_set_is_read_as_long_as_its_lease_is_renewed(ten_of_each, clock):
    matches = ten_of_each.contents([SimpleEntry()], None, 10)
    found = []
    for _ in range(20):
        clock.advance(5)
        matches.lease.renew(10)
        found.append(matches.next())
    assert in_order(found) == in_order([*SIMPLE, *EXTENDED])
    assert matches.next() is None, "none are left"
    clock.advance(10)
    assert matches.next() is None, "there is nothing left that could be wrong"


def test_appendix_b_L_9_a_match_set_ends_when_its_lease_is_cancelled(ten_of_each, clock):
    matches = ten_of_each.contents([SimpleEntry()], None, 60)
    clock.advance(5)
    assert matches.next() in SIMPLE + EXTENDED
    matches.lease.cancel()
    clock.advance(5)
    with pytest.raises(MatchSetInvalid):
        matches.next()
