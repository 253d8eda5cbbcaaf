"""What an application may say, and fail to say; and what other hosts may send."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from tests.conftest import seeds
from tests.federation.brokers.market import LINE, Market, Wares, play
from tupelo.errors import BadArgument, CannotSend, Refused
from tupelo.federation.brokers import messages, probing, standing, tables
from tupelo.federation.brokers.broker import Broker
from tupelo.federation.brokers.messages import HostResult
from tupelo.federation.brokers.tables import Tree
from tupelo.federation.groups.membership import Member, Membership


def test_a_large_state_comes_in_portions(monkeypatch):
    monkeypatch.setattr(tables, "PORTION_BYTES", 1_000)

    async def scene(market: Market) -> None:
        wares = {name: [["pear", f"{name} {n:0100}"] for n in range(50)] for name in "bcd"}
        for name, offered in wares.items():
            market[name].wares.wares = [list(ware) for ware in offered]
        every = await market["a"].probe("pear", "all")
        assert {reply.host: reply.items for reply in every.replies} == wares
        (one,) = (await market["a"].probe("pear", "any")).replies
        assert (one.host, one.items) == ("b", wares["b"])
        for how in ("single any", "single all", "persistent any", "persistent all"):
            basket = market["a"].collect("pear", *how.split())
            await market.quiet()
            assert all(reply.items == wares[reply.host] for reply in basket.replies)
            assert len(basket.replies) == (3 if how.endswith("all") else 1)

    play(scene, *LINE)


def test_what_is_too_large_or_no_value_is_refused_here_and_lost_elsewhere(caplog):
    async def scene(market: Market) -> None:
        broker = market["a"].broker
        with pytest.raises(CannotSend, match="bytes, more than"):
            await broker.publish(["pear", "x" * tables.ITEM_BYTES_MAX])
        with pytest.raises(CannotSend, match="cannot be sent"):
            await broker.publish(["pear", object()])
        with pytest.raises(CannotSend, match="cannot be sent"):
            await broker.probe(["pear", "\ud800"], "all")
        market["d"].wares.wares.append(["pear", "x" * tables.ITEM_BYTES_MAX])
        with caplog.at_level(logging.WARNING):
            found = await market["a"].probe("pear", "all")
        assert found.lost == frozenset("d")
        assert "the state of this host cannot be sent" in caplog.text

    play(scene, *LINE)


def test_an_answer_that_is_too_long_for_a_line_names_who_did_not_fit(monkeypatch, caplog):
    for room in (tables, probing):
        monkeypatch.setattr(room, "ANSWER_BYTES_MAX", 3_000)

    async def scene(market: Market) -> None:
        for name in "bcd":
            market[name].wares.wares = [["pear", "x" * 1_400]]
        found = await market["a"].probe("pear", "all")
        assert (len(found.replies), len(found.lost)) == (2, 1)
        market["d"].wares.wares *= 3
        found = await market["c"].probe("pear", "all")
        assert found.lost == frozenset("d")
        assert len((await market["d"].probe("pear", "all")).replies) == 3  # It knows its own.
        basket = market["a"].collect("pear", "single", "all")
        await market.quiet()
        assert sorted(basket.hosts) == ["b", "c"]

    play(scene, *LINE)
    assert "the state of this host cannot be sent" in caplog.text


def test_an_answer_that_never_ends_is_not_heard_for_ever(monkeypatch):
    monkeypatch.setattr(tables, "ANSWER_BYTES_MAX", 3_000)

    async def scene(market: Market) -> None:
        market.network.slow("c", "d", 100.0)
        stall = market["d"]
        assert stall.life is not None
        part = HostResult("d", [encoded(["pear", "x" * 1_000])])
        basket = market["c"].collect("pear", "single", "any")
        standing = messages.CollectResult("c", market["c"].broker._numbers, part, more=True)
        probe = market["c"].do(market["c"].broker.probe(PEAR, "all"))
        await asyncio.sleep(0.001)
        asked = market["c"].broker._epoch.probing._by_number
        (number,) = (number for number, line in asked.items() if line.edge == "d")
        for message in (messages.ProbeAnswer(number, [part], more=True), standing):
            talk = market["c"].core.peers["d"].talk
            for _ in range(3):
                stall.life.call(stall.broker._sender.send, "c", message)
            await asyncio.sleep(3)
            assert talk.over
            await market.agreed("abcd")
        assert (await probe).lost == frozenset("d")
        assert not basket.replies

    play(scene, *LINE)


def test_words_that_are_none_are_refused():
    async def scene(market: Market) -> None:
        broker = market["a"].broker
        with pytest.raises(BadArgument, match="extent"):
            await broker.probe(["pear", "full"], "some")  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="duration"):
            broker.collect(["pear", "full"], "probing", "any", print)  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="extent"):
            broker.collect(["pear", "full"], "single", "some", print)  # type: ignore[arg-type]

    play(scene, *LINE)


def test_what_a_host_does_not_allow_a_neighbour_is_empty_for_it_and_all_beyond():
    async def scene(market: Market) -> None:
        await market["c"].offer("pear", 1)
        await market["d"].offer("pear", 2)
        market["c"].wares.refused.add("b")
        found = await market["a"].probe("pear", "all")
        assert [reply.host for reply in found.replies] == ["d"]
        assert found.empty == frozenset("abc")
        assert len((await market["d"].probe("pear", "all")).replies) == 2
        baskets = [
            market["a"].collect("pear", *how.split())
            for how in ("persistent all", "single all", "single any", "persistent any")
        ]
        baskets.append(market["a"].subscribe("pear"))
        await market.quiet()
        await market["c"].offer("pear", 3)
        await market["d"].offer("pear", 4)
        await market.quiet()
        assert all("c" not in basket.hosts and "d" in basket.hosts for basket in baskets)

    play(scene, *LINE)


class Failing(Wares):
    def state(self, pattern: Any) -> list[Any]:
        raise RuntimeError("the state is not at hand")

    def matches(self, pattern: Any, update: Any) -> bool:
        raise RuntimeError("nobody can tell")


def test_an_application_that_fails_harms_nobody_else(caplog):
    async def scene(market: Market) -> None:
        market["b"].wares = Failing()
        market["b"].broker._local._application = market["b"].wares
        basket = market["a"].subscribe("pear")
        collected = market["a"].collect("pear", "persistent", "all")
        await market.quiet()
        await market["d"].offer("pear", 1)
        await market.quiet()
        assert basket.wares == collected.wares == [["pear", 1]]
        found = await market["a"].probe("pear", "all")
        assert ([reply.host for reply in found.replies], found.lost) == (["d"], frozenset("b"))

    play(scene, *LINE)


class Reading(Wares):
    def key(self, pattern: Any) -> str:
        if pattern[0] == "fig":
            raise ValueError("what is a fig?")
        return super().key(pattern)


def test_a_pattern_that_a_host_cannot_read_is_one_for_which_it_has_nothing(caplog):
    async def scene(market: Market) -> None:
        market["b"].broker._local._application = Reading()
        basket = market["a"].subscribe("fig")
        standing = market["a"].collect("fig", "single", "all")
        await market.quiet()
        await market["c"].offer("fig", 1)
        await market.quiet()
        assert basket.wares == standing.wares == [["fig", 1]]
        found = await market["a"].probe("fig", "all")
        assert [reply.host for reply in found.replies] == ["c"]
        with pytest.raises(ValueError, match="what is a fig"):
            await market["b"].probe("fig", "all")

    play(scene, *LINE)
    assert "cannot be read" in caplog.text


def test_who_listens_and_fails_is_told_of_the_next(caplog):
    async def scene(market: Market) -> None:
        heard: list[Any] = []

        def deliver(host: str, update: Any) -> None:
            heard.append(update)
            raise RuntimeError("I do not like it")

        life = market["a"].life
        assert life is not None
        life.call(market["a"].broker.subscribe, ["pear", "full"], deliver)
        await market.quiet()
        for number in range(3):
            await market["d"].offer("pear", number)
        await market.quiet()
        assert heard == [["pear", 0], ["pear", 1], ["pear", 2]]

    play(scene, *LINE)
    assert "subscription or collect failed" in caplog.text


def test_an_application_whose_updates_tell_all_is_not_asked_again():
    async def scene(market: Market) -> None:
        wares = Wares()
        quiet = market["d"].do(_broker(market["d"].group, wares))
        broker = await quiet
        await market["d"].do(market["d"].group.renew())
        replies: list[Any] = []
        broker.collect(["pear", "full"], "single", "any", replies.append)
        asked = wares.asked
        await market["d"].do(broker.publish(["plum", 1]))
        assert (wares.asked, replies) == (asked, [])
        await market["d"].do(broker.publish(["pear", 1]))
        assert (wares.asked, len(replies)) == (asked, 1)

    async def _broker(group: Any, wares: Wares) -> Broker:
        return Broker(group, "other", wares, asks_again=False)

    play(scene, *LINE)


# What other hosts may send


def encoded(pattern: Any) -> bytes:
    return messages.encode(pattern)


PEAR = ["pear", "full"]
GARBAGE: dict[str, Any] = {
    "no number": ["SubscribeTo"],
    "no message": b"\xc1",
    "an unknown message": [99, 1],
    "a field of a wrong type": [6, "one", b"", "all", None],
    "an unknown extent": [6, 1, encoded(PEAR), "some", None],
    "a pattern that is no value": messages.SubscribeTo(b"\xc1"),
    "an update that is no value": messages.PublishedUpdate(0, "d", b"\xc1"),
    "an update of someone else": messages.PublishedUpdate(0, "a", encoded(["pear", 1])),
    "a collect of someone else": messages.CollectRequest("a", 1, "single any", encoded(PEAR)),
    "a result of someone else": messages.CollectResult(
        "c", 1, HostResult("a", [encoded(["pear", 1])])
    ),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_closes_the_link_it_came_over_and_no_other(what):
    async def scene(market: Market) -> None:
        others = [market["c"].core.peers["b"].talk, market["b"].core.peers["a"].talk]
        talk = market["c"].core.peers["d"].talk
        assert market["d"].life is not None
        market["d"].life.call(market["d"].broker._sender.send, "c", GARBAGE[what])
        await market.quiet()
        assert talk.over
        await market.agreed("abcd")  # It may come back.
        assert (await market["a"].probe("pear", "all")).empty == frozenset("abcd")
        assert not any(other.over for other in others)

    play(scene, *LINE)


def test_what_one_neighbour_may_ask_for_is_bounded(monkeypatch):
    monkeypatch.setattr(tables, "PATTERNS_MAX", 10)
    monkeypatch.setattr(standing, "PATTERNS_MAX", 10)

    async def scene(market: Market) -> None:
        talk = market["c"].core.peers["d"].talk
        stall = market["d"]
        assert stall.life is not None
        for number in range(10):
            stall.subscribe(f"sort {number}")
        with pytest.raises(Refused, match="10 subscriptions"):
            stall.subscribe("one too many")
        with pytest.raises(Refused, match="10 subscriptions"):
            stall.collect("one too many", "single", "any")
        await market.quiet()
        assert not talk.over
        pattern = encoded(["one too many", "full"])
        stall.life.call(stall.broker._sender.send, "c", messages.SubscribeTo(pattern))
        await market.quiet()
        assert talk.over
        await market.agreed("abcd")
        full = standing.BrokerMetadata(None, [bytes([number]) for number in range(11)])
        stall.broker.metadata = lambda: encoded(full)
        await stall.do(stall.group.renew())
        assert (await market["a"].probe("pear", "all")).empty == frozenset("abc")

    play(scene, *LINE)


def test_an_answer_that_nobody_waits_for_is_not_heard():
    async def scene(market: Market) -> None:
        said = [
            messages.ProbeAnswer(77, [HostResult("d", [encoded(["pear", 1])])]),
            messages.ProbeCancel(77),
            messages.UpdateAck(77),
            messages.CollectCancel("d", 77),
            messages.CollectResult("d", 77, HostResult("d", [])),
            messages.UnsubscribeFrom(encoded(PEAR)),
            messages.RevokePromise(0, ["no key"]),
        ]
        for message in said:
            assert market["d"].life is not None
            market["d"].life.call(market["d"].broker._sender.send, "c", message)
        await market.quiet()
        assert not market["c"].core.peers["d"].talk.over
        assert (await market["a"].probe("pear", "all")).replies == []

    play(scene, *LINE)


def test_a_metadata_that_cannot_be_read_is_that_of_a_host_that_takes_no_part(caplog):
    async def scene(market: Market) -> None:
        market["b"].broker.metadata = lambda: b"\xc1"  # type: ignore[method-assign]
        await market["b"].do(market["b"].group.renew())
        found = await market["a"].probe("pear", "all")
        assert found.empty == frozenset("acd")
        assert (await market["b"].probe("pear", "all")).empty == frozenset("b")

    play(scene, *LINE)
    assert "takes no part" in caplog.text


# The tree, when some take no part


@pytest.mark.parametrize("seed", seeds(20))
def test_those_who_take_part_are_a_tree_whoever_does_not(seed):
    rng = Random(seed)
    hosts = [f"{number:02}" for number in rng.sample(range(100), rng.randint(2, 15))]
    edges = [(rng.choice(hosts[:place]), hosts[place]) for place in range(1, len(hosts))]
    membership = Membership((1, "x"), [Member(host, host, "1", {}) for host in hosts], edges)
    part = rng.sample(hosts, rng.randint(1, len(hosts)))
    trees = {me: Tree(me, membership, part) for me in part}
    assert sum(len(tree.neighbours) for tree in trees.values()) == 2 * (len(part) - 1)
    for me, tree in trees.items():
        behind = [host for edge in tree.neighbours for host in tree.beyond(edge)]
        assert sorted([me, *behind]) == sorted(part)
        for edge in tree.neighbours:
            assert me in trees[edge].neighbours
            assert tree.beyond(edge) == frozenset(part) - trees[edge].beyond(me)
            assert {tree.toward(host) for host in tree.beyond(edge)} == {edge}
        if len(part) == len(hosts):
            assert sorted(tree.neighbours) == sorted(membership.neighbours(me))
    stranger = Tree("not there", membership, part)
    assert (stranger.neighbours, stranger.hosts) == ([], frozenset({"not there"}))
