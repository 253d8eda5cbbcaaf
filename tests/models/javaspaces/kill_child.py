"""A host, and JavaSpaces programs that use it over a socket; any of them may be killed.

It is driven as `tests/models/xvsm/site_child.py` is, and says the same things.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # It is started as a program.

import tupelo
from tests.models.xvsm.site_child import PATIENCE_SECONDS, Child, main
from tupelo.errors import PeerLost, TransactionError
from tupelo.models.javaspaces import FOREVER, JavaSpace05, TransactionManager

SPACE = "jobs"


@tupelo.entry("tests.kill.Job")
@dataclass
class Job:
    number: int | None = None


@tupelo.entry("tests.kill.Done")
@dataclass
class Done:
    number: int | None = None


class JavaChild(Child):
    """One process."""

    def site(self) -> None:
        options = self._options
        doubt = tupelo.Doubt(options["doubt"])
        with tupelo.Host(
            "site", listen=options["port"], path=options["path"], heartbeat=0.5, doubt=doubt
        ) as host:
            host.space(SPACE)
            self.say("ready", host.url.rstrip("/"))
            self._over.wait()

    def _open(self) -> JavaSpace05:
        return JavaSpace05(tupelo.connect(f"{self._options['site']}/{SPACE}"))

    def writer(self) -> None:
        number = self._options["first"]
        with self._open() as space:
            while not self._over.is_set():
                number += 1
                self.say("writing", number)
                try:
                    space.write(Job(number), None, FOREVER)
                    self.say("wrote", number)
                except PeerLost as lost:
                    self.say("doubt" if lost.in_doubt else "not", number)

    def taker(self) -> None:
        with self._open() as space:
            while not self._over.is_set():
                self.say("taking")
                job = space.take(Job(), None, PATIENCE_SECONDS)
                self.say("took", "plain", None if job is None else job.number)
            space.read_if_exists(Job())  # The host knows what was received.

    def mover(self) -> None:
        with self._open() as space, TransactionManager() as manager:
            while not self._over.is_set():
                try:
                    txn = manager.create(5).transaction
                    job = space.take(Job(), txn, PATIENCE_SECONDS)
                    if job is not None:
                        space.write(Done(job.number), txn, FOREVER)
                    txn.commit()
                    self.say("moved", None if job is None else job.number)
                except (PeerLost, TransactionError):
                    self.say("moved", None)


if __name__ == "__main__":
    main(JavaChild)
