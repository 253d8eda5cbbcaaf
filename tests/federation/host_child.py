"""A host in a process of its own, which does what its parent says and may be killed at any moment.

Its one argument is a JSON object of options. Orders come as lines of JSON, [number, verb, args],
and each is done in a thread; what it says is a line of JSON too:

    ["ready", address, id]          it listens
    ["paused", where]               it has come to the moment that TUPELO_TEST_PAUSE names
    ["answer", number, value]       an order was done
    ["error", number, class]        and this is what it raised
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

import tupelo
from tupelo.federation.hosts.doors import Host
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.spaces.hosted import Doubt
from tupelo.federation.spanning.federated import Federation


@tupelo.entry("tests.only_there")
@dataclass(frozen=True)
class OnlyThere:
    """A class that the parent does not have."""

    number: int | None = None


def say(*words: Any) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


async def stay(where: str) -> None:
    """Never come back: whoever paused us will kill us. The host's heart goes on beating."""
    say("paused", where)
    await asyncio.Event().wait()


def pause_at(moment: str) -> None:
    """Stop a hand-over between delivery and confirmation."""
    if moment == "taker has it":  # The host has fetched it, and neither told nor asked anyone.
        get = Federation.get

        async def getting(*args: Any, **options: Any) -> Any:
            taken = await get(*args, **options)
            if taken.entries:
                await stay(moment)
            return taken

        setattr(Federation, "get", getting)  # noqa: B010
    elif moment == "client has it":  # The client has said so to its host, and that to nobody.
        setattr(Federation, "keep", lambda *args: say("paused", moment))  # noqa: B010
    elif moment in ("owner is asked", "owner has agreed"):
        agree = Peer.settle

        async def agreeing(peer: Peer, message: Any) -> bool:
            if moment == "owner has agreed":
                await agree(peer, message)
            await stay(moment)
            return False

        setattr(Peer, "settle", agreeing)  # noqa: B010
    elif moment:
        raise ValueError(moment)


class Child:
    """The host, and what can be ordered of it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.host = Host(
            options["name"],
            listen=options.get("listen", 0),
            path=options.get("path"),
            peers=options.get("peers", []),
            heartbeat=options.get("heartbeat", 0.2),
            doubt=Doubt(options.get("doubt", 30.0)),
        )
        self.space = self.host.space("jobs")
        say("ready", self.host.address, self.host.id)

    def do(self, number: int, verb: str, args: list[Any]) -> None:
        try:
            say("answer", number, getattr(self, verb)(*args))
        except Exception as error:
            say("error", number, type(error).__name__)

    def write(self, *entries: list[Any]) -> None:
        self.space.write_all([tuple(entry) for entry in entries])

    def write_only_there(self, number: int) -> None:
        self.space.write(OnlyThere(number))

    def take(self, first: str, wait: float | None) -> Any:
        return self.space.take((first, int), wait=wait)

    def take_all(self, first: str) -> Any:
        return self.space.take_all((first, int), wait=0)

    def swap(self, first: int) -> Any:
        """In one transaction, take one entry here and write two."""
        with self.space.transaction() as txn:
            taken = self.space.take(("pair", int), wait=0, txn=txn)
            if taken is not None:
                self.space.write_all([("half", first), ("half", first + 1)], txn=txn)
        return taken

    def here(self, first: str) -> Any:
        return sorted(self.space.here.read_all((first, int)))

    def in_doubt(self) -> int:
        return len(self.host.core.doubts.owners())

    def engaged(self) -> list[str]:
        return self.host.engaged

    def close(self) -> None:
        self.host.close()


def main() -> None:
    pause_at(os.environ.get("TUPELO_TEST_PAUSE", ""))
    options = json.loads(sys.argv[1])
    modules: Any = sys.modules
    modules.update(dict.fromkeys(options.get("without", [])))  # as if they were not installed
    child = Child(options)
    for line in sys.stdin:
        number, verb, args = json.loads(line)
        threading.Thread(target=child.do, args=(number, verb, args), daemon=True).start()
    os._exit(0)  # The parent is gone.


if __name__ == "__main__":
    main()
