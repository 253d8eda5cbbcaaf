"""What a host says that does not keep to the rules closes its own link, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.federation.groups.neighbourhood import PART, Neighbourhood, play
from tupelo.federation.groups import protocol
from tupelo.federation.groups.group import CHANNEL
from tupelo.federation.groups.membership import Member
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.links import wire


class Stranger:
    """Stands in for the group of a host, and says what it is told to say."""

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

    def say(self, body: Any, channel: str = CHANNEL) -> None:
        self.put(wire.PartNotice(channel, wire.body(body)))

    def put(self, message: wire.Message) -> None:
        assert self.peer is not None
        self.peer.talk.say(message)

    async def hears(self, kind: type) -> Any:
        for _ in range(1_000):
            found = [one for one in self.heard_messages if isinstance(one, kind)]
            if found:
                self.heard_messages.clear()
                return found[-1]
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {kind.__name__}: {self.heard_messages}")

    async def is_parted(self) -> None:
        for _ in range(1_000):
            if self.departures:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the link was kept")

    async def join(self) -> tuple[Any, Member]:
        """Take part as the rules will have it, up to the moment when all are asked."""
        self.say(protocol.Join("life", (0, "x life")))
        probe = await self.hears(protocol.Probe)
        return probe.round_id, Member("x", "x", "life", {PART: None})

    async def take_part(self) -> Any:
        """Take part until operations go on; the membership's id."""
        round_id, me = await self.join()
        self.say(protocol.Echo(round_id, [protocol.FoundHost(me, "a", (0, "x life"))]))
        await self.hears(protocol.Commit)
        self.say(protocol.Settled(round_id))
        await self.hears(protocol.Resume)
        return round_id


async def meet(near: Neighbourhood) -> Stranger:
    """The host x, which has no group, but someone who speaks on its channel."""
    await near.agreed("ab")
    stranger = Stranger()
    near["x"].core.extensions.listen(
        CHANNEL, stranger, wire.reader(protocol.AnyGroupMessage), stranger.heard
    )
    near["x"].dial("a")
    while stranger.peer is None:
        await asyncio.sleep(0.01)
    return stranger


async def go_on(near: Neighbourhood) -> None:
    await near.agreed("ab")
    assert await near["b"].do(near["b"].voice.ask("a", 1)) == ["a", "b", 1]


def play_with_stranger(scene: Any) -> None:
    play(scene, "ab", names="x")


@pytest.mark.parametrize(
    "body",
    [
        None,
        7,
        [],
        [99],
        {"a": 1},
        [1],
        [3, [-1, "x"]],
        [3, [2**60, "x"]],
        [3, ["x", 1]],
        [4, [1, "x"], [["no member"]]],
        [9, [1, "x"], "hosts"],
    ],
    ids=repr,
)
def test_what_is_no_message_closes_the_link(body):
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        stranger.say(body)
        await stranger.is_parted()
        await go_on(near)

    play_with_stranger(scene)


def test_a_channel_that_nobody_listens_to_is_ignored():
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        stranger.say({"anything": 1}, "another channel")
        await asyncio.sleep(1)
        assert not stranger.departures
        await stranger.take_part()
        assert near["b"].members() == "abx"

    play_with_stranger(scene)


@pytest.mark.parametrize(
    "what", ["nobody", "someone else", "one twice", "no tree", "ourselves", "another life"]
)
def test_an_echo_that_cannot_be_closes_the_link(what):
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        round_id, me = await stranger.join()
        was = (0, "x life")
        other = Member("y", "y", "life", {})
        found = {
            "nobody": [],
            "someone else": [protocol.FoundHost(other, "a", was)],
            "one twice": [protocol.FoundHost(me, "a", was), protocol.FoundHost(me, "x", was)],
            "no tree": [protocol.FoundHost(me, "a", was), protocol.FoundHost(other, "z", was)],
            "ourselves": [
                protocol.FoundHost(me, "a", was),
                protocol.FoundHost(Member("a", "a", "", {}), "x", was),
            ],
            "another life": [protocol.FoundHost(Member("x", "x", "another", {}), "a", was)],
        }[what]
        stranger.say(protocol.Echo(round_id, found))
        await stranger.is_parted()
        await go_on(near)

    play_with_stranger(scene)


