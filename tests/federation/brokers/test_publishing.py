"""Publish and subscribe: by content, over the tree, and nothing goes where nobody wants it."""

from __future__ import annotations

import pytest

from tests.federation.brokers.market import LINE, SHAPES, STAR, Market, play
from tupelo.federation.brokers.broker import Reply


@pytest.mark.parametrize("shape", SHAPES)
def test_a_subscriber_is_told_once_of_what_matches_wherever_it_was_published(shape):
    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        baskets = {name: market[name].subscribe("pear") for name in names}
        await market.quiet()
        for number, name in enumerate(names):
            await market[name].offer("pear", number)
            await market[name].offer("plum", number)
        await market.quiet()
        told = [Reply(name, [["pear", number]], True) for number, name in enumerate(names)]
        for basket in baskets.values():
            assert sorted(basket.replies, key=lambda reply: reply.host) == told

    play(scene, *SHAPES[shape])


def test_identical_subscriptions_are_said_once_over_an_edge():
    async def scene(market: Market) -> None:
        first = market["a"].subscribe("pear")
        await market.quiet()
        assert market.sent_of("SubscribeTo") == 3
        second, third = market["a"].subscribe("pear"), market["b"].subscribe("pear")
        await market.quiet()
        assert market.sent_of("SubscribeTo") == 4  # b wants it of a, who alone wanted it before.
        await market["d"].offer("pear", 1)
        await market.quiet()
        assert market.sent_of("PublishedUpdate") == 3
        for basket in (first, second, third):
            assert basket.wares == [["pear", 1]]

    play(scene, *LINE)


def test_a_subscription_is_withdrawn_when_the_last_one_goes():
    async def scene(market: Market) -> None:
        first, second = market["a"].subscribe("pear"), market["d"].subscribe("pear")
        await market.quiet()
        first.cancel()
        first.cancel()
        await market.quiet()
        assert market.sent_of("UnsubscribeFrom") == 3
        await market["a"].offer("pear", 1)
        await market.quiet()
        assert (first.wares, second.wares) == ([], [["pear", 1]])
        second.cancel()
        await market.quiet()
        assert market.sent_of("UnsubscribeFrom") == 6
        before = market.sent
        await market["b"].offer("pear", 2)
        await market.quiet()
        assert market.sent == before

    play(scene, *LINE)


def test_an_update_goes_only_where_it_is_wanted():
    async def scene(market: Market) -> None:
        basket = market["a"].subscribe("pear")
        await market.quiet()
        await market["b"].offer("pear", 1)
        await market["b"].offer("plum", 1)
        await market.quiet()
        assert basket.wares == [["pear", 1]]
        assert market.sent_of("PublishedUpdate") == 2  # b → h → a

    play(scene, *STAR)


def test_hosts_without_a_broker_are_passed_through():
    async def scene(market: Market) -> None:
        basket = market["a"].subscribe("pear")
        await market.quiet()
        await market["c"].offer("pear", 1)
        await market["d"].offer("pear", 2)
        await market.quiet()
        assert sorted(basket.wares) == [["pear", 1], ["pear", 2]]
        found = await market["c"].probe("pear", "all")
        assert sorted(reply.host for reply in found.replies) == ["c", "d"]
        assert found.empty == {"a"}
        assert market["a"].broker.hosts == {"a", "c", "d"}

    play(scene, *LINE, others="b")
    play(scene, "xa", "xc", "xd", others="x")
