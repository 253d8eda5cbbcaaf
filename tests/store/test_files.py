"""Files that are not ours, not whole, not free or not writable: refused, and left as they were."""

import os
import signal
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import tupelo
from tupelo.errors import DamagedFile, ForeignFile, JournalFailed, SpaceInUse
from tupelo.store.checking import examine

HOLDER = """
import sys, tupelo
space = tupelo.Space("jobs", path=sys.argv[1])
space.write(("held", 1))
print("open", flush=True)
sys.stdin.readline()
space.close()
print("closed", flush=True)
"""


# In use


def test_a_space_opened_twice_is_refused(open_space, path):
    space = open_space()
    space.write(("a",))
    with pytest.raises(SpaceInUse, match=r"jobs\.tupelo"):
        tupelo.Space("jobs", path=path)
    with pytest.raises(SpaceInUse):
        tupelo.aio.Space("jobs", path=path)
    space.write(("b",))
    space.close()
    assert open_space().count() == 2


def test_a_space_is_known_by_any_of_its_names(open_space, path, tmp_path, monkeypatch):
    open_space().write(("a",))
    link = Path(tmp_path) / "link.tupelo"
    link.symlink_to(path)
    monkeypatch.chdir(tmp_path)
    for name in (link, "jobs.tupelo", f"{tmp_path}/../{Path(tmp_path).name}/jobs.tupelo"):
        with pytest.raises(SpaceInUse):
            tupelo.Space("jobs", path=name)


def test_a_space_in_another_process_is_refused_until_it_closes(open_space, path, program):
    holder = program(HOLDER, path)
    assert holder.line() == "open"
    with pytest.raises(SpaceInUse):
        open_space()
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.line() == "closed"
    assert open_space().read_all() == [("held", 1)]


def test_a_process_that_dies_lets_go(open_space, path, program):
    holder = program(HOLDER, path)
    assert holder.line() == "open"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert open_space().read_all() == [("held", 1)]


def test_a_child_process_does_not_hold_the_file_for_its_parent(open_space, path, program):
    space = open_space()
    idle = program("import sys; print('up', flush=True); sys.stdin.readline()")
    assert idle.line() == "up"
    space.close()
    open_space().write(("a",))


def test_a_space_that_was_refused_can_be_opened_later(open_space, path):
    space = open_space()
    for _ in range(3):
        with pytest.raises(SpaceInUse):
            tupelo.Space("jobs", path=path)
    space.close()
    open_space()


# Foreign


def refuse_and_leave(
    path: Path, bytes_of: Callable[[], dict[str, bytes]], error: type[Exception], says: str
) -> None:
    before = bytes_of()
    with pytest.raises(error, match=says) as refused:
        tupelo.Space("jobs", path=path)
    assert path.name in str(refused.value)
    after = bytes_of()
    assert after == before


@pytest.mark.parametrize(
    "content",
    [b"x", b"Dear diary,\n" * 100, b"\x00" * 5_000, b"SQLite format 3\x00", b"\x89PNG" * 1_000],
    ids=["a byte", "a text", "zeroes", "a header cut short", "a picture"],
)
def test_a_foreign_file_is_refused_and_left_as_it_was(path, bytes_of, content):
    path.write_bytes(content)
    refuse_and_leave(path, bytes_of, ForeignFile, "not a Tupelo journal|left as it was")


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_database_of_another_program_is_refused_and_left_as_it_was(path, bytes_of, mode):
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("CREATE TABLE change (precious)")
        db.execute("INSERT INTO change VALUES ('data')")
        db.commit()
    refuse_and_leave(path, bytes_of, ForeignFile, "another program")


def test_a_newer_format_is_refused_and_left_as_it_was(open_space, path, bytes_of):
    open_space().close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    refuse_and_leave(path, bytes_of, ForeignFile, "format 99")


def test_a_folder_is_no_file(tmp_path, bytes_of):
    folder = Path(tmp_path) / "folder"
    folder.mkdir()
    with pytest.raises(JournalFailed, match="folder"):
        tupelo.Space("jobs", path=folder)
    assert list(Path(tmp_path).iterdir()) == [folder] and not list(folder.iterdir())


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = Path(tmp_path) / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    with pytest.raises(ForeignFile, match="no file"):
        tupelo.Space("jobs", path=path)
    with pytest.raises(ForeignFile, match="no file"):
        examine(path)
    with pytest.raises(ForeignFile, match="no file"):
        tupelo.Space("jobs", path=path, damaged="salvage")


def test_a_file_may_have_a_long_name(tmp_path):
    path = Path(tmp_path) / ("%C3" * 80 + ".tupelo")
    for count in range(2):
        with tupelo.Space("jobs", path=path, damaged="salvage") as space:
            assert space.count() == count
            space.write(("n", count))


