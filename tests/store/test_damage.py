"""Flipped bits and cut logs: a file is read right, or refused, or what is lost is named."""

import logging
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tupelo.errors import BadArgument, DamagedFile, JournalError, JournalFailed, SpaceInUse
from tupelo.space.port import port_of
from tupelo.store import highwater, sqlite
from tupelo.store.checking import examine, salvage
from tupelo.store.highwater import file_of, read_mark

SEED = 15
NOW = 1_000.0
FLIPS = 120
Image = dict[str, bytes]
"""The files of a journal, by the endings of their names."""


def fill(space: tupelo.Space) -> None:
    """A bit of everything: leases, renewals, endings, a trimmed log, large entries, a promise."""
    leases = [space.write(("early", n), lease=100 + n if n % 2 else None) for n in range(20)]
    leases[3].renew(500)
    leases[5].cancel()
    space.take_all(("early", int), limit=4)
    space.trim(before=15)
    space.write(("large", b"x" * 5_000))
    space.write(("for", "another"), to="another agent")
    space.write_all([("late", n, "y" * 40) for n in range(25)], lease=1_000)
    space.take_all(("late", int, str), limit=5)
    txn = space.transaction()
    space.take(("late", 7, str), txn=txn, wait=0)
    space.write(("promised",), txn=txn)
    txn.prepare()
    for n in range(5):
        space.write(("last", n))
    space.take(("last", 2), wait=0)


def files_of(path: Path) -> Image:
    files = {ending: path.with_name(path.name + ending) for ending in ("", "-wal", ".high")}
    return {ending: file.read_bytes() for ending, file in files.items() if file.exists()}


def put(image: Image, folder: Path) -> Path:
    """The files of this image in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for ending, content in image.items():
        (folder / ("jobs.tupelo" + ending)).write_bytes(content)
    return folder / "jobs.tupelo"


def opened(path: Path, **options: Any) -> tupelo.Space:
    return tupelo.Space(
        path=path, durability="process", clock=tupelo.ManualClock(NOW), log_keep="all", **options
    )


def contents(path: Path) -> dict[str, Any]:
    """All that a space of this file is and has: what lives, its promises, its log."""
    with opened(path) as space:
        engine: Any = space._port._engine
        first = engine.saved._first
        return {
            "living": {e.arrival: (e.n, e.origin, e.expires, e.fields) for e in engine.core.store},
            "promises": sorted(txn.id for txn in space.in_doubt()),
            "log": {
                c.position: (c.time, c.kind, c.arrival, c.n, c.agent, c.txn, c.expires, c.fields)
                for c in space.changes(since=first - 1)
            },
            "is": (space.name, engine.core.log.own.agent, engine.id, engine.core.arrivals, first),
        }


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The files of a journal after it was closed, and as a crash would leave them; its contents."""
    folder = tmp_path_factory.mktemp("images")
    path = folder / "jobs.tupelo"
    clock = tupelo.ManualClock(NOW)
    with tupelo.Space(path=path, clock=clock, durability="process", log_keep="all") as space:
        fill(space)
        crashed = files_of(path)
        assert list(crashed) == ["", "-wal", ".high"]
        port_of(space).crash()
    path = put(crashed, folder / "closed")
    opened(path).close()
    closed = files_of(path)
    assert list(closed) == [""]
    truth = contents(put(closed, folder / "truth"))
    assert contents(put(crashed, folder / "truth")) == truth
    assert len(truth["living"]) > 35 and truth["promises"] and len(truth["log"]) > 40
    yield closed, crashed, truth


def flipped(image: Image, chance: random.Random) -> Image:
    """The same files with one bit flipped."""
    ending = chance.choice([ending for ending in image if ending != ".high"])
    content = bytearray(image[ending])
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return {**image, ending: bytes(content)}


def silently_wrong(image: Image, truth: dict[str, Any], folder: Path) -> bool:
    try:
        return contents(put(image, folder)) != truth
    except JournalError:
        return False


