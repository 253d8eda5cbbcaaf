"""Transactions over spaces in databases and others, and what is left when a program dies."""

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import Call, until_true
from tests.kinds import database_url, space_url
from tests.postgres.servers import Server
from tupelo.errors import BadArgument, CannotCommit, TransactionEnded
from tupelo.models.javaspaces import TransactionManager
from tupelo.postgres.voting import DatabaseBranch, prepared_name, read_prepared_name
from tupelo.space.twophase import DecisionLog


@pytest.fixture
def url():
    return space_url(f"votes {uuid4()}")


@pytest.fixture
def space(url):
    with tupelo.connect(url) as space:
        yield space


def url_in(server: Server, name: str) -> str:
    return server.url(space=name)


@pytest.fixture(params=["memory", "file", "host", "database", "same"])
def other(request, space, tmp_path):
    """A space of another kind."""
    if request.param == "memory":
        with tupelo.Space("other") as made:
            yield made
    elif request.param == "file":
        with tupelo.Space("other", path=tmp_path / "other.tupelo") as made:
            yield made
    elif request.param == "host":
        with (
            tupelo.Host("kitchen", listen="127.0.0.1:0", path=tmp_path / "kitchen") as host,
            tupelo.connect(f"tupelo://{host.address}/other") as made,
        ):
            yield made
    elif request.param == "database":
        server = request.getfixturevalue("elsewhere")
        with tupelo.connect(url_in(server, f"o{uuid4()}")) as made:
            yield made
    else:
        with space.space(f"other {uuid4()}") as made:
            yield made


def prepared(space: Any) -> list[str]:
    with psycopg.connect(space.database.conninfo) as link:
        return [gid for (gid,) in link.execute("SELECT gid FROM pg_prepared_xacts").fetchall()]


def decisions(space: Any) -> set[tuple[Any, ...]]:
    with psycopg.connect(space.database.conninfo) as link:
        return set(link.execute("SELECT * FROM tupelo.decisions").fetchall())


@pytest.mark.parametrize("turned", [False, True])
def test_all_or_nothing_over_a_database_and_another_kind(space, other, turned):
    one, two = (other, space) if turned else (space, other)
    before = decisions(space)  # of programs that other tests have killed
    one.write_all([("a", n) for n in range(3)])
    with tupelo.transaction(one, two) as txn:
        taken = one.take(("a", int), txn=txn)
        two.write(taken, txn=txn)
        assert (one.count(), two.count()) == (2, 0)
    assert (one.count(), two.read_all()) == (2, [("a", 0)])
    with pytest.raises(ValueError), tupelo.transaction(one, two) as txn:
        two.write(one.take(("a", int), txn=txn), txn=txn)
        raise ValueError
    assert (one.count(), two.count()) == (2, 1)
    with tupelo.transaction(one, two) as txn:  # Only one of them has changed.
        one.read(("a", int), txn=txn)
        two.take(("a", int), txn=txn)
    with tupelo.transaction(one, two) as txn:
        two.write(("b", 1), txn=txn)
    assert (one.count(), two.read_all()) == (2, [("b", 1)])
    assert list(one.in_doubt()) == list(two.in_doubt()) == []
    assert decisions(space) <= before


def test_async_spaces_take_part_too(url, elsewhere, tmp_path):
    async def main() -> None:
        async with (
            await tupelo.aio.connect(url) as one,
            await tupelo.aio.connect(url_in(elsewhere, f"o{uuid4()}")) as two,
            tupelo.aio.Space("file", path=tmp_path / "a.tupelo") as three,
        ):
            await one.write(("a", 1))
            async with tupelo.transaction(one, two, three) as txn:
                taken = await one.take(("a", int), txn=txn)
                await two.write(taken, txn=txn)
                await three.write(taken, txn=txn)
            assert [await space.count() for space in (one, two, three)] == [0, 1, 1]
            with pytest.raises(ValueError):
                async with tupelo.transaction(two, three) as txn:
                    await three.write(await two.take(("a", int), txn=txn), txn=txn)
                    raise ValueError
            assert [await space.count() for space in (one, two, three)] == [0, 1, 1]
            assert prepared(two) == []

    asyncio.run(main())


