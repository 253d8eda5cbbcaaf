"""Four whiteboards on an Event Heap: the scenario of Storz, Friday and Davies. Alice, Bob, Joe and
Sue draw together at lunch, without a server. Alice and Joe go to their office, where they have all
strokes and continue; later they connect to the others again."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tupelo import Host
from tupelo.models.event_heap import EventHeap, ViewCloned


@dataclass
class Stroke:
    who: str | None = None
    colour: str | None = None


class Whiteboard:
    """A later stroke covers an earlier one, so all boards must draw in the same order."""

    def __init__(self, host: Host, view: str | None = None) -> None:
        self.name = host.name
        self.strokes: list[str] = []
        # If the owner of the view is away for a second, the view is cloned.
        self.heap = EventHeap(host, "whiteboard", patience=1.0)
        self.told: SimpleQueue[ViewCloned] = SimpleQueue()
        self.view = self.heap.view(view, wait=None, on_clone=self.told.put)

    def draw(self, *colours: str) -> None:
        for colour in colours:
            self.view.put(Stroke(self.name, colour))

    def look(self, strokes: int) -> str:
        """Wait until there are this many strokes; return their colours."""
        while len(self.strokes) < strokes:
            self.strokes.append(self.view.wait(Stroke).colour)
        return " ".join(self.strokes)


def open_host(name: str, folder: Path, *peers: Host) -> Host:
    addresses = [peer.address for peer in peers]
    return Host(name, listen="127.0.0.1:0", path=folder / name, peers=addresses)


def main(folder: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(open_host("bob", folder))
        second = stack.enter_context(open_host("sue", folder, first))
        bob = Whiteboard(first)
        view = bob.view.id
        sue = Whiteboard(second, view)

        # Lunch.
        with (
            open_host("alice", folder, first, second) as third,
            open_host("joe", folder, first, second, third) as fourth,
        ):
            alice, joe = Whiteboard(third, view), Whiteboard(fourth, view)
            alice.draw("red")
            joe.draw("green")
            sue.draw("blue")
            bob.draw("black")  # Bob now owns the view.
            for board in (alice, bob, joe, sue):
                print(f"{board.name} at lunch: {board.look(4)}")

        # At the office Alice and Joe start with empty whiteboards, and read strokes from the heap.
        third = stack.enter_context(open_host("alice", folder))
        fourth = stack.enter_context(open_host("joe", folder, third))
        alice, joe = Whiteboard(third, view), Whiteboard(fourth, view)
        print(f"alice at the office: {alice.look(4)}")
        alice.heap.put(("door", "open"), ttl=60.0)
        joe.heap.wait(("door", "open"))  # Now they are connected.
        joe.draw("orange")
        alice.draw("violet")
        for board in (alice, joe):
            print(f"{board.name} at the office: {board.look(6)}")
            print(f"{board.name} was told of a clone of the view: {board.told.get().old == view}")
        sue.draw("white")
        print(f"bob goes on: {bob.look(5)}")

        # All are connected again: every host has all strokes, and there is one view again.
        third.engage(first.address)
        fourth.engage(second.address)
        for board in (alice, joe):
            print(f"{board.name} goes back to the first view: {board.told.get().new == view}")
            board.look(7)
        print("bob and sue see the same:", bob.look(7) == sue.look(7))
        print("all see the same strokes:", sorted(alice.strokes) == sorted(bob.strokes))
        pictures = [Whiteboard(host, view).look(7) for host in (first, second, third, fourth)]
        print("drawn anew, there is one picture:", len(set(pictures)) == 1)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder))