@pytest.mark.parametrize(
    "what", ["without us", "another tree", "one twice", "no root", "another membership"]
)
def test_a_membership_that_cannot_be_closes_the_link(what):
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        _, me = await stranger.join()
        round_id = (1_000, "x life")
        stranger.say(protocol.Probe(round_id))
        echo = await stranger.hears(protocol.Echo)
        between = near["a"].core.peers["b"]
        root = protocol.FoundHost(me, None, (0, "x life"))
        a, b = echo.found
        assert (a.member.host, b.member.host) == ("a", "b")
        found = {
            "without us": [root],
            "another tree": [root, a, protocol.FoundHost(b.member, "x", b.was)],
            "one twice": [root, a, b, b],
            "no root": [protocol.FoundHost(me, "nobody", root.was), a, b],
            "another membership": [root, a, protocol.FoundHost(b.member, "a", (7, "b"))],
        }[what]
        stranger.say(protocol.Commit(round_id, found))
        await stranger.is_parted()
        assert near["a"].core.peers["b"] is between
        await go_on(near)

    play_with_stranger(scene)


@pytest.mark.parametrize("what", ["false source", "no target", "cut"])
def test_a_lie_along_the_tree_closes_the_link(what):
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        membership = await stranger.take_part()
        said = wire.PartNotice(PART, wire.body(1))
        stranger.put(
            {
                "false source": wire.Routed(membership, "b", "a", said),
                "no target": wire.Routed(membership, "x", "nobody", said),
                "cut": wire.PartNotice(CHANNEL, wire.body(protocol.Unreachable(membership, ["a"]))),
            }[what]
        )
        await stranger.is_parted()
        await go_on(near)
        assert near["a"].part.heard_bodies == []

    play_with_stranger(scene)


def test_who_stays_silent_holds_the_group_no_longer_than_its_link_lives():
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        await stranger.join()
        await asyncio.sleep(1)
        assert near["a"].group.halted and near["b"].group.halted
        await near["x"].leave()
        await go_on(near)

    play_with_stranger(scene)


def test_who_contradicts_others_again_and_again_is_parted():
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        round_id, me = await stranger.join()
        was = (0, "x life")
        lie = protocol.FoundHost(Member("b", "b", "another life", {}), "x", was)
        rounds = 0
        while not stranger.departures:
            stranger.say(protocol.Echo(round_id, [protocol.FoundHost(me, "a", was), lie]))
            rounds += 1
            while not stranger.departures and not stranger.heard_messages:
                await asyncio.sleep(0.01)
            if not stranger.departures:
                round_id = (await stranger.hears(protocol.Probe)).round_id
        assert 1 < rounds < 20
        await go_on(near)

    play_with_stranger(scene)


@pytest.mark.parametrize("ahead", [2**32 + 1_000, 2**53, 2**63 - 1])
def test_who_is_too_far_ahead_is_parted(ahead):
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        between = near["a"].core.peers["b"]
        stranger.say(protocol.Join("life", (ahead, "x life")))
        await stranger.is_parted()
        await near["a"].do(near["a"].group.renew())
        await go_on(near)
        assert near["a"].core.peers["b"] is between

    play_with_stranger(scene)


def test_rounds_may_be_far_ahead():
    async def scene(near: Neighbourhood) -> None:
        stranger = await meet(near)
        stranger.say(protocol.Join("life", (2**32, "x life")))
        await stranger.hears(protocol.Probe)
        await near["x"].leave()
        await go_on(near)
        assert near["b"].group.membership.id[0] > 2**32

    play_with_stranger(scene)
