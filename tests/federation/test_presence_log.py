"""A host that has a folder logs when it met whom: the log of its presence outlives it."""

from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.federation.company import await_host, await_space, meet
from tupelo.federation.names import PRESENCE


def told(space: Any, *, of: str | None = None) -> list[tuple[str, str, str]]:
    """What the log says of hosts: (kind, name of the host, how)."""
    return [
        (c.kind, c.entry.name, c.entry.how)
        for c in space.changes()
        if c.kind in ("engaged", "disengaged") and (of is None or c.entry.name == of)
    ]


def of_the_file(folder: Path) -> list[tuple[str, str, str]]:
    with tupelo.Space(path=folder / f"{PRESENCE}.tupelo") as space:
        return told(space)


def test_the_log_says_who_was_met_and_how_it_left(threads, tmp_path):
    host = threads.host("first", path=tmp_path)
    second, third = threads.host("second"), threads.child("third")
    meet(host, second)
    host.engage(third.address)
    await_space(host, third.id)
    second.close()
    await_host(host, second.id, "departed")
    third.kill()
    await_host(host, third.id, "departed")
    log = told(host.presence)
    assert log[0] == ("engaged", "first", "")
    assert [(kind, how) for kind, name, how in log if name == "second"] == [
        ("engaged", ""),
        ("disengaged", "goodbye"),
    ]
    assert told(host.presence, of="third") == [
        ("engaged", "third", ""),
        ("disengaged", "third", "closed"),
    ]
    host.close()
    assert of_the_file(tmp_path) == [*log, ("disengaged", "first", "goodbye")]


def test_a_host_that_leaves_parts_from_those_who_stay(threads, tmp_path):
    host, other = threads.host("first", path=tmp_path), threads.host("second")
    meet(host, other)
    host.close()
    assert sorted(of_the_file(tmp_path)[-2:]) == [
        ("disengaged", "first", "goodbye"),
        ("disengaged", "second", "goodbye"),
    ]


def test_a_host_that_was_killed_has_parted_when_it_comes_back(threads, tmp_path):
    host = threads.host("first")
    child = threads.child("second", path=str(tmp_path))
    host.engage(child.address)
    await_space(host, child.id)
    with tupelo.connect(f"tupelo://{child.address}/{PRESENCE}") as presence:
        assert ("engaged", "first", "") in told(presence)
    child.kill()
    host.close()
    again = threads.child("second", path=str(tmp_path))
    with tupelo.connect(f"tupelo://{again.address}/{PRESENCE}") as presence:
        assert told(presence, of="first")[-1] == ("disengaged", "first", "closed")
        assert told(presence)[-1] == ("engaged", "second", "")
        names = [found.name for found in presence.read_all(tupelo.HostPresence(), wait=0)]
        assert names == ["second"]  # What was there in its last life is forgotten.


def test_a_host_without_a_folder_keeps_no_log(threads):
    host = threads.host("first")
    with pytest.raises(tupelo.errors.LogTrimmed):
        host.presence.changes()
