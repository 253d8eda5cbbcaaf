"""The log in columns, as a host hands it out."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import tupelo
from tests.store.test_reopening import OLDER, make_older
from tupelo.errors import BadArgument
from tupelo.space.port import port_of
from tupelo.store import tail
from tupelo.store.journal import MemoryJournal
from tupelo.values.change import Change


@pytest.fixture(params=["memory", "file"])
def space(request, tmp_path):
    options: dict[str, Any] = {"log_keep": 100}
    if request.param == "file":
        options["path"] = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", **options) as space:
        yield space


def columns_of(space: tupelo.Space, *names: str) -> list[list[Any]]:
    *_, columns = port_of(space).log_columns(names, 1, 100)
    return [list(column) for column in columns]


def test_a_column_is_asked_for_once(space):
    space.write(("job", 1))
    assert columns_of(space, "position", "kind") == [[1], ["written"]]
    for names in (["payload"] * 2, ["position"] * 5_000, ["bogus"]):
        with pytest.raises(BadArgument, match="each once"):
            columns_of(space, *names)


def test_an_answer_is_bounded_by_the_entries_in_it(space, monkeypatch):
    space.write_all([("job", "x" * 400)] * 10)
    assert len(columns_of(space, "payload")[0]) == 10
    monkeypatch.setattr(tail, "BYTES_MAX", 1_000)
    assert columns_of(space, "position") == [[*range(1, 11)]]
    assert columns_of(space, "position", "payload")[0] == [1, 2]
    monkeypatch.setattr(tail, "BYTES_MAX", 100)
    assert columns_of(space, "position", "payload")[0] == [1]  # Never none: nobody could go on.


def test_an_answer_is_bounded_by_the_texts_in_it(monkeypatch):
    monkeypatch.setattr(tail, "BYTES_MAX", 1_000)
    journal = MemoryJournal(None)
    texts: dict[str, Any] = {"agent": "a" * 200, "to": "b" * 200, "session": None}
    journal.append([Change(p, 0.0, "written", p, "me", p, **texts) for p in range(1, 11)])
    assert tail.tail_of(journal, ["position", "agent"], 1, 10)[2][0] == [1, 2, 3, 4, 5]
    asked = ["to", "position", "session", "agent"]
    assert tail.tail_of(journal, asked, 1, 10)[2][1] == [1, 2]


def test_a_file_tells_the_same_changes_as_its_space(tmp_path, clock):
    path: Path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, clock=clock, log_reads=True) as space:
        space.write(("late",), delay=5, lease=10)
        space.write(("for", "another"), to="another agent")
        clock.advance(5)
        txn = space.transaction()
        space.take(("late",), txn=txn, wait=0)
        txn.abort()
        txn = space.transaction()
        space.take(("late",), txn=txn, wait=0)
        txn.prepare()
        with space.session() as session:
            session.read(wait=0)
        expected = [msgspec.structs.asdict(change) for change in space.changes()]
        found = [msgspec.structs.asdict(change) for change in tail.changes_in(path, 0, 100)]
        txn.abort()
    assert found == expected and {change["kind"] for change in found} >= {"delayed", "released"}


@pytest.mark.parametrize(("form", "lacking"), OLDER)
def test_a_file_of_an_older_format_is_followed(tmp_path, form, lacking):
    path: Path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path) as space:
        space.write(("old", 1))
        space.take(wait=0)
    make_older(path, form, lacking)
    found = tail.changes_in(path, 0, 100)
    assert [(c.kind, c.entry, c.to, c.agent_name, c.deliveries) for c in found] == [
        ("written", ("old", 1), None, "", 0),
        ("taken", ("old", 1), None, "", 0),
    ]
