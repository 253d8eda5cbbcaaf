"""What a host says that does not keep to the rules closes its own link, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64

from tests.federation.replication.town import FEED, Town, play
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.links import wire
from tupelo.federation.replication import messages as said
from tupelo.federation.replication.feeds import CHANNEL

NONE = BitMap64().serialize()


class Stranger:
    """Stands in for the feeds of a host, and says what it is told to say."""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.departures = 0
        self.heard_messages: list[Any] = []

    def engaged(self, peer: Peer) -> None:
        self.peer = peer

    def departed(self, peer: Peer) -> None:
        self.departures += 1

    def heard(self, peer: Peer, message: Any) -> None:
        self.heard_messages.append(message)

    async def stop(self) -> None:
        return

    def say(self, body: Any) -> None:
        assert self.peer is not None
        self.peer.talk.say(wire.PartNotice(CHANNEL, wire.body(body)))

    def begin(self, marks: Any = None) -> None:
        self.say(said.HasFeed(FEED, "x/1", True, [], marks or {}))


async def meet(town: Town) -> Stranger:
    await town.alike("ab")
    stranger = Stranger()
    x = town["x"]
    x.call(x.feed.close)
    x.core.extensions.listen(CHANNEL, stranger, said.read, stranger.heard)
    x.dial("a")
    await town.until(lambda: stranger.peer is not None)
    return stranger


async def go_on(town: Town) -> None:
    await town["a"].write(("still", "here"))
    await town.alike("ab")
    assert town["b"].copies()[-1] == ("still", "here")


def item(
    fields: Any, n: Any = 1, origin: Any = "x", lease: Any = None, to: Any = None
) -> list[Any]:
    return [fields, n, origin, lease, to]


def parcel(*items: Any, source: str = "x/1") -> said.ItemBatch:
    return said.ItemBatch(FEED, source, 0, len(items), 0, list(enumerate(items, 1)), False)


@pytest.mark.parametrize(
    "body",
    [
        None,
        7,
        [],
        [99, FEED],
        {"a": 1},
        [1, FEED],
        [1, FEED, "x/1", True, [], {"y/1": [-1, 0]}],
        parcel("no item"),
        parcel([["fields"], 1]),
        parcel(item("no fields")),
        parcel(item(["f"], -1)),
        parcel(item(["f"], 1, 7)),
        parcel(item(["f"], 1, "x", float("inf"))),
        parcel(item(["f"], 1, "x", None, 7)),
        said.ItemBatch(FEED, "x/1", 0, 5, 0, [(5, item(["f"])), (4, item(["f"]))], False),
        said.ItemBatch(FEED, "x/1", 9, 5, 0, [], False),
        said.ItemBatch(FEED, "x/1", 0, 5, 0, [], False, away=b"\xff" * 20),
        said.ItemBatch(FEED, "x/1", 0, 5, 0, [], False, away=BitMap64([2**64 - 1]).serialize()),
        said.AliveNumbers(FEED, "x/1", 5, 3, b"\xff" * 20, NONE),
        said.AliveNumbers(FEED, "x/1", 5, 3, BitMap64([9]).serialize(), NONE),
        said.HasFeed(FEED, "a/1", True, [], {}),
        said.HoldRequest(FEED, "a/1", True),
        said.HoldReply(FEED, "y/1", True),
    ],
    ids=repr,
)
def test_what_cannot_be_closes_the_link(body):
    async def scene(town: Town) -> None:
        stranger = await meet(town)
        stranger.begin()
        await asyncio.sleep(1)
        assert not stranger.departures
        stranger.say(body)
        await town.until(lambda: stranger.departures > 0)
        await go_on(town)
        assert not town["a"].copies("x")

    play(scene, "ba", names="x")


@pytest.mark.parametrize(
    "body",
    [
        said.ItemBatch("another feed", "x/1", 0, 1, 0, [(1, item(["f"]))], False),
        said.ItemBatch(FEED, "x/1", 5, 6, 0, [(6, item(["f"]))], False),
        said.ItemBatch(FEED, "x/1", 0, 1, 9, [(1, item(["f"]))], False),
        said.Tombstones(FEED, "x/1", 5, [1]),
        said.FetchFrom(FEED, "nobody/1", said.StreamMark(5, 5)),
        said.ForwardsTo(FEED, ["a", "nobody"]),
        said.MarksChanged(FEED, {"nobody/1": said.StreamMark(5, 5)}),
        said.LeavesFeed(FEED),
    ],
    ids=repr,
)
def test_what_leads_nowhere_does_no_harm(body):
    async def scene(town: Town) -> None:
        stranger = await meet(town)
        stranger.begin()
        stranger.say(body)
        await asyncio.sleep(2)
        assert not stranger.departures
        assert not town["a"].copies("x")
        await go_on(town)

    play(scene, "ba", names="x")


def test_nobody_else_can_write_in_a_stream_at_its_source():
    async def scene(town: Town) -> None:
        stranger = await meet(town)
        stranger.begin()
        source = town["a"].feed.source
        before = town["a"].feed.marks[source]
        stranger.say(said.ItemBatch(FEED, source, 0, 2**62, 0, [(2**62, item(["forged"]))], False))
        stranger.say(said.Tombstones(FEED, source, 0, [1]))
        stranger.say(said.AliveNumbers(FEED, source, 2**62, 2**62, NONE, NONE))
        stranger.say(said.MarksChanged(FEED, {source: said.StreamMark(2**62, 2**62)}))
        await asyncio.sleep(2)
        assert town["a"].feed.marks[source] == before
        await go_on(town)

    play(scene, "ba", names="x")


def test_who_promises_more_than_it_has_is_asked_once():
    async def scene(town: Town) -> None:
        stranger = await meet(town)
        stranger.begin({"y/1": said.StreamMark(100, 3)})
        await town.until(
            lambda: any(isinstance(m, said.FetchFrom) for m in stranger.heard_messages)
        )
        stranger.say(said.ItemBatch(FEED, "y/1", 0, 0, 0, [], True))
        await asyncio.sleep(2)
        wants = [m for m in stranger.heard_messages if isinstance(m, said.FetchFrom)]
        assert len(wants) == 1
        await go_on(town)

    play(scene, "ba", names="x")


def test_who_does_not_answer_is_not_waited_for():
    """b is asked for what it and the stranger have, once the stranger has not answered."""

    async def scene(town: Town) -> None:
        stranger = await meet(town)
        town.network.partition("ax", "b")
        await asyncio.sleep(3)
        await town["b"].write(("n", 1))
        await asyncio.sleep(1)
        source = town["b"].feed.source
        stranger.begin({source: said.StreamMark(2**62, 2**62)})
        await town.until(
            lambda: any(isinstance(m, said.FetchFrom) for m in stranger.heard_messages)
        )
        town.network.heal()
        await town.until(lambda: town["a"].copies("b") == [("n", 1)])

    play(scene, "ba", names="x")


def test_many_streams_are_asked_for_a_few_at_a_time():
    async def scene(town: Town) -> None:
        stranger = await meet(town)
        stranger.begin({f"y/{number}": said.StreamMark(1, 0) for number in range(100)})
        answered = 0
        while answered < 100:
            await asyncio.sleep(0.1)
            wants = [m for m in stranger.heard_messages if isinstance(m, said.FetchFrom)]
            stranger.heard_messages.clear()
            assert 0 < len(wants) <= 16
            for want in wants:
                answered += 1
                items = [(1, item([want.source]))]
                stranger.say(said.ItemBatch(FEED, want.source, 0, 1, 0, items, True))
        await town.until(lambda: len(town["b"].copies("y")) == 100)

    play(scene, "ba", names="x")


def test_a_stranger_may_take_part_as_the_rules_will_have_it():
    async def scene(town: Town) -> None:
        stranger = await meet(town)
        stranger.begin(town["b"].feed.marks)
        stranger.say(parcel(item(["hello"], 7, "x@x", 100.0, None)))
        await town.until(lambda: town["b"].copies("x") == [("hello",)])
        entry = town["b"].feed.copy("x/1", 1)
        assert entry is not None
        assert (entry.origin, entry.n) == ("x@x", 7)
        stranger.say(said.Tombstones(FEED, "x/1", 0, [1]))
        await town.until(lambda: town["b"].copies("x") == [])
        await town["b"].write(("welcome",))
        await town.until(
            lambda: any(isinstance(m, said.ItemBatch) for m in stranger.heard_messages)
        )
        (heard,) = [m for m in stranger.heard_messages if isinstance(m, said.ItemBatch)]
        assert msgspec.to_builtins(heard.items)[0][1][0] == ["welcome"]

    play(scene, "ba", names="x")


def lies(source: str, mark: said.StreamMark) -> list[said.Said]:
    """That a stream has ended, and that all that was in it is dead."""
    return [
        said.AliveNumbers(FEED, source, 2**62, 2**62, NONE, NONE),
        said.ItemBatch(FEED, source, mark.upto, 2**63 - 1, 2**62, [], False),
        said.MarksChanged(FEED, {source: said.StreamMark(2**63 - 1, 2**62)}),
    ]


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_nobody_ends_the_stream_of_a_third_that_is_near(disk, tmp_path):
    async def scene(town: Town) -> None:
        a, b = town["a"], town["b"]
        stranger = await meet(town)
        stranger.begin()
        await b.write(("n", 1))
        await town.alike("ab")
        source = b.feed.source
        for lie in lies(source, a.feed.marks[source]):
            stranger.say(lie)
        await asyncio.sleep(1)
        assert a.copies("b") == [("n", 1)]
        await b.write(("n", 2))
        await town.alike("ab")
        assert a.copies("b") == [("n", 1), ("n", 2)]
        assert await b.take(("n", 1)) == ("n", 1)
        await town.alike("ab")
        assert a.copies("b") == [("n", 2)]

    play(scene, "ba", names="x", folder=tmp_path if disk else None)


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_who_was_told_a_lie_has_it_right_when_it_meets_the_source(disk, tmp_path):
    async def scene(town: Town) -> None:
        a, b = town["a"], town["b"]
        stranger = await meet(town)
        stranger.begin()
        await b.write(("n", 1), ("n", 2))
        await town.alike("ab")
        source = b.feed.source
        town.network.partition("ax", "b")
        await town.until(lambda: not b.core.peers and list(a.core.peers) == ["x"])
        for lie in lies(source, a.feed.marks[source]):
            stranger.say(lie)
        await town.until(lambda: not a.copies("b"))
        town.network.heal()
        await b.write(("n", 3))
        await town.alike("ab")
        assert a.copies("b") == [("n", 1), ("n", 2), ("n", 3)]
        await b.write(("n", 4))
        assert await b.take(("n", 1)) == ("n", 1)
        await town.alike("ab")
        assert a.copies("b") == [("n", 2), ("n", 3), ("n", 4)]

    play(scene, "ba", names="x", folder=tmp_path if disk else None)
