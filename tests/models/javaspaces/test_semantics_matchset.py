"""Section 4.7.1 of the thesis beyond appendix B: match sets, their limit, their leases, what makes
them invalid and what they pass over."""

import gc
from dataclasses import dataclass
from typing import Any

import pytest

from tests.models.classes import forget
from tests.models.javaspaces.doors import (
    EXTENDED,
    SIMPLE,
    TIMEOUT,
    ExtendedEntry,
    Parked,
    SimpleEntry,
    at_once,
    bare,
    core_of,
    drain,
    fill,
    in_order,
)
from tupelo.errors import LeaseLost, MatchSetInvalid
from tupelo.models.javaspaces import FOREVER, NO_WAIT, Entry, Snapshot

BLANK = SimpleEntry()


@pytest.fixture
def ten(javaspace):
    fill(javaspace, *SIMPLE)
    return javaspace


def invalid(matches: Any, why: str) -> bool:
    for _ in range(2):  # and it stays so
        with pytest.raises(MatchSetInvalid, match=why):
            matches.next()
    return True


def test_contents_of_an_empty_space_is_empty(javaspace):
    matches = at_once(javaspace.contents, [BLANK])
    assert matches.next() is None
    assert matches.next() is None
    assert matches.snapshot() is None
    assert list(matches) == []
    assert matches.skipped == []


def test_the_limit_says_how_many_there_are_at_most(ten):
    assert len(list(ten.contents([BLANK], None, FOREVER, 4))) == 4
    assert len(list(ten.contents([BLANK], None, FOREVER, 100))) == 10
    templates = [SimpleEntry(text="odd"), SimpleEntry(number=1)]
    assert len(list(ten.contents(templates, None, FOREVER, 5))) == 5


def test_it_holds_what_matched_when_it_was_made(ten):
    matches = ten.contents([BLANK])
    fill(ten, *EXTENDED)
    assert list(matches) == SIMPLE


def test_several_templates_and_each_entry_once(ten):
    fill(ten, *EXTENDED)
    found = list(ten.contents([ExtendedEntry(), SimpleEntry(number=1), SimpleEntry(number=1)]))
    assert in_order(found) == in_order([SIMPLE[1], *EXTENDED])
    assert len(list(ten.contents([None]))) == 20


def test_it_can_be_iterated_from_where_one_is(ten):
    matches = ten.contents([BLANK])
    assert [matches.next(), matches.next()] == SIMPLE[:2]
    assert list(matches) == SIMPLE[2:]
    assert matches.next() is None


def test_a_snapshot_of_the_entry_that_was_handed_out_last(ten):
    matches = ten.contents([BLANK])
    assert matches.snapshot() is None
    last = matches.next()
    snapshot = matches.snapshot()
    assert isinstance(snapshot, Snapshot)
    last.number = 99
    assert ten.read(snapshot, None, NO_WAIT) == SIMPLE[0]


@pytest.mark.parametrize("verb", ["take", "take_if_exists", "take of many"])
def test_every_kind_of_take_makes_it_invalid(ten, verb):
    matches = ten.contents([BLANK])
    assert matches.next() == SIMPLE[0]
    operation = getattr(ten, verb.partition(" ")[0])
    template: Any = SimpleEntry(number=7)
    operation([template] if verb == "take of many" else template, None, NO_WAIT)
    assert invalid(matches, "taken")


def test_a_taker_who_has_waited_makes_it_invalid(javaspace, begin):
    javaspace.write(SIMPLE[0])
    inside = begin()
    javaspace.read(BLANK, inside)
    matches = javaspace.contents([BLANK])
    taker = Parked(javaspace, javaspace.take, BLANK, None, timeout=TIMEOUT)
    inside.commit()
    assert taker.result() == SIMPLE[0]
    assert invalid(matches, "taken")


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_it_ends_with_its_transaction(javaspace, begin, end):
    javaspace.write(SIMPLE[0])
    inside = begin()
    matches = javaspace.contents([BLANK], inside)
    getattr(inside, end)()
    assert invalid(matches, "transaction")


def test_taking_an_entry_that_was_handed_out_already_changes_nothing(ten):
    matches = ten.contents([BLANK])
    assert matches.next() == SIMPLE[0]
    ten.take(SimpleEntry(number=0), None, NO_WAIT)
    assert list(matches) == SIMPLE[1:]


def test_what_is_iterated_can_be_taken(ten):
    matches = ten.contents([BLANK])
    taken = []
    while (found := matches.next()) is not None:
        taken.append(ten.take(SimpleEntry(number=found.number), None, NO_WAIT))
    assert taken == SIMPLE
    assert drain(ten) == []


@pytest.mark.parametrize("asked_again", [True, False])
@pytest.mark.parametrize("end", ["take", "expire", "cancel"])
def test_a_set_that_is_exhausted_stays_so(ten, clock, end, asked_again):
    matches = ten.contents([BLANK], None, 10)
    for _ in SIMPLE:
        assert matches.next() is not None
    if asked_again:
        assert matches.next() is None
    if end == "take":
        assert len(drain(ten)) == 10
    elif end == "expire":
        clock.advance(11)
    else:
        matches.lease.cancel()
    for _ in range(2):
        assert matches.next() is None
    assert list(matches) == []


def test_taking_what_is_not_in_the_set_changes_nothing(ten):
    fill(ten, *EXTENDED)
    matches = ten.contents([SimpleEntry(text="odd")], None, FOREVER, 3)
    assert ten.take(SimpleEntry(number=2), None, NO_WAIT) == SIMPLE[2]
    assert ten.take(SimpleEntry(number=9), None, NO_WAIT) == SIMPLE[9], "it is beyond the limit"
    assert list(matches) == [SIMPLE[1], SIMPLE[3], SIMPLE[5]]


