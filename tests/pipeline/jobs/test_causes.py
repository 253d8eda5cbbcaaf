"""Coordination, chains, contention and leases, against plain computations on random logs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

import tupelo
from tests.pipeline.jobs.recorded import Row, faults_in, rows_of, table_of
from tests.pipeline.jobs.test_jobs import Logs
from tests.pipeline.jobs.test_owner import answers, attempts_of, kind_of, stays_of, worker_of
from tupelo.pipeline import jobs


def entry_of(row: Row) -> tuple[str, str, int]:
    return row["space"], row["origin"], row["n"]


def got_in(rows: list[Row]) -> list[Row]:
    """The reads, and the takes that were not returned."""
    found = []
    for stay in stays_of(rows).values():
        last = max([row["position"] for row in stay if row["kind"] == "returned"], default=0)
        found += [
            row
            for row in stay
            if row["kind"] == "read" or (row["kind"] == "taken" and row["position"] > last)
        ]
    return found


def named(names: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({*filter(None, names)})) or None


def test_coordination(changes, rows):
    edges: Any = defaultdict(lambda: defaultdict(set))
    writers: Any = defaultdict(set)
    readers: Any = defaultdict(lambda: defaultdict(str))
    for row in rows:
        if row["kind"] == "written" and row["agent"] == row["origin"]:
            writers[row["space"], kind_of(row), row["origin"]].add(row["agent_name"])
    for row in got_in(rows):
        key = row["space"], kind_of(row), row["origin"], row["agent"]
        edges[key][row["kind"]].add(entry_of(row))
        readers[key][entry_of(row)] = max(row["agent_name"] or "", readers[key][entry_of(row)])
        edges[key]["times"].add(row["time"])
    found = answers(jobs.coordination(changes), "space", "entry_kind", "writer", "reader")
    assert found.keys() == edges.keys()
    for key, row in found.items():
        edge, times = edges[key], edges[key]["times"]
        assert (row["read"], row["taken"]) == (len(edge["read"]), len(edge["taken"]))
        assert row["entries"] == len(edge["read"] | edge["taken"])
        assert (row["since"], row["until"]) == (min(times), max(times))
        span = (max(times) - min(times)).total_seconds()
        assert row["per_second"] == (pytest.approx(row["entries"] / span) if span else None)
        assert row["writer_name"] == named(writers[key[:3]])
        assert row["reader_name"] == named(readers[key].values())


def chains_of(rows: list[Row]) -> dict[Any, tuple[int, int, float]]:
    """By entry: how many followed, the steps and seconds to the last of them."""
    first: dict[Any, Row] = {}
    for row in rows:
        if row["kind"] == "written":
            first[entry_of(row)] = min(first.get(entry_of(row), row), row, key=lambda r: r["time"])
    taken = defaultdict(list)
    for row in rows:
        own = first.get(entry_of(row)) if row["kind"] == "taken" else None
        if own is not None and row["txn"] and ":" not in row["txn"] and own["txn"] != row["txn"]:
            taken[row["txn"]].append((own["time"], entry_of(row)))
    up = {e: max(taken[row["txn"]])[1] for e, row in first.items() if taken.get(row["txn"])}
    at = {(r["host"], r["space"], r["arrival"]): r for r in rows if r["kind"] == "written"}
    for entry, row in first.items():
        if row["txn"] and row["txn"].startswith("reaction:"):
            arrival = int(row["txn"].removeprefix("reaction:"))
            up[entry] = entry_of(at[row["host"], row["space"], arrival])
    ends: dict[Any, list[Any]] = defaultdict(list)
    for entry in up:
        root, steps = entry, 0
        while root in up:
            root, steps = up[root], steps + 1
        ends[root].append((first[entry]["time"], steps, entry))
    return {
        root: (len(some), max(some)[1], (max(some)[0] - first[root]["time"]).total_seconds())
        for root, some in ends.items()
    }


def test_chains(changes, rows):
    expected = chains_of(rows)
    found = answers(jobs.chains(changes), "space", "origin", "n")
    assert max(steps for _, steps, _ in expected.values()) > 1
    assert any((row["txn"] or "").startswith("reaction:") for row in rows)
    assert {key: (row["entries"], row["steps"]) for key, row in found.items()} == {
        key: some[:2] for key, some in expected.items()
    }
    for key, row in found.items():
        assert row["seconds"] == pytest.approx(expected[key][2])


def test_a_long_chain_goes_through_several_spaces(spark, tmp_path):
    names = ("orders", "bills")
    spaces = [tupelo.Space(name, path=tmp_path / f"{name}.tupelo", agent="me") for name in names]
    spaces[0].write(("order", 0))
    for n in range(50):
        here, there = spaces[n % 2], spaces[(n + 1) % 2]
        with tupelo.transaction(here, there) as txn:
            assert here.take((str, n), txn=txn)
            there.write(("order" if n % 2 else "bill", n + 1), txn=txn)
    for space in spaces:
        space.close()
    rows = rows_of(*(tmp_path / f"{name}.tupelo" for name in names))
    ((key, row),) = answers(jobs.chains(table_of(spark, rows)), "space", "origin", "n").items()
    assert key == ("orders", "me", 1)
    assert (row["entries"], row["steps"], row["entry_kind"]) == (50, 50, "order")
    steps = row["path"].split(" → ")
    assert steps[0] == "orders/order" and steps[-2:] == ["bills/bill", "orders/order"]
    assert len(steps) == 33  # The root, and the last 32.


def test_a_chain_of_reactions(spark, tmp_path):
    """To an entry that is there, to one of the same step, and to one that is never visible."""
    file = tmp_path / "work.tupelo"
    with tupelo.Space("work", path=file, agent="me") as space:
        space.write(("order", 1))

        def pass_on(entry, step):
            name, n = entry
            if name == "step":
                step.take(entry)
            if n < 5:
                step.write((("bill", "step")[n % 2], n + 1))

        space.react((str, int), pass_on)  # to the first order, and to what it writes
        space.write_all([("note", 5), ("order", 3)])
        with space.transaction() as txn:
            space.write(("order", 4), txn=txn)  # Only the transaction is in the log.
    rows = rows_of(file)
    written = [(row["fields"], row["txn"]) for row in rows if row["kind"] == "written"]
    assert written[:2] == [('["order",1]', None), ('["bill",3]', "reaction:1")]
    found = answers(jobs.chains(table_of(spark, rows)), "space", "origin", "n")
    paths = sorted(row["path"] for row in found.values())
    assert paths == ["work/order → work/bill", "work/order → work/bill → work/bill"]
    assert faults_in(jobs.audit(table_of(spark, rows))) == []


def test_contention(spark):
    logs = Logs()
    entries = [logs.write("a", 0, n) for n in range(1, 7)]
    gets = [("ann", 10, 8.0), ("bob", 11, 3.0), ("bob", 12, 0.0), ("carl", 13, 12.0)]
    for entry, (who, at, waited) in zip(entries, gets, strict=False):
        logs.add("a", at, "taken", agent=who, waited=waited, fields='["job",1]', **entry)
    found = answers(jobs.contention(table_of(spark, logs.rows)), "entry_kind", "worker")
    names = ("got", "waited", "contended", "rivals", "overtaken", "longest")
    assert {key[1]: tuple(row[name] for name in names) for key, row in found.items()} == {
        "ann": (1, 1, 1, 2, 0, 8.0),  # bob and carl waited
        "bob": (2, 1, 2, 1, 0, 3.0),
        "carl": (1, 1, 0, 0, 1, 12.0),  # ann and bob had begun later
    }


def test_contention_of_random_waits(spark):
    logs, rng = Logs(), Random(4)
    gets = []
    for n in range(1, 150):
        entry = logs.write("a", 0, n, fields=f'["{rng.choice("xy")}",{n}]')
        at, who = 1_000 + n * 7, rng.choice("pqr")
        waited = rng.choice([0.0, float(rng.randrange(1, 60)) + 0.5])
        logs.add("a", at, "taken", waited=waited, **{**entry, "agent": who})
        gets.append((json.loads(entry["fields"])[0], who, at - waited, at, waited))
    expected: dict[Any, list[Any]] = defaultdict(lambda: [0, 0, 0, 0, 0, 0.0])
    for kind, who, since, until, waited in gets:
        others = [other for other in gets if other[0] == kind]
        rivals = sum(o[4] > 0 and o[2] < until < o[3] for o in others)
        later = any(o[3] < until and o[2] > since for o in others)
        about = expected[kind, who]
        about[0] += 1
        about[1] += waited > 0
        about[2] += rivals > 0
        about[3] = max(about[3], rivals)
        about[4] += waited > 0 and later
        about[5] = max(about[5], waited)
    found = answers(jobs.contention(table_of(spark, logs.rows)), "entry_kind", "worker")
    names = ("got", "waited", "contended", "rivals", "overtaken", "longest")
    assert {key: [row[name] for name in names] for key, row in found.items()} == expected


def test_contention_counts_every_get(changes, rows):
    got = Counter(
        (row["space"], kind_of(row), *worker_of(row))
        for row in rows
        if row["kind"] in ("read", "taken")
    )
    found = answers(jobs.contention(changes), "space", "entry_kind", "worker", "worker_name")
    assert {key: row["got"] for key, row in found.items()} == got


def test_leases(changes, rows):
    names = ("leased", "renewed", "expired", "unseen", "bytes", "seconds", "undone", "lost_seconds")
    expected: dict[Any, Any] = defaultdict(lambda: dict.fromkeys(names, 0))
    for stay in stays_of(rows).values():
        kinds = [row["kind"] for row in stay]
        if "written" not in kinds:
            continue
        written = stay[kinds.index("written")]
        about = expected[written["space"], kind_of(written)]
        terms = [row for row in stay if row["kind"] in ("written", "renewed") and row["expires"]]
        about["leased"] += bool(terms) or "expired" in kinds
        about["renewed"] += kinds.count("renewed")
        if "expired" in kinds:
            about["expired"] += 1
            about["unseen"] += not {"read", "taken"} & {*kinds}
            about["bytes"] += written["bytes"]
            end = max(row["time"] for row in stay if row["kind"] == "expired")
            about["seconds"] += (end - written["time"]).total_seconds()
    for row in attempts_of(rows):
        if row["outcome"] == "released":
            about = expected[row["space"], kind_of(row)]
            about["undone"] += 1
            about["lost_seconds"] += (row["time"] - row["since"]).total_seconds()
    wanted = {k: about for k, about in expected.items() if about["leased"] or about["undone"]}
    found = answers(jobs.leases(changes), "space", "entry_kind")
    assert found.keys() == wanted.keys()
    for key, row in found.items():
        assert row == pytest.approx(wanted[key]), key
