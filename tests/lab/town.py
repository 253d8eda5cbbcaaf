"""Programs on a virtual network that talk, lose each other and meet again, as a seed decides.

As a program it prints the digest of what happened: `town.py SEED`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress

from tupelo.errors import CannotReach
from tupelo.federation.links.link import Link
from tupelo.federation.links.wire import Hint, encode
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.network import VirtualNetwork


class Listener:
    """An ear that writes down what it is told."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.frames: list[bytes] = []
        self.times_eased = 0
        self.reasons: list[str] = []
        self.on_frame: Callable[[bytes], None] = lambda content: None
        self._news = asyncio.Event()

    def heard(self, contents: list[bytes]) -> None:
        for content in contents:
            self.frames.append(content)
            self.on_frame(content)
        self._news.set()

    def eased(self) -> None:
        self.times_eased += 1
        self._news.set()

    def lost(self, reason: str) -> None:
        self.reasons.append(reason)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def until_lost(self) -> str:
        await self.until(lambda: bool(self.reasons))
        return self.reasons[0]


async def pair(
    network: VirtualNetwork, near: str = "a", far: str = "b"
) -> tuple[Listener, Listener]:
    """The two ends of a new link."""
    answered: list[Listener] = []

    def answer(link: Link) -> Listener:
        answered.append(Listener(link))
        return answered[-1]

    listening = await network.place(far).listen(far, answer)
    ours: list[Listener] = []

    def own(link: Link) -> Listener:
        ours.append(Listener(link))
        return ours[-1]

    await network.place(near).dial(far, own)
    listening.close()
    return ours[0], answered[0]


async def live(loop: VirtualLoop) -> VirtualNetwork:
    """Four programs dial each other in turns, and echo a few times what they hear."""
    network = VirtualNetwork(loop, delay=(0.001, 0.02), bandwidth=1e5)
    names = ["a", "b", "c", "d"]

    def echoing(link: Link) -> Listener:
        listener = Listener(link)
        listener.on_frame = lambda content: link.send(content) if loop.rng.random() < 0.8 else None
        return listener

    async def talk(name: str) -> None:
        for number in range(10):
            other = loop.rng.choice([one for one in names if one != name])
            with suppress(CannotReach):
                link = await network.place(name).dial(other, echoing)
                for word in range(5):
                    link.send(encode(Hint(number, [name, word])))
                await asyncio.sleep(loop.rng.random())
                link.close()

    async def nemesis() -> None:
        for _ in range(10):
            await asyncio.sleep(loop.rng.random())
            a, b = loop.rng.sample(names, 2)
            match loop.rng.choice(["partition", "heal", "cut", "slow"]):
                case "partition":
                    network.partition({a}, {b})
                case "heal":
                    network.heal()
                case "cut":
                    network.cut(a, b)
                case "slow":
                    network.slow(a, b, 5.0)
        network.heal()

    for name in names:
        await network.place(name).listen(name, echoing)
    tasks = {asyncio.ensure_future(talk(name)) for name in names}
    tasks.add(asyncio.ensure_future(nemesis()))
    while tasks:  # The order in a set of tasks must not matter, or must be the same every time.
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            network.note(f"{task.get_name()} is done")
            task.result()
    return network


if __name__ == "__main__":
    print(run(live, int(sys.argv[1])).digest)
