"""A full disk, for real: a small file system of its own. Changes are refused with an error each,
reads go on, and when there is room again so does the space."""

import asyncio

import pytest

import tupelo
from tests.conftest import leave_free
from tupelo import aio
from tupelo.errors import DiskFull, JournalFailed
from tupelo.lab.virtual_world import Disk
from tupelo.space.port import port_of
from tupelo.store.diskroom import ENOUGH_BYTES, RESERVE_BYTES, TAKING_BYTES


@pytest.mark.parametrize("durability", ["full", "process"])
def test_a_full_disk_is_left_behind(disk, durability, caplog):
    with tupelo.Space("jobs", path=disk / "jobs", durability=durability) as space:
        lease = space.write(("before", 1), lease=60)
        assert port_of(space).health == "ok"
        ballast = leave_free(disk, RESERVE_BYTES - 4096)
        space.write(("the last", 2))  # The commit sees that there is little left.
        for attempt in (
            lambda: space.write(("late", 1)),
            lambda: space.write_all([("late", 1), ("late", 2)]),
            lambda: lease.renew(90),
        ):
            with pytest.raises(DiskFull, match="nothing was done") as raised:
                attempt()
            assert not raised.value.in_doubt
        assert "the disk is full" in port_of(space).health
        assert space.read_all() == [("before", 1), ("the last", 2)]
        assert space.count(("late", int)) == 0
        assert caplog.text.count("the disk is full") == 1

        ballast.unlink()
        assert port_of(space).health == "ok"
        space.write(("after", 3))
        assert caplog.text.count("the disk has room again") == 1
    with tupelo.Space(path=disk / "jobs") as space:
        assert space.read_all() == [("before", 1), ("the last", 2), ("after", 3)]


def test_a_transaction_is_not_committed_half_way(disk):
    with tupelo.Space("jobs", path=disk / "jobs") as space:
        space.write(("held", 1))
        txn = space.transaction()
        space.take(("held", int), wait=0, txn=txn)
        space.write(("new", 2), txn=txn)
        ballast = leave_free(disk, RESERVE_BYTES - 4096)
        space.write(("the last", 3))
        with pytest.raises(DiskFull):
            txn.commit()
        assert txn.state == "active"
        assert space.read(("held", int), wait=0) is None
        ballast.unlink()
        txn.commit()
    with tupelo.Space(path=disk / "jobs") as space:
        assert sorted(space.read_all()) == [("new", 2), ("the last", 3)]


def test_takes_go_on_longer_than_writes(disk):
    with tupelo.Space("jobs", path=disk / "jobs") as space:
        space.write_all([("job", n) for n in range(10)])
        leave_free(disk, RESERVE_BYTES - 4096)
        assert space.take(("job", int), wait=0) == ("job", 0)
        with pytest.raises(DiskFull):
            space.write(("job", 10))
        assert space.take(("job", int), wait=0) == ("job", 1)
        leave_free(disk, TAKING_BYTES - 4096)
        with pytest.raises(DiskFull):
            space.take(("job", int), wait=0)
        assert space.read(("job", int), wait=0) == ("job", 2)


def test_a_write_that_is_too_large_for_the_disk_is_not_begun(disk):
    with tupelo.Space("jobs", path=disk / "jobs") as space:
        leave_free(disk, ENOUGH_BYTES)
        with pytest.raises(DiskFull, match="nothing was done"):
            space.write_all([(n, b"x" * 2**20) for n in range(20)])
        assert space.count() == 0
        space.write(("small",))
    with tupelo.Space(path=disk / "jobs") as space:
        assert space.read_all() == [("small",)]


def test_a_commit_without_room_is_in_doubt_and_kept_later(disk):
    """Somebody else fills the disk, faster than it can be seen."""
    with tupelo.Space("jobs", path=disk / "jobs") as space:
        space.write(("before",))
        ballast = leave_free(disk, 0)
        with pytest.raises(DiskFull) as raised:
            space.write(("in doubt", b"x" * 2**20))
        assert raised.value.in_doubt
        with pytest.raises(DiskFull, match="nothing was done"):
            space.write(("late",))
        assert space.read(("before",), wait=0) == ("before",)
        with pytest.raises(DiskFull):  # A reader is not shown what may yet be lost.
            space.read(("in doubt", bytes), wait=0)
        ballast.unlink()
        space.write(("after",))
        assert space.read(("in doubt", bytes), wait=0) is not None
    with tupelo.Space(path=disk / "jobs") as space:
        assert [entry[0] for entry in space.read_all()] == ["before", "in doubt", "after"]


