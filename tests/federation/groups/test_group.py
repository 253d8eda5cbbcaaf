"""Groups of hosts on a virtual network: who is in them, and what operations see of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.federation.groups.neighbourhood import Neighbourhood, Resident, play
from tupelo.errors import BadTemplate, CannotSend, HostClosed, PeerLost, TupeloError, UnknownHost
from tupelo.federation.groups.membership import Membership
from tupelo.federation.hosts.limits import Limits
from tupelo.federation.links import wire

LINE = ("ab", "bc", "cd")
RING = ("ab", "bc", "cd", "da")
MESH = ("ab", "ac", "ad", "bc", "bd", "cd")


async def until(condition: Callable[[], object]) -> None:
    """Let virtual time pass until this holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


class Held:
    """An operation that is under way until it is told to end."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.membership: Membership | None = None
        self.task = resident.do(self._run())

    async def _run(self) -> None:
        async with self.resident.group.operating():
            self.membership = self.resident.group.membership
            self.begun.set()
            await self.may_end.wait()
            assert self.resident.group.membership is self.membership

    async def end(self) -> None:
        self.may_end.set()
        await self.task


async def operation(resident: Resident) -> Membership:
    async with resident.group.operating():
        return resident.group.membership


# Who is in the group


@pytest.mark.parametrize("edges", [LINE, ("ba", "ca", "da"), RING, MESH])
@pytest.mark.parametrize("seed", range(3))
def test_all_who_reach_each_other_have_one_membership(edges, seed):
    async def scene(near: Neighbourhood) -> None:
        for number, one in enumerate(near.hosts.values()):
            one.part.value = number
            await one.do(one.group.renew())
        await near.agreed("abcd")
        for one in near.hosts.values():
            membership = one.group.membership
            assert one.metadata_of() == {"a": 0, "b": 1, "c": 2, "d": 3}
            assert len(membership.edges) == 3
            reached = [
                membership.beyond(one.name, side) for side in membership.neighbours(one.name)
            ]
            assert frozenset().union(*reached) == frozenset("abcd") - {one.name}
            assert all({one_end, other} in map(set, edges) for one_end, other in membership.edges)
            assert one.part.memberships[-1] is membership and one.part.settled[-1] is membership

    play(scene, *edges, seed=seed)


def test_a_host_is_alone_until_it_meets_another():
    async def scene(near: Neighbourhood) -> None:
        assert near["a"].members() == "a"
        assert (await near["a"].do(operation(near["a"]))).neighbours("a") == []
        near["a"].dial("b")
        await near.agreed("ab")

    play(scene, names="ab")


def test_groups_merge():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc", "xyz")
        near["c"].dial("x")
        await near.agreed("abcxyz")

    play(scene, "ab", "bc", "xy", "yz")


def test_a_group_splits_where_a_host_vanishes_and_is_one_again_when_it_returns():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcde")
        before = near["a"].group.membership.members["c"].incarnation
        await near["c"].crash()
        await near.agreed("ab", "de")
        assert near["a"].part.cut_hosts == [frozenset("cde")]
        await near["c"].start()
        await near.agreed("abcde")
        after = near["a"].group.membership.members["c"].incarnation
        assert after == near["e"].group.membership.members["c"].incarnation != before

    play(scene, "ab", "bc", "cd", "de")


def test_a_group_splits_in_silence_and_heals():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        near.network.partition("ab", "cd")
        await near.agreed("ab", "cd")
        near.network.heal()
        await near.agreed("abcd")

    play(scene, *MESH)


def test_a_link_that_is_lost_is_gone_around():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        edge = near["a"].group.membership.edges[0]
        near[edge[0]].core.undial(edge[1])
        near[edge[1]].core.undial(edge[0])
        near.network.cut(*edge)
        await until(lambda: edge not in near["a"].group.membership.edges)
        await near.agreed("abcd")

    play(scene, *RING)


@pytest.mark.parametrize("seed", range(5))
def test_a_host_that_is_back_before_it_was_missed_is_known_as_new(seed):
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        await near["b"].crash()
        await near["b"].start()
        born = near["b"].core.incarnation
        await near.agreed("abcd")
        assert near["d"].group.membership.members["b"].incarnation == born

    play(scene, *MESH, seed=seed)


def test_a_part_that_comes_later_is_known_everywhere():
    class Late:
        def metadata(self) -> Any:
            return {"late": (1, b"2")}

        def install(self, membership: Membership) -> None: ...

        async def settle(self, membership: Membership) -> None: ...

        def heard(self, neighbour: str, source: str, body: Any) -> None: ...

        async def asked(self, neighbour: str, source: str, body: Any) -> Any: ...

        def cut(self, hosts: frozenset[str]) -> None: ...

    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")

        async def begin() -> None:
            voice = near["a"].group.part("late", Late())
            await near["a"].group.renew()
            with pytest.raises(UnknownHost):
                await voice.ask("c", "anyone?")

        await near["a"].do(begin())
        await near.agreed("abc")
        for one in near.hosts.values():  # The same at the one whose metadata it is.
            assert one.group.membership.members["a"].metadata_of["late"] == {"late": [1, b"2"]}

    play(scene, "ab", "bc")


# What operations see


def test_an_operation_under_way_keeps_its_membership_and_its_hosts_and_new_ones_wait():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")
        held = Held(near["a"])
        await held.begun.wait()
        near["c"].dial("d")
        await until(lambda: all(near[name].group.halted for name in "abcd"))
        waiting = [near[name].do(operation(near[name])) for name in "abcd"]
        await asyncio.sleep(5)
        assert [near[name].members() for name in "abcd"] == ["abc", "abc", "abc", "d"]
        assert await near["a"].do(near["a"].voice.ask("c", 1)) == ["c", "a", 1]
        assert not any(task.done() for task in waiting)
        await held.end()
        memberships = [await task for task in waiting]
        assert {membership.id for membership in memberships} == {near["a"].group.membership.id}
        assert "".join(memberships[0].members) == "abcd"
        assert max(near["b"].group.held) > 5

    play(scene, "ab", "bc", names="d")


def test_what_is_inside_an_operation_does_not_wait():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")

        async def inner(source: str, body: Any) -> str:
            return "".join((await operation(near["c"])).members)

        near["c"].part.on_asked = inner
        held = Held(near["b"])
        await held.begun.wait()

        async def outer() -> list[str]:
            async with near["a"].group.operating():
                near["c"].dial("d")
                await until(lambda: near["a"].group.halted and near["c"].group.halted)
                left = asyncio.ensure_future(late())
                await asyncio.sleep(0)
                within = await operation(near["a"])
                answer = await near["a"].voice.ask("c", None)
            begun.set()
            return ["".join(within.members), answer, await left]

        begun = asyncio.Event()

        async def late() -> str:
            await begun.wait()  # The operation that has begun it is over.
            return "".join((await operation(near["a"])).members)

        doing = near["a"].do(outer())
        await begun.wait()
        await held.end()
        assert await doing == ["abc", "abc", "abcd"]

    play(scene, "ab", "bc", names="d")


@pytest.mark.parametrize("seed", range(8))
def test_all_that_was_said_in_a_membership_arrives_in_it(seed):
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        near.network.slow("b", "c", 50.0)
        held = Held(near["a"])
        await held.begun.wait()
        near["a"].dial("e")  # The round has another way around the slow line.
        near["d"].dial("e")
        await until(lambda: all(near[name].group.halted for name in "abcde"))
        membership = near["d"].group.membership
        for number in range(20):
            near["a"].voice.send("d", number)
        held_at = len(near["d"].part.memberships)
        await held.end()
        await near.agreed("abcde")
        assert [body for _, _, body in near["d"].part.heard_bodies] == list(range(20))
        assert near["d"].part.memberships[held_at - 1] is membership

    play(scene, *LINE, names="e", seed=seed)


# What parts say


def test_parts_speak_along_the_tree():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        near["a"].voice.send("b", "next door")
        near["a"].voice.send("d", "far away")
        near["a"].voice.send("a", "myself")
        near["a"].voice.send("x", "nobody")
        assert await near["d"].do(near["d"].voice.ask("a", {"k": [1]})) == ["a", "d", {"k": [1]}]
        assert await near["d"].do(near["d"].voice.ask("d", 2)) == ["d", "d", 2]
        assert near["a"].part.heard_bodies == [("a", "a", "myself")]
        assert near["b"].part.heard_bodies == [("a", "a", "next door")]
        assert near["d"].part.heard_bodies == [("c", "a", "far away")]

    play(scene, *LINE)


def test_what_an_older_host_cannot_be_sent_fails_or_ends_its_link():
    """Host c accepts no pieces, as programs of an older version."""
    long = bytes(wire.FRAME_MAX)

    async def answer(source: str, body: Any) -> Any:
        return long

    async def scene(near: Neighbourhood) -> None:
        await near["c"].leave()
        near["c"].options["limits"] = Limits(message_bytes=1)
        await near["c"].start()
        await near.agreed("abc")
        a, c = near["a"], near["c"]
        assert await a.do(a.voice.ask("b", long)) == ["b", "a", long]
        with pytest.raises(CannotSend, match=f"{wire.FRAME_MAX:,}"):  # b cannot pass it on.
            await a.do(a.voice.ask("c", long))
        a.part.on_asked = answer
        with pytest.raises(CannotSend, match=f"{wire.FRAME_MAX:,}"):
            await c.do(c.voice.ask("a", None))
        assert await c.do(c.voice.ask("b", 1)) == ["b", "c", 1]
        before = c.group.membership.id
        a.voice.send("c", long)
        await until(lambda: c.group.membership.id != before)
        await near.agreed("abc")

    play(scene, "ab", "bc")


def test_errors_come_back_as_themselves():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")

        async def refuse(source: str, body: Any) -> Any:
            if body == "large":
                return bytes(wire.MESSAGE_MAX)
            raise BadTemplate("it cannot be asked")

        near["c"].part.on_asked = refuse
        with pytest.raises(BadTemplate, match="it cannot be asked"):
            await near["a"].do(near["a"].voice.ask("c", ""))
        with pytest.raises(CannotSend):
            await near["a"].do(near["a"].voice.ask("c", "large"))
        with pytest.raises(CannotSend):
            await near["a"].do(near["a"].voice.ask("c", bytes(wire.MESSAGE_MAX)))
        with pytest.raises(UnknownHost):
            await near["a"].do(near["a"].voice.ask("x", ""))

    play(scene, "ab", "bc")


def test_a_part_that_fails_is_reported_and_the_group_goes_on():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")

        async def fail(*args: Any) -> Any:
            raise ZeroDivisionError("by mistake")

        near["c"].part.on_asked = fail
        near["b"].part.on_settle = fail
        with pytest.raises(TupeloError, match="by mistake"):
            await near["a"].do(near["a"].voice.ask("c", ""))
        await near["a"].do(near["a"].group.renew())
        near["b"].part.on_settle = None
        failures, near.loop.failures[:] = list(near.loop.failures), []
        assert [type(failure) for failure in failures] == [ZeroDivisionError] * 2

    play(scene, "ab", "bc")


def never() -> Any:
    async def wait(source: str, body: Any) -> Any:
        await asyncio.Event().wait()

    return wait


@pytest.mark.parametrize("how", ["crash", "cut", "leave", "stop"])
def test_who_asks_one_that_is_lost_is_told_at_once(how):
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        near["d"].part.on_asked = never()

        async def ask() -> None:
            async with near[
                "a"
            ].group.operating():  # The membership does not change before it ends.
                await near["a"].voice.ask("d", "")

        asking = near["a"].do(ask())
        other = near["b"].do(near["b"].voice.ask("a", "still there"))
        await asyncio.sleep(0.1)
        match how:
            case "crash":
                await near["d"].crash()
            case "cut":
                near.network.cut("b", "c")
            case "leave":
                await near["d"].do(near["d"].group.leave())
            case "stop":
                await near["d"].leave()
        begun = near.loop.time()
        with pytest.raises(PeerLost) as caught:
            await asking
        assert caught.value.in_doubt and "'d'" in caught.value.peer
        assert near.loop.time() - begun < 0.2
        assert await other == ["a", "b", "still there"]

    play(scene, *LINE)


def test_who_is_known_to_be_cut_off_is_not_asked():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")
        held = Held(near["a"])
        await held.begun.wait()
        await near["c"].crash()
        await until(lambda: near["a"].part.cut_hosts)
        with pytest.raises(PeerLost) as caught:
            await near["a"].do(near["a"].voice.ask("c", ""))
        assert not caught.value.in_doubt
        assert near["a"].members() == "abc"  # An operation is under way in it.
        await held.end()
        await near.agreed("ab")

    play(scene, "ab", "bc")


def test_a_request_of_a_membership_that_is_gone_is_cancelled():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("ab")
        ended = []

        async def wait(source: str, body: Any) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(body)

        near["b"].part.on_asked = wait
        asking = near["a"].do(near["a"].voice.ask("b", "for ever"))  # not within an operation
        await asyncio.sleep(0.1)
        await near["a"].do(near["a"].group.renew())
        with pytest.raises(PeerLost):
            await asking
        await until(lambda: ended == ["for ever"])

    play(scene, "ab")


# Renewing


def test_who_renews_comes_back_when_the_metadata_is_in_force_everywhere():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        near["a"].part.value = "new"
        await near["a"].do(near["a"].group.renew())
        assert all(one.metadata_of()["a"] == "new" for one in near.hosts.values())
        assert not near["a"].group.halted

    play(scene, *LINE)


def test_many_who_renew_at_once_are_one_change():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        before = len(near["b"].part.memberships)
        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                near["a"].part.value = number
                tasks.create_task(near["a"].group.renew())
        assert near["d"].metadata_of()["a"] == 49
        assert len(near["b"].part.memberships) == before + 1

    play(scene, *LINE)


def test_a_metadata_that_changes_during_a_change_is_in_the_next():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        near["d"].part.value = 1
        first = near["d"].do(near["d"].group.renew())
        await until(lambda: near["b"].group.halted)
        held = len(near["a"].part.memberships)
        renewals = []
        for number in range(2, 30):  # in every phase of the round
            near["a"].part.value = number
            renewals.append(near["a"].do(near["a"].group.renew()))
            await asyncio.sleep(0.003)
        await first
        for task in renewals:
            await task
        assert near["d"].metadata_of() == {"a": 29, "b": 0, "c": 0, "d": 1}
        assert len(near["a"].part.memberships) - held < 6

    play(scene, *LINE)


def test_alone_it_is_renewed_at_once():
    async def scene(near: Neighbourhood) -> None:
        near["a"].part.value = "new"
        begun = near.loop.time()
        await near["a"].do(near["a"].group.renew())
        assert near.loop.time() == begun
        assert near["a"].metadata_of() == {"a": "new"}

    play(scene, names="a")


@pytest.mark.parametrize("how", ["crash", "cut", "leave"])
def test_who_renews_while_hosts_are_lost_comes_back(how):
    async def scene(near: Neighbourhood) -> None:
        for after in range(30):
            await near.agreed("abcd")
            near["b"].part.value = after
            renewing = near["b"].do(near["b"].group.renew())
            await asyncio.sleep(after * 0.003)
            match how:
                case "crash":
                    await near["c"].crash()
                    await renewing
                    await near["c"].start()
                case "cut":
                    near.network.cut("b", "c")
                    await renewing
                case "leave":
                    await near["b"].do(near["b"].group.leave())
                    await renewing
                    await near["b"].do(near["b"].group.join())
            assert near["b"].metadata_of()["b"] == after

    play(scene, *LINE)


# Settling


def test_operations_go_on_when_everyone_has_settled():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")
        may_end = asyncio.Event()

        async def settle(membership: Membership) -> None:
            await may_end.wait()

        near["c"].part.on_settle = settle
        renewing = near["a"].do(near["a"].group.renew())
        await until(lambda: len({one.group.membership.id for one in near.hosts.values()}) == 1)
        await asyncio.sleep(1)
        assert all(one.group.halted for one in near.hosts.values())
        may_end.set()
        await renewing
        await near.agreed("abc")

    play(scene, "ab", "bc")


def test_what_was_not_settled_ends_before_the_next_membership():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")
        errors: list[BaseException] = []
        ended: list[int] = []

        async def settle(membership: Membership) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                try:
                    await near["b"].voice.ask("a", "in vain")
                except TupeloError as error:
                    errors.append(error)
                await asyncio.sleep(1)
                ended.append(len(near["b"].part.memberships))

        near["b"].part.on_settle = settle
        renewing = near["a"].do(near["a"].group.renew())
        memberships = len(near["b"].part.memberships)
        await until(lambda: len(near["b"].part.memberships) > memberships)
        near["b"].part.on_settle = None
        near.network.cut("b", "c")
        await renewing
        await near.agreed("abc")
        assert [type(error) for error in errors] == [PeerLost]
        assert ended == [memberships + 1]
        assert len(near["b"].part.abandoned) == 1
        assert await near["b"].do(near["b"].voice.ask("a", 1)) == ["a", "b", 1]

    play(scene, "ab", "bc")


# Leaving


def test_who_leaves_waits_until_nothing_is_under_way_anywhere():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        asked: list[Any] = []

        async def slowly(source: str, body: Any) -> Any:
            await asyncio.sleep(0.5)
            asked.append(near["b"].members())
            return body

        near["b"].part.on_asked = slowly

        async def ask() -> Any:
            async with near["d"].group.operating():
                return [await near["d"].voice.ask("b", number) for number in range(3)]

        asking = near["d"].do(ask())
        await asyncio.sleep(0.1)
        begun = near.loop.time()
        await near["b"].do(near["b"].group.leave())
        assert near.loop.time() - begun < near["b"].core.answer_seconds
        assert await asking == [0, 1, 2]
        assert asked == ["abcd"] * 3
        assert near["b"].members() == "b"
        assert (await near["b"].do(operation(near["b"]))) is near["b"].group.membership
        await near.agreed("a", "b", "cd")
        await near["b"].do(near["b"].group.join())
        await near.agreed("abcd")

    play(scene, *LINE)


def test_who_leaves_during_a_change_leaves_after_it():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abcd")
        renewing = near["a"].do(near["a"].group.renew())
        await until(lambda: near["d"].group.halted)
        begun = near.loop.time()
        await near["d"].do(near["d"].group.leave())
        assert near.loop.time() - begun < near["d"].core.answer_seconds
        await renewing
        await near.agreed("abc", "d")

    play(scene, *LINE)


def test_operations_that_beget_operations_keep_nobody_from_leaving():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")
        memberships: list[str] = []

        async def feed(one: Resident) -> None:
            while len(memberships) < 1_000:
                async with one.group.operating():
                    memberships.append(one.members())
                    if one.members() == "abc":
                        await one.voice.ask("a" if one.name != "a" else "c", "more")
                    else:
                        await asyncio.sleep(0.001)

        feeding = [near[name].do(feed(near[name])) for name in "aabbcc"]
        await asyncio.sleep(0.2)
        await near["b"].do(near["b"].group.leave())
        for task in feeding:
            await task
        assert set(memberships) == {"abc", "a", "b", "c"}

    play(scene, "ab", "bc")


def test_a_host_that_never_comes_to_rest_keeps_nobody_for_long():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")
        held = Held(near["c"])
        await held.begun.wait()
        begun = near.loop.time()
        await near["a"].do(near["a"].group.leave())
        assert 1.9 < near.loop.time() - begun < 2.5
        assert near["a"].members() == "a" and not near["a"].group.halted
        await held.end()
        await near.agreed("a", "bc")

    play(scene, "ab", "bc")


@pytest.mark.parametrize("seed", range(5))
def test_all_leave_at_once_and_return(seed):
    async def scene(near: Neighbourhood) -> None:
        for _ in range(3):
            await near.agreed("abcd")
            begun = near.loop.time()
            leaving = [one.do(one.group.leave()) for one in near.hosts.values()]
            for task in leaving:
                await task
            assert near.loop.time() - begun < near["a"].core.answer_seconds
            await near.agreed("a", "b", "c", "d")
            for one in near.hosts.values():
                await one.do(one.group.leave())  # It has left already.
                await one.do(one.group.join())

    play(scene, *RING, seed=seed)


def test_who_gives_up_leaving_stays():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")
        held = Held(near["a"])
        await held.begun.wait()
        leaving = near["b"].do(near["b"].group.leave())
        await asyncio.sleep(0.5)
        leaving.cancel()
        await asyncio.wait([leaving])
        await held.end()
        await near.agreed("abc")
        await near["b"].do(operation(near["b"]))

    play(scene, "ab", "bc")


def test_who_has_left_is_not_drawn_in_by_those_it_meets():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("ab", "c")
        await near["b"].do(near["b"].group.leave())
        near["b"].dial("c")
        await until(lambda: "c" in near["b"].core.peers)
        await asyncio.sleep(2)
        await near.agreed("a", "b", "c")
        await near["b"].do(near["b"].group.renew())
        await near["b"].do(near["b"].group.join())
        await near.agreed("abc")

    play(scene, "ab", names="c")


# Stopping


def test_nobody_hangs_at_a_host_that_stops():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("abc")
        held = Held(near["c"])
        await held.begun.wait()
        b = near["b"]
        near["c"].part.on_asked = never()
        asking = b.do(b.voice.ask("c", ""))
        b.part.on_asked = never()
        asked = near["a"].do(near["a"].voice.ask("b", ""))
        renewing = b.do(b.group.renew())
        await until(lambda: b.group.halted)
        leaving = b.do(b.group.leave())
        waiting = b.do(operation(b))
        await asyncio.sleep(0.1)
        await b.do(b.core.stop())
        for task in (renewing, leaving, waiting):
            with pytest.raises(HostClosed):
                await task
        for task in (asking, asked):
            with pytest.raises(PeerLost):
                await task
        for late in (b.group.renew(), operation(b)):
            with pytest.raises(HostClosed):
                await b.do(late)
        await held.end()
        await near.agreed("a", "c")

    play(scene, "ab", "bc")


def test_a_host_stops_while_it_settles():
    async def scene(near: Neighbourhood) -> None:
        await near.agreed("ab")

        async def settle(membership: Membership) -> None:
            await asyncio.Event().wait()

        near["b"].part.on_settle = settle
        renewing = near["a"].do(near["a"].group.renew())
        await asyncio.sleep(0.5)
        assert near["b"].part.settled[-1] is not near["b"].group.membership
        await near["b"].leave()
        await renewing
        assert near["a"].members() == "a"

    play(scene, "ab")
