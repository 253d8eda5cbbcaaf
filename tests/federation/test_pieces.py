"""Entries of many mebibytes between hosts and their clients, over real sockets: in pieces, between
which other messages go."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tupelo
from tests.federation.company import meet
from tests.federation.raw import Raw, encoded
from tests.laws.doors import Door
from tupelo import aio
from tupelo.errors import BadArgument, BadFrame, CannotSend
from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.trust import Trust
from tupelo.federation.links import wire
from tupelo.federation.links.link import Link
from tupelo.federation.links.tcp import TcpNetwork

MEBI = 2**20
PATIENCE = 60.0
HEARTBEAT = 20.0
"""So long that no link is lost on a busy machine while an entry is encoded or written to disk."""
LARGE = ("large", b"x" * (20 * MEBI))
LARGE_TEMPLATE = ("large", bytes)
ANYTHING = encoded(str, bytes)
LONGER = ["longer", b"x" * (48 * MEBI)]
"""More than the system keeps for a program that does not read."""


@pytest.fixture
def lines():
    """`lines(host, **hello)`: a line on which the host has said welcome."""
    made: list[Raw] = []

    def make(host: Any, **hello: Any) -> Raw:
        made.append(Raw.met(host.address, **{"message_max": wire.MESSAGE_MAX, **hello}))
        return made[-1]

    yield make
    for raw in made:
        raw.close()


@pytest.fixture(params=["blocking", "async"])
def dial(request, loop_thread):
    """`dial(url, **options)`: a space at a host elsewhere, at this door."""
    made: list[Any] = []

    def call(url: str, **options: Any) -> Any:
        if request.param == "blocking":
            made.append(tupelo.connect(url, **options))
        else:
            made.append(Door(loop_thread.call(aio.connect, url, **options), loop_thread))
        return made[-1]

    yield call
    for space in made:
        space.close()


# Frames


def cut(data: Any, stream: bytes) -> list[bytes]:
    """The stream, cut somewhere."""
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    ends = sorted({0, len(stream), *places})
    return [stream[start:end] for start, end in pairwise(ends)]


@given(
    st.integers(0, 3 * wire.PIECE_BYTES), st.lists(st.binary(max_size=40), max_size=3), st.data()
)
def test_pieces_are_put_together_however_they_are_cut(size, between, data):
    content = b"x" * size
    first, *others = [*wire.pieces(content)] or [b""]
    stream = first + b"".join(map(wire.frame, between)) + b"".join(others)
    frames = wire.Frames(message_max=wire.MESSAGE_MAX)
    found = [content for part in cut(data, stream) for content in frames.feed(part)]
    expected = [*between, content] if others else [content] * bool(first) + between
    assert found == expected
    assert not frames.held


@pytest.mark.parametrize("message_max", [0, 3 * wire.PIECE_BYTES])
def test_a_message_is_not_put_together_beyond_the_limit(message_max):
    frames = wire.Frames(message_max=message_max)
    first, *_ = wire.pieces(bytes(3 * wire.PIECE_BYTES + 1))
    with pytest.raises(BadFrame, match=f"{message_max or wire.FRAME_MAX} may be"):
        frames.feed(first)


def test_what_is_held_is_counted():
    frames = wire.Frames(message_max=wire.MESSAGE_MAX)
    first, second, _ = wire.pieces(bytes(2 * wire.PIECE_BYTES + 1))
    assert frames.feed(first + second[:1_000]) == []
    assert frames.held == wire.PIECE_BYTES + 1_000


# One link


class Ear:
    """Hears what comes over a link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.contents: list[bytes] = []
        self.reasons: list[str] = []
        self.changed = asyncio.Event()

    def heard(self, contents: list[bytes]) -> None:
        self.contents += contents
        self.changed.set()

    def eased(self) -> None:
        self.changed.set()

    def lost(self, reason: str) -> None:
        self.reasons.append(reason)
        self.changed.set()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def over_a_link(scene: Any, message_max: int = wire.MESSAGE_MAX) -> None:
    """`scene(near, far)`: the two ends of a link over TCP whose programs know each other."""

    async def main() -> None:
        ears: list[Ear] = []

        def answer(link: Link) -> Ear:
            ears.append(Ear(link))
            return ears[-1]

        network = TcpNetwork()
        listening = await network.listen("127.0.0.1:0", answer)
        try:
            await network.dial(listening.address, answer)
            while len(ears) < 2:
                await asyncio.sleep(0)
            for ear in ears:
                ear.link.admit(message_max)
            await scene(*ears)
        finally:
            for ear in ears:
                ear.link.abort()
            listening.close()
            await network.close()

    asyncio.run(main())


LONG, PING, CALL = b"l" * (20 * MEBI), b"ping", b"call"


def test_what_may_overtake_a_long_message_does():
    async def scene(near: Ear, far: Ear) -> None:
        near.link.send(b"before")
        near.link.send(LONG, overtake=True)
        near.link.send(PING, overtake=True)
        near.link.send(CALL, overtake=True)
        assert near.link.in_pieces > 0
        await far.until(lambda: len(far.contents) == 4)
        assert far.contents == [b"before", PING, CALL, LONG]
        assert near.link.in_pieces == near.link.waiting == 0

    over_a_link(scene)


