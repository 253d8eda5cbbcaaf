"""A federation is recorded while its hosts are killed and its links cut; its logs are sound, and
what its clients were told is in them.

`TUPELO_RECORDED_CHANGES=1000000` records as many, from a new seed, with fifteen kills and cuts.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.pipeline.ledger import changes_in, faults_in, promises_broken
from tupelo.lab.recording.record import Recorded, RecordingConfig, RecordingFailed, record

MANY = int(os.environ.get("TUPELO_RECORDED_CHANGES", "0"))
SEED = random.randrange(10**9) if MANY else 6

pytestmark = pytest.mark.timeout(0 if MANY else 300)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    print(f"the seed is {SEED}")
    folder = tmp_path_factory.mktemp("recording")
    times = 15 if MANY else 2
    recorded = record(RecordingConfig(folder, MANY or 2_000, kills=times, cuts=times, seed=SEED))
    return folder, recorded


@pytest.fixture(scope="module")
def changes(recording):
    return list(changes_in(recording[0]))


def test_it_has_what_was_asked_for(recording, changes):
    recorded: Recorded = recording[1]
    assert len(changes) >= (MANY or 2_000)
    assert recorded.kills.total() == (15 if MANY else 2)
    assert recorded.cuts.total() >= recorded.kills.total()
    kinds = {change["kind"] for change in changes}
    assert kinds >= {"written", "taken", "read", "moved", "expired", "prepared", "disengaged"}


def test_the_logs_are_sound_and_keep_what_was_promised(recording, changes):
    told = recording[1].told
    assert faults_in(changes) == []
    assert told.written and told.taken
    assert promises_broken(changes, told.written, told.taken) == []


def test_the_audit_finds_nothing(recording, spark):
    from tupelo.pipeline import changes as changes_of
    from tupelo.pipeline.jobs.audit import audit

    found = audit(changes_of(spark, *map(str, recording[0].iterdir())))
    assert found.collect() == []


def test_the_ledger_sees_what_is_wrong(changes):
    """A judge who never finds anything would be no judge."""
    taken = next(c for c in changes if c["kind"] == "taken" and c["space"] == "jobs" and at_home(c))
    last = {c["host"]: c["position"] for c in changes if c["space"] == "jobs"}
    elsewhere = next(host for host in last if host != taken["host"])
    again = {**taken, "position": last[taken["host"]] + 1}
    copied = {**taken, "kind": "written", "host": elsewhere, "position": last[elsewhere] + 1}
    assert "where it is not" in " ".join(faults_in([*changes, again]))
    assert "nobody gave it back" in " ".join(faults_in([*changes, copied]))
    assert "comes after" in " ".join(faults_in([c for c in changes if c is not taken]))
    assert promises_broken(changes, {"nobody": [1]}, {}) == [
        "written, and not in a log: ('nobody', 1)"
    ]


def at_home(change: dict[str, Any]) -> bool:
    """Is it the host itself that acts, or a client of it?"""
    return bool(change["agent"].rpartition("@")[2] == change["host"])


def test_it_goes_into_a_folder_of_its_own(tmp_path):
    (tmp_path / "notes").touch()
    with pytest.raises(RecordingFailed, match="is not empty"):
        record(RecordingConfig(tmp_path, 100))
