"""Collect, in its six variants: table 1 of the paper."""

from __future__ import annotations

import pytest

from tests.federation.brokers.market import LINE, SHAPES, Market, play


async def nobody_cares(market: Market) -> None:
    """No route is left: whoever has something new tells nobody."""
    before = market.sent
    for stall in market.hosts.values():
        await stall.offer("pear", 0)
    await market.quiet()
    assert market.sent == before


ALL_SHAPES = pytest.mark.parametrize("shape", SHAPES)


@ALL_SHAPES
def test_probing_any_finds_one_or_nothing(shape):
    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        found = await market["a"].probe("pear", "any")
        assert (found.replies, found.empty, found.lost) == ([], frozenset(names), frozenset())
        await market[names[-1]].offer("pear", 1)
        for name in names:
            found = await market[name].probe("pear", "any")
            (reply,) = found.replies
            assert (reply.host, reply.items, reply.is_update) == (names[-1], [["pear", 1]], False)
        await market[names[0]].offer("pear", 2)
        for name in names:
            (reply,) = (await market[name].probe("pear", "any")).replies
            assert reply.host in (names[0], names[-1])

    play(scene, *SHAPES[shape])


@ALL_SHAPES
def test_probing_all_asks_every_host(shape):
    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        for number, name in enumerate(names[1:]):
            await market[name].offer("pear", number)
            await market[name].offer("pear", number + 100)
        for name in names:
            found = await market[name].probe("pear", "all")
            assert {reply.host: reply.items for reply in found.replies} == {
                other: [["pear", number], ["pear", number + 100]]
                for number, other in enumerate(names[1:])
            }
            assert (found.empty, found.lost) == (frozenset(names[:1]), frozenset())

    play(scene, *SHAPES[shape])


def test_probing_any_asks_nobody_beyond_one_who_has_something():
    async def scene(market: Market) -> None:
        await market["b"].offer("pear", 1)
        found = await market["a"].probe("pear", "any")
        assert [reply.host for reply in found.replies] == ["b"]
        assert market.sent_of("ProbeRequest") == 1
        await market["a"].offer("pear", 1)
        await market["a"].probe("pear", "any")
        assert market.sent_of("ProbeRequest") == 1

    play(scene, *LINE)


@ALL_SHAPES
def test_single_any_waits_for_the_first(shape):
    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        basket = market["a"].collect("pear", "single", "any")
        await market.quiet()
        assert (basket.replies, basket.is_over) == ([], False)
        await market[names[-1]].offer("pear", 1)
        await market.quiet()
        await market[names[1]].offer("pear", 2)
        await market.quiet()
        assert (basket.wares, basket.is_over) == ([["pear", 1]], True)
        await nobody_cares(market)

    play(scene, *SHAPES[shape])


@ALL_SHAPES
def test_single_any_finds_what_is_there(shape):
    async def scene(market: Market) -> None:
        for name in sorted(market.hosts)[1:]:
            await market[name].offer("pear", 1)
        basket = market["a"].collect("pear", "single", "any")
        await market.quiet()
        assert (basket.wares, basket.is_over) == ([["pear", 1]], True)
        await nobody_cares(market)

    play(scene, *SHAPES[shape])


@ALL_SHAPES
@pytest.mark.parametrize("how", ["full", "deaf"])
def test_single_all_gets_one_answer_of_each_host(shape, how):
    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        await market[names[1]].offer("pear", 1)
        basket = market["a"].collect("pear", "single", "all", how)
        await market.quiet()
        assert basket.hosts == names[1]
        for name in names[2:]:
            await market[name].offer("plum", 2)
            await market[name].offer("pear", 2)
            await market[name].offer("pear", 3)
        await market.quiet()
        assert sorted(basket.hosts) == names[1:]
        assert not basket.is_over
        await market["a"].offer("pear", 4)
        assert (sorted(basket.hosts), basket.is_over) == (names, True)
        await nobody_cares(market)

    play(scene, *SHAPES[shape])


def test_single_collect_asks_again_after_an_update_that_does_not_match():
    async def scene(market: Market) -> None:
        one, each = (market["a"].collect("pear", "single", e, "deaf") for e in ("any", "all"))
        await market.quiet()
        market["d"].wares.wares.append(["pear", 1])
        await market["d"].offer("plum", 2)
        await market.quiet()
        assert one.replies == each.replies
        assert [(r.host, r.items, r.is_update) for r in one.replies] == [
            ("d", [["pear", 1]], False)
        ]

    play(scene, *LINE)


@ALL_SHAPES
def test_persistent_all_gets_the_state_of_all_and_all_updates(shape):
    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        for name in names:
            await market[name].offer("pear", 1)
        basket = market["a"].collect("pear", "persistent", "all")
        await market.quiet()
        assert sorted(basket.hosts) == names
        for name in names:
            await market[name].offer("pear", 2)
        await market.quiet()
        assert [sorted(basket.wares), len(basket.replies)] == [
            [["pear", 1]] * len(names) + [["pear", 2]] * len(names),
            2 * len(names),
        ]
        assert sum(reply.is_update for reply in basket.replies) == len(names)
        basket.cancel()
        await market[names[1]].offer("pear", 3)
        await market.quiet()
        assert len(basket.replies) == 2 * len(names)

    play(scene, *SHAPES[shape])


@ALL_SHAPES
def test_persistent_any_settles_on_one_host(shape):
    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        basket = market["a"].collect("pear", "persistent", "any")
        await market.quiet()
        assert basket.replies == []
        for number in (1, 2):
            for name in names[1:]:
                await market[name].offer("pear", number)
        await market.quiet()
        host = basket.replies[0].host
        assert [(r.host, r.items, r.is_update) for r in basket.replies] == [
            (host, [["pear", 1]], False),
            (host, [["pear", 2]], True),
        ]
        before = market.sent
        for name in names:
            if name != host:
                await market[name].offer("pear", 3)
        await market.quiet()
        assert market.sent == before  # The other routes are gone.
        basket.cancel()
        await market.quiet()
        await nobody_cares(market)

    play(scene, *SHAPES[shape])


@ALL_SHAPES
def test_persistent_any_of_many_that_have_something_settles_on_one(shape):
    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        for name in names[1:]:
            await market[name].offer("pear", 1)
        basket = market["a"].collect("pear", "persistent", "any")
        await market.quiet()
        assert len(basket.replies) == 1
        for name in names[1:]:
            await market[name].offer("pear", 2)
        await market.quiet()
        assert len(set(basket.hosts)) == 1
        assert basket.wares == [["pear", 1], ["pear", 2]]

    play(scene, *SHAPES[shape])