FILLS = """
import sys, tupelo
from tupelo.errors import DiskFull, JournalFailed
from tupelo.lab.virtual_world import Disk
from tupelo.space.port import port_of
space = tupelo.Space("jobs", path=sys.argv[1])
written, refused = 0, 0
while refused < 3:
    try:
        space.write(("n", written, b"x" * 50_000))
        written += 1
    except DiskFull:
        refused += 1
print(written, flush=True)
sys.stdin.readline()
for _ in range(5):
    space.write(("n", written, b"x"))
    written += 1
print(written, flush=True)
sys.stdin.readline()
"""


def test_everything_acknowledged_survives_a_kill(disk, program):
    other = leave_free(disk, 24 * 2**20)
    child = program(FILLS, disk / "jobs")
    filled = int(child.stdout.readline())
    assert filled > 50
    other.unlink()
    child.stdin.write("\n")
    child.stdin.flush()
    written = int(child.stdout.readline())
    assert written == filled + 5
    child.kill()
    child.wait()
    with tupelo.Space("jobs", path=disk / "jobs") as space:
        assert [entry[1] for entry in space.read_all()] == list(range(written))


def test_at_the_async_door_and_at_a_host(disk):
    async def run() -> None:
        async with aio.Host("home", listen=0, path=disk) as host:
            there = host.space("jobs")
            async with await aio.connect(f"tupelo://{host.address}/jobs") as client:
                await client.write(("job", 1))
                assert host.health == {}
                ballast = leave_free(disk, TAKING_BYTES - 4096)
                await client.write(("job", 2))
                for space in (client, there):
                    with pytest.raises(DiskFull):
                        await space.write(("job", 3))
                    with pytest.raises(DiskFull):
                        await space.take(("job", int), wait=0)
                    assert await space.read(("job", int), wait=0) == ("job", 1)
                assert "the disk is full" in host.health["jobs"]
                ballast.unlink()
                assert await client.take(("job", int), wait=0) == ("job", 1)
                await client.write(("job", 4))
                assert host.health == {}
                assert await there.count() == 2

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_take_without_room_for_its_commit_takes_nothing(tmp_path, kind):
    place = Disk()
    with tupelo.Space("jobs", path=tmp_path / "jobs") as space:
        space.write(("job", 1))
        port = port_of(space)
        assert port.saved is not None
        place.hold(port.saved)
        place.full = True
        with pytest.raises(DiskFull, match="nothing was done") as raised:
            if kind == "async":
                asyncio.run(_take(space))
            else:
                space.take(("job", int), wait=0)
        assert not raised.value.in_doubt
        assert port.under_way()["deliveries"] == []
        place.full = False
        assert space.take(("job", int), wait=0) == ("job", 1)
    with tupelo.Space(path=tmp_path / "jobs") as space:
        assert space.read_all() == []


@pytest.mark.parametrize("verb", ["write", "take"])
def test_a_full_disk_that_fails_closes_the_space(tmp_path, verb):
    place = Disk()
    with tupelo.Space("jobs", path=tmp_path / "jobs") as space:
        space.write(("job", 1))
        port = port_of(space)
        assert port.saved is not None
        place.hold(port.saved)
        place.full = True
        with pytest.raises(DiskFull) as raised:
            space.write(("job", 2))
        assert raised.value.in_doubt
        place.full, place.failed = False, True
        for _ in range(2):
            with pytest.raises(JournalFailed, match="disk I/O error"):
                space.write(("job", 3)) if verb == "write" else space.take(("job", int), wait=0)
        assert "disk I/O error" in port.health
    with tupelo.Space(path=tmp_path / "jobs") as space:
        assert space.read_all() == [("job", 1)]


async def _take(space):
    return await aio.Space(space).take(("job", int), wait=0)
