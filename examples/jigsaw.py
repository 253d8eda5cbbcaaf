"""ROAMINGJIGSAW (the LIME paper, 5.1): two players assemble a puzzle together, also while
disconnected, as in its figure 10. The game itself is `tupelo.apps.jigsaw`; people play it in the
console of a host.
"""

from threading import Condition

from tupelo.apps.jigsaw import Player
from tupelo.models import lime

NAMES = "ABCD"  # of the four pieces, two in each row


class Device:
    """A player's device: it does what the player says, and shows the tray."""

    def __init__(self, host: lime.Host) -> None:
        self._name = host.name
        self._changed = Condition()
        self.player = Player.join(host, changed=self._tell)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def select(self, puzzle: str, piece: str) -> None:
        if not self.player.select(puzzle, cells(piece)):
            print(f"  {self._name} beeps: {piece} is not to be had")

    def assemble(self, puzzle: str, one: str, other: str) -> None:
        if not self.player.assemble(puzzle, cells(one), cells(other)):
            print(f"  {self._name} beeps: {one} and {other} are not both mine")

    def show(self, puzzle: str) -> str:
        pieces = self.player.tray.pieces(puzzle)
        named = (("".join(NAMES[cell] for cell in one.cells), one.owner.id) for one in pieces)
        return " ".join(f"{piece}:{owner.partition('#')[0]}" for piece, owner in named)

    def await_shown(self, puzzle: str, wanted: str) -> str:
        """Wait at most 60 seconds until the tray shows `wanted`; return what it shows."""
        with self._changed:
            self._changed.wait_for(lambda: self.show(puzzle) == wanted, timeout=60)
            return self.show(puzzle)


def cells(piece: str) -> list[int]:
    return [NAMES.index(name) for name in piece]


def main() -> None:
    with (
        lime.Host("black", listen="127.0.0.1:0") as black_host,
        lime.Host("white", listen="127.0.0.1:0", peers=[black_host.host.address]) as white_host,
    ):
        black, white = Device(black_host), Device(white_host)
        puzzle = black.player.new_puzzle(columns=2, rows=2)

        def trays(title: str, black_shows: str, white_shows: str = "") -> None:
            print(title)
            print("  black's tray", black.await_shown(puzzle, black_shows))
            print("  white's tray", white.await_shown(puzzle, white_shows or black_shows))

        trays("a new puzzle", "A:black B:black C:black D:black")

        white.select(puzzle, "C")
        white.select(puzzle, "D")
        trays("white selects two pieces", "A:black B:black C:white D:white")

        white_host.disengage()
        print("they part")
        black.assemble(puzzle, "A", "B")
        white.assemble(puzzle, "C", "D")
        black.select(puzzle, "C")
        white.assemble(puzzle, "CD", "A")
        trays(
            "each has assembled what was theirs",
            "AB:black C:white D:white",
            "A:black B:black CD:white",
        )

        white_host.engage()
        trays("they meet again", "AB:black CD:white")

        black.select(puzzle, "CD")
        black.assemble(puzzle, "AB", "CD")
        trays("black assembles the rest", "ABCD:black")


if __name__ == "__main__":
    main()
