"""A host in a process of its own that shares a session, reads in it once for each line of input,
and may be killed at any moment."""

from __future__ import annotations

import sys

import tupelo
from tupelo.models.event_heap import Event, EventHeap

COUNT = 6

if __name__ == "__main__":
    with tupelo.Host("child", listen="127.0.0.1:0") as host:
        heap = EventHeap(host, "jobs")
        for i in range(COUNT):
            heap.put(Event("job", i=i))
        shared = heap.session().share()
        print(host.address, shared, flush=True)
        session = heap.session(shared)
        for _ in sys.stdin:
            event = session.wait(Event("job"))
            heap.put(Event("read", i=event["i"]))  # after the record of what was seen