def test_a_transaction_over_several_spaces_ends_with_its_lease(space, elsewhere):
    with tupelo.connect(url_in(elsewhere, f"o{uuid4()}")) as other:
        space.write(("a", 1))
        txn = tupelo.transaction(space, other, lease=600)
        other.write(space.take(("a", int), txn=txn), txn=txn)
        txn.lease.renew(0.1)
        until_true(lambda: txn.over)
        with pytest.raises(TransactionEnded, match="lease"):
            other.write(("b", 1), txn=txn)
        assert (space.take(("a", int)), other.count()) == (("a", 1), 0)


def test_what_cannot_take_part_is_refused(space):
    with tupelo.Space() as here, tupelo.Space() as other:
        with tupelo.transaction(here, other) as txn, pytest.raises(BadArgument, match="txn="):
            space.write(("a",), txn=txn)
        with tupelo.transaction(space, here) as txn:
            for nested in (txn.transaction(),):
                with nested, pytest.raises(BadArgument, match="outermost"):
                    space.write(("a",), txn=nested)
            with pytest.raises(BadArgument, match="log of committed"):
                space.subscribe(("a",), txn=txn)
        assert space.count() == 0


def test_a_server_that_forbids_it_says_what_to_set(space, server):
    """The default: 0. A database that decides needs no prepared transaction, and so none there."""
    with tupelo.connect(url_in(server, f"o{uuid4()}")) as other:
        txn = other.transaction()
        other.write(("a", 1), txn=txn)
        with pytest.raises(CannotCommit, match="max_prepared_transactions"):
            txn.prepare()
        assert (txn.state, other.count()) == ("aborted", 0)
        shared = tupelo.transaction(space, other)
        for one in (space, other):
            one.write(("a", 1), txn=shared)
        with pytest.raises(CannotCommit, match="max_prepared_transactions"):
            shared.commit()
        assert space.count() == other.count() == 0
        with tupelo.transaction(other, space) as shared:
            for one in (space, other):
                one.write(("a", 1), txn=shared)
        assert space.count() == other.count() == 1


def test_what_is_prepared_outlives_its_program_and_server(elsewhere):
    url = url_in(elsewhere, f"o{uuid4()}")
    with tupelo.connect(url) as first:
        first.write_all([("a", n) for n in range(3)])
        for _ in range(2):
            txn = first.transaction()
            ((_, n),) = first.take_all(("a", int), limit=1, txn=txn)
            first.write(("b", n), txn=txn)
            txn.prepare()
    elsewhere.restart()
    with tupelo.connect(url) as space:
        assert space.take_all() == [("a", 2)]
        one, two = space.in_doubt()
        assert (one.state, two.state) == ("prepared", "prepared")
        one.commit()
        two.abort()
        assert (one.state, two.state) == ("committed", "aborted")
        assert sorted(space.read_all()) == [("a", 1), ("b", 0)]
        assert space.in_doubt() == []
        changes = space.changes()
        assert [change.position for change in changes] == [*range(1, 7)]
        assert sorted(change.kind for change in changes) == [*["taken"] * 2, *["written"] * 4]


def test_what_another_program_has_settled_is_not_told_otherwise(space, url):
    with tupelo.connect(f"{url}&application_name=other") as other:
        for n, (mine, theirs) in enumerate((("commit", "abort"), ("abort", "commit"))):
            txn = space.transaction()
            space.write(("a", n), txn=txn)
            txn.prepare()
            agreed, differs = [*other.in_doubt(), *other.in_doubt()]
            getattr(txn, mine)()
            with pytest.raises(TransactionEnded, match=f"is {mine}.*by another program"):
                getattr(differs, theirs)()
            getattr(agreed, mine)()
            assert agreed.state == differs.state == txn.state
        assert other.read_all() == [("a", 0)]


