"""What a broker says that cannot be read harms nobody but, at most, its own link."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.federation.brokers.market import LINE, Market, play
from tupelo.errors import HostClosed
from tupelo.federation.brokers.messages import CollectResult, HostResult, SubscribeTo, encode
from tupelo.federation.brokers.standing import BrokerMetadata, StandingCollect

NO_VALUE = b"\xc1"
DEEP = b"\x91" * 100_000 + b"\x01"


def links(market: Market) -> dict[str, Any]:
    return {pair: market[pair[0]].core.peers[pair[1]] for pair in LINE}


def say(market: Market, name: str, target: str, body: Any) -> None:
    stall = market[name]
    assert stall.life is not None
    stall.life.call(stall.broker._sender.send, target, body)


@pytest.mark.parametrize("garbage", [NO_VALUE, DEEP], ids=["no value", "deep"])
def test_a_pattern_on_a_metadata_that_cannot_be_read_is_ignored(garbage, monkeypatch, caplog):
    async def scene(market: Market) -> None:
        subscribed = market["c"].subscribe("plum")
        collected = market["d"].collect("plum", "single", "any")
        metadata = BrokerMetadata(
            None, [garbage], [StandingCollect(1, "single any", garbage, [], None)]
        )
        monkeypatch.setattr(market["a"].broker, "metadata", lambda: encode(metadata))
        with caplog.at_level(logging.WARNING):
            await market["a"].do(market["a"].group.renew())
        await market["b"].offer("plum", 2)
        await market.quiet()
        assert subscribed.wares == collected.wares == [["plum", 2]]
        assert "cannot be read" in caplog.text

    play(scene, *LINE)


def test_a_result_that_cannot_be_read_ends_no_link(caplog):
    async def scene(market: Market) -> None:
        before = links(market)
        basket = market["a"].collect("pear", "single", "all")
        await market.quiet()
        say(
            market,
            "d",
            "c",
            CollectResult("a", 1, HostResult("d", [NO_VALUE, encode(["pear", 4])])),
        )
        await market["b"].offer("pear", 1)
        await market.quiet()
        assert sorted(basket.wares) == [["pear", 1], ["pear", 4]]
        assert links(market) == before

    with caplog.at_level(logging.WARNING):
        play(scene, *LINE)
    assert "an item of the host 'd' cannot be read" in caplog.text


def test_a_host_of_which_nothing_can_be_read_has_not_answered(monkeypatch):
    async def scene(market: Market) -> None:
        before = links(market)
        market["b"].wares.wares.append(["pear", 1])
        monkeypatch.setattr(market["d"].broker._local, "state", lambda pattern: [NO_VALUE])
        found = await market["a"].probe("pear", "all")
        assert [(one.host, one.items) for one in found.replies] == [("b", [["pear", 1]])]
        assert (found.empty, found.lost) == (frozenset("ac"), frozenset("d"))
        basket = market["a"].collect("pear", "persistent", "all")
        await market.quiet()
        assert basket.wares == [["pear", 1]]
        assert links(market) == before

    play(scene, *LINE)


@pytest.mark.parametrize(
    "body",
    [SubscribeTo(NO_VALUE), SubscribeTo(DEEP), CollectResult("a", 1, HostResult("d", []))],
    ids=["no value", "deep", "no items"],
)
def test_what_the_next_can_see_to_be_wrong_ends_the_link(body):
    async def scene(market: Market) -> None:
        before = links(market)
        basket = market["a"].collect("pear", "single", "any")
        await market.quiet()
        say(market, "d", "c", body)
        await market.quiet()
        await market.agreed("abcd")
        after = links(market)
        assert [pair for pair in LINE if after[pair] is not before[pair]] == ["cd"]
        assert not basket.is_over and not basket.replies

    play(scene, *LINE)


def test_garbage_through_a_host_that_takes_no_part_is_ignored(caplog):
    async def scene(market: Market) -> None:
        before = links(market)
        say(market, "c", "a", NO_VALUE)
        await market.quiet()
        assert links(market) == before
        await market["c"].offer("pear", 1)
        assert (await market["a"].probe("pear", "all")).replies[0].host == "c"

    with caplog.at_level(logging.WARNING):
        play(scene, *LINE, others="b")
    assert "is ignored" in caplog.text


def test_who_waits_is_told_when_the_host_is_closed(monkeypatch):
    async def scene(market: Market) -> None:
        monkeypatch.setattr(market["b"].broker, "heard", lambda *said: None)
        waiting = market["a"].do(market["a"].broker.probe(["pear", "full"], "all"))
        await market.quiet()
        assert not waiting.done()
        market["a"].broker.close()
        with pytest.raises(HostClosed):
            async with asyncio.timeout(1):
                await waiting

    play(scene, *LINE)
