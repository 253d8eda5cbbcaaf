"""The order of a view, without hosts: however its batches come, it is one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.conftest import seeds
from tupelo.errors import BadFrame
from tupelo.models.event_heap.ordering import Ordering, deliver
from tupelo.models.event_heap.records import Placed, encode_places, read_places


def order_of(rng: Random, length: int) -> list[tuple[str, int]]:
    last = dict.fromkeys("abc", 0)
    places = []
    for _ in range(length):
        source = rng.choice("abc")
        last[source] += rng.randint(1, 3)
        places.append((source, last[source]))
    return places


@pytest.mark.parametrize("seed", seeds(10))
def test_batches_in_any_order_and_more_than_once_make_one_order(seed):
    rng = Random(seed)
    places = order_of(rng, 60)
    batches = []
    start = 0
    while start < len(places):
        end = min(len(places), start + rng.randint(1, 7))
        batches.append((start, places[start:end]))
        start = end
    for _ in range(10):  # told again by others, cut elsewhere
        start = rng.randrange(len(places))
        batches.append((start, places[start : start + rng.randint(1, 20)]))
    rng.shuffle(batches)
    ordering = Ordering()
    for start, batch in batches:
        before = len(ordering)
        assert ordering.receive(start, batch) == (len(ordering) > before)
        assert ordering.places == places[: len(ordering)]
    assert ordering.places == places
    assert ordering.last == {source: max(n for s, n in places if s == source) for source in "abc"}


@pytest.mark.parametrize("seed", seeds(10))
def test_nothing_is_delivered_before_what_stands_before_it(seed):
    rng = Random(seed)
    places = order_of(rng, 40)
    ordering = Ordering()
    ordering.receive(0, places)
    here: set[tuple[str, int]] = set()
    gone: set[tuple[str, int]] = set()
    seen: list[tuple[str, int]] = []
    position = 0
    coming = list(places)
    rng.shuffle(coming)
    for place in coming:
        (gone if rng.random() < 0.2 else here).add(place)
        look = lambda one: one if one in here else None  # noqa: E731
        for at, one in deliver(ordering, position, look, gone.__contains__):
            seen.append(one)
            position = at + 1
        assert seen == [one for one in places[:position] if one in here]
    assert seen == [place for place in places if place in here]


def test_who_has_no_place_yet():
    ordering = Ordering()
    ordering.receive(0, [("a", 3), ("b", 7)])
    numbers = {"a": [1, 3, 4, 9], "b": [7], "c": [2]}

    def after(source: str) -> Callable[[int], list[int]]:
        return lambda number: [one for one in numbers[source] if one > number]

    unplaced = ordering.unplaced((source, after(source)) for source in numbers)
    assert unplaced == [("a", 4), ("a", 9), ("c", 2)]


def test_an_order_survives_its_encoding_and_strangers_cannot_forge_nonsense():
    places = [("a/1", 3), ("b/2", 1), ("a/1", 4)]
    assert read_places(encode_places("v", 5, places)) == places
    for placed in (
        Placed(),
        Placed("v", -1, ["a"], [0], [1]),
        Placed("v", 0, ["a"], [1], [1]),
        Placed("v", 0, ["a"], [0, 0], [1]),
        Placed("v", 0, ["a"], [-1], [1]),
        Placed("v", 0, ["a"], [0], ["x"]),  # type: ignore[list-item]
        Placed("v", 0, [7], [0], [1]),  # type: ignore[list-item]
        Placed("v", 0, {"a": 1}, [0], [1]),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadFrame):
            read_places(placed)
