"""Appendix B.2 and B.3: the operations of JavaSpace and JavaSpace05, with the ids of the thesis.

Where the thesis throws an exception on timeout, an operation answers None here, in all of appendix
B: that is what the JavaSpaces specification says.
"""

# ruff: noqa: N802 (the ids are encoded as in the thesis)

import pytest

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
from tupelo.errors import MatchSetInvalid
from tupelo.models.javaspaces import FOREVER, NO_WAIT, Lease

ENTRY = SimpleEntry(1, "one", True)


@pytest.fixture
def ten(javaspace):
    """10 SimpleEntries in the space."""
    fill(javaspace, *SIMPLE)
    return javaspace


@pytest.fixture
def ten_of_each(javaspace):
    """10 entries of each type in the space, in turn."""
    for one, other in zip(SIMPLE, EXTENDED, strict=True):
        fill(javaspace, one, other)
    return javaspace


def test_appendix_b_J_1_write_leaves_the_entry_and_answers_a_lease(javaspace):
    lease = javaspace.write(ENTRY, None, FOREVER)
    assert isinstance(bare(lease), Lease)
    assert lease.expiration == FOREVER
    assert drain(javaspace) == [ENTRY]


def test_appendix_b_J_2_read_in_an_empty_space_blocks_until_its_timeout(javaspace):
    reader = Parked(javaspace, javaspace.read, SimpleEntry(), None, timeout=TIMEOUT)
    assert reader.ends_after(TIMEOUT) is None


def test_appendix_b_J_3_read_with_a_blank_template(ten):
    found = ten.read(SimpleEntry(), None, TIMEOUT)
    assert found in SIMPLE
    assert in_order(drain(ten)) == in_order(SIMPLE), "a read removes nothing"


def test_appendix_b_J_4_read_with_a_partially_filled_template(ten):
    found = ten.read(SimpleEntry(number=7), None, TIMEOUT)
    assert found == SIMPLE[7]
    found = ten.read(SimpleEntry(text="odd", flag=False), None, TIMEOUT)
    assert found in (SIMPLE[5], SIMPLE[7], SIMPLE[9])
    assert in_order(drain(ten)) == in_order(SIMPLE)


def test_appendix_b_J_5_read_of_a_type_finds_its_subtypes(ten_of_each):
    found = ten_of_each.read(SimpleEntry(), None, TIMEOUT)
    assert found in SIMPLE + EXTENDED
    # Each type can be the one that is found, if only one entry of the two is left.
    assert drain(ten_of_each, ExtendedEntry(number=1)) == [EXTENDED[1]]
    assert ten_of_each.read(SimpleEntry(number=1), None, TIMEOUT) == SIMPLE[1]
    taken, left = ten_of_each.take(SimpleEntry(number=2), None, TIMEOUT), SimpleEntry(number=2)
    assert [taken, ten_of_each.read(left, None, TIMEOUT)] in (
        [SIMPLE[2], EXTENDED[2]],
        [EXTENDED[2], SIMPLE[2]],
    )


def test_appendix_b_J_6_read_of_a_subtype_finds_only_the_subtype(ten_of_each):
    found = ten_of_each.read(ExtendedEntry(), None, TIMEOUT)
    assert found in EXTENDED
    assert type(found) is ExtendedEntry


def test_appendix_b_J_7_read_of_a_subtype_blocks_where_only_its_supertype_is(ten):
    reader = Parked(ten, ten.read, ExtendedEntry(), None, timeout=TIMEOUT)
    assert reader.ends_after(TIMEOUT) is None


def test_appendix_b_J_8_take_removes_the_entry_it_answers(ten_of_each):
    found = ten_of_each.take(SimpleEntry(), None, TIMEOUT)
    left = drain(ten_of_each)
    assert len(left) == 19
    assert in_order([found, *left]) == in_order(SIMPLE + EXTENDED)


def test_appendix_b_J_9_a_snapshot_takes_one_entry_after_the_other(ten_of_each):
    snapshot = ten_of_each.snapshot(SimpleEntry())
    found = [ten_of_each.take(snapshot, None, TIMEOUT) for _ in range(20)]
    assert in_order(found) == in_order(SIMPLE + EXTENDED)
    assert ten_of_each.take(snapshot, None, NO_WAIT) is None
    assert drain(ten_of_each) == []


