"""A shared session goes on at another host when the process that held it is killed (0043)."""

from __future__ import annotations

import pytest

import tupelo
from tests.conftest import PATIENCE_SECONDS, Program, until_true
from tests.models.event_heap.session_child import COUNT
from tupelo.errors import SessionLost
from tupelo.models.event_heap import Event, EventHeap


def test_a_session_is_resumed_when_the_process_that_held_it_is_killed():
    with Program(["-m", "tests.models.event_heap.session_child"]) as child:
        address, shared = child.line().split()
        with tupelo.Host("parent", peers=[address]) as host:
            heap = EventHeap(host, "jobs", patience=1.0)
            until_true(lambda: len(heap.snoop_all(Event("job"))) == COUNT, "all events are here")
            session = heap.session(shared, wait=PATIENCE_SECONDS)
            assert session.wait(Event("job"), wait=PATIENCE_SECONDS) == Event("job", i=0)
            child.tell()
            assert heap.wait(Event("read"), wait=PATIENCE_SECONDS) == Event("read", i=1)
            child.kill()
            child.wait()
            with pytest.raises(SessionLost, match="resume"):
                session.wait(Event("job"), wait=PATIENCE_SECONDS)
            session.resume()
            left = [event["i"] for event in session.get_all(Event("job"))]
            assert left == list(range(2, COUNT))
