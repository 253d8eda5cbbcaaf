"""Branches that answered empty are not asked again, until something comes from there."""

from __future__ import annotations

import asyncio

from tests.federation.brokers.market import LINE, STAR, Market, Wares, play
from tupelo.federation.brokers import broker

FIGURE_3 = ("ab", "bd", "be", "df", "ac")
"""A asks; B has a subscription, D and F have nothing, E and C have something."""


async def questions(market: Market, name: str, extent: str = "all") -> int:
    """How many questions a probe of this host costs."""
    before = market.sent_of("ProbeRequest")
    await market[name].probe("pear", extent)
    return market.sent_of("ProbeRequest") - before


def test_figure_3():
    async def scene(market: Market) -> None:
        market["b"].subscribe("pear")
        await market["c"].offer("pear", 1)
        await market["e"].offer("pear", 2)
        await market.quiet()
        assert await questions(market, "a") == 5
        assert await questions(market, "a") == 3  # not D, nor F beyond it
        assert await questions(market, "e") == 3
        await market["f"].offer("pear", 3)
        found = await market["a"].probe("pear", "all")
        assert sorted(reply.host for reply in found.replies) == ["c", "e", "f"]
        assert found.empty == {"a", "b", "d"}
        market["f"].wares.wares.clear()
        assert await questions(market, "a") == 5
        assert await questions(market, "a") == 3

    play(scene, *FIGURE_3)


def test_without_a_subscription_or_without_pruning_everyone_is_asked():
    async def scene(market: Market) -> None:
        for _ in range(3):
            assert await questions(market, "a") == 3
        market["a"].subscribe("plum")
        await market.quiet()
        for _ in range(3):
            assert await questions(market, "a") == 3

    play(scene, *LINE)

    async def unpruned(market: Market) -> None:
        market["a"].subscribe("pear")
        await market.quiet()
        for _ in range(3):
            assert await questions(market, "a") == 3

    play(unpruned, *LINE, prune=False)


def test_a_host_that_is_told_of_updates_asks_an_empty_branch_once():
    async def scene(market: Market) -> None:
        market["d"].subscribe("fig")
        basket = market["a"].collect("pear", "persistent", "all")
        await market.quiet()
        for extent in ("any", "all"):
            assert await questions(market, "a", extent) == 0
        await market["d"].offer("plum", 1)
        assert await questions(market, "a") == 0
        basket.cancel()
        await market.quiet()
        before = market.sent
        await market["d"].offer("pear", 2)  # Nobody relies on it any more.
        assert market.sent == before
        assert await questions(market, "a") == 3

    play(scene, *LINE)


def test_an_update_is_known_everywhere_when_publishing_has_ended():
    async def scene(market: Market) -> None:
        for name in "abcd":
            market[name].subscribe("pear")
        await market.quiet()
        for name in "abcd":
            await market[name].probe("pear", "all")
            assert await questions(market, name) == 0
        await market["d"].offer("pear", 1)
        for name in "abcd":  # at once: nobody waits for the update to arrive
            assert len((await market[name].probe("pear", "all")).replies) == 1

    play(scene, *LINE)


def test_what_changes_the_state_without_a_match_undoes_it_as_well():
    async def scene(market: Market) -> None:
        market["a"].collect("pear", "persistent", "all", "deaf")
        await market.quiet()
        assert (await market["a"].probe("pear", "all", "deaf")).replies == []
        assert market.sent_of("ProbeRequest") == 3
        market["d"].wares.wares.append(["pear", 1])
        await market["d"].offer("plum", 1)
        found = await market["a"].probe("pear", "all", "deaf")
        assert [reply.host for reply in found.replies] == ["d"]

    play(scene, *LINE)


def test_what_changes_while_others_are_asked_is_not_promised_away():
    async def scene(market: Market) -> None:
        market.network.slow("c", "d", 100.0)
        market["a"].collect("pear", "persistent", "all", "deaf")
        await asyncio.sleep(0.1)  # All but d have been asked.
        market["c"].wares.wares.append(["pear", 1])
        await market["c"].offer("plum", 1)
        await asyncio.sleep(10)
        found = await market["a"].probe("pear", "all", "deaf")
        assert [reply.host for reply in found.replies] == ["c"]

    play(scene, *LINE)