def damage(images: Any, chance: random.Random) -> Iterator[Image]:
    closed, crashed, _ = images
    for number in range(FLIPS):
        yield flipped(closed if number % 3 else crashed, chance)


def test_no_flipped_bit_is_silently_wrong(images, tmp_path):
    truth = images[2]
    wrong = [
        number
        for number, image in enumerate(damage(images, random.Random(SEED)))
        if silently_wrong(image, truth, tmp_path / "image")
    ]
    assert not wrong


def test_without_checksums_flipped_bits_are_silently_wrong(images, tmp_path, monkeypatch):
    """A test of the test above."""

    class Right:
        """Equal to everything."""

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

    for name in ("entry_crc", "lease_crc", "meta_crc", "promise_crc"):
        monkeypatch.setattr(sqlite, name, lambda *_: Right())
    monkeypatch.setattr(sqlite, "is_entry_crc", lambda *_: True)
    monkeypatch.setattr(sqlite, "require_crc", lambda *_: None)
    monkeypatch.setattr(sqlite, "read_mark", lambda *_: None)
    monkeypatch.setattr(sqlite.SqliteJournal, "_require_living", lambda _: None)
    truth = images[2]
    wrong = [
        image
        for image in damage(images, random.Random(SEED))
        if silently_wrong(image, truth, tmp_path / "image")
    ]
    assert len(wrong) > FLIPS // 20, "the checksums are not what finds them"


def cuts(wal: bytes, chance: random.Random) -> list[int]:
    """Between frames, in the header of one, within a page, and anywhere."""
    frames = range(32, len(wal), 24 + 4_096)
    some = chance.sample(list(frames), 12)
    return [0, 1, 31, 32, *some, *(at + 10 for at in some[:4]), *(at + 999 for at in some[:4])]


def test_no_cut_of_the_write_ahead_log_is_silently_read_as_its_beginning(images, tmp_path):
    _, crashed, truth = images
    wal = crashed["-wal"]
    refused = 0
    for length in cuts(wal, random.Random(SEED)):
        path = put({**crashed, "-wal": wal[:length]}, tmp_path / "image")
        try:
            assert contents(path) == truth
        except DamagedFile as error:
            refused += 1
            assert error.found
            assert "were committed" in str(error) or "torn" in str(error) or length < 9_000
    assert refused > 15
    assert contents(put(crashed, tmp_path / "image")) == truth


def test_a_write_ahead_log_that_is_gone_is_missed(images, tmp_path):
    crashed = images[1]
    path = put({"": crashed[""], ".high": crashed[".high"]}, tmp_path / "image")
    with pytest.raises(DamagedFile, match=r"changes 1 to \d+ (were committed|not there)"):
        opened(path)


@pytest.mark.parametrize("lacking", [".high", "half of it"])
def test_without_its_mark_a_file_is_read_as_far_as_it_goes(images, tmp_path, lacking):
    crashed = dict(images[1])
    del crashed[".high"]
    if lacking != ".high":
        crashed[".high"] = images[1][".high"][:30]
    assert contents(put(crashed, tmp_path / "image")) == images[2]


def test_a_torn_slot_of_the_mark_leaves_the_other(tmp_path):
    path = tmp_path / "jobs.tupelo"
    mark = highwater.HighWaterFile(path, "id", synced=True)
    mark.write(1, 1, 7)
    mark.write(2, 2, 8)
    for place in (0, 512):
        content = bytearray(file_of(path).read_bytes())
        content[place + 20] ^= 1
        file_of(path).write_bytes(content)
        found = read_mark(path, "id")
        assert (found is None) if place else (found is not None and found.position in (1, 2))
    mark.write(3, 3, 9)
    assert read_mark(path, "id") == (3, 3, 9, 0)
    assert read_mark(path, "another") is None
    mark.close(remove=True)
    assert read_mark(path, "id") is None


