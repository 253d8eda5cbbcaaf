"""A durable space, opened again: everything that was acknowledged is there, and goes on."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tupelo
from tests.laws.kinds import Job, Point, PrintJob
from tests.values.strategies import entries
from tupelo import ANY, Capacity, Lifo, Queue, Stack, Vector
from tupelo.errors import BadArgument, BadEntry, LogTrimmed
from tupelo.space.port import port_of
from tupelo.store.checking import salvage
from tupelo.store.format import write_meta
from tupelo.values.entry import Entry, freeze

DURABILITIES = ["full", "process", "none"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_what_was_written_is_there_and_what_was_taken_is_not(open_space, reopened, durability):
    space = open_space(durability=durability)
    space.write_all([("n", i) for i in range(10)])
    space.write(Job("x", 1))
    space.take(("n", 3), wait=0)
    space.take_all(("n", int), limit=2)
    space = reopened(space, durability=durability)
    assert space.read_all() == [("n", i) for i in (2, 4, 5, 6, 7, 8, 9)] + [Job("x", 1)]
    assert space.take(("n", ANY), wait=0) == ("n", 2)
    space = reopened(space)
    assert space.count() == 7


@settings(max_examples=15)
@given(written=st.lists(entries, max_size=20))
def test_every_value_comes_back_from_the_file(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("values") / "values.tupelo"
    with tupelo.Space(path=path, durability="process") as space:
        space.write_all(written)
    with tupelo.Space(path=path) as space:
        assert repr(space.read_all()) == repr(written)
    shutil.rmtree(path.parent)


def test_what_is_opened_again_matches_as_before(open_space, reopened):
    space = open_space()
    space.write_all([(1,), (1.0,), (True,), (float("nan"),), PrintJob("x", 1, 2), (Point(1, 2),)])
    space = reopened(space)
    assert repr(space.read_all((1,))) == "[(1,)]"
    assert repr(space.read_all((1.0,))) == "[(1.0,)]"
    assert repr(space.read_all((float("nan"),))) == "[]"
    assert space.read_all(Job("x")) == [PrintJob("x", 1, 2)]
    assert space.read_all((Point(1),)) == [(Point(1, 2),)]


def test_a_text_that_cannot_be_encoded_is_refused_with_its_place(open_space, reopened):
    space = open_space()
    txn = space.transaction()
    attempts: list[Any] = [
        lambda: space.write(("fine", "\ud800")),
        lambda: space.write_all([("fine",), ("fine", "\udfff")]),
        lambda: space.write(("fine", "\ud800"), txn=txn),
        lambda: space.write(("fine", [{"k": "\ud800"}])),
        lambda: space.write(("fine", Job("\ud800"))),
        lambda: space.write(("fine", {"\ud800": 1}), lease=5),
    ]
    for attempt in attempts:
        with pytest.raises(BadEntry, match=r"field 1.*Unicode"):
            attempt()
    with pytest.raises(BadEntry, match="field 'name'"):
        space.write(Job("\ud800"))
    txn.commit()
    assert space.count() == 0 and space.changes() == []
    space.write(("after",))
    assert reopened(space).read_all() == [("after",)]


def test_opening_again_and_again_changes_nothing(open_space, reopened):
    space = open_space()
    space.write_all([("n", i) for i in range(3)])
    before = [(c.position, c.kind, c.entry, c.time) for c in space.changes()]
    for _ in range(3):
        space = reopened(space)
    assert [(c.position, c.kind, c.entry, c.time) for c in space.changes()] == before


def test_the_agent_and_the_name_are_kept(open_space, reopened, path):
    space = open_space(agent="me")
    space.write(("a",))
    space = reopened(space, agent="someone else")
    space.write(("b",))
    assert {change.agent for change in space.changes()} == {"me"}
    space.close()
    with tupelo.Space(path=path) as space:
        assert space.name == "jobs"
    with pytest.raises(BadArgument, match="name="):
        tupelo.Space("other", path=path)
    assert open_space().count() == 2


def test_a_space_without_a_name_is_called_by_its_file(tmp_path):
    with tupelo.Space(path=Path(tmp_path) / "kitchen.tupelo") as space:
        assert space.name == "kitchen"


@pytest.mark.parametrize(
    "name", ["with space", "q?mode=ro", "50%", "hash#1", "ünï", "a&b=c", ";", "'quoted'", '"x"']
)
def test_a_file_may_have_any_name(tmp_path, name):
    path = Path(tmp_path) / name
    with tupelo.Space(path=path) as space:
        space.write(("a",))
    assert path.is_file()
    with tupelo.Space(path=str(path)) as space:
        assert space.read_all() == [("a",)]


# Leases


def test_leases_survive(open_space, reopened, clock):
    space = open_space()
    space.write(("short",), lease=10)
    space.write(("long",), lease=100)
    renewed = space.write(("renewed",), lease=10)
    clock.advance(5)
    renewed.renew(50)
    space.write(("gone",)).cancel()
    space = reopened(space)
    assert space.count() == 3
    clock.advance(5)
    assert space.read_all() == [("long",), ("renewed",)]
    clock.advance(45)
    assert space.read_all() == [("long",)]
    assert [c.kind for c in space.changes()][-2:] == ["expired", "expired"]


@pytest.mark.parametrize("back", [0.5, 3_600])
def test_a_clock_that_was_set_back_is_told(path, caplog, back):
    with tupelo.Space(path=path, clock=tupelo.ManualClock(10_000)) as space:
        space.write(("leased",), lease=30)
    with tupelo.Space(path=path, clock=tupelo.ManualClock(10_000 - back)) as space:
        assert space.count() == 1
    told = "the clock is 3600 seconds behind the last change; 1 leases end so much later"
    assert (told in caplog.text) == (back > 1)


def test_what_expires_while_the_space_is_closed_is_gone_when_it_opens(open_space, reopened, clock):
    space = open_space()
    space.write(("a",), lease=10)
    expires = clock.now() + 10
    space.close()
    clock.advance(60)
    space = open_space()
    assert space.count() == 0
    last = space.changes()[-1]
    assert (last.kind, last.entry, last.time) == ("expired", ("a",), expires)


def test_an_entry_renewed_for_ever_stays(open_space, reopened, clock):
    space = open_space()
    space.write(("a",), lease=10).renew(None)
    space = reopened(space)
    clock.advance(1_000)
    assert space.read_all() == [("a",)]


def test_a_lease_of_an_earlier_life_can_be_cancelled_by_taking(open_space, reopened, clock):
    space = open_space()
    space.write(("a",), lease=10)
    space = reopened(space)
    assert space.take(("a",), wait=0) == ("a",)
    space = reopened(space)
    clock.advance(10)
    assert space.count() == 0


# The log


def test_positions_go_on(open_space, reopened):
    space = open_space()
    space.write_all([("n", i) for i in range(3)])
    space = reopened(space)
    space.write(("n", 3))
    assert [c.position for c in space.changes()] == [1, 2, 3, 4]
    assert [c.entry[1] for c in space.changes()] == [0, 1, 2, 3]


def test_numbering_goes_on_after_trimming_everything(open_space, reopened):
    space = open_space()
    space.write_all([("n", i) for i in range(5)])
    space.take_all()
    names = {(c.origin, c.n) for c in space.changes()}
    space.trim(before=11)
    space = reopened(space)
    with pytest.raises(LogTrimmed) as trimmed:
        space.changes()
    assert trimmed.value.first == 11
    assert space.changes(since=10) == []
    space.write(("after",))
    (change,) = space.changes(since=10)
    assert change.position == 11 and (change.origin, change.n) not in names


def test_names_of_entries_are_never_used_twice(open_space, reopened):
    space = open_space()
    names: set[Any] = set()
    for round_ in range(4):
        txn = space.transaction()
        space.write(("aborted", round_), txn=txn)
        txn.abort()
        space.write(("n", round_))
        with space.transaction() as txn:
            space.write(("m", round_), txn=txn)
        new = {(c.origin, c.n) for c in space.changes(since=2 * round_) if c.kind == "written"}
        assert len(new) == 2 and names.isdisjoint(new)
        names |= new
        space = reopened(space)


def test_a_trim_survives(open_space, reopened):
    space = open_space()
    space.write_all([("n", i) for i in range(6)])
    space.trim(before=4)
    space = reopened(space)
    with pytest.raises(LogTrimmed) as trimmed:
        space.changes()
    assert trimmed.value.first == 4
    assert [c.entry[1] for c in space.changes(since=3)] == [3, 4, 5]
    assert space.count() == 6


def test_what_lives_survives_a_trim_and_what_is_dead_does_not_come_back(open_space, reopened):
    space = open_space()
    space.write_all([("n", i) for i in range(20)])
    for i in range(0, 20, 2):
        space.take(("n", i), wait=0)
    space.trim(before=25)
    space = reopened(space)
    living = [("n", i) for i in range(1, 20, 2)]
    assert space.read_all() == living
    assert [c.entry for c in space.changes(since=24)] == [("n", i) for i in (8, 10, 12, 14, 16, 18)]
    space.trim(before=1_000)
    space = reopened(space)
    assert space.read_all() == living


def test_how_much_of_the_log_to_keep_is_remembered(open_space, reopened):
    space = open_space(log_keep=10)
    for i in range(50):
        space.write(("n", i))
    space = reopened(space)
    for i in range(50, 100):
        space.write(("n", i))
    space.compact()
    with pytest.raises(LogTrimmed) as trimmed:
        space.changes()
    assert trimmed.value.first == 91
    assert space.count() == 100


def test_all_of_the_log_is_kept_if_so_wished(open_space, reopened):
    space = open_space(log_keep="all")
    for i in range(30):
        space.write(("n", i))
        space.take(("n", i), wait=0)
    space.compact()
    space = reopened(space)
    assert len(space.changes()) == 60


def test_compaction_gives_room_back_to_the_disk(open_space, reopened, path):
    space = open_space(durability="process")
    space.write_all([("blob", i, b"x" * 1_000) for i in range(2_000)])
    space.take_all(limit=1_900)
    space.trim(before=10_000)
    space.compact()
    small = path.stat().st_size
    assert small < 400_000
    assert space.count() == 100
    space = reopened(space)
    assert [entry[1] for entry in space.read_all()] == list(range(1_900, 2_000))


def test_a_space_that_is_written_to_and_taken_from_for_long_stays_small(open_space, path):
    space = open_space(durability="none", log_keep=100)
    for i in range(6_000):
        space.write(("n", i, b"x" * 200))
        space.take(("n", i, bytes), wait=0)
    space.compact()
    assert path.stat().st_size < 150_000


# Transactions


@pytest.fixture
def prepared(open_space):
    """A space with a transaction that has promised to commit; it took, read and wrote."""
    space = open_space()
    space.write_all([("taken",), ("read",), ("free",)])
    txn = space.transaction(lease=10)
    space.take(("taken",), wait=0, txn=txn)
    space.read(("read",), wait=0, txn=txn)
    space.write(("new", 1), txn=txn)
    space.write(("new", 2), txn=txn)
    txn.prepare()
    return space


def test_a_promise_survives_and_can_be_kept(prepared, reopened):
    space = reopened(prepared)
    (txn,) = space.in_doubt()
    assert txn.state == "prepared"
    txn.commit()
    assert space.read_all() == [("read",), ("free",), ("new", 1), ("new", 2)]
    space = reopened(space)
    assert space.in_doubt() == []
    assert space.read_all() == [("read",), ("free",), ("new", 1), ("new", 2)]


def test_a_promise_survives_and_can_be_called_off(prepared, reopened):
    space = reopened(prepared)
    (txn,) = space.in_doubt()
    txn.abort()
    assert space.read_all() == [("taken",), ("read",), ("free",)]
    space = reopened(space)
    assert space.in_doubt() == []
    assert space.read_all() == [("taken",), ("read",), ("free",)]


def test_the_locks_of_a_promise_survive(prepared, reopened, park):
    space = reopened(reopened(prepared))
    assert space.read_all() == [("read",), ("free",)]
    assert space.take(("read",), wait=0) is None
    assert space.take(("taken",), wait=0) is None
    waiter = park(space, space.take, ("taken",), if_exists=True)
    (txn,) = space.in_doubt()
    txn.commit()
    assert waiter.result() is None
    assert space.take(("read",), wait=0) == ("read",)


def test_a_promise_outlives_its_lease_and_a_trim(prepared, reopened, clock):
    space = reopened(prepared)
    clock.advance(100)
    space.trim(before=1_000)
    space.compact()
    space = reopened(space)
    (txn,) = space.in_doubt()
    txn.abort()
    assert space.read_all() == [("taken",), ("read",), ("free",)]


def test_the_id_of_a_promise_is_kept(prepared, reopened):
    (before,) = prepared.in_doubt()
    space = reopened(prepared)
    (after,) = space.in_doubt()
    assert after.id == before.id


def test_several_promises_survive(open_space, reopened):
    space = open_space()
    txns = [space.transaction() for _ in range(3)]
    for i, txn in enumerate(txns):
        space.write(("n", i), txn=txn)
        txn.prepare()
    space = reopened(space)
    by_id = {txn.id: txn for txn in space.in_doubt()}
    by_id[txns[0].id].commit()
    by_id[txns[1].id].abort()
    space = reopened(space)
    assert space.read_all() == [("n", 0)]
    assert [txn.id for txn in space.in_doubt()] == [txns[2].id]


def test_entries_of_a_promise_keep_their_leases(open_space, reopened, clock):
    space = open_space()
    txn = space.transaction()
    space.write(("short",), lease=10, txn=txn)
    space.write(("long",), lease=100, txn=txn)
    txn.prepare()
    space = reopened(space)
    clock.advance(10)
    space.in_doubt()[0].commit()
    assert space.read_all() == [("long",)]
    clock.advance(90)
    assert space.count() == 0


def test_what_a_promise_holds_may_expire(open_space, reopened, clock):
    space = open_space()
    space.write(("a",), lease=10)
    txn = space.transaction()
    space.take(("a",), wait=0, txn=txn)
    space.write(("b",), txn=txn)
    txn.prepare()
    space = reopened(space)
    clock.advance(10)
    space = reopened(space)
    space.in_doubt()[0].abort()
    assert space.count() == 0
    assert reopened(space).count() == 0


def test_opening_again_logs_no_reads(open_space, reopened):
    space = open_space(log_reads=True)
    space.write(("a",))
    txn = space.transaction()
    space.read(("a",), wait=0, txn=txn)
    space.write(("b",), txn=txn)
    txn.prepare()
    kinds = [c.kind for c in space.changes()]
    space = reopened(space, log_reads=True)
    assert [c.kind for c in space.changes()] == kinds


def test_a_transaction_that_did_not_promise_is_gone(open_space, reopened):
    space = open_space()
    space.write(("old",))
    txn = space.transaction()
    space.take(("old",), wait=0, txn=txn)
    space.write(("new",), txn=txn)
    space = reopened(space)
    assert space.in_doubt() == [] and space.read_all() == [("old",)]


# Other rules of the space


def test_a_capacity_counts_what_is_there(open_space, reopened):
    space = open_space()
    space.write_all([("n", i) for i in range(5)])
    space = reopened(space, capacity=Capacity(entries=5, evict="fifo"))
    space.write(("n", 5))
    assert [entry[1] for entry in space.read_all()] == [1, 2, 3, 4, 5]
    space = reopened(space)
    assert [entry[1] for entry in space.read_all()] == [1, 2, 3, 4, 5]


def test_an_order_is_the_programs_choice_each_time(open_space, reopened):
    space = open_space(order=Vector())
    space.write(("b",))
    space.write(("a",), at=0)
    assert space.read_all() == [("a",), ("b",)]
    space = reopened(space, order=Vector())
    assert space.read_all() == [("b",), ("a",)]  # as documented: in order of arrival
    space.write(("z",), at=0)
    assert space.read_all() == [("z",), ("b",), ("a",)]
    assert reopened(space, order=Lifo()).read(wait=0) == ("z",)


def test_queues_and_stacks_show_the_same_heads_when_they_are_opened_again(open_space, reopened):
    space = open_space(order=Queue())
    space.write_all([("a",), ("b",), ("c",), ("d",)])
    assert space.take(wait=0) == ("a",)
    space = reopened(space, order=Queue())
    assert space.take(("c",), wait=0) is None
    assert space.take(("b",), wait=0) == ("b",)
    space = reopened(space, order=Stack())
    assert space.take(("c",), wait=0) is None
    assert [space.take(wait=0) for _ in range(3)] == [("d",), ("c",), None]


def test_many_writers_share_commits_and_all_is_there(open_space, reopened, later):
    space = open_space(durability="full")
    writers = [later(lambda k=k: [space.write(("n", k, i)) for i in range(10)]) for k in range(16)]
    for writer in writers:
        writer.result()
    space = reopened(space)
    assert sorted(entry[1:] for entry in space.read_all()) == [
        (k, i) for k in range(16) for i in range(10)
    ]


def test_writers_that_trim_and_compact_meanwhile_lose_nothing(open_space, reopened, later):
    space = open_space(durability="process")
    writers = [later(lambda k=k: [space.write(("n", k, i)) for i in range(50)]) for k in range(4)]
    while any(writer.waits for writer in writers):
        space.trim(before=port_of(space).position // 2)
        space.compact()
    for writer in writers:
        writer.result()
    assert reopened(space).count(("n", int, int)) == 200


@pytest.mark.parametrize("durability", ["full", "process"])
def test_what_was_acknowledged_is_in_the_files_before_the_space_is_closed(
    open_space, tmp_path, path, durability
):
    space = open_space(durability=durability)
    space.write_all([("n", i) for i in range(5)])
    space.take(("n", 2), wait=0)
    copy = Path(tmp_path) / "copy"
    copy.mkdir()
    for file in (path, path.with_name(path.name + "-wal")):  # as a crash would leave them
        shutil.copy(file, copy / file.name)
    with tupelo.Space("jobs", path=copy / path.name) as found:
        assert [entry[1] for entry in found.read_all()] == [0, 1, 3, 4]


@pytest.mark.parametrize("lost", [1, 100, 5_000, 20_000])
def test_a_log_of_sqlite_that_is_torn_at_its_end_gives_a_beginning(
    open_space, tmp_path, path, lost
):
    space = open_space(durability="process")
    for i in range(30):
        space.write(("n", i, b"x" * 500))
    copy = Path(tmp_path) / "copy"
    copy.mkdir()
    for file in (path, path.with_name(path.name + "-wal")):
        shutil.copy(file, copy / file.name)
    wal = copy / (path.name + "-wal")
    wal.write_bytes(wal.read_bytes()[:-lost])
    with tupelo.Space("jobs", path=copy / path.name) as found:
        numbers = [entry[1] for entry in found.read_all()]
        assert numbers == list(range(len(numbers))) and len(numbers) < 30


OLDER: list[tuple[int, list[str]]] = [
    (1, ["dest", "session", "lease"]),
    (2, ["session", "lease"]),
    (3, ["lease"]),
    (5, []),
    (6, []),
]
"""Formats, and the columns that they have not."""


@pytest.mark.parametrize(("form", "lacking"), OLDER)
def test_a_file_of_an_older_format_is_taken_over(open_space, path, form, lacking):
    space = open_space()
    space.write(("old", 1))
    space.take(("old", 1), wait=0)
    space.write(("old", 2))
    space.close()
    make_older(path, form, lacking)
    with tupelo.Space(path=path, log_reads=True) as space:
        assert space.read_all() == [("old", 2)]
        space.write(("new", 3))
        with space.session() as session:
            assert session.read(("new", int), wait=0) == ("new", 3)
    with tupelo.Space(path=path) as space:
        assert space.read_all() == [("old", 2), ("new", 3)]
        changes = space.changes()
        kinds = [change.kind for change in changes]
        assert kinds == ["written", "taken", "written", "read", "written", "read"]
        assert changes[-1].session and not any(change.session for change in changes[:-1])


def bring(space: tupelo.Space, n: int, origin: str = "elsewhere") -> None:
    """An entry with this number comes from another host."""
    shape, fields = freeze(("brought", n))
    port_of(space).take_in(Entry(fields, shape, origin, n, 0))


def own_numbers(space: tupelo.Space) -> list[int]:
    agent = port_of(space).agent
    return [c.n for c in space.changes() if c.kind == "written" and c.origin == agent]


@pytest.mark.parametrize("how", ["closed", "killed", "salvaged"])
def test_a_space_counts_its_own_entries_whatever_numbers_come_from_elsewhere(
    open_space, path, tmp_path, how
):
    space = open_space()
    for i in range(3):
        space.write(("own", i))
        bring(space, 2**63 - 1 - i)
        with space.transaction() as txn:
            space.write(("own too", i), txn=txn)
        if how == "closed":
            space.close()
        else:
            port_of(space)._engine.crash()
        if how == "salvaged":
            good = tmp_path / f"good{i}.tupelo"
            salvage(path, good)
            path = good
        space = open_space(path=path)
    numbers = own_numbers(space)
    assert len(numbers) == 6 and numbers == sorted(set(numbers)) and numbers[-1] < 100
    assert space.count(("brought", int)) == 3


def test_the_numbers_of_a_prepared_transaction_are_not_given_twice(open_space, reopened):
    space = open_space()
    txn = space.transaction()
    space.write(("own", 1), txn=txn)
    txn.prepare()
    space = reopened(space)
    space.write(("own", 2))
    (prepared,) = space.in_doubt()
    prepared.commit()
    assert len(set(own_numbers(space))) == 2


@pytest.mark.parametrize(("form", "lacking"), [*OLDER, (7, None)])
def test_a_space_that_an_older_version_made_count_from_elsewhere_is_mended(
    open_space, path, form, lacking
):
    space = open_space()
    space.write_all([("own", i) for i in range(5)])
    bring(space, 2**63 - 1)
    space.close()
    db = sqlite3.connect(path)
    db.execute("DELETE FROM meta WHERE key = 'numbers'")
    write_meta(db, {"n": 2**63 - 1})
    db.commit()
    db.close()
    if lacking is not None:
        make_older(path, form, lacking)
    for i in range(3):
        space = open_space()
        space.write(("own", 5 + i))
        space.close()
    numbers = own_numbers(open_space())
    assert len(numbers) == 8 and numbers == sorted(set(numbers)) and numbers[-1] < 100


def test_leases_of_an_older_format_are_taken_over(open_space, path, clock):
    space = open_space()
    space.write(("short",), lease=10)
    space.write(("long",), lease=1_000)
    space.write(("always",))
    space.close()
    make_older(path, 3, ["lease"])
    for _ in range(2):  # The second time it is of our format.
        with tupelo.Space(path=path, clock=clock) as space:
            assert space.read_all() == [("short",), ("long",), ("always",)]
    clock.advance(20)
    with tupelo.Space(path=path, clock=clock) as space:
        assert space.read_all() == [("long",), ("always",)]


def test_a_renewal_leaves_the_row_of_the_writing_as_it_was(open_space, path, clock):
    space = open_space()
    start = clock.now()
    leases = [space.write(("n", number), lease=10) for number in range(3)]
    leases[0].renew(100)
    leases[1].renew(None)
    space.close()
    with tupelo.Space(path=path, clock=clock) as space:
        expected = [*[start + 10] * 3, start + 100, None]
        assert [change.expires for change in space.changes()] == expected
        space.trim(before=6)  # Now only the row of the entry knows that it was renewed.
    clock.advance(20)
    with tupelo.Space(path=path, clock=clock) as space:
        assert space.read_all() == [("n", 0), ("n", 1)]
    clock.advance(100)
    with tupelo.Space(path=path, clock=clock) as space:
        assert space.read_all() == [("n", 1)]


def make_older(path: Path, form: int, lacking: list[str]) -> None:
    """As it was before there were these columns."""
    db = sqlite3.connect(path)
    lacking = [*lacking, "agent_name", "deliveries", "returns", "visible", "delayed"]
    if form < 6:
        db.execute("ALTER TABLE promise DROP COLUMN crc")
        db.execute("DELETE FROM meta WHERE key IN ('crc', 'living')")
        lacking += ["crc", "lease_crc", "newest", "living"]
    columns = {name: form for _, name, form, *_ in db.execute("PRAGMA table_info(change)")}
    kept = [name for name in columns if name not in lacking]
    typed = ", ".join(f"{name} {columns[name]}" for name in kept[1:])
    db.execute("ALTER TABLE change RENAME TO newer")
    db.execute(f"CREATE TABLE change (position INTEGER PRIMARY KEY, {typed})")
    db.execute(f"INSERT INTO change SELECT {', '.join(kept)} FROM newer")
    db.execute("DROP TABLE newer")
    db.execute(f"PRAGMA user_version = {form}")
    db.commit()
    db.close()
