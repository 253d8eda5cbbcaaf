"""The simulation of the Event Heap: `tupelo lab simulate --model event-heap`."""