def test_what_may_not_overtake_comes_after_it_and_so_does_all_that_follows():
    async def scene(near: Ear, far: Ear) -> None:
        near.link.send(LONG, overtake=True)
        near.link.send(b"notice")
        near.link.send(CALL, overtake=True)
        near.link.send(LONG[:-1], overtake=True)
        await far.until(lambda: len(far.contents) == 4)
        assert far.contents == [LONG, b"notice", CALL, LONG[:-1]]

    over_a_link(scene)


def test_nothing_overtakes_a_long_message_that_keeps_its_place():
    async def scene(near: Ear, far: Ear) -> None:
        near.link.send(LONG)
        near.link.send(PING, overtake=True)
        await far.until(lambda: len(far.contents) == 2)
        assert far.contents == [LONG, PING]

    over_a_link(scene)


def test_a_program_of_an_older_version_gets_whole_frames():
    async def scene(near: Ear, far: Ear) -> None:
        near.link.send(LONG[:MEBI], overtake=True)
        near.link.send(PING, overtake=True)
        await far.until(lambda: len(far.contents) == 2)
        assert far.contents == [LONG[:MEBI], PING]

    over_a_link(scene, wire.FRAME_MAX)


def test_what_was_said_before_a_link_is_closed_goes_out():
    async def scene(near: Ear, far: Ear) -> None:
        near.link.send(LONG[:MEBI], overtake=True)
        near.link.send(b"goodbye")
        near.link.close()
        await far.until(lambda: far.reasons)
        assert far.contents == [LONG[:MEBI], b"goodbye"]

    over_a_link(scene)


# A host and programs that say anything


def test_a_host_hears_other_calls_between_the_pieces(threads, lines):
    host = threads.host("home", heartbeat=HEARTBEAT)
    raw = lines(host)
    assert raw.welcome.message_max == wire.MESSAGE_MAX
    write = wire.Write(100, "jobs", [list(LARGE)])
    first, *others = wire.pieces(wire.encode(write))
    raw.send(first)
    assert raw.call(wire.CountRequest, "jobs", ANYTHING).value == 0
    raw.send(b"".join(others))
    assert isinstance(raw.answer(100), wire.Answer)
    assert host.space("jobs").here.take(LARGE_TEMPLATE, wait=0) == LARGE


def test_a_host_answers_other_calls_between_the_pieces(threads, lines):
    host = threads.host("home", heartbeat=HEARTBEAT)
    host.space("jobs").here.write(tuple(LONGER))
    raw = lines(host)
    get = wire.Get(100, "jobs", encoded("longer", bytes), True, 0.0)
    raw.say(get, wire.CountRequest(101, "jobs", ANYTHING), wire.Ping())  # and nothing is read
    assert [raw.hear().call, (answer := raw.hear()).call] == [101, 100]
    assert answer.value == [LONGER]
    raw.say(wire.Confirm([100]))
    assert raw.call(wire.CountRequest, "jobs", ANYTHING).value == 0


@pytest.mark.parametrize("role", ["client", "host"])
def test_a_program_of_an_older_version_is_told_what_it_cannot_get(threads, lines, role):
    host = threads.host("home", heartbeat=HEARTBEAT)
    here = host.space("jobs").here
    here.write(LARGE)
    here.write(("large", b"fits"))
    raw = lines(host, message_max=0, role=role)
    if role == "client":
        said = raw.call(wire.Get, "jobs", encoded("large", bytes), True, 0.0)
        assert (said.kind, f"{wire.FRAME_MAX:,}" in said.message) == ("CannotSend", True)
        assert here.count() == 2
    else:
        said = raw.call(wire.Ask, "jobs", encoded("large", bytes), "take")
        assert said.value[0][0] == ["large", b"fits"]
    assert here.read(LARGE_TEMPLATE, wait=0) == LARGE


def test_pieces_before_the_hello_are_refused(threads):
    host = threads.host("home", heartbeat=HEARTBEAT)
    raw = Raw(host.address)
    hello = wire.encode(raw.hello(message_max=wire.MESSAGE_MAX))
    (piece,) = wire.pieces(hello)
    raw.send(piece)
    assert raw.is_hung_up()
    raw.close()


def damaged(how: str) -> bytes:
    first, second, *others = wire.pieces(wire.encode(wire.Write(1, "jobs", [list(LARGE)])))
    match how:
        case "gap":
            return first + others[0]
        case "twice":
            return first + first
        case "too many bytes":
            return first + second[:4] + (2**32 - 1).to_bytes(4) + second[8:]
        case "too long":
            return first[:4] + wire.MESSAGE_MAX.to_bytes(4) + first[8:]
        case "empty":
            return (2**31 + 4).to_bytes(4) + bytes(4)
        case "giant":
            return (2**31 + wire.PIECE_BYTES + 5).to_bytes(4)
    raise AssertionError(how)


