"""The laws: what real hosts and spaces do keeps them, and planted faults are found and named."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import tupelo
from tests.federation.company import Company
from tests.pipeline.jobs.recorded import Row, rows_of, table_of
from tests.pipeline.jobs.test_contacts import met
from tests.pipeline.jobs.test_jobs import Logs
from tests.pipeline.jobs.test_owner import stays_of
from tupelo.errors import BadArgument
from tupelo.pipeline import jobs
from tupelo.values.change import ENDINGS


def broken(table: Any, *laws: str) -> list[tuple[str, str | None, int | None]]:
    """The law, who, and the number of the entry or the first position."""
    found = jobs.conformance(table, laws=laws or None).collect()
    return sorted(
        (row["law"], row["who"], row["first"] if row["n"] is None else row["n"]) for row in found
    )


@pytest.fixture
def sessions(tmp_path: Path) -> list[Row]:
    """Two sessions that get what others write, in the order of its writing."""
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", log_reads=True, agent="me") as space:
        one, two, rng = space.session(), space.session(), Random(2)
        for n in range(20):
            space.write(("job", n))
            for session in rng.choices([one, two], k=2):
                session.read(("job", int), wait=0)
        while one.read(("job", int), wait=0) or two.read(("job", int), wait=0):
            pass
        with space.transaction() as txn:
            space.take(("job", 0), txn=txn)
            space.write_all([("note", n) for n in range(3)], txn=txn)
    return rows_of(tmp_path / "jobs.tupelo")


def test_random_runs_keep_the_laws_of_every_space(changes):
    assert broken(changes) == []


def test_sessions_keep_all_laws_but_of_orders_that_nobody_promised(spark, sessions):
    assert sum(row["kind"] == "read" for row in sessions) == 40
    assert broken(table_of(spark, sessions), *jobs.LAWS) == []


def test_hosts_keep_the_laws(spark, tmp_path, until):
    company = Company()
    ada = company.host("ada", path=tmp_path / "ada")
    ben = company.host("ben", path=tmp_path / "ben", peers=[ada.address])
    until(lambda: ada.engaged and ben.engaged)
    ada.space("jobs").write(("job", 1))
    company.close()
    table = table_of(spark, rows_of(tmp_path / "ada", tmp_path / "ben"))
    assert jobs.presence(table).count() == 2
    assert broken(table) == []


def test_a_session_that_gets_an_entry_twice_is_found(spark, sessions):
    read = next(row for row in sessions if row["kind"] == "read")
    end = max(row["position"] for row in sessions)
    again = [{**read, "position": end + 1}]
    late = [("isolation", "me", read["n"])]  # It is of the entry that was taken.
    found = broken(table_of(spark, [*sessions, *again]))
    assert found == [*late * (read["n"] == 1), ("once per session", "me", read["n"])]


def test_what_is_got_before_the_commit_or_after_the_end_is_found(spark, sessions):
    note = next(row for row in sessions if row["fields"] == '["note",1]')
    last = max(row["position"] for row in sessions)
    early = {**note, "kind": "read", "txn": None, "position": 2, "agent": "eve"}
    gone = next(row for row in sessions if row["kind"] == "taken")
    late = {**gone, "kind": "read", "txn": None, "position": last + 1, "agent": "eve"}
    assert broken(table_of(spark, [*sessions, early, late])) == [
        ("isolation", "eve", late["n"]),
        ("isolation", "eve", early["n"]),
    ]
    own = {**early, "txn": note["txn"]}  # In its own transaction it may be read.
    back = [{**late, "kind": "returned"}, {**late, "position": last + 2}]
    assert broken(table_of(spark, [*sessions, own, *back])) == []


def test_a_transaction_with_others_in_between_is_found(spark, sessions):
    txn = next(row["txn"] for row in sessions if row["kind"] == "taken")
    own = sorted(row["position"] for row in sessions if row["txn"] == txn)
    assert own == list(range(own[0], own[0] + 4))
    torn = [{**row, "txn": None} if row["position"] == own[1] else row for row in sessions]
    assert broken(table_of(spark, torn)) == [("isolation", txn, own[0])]


def test_order_per_source_and_total_order(spark):
    logs = Logs()
    entries = [logs.write("a", n, n) for n in range(1, 7)]
    for who, order in (("ann", (1, 2, 3, 4, 5, 6)), ("bob", (1, 2, 4, 3)), ("carl", (2, 3, 5))):
        for n in order:
            logs.add("a", 10, "read", agent=who, **entries[n - 1])
    table = table_of(spark, logs.rows)
    assert broken(table) == []
    assert broken(table, "fifo per source") == [("fifo per source", "bob", 3)]
    assert broken(table, "total order") == [("total order", "bob", 3)]
    for row in logs.rows:  # Of two writers there is no order per source, and a total one.
        row["origin"] = "ab"[row["n"] % 2]
    table = table_of(spark, logs.rows)
    assert broken(table, "fifo per source") == []
    assert broken(table, "total order") == [("total order", "bob", 3)]
    with pytest.raises(BadArgument, match="laws= must be some of isolation"):
        jobs.conformance(table, laws=["gravity"])


def test_engagements_that_one_host_alone_knows_are_found(spark):
    logs = Logs()
    for host in "abc":
        met(logs, host, 0, "engaged", host)
    for host, peer in ("ab", "ba", "ac"):
        met(logs, host, 10, "engaged", peer)
    met(logs, "b", 20.0, "disengaged", "a")
    met(logs, "a", 20.5, "disengaged", "b")
    met(logs, "c", 30, "disengaged", "b")
    for host in "abc":
        met(logs, host, 60, "disengaged", host)
    assert broken(table_of(spark, logs.rows)) == [
        ("atomic engagement", "b", 2),
        ("atomic engagement", "c", 3),
    ]


def test_faults_that_are_planted_at_random_are_found_and_named(spark, rows):
    rng, expected, planted = Random(9), set[tuple[str, str, str | None]](), list[Row]()
    for place, space in enumerate(sorted({row["space"] for row in rows})):
        own = [dict(row) for row in rows if row["space"] == space]
        end = max(row["position"] for row in own)
        stays = [stay for (_, name, _), stay in stays_of(rows).items() if name == space]
        in_txn = [row for row in own if row["kind"] == "written" and row["txn"]]
        if place % 4 == 0:  # read before its commit
            written = rng.choice([row for row in in_txn if row["position"] > 1])
            new = {"kind": "read", "txn": None, "position": rng.randrange(1, written["position"])}
            own.append({**written, **new, "agent": "eve"})
            expected.add((space, "isolation", "eve"))
        elif place % 4 == 1:  # taken when it is gone
            gone = [stay[-1] for stay in stays if stay[-1]["kind"] in ENDINGS]
            new = {"kind": "taken", "txn": None, "position": end + 1, "agent": "eve"}
            own.append({**rng.choice(gone), **new})
            expected.add((space, "isolation", "eve"))
        elif place % 4 == 2:  # somebody else's within a transaction
            many = [
                [row for row in in_txn if row["txn"] == txn] for txn in {r["txn"] for r in in_txn}
            ]
            torn = rng.choice([some for some in sorted(many, key=str) if len(some) > 2])
            expected.add((space, "isolation", torn[1]["txn"]))
            torn[1]["txn"] = None
        else:  # one session reads it again
            there = rng.choice([stay[0] for stay in stays if len(stay) == 1])
            for more in (1, 2):
                read = {"kind": "read", "txn": None, "position": end + more, "session": "s"}
                own.append({**there, **read, "agent": "eve"})
            expected.add((space, "once per session", "eve"))
        planted += own
    found = jobs.conformance(table_of(spark, planted)).collect()
    assert {(row["space"], row["law"], row["who"]) for row in found} == expected
    assert len(found) == len(expected)
