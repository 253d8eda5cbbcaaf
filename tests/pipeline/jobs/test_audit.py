"""The audit: it finds what was planted in recorded logs, and nothing in the logs of what went well.

All logs of what went well are looked at together, and so are all those in which something was
planted: a job of Spark takes as long for one as for twenty.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Observation
from typer.testing import CliRunner

import tupelo
from tests.conftest import until_true
from tests.federation.company import Company, await_space, meet
from tests.models.lime.world import LimeWorld, play
from tests.pipeline.jobs.recorded import RandomRun, Row, faults_in, rows_of, table_of
from tupelo import ManualClock
from tupelo.lab import virtual_world
from tupelo.lab.simulate import simulate
from tupelo.pipeline import jobs
from tupelo.pipeline.commands.pipeline import app
from tupelo.pipeline.schema import CHANGES
from tupelo.pipeline.sql.audit import FAULTS, audited
from tupelo.space.capacity import SUNK

RUNS = int(os.environ.get("TUPELO_AUDIT_RUNS", "12"))
"""So many spaces are used at random, and a third as many federations simulated."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of those who are killed


# What went well


def at_random(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for seed in range(RUNS):
        file = folder / f"{seed}.tupelo"
        RandomRun(file, seed).play(60)
        rows += rows_of(file, space=f"random {seed}")
    return rows


def simulated(folder: Path) -> list[Row]:
    """Federations whose hosts crash, leave and return, and whose links are cut."""
    rows: list[Row] = []
    with pytest.MonkeyPatch.context() as patch:
        for seed in range(RUNS // 3):
            kept = folder / str(seed)
            patch.setattr(
                virtual_world.VirtualWorld, "clear", lambda self, kept=kept: keep(self.folder, kept)
            )
            assert not simulate(seed).faults
            rows += rows_of(*kept.iterdir(), space=f"simulated {seed}")
    return rows


def keep(found: Path, kept: Path) -> None:
    shutil.copytree(found, kept)
    shutil.rmtree(found)


def two_hosts(folder: Path) -> list[Row]:
    """What is taken from afar, and what is for an agent that is elsewhere; then one host comes back
    with what it had."""
    company = Company()
    try:
        one, two = (company.host(name, path=folder / name) for name in ("one", "two"))
        meet(one, two)
        here, there = one.space("jobs"), two.space("jobs")
        for number in range(4):
            here.write(("job", number))
            assert there.take(("job", number), wait=5) == ("job", number)
        for number in range(3):
            here.write(("letter", number), to=two.id)
        until_true(lambda: there.count(("letter", int)) == 3)
        assert there.take(("letter", 1), wait=5) == ("letter", 1)
        two.close()
        here.write(("letter", 3), to=two.id)
        two = company.host("two", path=folder / "two")
        one.engage(two.address)
        await_space(one, two.id)
        there = two.space("jobs")
        until_true(lambda: there.count(("letter", int)) == 3)
        assert there.take(("letter", 3), wait=5) == ("letter", 3)
    finally:
        company.close()
    return rows_of(folder / "one", folder / "two", space="hosts")


def lime(folder: Path) -> list[Row]:
    """Agents that share, migrate with their tuples, write for each other and take from each other;
    then a host crashes while tuples move to it."""

    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        for number in range(4):
            await one.out("own", number)
            await one.out("yours", number, to=two.location)
        assert await two.call("inp", ("own", 1)) == ("own", 1)
        await one.unshare()
        await one.share()
        await one.go(world["b"])
        await world.quiet()
        assert await two.call("inp", ("own", 2)) == ("own", 2)
        await two.go(world["a"])
        await world.quiet()
        assert len(await one.all()) == 6
        three = await world["b"].agent("three")
        for number in range(3):
            await two.out("hers", number, to=three.location)
        await three.share()
        await world.quiet()
        assert await three.call("inp", ("hers", 1)) == ("hers", 1)
        await one.out("late", to=two.location)
        await world["b"].crash()
        await world.agreed("a")
        await world["b"].start()
        await world.agreed("ab")
        back = await world["b"].agent("back", "s")
        await world.quiet()
        assert await back.call("inp", ("yours", int)) is not None
        await world.quiet()

    play(scene, "ab", folder=folder)
    return rows_of(folder / "a", folder / "b", space="lime")


def trimmed(folder: Path) -> list[Row]:
    """A log that begins between the delays of entries and their appearance."""
    clock = ManualClock()
    with tupelo.Space("trimmed", path=folder / "trimmed.tupelo", clock=clock) as space:
        space.write_all([("late", number) for number in range(2)], delay=60)
        space.write(("early", 0), delay=30)
        space.trim(before=3)
        clock.advance(30)
        space.write_all([("now", number) for number in range(3)])
        clock.advance(30)
        assert space.count() == 6
    return rows_of(folder / "trimmed.tupelo", space="trimmed")


def test_nothing_is_found_in_what_went_well(spark, tmp_path):
    rows: list[Row] = []
    for record in (at_random, simulated, two_hosts, lime, trimmed):
        folder = tmp_path / record.__name__
        folder.mkdir()
        rows += record(folder)
    changes = table_of(spark, rows)
    assert faults_in(jobs.audit(changes)) == []
    assert {row["kind"] for row in rows} >= {"returned", "moved", "aborted", "evicted", "expired"}


# What was planted


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The logs of two hosts. Of six entries at the first, three were taken there; three more moved
    to the second, and one of them was taken there."""
    folder = tmp_path_factory.mktemp("sound")
    company = Company()
    try:
        one, two = (company.host(name, path=folder / name) for name in ("one", "two"))
        meet(one, two)
        here, there = one.space("jobs"), two.space("jobs")
        here.write_all([("home", number) for number in range(6)])
        here.take_all(("home", int), limit=3)
        for number in range(3):
            here.write(("letter", number), to=two.id)
        until_true(lambda: [change.kind for change in here.changes()].count("moved") == 3)
        there.take(("letter", 1), wait=5)
    finally:
        company.close()
    rows = rows_of(folder / "one", folder / "two")
    told = [row for row in rows if row["space"] == "jobs"]
    return [named(row, {one.id: "one", two.id: "two"}) for row in told]


def named(row: Row, names: dict[str, str]) -> Row:
    """The same with names that can be read, for the ids of hosts."""
    txn = row["txn"]
    for host, name in names.items():
        txn = txn and txn.replace(host, name)
    return {**row, "host": names[row["host"]], "txn": txn}


def is_(kind: str, host: str, entry: str) -> Callable[[Row], bool]:
    return lambda row: (row["kind"], row["host"], row["fields"]) == (kind, host, entry)


def without(rows: list[Row], wanted: Callable[[Row], bool]) -> list[Row]:
    left = [row for row in rows if not wanted(row)]
    assert len(left) < len(rows)
    return left


def again(rows: list[Row], wanted: Callable[[Row], bool], **other: Any) -> list[Row]:
    """These rows, and at the end of their log one of them once more, altered."""
    (row,) = [row for row in rows if wanted(row)]
    more = {**row, **other}
    more["position"] = 1 + max(one["position"] for one in rows if one["host"] == more["host"])
    if more["kind"] == "written":
        more["arrival"] = more["position"]
    return [*rows, more]


def swapped(rows: list[Row], first: int, second: int, *columns: str) -> list[Row]:
    """The log of the first host, with two positions changed for each other in some columns."""
    here = {row["position"]: row for row in rows if row["host"] == "one"}
    one, two = here[first], here[second]
    changed = {first: {name: two[name] for name in columns}}
    changed[second] = {name: one[name] for name in columns}
    return [
        {**row, **changed.get(row["position"], {})} if row["host"] == "one" else row for row in rows
    ]


HOME, LETTER = '["home",{}]', '["letter",{}]'


def plant(rows: list[Row]) -> dict[str, tuple[list[Row], set[tuple[str, int | None]]]]:
    """By name: rows in which something is wrong, and what the audit says, with the number of the
    entry (as its writer counts) or the first position."""
    moved_in = is_("written", "two", LETTER.format(2))
    (coming,) = [row for row in rows if moved_in(row)]
    (taken,) = [row for row in rows if is_("taken", "one", HOME.format(0))(row)]
    later = {"time": taken["time"].replace(year=2100)}
    return {
        "sound": (rows, set()),
        "a move that never arrived": (
            [closed_up(row, coming["position"]) for row in without(rows, moved_in)],
            {("lost", coming["n"])},
        ),
        "a move whose arrival was cut out": (
            without(rows, moved_in),
            {("lost", coming["n"])}
            | (
                {("gap", coming["position"])}
                if coming["position"] < last_of(rows, "two")
                else set()
            ),
        ),
        "a written one that was cut out": (
            without(rows, is_("written", "one", HOME.format(1))),
            {("never written", 2), ("gap", 2)},
        ),
        "a taken one that was cut out": (
            without(rows, is_("taken", "one", HOME.format(1))),
            {("gap", 9)},
        ),
        "a long gap": (
            [
                {**row, "position": row["position"] + 1_000} if row["position"] > 6 else row
                for row in rows
                if row["host"] == "one" and row["position"] < 10
            ],
            {("gap", 7)},
        ),
        "taken twice": (
            again(rows, is_("taken", "one", HOME.format(0))),
            {("taken twice", 1)},
        ),
        "taken and expired": (
            again(rows, is_("taken", "one", HOME.format(0)), kind="expired"),
            {("ended twice", 1)},
        ),
        "given back twice": (
            again(
                again(rows, is_("taken", "one", HOME.format(0)), kind="returned"),
                is_("taken", "one", HOME.format(0)),
                kind="returned",
                agent="other",
            ),
            {("returned twice", 1)},
        ),
        "written twice": (
            again(rows, is_("written", "one", HOME.format(5))),
            {("duplicated", 6), ("reordered", 6)},
        ),
        "at two hosts at once": (
            again(rows, is_("written", "one", HOME.format(5)), host="two"),
            {("duplicated", 6)},
        ),
        "at two hosts at once, and taken at both": (
            again(
                again(rows, is_("written", "one", HOME.format(0)), host="two"),
                is_("taken", "one", HOME.format(0)),
                host="two",
                arrival=last_of(rows, "two") + 1,
                **later,
            ),
            {("taken twice", 1)},
        ),
        "moved, and there still": (
            again(rows, is_("written", "two", LETTER.format(0)), host="one", **later),
            {("duplicated", 7)},
        ),
        "a row that is there twice": (
            [*rows, taken],
            {("repeated", 1), ("taken twice", 1)},
        ),
        "two writes in each other's place": (
            swapped(rows, 4, 5, "position"),
            {("reordered", 4), ("reordered", 5)},
        ),
        "two numbers in each other's place": (
            swapped(rows, 5, 6, "n"),
            {("reordered", 5)},
        ),
        "taken before it was written": (
            swapped(rows, 1, 8, "position"),
            {("reordered", 1)},
        ),
    }


def closed_up(row: Row, hole: int) -> Row:
    """As if the second host had never logged what was at this position."""
    if row["host"] == "one":
        return row
    places = {name: row[name] for name in ("position", "arrival") if row[name] is not None}
    return {**row, **{name: place - (place > hole) for name, place in places.items()}}


def last_of(rows: list[Row], host: str) -> int:
    positions: list[int] = [row["position"] for row in rows if row["host"] == host]
    return max(positions)


def test_what_was_planted_is_found_and_named(spark, sound):
    planted = plant(sound)
    rows = [{**row, "space": name} for name, (altered, _) in planted.items() for row in altered]
    expected = {name: faults for name, (_, faults) in planted.items()}
    by_duckdb = [
        (row["fault"], row["space"], row["first"] if row["n"] is None else row["n"])
        for row in audited(pa.Table.from_pylist(rows, CHANGES))[0].to_pylist()
    ]
    for faults in (faults_in(jobs.audit(table_of(spark, rows))), by_duckdb):
        found: dict[str, set[tuple[str, int | None]]] = {name: set() for name in planted}
        for fault, space, number in faults:
            found[space].add((fault, number))
        assert found == expected


# DuckDB


def rows_by(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*found.to_pydict().values(), strict=True), key=repr)


def spoiled(rows: list[Row], rng: Random) -> list[Row]:
    """Something is wrong with some of these rows, whatever it may be."""
    rows = list(rows)
    for _ in range(rng.randrange(1, 5)):
        place, other = rng.randrange(len(rows)), rng.choice(rows)
        row = rows[place]
        match rng.randrange(8):
            case 0:
                del rows[place]
            case 1:
                rows.append(row)
            case 2:
                rows[place] = {**row, "kind": other["kind"]}
            case 3:
                rows[place] = {**row, "n": other["n"], "origin": other["origin"]}
            case 4:
                rows[place] = {**row, "position": other["position"]}
            case 5:
                rows[place] = {**row, "arrival": other["arrival"], "txn": other["txn"]}
            case 6:
                rows.append({**row, "host": rng.choice(["one", "two", other["host"]])})
            case 7:
                rows[place] = {**row, "time": other["time"], "expires": other["expires"]}
    return rows


@pytest.mark.parametrize("drained", [False, True])
def test_duckdb_finds_what_spark_finds(spark, sound, tmp_path, drained):
    """Of each entry and each fault the same, in random logs and those of two hosts, in which
    something was planted at random."""
    runs = [(f"hosts {seed}", sound) for seed in range(RUNS)]
    for seed in range(RUNS):
        file = tmp_path / f"{seed}.tupelo"
        RandomRun(file, seed).play(60)
        runs += [(f"random {seed}.{copy}", rows_of(file)) for copy in range(2)]
    rows = [
        {**row, "space": name} for name, kept in runs for row in spoiled(kept, Random(name)) if kept
    ]
    rng = Random(int(drained))
    rng.shuffle(rows)
    changes, skew = table_of(spark, rows), 0.25 if drained else 0.0
    entries = Observation("entries")
    by_spark = jobs.audit(changes, drained=drained, skew_seconds=skew, observed=entries).toArrow()
    table = pa.Table.from_pylist(rows, CHANGES)
    by_duckdb, seen = audited(table, drained=drained, skew_seconds=skew)
    assert rows_by(by_duckdb) == rows_by(by_spark)
    assert seen == entries.get
    kinds = set(by_duckdb.column("fault").to_pylist())
    # Those that are left out are compared where they are planted, above.
    assert kinds >= set(FAULTS) - {"empty", "never taken", "returned twice", "lost"}
    assert ("never taken" in kinds) is drained


def test_duckdb_knows_entries_that_were_delayed_before_a_log_begins(tmp_path):
    table = pa.Table.from_pylist(trimmed(tmp_path), CHANGES)
    assert audited(table)[0].to_pylist() == []
    older = table.set_column(table.column_names.index("delayed"), "delayed", [[None] * len(table)])
    assert audited(older)[0].column("fault").to_pylist() == ["reordered"] * 2


def test_duckdb_says_that_there_is_nothing():
    found, seen = audited(CHANGES.empty_table())
    assert found.column("fault").to_pylist() == ["empty"]
    assert seen == {"entries": 0, "living": 0, "in_doubt": 0}


def test_the_records_of_a_sink_need_not_be_taken(spark, sound):
    (written,) = [row for row in sound if is_("written", "one", HOME.format(5))(row)]
    rows = [{**row, "type": SUNK} if row["n"] == written["n"] else row for row in sound]
    table = pa.Table.from_pylist(rows, CHANGES)
    left = {row["n"] for row in audited(table, drained=True)[0].to_pylist()}
    assert written["n"] not in left and left
    by_spark = jobs.audit(table_of(spark, rows), drained=True).toArrow()
    assert {row["n"] for row in by_spark.to_pylist()} == left


def test_the_command_by_duckdb(tmp_path):
    file = tmp_path / "jobs.tupelo"
    RandomRun(file, 1).play(40)
    done = CliRunner().invoke(app, ["audit", str(file)])
    assert (done.exit_code, done.stderr) == (0, ""), done.stderr
    assert "no fault was found" in done.stdout
    done = CliRunner().invoke(app, ["audit", str(file), "--drained", "--to", str(tmp_path / "to")])
    assert done.exit_code == 1 and "never taken" in done.stderr
    written = pq.read_table(tmp_path / "to" / "audit.parquet")
    assert set(written.column("fault").to_pylist()) == {"never taken"}
    done = CliRunner().invoke(app, ["audit", str(file), "--space", "other"])
    assert done.exit_code == 1 and "--space must be" in done.stderr
