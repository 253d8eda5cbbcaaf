"""The distributed Event Heap: the door with the words of Storz, Friday and Davies."""

from tupelo.models.event_heap.events import Event
from tupelo.models.event_heap.heap import EventHeap
from tupelo.models.event_heap.orders import ViewCloned
from tupelo.models.event_heap.sessions import Query, Session, View

__all__ = ["Event", "EventHeap", "Query", "Session", "View", "ViewCloned"]
