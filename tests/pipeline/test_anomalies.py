"""Anomalies: what a stream finds in a log and writes to a space, once."""

from __future__ import annotations

from pathlib import Path

import pytest

import tupelo
from tupelo import ManualClock
from tupelo.errors import BadArgument
from tupelo.pipeline.anomalies import GROWS, QUIET, SLOW, Anomaly, Limits, watch

LIMITS = Limits(seconds=10, grows=15, quiet=30, slow=5.0)


def use(path: Path, clock: ManualClock, begin: bool) -> None:
    """A quiet time, then a backlog that grows, late takes, and a worker that stops."""
    with tupelo.Space("jobs", path=path, agent="me", clock=clock, log_keep="all") as space:
        if begin:
            for n in range(20):  # All is well: one written and taken each second.
                space.write(("job", n))
                clock.advance(1)
                space.take(("job", n))
            space.write_all([("job", n) for n in range(25)])
            clock.advance(8)
            space.take_all(("job", int), limit=5)
            clock.advance(100)
        space.write(("tick", 1))


@pytest.mark.usefixtures("spark")
def test_a_stream_tells_each_anomaly_once(spark, tmp_path):
    path, clock = tmp_path / "jobs.tupelo", ManualClock(1_000_000_000)
    use(path, clock, True)
    with tupelo.Host("watch", listen="127.0.0.1:0") as host:
        alarms = host.space("alarms")

        def run() -> list[Anomaly]:
            changes = spark.readStream.format("tupelo").load(str(path))
            url = f"{host.url}alarms"
            watch(changes, url, str(tmp_path / "c"), LIMITS, once=True).awaitTermination()
            return sorted(alarms.read_all(Anomaly()), key=lambda one: str(one.what))

        found = run()
        assert [(one.what, one.space, one.subject) for one in found] == [
            (GROWS, "jobs", "job"),
            (SLOW, "jobs", "job"),
            (QUIET, "jobs", "me"),
        ]
        grows, slow, quiet = found
        assert (grows.value, grows.limit) == (19.0, 15.0)
        assert (slow.value, quiet.value) == (10.0, 30.0)
        assert quiet.since and quiet.since.timestamp() == 1_000_000_028
        assert quiet.until and quiet.until.timestamp() == 1_000_000_058
        clock.advance(100)
        use(path, clock, False)
        assert run() == found  # The second run finds nothing new, and tells nothing again.


def test_limits_are_checked():
    with pytest.raises(BadArgument, match="seconds= must be more than 0"):
        Limits(seconds=0)
    with pytest.raises(BadArgument, match="one of grows, quiet and slow"):
        Limits(grows=None, quiet=None)
