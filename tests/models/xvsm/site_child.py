"""Programs with containers, and programs that use them, which may be killed at any moment.

Orders come as lines of JSON on the standard input, and each is a process of its own that is forked
here. What they say are lines of JSON too, each of which begins with the name of who says it:

    [name, "born", pid]               it was forked
    [name, "ready", uri]              a site is offered
    [name, "writing"|"wrote"|"doubt"|"not", number]
                                      about to write; it was written; may have been; was not
    [name, "taking"], [name, "took", container, number]
    [name, "moved", number]           from one container to another, in a transaction
    [name, "failed", text]            what must not happen
    [name, "dead", status]            it has ended
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from typing import Any

import tupelo
from tupelo.errors import CountNotMet, PeerLost, TransactionError
from tupelo.federation.spaces.hosted import Doubt
from tupelo.models.xvsm import (
    INFINITE,
    INFINITE_TIMEOUT,
    Aspect,
    Capi,
    FifoCoordinator,
    FifoSelector,
    KeyCoordinator,
    KeySelector,
    Point,
    Request,
)
from tupelo.models.xvsm import Entry as Keyed

CONTAINERS = ("plain", "audited")
PATIENCE_SECONDS = 0.2


class Audit(Aspect):
    """Every take from a container is on record in another one, or neither is done."""

    async def post_take(self, request: Request) -> None:
        log = await request.capi.lookup_container(None, None, "log")
        await request.capi.write(log, 0, request.transaction, *request.result)


def open_site(path: str | None) -> Capi:
    """The containers of the program, as its last life has left them."""
    capi = Capi(path)
    known = {row[1] for row in capi.embedded.rows()}
    for name in (*CONTAINERS, "moved", "log"):
        if name not in known:
            kinds = [FifoCoordinator(), *([KeyCoordinator()] if name == "moved" else [])]
            capi.create_container(None, None, name, INFINITE, *kinds)
    capi.add_aspect(capi.lookup_container(None, None, "audited"), Point.POST_TAKE, Audit())
    return capi


class Child:
    """One process."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name = name
        self._options = options
        self._chance = random.Random(options.get("seed", 0))
        self._over = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._over.set())

    def say(self, *words: Any) -> None:
        os.write(1, (json.dumps([self._name, *words]) + "\n").encode())

    def run(self) -> None:
        try:
            getattr(self, self._options["role"])()
        except BaseException as error:
            self.say("failed", repr(error))

    def site(self) -> None:
        options = self._options
        doubt = Doubt(options["doubt"])
        with (
            tupelo.Host("site", listen=options["port"], heartbeat=0.5, doubt=doubt) as host,
            open_site(options["path"]) as capi,
        ):
            self.say("ready", capi.offer(host))
            self._over.wait()

    def writer(self) -> None:
        number = self._options["first"]
        with Capi(site=self._options["site"]) as capi:
            while not self._over.is_set():
                number += 1
                self.say("writing", number)
                try:
                    cref = f"{self._options['site']}/{self._chance.choice(CONTAINERS)}"
                    capi.write(cref, INFINITE_TIMEOUT, None, number)
                    self.say("wrote", number)
                except PeerLost as lost:
                    self.say("doubt" if lost.in_doubt else "not", number)

    def taker(self) -> None:
        with Capi(site=self._options["site"]) as capi:
            while not self._over.is_set():
                container = self._chance.choice(CONTAINERS)
                cref = f"{self._options['site']}/{container}"
                self.say("taking")
                try:
                    (number,) = capi.take(cref, PATIENCE_SECONDS, None, FifoSelector())
                    self.say("took", container, number)
                except CountNotMet:
                    self.say("took", container, None)
            capi.lookup_container(None, None, "plain")  # The site knows what was received.

    def mover(self) -> None:
        with Capi(site=self._options["site"]) as capi:
            while not self._over.is_set():
                try:
                    tx = capi.create_transaction(None, 5)
                    plain = f"{self._options['site']}/plain"
                    (number,) = capi.take(plain, PATIENCE_SECONDS, tx, FifoSelector())
                    moved = f"{self._options['site']}/moved"
                    capi.write(moved, 0, tx, Keyed(number, KeySelector(number)))
                    capi.commit_transaction(tx)
                    self.say("moved", number)
                except (CountNotMet, PeerLost, TransactionError):
                    self.say("moved", None)


def main(kind: type[Child]) -> None:
    """Fork a child of this kind for each order; say who has died."""
    names: dict[int, str] = {}

    def reap(*_: object) -> None:
        while names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            os.write(1, (json.dumps([names.pop(pid), "dead", status]) + "\n").encode())

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        name, options = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            kind(name, options).run()
            os._exit(0)
        names[pid] = name
        os.write(1, (json.dumps([name, "born", pid]) + "\n").encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for pid in list(names):  # The parent is gone.
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(Child)