def test_what_was_not_on_the_disk_yet_is_lost_with_the_power_and_told(
    images, tmp_path, monkeypatch, caplog
):
    crashed, truth = images[1], images[2]
    wal = crashed["-wal"]
    path = put({**crashed, "-wal": wal[: len(wal) - 3 * 4_120]}, tmp_path / "image")
    with pytest.raises(DamagedFile):
        opened(path)
    monkeypatch.setattr(sqlite, "this_boot", lambda: 6)  # The machine was started again.
    with caplog.at_level(logging.WARNING), opened(path) as space:
        assert space.count() < len(truth["living"]) and space.read(("early", 0), wait=0) is None
        lease = space.write(("new",))
    assert "not on the disk yet" in caplog.text and "changes" in caplog.text
    assert lease.thing.n > truth["is"][3] - 1, "a number was given twice"


def test_what_is_salvaged_is_right_and_what_is_lost_is_named(images, tmp_path):
    closed, crashed, truth = images
    chance = random.Random(SEED)
    salvaged = 0
    damaged = [flipped(closed if number % 3 else crashed, chance) for number in range(FLIPS)]
    wal = crashed["-wal"]
    damaged += [{**crashed, "-wal": wal[:at]} for at in cuts(wal, chance)]
    for image in damaged:
        path = put(image, tmp_path / "image")
        try:
            found = examine(path).found
            opened(path, damaged="salvage").close()
            if found:
                salvaged += 1
                assert path.with_name("jobs.tupelo.damaged-1").exists()
                told = path.with_name("jobs.tupelo.damaged-1.txt").read_text()
                assert told.splitlines() == [damage.text for damage in found]
        except JournalError as error:
            assert (
                "another program" in str(error)
                or "not a Tupelo" in str(error)
                or ("has format" in str(error))
            ), error
            continue
        assert not examine(path).found
        check_salvaged(contents(path), truth, found)
    assert salvaged > FLIPS // 2


def check_salvaged(saved: dict[str, Any], truth: dict[str, Any], found: list[Any]) -> None:
    lost = [d for d in found if d.lost != "nothing"]

    def is_named(position: int) -> bool:
        return any(d.first <= position <= d.last or not d.first for d in lost)

    history = {c[2]: c[3] for c in truth["log"].values() if c[1] == "written"}
    for arrival, entry in saved["living"].items():
        if arrival in truth["living"]:
            assert entry[3] == truth["living"][arrival][3]
            assert entry == truth["living"][arrival] or lost
        else:  # It is back, for what ended it is lost.
            assert entry[0] == history.get(arrival, entry[0]) and lost
    for arrival in truth["living"].keys() - saved["living"].keys():
        assert is_named(arrival), (arrival, found)
    for position, change in saved["log"].items():
        assert truth["log"][position] == change or lost
    for position in truth["log"].keys() - saved["log"].keys():
        assert any(d.last >= position or not d.first for d in lost), (position, found)
    assert set(saved["promises"]) <= set(truth["promises"])
    if saved["promises"] != truth["promises"]:
        assert lost


# Checking


def test_a_whole_file_is_found_whole(images, tmp_path):
    closed, crashed, truth = images
    for image in (closed, crashed):
        path = put(image, tmp_path / "image")
        examination = examine(path)
        assert examination.found == []
        assert (examination.entries, examination.changes) == (
            len(truth["living"]) + 1,  # one is taken by the promise
            len(truth["log"]),
        )
        assert files_of(path) == image


