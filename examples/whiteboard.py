"""A shared whiteboard on four paradigms, after section 6.5 of Collins' dissertation. While hosts
are connected, all four show the same figures. They differ when hosts join late or are disconnected:

| paradigm          | a figure is                | lost when hosts join late or part               |
| ----------------- | -------------------------- | ----------------------------------------------- |
| publish/subscribe | sent to connected hosts    | all earlier figures, and those published while  |
|                   |                            | apart; nobody is told                           |
| RPC               | a call to every board that | the same; but the caller knows which boards     |
|                   | is found                   | were called and which did not answer            |
| tuple space, LIME | a tuple that stays with    | the figures of an agent that has left; all      |
|                   | the agent that drew it     | figures are read again at each look             |
| MELON             | a message that each board  | nothing, if some host has a copy: figures of a  |
|                   | reads once                 | host that has left are read from the copy       |
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
    """The common part of the four boards. `figures` are shown on this board."""

    title: ClassVar[str]
    keeps: ClassVar[str] = "nothing"
    """What a board that joins late gets to see."""

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
        """Fetch the figures of others, if they are not pushed."""

    def others(self) -> int:
        """The number of other boards."""
        raise NotImplementedError

    def meet(self, boards: int) -> None:
        until(lambda: self.others() == boards - 1)

    def look(self, figures: int) -> str:
        """Wait until the board shows this many figures; return their colours."""

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
        self._broker.publish(("figure", self.name, colour))  # this board gets it too

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
        for _, who, colour in self._melon.read_all(FIGURE, wait=0):  # only unread ones
            self.add(who, colour)

    def others(self) -> int:
        return len(self.host.engaged)


@contextmanager
def whiteboard(kind: type[Whiteboard], name: str, *near: Whiteboard) -> Iterator[Whiteboard]:
    """A board at a host of its own, connected to the hosts of the boards `near`."""
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
            ben.look(1)  # Wait until ben's board shows it.
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
