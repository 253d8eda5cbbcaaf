"""Classes of agents that a host finds in packages, which its owner allows."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.lime.stage import PATIENCE_SECONDS, Stage, at_both_doors, do, shared
from tupelo.errors import BadArgument, LoadFailed
from tupelo.federation.identity.keys import Identity
from tupelo.models.lime import Agent, AgentPackages, HostLocation, LimeTupleSpace, sign_package

CODE = """
from tupelo.models.lime import Agent, LimeTupleSpace
from {module}_help import WORD

class Roamer(Agent):
    def __init__(self):
        self.target = ""

    def run(self):
        board = LimeTupleSpace("board")
        board.set_shared(True)
        board.out(("here", self.host.name, WORD, self.target))

class AsyncRoamer(Agent):
    def __init__(self):
        self.target = ""

    async def run(self):
        board = LimeTupleSpace("board")
        await board.set_shared(True)
        await board.out(("here", self.host.name, WORD, self.target))

class Stone:
    pass
"""
NAMES = ("Roamer", "AsyncRoamer", "Stone")
HERE = ("here", str, str, str)


class Roamer(Agent):
    """The same class, as it is at another host: it goes away at once."""

    def __init__(self, target: str) -> None:
        self.target = target

    def run(self) -> None:
        self.migrate(HostLocation(self.target))


class AsyncRoamer(Agent):
    """The same, for the async door."""

    def __init__(self, target: str) -> None:
        self.target = target

    async def run(self) -> None:
        await self.migrate(HostLocation(self.target))


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What packages bring is forgotten."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.startswith("roaming"):
            del sys.modules[name]


def package(folder: Path, ending: str, module: str = "roaming", word: str = "word") -> Path:
    path = folder / f"{module}.{ending}"
    inside = f"{module}-1.0.dist-info/" if ending == "whl" else ""
    points = "".join(f"{name} = {module}:{name}\n" for name in NAMES)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", CODE.format(module=module))
        archive.writestr(f"{module}_help.py", f"WORD = {word!r}")
        archive.writestr(f"{inside}entry_points.txt", f"[tupelo.agents]\n{points}")
    return path


@at_both_doors
@pytest.mark.parametrize("ending", ["zip", "whl"])
def test_an_agent_comes_whose_class_is_in_a_signed_package(play, ending, tmp_path):
    async def scene(stage: Stage) -> None:
        owner = Identity.new()
        sign_package(package(tmp_path, ending), owner)
        a = await stage.host("a")
        b = await stage.host("b", near=[a], packages=AgentPackages(tmp_path, [owner.key]))
        board = await shared("board", await do(a.agent("ada")))
        cls: Any = AsyncRoamer if stage.is_async else Roamer
        target = b.location.id
        agent = await do(a.load(cls, target))
        found = await do(board.in_(HERE, wait=PATIENCE_SECONDS))
        assert found == ("here", "b", "word", target)
        await stage.until(lambda: agent.ended, "it has moved")
        loaded = await do(a.load_at(b.location, cls))
        assert await do(board.in_(HERE, wait=PATIENCE_SECONDS)) == ("here", "b", "word", "")
        assert type(b.runtimes[loaded.id].agent) is not cls

    play(scene)


@at_both_doors
def test_packages_are_off_unless_they_are_given_and_only_signed_ones_are_used(
    play, tmp_path, caplog
):
    async def scene(stage: Stage) -> None:
        owner, other = Identity.new(), Identity.new()
        name = "AsyncRoamer" if stage.is_async else "Roamer"
        path = package(tmp_path, "zip")
        sign_package(path, owner)
        a = await stage.host("a")
        b = await stage.host("b", near=[a])
        c = await stage.host("c", near=[b], packages=AgentPackages(tmp_path, [owner.key]))
        await stage.grouped(a, b, c)
        await do(a.agent("ada"))

        async def refused(host: Any, cls: str = name) -> str:
            caplog.clear()
            with pytest.raises(LoadFailed, match="knows no class"):
                await do(a.load_at(host.location, cls))
            text: str = caplog.text
            return text

        assert await refused(b) == ""
        sign_package(path, other)
        assert "not signed by" in await refused(c)
        assert await refused(c) == "", "it is not looked at again"
        path.with_name("roaming.zip.sig").unlink()
        assert "roaming.zip.sig" in await refused(c)
        sign_package(path, owner)
        path.write_bytes(path.read_bytes() + b"changed")
        assert "not signed by" in await refused(c)
        path.write_bytes(b"no package")
        sign_package(path, owner)
        assert "not a zip file" in await refused(c)
        assert "roaming" not in sys.modules
        sign_package(package(tmp_path, "zip"), owner)
        assert "classes that derive from Agent" in await refused(c, "Stone")
        assert await refused(c, "Nobody") == ""
        await do(a.load_at(c.location, name))
        assert "roaming" in sys.modules

    play(scene)


def test_a_package_replaces_no_module_and_another_version_waits_for_a_new_start(tmp_path, caplog):
    owner = Identity.new()
    packages = AgentPackages(tmp_path, [owner.key])
    sign_package(package(tmp_path, "zip", "json"), owner)
    assert packages.find("Roamer") is None
    assert "another module 'json'" in caplog.text
    for path in tmp_path.iterdir():
        path.unlink()
    sign_package(package(tmp_path, "zip"), owner)
    first = packages.find("Roamer")
    assert isinstance(first, type) and issubclass(first, Agent)
    sign_package(package(tmp_path, "zip", word="another"), owner)
    assert packages.find("Roamer") is None
    assert "start the program anew" in caplog.text
    assert packages.find("LimeTupleSpace") is None and LimeTupleSpace is not None


def test_arguments_of_packages(tmp_path):
    with pytest.raises(BadArgument, match="folder="):
        AgentPackages(tmp_path / "none", [])
    with pytest.raises(BadArgument, match="keys="):
        AgentPackages(tmp_path, "ed25519:0")
    with pytest.raises(BadArgument, match="keys="):
        AgentPackages(tmp_path, ["me"])