@pytest.mark.parametrize(
    ("spoil", "lost", "says"),
    [
        ("UPDATE change SET payload = x'93' WHERE position = 45", "change", "45"),
        ("UPDATE change SET kind = 2 WHERE position = 45", "change", "45"),
        ("UPDATE change SET time = 5 WHERE position = 45", "change", "45"),
        ("DELETE FROM change WHERE position BETWEEN 30 AND 33", "change", "30 to 33"),
        ("DELETE FROM change WHERE position = (SELECT max(position) FROM change)", "change", ""),
        ("DELETE FROM change WHERE position = 10", "entry", "before the log begins"),
        ("UPDATE change SET lease = lease + 1 WHERE position = 45", "nothing", "45"),
        ("UPDATE change SET ended = 50 WHERE position = 45", "nothing", "45"),
        ("UPDATE promise SET payload = x'93'", "promise", "checksum"),
        ("DELETE FROM promise", "entry", "promises"),
        ("UPDATE meta SET value = 'me' WHERE key = 'agent'", "description", "checksum"),
        ("DELETE FROM meta WHERE key = 'name'", "description", "name"),
        ("PRAGMA user_version = 4", "nothing", "format 4"),
    ],
)
def test_what_is_wrong_is_named(images, tmp_path, spoil, lost, says):
    path = put(images[0], tmp_path / "image")
    with closing(sqlite3.connect(path)) as db:
        db.execute(spoil)
        db.commit()
    found = examine(path).found
    assert any(d.lost == lost and says in d.text for d in found), found
    with pytest.raises(DamagedFile) as refused:
        contents(path)
    assert not refused.value.found or refused.value.found == tuple(found)


def test_salvage_writes_a_new_file_and_leaves_the_old_one(images, tmp_path):
    path = put(images[0], tmp_path / "image")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE change SET payload = x'93' WHERE position = 45")
        db.commit()
    before = files_of(path)
    good = tmp_path / "good.tupelo"
    assert [d.first for d in salvage(path, good).found] == [45]
    assert files_of(path) == before
    assert len(contents(good)["living"]) == len(images[2]["living"]) - 1
    assert min(contents(good)["log"]) == 46
    with pytest.raises(JournalFailed, match="exists already"):
        salvage(path, good)


def test_the_argument_is_checked(tmp_path):
    with pytest.raises(BadArgument, match="damaged="):
        tupelo.Space(path=tmp_path / "jobs.tupelo", damaged="mend")  # type: ignore[arg-type]


def test_a_new_file_and_a_whole_one_are_opened_with_salvage_too(tmp_path):
    for count in (0, 1):
        with opened(tmp_path / "jobs.tupelo", damaged="salvage") as space:
            assert space.count() == count
            space.write(("n", count))
        assert [file.name for file in tmp_path.iterdir()] == ["jobs.tupelo"]


def test_a_file_in_use_is_not_checked(open_space, path):
    open_space()
    with pytest.raises(SpaceInUse, match="open in another space"):
        examine(path)


@pytest.mark.parametrize("damaged", ["99", "-5", "NULL", "'abc'", "x'00'"])
@pytest.mark.parametrize(("trimmed", "expected"), [(1, 3), (5, 3), (6, 0)])
def test_a_damaged_count_of_deliveries_is_taken_from_the_log(tmp_path, damaged, trimmed, expected):
    """Unless the log begins after the last change of the entry."""
    path = tmp_path / "jobs.tupelo"
    with opened(path) as space:
        space.write_all([("good",), ("bad",)])
        for _ in range(3):
            txn = space.transaction()
            space.take(("bad",), txn=txn, wait=0)
            txn.abort()
        space.write(("last",))
        space.trim(before=trimmed)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE change SET returns = {damaged} WHERE position = 2")
        db.commit()
    (found,) = salvage(path, tmp_path / "good.tupelo").found
    assert found.lost == "nothing" and found.first == 2
    assert ("not known" in str(found)) == (expected == 0)
    assert not examine(tmp_path / "good.tupelo").found
    with opened(tmp_path / "good.tupelo") as space:
        about: list[tupelo.About] = []
        assert space.read_all(about=about) == [("good",), ("bad",), ("last",)]
        assert [one.deliveries for one in about] == [0, expected, 0]
