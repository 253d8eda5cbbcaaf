"""Feeds of hosts on a virtual network: what one writes is at all of them, whatever happens."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from tests.conftest import seeds
from tests.federation.replication.town import FEED, Town, play
from tupelo.federation.links import wire
from tupelo.federation.replication import messages as said

NONE = BitMap64().serialize()


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


ROW = ("ba", "cb", "dc")


def test_what_one_writes_is_at_all_of_a_row(folder):
    async def scene(town: Town) -> None:
        await town["a"].write(*[("n", i) for i in range(20)])
        await town["d"].write(("from", "d"))
        await town.alike("abcd")
        for name in "abcd":
            assert town[name].copies("a") == [("n", i) for i in range(20)]
            assert town[name].copies("d") == [("from", "d")]

    play(scene, *ROW, folder=folder)


def test_what_is_taken_is_no_more_at_all_of_them(folder):
    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1), ("n", 2), ("n", 3))
        await town.alike("abcd")
        assert await town["a"].take(("n", 2)) == ("n", 2)
        await town.until(lambda: all(town[n].copies() == [("n", 1), ("n", 3)] for n in "abcd"))
        await town.alike("abcd")

    play(scene, *ROW, folder=folder)


def test_what_was_there_before_the_feed_counts_as_well():
    async def scene(town: Town) -> None:
        await town["a"].write(("before",))
        await town.alike("ab")
        town["a"].call(town["a"].feed.close)
        await town["a"].write(("between",))
        await town.until(lambda: not town["b"].feed.partners)
        again = town["a"].call(town["a"].replication.feed, FEED, town.policy)
        town["a"].feed = again
        await town.alike("ab")
        assert town["b"].copies()[-2:] == [("before",), ("between",)]

    play(scene, "ba")


def test_a_lease_runs_out_everywhere(folder):
    async def scene(town: Town) -> None:
        await town["a"].write(("short",), lease=5.0)
        await town["a"].write(("long",))
        await town.until(lambda: town["d"].copies() == [("short",), ("long",)])
        await asyncio.sleep(10)
        assert all(town[name].copies() == [("long",)] for name in "abcd")
        await town.alike("abcd")

    play(scene, *ROW, folder=folder)


def test_copies_whose_time_has_come_are_let_go_of_without_their_source(folder):
    async def scene(town: Town) -> None:
        a, b = town["a"], town["b"]
        await a.write(("long",))
        await a.write(*[("short", number) for number in range(200)], lease=5.0)
        await town.until(lambda: len(b.copies("a")) == 201)
        await a.crash()
        await asyncio.sleep(10)
        await b.write(("own", 1))
        await b.write(("own", 2))
        (stream,) = [one for one in b.feed.exchange.streams.values() if one.source[0] == "a"]
        await town.until(lambda: len(stream.items) == 1)
        assert [one.fields for one in stream.items.values()] == [("long",)]
        await a.start()
        await town.until(lambda: b.feed.partners == ["a"])
        if folder is not None:
            assert b.copies("a") == [("long",)]

    play(scene, "ba", folder=folder)


def test_who_was_away_gets_what_it_missed_from_anyone(folder):
    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1), ("n", 2))
        await town.alike("abcd")
        town.network.partition("abc", "d")
        await asyncio.sleep(5)
        await town["a"].take(("n", 1))
        await town["a"].write(*[("m", i) for i in range(50)])
        await town["d"].write(("alone",))
        await town.alike("abc")
        assert town["d"].copies("a") == [("n", 1), ("n", 2)]
        await town["a"].crash()
        town.network.heal()
        await town.alike("bcd")
        for name in "bcd":
            assert town[name].copies("a") == [("n", 2), *(("m", i) for i in range(50))]
            assert town[name].copies("d") == [("alone",)]

    play(scene, *ROW, folder=folder)


def test_a_host_that_comes_back_alone_has_what_it_has_seen(tmp_path):
    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1), ("n", 2), ("n", 3))
        await town["b"].write(("own",))
        await town.alike("ab")
        await town["a"].take(("n", 2))
        await town.alike("ab")
        await town["a"].leave()
        await town["b"].leave()
        await town["b"].start()
        assert town["b"].copies("a") == [("n", 1), ("n", 3)]
        assert town["b"].copies("b") == [("own",)]
        await town["b"].write(("again",))
        await town["a"].start()
        await town["a"].take(("n", 1))
        await town["a"].write(("n", 4))
        await town.alike("ab")
        for name in "ab":
            assert town[name].copies("a") == [("n", 3), ("n", 4)]
            assert town[name].copies("b") == [("own",), ("again",)]
            assert len(town[name].feed.marks) == 2

    play(scene, "ba", folder=tmp_path)


def test_what_has_run_out_meanwhile_does_not_come_back(tmp_path):
    async def scene(town: Town) -> None:
        a, b = town["a"], town["b"]
        await a.write(("short", 1), lease=10.0)
        await town.until(lambda: b.copies("a") == [("short", 1)])
        await b.leave()
        await a.write(("long", 2))
        await asyncio.sleep(20)
        await b.start()
        await town.alike("ab")
        assert b.copies("a") == [("long", 2)]
        await a.take(("long", 2))
        await b.leave()
        await a.leave()
        await b.start()
        assert b.copies("a") in ([], [("long", 2)])
        await a.start()
        await town.alike("ab")
        assert b.copies("a") == []
        # Of streams of which nothing is left, nothing but that is kept.
        assert b.feed.copies.port.entry_count <= 2

    play(scene, "ba", folder=tmp_path)


def test_removals_that_are_known_before_the_items_outlive_a_crash(tmp_path):
    """What b knows of numbers that have not come yet it still knows when it is back."""

    async def scene(town: Town) -> None:
        b = town["b"]
        exchange = b.feed.exchange
        living = BitMap64([3, 9]).serialize()
        here = said.HasFeed(FEED, "z/1", True, [], {})
        b.call(exchange.heard, "z", here)
        b.call(exchange.heard, "z", said.AliveNumbers(FEED, "y/1", 9, 7, living, NONE))
        b.call(exchange.heard, "z", said.Tombstones(FEED, "y/1", 7, [9, 12]))
        await asyncio.sleep(1)  # until it is on disk
        await b.crash()
        await b.start()
        stream = b.feed.exchange.streams["y/1"]
        assert (stream.upto, stream.known, stream.tombstones) == (0, 9, 9)
        encoded = [(n, [["n", n], n, "y", None, None]) for n in (2, 3, 9, 12, 13)]
        b.call(b.feed.exchange.heard, "z", here)
        parcel = said.ItemBatch(FEED, "y/1", 0, 13, 9, encoded, False)
        b.call(b.feed.exchange.heard, "z", parcel)
        assert b.copies("y") == [("n", 3), ("n", 13)]
        await asyncio.sleep(1)  # until it is on disk
        await b.crash()
        await b.start()
        assert b.copies("y") == [("n", 3), ("n", 13)]
        assert b.feed.marks["y/1"] == said.StreamMark(13, 9)

    play(scene, names="b", folder=tmp_path)


def test_a_feed_whose_copies_cannot_be_kept_is_closed(tmp_path):
    async def scene(town: Town) -> None:
        await town.alike("ab")
        town["b"].feed.copies.port.close()
        await town["a"].write(("n", 1))
        await town.until(lambda: town["b"].feed.closed)
        await town.until(lambda: not town["a"].feed.partners)
        assert "a" in town["b"].core.peers

    play(scene, "ba", folder=tmp_path)


def test_what_was_taken_while_the_feed_was_closed_is_no_more(folder):
    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1), ("n", 2), ("n", 3))
        await town.alike("ab")
        a = town["a"]
        await a.take(("n", 1))
        a.call(a.feed.close)
        await a.take(("n", 3))
        a.feed = a.call(a.replication.feed, FEED, town.policy)
        await town.alike("ab")
        assert town["b"].copies() == [("n", 2)]
        await a.write(("n", 4))
        await a.take(("n", 2))
        await town.alike("ab")
        assert town["b"].copies() == [("n", 4)]

    play(scene, "ba", folder=folder)


def test_what_is_written_last_is_told_before_the_host_leaves(folder):
    async def scene(town: Town) -> None:
        await town.alike("ab")
        await town["a"].write(("last", "words"))
        await town["a"].leave()
        await town.until(lambda: town["b"].copies("a") == [("last", "words")])

    play(scene, "ba", folder=folder)


def test_a_large_difference_travels_in_windows(folder):
    async def scene(town: Town) -> None:
        town.network.partition("a", "b")
        await asyncio.sleep(3)
        await town["a"].write(*[("n", i, "x" * 10_000) for i in range(200)])
        town.network.heal()
        await town.alike("ab")
        assert [fields[1] for fields in town["b"].copies()] == list(range(200))
        assert town["a"].replication.sent["ItemBatch"] >= 8

    play(scene, "ba", folder=folder)


def test_a_burst_is_told_in_few_messages():
    async def scene(town: Town) -> None:
        await town.alike("abcd")
        await town.until(lambda: len(town["a"].feed.partners) == 3)
        await asyncio.sleep(1)
        space = town["a"].core.spaces[FEED].space
        before = town["a"].replication.sent.total()
        others = sum(town[name].replication.sent.total() for name in "bcd")
        for i in range(1_000):
            space.write(("n", i))
        await town.alike("abcd")
        assert town["a"].replication.sent.total() - before == 3
        assert sum(town[name].replication.sent.total() for name in "bcd") == others

    play(scene, "ba", "ca", "da", "cb", "db", "dc")


@pytest.mark.parametrize("seed", seeds(3))
def test_storms(seed, folder):
    """Hosts part, meet and crash; at the end all who are there have the same, each in order."""

    async def scene(town: Town) -> None:
        rng, names = town.loop.rng, "abcde"
        count = 0
        for _ in range(25):
            one = town[rng.choice(names)]
            match rng.randrange(6):
                case 0 if one.life is not None and rng.random() < 0.5:
                    await one.crash()
                case 1 if one.life is None:
                    await one.start()
                case 2:
                    other = rng.sample(names, 2)
                    town.network.cut(*other)
                case 3:
                    cut = rng.randrange(1, 4)
                    town.network.partition(names[:cut], names[cut:])
                case 4:
                    town.network.heal()
            one = town[rng.choice(names)]
            if one.life is not None:
                if rng.random() < 0.3:
                    await one.take((str, int))
                for _ in range(rng.randrange(4)):
                    count += 1
                    await one.write((one.name, count))
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.3, 2.0)))
        town.network.heal()
        for one in town.hosts.values():
            if one.life is None:
                await one.start()
        await town.until(lambda: all(one.feed.partners for one in town.hosts.values()))
        await asyncio.sleep(5)
        await town.alike(names)
        views = []
        for name in names:
            citizen = town[name]
            for stream in citizen.feed.exchange.streams.values():
                numbers = [entry.fields[1] for entry in stream.items.values()]
                assert numbers == sorted(numbers)
            views.append(sorted(citizen.copies()))
        assert all(view == views[0] for view in views)
        for one in town.hosts.values():
            store = one.core.spaces[FEED].port.entries()
            source = one.feed.source
            own = [entry.fields for entry in one.feed.exchange.streams[source].items.values()]
            assert own == [entry.fields for entry in store]

    play(scene, "ba", "cb", "dc", "ed", "ae", "ac", seed=seed, folder=folder)


def test_a_link_that_ends_while_one_feed_speaks_leaves_nothing_unsaid_of_another():
    async def scene(town: Town) -> None:
        for one in town.hosts.values():
            one.call(one.replication.feed, "second", town.policy)
        a = town["a"]
        second = a.replication.feeds["second"]
        await town.until(lambda: len(a.feed.partners) == len(second.partners) == 2, "met")
        talk = a.core.peers["b"].talk

        def say(message: wire.Message) -> None:
            talk.end("too slow")

        talk.say = say  # type: ignore[method-assign]
        await a.write(("n", 1))
        await town.until(lambda: "b" not in a.core.peers, "parted")
        assert not a.feed.exchange.outbox
        assert not second.exchange.outbox

    play(scene, "ab", "ac", "bc")
