"""The log in columns, as a host hands it out."""

from typing import Any

import pytest

import tupelo
from tupelo.errors import BadArgument
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
    *_, columns = space._port._engine.log_columns(names, 1, 100)
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
