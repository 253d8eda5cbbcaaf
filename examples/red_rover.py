"""REDROVER (the LIME paper, 5.2): two teams look for a flag, and see which players are in range.

The position of a player is a tuple in the space "game", which all share. What only one team may
know is in a space with the name of the team. A player out of range is shown as a ghost at its last
known position: LimeSystem has a tuple for each departed host.
"""

from threading import Condition

from tupelo.models import lime
from tupelo.models.lime import ONCE, ONCE_PER_TUPLE, LimeTupleSpace, UbiquitousReaction

Place = tuple[int, int]


class Player:
    """The device of a player: the map that it shows, and the actions of the player."""

    def __init__(self, host: lime.Host, team: str, place: Place) -> None:
        self.host, self.name, self.place = host, host.name, place
        self._seen: dict[str, Place] = {}
        self._ghosts: set[str] = set()
        self._news: list[str] = []
        self._changed = Condition()
        self.agent = host.agent(host.name)
        self._game = LimeTupleSpace("game", self.agent)
        self._team = LimeTupleSpace(team, self.agent)
        lime.set_shared([self._game, self._team], True)
        moved = UbiquitousReaction(("at", str, int, int), self.show_move, ONCE_PER_TUPLE)
        self._game.add_weak_reaction(moved)
        flag = UbiquitousReaction(("flag", str), self.show_flag, ONCE)
        self._team.add_weak_reaction(flag)
        system = lime.LimeSystemTupleSpace(self.agent)
        system.add_weak_reaction(
            UbiquitousReaction(("departed host", str, str), self.show_ghost, ONCE_PER_TUPLE),
            UbiquitousReaction(("host", str, str), self.show_player, ONCE_PER_TUPLE),
        )
        self._team.out(("icon", f"<{self.name}>"))
        self._game.out(("at", self.name, *place))

    # Actions of the player

    def move(self, place: Place) -> None:
        self._game.inp(("at", self.name, int, int), current=self.agent.location)
        self._game.out(("at", self.name, *place))

    def find_flag(self) -> None:
        self._team.out(("flag", self.name))

    def icon_of(self, other: "Player") -> str:
        found = self._team.rdp(("icon", str), current=other.agent.location)
        return "not to be had" if found is None else found[1]

    # Reactions of the device

    def show_move(self, event: lime.ReactionEvent) -> None:
        _, name, x, y = event.tuple
        with self._changed:
            self._seen[name] = (x, y)
            self._changed.notify_all()

    def show_flag(self, event: lime.ReactionEvent) -> None:
        with self._changed:
            self._news.append(f"{event.tuple[1]} has the flag")
            self._changed.notify_all()

    def show_ghost(self, event: lime.ReactionEvent) -> None:
        with self._changed:
            self._ghosts.add(event.tuple[2])
            self._changed.notify_all()

    def show_player(self, event: lime.ReactionEvent) -> None:
        with self._changed:
            self._ghosts.discard(event.tuple[2])
            self._changed.notify_all()

    def show(self) -> str:
        places = (
            f"{name}{'(ghost)' if name in self._ghosts else ''} {x},{y}"
            for name, (x, y) in sorted(self._seen.items())
        )
        return "; ".join([*places, *self._news])

    def await_shown(self, wanted: str) -> None:
        """Wait at most 60 seconds until the device shows `wanted`, and print what it shows."""
        with self._changed:
            self._changed.wait_for(lambda: self.show() == wanted, timeout=60)
            print(f"  {self.name}'s device: {self.show()}")


def main() -> None:
    with (
        lime.Host("ann", listen="127.0.0.1:0") as ann_host,
        lime.Host("bob", listen="127.0.0.1:0", peers=[ann_host.host.address]) as bob_host,
        lime.Host("kim", listen="127.0.0.1:0", peers=[ann_host.host.address]) as kim_host,
    ):
        ann = Player(ann_host, "red", (1, 1))
        bob = Player(bob_host, "red", (2, 2))
        kim = Player(kim_host, "blue", (9, 9))

        print("the game begins")
        for player in (ann, bob, kim):
            player.await_shown("ann 1,1; bob 2,2; kim 9,9")
        print("  ann sees bob as", ann.icon_of(bob), "and kim's icon is", ann.icon_of(kim))

        print("bob walks out of range, and on")
        bob_host.disengage()
        bob.move((5, 5))
        ann.await_shown("ann 1,1; bob(ghost) 2,2; kim 9,9")
        bob.await_shown("ann(ghost) 1,1; bob 5,5; kim(ghost) 9,9")

        print("bob is back")
        bob_host.engage()
        for player in (ann, bob, kim):
            player.await_shown("ann 1,1; bob 5,5; kim 9,9")

        print("bob finds the flag: his team is told")
        bob.find_flag()
        ann.await_shown("ann 1,1; bob 5,5; kim 9,9; bob has the flag")
        kim.await_shown("ann 1,1; bob 5,5; kim 9,9")


if __name__ == "__main__":
    main()
