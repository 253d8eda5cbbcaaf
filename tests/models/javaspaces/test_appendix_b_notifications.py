"""Appendix B.5: notifications, with the ids of the thesis. No time passes in any of them: an event
comes because of the write, and not later.

That no notification came is shown by the next one that does, whose number follows at once, or by
ending the registration and waiting until all that was due has been delivered.
"""

# ruff: noqa: N802 (the ids are encoded as in the thesis)

import pytest

from tests.models.javaspaces.doors import (
    SIMPLE,
    TIMEOUT,
    ExtendedEntry,
    Listener,
    SimpleEntry,
    availability,
    drain,
    event_of,
    fill,
)

MATCHING = [ExtendedEntry(n, "red", n < 3, 100 + n, "heavy") for n in range(5)]
"""5 different entries, which all match the templates below."""

PARTIAL = SimpleEntry(text="red")
THREE = [SimpleEntry(), ExtendedEntry(text="red"), ExtendedEntry(label="heavy")]


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def clients(world, javaspace):
    """2 separate clients of one space, each with a listener of its own."""
    return [(world.client(javaspace), Listener()) for _ in range(2)]


def test_appendix_b_N_1_an_entry_of_the_type_is_told_of(javaspace, listener):
    registration = javaspace.notify(SimpleEntry(), None, listener)
    assert registration.source == javaspace.name
    javaspace.write(SIMPLE[0])
    assert listener.next() == event_of(registration, 1)
    assert listener.heard_nothing_else(registration)


def test_appendix_b_N_2_an_entry_of_a_subtype_is_told_of(javaspace, listener):
    registration = javaspace.notify(SimpleEntry(), None, listener)
    javaspace.write(MATCHING[0])
    assert listener.next() == event_of(registration, 1)
    assert listener.heard_nothing_else(registration)


def test_appendix_b_N_3_an_entry_of_the_supertype_is_not_told_of(javaspace, listener):
    registration = javaspace.notify(ExtendedEntry(), None, listener)
    javaspace.write(SIMPLE[0])
    javaspace.write(MATCHING[0])
    assert listener.next() == event_of(registration, 1), "the first event is that of the second"
    assert listener.heard_nothing_else(registration)


def test_appendix_b_N_4_an_entry_of_the_subtype_asked_for_is_told_of(javaspace, listener):
    registration = javaspace.notify(ExtendedEntry(), None, listener)
    javaspace.write(MATCHING[0])
    assert listener.next() == event_of(registration, 1)
    assert listener.heard_nothing_else(registration)


def test_appendix_b_N_5_a_partial_template_tells_of_each_entry(javaspace, listener):
    registration = javaspace.notify(PARTIAL, None, listener)
    for nth, entry in enumerate(MATCHING, start=1):
        javaspace.write(entry)
        assert listener.next() == event_of(registration, nth)
    assert listener.heard_nothing_else(registration)


def test_appendix_b_N_6_an_entry_that_does_not_match_is_not_told_of(javaspace, listener):
    registration = javaspace.notify(PARTIAL, None, listener)
    javaspace.write(SimpleEntry(7, "blue", True))
    javaspace.write(MATCHING[0])
    assert listener.next() == event_of(registration, 1), "the first event is that of the second"
    assert listener.heard_nothing_else(registration)


def test_appendix_b_N_7_two_clients_get_the_same_numbers(javaspace, clients):
    # "Based on test case N.6": the entries match here, as in N.5.
    registrations = [client.notify(PARTIAL, None, listener) for client, listener in clients]
    first, second = registrations
    assert first.event_id == second.event_id
    assert first.sequence_number == second.sequence_number
    for nth, entry in enumerate(MATCHING, start=1):
        javaspace.write(entry)
        for _, listener in clients:
            assert listener.next() == event_of(first, nth)
    for (_, listener), registration in zip(clients, registrations, strict=True):
        assert listener.heard_nothing_else(registration)


def test_appendix_b_N_8_one_event_however_many_templates_match(javaspace, listener):
    registration = javaspace.register_for_availability_event(THREE, None, False, listener)
    for nth, entry in enumerate(MATCHING, start=1):
        javaspace.write(entry)
        assert listener.next() == availability(registration, nth, entry)
    assert listener.heard_nothing_else(registration)


def test_appendix_b_N_9_a_rollback_makes_the_entry_visible_again(javaspace, begin, listener):
    fill(javaspace, *SIMPLE)
    registration = javaspace.register_for_availability_event([SimpleEntry()], None, True, listener)
    transaction = begin()
    taken = javaspace.take(SimpleEntry(), transaction, TIMEOUT)
    assert listener.idle
    transaction.abort()
    assert listener.next() == availability(registration, 1, taken)
    assert listener.heard_nothing_else(registration)
    assert len(drain(javaspace)) == 10


def test_appendix_b_N_10_two_clients_get_one_event_however_many_templates_match(javaspace, clients):
    registrations = [
        client.register_for_availability_event(THREE, None, False, listener)
        for client, listener in clients
    ]
    first, second = registrations
    assert first.event_id == second.event_id
    assert first.sequence_number == second.sequence_number
    for entry in MATCHING:
        javaspace.write(entry)
    wanted = [availability(first, nth, entry) for nth, entry in enumerate(MATCHING, start=1)]
    for (_, listener), registration in zip(clients, registrations, strict=True):
        assert listener.take(5) == wanted
        assert listener.heard_nothing_else(registration)


def test_appendix_b_N_11_two_clients_with_two_registrations_each(javaspace, clients):
    told: list[Listener] = []
    registrations = []
    for client, _ in clients:
        told += [Listener(), Listener()]
        registrations.append(client.notify(PARTIAL, None, told[-2]))
        registrations.append(client.register_for_availability_event(THREE, None, True, told[-1]))
    ids = [registration.event_id for registration in registrations]
    assert ids[:2] == ids[2:], "the same for both clients"
    assert len(set(ids)) == 2, "one for each kind"
    for entry in MATCHING:
        javaspace.write(entry)
    for i, (listener, registration) in enumerate(zip(told, registrations, strict=True)):
        for nth, entry in enumerate(MATCHING, start=1):
            by_notify = i % 2 == 0
            wanted = (
                event_of(registration, nth) if by_notify else availability(registration, nth, entry)
            )
            assert listener.next() == wanted
        assert listener.heard_nothing_else(registration)
