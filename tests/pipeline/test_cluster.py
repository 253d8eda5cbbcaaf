"""On a real cluster, a master and two workers as processes: order, and each row exactly once.

All of it is one run, with as few JVMs as it needs: each takes seconds to start.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import until_true
from tests.federation.company import Company
from tests.pipeline import kills
from tests.pipeline.cluster import Cluster, bare_python

ROWS = 600


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What the driver has answered about a federation of two hosts, on workers that have only the
    wheel, and what then became of its stream, while a worker, a host and the driver were killed."""
    folder = tmp_path_factory.mktemp("hosts")
    python = bare_python(tmp_path_factory.mktemp("python"))
    company = Company()
    cluster = None
    try:
        ada = company.host("ada", path=folder / "ada", heartbeat=1.0)
        ben = company.host("ben", path=folder / "ben", heartbeat=1.0, peers=[ada.address])
        until_true(lambda: ada.engaged and ben.engaged)
        for host, first in ((ada, 0), (ben, ROWS)):
            jobs = host.space("jobs").here
            jobs.write_all([("job", n) for n in range(first, first + ROWS)])
        cluster = Cluster(tmp_path_factory.mktemp("spark"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", str(python))
            outcome = kills.run(
                cluster,
                folder,
                rows=1_200,
                batch=300,
                victims=["worker", "sink", "driver"],
                seed=6,
                table=ada.url + "jobs",
            )
        yield SimpleNamespace(**outcome.answer, ada=ada, ben=ben, python=python, outcome=outcome)
    finally:
        if cluster is not None:
            cluster.close()
        company.close()


def test_workers_need_the_wheel_and_no_extras(done):
    assert len({folder for folder, *_ in done.packages}) == 2
    for folder, file, python, has_extras in done.packages:
        assert file.startswith(folder), "it was sent to them"
        assert python == str(done.python) and not has_extras


def test_a_federation_is_read_by_the_workers_and_has_an_order(done):
    assert done.tasks == 4
    assert done.order.keys() == {done.ada.id, done.ben.id}
    for host, first in ((done.ada, 0), (done.ben, ROWS)):
        places = range(1, ROWS + 1)
        assert done.order[host.id] == [[place, place, first + place - 1] for place in places]


def test_nothing_is_lost_or_repeated_if_a_worker_a_host_and_the_driver_are_killed(done):
    outcome = done.outcome
    assert (outcome.missing, outcome.repeated, outcome.misplaced) == (0, 0, 0)
