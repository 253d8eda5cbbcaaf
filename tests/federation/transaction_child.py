"""A coordinator in a process of its own: it moves a token from the first space to the second, in
one transaction, and kills itself at one step of the protocol.

    python transaction_child.py <step> <url> <url> [<url of the decider>]

Instead of a URL there may be "port:folder": a host in this process. The steps are counted, before
and after each; with a number that is never reached it gets through, and says "done".
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import tupelo
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.doors import Host
from tupelo.federation.transactions import (
    BranchElsewhere,
    DeciderElsewhere,
    DeciderHere,
    transaction,
)
from tupelo.space.shared import Branch

STEPS = [
    (BranchElsewhere, "prepare"),
    (Branch, "prepare"),
    (DeciderElsewhere, "record"),
    (DeciderHere, "record"),
    (BranchElsewhere, "commit"),
    (Branch, "commit"),
]
"""With two branches: 0 to 3 are the promises, 4 and 5 the decision, 6 to 9 the telling."""


def die_at(step: int) -> None:
    steps = itertools.count()

    def count() -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any) -> Any:
            count()
            answer = method(*args)
            count()
            return answer

        return call

    for owner, name in STEPS:
        setattr(owner, name, counted(getattr(owner, name)))


def space_at(url: str) -> Any:
    if url.startswith("tupelo:"):
        return tupelo.connect(url)
    port, _, folder = url.partition(":")
    return Host("ours", listen=int(port), path=folder).space("jobs")


def main() -> None:
    step, *urls = sys.argv[1:]
    die_at(int(step))
    giver, getter, *decider = spaces = [space_at(url) for url in urls]
    with transaction(*decider, giver, getter) as txn:
        token = giver.take(("token", int), wait=0, txn=txn)
        getter.write(token, txn=txn)
    for space in spaces:
        if isinstance(space, RemoteSpace):
            space.close()
    print("done", flush=True)


if __name__ == "__main__":
    main()
