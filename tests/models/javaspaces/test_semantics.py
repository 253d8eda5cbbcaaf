"""What sections 3.4, 4.6 and 4.7 of the thesis say of entries, templates and operations, inside and
outside a transaction, beyond the cases of appendix B."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import tupelo
from tests.models.javaspaces.doors import (
    EXTENDED,
    SIMPLE,
    TIMEOUT,
    ExtendedEntry,
    Parked,
    SimpleEntry,
    at_once,
    bare,
    drain,
    fill,
    in_order,
)
from tupelo.errors import (
    BadArgument,
    BadEntry,
    BadTemplate,
    Deadlock,
    LeaseLost,
    SpaceClosed,
    SpaceFull,
    TransactionEnded,
)
from tupelo.models.javaspaces import (
    ABORTED,
    COMMITTED,
    FOREVER,
    NO_WAIT,
    Entry,
    FixedLeasePeriodPolicy,
    JavaSpace,
    JavaSpace05,
    Lease,
    PolicyByKind,
    Snapshot,
)
from tupelo.models.linda import TupleSpace

ENTRY = SimpleEntry(1, "one", True)
OTHER = SimpleEntry(2, "two", False)
BLANK = SimpleEntry()


@dataclass
class Basket(Entry):
    """An entry with a value that can be changed."""

    items: list[int] | None = None
    labels: dict[str, int] | None = field(default=None)


def peek(javaspace: Any, txn: Any = None, template: Any = None) -> list[Any]:
    """All that is there to be read, without waiting."""
    return list(javaspace.contents([template], txn))


@pytest.fixture(params=[True, False], ids=["commit", "abort"])
def commits(request):
    return request.param


def end(transaction: Any, commits: bool) -> None:
    if commits:
        transaction.commit()
    else:
        transaction.abort()


# Entries and templates


def test_the_null_template_matches_anything(javaspace):
    fill(javaspace, ENTRY, Basket([1]))
    assert in_order(peek(javaspace, None, None)) == in_order([ENTRY, Basket([1])])
    assert javaspace.read(None, None, NO_WAIT) is not None
    assert javaspace.read_if_exists(None) is not None
    found = [javaspace.take(None, None, NO_WAIT), javaspace.take_if_exists(None)]
    assert in_order(found) == in_order([ENTRY, Basket([1])])
    assert javaspace.take(None, None, NO_WAIT) is None


def test_a_template_matches_subtypes_whatever_their_further_fields_are(javaspace):
    fill(javaspace, *EXTENDED)
    found = javaspace.take(SimpleEntry(number=3), None, NO_WAIT)
    assert found == EXTENDED[3]
    assert type(found) is ExtendedEntry, "it comes back as what it is"
    assert found.label == "label 3"
    assert javaspace.read(Entry(), None, NO_WAIT) in EXTENDED, "the root of all types"


def test_every_field_that_is_given_must_be_equal(javaspace):
    fill(javaspace, *SIMPLE)
    assert peek(javaspace, None, SimpleEntry(4, "even", True)) == [SIMPLE[4]]
    assert peek(javaspace, None, SimpleEntry(4, "odd", True)) == []
    assert peek(javaspace, None, SimpleEntry(number=True)) == [], "1 and True are two values"
    assert len(peek(javaspace, None, SimpleEntry(flag=False))) == 5


def test_a_null_field_can_be_written_but_not_matched_on(javaspace):
    null = SimpleEntry(None, "null", None)
    fill(javaspace, null, ENTRY)
    assert peek(javaspace, None, SimpleEntry(text="null")) == [null]
    assert peek(javaspace, None, SimpleEntry(number=0, text="null")) == []
    # It cannot be asked for: a template of nulls finds everything.
    assert peek(javaspace, None, SimpleEntry(number=None)) == [null, ENTRY]


def test_types_that_have_the_same_fields_are_kept_apart(javaspace):
    javaspace.write(Basket([1]))
    assert javaspace.read(SimpleEntry(), None, NO_WAIT) is None
    assert javaspace.read(Basket(), None, NO_WAIT) == Basket([1])


def test_a_dataclass_need_not_be_an_entry_by_name(javaspace):
    @dataclass
    class Plain:
        n: int | None = None

    assert not issubclass(Plain, Entry)
    javaspace.write(Plain(3))
    assert javaspace.read(Entry(), None, NO_WAIT) is None
    assert javaspace.take(Plain(), None, NO_WAIT).n == 3


def test_write_makes_a_copy_and_so_does_read(javaspace):
    items, labels = [1, 2], {"a": 1}
    javaspace.write(Basket(items, labels))
    items.append(3)
    labels["b"] = 2
    first = javaspace.read(Basket(), None, NO_WAIT)
    assert first == Basket([1, 2], {"a": 1})
    first.items.clear()
    assert javaspace.read(Basket(), None, NO_WAIT) == Basket([1, 2], {"a": 1})


def test_the_same_entry_written_twice_is_two_entries(javaspace):
    leases = [javaspace.write(ENTRY), javaspace.write(ENTRY)]
    assert leases[0] != leases[1]
    assert drain(javaspace) == [ENTRY, ENTRY]


# Waiting


@pytest.mark.parametrize("verb", ["read", "take"])
def test_it_waits_for_an_entry_that_is_written_later(javaspace, verb):
    waiter = Parked(javaspace, getattr(javaspace, verb), SimpleEntry(number=1), None, timeout=60)
    javaspace.write(OTHER)
    assert waiter.waits, "that one does not match"
    javaspace.write(ENTRY)
    assert waiter.result() == ENTRY
    assert drain(javaspace) == ([OTHER, ENTRY] if verb == "read" else [OTHER])


@pytest.mark.parametrize("verb", ["read", "take"])
def test_it_waits_for_ever_unless_told_otherwise(javaspace, clock, verb):
    waiter = Parked(javaspace, getattr(javaspace, verb), BLANK)
    clock.advance(1e9)
    assert waiter.waits
    javaspace.write(ENTRY)
    assert waiter.result() == ENTRY


@pytest.mark.parametrize("verb", ["read_if_exists", "take_if_exists"])
def test_if_exists_does_not_wait_at_all_unless_told_to(javaspace, begin, verb):
    javaspace.write(ENTRY, begin())
    assert at_once(getattr(javaspace, verb), BLANK) is None


@pytest.mark.parametrize("verb", ["read", "take", "read_if_exists", "take_if_exists"])
def test_what_is_there_is_answered_at_once(javaspace, verb):
    javaspace.write(ENTRY)
    assert at_once(getattr(javaspace, verb), BLANK, None, TIMEOUT) == ENTRY


# Transactions: writing


def test_a_write_inside_is_seen_inside_only(javaspace, begin):
    inside, other = begin(), begin()
    javaspace.write(ENTRY, inside)
    assert javaspace.read(BLANK, inside, NO_WAIT) == ENTRY
    assert javaspace.read_if_exists(BLANK, inside) == ENTRY
    assert peek(javaspace, inside) == [ENTRY]
    for txn in (None, other):
        assert javaspace.read(BLANK, txn, NO_WAIT) is None
        assert javaspace.take(BLANK, txn, NO_WAIT) is None
        assert javaspace.take([BLANK], txn, NO_WAIT) == []
        assert peek(javaspace, txn) == []
    inside.commit()
    assert javaspace.read(BLANK, other, NO_WAIT) == ENTRY
    assert peek(javaspace) == [ENTRY]


def test_many_written_inside_become_visible_together(javaspace, begin, commits):
    inside = begin()
    taker = Parked(javaspace, javaspace.take, [BLANK], None, timeout=TIMEOUT)
    for entry in SIMPLE[:3]:
        javaspace.write(entry, inside)
    javaspace.write(SIMPLE[3:5], inside)
    assert taker.waits
    end(inside, commits)
    if commits:
        assert in_order(taker.result()) == in_order(SIMPLE[:5])
    else:
        assert taker.ends_after(TIMEOUT) == []
    assert drain(javaspace) == []


@pytest.mark.parametrize("verb", ["read_if_exists", "take_if_exists"])
def test_if_exists_waits_for_the_fate_of_what_is_written_inside(javaspace, begin, verb, commits):
    inside = begin()
    javaspace.write(ENTRY, inside)
    waiter = Parked(javaspace, getattr(javaspace, verb), BLANK, None, timeout=TIMEOUT)
    end(inside, commits)
    assert waiter.result() == (ENTRY if commits else None)


@pytest.mark.parametrize("verb", ["read_if_exists", "take_if_exists"])
def test_if_exists_waits_no_longer_than_its_timeout(javaspace, begin, verb):
    inside = begin()
    javaspace.write(ENTRY, inside)
    waiter = Parked(javaspace, getattr(javaspace, verb), BLANK, None, timeout=TIMEOUT)
    assert waiter.ends_after(TIMEOUT) is None
    inside.commit()
    assert drain(javaspace) == [ENTRY]


def test_a_written_entry_starts_its_lease_when_it_is_written(javaspace, begin, clock):
    inside = begin()
    lease = javaspace.write(ENTRY, inside, 10)
    assert lease.expiration == clock.now() + 10
    clock.advance(6)
    inside.commit()
    assert peek(javaspace) == [ENTRY]
    clock.advance(4)
    assert peek(javaspace) == []


# Transactions: taking


def test_a_take_inside_hides_the_entry_from_everyone(javaspace, begin, commits):
    javaspace.write(ENTRY)
    inside, other = begin(), begin()
    assert javaspace.take(BLANK, inside, NO_WAIT) == ENTRY
    for txn in (None, inside, other):
        assert javaspace.read(BLANK, txn, NO_WAIT) is None, "not even for the one who took it"
        assert javaspace.take(BLANK, txn, NO_WAIT) is None
        assert peek(javaspace, txn) == []
    end(inside, commits)
    assert peek(javaspace) == ([] if commits else [ENTRY])


@pytest.mark.parametrize("verb", ["read_if_exists", "take_if_exists"])
def test_if_exists_answers_none_when_the_take_is_committed(javaspace, begin, verb):
    """What J.11 and J.13 leave out: the other outcome."""
    javaspace.write(ENTRY)
    inside = begin()
    javaspace.take(BLANK, inside, NO_WAIT)
    waiter = Parked(javaspace, getattr(javaspace, verb), BLANK, None, timeout=TIMEOUT)
    inside.commit()
    assert waiter.result() is None


@pytest.mark.parametrize("verb", ["read", "take"])
def test_a_rollback_serves_those_who_wait(javaspace, begin, verb):
    javaspace.write(ENTRY)
    inside = begin()
    assert javaspace.take_if_exists(BLANK, inside) == ENTRY
    waiter = Parked(javaspace, getattr(javaspace, verb), BLANK, None, timeout=TIMEOUT)
    inside.abort()
    assert waiter.result() == ENTRY


def test_a_list_taken_inside_is_restored_as_a_whole(javaspace, begin, commits):
    fill(javaspace, *SIMPLE)
    inside = begin()
    taken = javaspace.take([BLANK], inside, NO_WAIT, 4)
    assert len(taken) == 4
    assert len(peek(javaspace)) == 6
    end(inside, commits)
    left = peek(javaspace)
    assert in_order(left + (taken if commits else [])) == in_order(SIMPLE)


def test_what_expires_while_it_is_taken_does_not_come_back(javaspace, begin, clock):
    javaspace.write(ENTRY, None, 10)
    inside = begin()
    javaspace.take(BLANK, inside, NO_WAIT)
    clock.advance(10)
    inside.abort()
    assert peek(javaspace) == []


def test_written_and_taken_inside_never_becomes_visible(javaspace, begin, commits):
    inside = begin()
    reader = Parked(javaspace, javaspace.read, BLANK, None, timeout=TIMEOUT)
    javaspace.write(ENTRY, inside)
    assert javaspace.take([BLANK], inside, NO_WAIT) == [ENTRY]
    assert peek(javaspace, inside) == []
    end(inside, commits)
    assert reader.ends_after(TIMEOUT) is None
    assert peek(javaspace) == []


# Transactions: reading


@pytest.mark.parametrize("verb", ["read", "read_if_exists", "contents"])
def test_a_read_inside_lets_others_read_and_makes_takers_wait(javaspace, begin, verb, commits):
    javaspace.write(ENTRY)
    inside, other = begin(), begin()
    if verb == "contents":
        assert peek(javaspace, inside) == [ENTRY]
    else:
        assert getattr(javaspace, verb)(BLANK, inside, NO_WAIT) == ENTRY
    assert peek(javaspace) == [ENTRY]
    assert javaspace.read_if_exists(BLANK) == ENTRY
    assert javaspace.take(BLANK, None, NO_WAIT) is None
    assert javaspace.take([BLANK], None, NO_WAIT) == []
    assert javaspace.take(BLANK, other, NO_WAIT) is None
    taker = Parked(javaspace, javaspace.take, BLANK, None, timeout=TIMEOUT)
    end(inside, commits)
    assert taker.result() == ENTRY


def test_take_if_exists_waits_for_one_who_reads(javaspace, begin):
    javaspace.write(ENTRY)
    inside = begin()
    javaspace.read(BLANK, inside, NO_WAIT)
    assert at_once(javaspace.read_if_exists, BLANK, None, TIMEOUT) == ENTRY, "it may be read"
    taker = Parked(javaspace, javaspace.take_if_exists, BLANK, None, timeout=TIMEOUT)
    inside.commit()
    assert taker.result() == ENTRY


def test_a_taker_waits_for_every_reader(javaspace, begin):
    javaspace.write(ENTRY)
    first, second = begin(), begin()
    assert javaspace.read(BLANK, first, NO_WAIT) == javaspace.read(BLANK, second, NO_WAIT) == ENTRY
    taker = Parked(javaspace, javaspace.take, BLANK, None, timeout=TIMEOUT)
    first.commit()
    assert taker.waits
    second.abort()
    assert taker.result() == ENTRY


def test_one_may_take_what_oneself_has_read(javaspace, begin, commits):
    javaspace.write(ENTRY)
    inside = begin()
    javaspace.read(BLANK, inside, NO_WAIT)
    assert javaspace.take(BLANK, inside, NO_WAIT) == ENTRY
    end(inside, commits)
    assert peek(javaspace) == ([] if commits else [ENTRY])


# Transactions: their ends


@pytest.mark.parametrize("outcome", [COMMITTED, ABORTED, "expired"])
def test_every_operation_refuses_a_transaction_that_has_ended(javaspace, begin, clock, outcome):
    javaspace.write(ENTRY)
    ended = begin(10)
    if outcome == "expired":
        clock.advance(10)
    else:
        end(ended, outcome == COMMITTED)
    state = ABORTED if outcome == "expired" else outcome
    attempts: list[Callable[[], Any]] = [
        lambda: javaspace.write(OTHER, ended),
        lambda: javaspace.write([OTHER], ended),
        lambda: javaspace.write([OTHER, OTHER], ended, [1, 2]),
        lambda: javaspace.read(BLANK, ended, NO_WAIT),
        lambda: javaspace.read_if_exists(BLANK, ended),
        lambda: javaspace.take(BLANK, ended, NO_WAIT),
        lambda: javaspace.take_if_exists(BLANK, ended),
        lambda: javaspace.take([BLANK], ended, NO_WAIT),
        lambda: javaspace.contents([BLANK], ended),
        lambda: javaspace.notify(BLANK, ended, print),
        lambda: javaspace.register_for_availability_event([BLANK], ended, True, print),
    ]
    for attempt in attempts:
        with pytest.raises(TransactionEnded, match=state) as raised:
            attempt()
        assert raised.value.state == state
    assert peek(javaspace) == [ENTRY]


@pytest.mark.parametrize("how", ["commit", "abort", "expire"])
def test_who_waits_in_a_transaction_learns_of_its_end(javaspace, begin, clock, how):
    inside = begin(10)
    waiter = Parked(javaspace, javaspace.take, BLANK, inside, timeout=60)
    if how == "expire":
        clock.advance(10)
    else:
        getattr(inside, how)()
    with pytest.raises(TransactionEnded):
        waiter.result()
    javaspace.write(ENTRY)
    assert peek(javaspace) == [ENTRY]


def test_transactions_that_wait_for_each_other_are_told(javaspace, begin):
    javaspace.write(ENTRY)
    first, second = begin(), begin()
    javaspace.read(BLANK, first, NO_WAIT)
    javaspace.read(BLANK, second, NO_WAIT)
    taker = Parked(javaspace, javaspace.take, BLANK, first, timeout=TIMEOUT)
    with pytest.raises(Deadlock):
        at_once(javaspace.take, BLANK, second, TIMEOUT)
    second.abort()
    assert taker.result() == ENTRY


def test_a_transaction_spans_spaces(world, javaspace, begin, commits):
    elsewhere = world.javaspace("elsewhere")
    elsewhere.write(ENTRY)
    inside = begin()
    moved = elsewhere.take(BLANK, inside, NO_WAIT)
    javaspace.write(moved, inside)
    assert peek(javaspace) == peek(elsewhere) == []
    end(inside, commits)
    assert (peek(javaspace), peek(elsewhere)) == (([ENTRY], []) if commits else ([], [ENTRY]))


def test_a_nested_transaction_sees_its_parent_and_commits_into_it(javaspace, begin, commits):
    parent = begin()
    javaspace.write(ENTRY, parent)
    nested = begin(FOREVER, parent)
    assert javaspace.take(BLANK, nested, NO_WAIT) == ENTRY
    javaspace.write(OTHER, nested)
    assert peek(javaspace, parent) == []
    end(nested, commits)
    assert peek(javaspace, parent) == ([OTHER] if commits else [ENTRY])
    assert peek(javaspace) == []
    parent.commit()
    assert peek(javaspace) == ([OTHER] if commits else [ENTRY])


def test_a_transaction_of_the_space_itself_will_do(javaspace, commits):
    inside = javaspace.space.transaction()
    javaspace.write([ENTRY, OTHER], inside, [10, 20])
    assert javaspace.take(SimpleEntry(number=1), inside, NO_WAIT) == ENTRY
    assert peek(javaspace) == []
    end(inside, commits)
    assert peek(javaspace) == ([OTHER] if commits else [])


def test_a_transaction_is_a_context(javaspace, begin):
    with begin() as inside:
        javaspace.write(ENTRY, inside)
    assert peek(javaspace) == [ENTRY]
    with pytest.raises(ZeroDivisionError), begin() as inside:
        javaspace.take(BLANK, inside, NO_WAIT)
        raise ZeroDivisionError
    assert peek(javaspace) == [ENTRY]


# Snapshots


def test_a_snapshot_does_not_follow_its_original(javaspace):
    items = [1]
    entry = Basket(items)
    snapshot = javaspace.snapshot(entry)
    items.append(2)
    entry.labels = {"late": 1}
    javaspace.write(snapshot)
    assert javaspace.read(Basket(), None, NO_WAIT) == Basket([1])
    assert javaspace.take(snapshot, None, NO_WAIT) == Basket([1])


def test_a_snapshot_is_as_good_as_its_original_everywhere(javaspace):
    template, entry = javaspace.snapshot(BLANK), javaspace.snapshot(ENTRY)
    assert isinstance(template, Snapshot)
    assert javaspace.snapshot(template) is template
    javaspace.write(entry)
    javaspace.write([entry, OTHER])
    javaspace.write([entry, OTHER], None, [10, 20])
    assert javaspace.read(template, None, NO_WAIT) == ENTRY
    assert javaspace.read_if_exists(template) == ENTRY
    assert javaspace.take(entry, None, NO_WAIT) == ENTRY
    assert javaspace.take_if_exists(entry) == ENTRY
    assert javaspace.take([entry, SimpleEntry(number=7)], None, NO_WAIT) == [ENTRY]
    assert list(javaspace.contents([template])) == [OTHER, OTHER]
    assert "one" in repr(entry)


def test_a_snapshot_of_one_space_can_be_used_at_another(world, javaspace):
    other = world.javaspace("other")
    snapshot = javaspace.snapshot(ENTRY)
    other.write(snapshot)
    assert other.take(snapshot, None, NO_WAIT) == ENTRY


# Many at once


def test_take_of_many_takes_at_most_as_many_as_asked_for(javaspace):
    fill(javaspace, *SIMPLE)
    first = javaspace.take([BLANK], None, NO_WAIT, 3)
    assert len(first) == 3
    second = javaspace.take([BLANK], None, NO_WAIT, 100)
    assert in_order(first + second) == in_order(SIMPLE)
    assert javaspace.take([BLANK], None, NO_WAIT) == []


def test_take_of_many_takes_what_matches_any_template_once(javaspace):
    fill(javaspace, *SIMPLE, *EXTENDED)
    templates = [SimpleEntry(number=1), ExtendedEntry(), SimpleEntry(text="odd", flag=True)]
    found = javaspace.take(templates, None, NO_WAIT)
    assert in_order(found) == in_order([*EXTENDED, SIMPLE[1], SIMPLE[3]])
    assert len(drain(javaspace)) == 8


def test_take_of_many_with_the_null_template_among_others(javaspace):
    fill(javaspace, ENTRY, Basket([1]))
    assert len(javaspace.take([None, ExtendedEntry()], None, NO_WAIT)) == 2


def test_take_of_many_waits_for_the_first(javaspace):
    taker = Parked(javaspace, javaspace.take, [SimpleEntry(number=1)], None, timeout=TIMEOUT)
    javaspace.write(OTHER)
    assert taker.waits
    javaspace.write([ENTRY, ENTRY])
    assert taker.result() == [ENTRY, ENTRY], "they became visible together"
    taker = Parked(javaspace, javaspace.take, [SimpleEntry(number=1)], None, timeout=TIMEOUT)
    assert taker.ends_after(TIMEOUT) == []
    assert drain(javaspace) == [OTHER]


def test_an_entry_with_a_lease_of_0_is_for_those_who_wait(javaspace, clock):
    lease = javaspace.write(ENTRY, None, 0)
    assert lease.expiration == clock.now()
    assert peek(javaspace) == []
    with pytest.raises(LeaseLost):
        lease.renew(10)
    leases = javaspace.write([ENTRY, ENTRY], None, [0, 10])
    assert [lease.expiration - clock.now() for lease in leases] == [0, 10]
    assert peek(javaspace) == [ENTRY]
    leases[1].renew(0)
    assert peek(javaspace) == []
    waiter = Parked(javaspace, javaspace.take, BLANK, None, timeout=TIMEOUT)
    javaspace.write(ENTRY, None, 0)
    assert waiter.result() == ENTRY


@pytest.mark.parametrize("lease", [FOREVER, []])
def test_write_of_none_at_all(javaspace, lease):
    with pytest.raises(BadArgument, match=r"^entry="):
        javaspace.write([], None, lease)
    assert peek(javaspace) == []


def test_a_javaspace_without_the_extensions_has_one_entry_at_a_time(world, javaspace):
    plain = world.client(javaspace, kind=JavaSpace)
    plain.write(ENTRY)
    assert plain.take(BLANK, None, NO_WAIT) == ENTRY
    assert not hasattr(plain, "contents")
    with pytest.raises(BadEntry):
        plain.write([ENTRY])
    with pytest.raises(BadTemplate):
        plain.take([BLANK], None, NO_WAIT)


# Leases


def test_each_entry_of_a_bulk_write_may_have_a_lease_of_its_own(javaspace, clock):
    now = clock.now()
    leases = javaspace.write(SIMPLE[:3], None, [10, FOREVER, 20])
    assert [lease.expiration for lease in leases] == [now + 10, FOREVER, now + 20]
    clock.advance(10)
    assert peek(javaspace) == SIMPLE[1:3]
    leases[2].renew(5)
    clock.advance(5)
    assert peek(javaspace) == [SIMPLE[1]]


def test_entries_with_leases_of_their_own_become_visible_together(javaspace):
    taker = Parked(javaspace, javaspace.take, [BLANK], None, timeout=TIMEOUT)
    javaspace.write(SIMPLE[:3], None, [10, FOREVER, 20])
    assert in_order(taker.result()) == in_order(SIMPLE[:3])


def test_leases_of_their_own_inside_a_transaction(javaspace, begin, clock, commits):
    inside = begin()
    leases = javaspace.write(SIMPLE[:2], inside, [10, 20])
    assert peek(javaspace, inside) == SIMPLE[:2]
    assert peek(javaspace) == []
    end(inside, commits)
    assert peek(javaspace) == (SIMPLE[:2] if commits else [])
    if commits:
        assert [lease.expiration for lease in leases] == [clock.now() + 10, clock.now() + 20]
        clock.advance(10)
        assert peek(javaspace) == [SIMPLE[1]]


def test_one_bad_entry_among_many_and_nothing_is_written(javaspace):
    for lease in (FOREVER, [10, 20, 30]):
        with pytest.raises(BadEntry):
            javaspace.write([ENTRY, OTHER, Basket(items=[{1, 2}])], None, lease)  # type: ignore[list-item]
    assert peek(javaspace) == []


def test_the_space_decides_how_long_a_lease_is(world, clock):
    javaspace = world.javaspace(lease_policy=FixedLeasePeriodPolicy(60, 10))
    for asked, granted in ((FOREVER, 60), (100, 60), (5, 5), (Lease.ANY, 10)):
        until = clock.now() + granted
        assert javaspace.write(ENTRY, None, asked).expiration == until
        assert [lease.expiration for lease in javaspace.write([ENTRY], None, asked)] == [until]
        assert javaspace.notify(BLANK, None, print, asked).lease.expiration == until
        assert javaspace.contents([BLANK], None, asked).lease.expiration == until
        registration = javaspace.register_for_availability_event([BLANK], None, True, print, asked)
        assert registration.lease.expiration == until
        lease = javaspace.write(ENTRY)
        lease.renew(asked)
        assert lease.expiration == until


def test_any_lease_is_for_ever_where_nobody_minds(javaspace):
    assert javaspace.write(ENTRY, None, Lease.ANY).expiration == FOREVER
    assert javaspace.write([ENTRY], None, Lease.ANY)[0].expiration == FOREVER


def test_any_lease_is_what_the_policy_of_its_kind_prefers(world, clock):
    policy = PolicyByKind(
        entry=FixedLeasePeriodPolicy(60, 10), subscription=FixedLeasePeriodPolicy(600, 100)
    )
    javaspace = world.javaspace(lease_policy=policy)
    assert javaspace.write(ENTRY, None, Lease.ANY).expiration == clock.now() + 10
    registration = javaspace.notify(BLANK, None, print, Lease.ANY)
    assert registration.lease.expiration == clock.now() + 100
    registration.lease.renew(Lease.ANY)
    assert registration.lease.expiration == clock.now() + 100


def test_what_does_not_fit_is_not_written_in_part(world):
    javaspace = world.javaspace(capacity=tupelo.Capacity(entries=3))
    javaspace.write(ENTRY)
    for lease in (FOREVER, 10, [10, 20, FOREVER]):
        with pytest.raises(SpaceFull):
            javaspace.write(SIMPLE[:3], None, lease)
        assert peek(javaspace) == [ENTRY]
    javaspace.write(SIMPLE[:2], None, [10, 20])
    assert peek(javaspace) == [ENTRY, *SIMPLE[:2]]


def test_a_durable_javaspace_is_found_as_it_was_left(world, clock, tmp_path):
    if not world.is_durable:
        return  # What is in memory is gone with the program.
    path = tmp_path / "kept.tupelo"
    javaspace = world.javaspace(path=path)
    javaspace.write([ENTRY, EXTENDED[1], OTHER], None, [10, FOREVER, 60])
    javaspace.take(SimpleEntry(number=2), world.begin(), NO_WAIT)
    javaspace.write(SIMPLE[3], world.begin())
    javaspace.close()
    clock.advance(10)
    assert in_order(peek(world.javaspace(path=path))) == in_order([EXTENDED[1], OTHER])


def test_leases_of_a_space_go_together(javaspace, clock):
    leases = javaspace.write(SIMPLE[:3], None, 10)
    batch = leases[0].create_lease_map(60)
    for lease in leases[1:]:
        assert leases[0].can_batch(lease)
        batch[lease] = 60
    leases[1].cancel()
    outcome = batch.renew_all()
    assert outcome.renewed == bare([leases[0], leases[2]])
    assert list(outcome.failed) == bare([leases[1]])
    clock.advance(59)
    assert peek(javaspace) == [SIMPLE[0], SIMPLE[2]]


# Closing


@pytest.mark.parametrize(
    "verb", ["read", "take", "take of many", "read_if_exists", "take_if_exists"]
)
def test_who_waits_is_told_when_the_space_is_closed(javaspace, begin, verb):
    inside = begin()
    javaspace.write(ENTRY, inside)
    operation = getattr(javaspace, verb.partition(" ")[0])
    template = [BLANK] if verb == "take of many" else BLANK
    waiter = Parked(javaspace, operation, template, None, timeout=TIMEOUT)
    at_once(javaspace.close)
    with pytest.raises(SpaceClosed):
        waiter.result()


def test_a_closed_space_refuses_everything(javaspace):
    matches = javaspace.contents([BLANK])
    registration = javaspace.notify(BLANK, None, print)
    lease = javaspace.write(ENTRY, None, 10)
    javaspace.close()
    for attempt in (
        lambda: javaspace.write(ENTRY),
        lambda: javaspace.write([ENTRY]),
        lambda: javaspace.read(BLANK),
        lambda: javaspace.take(BLANK),
        lambda: javaspace.take([BLANK]),
        lambda: javaspace.read_if_exists(BLANK),
        lambda: javaspace.take_if_exists(BLANK),
        lambda: javaspace.contents([BLANK]),
        lambda: javaspace.notify(BLANK, None, print),
        lambda: javaspace.register_for_availability_event([BLANK], None, True, print),
        matches.next,
        lambda: lease.renew(5),
    ):
        with pytest.raises(SpaceClosed):
            at_once(attempt)
    assert not registration.active
    javaspace.close()


# Doors to one space


def test_javaspaces_linda_and_the_space_itself_see_the_same_entries(world, clock, tmp_path):
    options = {"path": tmp_path / "shared.tupelo"} if world.is_durable else {}
    with tupelo.Space("shared", clock=clock, **options) as space:
        own: Any = tupelo.aio.Space(space) if world.is_async else space
        javaspace, linda = world.client(own), TupleSpace(space)
        javaspace.write(ENTRY)
        assert space.read(SimpleEntry, wait=0) == ENTRY
        assert linda.inp(SimpleEntry(number=1)) == ENTRY
        space.write(OTHER)
        assert javaspace.read(BLANK, None, NO_WAIT) == OTHER
        assert javaspace.take(BLANK, None, NO_WAIT) == OTHER
        linda.out(("point", 1, 2))
        assert javaspace.read(BLANK, None, NO_WAIT) is None, "a tuple is of no class"
        assert javaspace.read(None, None, NO_WAIT) == ("point", 1, 2)
        taker = Parked(javaspace, javaspace.take, BLANK, None, timeout=TIMEOUT)
        with space.transaction() as inside:
            space.write(ENTRY, txn=inside)
            assert linda.rdp(SimpleEntry) is None
            assert taker.waits
        assert taker.result() == ENTRY
        assert space.read_all() == [("point", 1, 2)]


def test_a_javaspace_can_have_a_space_of_its_own():
    with JavaSpace05("private").space as space:
        javaspace = JavaSpace05(space)
        assert (javaspace.name, repr(javaspace)) == ("private", "JavaSpace05('private')")
        javaspace.write(ENTRY)
        assert javaspace.take(BLANK) == ENTRY
    assert JavaSpace.NO_WAIT == NO_WAIT == 0
