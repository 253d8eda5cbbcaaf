"""Views are read by sessions of their own; many events are put at once."""

from __future__ import annotations

import pytest

import tupelo
from tupelo.models.event_heap import Event, EventHeap

EVENTS = [Event("n", i=i) for i in range(4)]


@pytest.fixture
def heap():
    with tupelo.Host("one") as host, EventHeap(host, "board") as heap:
        yield heap


@pytest.mark.parametrize("order", ["none", "source", "total"])
def test_a_clone_of_a_view_has_seen_the_same_and_another_session_nothing(heap, order):
    view = heap.view(order=order)
    view.put(EVENTS[0])
    assert view.get() == EVENTS[0]
    view.put(EVENTS[1])
    clone, session = view.clone(), view.session()
    assert clone.get_all() == view.get_all() == EVENTS[1:2]
    assert session.get_all() == view.replay() == EVENTS[:2]
    assert clone.id == session.id == view.id


def test_many_events_are_put_at_once_and_stay_in_order(heap):
    view = heap.view()
    heap.put_all(EVENTS[:2])
    view.put_all(EVENTS[2:])
    assert view.get_all() == EVENTS
    assert heap.get_all() == EVENTS