def test_each_set_is_judged_by_its_own_entries(ten):
    odd, even = (ten.contents([SimpleEntry(text=text)]) for text in ("odd", "even"))
    ten.take(SimpleEntry(text="odd"), None, NO_WAIT)
    assert invalid(odd, "taken")
    assert len(list(even)) == 5


@pytest.mark.parametrize("commits", [True, False])
def test_a_take_inside_a_transaction_counts_when_it_is_committed(ten, begin, commits):
    matches = ten.contents([BLANK])
    inside = begin()
    ten.take(SimpleEntry(number=9), inside, NO_WAIT)
    if commits:
        inside.commit()
        assert invalid(matches, "taken")
    else:
        inside.abort()
        assert list(matches) == SIMPLE


# Leases


def test_what_has_expired_is_passed_over_and_listed(javaspace, clock):
    leases = javaspace.write(SIMPLE[:4], None, [FOREVER, 10, FOREVER, FOREVER])
    cancelled = javaspace.write(SIMPLE[4], None, 60)
    javaspace.write(SIMPLE[5])
    matches = javaspace.contents([BLANK])
    assert matches.next() == SIMPLE[0]
    assert matches.skipped == []
    clock.advance(10)
    cancelled.cancel()
    assert list(matches) == [SIMPLE[2], SIMPLE[3], SIMPLE[5]]
    gone = [lease.granted.thing for lease in (leases[1], cancelled)]
    assert [skipped.entry_id for skipped in matches.skipped] == [(e.origin, e.n) for e in gone]
    assert all("expired" in skipped.reason for skipped in matches.skipped)
    assert matches.next() is None


def test_what_this_program_has_no_class_for_is_passed_over_and_listed(javaspace, monkeypatch):
    @dataclass
    class Hat(Entry):
        size: int | None = None

    fill(javaspace, SIMPLE[0], Hat(7), SIMPLE[1])
    forget(monkeypatch, Hat)  # as if another program had written it
    matches = javaspace.contents([Entry()])
    assert list(matches) == SIMPLE[:2]
    (skipped,) = matches.skipped
    assert "Hat" in skipped.reason


def test_its_lease_can_be_renewed_and_cancelled(ten, clock):
    matches = ten.contents([BLANK], None, 10)
    lease = matches.lease
    assert lease.expiration == clock.now() + 10
    clock.advance(9)
    lease.renew(10)
    clock.advance(9)
    assert matches.next() == SIMPLE[0]
    lease.cancel()
    assert invalid(matches, "cancelled")
    for attempt in (lease.cancel, lambda: lease.renew(10)):
        with pytest.raises(LeaseLost):
            attempt()


def test_it_is_over_at_the_very_moment(ten, clock):
    matches = ten.contents([BLANK], None, 10)
    clock.advance(9.75)
    assert matches.next() == SIMPLE[0]
    clock.advance(0.25)
    assert invalid(matches, "lease")
    with pytest.raises(LeaseLost):
        matches.lease.renew(10)


def test_an_iteration_breaks_off_when_it_becomes_invalid(world, ten):
    matches = ten.contents([BLANK])

    async def gather_async() -> list[Any]:
        found = []
        with pytest.raises(MatchSetInvalid):
            async for entry in bare(matches):
                found.append(entry)
                if len(found) == 3:
                    await bare(ten).take(SimpleEntry(number=5))
        return found

    def gather() -> list[Any]:
        found = []
        with pytest.raises(MatchSetInvalid):
            for entry in matches:
                found.append(entry)
                if len(found) == 3:
                    ten.take(SimpleEntry(number=5))
        return found

    assert world.call(gather_async if world.is_async else gather) == SIMPLE[:3]


def test_one_that_is_dropped_leaves_nothing_behind(ten):
    core = core_of(ten)
    matches = ten.contents([BLANK])
    assert len(core.match_sets) == 1
    del matches
    gc.collect()
    assert len(core.match_sets) == 0
    assert len(drain(ten)) == 10


# Transactions


def test_inside_a_transaction_it_sees_what_is_written_inside(ten, begin):
    inside = begin()
    ten.write(EXTENDED[0], inside)
    ten.take(SimpleEntry(number=9), inside, NO_WAIT)
    assert in_order(list(ten.contents([BLANK], inside))) == in_order([*SIMPLE[:9], EXTENDED[0]])
    assert list(ten.contents([BLANK])) == SIMPLE[:9]


def test_inside_a_transaction_it_keeps_its_entries_from_being_taken(ten, begin):
    inside = begin()
    matches = ten.contents([BLANK], inside, FOREVER, 3)
    assert ten.take(SimpleEntry(number=1), None, NO_WAIT) is None
    assert ten.take(SimpleEntry(number=5), None, NO_WAIT) == SIMPLE[5], "it is beyond the limit"
    assert list(matches) == SIMPLE[:3]
    inside.commit()
    assert ten.take(SimpleEntry(number=1), None, NO_WAIT) == SIMPLE[1]


def test_a_take_in_the_same_transaction_makes_it_invalid(ten, begin):
    inside = begin()
    ten.write(EXTENDED[0], inside)
    matches = ten.contents([BLANK], inside)
    assert matches.next() == SIMPLE[0]
    assert ten.take(SimpleEntry(number=1), inside, NO_WAIT) == SIMPLE[1]
    assert invalid(matches, "taken")