def test_a_standing_collect_is_not_sent_to_an_empty_branch_and_loses_nothing():
    async def scene(market: Market) -> None:
        market["a"].subscribe("pear")
        await market.quiet()
        await market["a"].probe("pear", "all")
        before = market.sent_of("CollectRequest")
        baskets = {
            how: market["a"].collect("pear", *how.split())
            for how in ("single any", "single all", "persistent any")
        }
        await market.quiet()
        assert market.sent_of("CollectRequest") == before
        await market["c"].offer("pear", 1)
        await market["c"].offer("pear", 2)
        await market["d"].offer("pear", 3)
        await market.quiet()
        assert baskets["single any"].wares == [["pear", 1]]
        assert baskets["single all"].hosts == "cd"
        assert baskets["single all"].wares == [["pear", 1], ["pear", 3]]
        assert set(baskets["persistent any"].hosts) == {"c"}
        assert baskets["persistent any"].wares[-1] == ["pear", 2]
        await market["a"].offer("pear", 4)
        await market["b"].offer("pear", 5)
        await market["h"].offer("pear", 5)
        await market.quiet()
        assert baskets["single all"].is_over

    play(scene, "ah", "hb", "hc", "hd")


def test_an_update_without_a_state_is_a_result_for_a_collect_that_was_not_sent_there():
    async def scene(market: Market) -> None:
        market["a"].subscribe("pear")
        await market.quiet()
        await market["a"].probe("pear", "all")
        one, each = (market["a"].collect("pear", "single", extent) for extent in ("any", "all"))
        await market.quiet()
        await market["d"].do(market["d"].broker.publish(["pear", 1]))
        await market.quiet()
        assert one.wares == each.wares == [["pear", 1]]

    play(scene, *LINE)


def test_a_standing_collect_goes_on_when_the_subscription_that_spared_it_ends():
    async def scene(market: Market) -> None:
        subscription = market["a"].subscribe("pear")
        await market.quiet()
        await market["a"].probe("pear", "all")
        basket = market["a"].collect("pear", "single", "any")
        await market.quiet()
        subscription.cancel()
        await market.quiet()
        await market["d"].offer("pear", 1)
        await market.quiet()
        assert basket.wares == [["pear", 1]]

    play(scene, *LINE)


def test_a_promise_that_is_under_way_when_the_subscription_ends_is_not_believed():
    async def scene(market: Market) -> None:
        for _ in range(10):
            subscription = market["a"].subscribe("pear")
            await market.quiet()
            probe = market["a"].do(market["a"].broker.probe(["pear", "full"], "all"))
            while market.sent_of("ProbeAnswer") % 3 != 2:
                await asyncio.sleep(0.0005)
            subscription.cancel()
            again = market["a"].subscribe("pear")
            await probe
            await market["d"].offer("pear", 1)
            found = await market["a"].probe("pear", "all")
            assert [reply.host for reply in found.replies] == ["d"]
            again.cancel()
            market["d"].wares.wares.clear()
            await market.quiet()

    play(scene, *LINE)


def test_a_host_that_is_cut_off_is_lost_and_not_empty():
    async def scene(market: Market) -> None:
        for name in "ac":
            market[name].subscribe("pear")
        await market.quiet()
        for name in "ac":
            await market[name].probe("pear", "all")
        assert await questions(market, "a") == 0
        assert await questions(market, "c") == 0
        market.network.cut("c", "d")
        while "d" in market["c"].core.peers:
            await asyncio.sleep(0)
        found = await market["c"].probe("pear", "all")  # before there is a new membership
        assert (found.empty, found.lost) == (frozenset("abc"), frozenset("d"))
        await market.agreed("abc", "d")
        found = await market["a"].probe("pear", "all")
        assert (found.empty, found.lost) == (frozenset("abc"), frozenset())

    play(scene, *LINE)


def test_pruning_over_a_star_needs_no_question_for_those_who_have_nothing():
    async def scene(market: Market) -> None:
        for name in "habcd":
            market[name].collect("pear", "persistent", "all")
        await market["a"].offer("pear", 1)
        await market.quiet()
        for name in "habcd":
            await questions(market, name)
        assert [await questions(market, name) for name in "habcd"] == [1, 0, 2, 2, 2]

    play(scene, *STAR)


def test_many_and_long_keys_are_taken_back_at_once(monkeypatch):
    monkeypatch.setattr(broker, "KEYS_MAX", 2)
    monkeypatch.setattr(Wares, "key", lambda wares, pattern: " ".join(pattern) + "x" * 2**23)
    sorts = ["pear", "plum", "quince", "medlar", "sloe"]

    async def scene(market: Market) -> None:
        for sort in sorts:
            market["a"].subscribe(sort)
        await market.quiet()
        for sort in sorts:
            assert not (await market["a"].probe(sort, "all")).replies
        before = market.sent_of("ProbeRequest")
        assert not (await market["a"].probe("sloe", "all")).replies
        assert market.sent_of("ProbeRequest") == before
        market["d"].wares.wares = [[sort, 1] for sort in sorts[1:]]
        await market["d"].offer("pear", 1)
        for sort in sorts:
            (found,) = (await market["a"].probe(sort, "all")).replies
            assert (found.host, found.items) == ("d", [[sort, 1]])

    play(scene, *LINE)
