"""An engine of another kind keeps the tuples (figure 6 of the paper). The tests of operations,
reactions, hand-over and migration run on it as well: see `each_engine` and `on_every_kind`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.lime.sqlite_engine import SqliteEngine, sqlite_engines
from tests.models.lime.stage import Stage, do, play_async, shared
from tupelo import aio
from tupelo.errors import BadArgument
from tupelo.models import lime
from tupelo.models.lime import EngineFactory, LimeTupleSpace, TupleEngine
from tupelo.space.clock import Clock
from tupelo.values.parts import ANY


def test_another_engine_keeps_the_tuples() -> None:
    engines: dict[str, SqliteEngine] = {}

    def make(name: str, agent: str | None, clock: Clock) -> TupleEngine:
        kind = "shared" if agent is None else "private"
        engine = engines[kind] = SqliteEngine(name, clock)
        return engine

    def tuples(kind: str) -> list[Any]:
        return [entry.fields for entry in engines[kind].entries()]

    async def scene(stage: Stage) -> None:
        async with aio.Host("a") as own, lime.Host(own, engine=make) as host:
            space = LimeTupleSpace("board", await do(host.agent("ada")))
            await do(space.out(("x", 1)))
            assert tuples("private") == [("x", 1)]
            await do(space.set_shared(True))
            await do(space.out(("x", 2)))
            assert tuples("private") == []
            assert tuples("shared") == [("x", 1), ("x", 2)]
            assert await do(space.inp(("x", 1))) == ("x", 1)
            assert await do(space.rdg(ANY)) == [("x", 2)] == tuples("shared")
            assert await own.space("board").count() == 0
        assert engines["private"].closed and engines["shared"].closed

    play_async(scene)


def test_hosts_with_different_engines_are_one_group() -> None:
    engine: EngineFactory = sqlite_engines()

    async def scene(stage: Stage) -> None:
        async with (
            aio.Host("a", listen=0) as one,
            lime.Host(one, engine=engine) as near,
            aio.Host("b", listen=0, peers=[one.address]) as other,
            lime.Host(other) as far,
        ):
            await stage.grouped(near, far)
            hers = await shared("board", await do(near.agent("ada")))
            ben = await do(far.agent("ben"))
            his = await shared("board", ben)
            await do(hers.out(("for ben", 1), ben.location))
            await do(hers.out(("hers", 2)))
            await do(his.out(("his", 3)))
            assert await do(his.rdg(ANY, current=ben.location)) == [("for ben", 1), ("his", 3)]
            assert sorted(await do(his.ing(ANY))) == [("for ben", 1), ("hers", 2), ("his", 3)]
            assert await do(hers.rdg(ANY)) == []

    play_async(scene)


def test_an_engine_is_made_by_a_function() -> None:
    with pytest.raises(BadArgument, match="engine"):
        lime.Host("a", engine=5)  # type: ignore[arg-type]