@pytest.mark.parametrize("how", ["gap", "twice", "too many bytes", "too long", "empty", "giant"])
def test_pieces_that_do_not_fit_together_end_the_link(threads, lines, how):
    host = threads.host("home", heartbeat=HEARTBEAT)
    raw = lines(host)
    raw.send(damaged(how))
    assert raw.is_hung_up()
    assert host.space("jobs").here.count() == 0


def test_a_message_that_is_cut_is_dropped_with_its_link(threads, lines, until):
    host = threads.host("home", heartbeat=HEARTBEAT)
    raw, other = lines(host), lines(host)
    *most, _ = wire.pieces(wire.encode(wire.Write(1, "jobs", [list(LARGE)])))
    raw.send(b"".join(most))
    links = host.core.network._links
    until(lambda: links.partial_bytes > 19 * MEBI, "all but the last piece is there")
    raw.close()
    until(lambda: links.partial_bytes == 0, "nothing is kept of it")
    assert other.call(wire.CountRequest, "jobs", ANYTHING).value == 0


def test_pieces_of_many_lines_are_bounded_together(threads, lines):
    host = threads.host("home", heartbeat=HEARTBEAT, limits=tupelo.Limits(partial_bytes=8 * MEBI))
    good, *others = [lines(host) for _ in range(4)]
    parts = list(wire.pieces(wire.encode(wire.Write(1, "jobs", [list(LARGE)]))))
    for raw, count in zip(others, (4, 4, 28), strict=True):
        raw.send(b"".join(parts[:count]))
    assert others[-1].is_hung_up()  # That with the most.
    good.say_in_pieces(wire.Write(1, "jobs", [["fits", bytes(MEBI)]]), wire.Ping())
    assert isinstance(good.answer(1), wire.Answer)


def test_a_host_may_accept_less(threads, dial):
    host = threads.host("home", heartbeat=HEARTBEAT, limits=tupelo.Limits(message_bytes=18 * MEBI))
    space = dial(f"tupelo://{host.address}/jobs")
    with pytest.raises(CannotSend, match=f"{18 * MEBI:,}"):
        space.write(LARGE)
    fits = ("large", bytes(17 * MEBI))
    space.write(fits)
    assert space.take(LARGE_TEMPLATE, wait=0) == fits
    with pytest.raises(BadArgument, match=f"message_bytes.*{wire.MESSAGE_MAX:,}"):
        tupelo.Limits(message_bytes=wire.MESSAGE_MAX + 1)


# Programs as people write them


@pytest.mark.parametrize("durable", [False, True])
def test_a_client_writes_reads_and_takes_large_entries(threads, dial, tmp_path, durable):
    host = threads.host("home", heartbeat=HEARTBEAT, path=tmp_path if durable else None)
    space = dial(f"tupelo://{host.address}/jobs")
    with pytest.raises(CannotSend, match=f"{wire.MESSAGE_MAX:,}"):
        space.write(("large", bytes(wire.MESSAGE_MAX)))
    with space.subscribe(LARGE_TEMPLATE) as listening:
        space.write(LARGE)
        assert listening.get(wait=PATIENCE).entry == LARGE
    assert space.read(LARGE_TEMPLATE, wait=0) == LARGE
    with space.transaction() as txn:
        assert space.take(LARGE_TEMPLATE, wait=0, txn=txn) == LARGE
    space.write_all([LARGE, LARGE])
    assert space.take_all(LARGE_TEMPLATE, wait=0) == [LARGE, LARGE]
    assert host.space("jobs").here.count() == 0


def test_large_entries_go_under_tls(threads, dial):
    known, owner = Identity.new(), Identity.new()
    host = threads.host(
        "strict", heartbeat=HEARTBEAT, identity=owner, trust=Trust.known([known.key])
    )
    url = f"tupelo://{host.address}/jobs"
    space = dial(url, identity=known, trust=Trust.known([owner.key]), tls=True)
    space.write(LARGE)
    assert space.take(LARGE_TEMPLATE, wait=0) == LARGE


@pytest.mark.parametrize("durable", [False, True])
def test_large_entries_of_other_hosts_are_read_taken_and_moved(threads, dial, tmp_path, durable):
    first = threads.host("first", heartbeat=HEARTBEAT)
    second = threads.host("second", heartbeat=HEARTBEAT, path=tmp_path if durable else None)
    meet(first, second)
    owned = second.space("jobs")
    space = dial(f"tupelo://{first.address}/jobs")
    owned.write(LARGE)
    assert space.read(LARGE_TEMPLATE, wait=0) == LARGE
    with space.session() as session:
        assert session.read_all(LARGE_TEMPLATE, wait=0) == [LARGE]
    assert first.space("jobs").take(LARGE_TEMPLATE, wait=0) == LARGE
    with first.space("jobs").subscribe(LARGE_TEMPLATE) as listening:
        owned.write(LARGE)
        assert listening.get(wait=PATIENCE).entry == LARGE
    assert space.take(LARGE_TEMPLATE, wait=0) == LARGE
    owned.write(LARGE, to=first.id)
    assert first.space("jobs").here.take(LARGE_TEMPLATE, wait=PATIENCE) == LARGE
    assert owned.here.count() == first.space("jobs").here.count() == 0
