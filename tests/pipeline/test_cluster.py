"""On a real cluster, a master and two workers as processes: order, and each row exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import until_true
from tests.federation.company import Company
from tests.pipeline import kills
from tests.pipeline.cluster import Cluster, driver
from tupelo.pipeline.sink import Sunk

ROWS = 600
CHILD = Path(__file__).with_name("cluster_child.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("spark"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def done(cluster, tmp_path_factory):
    """What the driver has answered, and the hosts as they are after it."""
    folder = tmp_path_factory.mktemp("hosts")
    company = Company()
    child: Any = None
    try:
        ada = company.host("ada", path=folder / "ada", heartbeat=1.0)
        ben = company.host("ben", path=folder / "ben", heartbeat=1.0, peers=[ada.address])
        until_true(lambda: ada.engaged and ben.engaged)
        for host, first in ((ada, 0), (ben, ROWS)):
            jobs = host.space("jobs").here
            jobs.write_all([("job", n) for n in range(first, first + ROWS)])
        asked = {
            "master": cluster.url,
            "source": ada.url + "jobs",
            "sink": ben.url + "done",
            "checkpoint": str(folder / "checkpoint"),
            "rows": 250,
        }
        sunk = ben.space("done")
        child = driver(CHILD, folder / "driver.log", json.dumps(asked))
        answer = json.loads(child.hear("answer: (.*)\n")[1])
        yield SimpleNamespace(**answer, ada=ada, ben=ben, sunk=sunk)
    finally:
        if child is not None:
            child.kill()
        company.close()


def test_workers_find_this_package(done):
    assert len({folder for folder, _ in done.packages}) == 2
    for folder, file in done.packages:
        assert file.startswith(folder), "it was not sent to them"


def test_a_federation_is_read_by_the_workers_and_has_an_order(done):
    assert done.tasks == 4
    assert done.order.keys() == {done.ada.id, done.ben.id}
    for host, first in ((done.ada, 0), (done.ben, ROWS)):
        places = range(1, ROWS + 1)
        assert done.order[host.id] == [[place, place, first + place - 1] for place in places]


def test_a_stream_writes_each_row_once_also_if_a_batch_is_replayed(done):
    entries = done.sunk.read_all(("sunk", int, int))
    assert sorted(entries) == [("sunk", n, n + 1) for n in range(ROWS)]
    batches = {sunk.batch for sunk in done.sunk.read_all(Sunk())}
    assert max(batches) == 2


def test_nothing_is_lost_or_repeated_if_a_worker_a_host_and_the_driver_are_killed(
    cluster, tmp_path
):
    victims = ["worker", "sink", "driver"]
    outcome = kills.run(cluster, tmp_path, rows=2_000, batch=400, victims=victims, seed=6)
    assert (outcome.missing, outcome.repeated, outcome.misplaced) == (0, 0, 0)
