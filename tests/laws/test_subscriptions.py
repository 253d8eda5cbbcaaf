"""Subscriptions: told after the step, in order, without gaps, within bounds."""

from typing import Any

import pytest

from tests.laws.kinds import Job, PrintJob
from tests.laws.talk import drained, entries_of, listeners_at
from tupelo import ANY, HERE, Capacity, Notice, Where
from tupelo.errors import BadArgument, BadTemplate


def test_a_listener_is_told_of_entries_that_become_visible(space):
    space.write(("a", 0))
    listener = space.subscribe(("a", int))
    space.write(("a", 1))
    space.write(("b", 1))
    space.write_all([("a", 2), ("a", "x"), ("a", 3)])
    notices = drained(listener)
    assert entries_of(notices) == [("a", 1), ("a", 2), ("a", 3)]
    assert {notice.kind for notice in notices} == {"visible"}


def test_a_notice_comes_even_if_the_entry_was_taken_since(space, park):
    listener = space.subscribe(("a",))
    taker = park(space, space.take, ("a",))
    space.write(("a",))
    taker.result()
    assert entries_of(drained(listener)) == [("a",)]


def test_the_sequence_has_no_gaps(space):
    listener = space.subscribe(("a", int))
    for i in range(5):
        space.write_all([("a", i), ("b", i)])
    assert [notice.sequence for notice in drained(listener)] == [1, 2, 3, 4, 5]
    assert listener.sequence == 5


def test_each_notice_carries_the_handback(space):
    token = object()
    one, other = space.subscribe(("a",), handback=token), space.subscribe(("a",))
    space.write(("a",))
    assert one.get(wait=0).handback is token
    assert other.get(wait=0).handback is None


def test_subscriptions_to_the_same_thing_share_id_and_sequence(space):
    one = space.subscribe(("a", int))
    space.write(("a", 1))
    two = space.subscribe(("a", int))
    space.write(("a", 2))
    assert one.event_id == two.event_id
    assert [n.sequence for n in drained(one)] == [1, 2]
    assert [n.sequence for n in drained(two)] == [2]
    assert {n.event_id for n in drained(one)} <= {one.event_id}


def test_subscriptions_to_different_things_have_ids_of_their_own(space):
    listeners = [
        space.subscribe(template)
        for template in ((1,), (1.0,), (True,), (int,), Job("x"), PrintJob("x"), ANY)
    ]
    listeners.append(space.subscribe((1,), available=True))
    listeners.append(space.subscribe((1,), txn=space.transaction()))
    assert len({listener.event_id for listener in listeners}) == len(listeners)
    space.write((1,))
    for listener in listeners:
        for notice in drained(listener):
            assert notice.event_id == listener.event_id and notice.sequence == 1


def test_a_template_that_cannot_be_compared_has_an_id_of_its_own(space):
    one, other = space.subscribe(([1],)), space.subscribe(([1],))
    space.write(([1],))
    assert one.event_id != other.event_id
    assert [n.sequence for n in drained(one)] == [n.sequence for n in drained(other)] == [1]


def test_a_full_backlog_drops_the_oldest_and_says_how_many(space):
    listener = space.subscribe(("a", int), backlog_max=3)
    for i in range(1, 6):
        space.write(("a", i))
    notices = drained(listener)
    assert entries_of(notices) == [("a", 3), ("a", 4), ("a", 5)]
    assert [n.sequence for n in notices] == [3, 4, 5]
    assert [n.missed for n in notices] == [2, 0, 0]
    space.write(("a", 6))
    (notice,) = drained(listener)
    assert (notice.sequence, notice.missed) == (6, 0)


def test_a_slow_listener_costs_the_others_nothing(space):
    slow, quick = space.subscribe(("a", int), backlog_max=1), space.subscribe(("a", int))
    for i in range(10):
        space.write(("a", i))
    assert len(drained(quick)) == 10
    (notice,) = drained(slow)
    assert notice.entry == ("a", 9) and notice.missed == 9


def test_get_waits_for_the_next_notice(space, later, until):
    listener = space.subscribe(("a", int))
    call = later(listener.get)
    until(lambda: listeners_at(listener))
    space.write(("b", 1))
    assert call.waits
    space.write(("a", 1))
    assert call.result().entry == ("a", 1)


def test_get_gives_none_when_its_patience_ends(space, later, clock, until):
    listener = space.subscribe(("a", int))
    assert listener.get(wait=0) is None
    call = later(listener.get, wait=2)
    until(lambda: clock.sleepers)
    clock.advance(2)
    assert call.result() is None
    space.write(("a", 1))
    assert listener.get(wait=2).entry == ("a", 1)


