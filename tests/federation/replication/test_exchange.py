"""Random crowds: whatever happens, no copy has a hole, and those who reach each other end alike."""

from __future__ import annotations

import pytest

from tests.conftest import seeds
from tests.federation.replication.crowd import Crowd
from tupelo.federation.replication import exchange


@pytest.fixture(autouse=True)
def fold_soon(monkeypatch):
    """So that removals are signed in both ways."""
    monkeypatch.setattr(exchange, "FOLD_MIN", 5)


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", seeds(12))
def test_those_who_reach_each_other_end_with_the_same(seed, durable, signed):
    crowd = Crowd(seed, 2 + seed % 5, durable=durable, signed=signed)
    crowd.run(60)
    crowd.rest()
    crowd.check()
    crowd.check_agreed()


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("seed", seeds(10))
def test_once_all_are_back_all_have_the_same(seed, signed):
    crowd = Crowd(seed, 5, durable=True, signed=signed)
    crowd.run(40)
    crowd.rest()
    for name in crowd.names:
        crowd.start(name)
    for one, other in zip(crowd.names, crowd.names[1:], strict=False):
        crowd.connect(one, other)
    crowd.rest()
    assert len(crowd.groups()) == 1
    crowd.check_agreed()


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", [*seeds(10), 1030])
def test_those_who_take_some_streams_have_of_them_what_their_neighbours_have(seed, durable, signed):
    crowd = Crowd(seed, 2 + seed % 6, durable=durable, everything=False, signed=signed)
    crowd.run(80)
    crowd.rest()
    crowd.check()
    crowd.check_neighbours()


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_a_partner_that_has_evicted_all_of_a_stream_is_asked_last(signed):
    crowd = Crowd(1, 5, durable=False, everything=False, signed=signed)
    a, b, c, d, e = (crowd.people[name] for name in "abcde")
    for one in (b, c):
        one.exchange.hold(a.source)
        crowd.connect("a", one.name)
    crowd.write("a", 3)
    crowd.rest()
    items = dict(c.exchange.streams[a.source].items)
    b.exchange.give_way(a.source, items)
    crowd.crash("a")
    for name in "bc":  # b first
        crowd.connect("d", name)
        crowd.rest()
    d.exchange.hold(a.source)
    crowd.post("d")
    crowd.rest()
    assert len(items) == 3
    assert d.exchange.streams[a.source].items == items
    # Where nobody else has it, it counts as missed, and no more is asked for.
    crowd.connect("e", "b")
    crowd.rest()
    e.exchange.hold(a.source)
    crowd.post("e")
    crowd.rest()
    assert e.exchange.streams[a.source].items == {}
    assert e.exchange.marks[a.source] == b.exchange.marks[a.source]


def test_in_a_full_mesh_each_item_travels_once_to_each():
    crowd = Crowd(1, 6, durable=False)
    for one in crowd.names:
        for other in crowd.names:
            crowd.connect(one, other)
    for person in crowd.people.values():
        person.exchange._has_room = lambda host: True
    crowd.rest()
    before = crowd.said
    for _ in range(100):
        crowd.write("a", 1)
        crowd.rest()
    crowd.check_agreed()
    assert crowd.said - before == 500