def test_who_waits_finds_what_was_committed_by_a_program_that_died(space, url):
    """Nobody is told: the commit is made by hand. Other connections, as of another program."""
    with tupelo.connect(f"{url}&application_name=other") as other:
        taker = Call(other.take, ("a", int))
        until_true(lambda: any(w.asleep for w in other.database.listener.waiting(other.id)))  # type: ignore[attr-defined]
        txn = space.transaction()
        space.write(("a", 1), txn=txn)
        txn.prepare()
        (name,) = (name for name in prepared(space) if txn.id in read_prepared_name(name)[1])
        with psycopg.connect(database_url(), autocommit=True) as link:
            link.execute(f"COMMIT PREPARED '{name}'".encode())
        assert taker.result() == ("a", 1)
        with pytest.raises(TransactionEnded, match="committed"):
            txn.abort()
        assert txn.state == "committed"


def test_a_name_of_a_prepared_transaction_is_short_and_can_be_read():
    txn_id = "|".join(["shared", uuid4().hex, "db.example:7700", *[uuid4().hex] * 3])
    assert read_prepared_name(prepared_name([7, 12], txn_id)) == ([7, 12], txn_id)
    with pytest.raises(CannotCommit, match="too long"):
        prepared_name([1], "x" * 300)


@pytest.mark.parametrize("commits", [True, False])
def test_a_manager_of_javaspaces_settles_what_it_left_prepared(
    space, elsewhere, tmp_path, monkeypatch, commits
):
    """It dies before it tells the databases of its decision, or before it decides."""

    def dies(*arguments: object) -> None:
        raise OSError("it is gone")

    with tupelo.connect(url_in(elsewhere, f"o{uuid4()}")) as other:
        space.write(("b", 1))
        with TransactionManager(tmp_path / "log") as manager:
            transaction = manager.create().transaction
            space.write(("a", 1), txn=transaction)
            other.write(("a", 2), txn=transaction)
            assert space.take(("b", 1), txn=transaction) == ("b", 1)
            if commits:
                monkeypatch.setattr(DatabaseBranch, "commit", dies)
                transaction.commit()
            else:
                monkeypatch.setattr(DecisionLog, "record", dies)
                monkeypatch.setattr(DatabaseBranch, "abort", dies)
                with pytest.raises(CannotCommit):
                    transaction.commit()
        monkeypatch.undo()
        assert len(space.in_doubt()) == len(other.in_doubt()) == 1
        assert space.count() == other.count() == 0
        with TransactionManager(tmp_path / "log") as manager:
            assert manager.recover(space, other) == 2
            assert manager.log.read_all(("committed", str, str)) == []
        assert space.read_all() == ([("a", 1)] if commits else [("b", 1)])
        assert other.read_all() == ([("a", 2)] if commits else [])


def test_recovery_of_one_space_keeps_the_decisions_about_others_of_its_database(
    space, elsewhere, tmp_path, monkeypatch
):
    def dies(*arguments: object) -> None:
        raise OSError("it is gone")

    with (
        tupelo.connect(url_in(elsewhere, f"o{uuid4()}")) as other,
        space.space(f"unused {uuid4()}") as unused,
    ):
        with TransactionManager(tmp_path / "log") as manager:
            transaction = manager.create().transaction
            space.write(("a", 1), txn=transaction)
            other.write(("a", 2), txn=transaction)
            monkeypatch.setattr(DatabaseBranch, "commit", dies)
            transaction.commit()
        monkeypatch.undo()
        with TransactionManager(tmp_path / "log") as manager:
            assert manager.recover(unused) == 0
            assert manager.recover(other) == 1
            assert manager.recover(space) == 1
            assert manager.log.read_all(("committed", str, str)) == []
        assert (space.read_all(), other.read_all()) == ([("a", 1)], [("a", 2)])


def test_what_other_programs_have_prepared_under_similar_names_does_no_harm(space):
    names = [f"tupelo:{space.id}", f"tupelo:{space.id}+x:{uuid4()}"]
    with psycopg.connect(space.database.conninfo) as link:
        for name in names:
            link.execute("CREATE TEMP TABLE IF NOT EXISTS none (x int)")
            link.rollback()
            link.execute("SELECT pg_current_xact_id()")
            link.execute(f"PREPARE TRANSACTION '{name}'".encode())
            link.rollback()
        try:
            assert space.in_doubt() == []
            assert not {one["name"] for one in space.host["prepared"]}.intersection(names)
        finally:
            link.autocommit = True
            for name in names:
                link.execute(f"ROLLBACK PREPARED '{name}'".encode())
