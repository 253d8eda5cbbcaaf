"""Four whiteboards on an event heap: the scenario of Storz, Friday and Davies. Alice, Bob, Joe and
Sue draw together at lunch, without any server. Alice and Joe go to their office, find there all
that was drawn, and go on; later they meet the others again."""

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
    """What is drawn later covers what was drawn before: so all must draw in one order."""

    def __init__(self, host: Host, view: str | None = None) -> None:
        self.name = host.name
        self.strokes: list[str] = []
        # The owner of the view may be away for a second before it is cloned.
        self.heap = EventHeap(host, "whiteboard", patience=1.0)
        self.told: SimpleQueue[ViewCloned] = SimpleQueue()
        self.view = self.heap.view(view, wait=None, on_clone=self.told.put)

    def draw(self, *colours: str) -> None:
        for colour in colours:
            self.view.put(Stroke(self.name, colour))

    def look(self, strokes: int) -> str:
        """Wait until there are so many."""
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
            bob.draw("black")  # So he owns the view when they part.
            for board in (alice, bob, joe, sue):
                print(f"{board.name} at lunch: {board.look(4)}")

        # At their office Alice and Joe begin with empty whiteboards.
        third = stack.enter_context(open_host("alice", folder))
        fourth = stack.enter_context(open_host("joe", folder, third))
        alice, joe = Whiteboard(third, view), Whiteboard(fourth, view)
        print(f"alice at the office: {alice.look(4)}")
        alice.heap.put(("door", "open"), ttl=60.0)
        joe.heap.wait(("door", "open"))  # They have found each other.
        joe.draw("orange")
        alice.draw("violet")
        for board in (alice, joe):
            print(f"{board.name} at the office: {board.look(6)}")
            print(f"{board.name} was told of a clone of the view: {board.told.get().old == view}")
        sue.draw("white")
        print(f"bob goes on: {bob.look(5)}")

        # They meet again: everyone has everything, and there is one view, as there was at lunch.
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