def test_appendix_b_J_10_read_if_exists_returns_at_once_from_an_empty_space(javaspace):
    assert at_once(javaspace.read_if_exists, SimpleEntry(), None, TIMEOUT) is None


def test_appendix_b_J_11_read_if_exists_waits_for_the_fate_of_a_taken_entry(
    javaspace, begin, clock
):
    javaspace.write(ENTRY)
    transaction = begin()
    assert javaspace.take(SimpleEntry(), transaction, TIMEOUT) == ENTRY
    reader = Parked(javaspace, javaspace.read_if_exists, SimpleEntry(), None, timeout=TIMEOUT)
    clock.advance(TIMEOUT - 1)
    assert reader.waits
    transaction.abort()
    assert reader.result() == ENTRY
    assert drain(javaspace) == [ENTRY]


def test_appendix_b_J_12_take_if_exists_returns_at_once_from_an_empty_space(javaspace):
    assert at_once(javaspace.take_if_exists, SimpleEntry(), None, TIMEOUT) is None


def test_appendix_b_J_13_take_if_exists_waits_for_the_fate_of_a_taken_entry(
    javaspace, begin, clock
):
    javaspace.write(ENTRY)
    transaction = begin()
    assert javaspace.take(SimpleEntry(), transaction, TIMEOUT) == ENTRY
    taker = Parked(javaspace, javaspace.take_if_exists, SimpleEntry(), None, timeout=TIMEOUT)
    clock.advance(TIMEOUT - 1)
    assert taker.waits
    transaction.abort()
    assert taker.result() == ENTRY
    assert drain(javaspace) == []


def test_appendix_b_E_1_contents_iterates_over_all_that_match(ten_of_each):
    matches = ten_of_each.contents([SimpleEntry()], None, FOREVER)
    found = [matches.next() for _ in range(20)]
    assert in_order(found) == in_order(SIMPLE + EXTENDED)
    assert matches.next() is None
    assert in_order(list(ten_of_each.contents([SimpleEntry()]))) == in_order(SIMPLE + EXTENDED)
    assert in_order(drain(ten_of_each)) == in_order(SIMPLE + EXTENDED), "it removes nothing"


def test_appendix_b_E_2_a_take_invalidates_the_match_set(ten_of_each):
    matches = ten_of_each.contents([SimpleEntry()], None, FOREVER)
    assert matches.next() in SIMPLE + EXTENDED
    assert len(ten_of_each.take([SimpleEntry()], None, TIMEOUT, 2)) == 2
    with pytest.raises(MatchSetInvalid, match="taken"):
        matches.next()


def test_appendix_b_E_3_contents_of_three_templates(ten_of_each):
    templates = [
        SimpleEntry(number=3),
        SimpleEntry(text="even", flag=True),
        SimpleEntry(flag=True),  # what the second one matches, and more
    ]
    found = list(ten_of_each.contents(templates, None, FOREVER))
    assert in_order(found) == in_order(SIMPLE[:5] + EXTENDED[:5]), "each of them once"


def test_appendix_b_E_4_write_of_many_answers_a_lease_for_each(javaspace):
    entries = SIMPLE[:5] + EXTENDED[:5]
    leases = javaspace.write(entries, None, FOREVER)
    assert len(leases) == 10 and all(isinstance(bare(lease), Lease) for lease in leases)
    assert len(set(leases)) == 10
    assert in_order(list(javaspace.contents([SimpleEntry()]))) == in_order(entries)
    for lease in leases:  # Each is the lease of one entry.
        lease.cancel()
    assert drain(javaspace) == []


def test_appendix_b_E_5_take_of_many_with_a_template_of_the_subtype(ten_of_each):
    found = ten_of_each.take([ExtendedEntry()], None, TIMEOUT, 10)
    assert in_order(found) == in_order(EXTENDED)
    assert in_order(drain(ten_of_each)) == in_order(SIMPLE)
