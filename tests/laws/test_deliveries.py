"""How often an entry came back, and what its takers have in hand."""

from typing import Any

import pytest

import tupelo
from tupelo.errors import BadArgument


def counts(space: Any) -> dict[Any, int]:
    about: list[tupelo.About] = []
    entries = space.read_all(about=about)
    return {entry: one.deliveries for entry, one in zip(entries, about, strict=True)}


def test_an_entry_counts_the_transactions_that_took_and_released_it(space):
    space.write_all([("poison",), ("good",)])
    for attempt in range(3):
        txn = space.transaction()
        about: list[tupelo.About] = []
        assert space.take(("poison",), wait=0, txn=txn, about=about) == ("poison",)
        assert [one.deliveries for one in about] == [attempt]
        txn.abort()
    assert counts(space) == {("poison",): 3, ("good",): 0}
    with space.transaction() as txn:
        space.take(("poison",), wait=0, txn=txn)
    assert counts(space) == {("good",): 0}


def test_neither_a_read_nor_an_entry_of_the_transaction_is_counted(space):
    space.write(("a",))
    txn = space.transaction()
    space.read(("a",), wait=0, txn=txn)
    space.write(("b",), txn=txn)
    space.take(("b",), wait=0, txn=txn)
    txn.abort()
    assert counts(space) == {("a",): 0}


def test_about_names_the_entry_and_its_lease(space):
    lease = space.write(("a", 1), lease=60)
    space.write(("a", 2))
    about: list[tupelo.About] = []
    assert space.read_all(("a", int), about=about) == [("a", 1), ("a", 2)]
    assert [one.expires for one in about] == [lease.expires, None]
    assert len({(one.origin, one.n) for one in about}) == 2
    more: list[tupelo.About] = []
    assert space.take(("a", 2), about=more) == ("a", 2)
    assert more == [about[1]]
    assert space.take(("a", 2), wait=0, about=more) is None
    assert len(more) == 1


def test_about_is_a_list(space):
    with pytest.raises(BadArgument, match="about="):
        space.read(wait=0, about=())


def test_a_session_says_how_often_its_entries_came_back(space):
    space.write_all([("a", 1), ("a", 2)])
    txn = space.transaction()
    space.take(("a", 2), wait=0, txn=txn)
    txn.abort()
    about: list[tupelo.About] = []
    with space.session() as session:
        assert session.read(("a", int), wait=0, about=about) == ("a", 1)
        assert session.read_all(about=about) == [("a", 2)]
        assert session.read_all(about=about) == []
        with pytest.raises(BadArgument, match="about="):
            session.read_all(about=())
    assert [one.deliveries for one in about] == [0, 1]


def test_a_notice_has_the_count(space):
    space.write(("a",))
    with space.subscribe(("a",)) as notices:
        txn = space.transaction()
        space.take(("a",), wait=0, txn=txn)
        txn.abort()
        assert notices.get().deliveries == 1


def test_what_a_transaction_has_taken_is_in_hand(space):
    space.write_all([("n", n) for n in range(3)])
    assert list(space.in_hand()) == []
    txn = space.transaction()
    space.take_all(("n", int), limit=2, txn=txn)
    space.write(("mine",), txn=txn)
    space.take(("mine",), wait=0, txn=txn)
    (one,) = space.in_hand()
    assert (one.entries, one.txn, type(one)) == (2, txn.id, tupelo.InHand)
    assert space.count() == 1
    txn.abort()
    assert list(space.in_hand()) == []


def test_what_is_in_hand_is_counted_by_a_template(space):
    space.write_all([("n", 1), ("n", 2), ("text", "a")])
    txn = space.transaction()
    space.take_all(txn=txn)
    assert [one.entries for one in space.in_hand(("n", int))] == [2]
    assert [one.entries for one in space.in_hand(("text", str))] == [1]
    assert list(space.in_hand(("other",))) == []
    txn.abort()
