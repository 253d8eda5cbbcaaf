"""Identical questions of several hosts share what is under way; an answer is never older than its
question."""

from __future__ import annotations

import asyncio

from tests.federation.brokers.market import LINE, STAR, Market, play


def test_identical_probes_at_one_host_are_asked_together():
    async def scene(market: Market) -> None:
        await market["d"].offer("pear", 1)
        probes = [market["a"].probe("pear", "all") for _ in range(100)]
        found = await asyncio.gather(*probes)
        assert all([reply.host for reply in one.replies] == ["d"] for one in found)
        assert market.sent_of("ProbeRequest") == 6  # once for the first, once for the others

    play(scene, *LINE)


def test_identical_probes_of_several_hosts_share_common_branches():
    async def scene(market: Market) -> None:
        await market["d"].offer("pear", 1)
        probes = [market[name].probe("pear", "all") for name in "abcd" for _ in range(25)]
        found = await asyncio.gather(*probes)
        assert all(one.replies == found[0].replies for one in found)
        together = market.sent_of("ProbeRequest")
        # Each of them twice over each of the three edges in each direction would be 600.
        assert together <= 3 * 2 * 4

    play(scene, *LINE)


def test_different_questions_are_not_mixed_up():
    async def scene(market: Market) -> None:
        await market["d"].offer("pear", 1)
        await market["c"].offer("plum", 2)
        found = await asyncio.gather(
            *(
                market["a"].probe(sort, extent)
                for sort in ("pear", "plum", "fig")
                for extent in ("any", "all")
                for _ in range(3)
            )
        )
        assert ["".join(reply.host for reply in one.replies) for one in found] == [
            *("dddddd"),
            *("cccccc"),
            *("" for _ in range(6)),
        ]

    play(scene, *LINE)


def test_who_asks_later_is_not_given_an_older_answer():
    async def scene(market: Market) -> None:
        for number in range(20):
            before = market["a"].do(market["a"].broker.probe(["pear", "full"], "all"))
            await asyncio.sleep(market.loop.rng.random() * 0.03)
            await market["d"].offer("pear", number)
            after = await market["a"].probe("pear", "all")
            assert [reply.items for reply in after.replies] == [[["pear", number]]]
            market["d"].wares.wares.clear()
            gone = await market["a"].probe("pear", "all")
            assert gone.replies == []
            assert len((await before).replies) <= 1

    play(scene, *LINE)


def test_an_update_that_passes_while_a_question_is_evaluated_is_part_of_the_answer():
    async def scene(market: Market) -> None:
        market["a"].subscribe("pear")
        await market.quiet()
        market.network.slow("h", "d", 100.0)  # All have answered but d.
        every = market["a"].do(market["a"].broker.probe(["pear", "full"], "all"))
        some = market["a"].do(market["a"].broker.probe(["pear", "full"], "any"))
        await asyncio.sleep(0.1)
        await market["b"].do(market["b"].broker.publish(["pear", 7]))
        (reply,) = (await some).replies
        assert (reply.host, reply.items, reply.is_update) == ("b", [["pear", 7]], True)
        assert not every.done()
        found = await every
        (reply,) = found.replies
        assert (reply.host, reply.items, reply.is_update) == ("b", [["pear", 7]], True)
        assert found.empty == frozenset("habcd")

    play(scene, *STAR)
