"""One shared whiteboard on four paradigms, after section 6.5 of Collins' dissertation. Among hosts
that are connected, all four boards come to show the same. They differ when hosts come late or part:

| paradigm          | a figure is                | what is lost when hosts part                    |
| ----------------- | -------------------------- | ----------------------------------------------- |
| publish/subscribe | told to whoever is there   | what was published meanwhile, and whoever comes |
|                   |                            | late misses all before, and nobody is told so   |
| RPC               | a call of every board that | the same; but who draws knows which boards were |
|                   | is found                   | called, and which did not answer                |
| tuple space, LIME | a tuple that stays with    | nothing while its agent is here; with the agent |
|                   | the agent that drew it     | the figures go; all are read again at each look |
| MELON             | a message that each reads  | nothing, if some host holds a copy: the figures |
|                   | once                       | of a host that is gone are read from there      |
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from tupelo import Host
from tupelo.models import lime
from tupelo.models.lime import LimeTupleSpace
from tupelo.models.melon import Copies, Melon
from tupelo.models.pubsub import PubSub, Reply
from tupelo.models.rpc import Rpc

FIGURE = ("figure", str, str)


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


class Whiteboard:
    """What all four have in common. `figures` are those that this board shows."""

    title: ClassVar[str]
    keeps: ClassVar[str] = "nothing"
    """For whoever comes late: nothing, what those have drawn who are here, or all."""

    def __init__(self, host: Host) -> None:
        self.name = host.name
        self.host = host
        self.figures: set[tuple[str, str]] = set()

    def add(self, who: str, colour: str) -> None:
        self.figures.add((who, colour))

    def draw(self, colour: str) -> None:
        """Add a figure to all boards."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Fetch the figures of others, if they do not come by themselves."""

    def others(self) -> int:
        """How many boards are there beside this one?"""
        raise NotImplementedError

    def meet(self, boards: int) -> None:
        until(lambda: self.others() == boards - 1)

    def look(self, figures: int) -> str:
        """Wait until it shows so many."""

        def is_there() -> bool:
            self.refresh()
            return len(self.figures) == figures

        until(is_there)
        return " ".join(sorted(colour for _, colour in self.figures))


class PubSubBoard(Whiteboard):
    title = "publish/subscribe"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._broker = PubSub(host, "whiteboard")
        self._broker.subscribe(FIGURE, self._told)

    def _told(self, reply: Reply) -> None:
        for _, who, colour in reply.items:
            self.add(who, colour)

    def draw(self, colour: str) -> None:
        self._broker.publish(("figure", self.name, colour))  # and is told itself

    def others(self) -> int:
        return len(self._broker.hosts) - 1


class RpcBoard(Whiteboard):
    title = "RPC"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._rpc = Rpc(host, "whiteboard")
        self._rpc.export(self, methods=["add"])

    def draw(self, colour: str) -> None:
        called = self._rpc.find_all(RpcBoard).invoke("add", self.name, colour, wait=10)
        for board in called.unanswered:
            print(f"{board.host} may not have {colour}")

    def others(self) -> int:
        return len(self._rpc.find_all(RpcBoard).objects) - 1


class TupleSpaceBoard(Whiteboard):
    title = "tuple space"
    keeps = "of those who are here"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._lime = lime.Host(host)
        self._space = LimeTupleSpace("whiteboard", self._lime.agent(host.name))
        self._space.set_shared(True)

    def draw(self, colour: str) -> None:
        self._space.out(("figure", self.name, colour))

    def refresh(self) -> None:
        for _, who, colour in self._space.rdg(FIGURE):  # all of them, each time
            self.add(who, colour)

    def others(self) -> int:
        return len(self._lime.system.rdg(("host", str, str))) - 1


class MelonBoard(Whiteboard):
    title = "MELON"
    keeps = "all"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._melon = Melon(host, "whiteboard", copies=Copies(hosts=1))

    def draw(self, colour: str) -> None:
        self._melon.write(("figure", self.name, colour))

    def refresh(self) -> None:
        for _, who, colour in self._melon.read_all(FIGURE, wait=0):  # those that are unread
            self.add(who, colour)

    def others(self) -> int:
        return len(self.host.engaged)


@contextmanager
def whiteboard(kind: type[Whiteboard], name: str, *near: Whiteboard) -> Iterator[Whiteboard]:
    """A board at a host of its own, engaged with the hosts of those that are near."""
    peers = [board.host.address for board in near]
    with Host(name, listen="127.0.0.1:0", peers=peers) as host:
        board = kind(host)
        for one in (board, *near):
            one.meet(1 + len(near))
        yield board


def main(kind: type[Whiteboard]) -> None:
    print(f"{kind.title} keeps {kind.keeps}")
    is_pushed = kind.keeps == "nothing"
    with ExitStack() as stack:
        ben = stack.enter_context(whiteboard(kind, "ben"))
        with whiteboard(kind, "ada", ben) as ada:
            ada.draw("red")
            ben.look(1)  # So he knows that hers is there as well.
            ben.draw("green")
            print("  ada and ben:", ada.look(2), "=", ben.look(2))

            cyd = stack.enter_context(whiteboard(kind, "cyd", ben, ada))
            cyd.draw("blue")
            print("  cyd comes:  ", ada.look(3), "=", ben.look(3))
            print("  and sees:   ", cyd.look(1 if is_pushed else 3))
            ada.draw("black")
            print("  they go on: ", ben.look(4), "; cyd:", cyd.look(2 if is_pushed else 4))

        for board in (ben, cyd):
            board.meet(2)
        with whiteboard(kind, "dora", ben, cyd) as dora:
            dora.draw("white")
            print("  ada is gone:", ben.look(5))
            print("  dora sees:  ", dora.look({"nothing": 1, "all": 5}.get(kind.keeps, 3)))


if __name__ == "__main__":
    for kind in (PubSubBoard, RpcBoard, TupleSpaceBoard, MelonBoard):
        main(kind)
