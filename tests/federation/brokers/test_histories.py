"""Random histories: what brokers find is what a trivial model says, with and without pruning, and
through all that hosts can suffer."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.conftest import seeds
from tests.federation.brokers.market import Basket, Market, Stall, play
from tupelo.errors import TupeloError

SORTS = ("pear", "plum")
HOSTS = "abcdefg"
NOTICED_SECONDS = 5.0
"""By then, in virtual time, everyone has heard of what broke last."""


def random_tree(rng: Random, size: int) -> list[str]:
    names = HOSTS[:size]
    return [rng.choice(names[:place]) + names[place] for place in range(1, size)]


class Onlooker:
    """Who subscribes or collects, and what it should be told of."""

    def __init__(self, how: str, sort: str, basket: Basket, there: dict[str, list[Any]]) -> None:
        self.how = how
        self.sort = sort
        self.basket = basket
        self.hosts = set(there)
        """Those that have had something since it began."""
        self.expected: Counter[str] = Counter()
        if how == "persistent all":
            self.expected.update(str(ware) for wares in there.values() for ware in wares)

    def offered(self, host: str, ware: Any) -> None:
        if ware[0] == self.sort:
            self.hosts.add(host)
            self.expected[str(ware)] += 1

    def check(self, there: dict[str, list[Any]], everyone: set[str]) -> None:
        basket = self.basket
        match self.how:
            case "subscription" | "persistent all":
                assert Counter(map(str, basket.wares)) == self.expected
            case "single any":
                assert len(basket.replies) == bool(self.hosts) == basket.is_over
                assert set(basket.hosts) <= self.hosts
            case "single all":
                assert sorted(basket.hosts) == sorted(self.hosts)
                assert basket.is_over == (self.hosts == everyone)
            case "persistent any":
                assert bool(basket.replies) or not there
                assert len(set(basket.hosts)) <= 1
                for host in set(basket.hosts):
                    assert host in self.hosts
                    assert all(ware in basket.wares for ware in there.get(host, []))


HOWS = ("subscription", "persistent all", "persistent any", "single any", "single all")


class Historian:
    """Does one thing after the other, and writes down what was found."""

    def __init__(self, market: Market, rng: Random) -> None:
        self.market = market
        self.rng = rng
        self.numbers = 0
        self.found: list[Any] = []
        self.onlookers: list[Onlooker] = []

    async def live(self, steps: int) -> None:
        deeds = [self.offer, self.offer, self.sell, self.sell, self.probe, self.probe, self.begin]
        for _ in range(steps):
            await self.rng.choice(deeds)()
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.random() * 0.02)
        while self.onlookers:
            await self.end()

    @property
    def stall(self) -> Stall:
        return self.market[self.rng.choice(sorted(self.market.hosts))]

    async def offer(self) -> None:
        self.numbers += 1
        ware, stall = [self.rng.choice(SORTS), self.numbers], self.stall
        for onlooker in self.onlookers:
            onlooker.offered(stall.name, ware)
        await stall.offer(*ware)

    async def sell(self) -> None:
        """Something is gone: nobody is told of that."""
        stall = self.stall
        if stall.wares.wares:
            stall.wares.wares.pop(self.rng.randrange(len(stall.wares.wares)))

    def there(self, sort: str) -> dict[str, list[Any]]:
        """The model: what is where, now."""
        return {
            name: wares
            for name, stall in self.market.hosts.items()
            if (wares := [ware for ware in stall.wares.wares if ware[0] == sort])
        }

    async def probe(self) -> None:
        sort, extent = self.rng.choice(SORTS), self.rng.choice(["any", "all"])
        there = self.there(sort)
        found = await self.stall.probe(sort, extent)
        replies = {reply.host: reply.items for reply in found.replies if not reply.is_update}
        assert len(replies) == len(found.replies) and not found.lost
        if extent == "all":
            assert replies == there
            assert found.empty == set(self.market.hosts) - set(there)
            self.found.append(replies)
        else:
            assert bool(replies) == bool(there)
            assert all(there[host] == items for host, items in replies.items())
            self.found.append(bool(replies))

    async def begin(self) -> None:
        """Subscribe or collect; or something of these ends."""
        if self.onlookers and self.rng.random() < 0.4:
            await self.end()
            return
        how, sort, stall = self.rng.choice(HOWS), self.rng.choice(SORTS), self.stall
        if how == "subscription":
            await self.market.quiet()  # else it would be told of what is still under way
            basket = stall.subscribe(sort)
        else:
            basket = stall.collect(sort, *how.split())
        self.onlookers.append(Onlooker(how, sort, basket, self.there(sort)))
        await self.market.quiet()

    async def end(self) -> None:
        await self.market.quiet()
        onlooker = self.onlookers.pop(self.rng.randrange(len(self.onlookers)))
        onlooker.check(self.there(onlooker.sort), set(self.market.hosts))
        onlooker.basket.cancel()


def history(seed: int, prune: bool) -> tuple[list[Any], int]:
    rng = Random(seed)
    edges = random_tree(rng, rng.randint(2, 7))
    outcome: list[Any] = []

    async def scene(market: Market) -> None:
        historian = Historian(market, rng)
        await historian.live(60)
        outcome.append((historian.found, market.sent_of("ProbeRequest")))

    play(scene, *edges, seed=seed, prune=prune)
    (found, questions) = outcome[0]
    return found, questions


@pytest.mark.parametrize("seed", seeds(15))
def test_what_is_found_is_what_is_there_and_pruning_does_not_change_it(seed):
    assert history(seed, prune=True)[0] == history(seed, prune=False)[0]


def test_pruning_saves_questions():
    fewer, more = (
        sum(history(seed, prune=prune)[1] for seed in range(10)) for prune in (True, False)
    )
    assert fewer < more


# Trouble


async def trouble(market: Market, rng: Random, seconds: float) -> None:
    """Links break, hosts crash, leave and come back; in the end everyone is there. Only a lives
    through it all."""
    names = sorted(market.hosts)
    ends = market.loop.time() + seconds
    while market.loop.time() < ends:
        await asyncio.sleep(rng.random() * 0.5)
        name = rng.choice(names)
        stall = market[name]
        match rng.choice(["cut", "cut", "crash", "leave", "renew", "partition", "heal"]):
            case "cut":
                market.network.cut(name, rng.choice(names))
            case "crash" if name != "a":
                await stall.crash()
                await asyncio.sleep(rng.random() * 0.5)
                await stall.start()
            case "leave":
                await stall.do(stall.group.leave())
                await asyncio.sleep(rng.random() * 0.5)
                await stall.do(stall.group.join())
            case "renew":
                await stall.do(stall.group.renew())
            case "partition":
                market.network.partition({name}, set(names) - {name})
            case "heal":
                market.network.heal()
    market.network.heal()
    await asyncio.sleep(NOTICED_SECONDS)
    await market.agreed("".join(names))


class Trader:
    """Offers and probes at one host, through all its lives."""

    def __init__(self, market: Market, name: str, rng: Random) -> None:
        self.stall = market[name]
        self.rng = rng
        self.numbers = 0

    async def trade(self, ends: float) -> None:
        loop = self.stall.world.loop
        while loop.time() < ends:
            await asyncio.sleep(self.rng.random() * 0.1)
            if self.stall.is_up:
                with suppress(TupeloError, asyncio.CancelledError):  # It has crashed.
                    await self.act()

    async def act(self) -> None:
        sort = self.rng.choice(SORTS)
        if self.rng.random() < 0.5:
            self.numbers += 1
            await self.stall.offer(sort, f"{self.stall.name}{self.numbers}")
            return
        members = set(self.stall.group.membership.members)
        found = await self.stall.probe(sort, "all")
        have = {reply.host for reply in found.replies if not reply.is_update}
        assert not have & found.empty and not have & found.lost and not found.empty & found.lost
        assert self.stall.name in have | found.empty
        assert have | found.empty | found.lost or not members


@pytest.mark.parametrize("seed", seeds(10))
def test_nothing_hangs_and_after_the_trouble_everyone_knows_everything(seed):
    rng = Random(seed)
    size = rng.randint(3, 6)
    edges = random_tree(rng, size) + random_tree(rng, size)[:2]

    async def scene(market: Market) -> None:
        names = sorted(market.hosts)
        baskets = {
            how: {sort: market["a"].collect(sort, *how.split()) for sort in SORTS}
            for how in ("persistent all", "persistent any", "single all", "single any")
        }
        subscribed = {sort: market["a"].subscribe(sort) for sort in SORTS}
        seconds = 10.0
        ends = market.loop.time() + seconds
        traders = [
            asyncio.ensure_future(Trader(market, name, Random(f"{seed} {name}")).trade(ends))
            for name in names
        ]
        await trouble(market, rng, seconds)
        await asyncio.gather(*traders)
        await market.quiet()
        for sort in SORTS:
            there = {
                name: [ware for ware in market[name].wares.wares if ware[0] == sort]
                for name in names
            }
            everything = baskets["persistent all"][sort].wares
            for name, wares in there.items():
                assert all(ware in everything for ware in wares), (sort, name)
            known: list[Any] = []
            states: list[Any] = []
            for reply in baskets["persistent all"][sort].replies:
                if reply.is_update or any(ware in states for ware in reply.items):  # not the first
                    assert any(ware not in known for ware in reply.items), "it brings something"
                known += reply.items
                states += [] if reply.is_update else reply.items
            told = Counter(map(str, subscribed[sort].wares))
            assert not told or max(told.values()) == 1
            assert baskets["single any"][sort].is_over == (
                len(baskets["single any"][sort].wares) > 0
            )
            once = baskets["single all"][sort]
            assert len(set(once.hosts)) == len(once.hosts)
            assert once.is_over == (set(once.hosts) >= set(names)) or once.is_over
            for name in names:
                if there[name] and not once.is_over:
                    assert name in once.hosts
            settled = baskets["persistent any"][sort]
            if any(there.values()):
                host = settled.replies[-1].host
                assert all(ware in settled.wares for ware in there[host])
        for name in names:
            for sort in SORTS:
                found = await market[name].probe(sort, "all")
                assert not found.lost
                assert {reply.host: reply.items for reply in found.replies} == {
                    other: wares
                    for other in names
                    if (wares := [w for w in market[other].wares.wares if w[0] == sort])
                }

    play(scene, *edges, seed=seed)
