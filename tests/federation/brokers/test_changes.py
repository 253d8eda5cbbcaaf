"""The group changes under the brokers: what stands goes on, what was lost is said, and nothing
hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.federation.brokers.market import LINE, NAME, STAR, Basket, Market, play
from tupelo.federation.brokers.broker import Broker

KINDS = ("persistent all", "persistent any", "single all", "single any")


def test_an_orderly_change_loses_no_update_and_doubles_none():
    async def scene(market: Market) -> None:
        basket = market["a"].subscribe("pear")
        everything = market["a"].collect("pear", "persistent", "all")
        await market.quiet()

        async def renew() -> None:
            for _ in range(20):
                await market["b"].do(market["b"].group.renew())

        async def come_and_go() -> None:
            for _ in range(3):
                await market["d"].do(market["d"].group.leave())
                await market["d"].do(market["d"].group.join())

        changing = [asyncio.ensure_future(renew()), asyncio.ensure_future(come_and_go())]
        number = 0
        while not all(task.done() for task in changing):
            await market["c"].offer("pear", number)
            await asyncio.sleep(0.001)
            number += 1
        await market.quiet()
        assert number > 20
        assert basket.wares == [["pear", n] for n in range(number)]
        assert sorted(everything.wares) == [["pear", n] for n in range(number)]

    play(scene, *LINE)


def test_who_was_together_and_stays_is_not_asked_again():
    async def scene(market: Market) -> None:
        for name in "abc":
            await market[name].offer("pear", name)
        basket = market["a"].collect("pear", "persistent", "all")
        await market.quiet()
        before = market.sent
        await market["b"].do(market["b"].group.renew())
        await market.quiet()
        assert market.sent == before
        await market["d"].start()
        await market.agreed("abcd")
        await market.quiet()
        assert market.sent - before == 6  # a asks d, over b and c
        assert sorted(basket.hosts) == ["a", "b", "c"]

    async def begin(market: Market) -> None:
        await market["d"].leave()
        await market.agreed("abc")
        await scene(market)

    play(begin, *LINE)


@pytest.mark.parametrize("how", KINDS)
def test_a_host_that_comes_brings_what_it_has(how):
    async def scene(market: Market) -> None:
        await market["d"].leave()
        await market.agreed("abc")
        basket = market["a"].collect("pear", *how.split())
        await market.quiet()
        assert basket.replies == []
        await market["d"].start()
        market["d"].wares.wares.append(["pear", 1])  # It meets them with this.
        await market.agreed("abcd")
        await market.quiet()
        assert (basket.hosts, basket.wares) == ("d", [["pear", 1]])
        assert basket.is_over == (how == "single any")
        await market["d"].offer("pear", 2)
        await market.quiet()
        more = [["pear", 2]] if how.startswith("persistent") else []
        assert basket.wares == [["pear", 1], *more]

    play(scene, *LINE)


def test_what_begins_while_the_group_changes_stands_after_it():
    async def scene(market: Market) -> None:
        baskets = []
        for name in "abcd":
            renewing = market["b"].do(market["b"].group.renew())
            while not renewing.done():
                await asyncio.sleep(0.002)
                baskets.append(market[name].subscribe("pear"))
                baskets += [market[name].collect("pear", *how.split()) for how in KINDS]
        assert len(baskets) > 20
        await market.quiet()
        await market["c"].offer("pear", 1)
        await market.quiet()
        assert all(basket.wares == [["pear", 1]] for basket in baskets)

    play(scene, *LINE)


def test_what_ends_while_the_group_changes_is_over_after_it():
    async def scene(market: Market) -> None:
        baskets = [market["a"].collect("pear", *how.split()) for how in KINDS * 20]
        baskets += [market["a"].subscribe("pear")]
        await market.quiet()
        renewing = market["b"].do(market["b"].group.renew())
        for basket in baskets:
            await asyncio.sleep(0.0005)
            basket.cancel()
        await renewing
        await market.quiet()
        before = market.sent
        await market["d"].offer("pear", 1)
        await market.quiet()
        assert market.sent == before
        assert not any(basket.replies for basket in baskets)

    play(scene, *LINE)


def test_what_another_part_ends_while_the_membership_is_installed_hides_no_update():
    """The other part has the new membership before the broker has it."""

    async def scene(market: Market) -> None:
        market.network.partition({"a"}, {"b", "c"})
        await market.agreed("bc")
        far = [market["a"].collect("pear", *how.split()) for how in KINDS]
        far += [market["a"].subscribe("pear")]
        near = [market["b"].collect("pear", *how.split()) for how in KINDS]
        near += [market["b"].subscribe("pear")]
        await market.quiet()
        market["b"].part.on_install = lambda membership: [one.cancel() for one in near]
        market.network.heal()
        await market.agreed("abc")
        await market["c"].offer("pear", 1)
        await market.quiet()
        assert [basket.wares for basket in far] == [[["pear", 1]]] * 5
        assert not any(basket.replies for basket in near)

    play(scene, "ab", "bc")


# Losses


def test_a_host_that_falls_silent_in_the_middle_of_a_probe_is_lost():
    async def scene(market: Market) -> None:
        for name in "abcd":
            await market[name].offer("pear", name)
        market.network.partition({"a", "b", "c"}, {"d"})
        found = await market["a"].probe("pear", "all")
        assert (sorted(reply.host for reply in found.replies), found.empty, found.lost) == (
            ["a", "b", "c"],
            frozenset(),
            frozenset("d"),
        )
        market.network.heal()
        await market.agreed("abcd")
        assert len((await market["a"].probe("pear", "all")).replies) == 4

    play(scene, *LINE)


@pytest.mark.parametrize("extent", ["any", "all"])
def test_all_beyond_a_link_that_breaks_are_lost(extent):
    async def scene(market: Market) -> None:
        market.network.partition({"a", "b"}, {"c", "d"})
        probe = market["a"].do(market["a"].broker.probe(["pear", "full"], extent))
        await asyncio.sleep(0.1)
        market.network.cut("b", "c")
        found = await probe
        assert (found.replies, found.empty, found.lost) == (
            [],
            frozenset("ab"),
            frozenset("cd"),
        )

    play(scene, *LINE)


def test_what_was_found_elsewhere_is_found_although_a_host_is_lost():
    async def scene(market: Market) -> None:
        await market["c"].offer("pear", 1)
        market.network.partition({"h", "a", "b", "c"}, {"d"})
        found = await market["a"].probe("pear", "any")
        assert [reply.host for reply in found.replies] == ["c"]
        assert (found.empty, found.lost) == (frozenset(), frozenset())

    play(scene, *STAR)


def test_publishing_does_not_wait_for_a_host_that_is_lost():
    async def scene(market: Market) -> None:
        for name in "abcd":
            market[name].subscribe("pear")
        await market.quiet()
        await market["d"].probe("pear", "all")
        await market["a"].probe("pear", "all")
        market.network.partition({"a", "b", "c"}, {"d"})
        await market["c"].offer("pear", 1)
        assert len((await market["a"].probe("pear", "all")).replies) == 1

    play(scene, *LINE)


@pytest.mark.parametrize("how", KINDS)
def test_a_standing_collect_says_whom_it_has_lost(how):
    async def scene(market: Market) -> None:
        if how in ("persistent any", "single all"):
            await market["c"].offer("pear", 1)
        basket = market["a"].collect("pear", *how.split())
        await market.quiet()
        market.network.cut("b", "c")
        await market.quiet()
        assert (
            basket.lost
            == {
                "persistent all": ["c", "d"],
                "persistent any": ["c"],
                "single all": ["d"],
                "single any": ["c", "d"],
            }[how]
        )
        assert not basket.is_over

    play(scene, *LINE)


def test_persistent_any_settles_on_another_host_when_it_loses_its_own():
    async def scene(market: Market) -> None:
        await market["b"].offer("pear", 1)
        await market["d"].offer("pear", 2)
        basket = market["a"].collect("pear", "persistent", "any")
        await market.quiet()
        assert basket.wares == [["pear", 1]]
        market.network.partition({"b"}, {"a", "c", "d", "h"})
        await market.agreed("acdh")
        await market.quiet()
        assert (basket.lost, basket.hosts) == (["b"], "bd")
        await market["d"].offer("pear", 3)
        await market.quiet()
        assert basket.wares == [["pear", 1], ["pear", 2], ["pear", 3]]

    play(scene, "ab", "ah", "hc", "hd")


def test_single_all_is_over_when_all_that_are_left_have_answered():
    async def scene(market: Market) -> None:
        basket = market["a"].collect("pear", "single", "all")
        for name in "abc":
            await market[name].offer("pear", name)
        await market.quiet()
        assert (sorted(basket.hosts), basket.is_over) == (["a", "b", "c"], False)
        await market["d"].do(market["d"].group.leave())
        await market.quiet()
        assert (basket.lost, basket.is_over) == (["d"], True)

    play(scene, *LINE)


def test_the_tree_mends_itself_around_a_host_that_has_crashed():
    async def scene(market: Market) -> None:
        baskets = {how: market["a"].collect("pear", *how.split()) for how in KINDS}
        subscribed = market["a"].subscribe("pear")
        await market.quiet()
        await market["b"].crash()
        await market.agreed("acd")
        await market["c"].offer("pear", 1)
        await market.quiet()
        for basket in (*baskets.values(), subscribed):
            assert basket.wares == [["pear", 1]]
        found = await market["a"].probe("pear", "all")
        assert (found.empty, found.lost) == (frozenset("ad"), frozenset())

    play(scene, *LINE, "da")


def test_what_was_under_way_over_a_link_that_breaks_is_told_when_the_tree_has_mended():
    async def scene(market: Market) -> None:
        basket = market["a"].collect("pear", "persistent", "all")
        await market.quiet()
        for number in range(20):
            hop = market["c"].group.membership.toward("c", "a")
            assert hop is not None
            offering = market["c"].do(market["c"].offer("pear", number))
            await asyncio.sleep(0)
            market.network.cut("c", hop)  # There is another way, and nobody ever is alone.
            await offering
            await market.agreed("abcd")
            await market.quiet()
            assert ["pear", number] in basket.wares

    play(scene, *LINE, "da")


# Persistent collects of all: each state once for each change of it, and no update missed


def states(basket: Basket) -> list[Any]:
    return [reply.items for reply in basket.replies if not reply.is_update]


def test_a_state_that_is_known_is_not_told_again_when_hosts_meet_again():
    async def scene(market: Market) -> None:
        await market["c"].offer("pear", 1)
        baskets = [market["a"].collect("pear", "persistent", "all") for _ in range(2)]
        deaf = market["a"].collect("pear", "persistent", "all", "deaf")
        await market.quiet()
        await market["c"].offer("pear", 2)
        await market["d"].offer("pear", 3)  # It had nothing before.
        await market.quiet()
        for number in range(3):
            market.network.partition({"a", "b"}, {"c", "d"})
            await market.agreed("ab")
            await market.agreed("cd")
            await market["c"].offer("plum", number)
            market.network.heal()
            await market.agreed("abcd")
            await market.quiet()
        for basket in baskets:
            assert basket.wares == [["pear", 1], ["pear", 2], ["pear", 3]]
        # It was told of no update; so what it is told are states, of which it has had but one.
        told = [[["pear", 1]], [["pear", 1], ["pear", 2]], [["pear", 3]]]
        assert sorted(states(deaf)) == told

    play(scene, *LINE)


def test_a_state_that_has_changed_while_hosts_were_apart_is_told_once():
    async def scene(market: Market) -> None:
        await market["c"].offer("pear", 1)
        basket = market["a"].collect("pear", "persistent", "all")
        await market.quiet()
        await market["c"].offer("pear", 2)
        await market.quiet()
        market.network.partition({"a", "b"}, {"c", "d"})
        await market.agreed("cd")
        await market["c"].offer("pear", 3)
        for _ in range(2):
            market.network.heal()
            await market.agreed("abcd")
            await market.quiet()
            market.network.partition({"a", "b"}, {"c", "d"})
            await market.agreed("ab")
        assert states(basket) == [[["pear", 1]], [["pear", 1], ["pear", 2], ["pear", 3]]]
        assert len(basket.replies) == 3
        market["c"].wares.wares.pop(0)  # Nobody is told of that, until they are asked.
        market.network.heal()
        await market.agreed("abcd")
        await market.quiet()
        assert states(basket)[2:] == [[["pear", 2], ["pear", 3]]]

    play(scene, *LINE)


def test_the_state_of_a_host_in_a_new_life_is_news():
    async def scene(market: Market) -> None:
        await market["d"].offer("pear", 1)
        basket = market["a"].collect("pear", "persistent", "all")
        await market.quiet()
        await market["d"].crash()
        await market.agreed("abc")
        await market["d"].start()
        market["d"].wares.wares.append(["pear", 1])
        await market.agreed("abcd")
        await market.quiet()
        assert states(basket) == [[["pear", 1]], [["pear", 1]]]
        market["d"].broker.close()
        await market["d"].do(market["d"].group.renew())
        life = market["d"].life
        assert life is not None
        market["d"].broker = life.call(Broker, market["d"].group, NAME, market["d"].wares)
        await market["d"].do(market["d"].group.renew())
        await market["d"].offer("pear", 2)
        await market.quiet()
        assert basket.wares.count(["pear", 2]) == 1

    play(scene, *LINE)


@pytest.mark.parametrize("comes_back", [False, True])
def test_an_update_that_comes_while_its_host_is_asked_is_not_lost_with_the_answer(comes_back):
    async def scene(market: Market) -> None:
        await market["b"].offer("pear", 1)
        market.network.partition({"a", "b", "c"}, {"d"})  # So the answer waits for d.
        basket = market["a"].collect("pear", "persistent", "all")
        await asyncio.sleep(0.01)
        await market["b"].offer("pear", 2)
        await asyncio.sleep(0.01)
        assert basket.replies == [], "the answer will tell of both"
        market.network.partition({"a"}, {"b", "c", "d"})
        market.network.cut("a", "b")
        if comes_back:
            market.network.heal()
            await market.agreed("abcd")
            await market.quiet()
            assert states(basket) == [[["pear", 1], ["pear", 2]]]
        else:
            await market.agreed("a")
            assert basket.wares == [["pear", 2]]

    play(scene, *LINE)


def test_an_update_of_a_host_whose_state_cannot_be_told_is_told_though_it_is_asked():
    async def scene(market: Market) -> None:
        market["b"].wares.fails = True
        market.network.partition({"a", "b", "c"}, {"d"})
        basket = market["a"].collect("pear", "persistent", "all")
        await asyncio.sleep(0.01)
        await market["b"].offer("pear", 2)
        await market.quiet()
        await market.agreed("abc")
        await market.quiet()
        assert basket.wares == [["pear", 2]] and "b" in basket.lost

    play(scene, *LINE)


def test_a_probe_that_nobody_waits_for_is_given_up():
    async def scene(market: Market) -> None:
        probe = market["a"].do(market["a"].broker.probe(["pear", "full"], "all"))
        await asyncio.sleep(0.0015)
        probe.cancel()
        await market.quiet()
        assert market.sent_of("ProbeCancel") >= 1
        assert (await market["a"].probe("pear", "all")).empty == frozenset("abcd")

    play(scene, *LINE)


def test_a_broker_that_is_closed_takes_part_no_more():
    async def scene(market: Market) -> None:
        await market["a"].offer("pear", 1)
        await market["d"].offer("pear", 2)
        basket = market["b"].collect("pear", "persistent", "all")
        market["b"].broker.close()
        await market["b"].do(market["b"].group.renew())
        assert basket.is_over
        found = await market["a"].probe("pear", "all")
        assert sorted(reply.host for reply in found.replies) == ["a", "d"]
        assert found.empty == frozenset("c")

    play(scene, *LINE)
