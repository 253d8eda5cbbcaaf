"""The virtual network: links as TCP makes them, and what can go wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.lab.town import Listener, pair
from tupelo.errors import CannotReach
from tupelo.federation.links.link import FrameReceiver, Link, Network
from tupelo.federation.links.wire import Ping, encode
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.network import DIAL_SECONDS, VirtualNetwork

SEEDS = range(5)


def play(
    scene: Callable[[VirtualNetwork], Awaitable[None]],
    *,
    seed: int = 1,
    delay: tuple[float, float] = (0.001, 0.01),
    bandwidth: float | None = None,
) -> VirtualNetwork:
    async def main(loop: VirtualLoop) -> VirtualNetwork:
        network = VirtualNetwork(loop, delay=delay, bandwidth=bandwidth)
        await scene(network)
        return network

    return run(main, seed)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# Links


@pytest.mark.parametrize("seed", SEEDS)
def test_frames_arrive_in_order_both_ways(seed):
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        for frame in numbered(200):
            a.link.send(frame)
            b.link.send(frame + b"!")
            if frame.endswith(b"7"):
                await asyncio.sleep(0.002)
        await b.until(lambda: len(b.frames) == 200)
        await a.until(lambda: len(a.frames) == 200)
        assert b.frames == numbered(200)
        assert a.frames == [frame + b"!" for frame in numbered(200)]

    play(scene, seed=seed)


def test_a_frame_is_under_way_as_long_as_was_said():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        sent = network.loop.time()
        a.link.send(b"word")
        await b.until(lambda: bool(b.frames))
        assert 2.0 <= network.loop.time() - sent <= 3.0

    play(scene, delay=(2.0, 3.0))


def test_a_narrow_line_takes_its_time():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        sent = network.loop.time()
        for _ in range(10):
            a.link.send(bytes(996))  # and four bytes of length
        await b.until(lambda: len(b.frames) == 10)
        assert network.loop.time() - sent == pytest.approx(10.0)

    play(scene, delay=(0.0, 0.0), bandwidth=1_000.0)


def test_who_answers_may_speak_first():
    async def scene(network: VirtualNetwork) -> None:
        def greet(link: Link) -> FrameReceiver:
            link.send(b"welcome")
            return Listener(link)

        heard: list[Listener] = []

        def own(link: Link) -> FrameReceiver:
            heard.append(Listener(link))
            return heard[0]

        await network.place("b").listen("b", greet)
        link = await network.place("a").dial("b", own)
        await heard[0].until(lambda: heard[0].frames == [b"welcome"])
        assert (link.label, link.identity, link.here) == ("b", None, False)

    play(scene)


def test_a_link_from_a_place_to_itself_is_here():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network, "a", "a")
        assert a.link.here and b.link.here

    play(scene)


def test_closing_delivers_what_was_sent_and_is_noticed_at_the_other_end_only():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        for frame in numbered(50):
            a.link.send(frame)
        a.link.close()
        a.link.send(b"too late")
        b.link.send(b"not heard any more")
        assert await b.until_lost() == "closed by the other end"
        assert b.frames == numbered(50)
        await asyncio.sleep(10)
        assert (a.frames, a.reasons, len(b.reasons)) == ([], [], 1)

    play(scene)


def test_aborting_drops_what_was_sent():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        a.link.send(b"dropped")
        a.link.abort()
        assert await b.until_lost() == "reset"
        assert (b.frames, a.reasons) == ([], [])

    play(scene)


def test_what_was_sent_before_closing_arrives_over_a_slow_line_too():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        network.slow("a", "b", 10_000.0)
        a.link.send(b"slowly")
        a.link.close()
        assert await b.until_lost() == "closed by the other end"
        assert b.frames == [b"slowly"]
        assert network.loop.time() > 10

    play(scene)


def test_a_paused_end_hears_nothing_and_the_other_sees_its_bytes_wait():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        b.link.pause()
        for _ in range(10):
            a.link.send(bytes(50_000))
        await asyncio.sleep(60)
        assert (b.frames, a.times_eased) == ([], 0)
        assert a.link.waiting >= 500_000
        b.link.resume()
        await a.until(lambda: a.times_eased == 1)
        await b.until(lambda: len(b.frames) == 10)
        assert a.link.waiting == 0

    play(scene)


def test_who_takes_nothing_is_hung_up_on():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        b.link.pause()
        a.link.send(b"never taken")
        a.link.close()
        assert await b.until_lost() == "reset"
        assert b.frames == []

    play(scene)


# Dialling


async def refused(network: VirtualNetwork, address: str) -> float:
    """How long it took until the one at place "a" was told that it cannot reach the address."""
    begun = network.loop.time()
    with pytest.raises(CannotReach) as caught:
        await network.place("a").dial(address, Listener)
    assert caught.value.address == address
    return network.loop.time() - begun


def test_where_nobody_listens_one_is_refused_soon():
    async def scene(network: VirtualNetwork) -> None:
        assert 0 < await refused(network, "b") < 0.1
        listening = await network.place("b").listen("b", Listener)
        listening.close()
        assert 0 < await refused(network, "b") < 0.1

    play(scene)


def test_a_crashed_host_refuses_and_listens_again_in_its_next_life():
    async def scene(network: VirtualNetwork) -> None:
        old = network.place("b")
        await old.listen("b", Listener)
        network.crash("b")
        assert await refused(network, "b") < 0.1
        with pytest.raises(CannotReach, match="has crashed"):
            await old.listen("b", Listener)
        await network.place("b").listen("b", Listener)
        (await network.place("a").dial("b", Listener)).close()

    play(scene)


def test_over_a_partition_dialling_takes_its_patience():
    async def scene(network: VirtualNetwork) -> None:
        answered: list[Link] = []

        def answer(link: Link) -> Listener:
            answered.append(link)
            return Listener(link)

        await network.place("b").listen("b", answer)
        network.partition({"a"}, {"b"})
        assert await refused(network, "b") == DIAL_SECONDS
        network.heal()
        await asyncio.sleep(10)
        assert answered == []

    play(scene)


def test_dialling_succeeds_if_the_partition_heals_in_time():
    async def scene(network: VirtualNetwork) -> None:
        await network.place("b").listen("b", Listener)
        network.partition({"a"}, {"b"})
        network.loop.call_later(DIAL_SECONDS / 2, network.heal)
        link = await network.place("a").dial("b", Listener)
        assert network.loop.time() > DIAL_SECONDS / 2
        link.close()

    play(scene)


def test_who_stops_dialling_leaves_no_link_behind():
    async def scene(network: VirtualNetwork) -> None:
        answered: list[Listener] = []

        def answer(link: Link) -> Listener:
            answered.append(Listener(link))
            return answered[0]

        await network.place("b").listen("b", answer)
        task = asyncio.create_task(network.place("a").dial("b", Listener))
        while not answered:
            await asyncio.sleep(0.001)
        task.cancel()
        assert await answered[0].until_lost() == "reset"
        with pytest.raises(asyncio.CancelledError):
            await task

    play(scene, delay=(0.1, 0.1))


def test_an_answerer_that_fails_is_a_broken_link_for_who_dials():
    def fail(link: Link) -> FrameReceiver:
        raise KeyError("no")

    async def scene(network: VirtualNetwork) -> None:
        await network.place("b").listen("b", fail)
        assert await refused(network, "b") < 0.1

    with pytest.raises(BaseExceptionGroup, match="nobody has retrieved"):
        play(scene)


def test_an_address_has_one_listener():
    async def scene(network: VirtualNetwork) -> None:
        await network.place("b").listen("b", Listener)
        with pytest.raises(CannotReach, match="already"):
            await network.place("c").listen("b", Listener)

    play(scene)


# Faults


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_is_silent_and_what_was_said_arrives_after_it(seed):
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        for frame in numbered(10):
            a.link.send(frame)  # under way when silence falls
        network.partition({"a"}, {"b", "c"})
        for frame in numbered(10):
            a.link.send(frame + b"?")
        await asyncio.sleep(1_000)
        assert (b.frames, a.reasons, b.reasons) == ([], [], [])
        network.heal()
        a.link.send(b"after")
        await b.until(lambda: len(b.frames) == 21)
        assert b.frames == [*numbered(10), *(frame + b"?" for frame in numbered(10)), b"after"]

    play(scene, seed=seed)


def test_a_link_that_was_given_up_during_a_partition_is_reset_after_it():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        network.partition({"a"}, {"b"})
        a.link.send(b"in vain")
        a.link.abort()
        b.link.send(b"in vain")
        await asyncio.sleep(1_000)
        assert b.reasons == []
        network.heal()
        assert await b.until_lost() == "reset"
        assert (a.frames, b.frames) == ([], [])

    play(scene)


def test_a_link_that_was_closed_during_a_long_partition_is_reset_after_it():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        network.partition({"a"}, {"b"})
        a.link.send(b"in vain")
        a.link.close()
        await asyncio.sleep(1_000)
        network.heal()
        assert await b.until_lost() == "reset"
        assert b.frames == []

    play(scene)


def test_a_partition_parts_only_those_who_share_no_group():
    async def scene(network: VirtualNetwork) -> None:
        await network.place("b").listen("b", Listener)
        network.partition({"a", "relay"}, {"relay", "b"})
        for near, far in (("a", "relay"), ("b", "relay"), ("elsewhere", "elsewhere")):
            one, other = await pair(network, near, far)
            one.link.send(b"word")
            await other.until(lambda other=other: other.frames == [b"word"])  # type: ignore[misc]
        assert await refused(network, "b") == DIAL_SECONDS
        with pytest.raises(CannotReach, match="no answer"):  # A place in no group hears nobody.
            await pair(network, "nowhere", "b2")

    play(scene)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_is_heard_at_both_ends_and_hits_nobody_else(seed):
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        other, c = await pair(network, "a", "c")
        a.link.send(b"lost")
        network.cut("a", "b")
        assert (await a.until_lost(), await b.until_lost()) == ("reset", "reset")
        a.link.send(b"nobody is there")
        assert a.link.waiting == 0
        other.link.send(b"word")
        await c.until(lambda: c.frames == [b"word"])
        assert (b.frames, other.reasons, len(a.reasons), len(b.reasons)) == ([], [], 1, 1)

    play(scene, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_crashed_host_had_sent_still_arrives_and_it_hears_no_more(seed):
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        for frame in numbered(20):
            a.link.send(frame)
        b.link.send(b"on its way to the dead")
        network.crash("a")
        a.link.send(b"from the dead")
        assert await b.until_lost() == "closed by the other end"
        assert b.frames == numbered(20)
        assert network.loop.time() < 1
        await asyncio.sleep(10)
        assert (a.frames, a.reasons) == ([], [])

    play(scene, seed=seed)


def test_who_is_crashed_and_cut_at_once_is_not_told():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        network.cut("a", "b")
        network.crash("a")
        assert await b.until_lost() == "reset"
        assert a.reasons == []

    play(scene)


def test_a_slow_line_is_slower_until_it_is_said_to_be_normal():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        seconds = []
        for factor in (1.0, 50.0, 1.0):
            network.slow("b", "a", factor)
            begun = network.loop.time()
            a.link.send(b"word")
            count = len(b.frames)
            await b.until(lambda count=count: len(b.frames) > count)  # type: ignore[misc]
            seconds.append(network.loop.time() - begun)
        assert seconds == pytest.approx([0.1, 5.0, 0.1])

    play(scene, delay=(0.1, 0.1))


# What is written down


def test_what_was_sent_is_counted_for_each_direction():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        a.link.send(bytes(96))
        a.link.send(bytes(96))
        b.link.send(bytes(6))
        await a.until(lambda: bool(a.frames))

    network = play(scene)
    assert {pair: (t.frames, t.bytes) for pair, t in network.sent.items()} == {
        ("a", "b"): (2, 200),
        ("b", "a"): (1, 10),
    }


def test_the_trace_can_be_read():
    async def scene(network: VirtualNetwork) -> None:
        a, b = await pair(network)
        a.link.send(encode(Ping()))
        a.link.send(b"\xff" + bytes(10_000))
        await b.until(lambda: len(b.frames) == 2)
        network.partition({"a"}, {"b"})
        network.heal()
        network.slow("a", "b", 2.0)
        network.crash("a")
        await b.until_lost()

    text = "\n".join(play(scene).trace)
    for words in (
        "a is linked to b",
        "a → b  Ping()",
        "a → b  not a message, 10001 bytes",
        "partition a | b",
        "heal",
        "slow a – b × 2.0",
        "crash a",
        "b loses a: closed by the other end",
    ):
        assert words in text


def test_the_trace_is_bounded_and_its_digest_covers_what_it_has_forgotten():
    async def main(loop: VirtualLoop, first: bytes) -> VirtualNetwork:
        network = VirtualNetwork(loop, trace_max=10)
        a, b = await pair(network)
        for frame in (first, *numbered(50)):
            a.link.send(frame)
        await b.until(lambda: len(b.frames) == 51)
        return network

    one, two = (run(lambda loop, f=f: main(loop, f), 1) for f in (b"x", b"y"))  # type: ignore[misc]
    assert len(one.trace) == len(two.trace) == 10
    assert one.trace == two.trace
    assert one.digest != two.digest


def test_a_place_is_a_network_like_any_other():
    async def scene(network: VirtualNetwork) -> None:
        place: Network = network.place("b")
        listening = await place.listen("b", Listener)
        assert listening.address == "b"
        link = await place.dial("b", Listener)
        link.close()

    play(scene)
