"""`tupelo` and workers of a round, with bugs: `planted.py BUG,... tupelo|worker ARGUMENT...`."""

from __future__ import annotations

import itertools
import sys
from typing import Any

from tupelo.apps.cli import main as tupelo
from tupelo.errors import CannotCommit
from tupelo.federation.client.handles import RemoteSpaceTransaction
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.serving import ClientServer
from tupelo.lab.torture.worker import main as work


def give_twice() -> None:
    """A host takes the word of a client that it has received an entry as if it had not."""

    def confirm(self: Any, message: Any) -> None:
        for call in message.calls:
            self._given.give_back(call)

    ClientServer.confirm = confirm  # type: ignore[method-assign]


def lose() -> None:
    """Every fifth job is acknowledged, and never sent to the host."""
    write = RemoteSpace._write
    jobs = itertools.count(1)

    def written(self: Any, entry: Any, *args: Any) -> Any:
        if entry[0] == "job" and next(jobs) % 5 == 0:
            return None
        return write(self, entry, *args)

    RemoteSpace._write = written  # type: ignore[method-assign]


def tell_wrong() -> None:
    """A client is told that its transaction was aborted, and it was committed."""
    commit = RemoteSpaceTransaction.commit

    def committed(self: Any) -> None:
        commit(self)
        raise CannotCommit(self.id, "the host", "it says so")

    RemoteSpaceTransaction.commit = committed  # type: ignore[method-assign]


BUGS = {"twice": give_twice, "lost": lose, "told wrong": tell_wrong}

if __name__ == "__main__":
    _, bugs, what, *arguments = sys.argv
    sys.argv = [what, *arguments]
    for bug in bugs.split(","):
        BUGS[bug]()
    if what == "tupelo":
        tupelo()
    else:
        work(arguments[0])
