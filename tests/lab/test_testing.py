"""`tupelo.testing`, as the tests of a user's program use it."""

import asyncio
import subprocess
import sys

import pytest

import tupelo
from tupelo.errors import BadArgument
from tupelo.models import melon
from tupelo.testing import run_federation

CONFTEST = 'pytest_plugins = ["tupelo.testing"]'
TESTS = """
def test_a_lease_ends_when_the_clock_is_moved(tupelo_space, tupelo_clock):
    tupelo_space.write(("job", 1), lease=60)
    tupelo_clock.advance(59)
    assert tupelo_space.count() == 1
    tupelo_clock.advance(2)
    assert tupelo_space.count() == 0


def test_a_federation(tupelo_federation):
    async def scene(federation):
        await federation.host("a").space("jobs").write(("job", 1))
        assert await federation.host("b").space("jobs").take(("job", int)) == ("job", 1)

    tupelo_federation(scene, "a", "b")
"""


def test_the_fixtures_are_those_of_a_plugin(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_hosts_part_and_meet_in_virtual_time():
    async def scene(federation):
        await federation.engaged()
        here, there = (federation.host(name).space("jobs") for name in ("office", "van"))
        await there.write(("job", 1))
        assert await here.read(("job", int), wait=10) == ("job", 1)

        federation.part(("office",), ("van",))
        await asyncio.sleep(3600)  # an hour, at once
        await there.write(("job", 2))
        assert await here.read(("job", int), wait=0) is None
        federation.meet()
        await federation.engaged()
        assert sorted(await here.read_all(("job", int))) == [("job", 1), ("job", 2)]

    run_federation(scene, "office", "van")


def test_a_host_that_crashes_has_its_entries_when_it_starts_again():
    async def scene(federation):
        await federation.host("office").space("jobs").write(("job", 1))
        await federation.crash("office")
        with pytest.raises(BadArgument, match="a host that is up"):
            federation.host("office")
        await federation.restart("office")
        assert await federation.host("office").space("jobs").read(("job", int)) == ("job", 1)
        with pytest.raises(BadArgument, match="a host that has crashed"):
            await federation.restart("office")

    run_federation(scene, "office")


def test_a_model_runs_on_the_hosts():
    async def scene(federation):
        async with (
            melon.Melon(federation.host("a")) as desk,
            melon.Melon(federation.host("c")) as reader,
        ):
            await desk.write(("news", 1))
            assert await reader.read(("news", int), wait=60) == ("news", 1)

    run_federation(scene, "a", "b", "c")


def test_the_same_seed_gives_the_same_events():
    def digest(seed: int) -> str:
        found: list[str] = []

        async def scene(federation):
            await federation.engaged()
            await federation.host("a").space("jobs").write(("job", 1))
            assert await federation.host("b").space("jobs").take(("job", int), wait=10)
            found.append(federation.network.digest)

        run_federation(scene, "a", "b", seed=seed)
        return found[0]

    assert digest(1) == digest(1) != digest(2)


def test_bad_arguments_are_named():
    async def scene(federation):
        with pytest.raises(BadArgument, match="name"):
            federation.host("nobody")
        with pytest.raises(BadArgument, match="name"):
            federation.part(("a",), ("nobody",))
        federation.part(("a",), ("b",))
        await asyncio.sleep(60)
        with pytest.raises(TimeoutError, match="does not know"):
            await federation.engaged()

    run_federation(scene, "a", "b")
    for names in [(), ("a", "a")]:
        with pytest.raises(BadArgument, match="names"):
            run_federation(scene, *names)


def test_the_error_of_a_scene_is_raised():
    async def scene(federation):
        await federation.host("a").space("jobs").read(("job", int), wait=5)
        raise tupelo.errors.BadInput("no job came")

    with pytest.raises(tupelo.errors.BadInput, match="no job came"):
        run_federation(scene, "a")