def test_a_folder_that_does_not_exist_is_not_made(tmp_path):
    with pytest.raises(JournalFailed, match="nowhere"):
        tupelo.Space("jobs", path=Path(tmp_path) / "nowhere" / "jobs.tupelo")
    assert not list(Path(tmp_path).iterdir())


def test_an_empty_file_is_a_new_space(open_space, path):
    path.touch()
    space = open_space()
    space.write(("a",))
    assert space.count() == 1


# Damaged


@pytest.fixture
def full_file(open_space, path):
    """A file of many pages, closed."""
    space = open_space(durability="process")
    space.write_all([("n", i, b"x" * 300) for i in range(400)])
    space.take_all(limit=100)
    space.close()
    assert path.stat().st_size > 100_000
    return path


@pytest.mark.parametrize("part", [0.02, 0.3, 0.5, 0.99])
def test_a_torn_file_is_refused_and_left_as_it_was(full_file, bytes_of, part):
    content = full_file.read_bytes()
    full_file.write_bytes(content[: int(len(content) * part)])
    refuse_and_leave(full_file, bytes_of, DamagedFile, "torn|damaged")


def test_a_file_that_lacks_its_last_byte_is_torn(full_file, bytes_of):
    full_file.write_bytes(full_file.read_bytes()[:-1])
    refuse_and_leave(full_file, bytes_of, DamagedFile, "torn")


@pytest.mark.parametrize("garbage", [b"\xff", b"\x00", b"garbage!"], ids=["ones", "zeroes", "text"])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.35, 0.6, 0.85])
def test_garbage_in_the_file_is_refused_and_left_as_it_was(full_file, bytes_of, part, garbage):
    content = bytearray(full_file.read_bytes())
    start = max(100, int(len(content) * part) // 4_096 * 4_096)
    content[start : start + 4_096] = (garbage * 4_096)[:4_096]
    full_file.write_bytes(content)
    refuse_and_leave(full_file, bytes_of, DamagedFile, "damaged")


def test_a_payload_that_encodes_no_entry_is_refused(full_file, bytes_of):
    with closing(sqlite3.connect(full_file)) as db:
        db.execute("UPDATE change SET payload = x'c1' WHERE position = 350")
        db.commit()
    refuse_and_leave(full_file, bytes_of, DamagedFile, "damaged")


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE change",
        "DROP TABLE meta",
        "DROP TABLE promise",
        "DELETE FROM meta WHERE key = 'name'",
        "DELETE FROM meta WHERE key = 'agent'",
        "UPDATE meta SET value = 'x' WHERE key = 'position'",
        "UPDATE meta SET value = NULL",
        "INSERT INTO promise VALUES ('txn', x'c1', 1)",
        "INSERT INTO promise VALUES ('txn', x'93909399999990', 1)",
        "UPDATE change SET payload = NULL WHERE position = 350",
        "UPDATE change SET payload = 'text' WHERE position = 350",
        "UPDATE change SET lease = 'soon' WHERE position = 350",
        "UPDATE change SET n = NULL WHERE position = 350",
    ],
)
def test_a_file_that_someone_changed_is_refused(full_file, bytes_of, damage):
    with closing(sqlite3.connect(full_file)) as db:
        db.execute(damage)
        db.commit()
    refuse_and_leave(full_file, bytes_of, DamagedFile, "damaged")


def test_a_refused_file_can_be_mended_and_opened(full_file, open_space):
    whole = full_file.read_bytes()
    full_file.write_bytes(whole[:-5_000])
    with pytest.raises(DamagedFile):
        open_space()
    full_file.write_bytes(whole)
    assert open_space().count() == 300


# Making the file

DIES_MAKING = """
import os, sqlite3, sys, tupelo

statements = 0
connect = sqlite3.connect

def dying_connect(*args, **kwargs):
    db = connect(*args, **kwargs)
    def count(statement):
        global statements
        statements += 1
        if statements == int(sys.argv[2]):
            os._exit(9)
    db.set_trace_callback(count)
    return db

sqlite3.connect = dying_connect
tupelo.Space("jobs", path=sys.argv[1])
print("made", flush=True)
os._exit(0)
"""


def test_a_process_that_dies_while_it_makes_the_file_leaves_a_usable_name(path, program):
    died = 0
    for statement in range(1, 60, 2):
        maker = program(DIES_MAKING, path, statement)
        out, errors = maker.communicate(timeout=60)
        assert maker.returncode in (0, 9), errors
        with tupelo.Space("jobs", path=path) as space:
            space.write(("fine",))
            assert space.count() == 1
        path.unlink()
        if out:
            break
        died += 1
    assert died > 3, "it never died; what is tested here?"


def test_the_folder_holds_the_file_and_little_else_when_the_space_is_closed(open_space, tmp_path):
    space = open_space()
    space.write(("a",))
    space.close()
    assert [file.name for file in Path(tmp_path).iterdir()] == ["jobs.tupelo"]
