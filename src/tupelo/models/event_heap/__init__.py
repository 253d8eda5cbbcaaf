"""The distributed Event Heap, with the names of Storz, Friday and Davies.

| the paper                    | Tupelo                                                          |
| ---------------------------- | --------------------------------------------------------------- |
| event, type, fields          | any entry; `Event("stroke", x=1)`, or a dataclass of one's own  |
| wildcard                     | `ANY`, a type, a part of a template; a field that is not named  |
| time to live                 | put(event, ttl=seconds)                                         |
| Event Heap                   | `EventHeap(host, name)`, a replica at each host that has one    |
| putEvent                     | put(event)                                                      |
| getEvent, waitForEvent       | get(template), wait(template): what this heap has not given yet |
| snoopEvents                  | snoop, snoop_all: whatever is there, seen or not                |
| removeEvent, waitToRemove    | remove, wait_to_remove: decided where the event was put         |
| getAll                       | get_all(template)                                               |
| persistent query             | query(template): all that is there, and all that comes          |
| registerForEvents            | register(template, callback): all that comes                    |
| view                         | view(order="none", "source" or "total"); view(id)               |
| total ordering               | view.put, view.get, view.wait: one order for all who use it     |
| ownership of a view          | view.is_owner; a host that puts through the view gets it        |
| clone of a view              | view.id changes, view.cloned and on_clone tell of it            |
| complete replay              | view.replay(), view.session()                                   |
| session identifier           | session(): empty; session.clone(): with the record of another   |
| sharing it across hosts      | session.share(): an id; session(id) at any host                 |
| factory, creation request    | `HeapRequest`, `ViewRequest`, ... in the space "event heaps"    |
| bridging agent               | `Bridge(a, b, template, both=...)`                              |

A heap is opened on a `tupelo.Host`, or on a `tupelo.aio.Host`, where its operations are awaited. A
host that is alone continues with the events that it has, and later gets missed events from any host
that has them.
"""

from tupelo.models.event_heap.events import Event
from tupelo.models.event_heap.factories import (
    DestroyRequest,
    HeapRequest,
    Made,
    SessionRequest,
    ViewRequest,
)
from tupelo.models.event_heap.heap import Bridge, EventHeap, Query, Session, View
from tupelo.models.event_heap.orders import ViewCloned

__all__ = [
    "Bridge",
    "DestroyRequest",
    "Event",
    "EventHeap",
    "HeapRequest",
    "Made",
    "Query",
    "Session",
    "SessionRequest",
    "View",
    "ViewCloned",
    "ViewRequest",
]