def test_several_may_listen_to_one_subscription_and_each_notice_goes_to_one(space, later, until):
    listener = space.subscribe(("a", int))
    calls = [later(listener.get) for _ in range(3)]
    until(lambda: listeners_at(listener) == 3)
    space.write_all([("a", i) for i in range(3)])
    assert sorted(call.result().sequence for call in calls) == [1, 2, 3]


def test_a_subscription_is_an_iterator_that_ends_when_it_is_closed(space):
    with space.subscribe(("a", int)) as listener:
        space.write_all([("a", 1), ("a", 2)])
        listener.close()
        assert entries_of(listener) == [("a", 1), ("a", 2)]
    space.write(("a", 3))
    assert drained(listener) == []


def test_closing_wakes_who_listens(space, later, until):
    listener = space.subscribe(("a",))
    call = later(lambda: list(listener))
    until(lambda: listeners_at(listener))
    listener.close()
    listener.close()
    assert call.result() == []


def test_what_a_transaction_writes_is_told_at_its_commit(space):
    listener = space.subscribe(("a", int))
    with space.transaction() as txn:
        space.write(("a", 1), txn=txn)
        assert drained(listener) == []
    assert entries_of(drained(listener)) == [("a", 1)]


def test_what_is_called_off_is_never_told(space):
    listener = space.subscribe(("a", int))
    txn = space.transaction()
    space.write(("a", 1), txn=txn)
    txn.abort()
    assert drained(listener) == [] and listener.sequence == 0


def test_what_a_transaction_gives_back_becomes_visible_again(space):
    space.write(("a", 1))
    listener = space.subscribe(("a", int))
    txn = space.transaction()
    space.take(("a", 1), wait=0, txn=txn)
    txn.abort()
    (notice,) = drained(listener)
    assert notice.entry == ("a", 1) and notice.kind == "visible"


def test_what_a_reader_lets_go_becomes_available_to_those_who_ask(space):
    space.write(("a", 1))
    asked = space.subscribe(("a", int), available=True)
    not_asked = space.subscribe(("a", int))
    txn = space.transaction()
    space.read(("a", 1), wait=0, txn=txn)
    assert drained(asked) == []
    txn.commit()
    (notice,) = drained(asked)
    assert notice.entry == ("a", 1) and notice.kind == "available"
    assert drained(not_asked) == []


def test_it_becomes_available_when_the_last_reader_lets_go(space):
    space.write(("a", 1))
    listener = space.subscribe(("a", int), available=True)
    txns = [space.transaction() for _ in range(2)]
    for txn in txns:
        space.read(("a", 1), wait=0, txn=txn)
    txns[0].abort()
    assert drained(listener) == []
    txns[1].commit()
    assert [n.kind for n in drained(listener)] == ["available"]


def test_those_who_ask_for_available_are_told_of_visible_too(space):
    listener = space.subscribe(("a", int), available=True)
    space.write(("a", 1))
    (notice,) = drained(listener)
    assert notice.kind == "visible"


def test_a_listener_in_a_transaction_is_told_what_it_sees(space):
    txn, other = space.transaction(), space.transaction()
    listener = space.subscribe(("a", int), txn=txn)
    space.write(("a", 1), txn=txn)
    space.write(("a", 2), txn=other)
    space.write(("a", 3))
    assert entries_of(drained(listener)) == [("a", 1), ("a", 3)]
    other.commit()
    assert entries_of(drained(listener)) == [("a", 2)]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_listener_in_a_transaction_ends_with_it(space, end):
    txn = space.transaction()
    listener = space.subscribe(("a", int), txn=txn)
    space.write(("a", 1), txn=txn)
    getattr(txn, end)()
    space.write(("a", 2))
    assert entries_of(listener) == [("a", 1)]


def test_a_callback_is_called_for_each_notice(space, until):
    heard: list[Notice] = []
    listener = space.subscribe(("a", int), heard.append)
    for i in range(3):
        space.write(("a", i))
    until(lambda: len(heard) == 3)
    assert entries_of(heard) == [("a", 0), ("a", 1), ("a", 2)]
    assert [n.sequence for n in heard] == [1, 2, 3]
    listener.close()


def test_a_callback_may_use_the_space(space, until, place):
    door, _ = place
    heard = []

    def answer(notice):
        heard.append(notice.entry)
        if door == "blocking":
            return space.write(("answer", notice.entry[1]))
        return space._inner.write(("answer", notice.entry[1]))  # A coroutine, to be awaited.

    listener = space.subscribe(("ask", int), answer)
    space.write(("ask", 1))
    assert space.take(("answer", int)) == ("answer", 1)
    listener.close()


def test_a_callback_that_raises_closes_its_subscription_and_nothing_else(space, until, caplog):
    heard = []

    def broken(notice):
        heard.append(notice.entry)
        raise ZeroDivisionError("oh")

    listener, other = space.subscribe(("a", int), broken), space.subscribe(("a", int))
    space.write(("a", 1))
    until(lambda: listener.error is not None)
    assert isinstance(listener.error, ZeroDivisionError)
    until(lambda: not listener.active)
    space.write(("a", 2))
    assert heard == [("a", 1)]
    assert entries_of(drained(other)) == [("a", 1), ("a", 2)]
    assert "callback raised" in caplog.text


