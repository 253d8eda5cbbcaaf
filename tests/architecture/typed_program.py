"""A program that says what type each answer has: a type checker proves it, and tests run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

import tupelo
from tupelo import ANY, Between, Exactly, Not, OneOf, Where, aio
from tupelo.models import javaspaces, linda
from tupelo.space.protocol import AsyncMatchSetLike, MatchSetLike


@tupelo.entry("typed.job")
@dataclass
class Job:
    name: str
    size: int | None = None


TEMPLATES = [
    Job(name=ANY, size=Between(1, 5)),
    Job(name=OneOf("a", "b"), size=Not(3)),
    Job(name=Exactly(str), size=Between(1, 2) | Between(4, 5)),
]
HERE_ONLY = Job(name=Where(lambda name: name > "a"))
"""A function is not sent to another host."""


def use(space: tupelo.SpaceLike) -> None:
    """Any kind of space, for threads."""
    space.write_all([Job("a", 1), Job("b", 2), ("job", 1, "x"), ("job", 2)])
    job = space.read(Job(name=ANY))
    assert_type(job, Job | None)
    assert_type(space.read(Job, wait=0), Job | None)
    assert_type(space.read(("job", int)), tuple[str, int] | None)
    assert_type(space.read(("job", int, str)), tuple[str, int, str] | None)
    assert_type(space.read(("job", int | str)), tuple[Any, ...] | None)
    assert_type(space.read(("job", 1, "x", "y", "z"), wait=0), tuple[Any, ...] | None)
    assert_type(space.read(), Any)
    assert_type(space.read(ANY, wait=1), Any)
    assert_type(space.read(tupelo.Template(("job", int))), Any)
    assert space.read(("job", Between(1, 5))) == ("job", 2)
    assert_type(space.read_all(Job), list[Job])
    assert_type(space.read_all(TEMPLATES[0], limit=1), list[Job])
    assert_type(space.read_all(("job", int)), list[tuple[str, int]])
    assert_type(space.read_all(), list[Any])
    with space.session() as session:
        assert_type(session.read(Job), Job | None)
        assert_type(session.read_all(("job", int)), list[tuple[str, int]])
    with space.match_set(Job) as found:
        assert_type(found, MatchSetLike[Job])
        assert_type(found.next(), Job | None)
        assert_type(list(found), list[Job])
    with space.transaction() as txn:
        taken = space.take(TEMPLATES[1], txn=txn)
        assert_type(taken, Job | None)
        assert_type(space.take_all(Job, wait=0), list[Job])
        assert_type(space.take(("job", int), txn=txn), tuple[str, int] | None)
    if taken is not None:
        assert_type(taken.name, str)
    assert_type(space.count(Job), int)


async def use_async(space: aio.SpaceLike) -> None:
    """Any kind of space, for coroutines."""
    lease = await space.write(Job("a", 1))
    assert_type(lease, aio.Lease)
    await space.write_all([Job("b", 2), ("job", 1, "x"), ("job", 2)])
    assert_type(await space.read(Job(name=ANY)), Job | None)
    assert_type(await space.read(Job, wait=0), Job | None)
    assert_type(await space.read(("job", int, str)), tuple[str, int, str] | None)
    assert_type(await space.read_all(TEMPLATES[0]), list[Job])
    async with space.session() as session:
        assert_type(await session.read(Job), Job | None)
    await (await space.session()).close()
    async with await space.match_set(Job) as found:
        assert_type(found, AsyncMatchSetLike[Job])
        assert_type(await found.next(), Job | None)
    async with space.subscribe(Job) as listening:
        assert_type(await listening.get(wait=0), tupelo.Notice | None)
    async with space.transaction() as txn:
        assert_type(await space.take(TEMPLATES[1], txn=txn), Job | None)
    assert_type(await space.take_all(("job", int)), list[tuple[str, int]])


def kinds_of_space(host: tupelo.Host) -> None:
    """Every kind is a SpaceLike, and is typed where it is made."""
    with tupelo.Space() as space:
        use(space)
        assert_type(space.take(Job, wait=0), Job | None)
        assert_type(space.read(HERE_ONLY, wait=0), Job | None)
    spanning = host.space("spanning")
    use(spanning)
    assert_type(spanning.take(Job, wait=0), Job | None)
    assert_type(spanning.here, tupelo.Space)
    use(host.space("here").here)
    with tupelo.connect(f"{host.url}elsewhere") as remote:
        use(remote)
        assert_type(remote.take(Job, wait=0), Job | None)
        assert_type(remote.host, dict[str, Any])
        assert_type(remote.agent, str)
        use(remote.space("other"))


def linda_doors(space: tupelo.SpaceLike) -> None:
    """The tuple space of Linda returns what the space does."""
    with linda.TupleSpace(space) as tuples:
        tuples.out(("n", 1))
        assert_type(tuples.rd(("n", int)), tuple[str, int] | None)
        assert_type(tuples.rdg(("n", int)), list[tuple[str, int]])
        assert_type(tuples.in_(("n", int)), tuple[str, int] | None)
        assert_type(tuples.inp(Job), Job | None)
        assert_type(tuples.delete(("n", int)), bool)


async def async_linda_doors(space: aio.SpaceLike) -> None:
    tuples = linda.TupleSpace(space)
    await tuples.out(("n", 1))
    assert_type(await tuples.rd(("n", int)), tuple[str, int] | None)
    assert_type(await tuples.ing(("n", int)), list[tuple[str, int]])
    await tuples.close()


def java_spaces() -> None:
    with javaspaces.JavaSpace05() as space:
        space.write(Job("a", 1))
        assert_type(space.read(Job(name=ANY), None, 0), Job | None)
        assert_type(space.read_if_exists(Job("a")), Job | None)
        assert_type(space.take([Job("a")], None, 0, 5), Any)
        assert_type(space.take(Job("a"), timeout=0), Job | None)
    with javaspaces.JavaSpace(tupelo.Space(), backlog_max=5) as first:
        assert_type(first.take_if_exists(Job("a")), Job | None)


async def async_java_spaces() -> None:
    async with javaspaces.JavaSpace05(aio.Space()) as space:
        await space.write(Job("a", 1))
        assert_type(await space.read(Job(name=ANY), None, 0), Job | None)
        assert_type(await space.take(Job("a"), timeout=0), Job | None)


async def async_kinds_of_space(host: aio.Host) -> None:
    async with aio.Space() as space:
        await use_async(space)
        assert_type(await space.take(Job, wait=0), Job | None)
    spanning = host.space("spanning")
    await use_async(spanning)
    assert_type(await spanning.take(Job, wait=0), Job | None)
    assert_type(spanning.here, aio.Space)
    async with await aio.connect(f"{host.url}elsewhere") as remote:
        await use_async(remote)
        assert_type(await remote.take(Job, wait=0), Job | None)
        assert_type(await remote.host, dict[str, Any])
        await use_async(await remote.space("other"))


def refused(space: tupelo.SpaceLike, remote: aio.SpaceLike) -> None:
    """What a type checker refuses: each `type: ignore` is needed, or it is reported."""
    space.take(Job, wait="soon")  # type: ignore[call-overload]
    space.take(Job, patience=1)  # type: ignore[call-overload]
    space.take(Job).name  # type: ignore[union-attr]  # noqa: B018
    space.write(Job("a", "large"))  # type: ignore[arg-type]
    remote.read_all(Job, limit="many")  # type: ignore[call-overload]
