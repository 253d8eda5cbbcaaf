"""Streams that last: over an upgrade of Tupelo, and over a month of trimming, sealing, restarts and
hosts that come and go."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.federation.company import Company, await_space, port_number
from tupelo import pipeline
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import MANIFEST, seal

KEPT = Path(__file__).with_name("data") / "checkpoint"
"""The checkpoint of a query that read ten rows a batch from two logs, version 0.1. Its driver ended
in the fourth batch, which it had planned and not committed."""

Rows = list[tuple[Any, ...]]


class Reading:
    """A query with a checkpoint, that may be ended and begun again; the rows of each batch."""

    def __init__(self, spark: Any, checkpoint: Path, *paths: object, **options: str) -> None:
        self.batches: dict[int, Rows] = {}
        self._checkpoint = checkpoint
        given = {"columns": "host,space,position", **options}
        source = spark.readStream.format("tupelo").options(**given)
        self._table = source.option("paths", json.dumps([str(path) for path in paths])).load()

    def _keep(self, frame: Any, number: int) -> None:
        self.batches[number] = [tuple(row) for row in frame.collect()]

    def begin(self, **trigger: Any) -> Any:
        writer = self._table.writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def drain(self) -> None:
        self.begin(availableNow=True).awaitTermination()

    @property
    def rows(self) -> Rows:
        return [row for _, batch in sorted(self.batches.items()) for row in batch]


def ids(checkpoint: Path) -> dict[str, str]:
    """The ids of the logs that a checkpoint has met, by their names."""
    last = max((checkpoint / "offsets").iterdir(), key=lambda file: int(file.name))
    offset = json.loads(last.read_text().splitlines()[-1])
    return {name: log["id"] for name, log in offset.items()}


def sealed(folder: Path, space: str, count: int, life: str) -> None:
    """Seal a log with this id in this archive: as many changes as entries."""
    path = folder.with_name(f"{space}.tupelo")
    with tupelo.Space(space, path=path, agent="me") as made:
        made.write_all([(space, n) for n in range(count)])
        seal(JournalLog(path), folder)
    manifest = folder / "host=me" / f"space={space}" / MANIFEST
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "id": life}))


def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(spark, tmp_path):
    shutil.copytree(KEPT, tmp_path / "checkpoint")
    known = ids(KEPT)
    sealed(tmp_path / "archive", "jobs", 40, known["me/jobs"])
    sealed(tmp_path / "archive", "notes", 7, known["me/notes"])
    reading = Reading(spark, tmp_path / "checkpoint", tmp_path / "archive", maxRows="10")
    reading.drain()
    before = {("jobs", n) for n in range(1, 26)} | {("notes", n) for n in range(1, 6)}
    replayed = sorted(row[1:] for row in reading.batches.pop(3))
    assert replayed == [("jobs", n) for n in range(26, 31)]  # as it had been planned
    assert sorted(row[1:] for row in reading.rows) == [
        *(("jobs", n) for n in range(31, 41)),
        *(("notes", n) for n in range(6, 8)),
    ]
    assert not before & {row[1:] for row in reading.rows}
    assert [*reading.batches] == [4, 5]


class Fleet:
    """Hosts that share a clock and an archive, and keep little of their logs themselves."""

    def __init__(self, company: Company, folder: Path) -> None:
        self._company = company
        self._folder = folder
        self._ports: dict[str, int] = {}
        self.clock = tupelo.ManualClock(1_793_491_200.0)
        self.archive = folder / "archive"
        self.archive.mkdir()
        self.present: dict[str, Any] = {}
        self.ids: dict[str, str] = {}

    def join(self, name: str) -> None:
        peers = [host.address for host in self.present.values()]
        host = self._company.host(
            name,
            space=False,
            listen=self._ports.get(name, 0),
            path=self._folder / name,
            clock=self.clock,
            peers=peers,
            archive=tupelo.Archiving(self.archive, changes=50, seconds=3_600.0),
        )
        host.space("jobs", log_keep=20)
        for other in self.present.values():
            await_space(other, host.id)
            await_space(host, other.id)
        self._ports[name] = port_number(host.address)
        self.ids[name] = host.id
        self.present[name] = host

    def leave(self, name: str) -> None:
        self.present.pop(name).close()

    def live(self, days: int) -> None:
        """At every host jobs are written, some are taken, and the rest expire after two days."""
        for _ in range(days):
            for host in self.present.values():
                jobs = host.space("jobs").here
                jobs.write_all([("job", n) for n in range(10)], lease=2 * 86_400)
                jobs.take_all(("job", int), limit=4)
            self.clock.advance(86_400)


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


def test_a_month_of_trimming_restarts_and_hosts_that_come_and_go(spark, company, tmp_path):
    fleet = Fleet(company, tmp_path)
    for name in ("ada", "ben"):
        fleet.join(name)
    fleet.live(5)
    url = fleet.present["ada"].url + "jobs"
    reading = Reading(
        spark, tmp_path / "checkpoint", url, archive=str(fleet.archive), federation="true"
    )
    query = reading.begin()
    query.processAllAvailable()
    fleet.join("cleo")
    fleet.live(5)
    query.processAllAvailable()
    fleet.live(3)
    fleet.leave("ben")  # with changes that were not read
    fleet.live(5)
    query.processAllAvailable()
    assert {host for host, *_ in reading.rows} == {*fleet.ids.values()}
    query.stop()
    fleet.live(5)
    fleet.leave("cleo")
    fleet.leave("ada")
    for name in ("ada", "ben", "cleo"):
        fleet.join(name)
    fleet.live(5)
    query = reading.begin()
    query.processAllAvailable()
    fleet.leave("cleo")
    fleet.live(2)
    query.processAllAvailable()
    query.stop()
    reading.drain()
    for name in list(fleet.present):
        fleet.leave(name)
    rows = reading.rows
    sums = Counter(row[0] for row in rows)
    for name, host in fleet.ids.items():
        found = [position for at, _, position in rows if at == host]
        assert found == [*range(1, sums[host] + 1)], name
        (file,) = (tmp_path / name).glob("jobs*.tupelo")
        first, last = JournalLog(file).bounds()
        assert last == sums[host] and first > 100, name  # trimmed, and nothing was missed
    assert pipeline.changes(spark, str(fleet.archive), space="jobs").count() == len(rows)