def test_a_listener_whose_where_raises_is_told_and_the_writer_is_not(space):
    broken = space.subscribe(("a", Where(lambda v: 1 / v)), scope=HERE)
    sound = space.subscribe(("a", int))
    space.write(("a", 1))
    space.write(("a", 0))
    space.write(("a", 1))
    assert entries_of(drained(sound)) == [("a", 1), ("a", 0), ("a", 1)]
    assert broken.get(wait=0).entry == ("a", 1)
    with pytest.raises(BadTemplate, match="ZeroDivisionError"):
        broken.get()
    assert isinstance(broken.error, BadTemplate)


def test_a_notice_gives_each_a_copy(space):
    one, other = space.subscribe(("a", list)), space.subscribe(("a", list))
    space.write(("a", [1]))
    one.get(wait=0).entry[1].append(2)
    assert other.get(wait=0).entry == ("a", [1])
    assert space.read(wait=0) == ("a", [1])


def test_what_a_reaction_removes_is_never_told(space):
    listener = space.subscribe(("a", int))
    space.react(("a", int), lambda entry, step: step.take(("a", int)), scope=HERE)
    space.write(("a", 1))
    assert drained(listener) == []


def test_what_a_reaction_writes_is_told(space):
    listener = space.subscribe(("b", int))
    space.react(("a", int), lambda entry, step: step.write(("b", entry[1])), scope=HERE)
    space.write(("a", 1))
    assert entries_of(drained(listener)) == [("b", 1)]


@pytest.mark.parametrize("backlog_max", [0, -1, 1.5, "3", None, True])
def test_a_backlog_that_makes_no_sense_is_refused(space, backlog_max):
    with pytest.raises(BadArgument, match="backlog_max="):
        space.subscribe(("a",), backlog_max=backlog_max)


@pytest.mark.parametrize("callback", [1, "print", [print]])
def test_a_callback_that_cannot_be_called_is_refused(space, callback):
    with pytest.raises(BadArgument, match="callback="):
        space.subscribe(("a",), callback)


# Removals


def told(subscription: Any) -> list[tuple[str, Any]]:
    return [(notice.kind, notice.entry) for notice in drained(subscription)]


def test_removals_are_told_to_those_who_ask(space, clock):
    asked = space.subscribe(("a", int), removed=True, scope=HERE)
    other = space.subscribe(("a", int), scope=HERE)
    space.write(("a", 1))
    space.write(("b", 2))
    space.take(("b", int))
    space.take(("a", int))
    space.write(("a", 3), lease=5)
    space.write(("a", 4)).cancel()
    clock.advance(5)
    assert told(asked) == [
        ("visible", ("a", 1)),
        ("taken", ("a", 1)),
        ("visible", ("a", 3)),
        ("visible", ("a", 4)),
        ("cancelled", ("a", 4)),
        ("expired", ("a", 3)),
    ]
    assert asked.sequence == 6 and asked.event_id != other.event_id
    assert told(other) == [("visible", ("a", number)) for number in (1, 3, 4)]


def test_a_take_in_a_transaction_is_told_when_it_commits(space):
    asked = space.subscribe(("a", int), removed=True, scope=HERE)
    space.write(("a", 1))
    for end, kinds in (("abort", ["visible"]), ("commit", ["taken"])):
        drained(asked)
        txn = space.transaction()
        space.take(("a", int), txn=txn)
        assert told(asked) == []
        getattr(txn, end)()
        assert [kind for kind, _ in told(asked)] == kinds


def test_what_waiting_takers_get_is_told_as_taken(space, park):
    asked = space.subscribe(("a", int), removed=True, scope=HERE)
    waiter = park(space, space.take, ("a", int))
    space.write(("a", 1))
    assert waiter.result() == ("a", 1)
    assert told(asked) == [("visible", ("a", 1)), ("taken", ("a", 1))]


def test_an_eviction_is_told(make_space):
    space = make_space(capacity=Capacity(entries=1, evict="fifo"))
    asked = space.subscribe(removed=True, scope=HERE)
    space.write_all([("a",)])
    space.write(("b",))
    assert told(asked) == [("visible", ("a",)), ("evicted", ("a",)), ("visible", ("b",))]


def test_an_entry_that_was_never_visible_leaves_without_a_word(space, clock):
    asked = space.subscribe(removed=True, scope=HERE)
    space.write(("a",), delay=5).cancel()
    txn = space.transaction()
    space.write(("b",), txn=txn)
    space.take(("b",), txn=txn)
    txn.commit()
    clock.advance(5)
    assert told(asked) == []
