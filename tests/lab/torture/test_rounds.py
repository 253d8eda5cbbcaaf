"""Short rounds of all models, as `make test` runs them; and bugs that are planted in real hosts and
clients, to see that a round finds them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tupelo
from tupelo.lab.torture import journal
from tupelo.lab.torture.journal import run_journal
from tupelo.lab.torture.round import RoundConfig, check_again, run_round

if sys.platform == "win32":
    pytest.skip("needs signals to stop and kill processes", allow_module_level=True)

PLANTED = str(Path(__file__).with_name("planted.py"))


@pytest.mark.parametrize(
    ("models", "hosts", "tls"),
    [
        (("space", "linda", "javaspaces", "pubsub"), 3, False),
        (("xvsm", "melon", "event-heap", "lime"), 0, True),
    ],
)
def test_every_client_was_told_what_is_so(tmp_path, models, hosts, tls):
    plan = RoundConfig(
        tmp_path / "round",
        models,
        seed=1,
        hosts=hosts,
        tls=tls,
        faults=6,
        operations=150,
        operations_max=150,
        client_processes=1,
    )
    result = run_round(plan)
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.operations["ok"] >= 50
    assert sum(result.faults.values()) >= 6


def test_planted_bugs_are_found(tmp_path):
    """A host gives entries twice; clients lose some on the way, and are told that transactions were
    aborted that are committed."""
    plan = RoundConfig(
        tmp_path / "round",
        ("space",),
        seed=2,
        hosts=1,
        faults=0,
        operations=120,
        client_processes=1,
        patience_seconds=0,
        host_command=(sys.executable, PLANTED, "twice", "tupelo"),
        worker_command=(sys.executable, PLANTED, "told wrong,lost", "worker"),
    )
    violations = run_round(plan).violations
    assert {violation.kind for violation in violations} >= {"taken twice", "told wrong", "lost"}
    assert list(map(str, check_again(plan.folder))) == list(map(str, violations))


def test_what_was_acknowledged_outlives_a_loss_of_power(tmp_path):
    result = run_journal(RoundConfig(tmp_path / "round", ("journal",), seed=1, faults=12))
    assert not result.violations, "\n".join(map(str, result.violations))
    assert sum(result.faults.values()) == 12


def test_a_disk_that_loses_what_was_synced_is_found_out(tmp_path, monkeypatch):
    def lose_power(image: Path, kind: str, rng: object) -> None:
        wal = journal.wal_of(image / journal.FILE)
        wal.write_bytes(wal.read_bytes()[: journal.WAL_HEADER.size])

    monkeypatch.setattr(journal, "lose_power", lose_power)
    result = run_journal(RoundConfig(tmp_path / "round", ("journal",), seed=1, faults=1_000))
    assert {violation.kind for violation in result.violations} == {"lost"}


def test_the_frames_of_a_write_ahead_log_are_counted(tmp_path):
    file = tmp_path / "space.tupelo"
    with tupelo.Space("space", path=file, durability="full") as space:
        counts = []
        for number in range(3):
            space.write(("job", number))
            wal = journal.wal_of(file).read_bytes()
            _, frames, size = journal.count_frames(wal)
            counts.append(frames)
            assert len(wal) >= journal.WAL_HEADER.size + frames * size
    assert counts == sorted(set(counts)), "each commit adds frames"
