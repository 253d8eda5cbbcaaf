"""ROAMINGJIGSAW (the LIME paper, 5.1): players assemble a puzzle together, also while disconnected.

A piece is a tuple and belongs to the player in whose tuple space it is. A weak reaction keeps the
tray of each player up to date: at once while players are connected, otherwise when they meet again.
The numbers in comments are those of figure 11 of the paper.
"""

from queue import Queue
from threading import Condition

from tupelo.models import lime
from tupelo.models.lime import ONCE_PER_TUPLE, LimeTupleSpace, UbiquitousReaction

PIECE = (int, str)  # its number, and which parts of the picture are on it
Operation = tuple[str, tuple[int, ...]]
Location = lime.AgentLocation | lime.HostLocation


class Tray:
    """The puzzle as one player sees it: the last known state of each piece."""

    def __init__(self) -> None:
        self._pieces: dict[str, tuple[int, Location]] = {}
        self._changed = Condition()

    def update(self, piece: tuple[int, str], owner: Location) -> None:
        number, picture = piece
        with self._changed:
            if any(set(picture) < set(known) for known in self._pieces):
                return  # It is already part of a larger piece.
            for known in [known for known in self._pieces if set(known) <= set(picture)]:
                del self._pieces[known]
            self._pieces[picture] = (number, owner)
            self._changed.notify_all()

    def owner_of(self, number: int) -> Location:
        return next(owner for known, owner in self._pieces.values() if known == number)

    def show(self) -> str:
        named = (
            (picture, owner.id.partition("#")[0]) for picture, (_, owner) in self._pieces.items()
        )
        return " ".join(f"{picture}:{owner}" for picture, owner in sorted(named))

    def await_shown(self, wanted: str) -> str:
        """Wait at most 60 seconds until the tray shows `wanted`; return what it shows."""
        with self._changed:
            self._changed.wait_for(lambda: self.show() == wanted, timeout=60)
            return self.show()


class PuzzleAgent(lime.Agent):
    """One player."""

    def __init__(self, operations: "Queue[Operation | None]", tray: Tray) -> None:
        self._port = operations
        self._tray = tray

    def run(self) -> None:
        self._space = LimeTupleSpace("puzzle")  # 1
        self._space.set_shared(True)
        update = UbiquitousReaction(PIECE, self, ONCE_PER_TUPLE)  # 2
        self._space.add_weak_reaction(update)
        while (operation := self._port.get()) is not None:
            kind, pieces = operation
            if kind == "new puzzle":
                for number in pieces:  # 3
                    self._space.out((number, "ABCDEFGH"[number - 1]))
            elif kind == "select":
                self.select(*pieces)
            else:
                self.assemble(*pieces)
            self._port.task_done()

    def select(self, number: int) -> None:
        last_known = self._tray.owner_of(number)
        piece = self._space.inp((number, str), current=last_known)  # 4
        if piece is None:
            print(f"  {self.name} beeps: {number} is not to be had")
        else:
            self._space.out(piece)
            self._tray.update(piece, self.location)

    def assemble(self, one: int, other: int) -> None:
        first = self._space.inp((one, str), current=self.location)  # 5
        if first is None:
            print(f"  {self.name} beeps: {one} is not mine")
            return
        second = self._space.inp((other, str), current=self.location)
        if second is None:
            print(f"  {self.name} beeps: {other} is not mine")
            self._space.out(first)
        else:
            assembly = (one, first[1] + second[1])
            self._space.out(assembly)
            self._tray.update(assembly, self.location)

    def reacts_to(self, event: lime.ReactionEvent) -> None:  # 6
        self._tray.update(event.tuple, event.source)


class Player:
    """A player's device: it passes the player's actions to the agent, and shows the tray."""

    def __init__(self, host: lime.Host) -> None:
        self.host = host
        self.tray = Tray()
        self._port: Queue[Operation | None] = Queue()
        self._agent = host.load(PuzzleAgent, self._port, self.tray, name=host.name)

    def do(self, kind: str, *pieces: int) -> None:
        self._port.put((kind, pieces))
        self._port.join()

    def stop(self) -> None:
        self._port.put(None)


def main() -> None:
    with (
        lime.Host("black", listen="127.0.0.1:0") as black_host,
        lime.Host("white", listen="127.0.0.1:0", peers=[black_host.host.address]) as white_host,
    ):
        black, white = Player(black_host), Player(white_host)

        def trays(title: str, black_shows: str, white_shows: str = "") -> None:
            print(title)
            print("  black's tray", black.tray.await_shown(black_shows))
            print("  white's tray", white.tray.await_shown(white_shows or black_shows))

        black.do("new puzzle", 1, 2, 3, 4)
        trays("a new puzzle", "A:black B:black C:black D:black")

        white.do("select", 3)
        white.do("select", 4)
        trays("white selects two pieces", "A:black B:black C:white D:white")

        white_host.disengage()
        print("they part")
        black.do("assemble", 1, 2)
        white.do("assemble", 3, 4)
        black.do("select", 3)
        white.do("assemble", 3, 1)
        trays(
            "each has assembled what was theirs",
            "AB:black C:white D:white",
            "A:black B:black CD:white",
        )

        white_host.engage()
        trays("they meet again", "AB:black CD:white")

        black.do("select", 3)
        black.do("assemble", 1, 3)
        trays("black assembles the rest", "ABCD:black")
        black.stop()
        white.stop()


if __name__ == "__main__":
    main()
