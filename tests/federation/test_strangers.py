"""Strangers cost nothing: what a program sends before it has said who it is, and how much the ones
that were let in may use. Everything goes over real sockets."""

import asyncio
import random
import struct
import threading
from typing import Any

import pytest

import tupelo
from tests.federation.raw import PLAIN, Raw, encoded
from tupelo.errors import BadFrame, LimitReached, WrongPassword
from tupelo.federation.identity import access as guesses_module
from tupelo.federation.identity.access import Access, PasswordGuard
from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.trust import Trust
from tupelo.federation.links import wire
from tupelo.federation.links.calls import ROUND_MESSAGES, TurnScheduler
from tupelo.values import entry as entry_module
from tupelo.values import kind as kind_module
from tupelo.values.codec import entry_to_wire
from tupelo.values.entry import shape_of
from tupelo.values.kind import Kind

MEBI = 2**20
ALTERED_FRAMES = 20_000


class Quarters:
    """A host, its good client, and those who dial it."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.good = tupelo.connect(f"tupelo://{host.address}/jobs", reconnect=0)
        self.good.write(("kept", 1))
        self._raws: list[Raw] = []

    def raw(self, **how: Any) -> Raw:
        self._raws.append(Raw(self.host.address, **how))
        return self._raws[-1]

    def met(self, **hello: Any) -> Raw:
        self._raws.append(Raw.met(self.host.address, **hello))
        return self._raws[-1]

    def is_well(self) -> bool:
        """The good client has its link still, which it would not dial again."""
        return self.good.read(("kept", 1), wait=0) == ("kept", 1)

    def close(self) -> None:
        for raw in self._raws:
            raw.close()
        self.good.close()


@pytest.fixture
def at(threads):
    """`at(calls=3)` is a host with these limits, and its good client."""
    made: list[Quarters] = []

    def make(path: Any = None, **limits: int) -> Quarters:
        host = threads.host("home", heartbeat=30.0, path=path, limits=tupelo.Limits(**limits))
        made.append(Quarters(host))
        return made[-1]

    yield make
    for quarters in made:
        assert quarters.is_well()
        quarters.close()


@pytest.fixture
def apart(threads):
    """The same, with the host in a process of its own: what it needs is seen."""
    quarters = Quarters(threads.child("home", heartbeat=30.0))
    yield quarters
    assert quarters.is_well()
    quarters.close()


def strange_entry(number: int = 1) -> Any:
    kind = Kind(f"far.Strange{number}", ("a",), (f"far.Strange{number}",))
    return entry_to_wire(shape_of(kind, (int,)), (1,))


# Before anybody has said who it is


@pytest.mark.parametrize("length", [wire.HELLO_MAX + 1, wire.FRAME_MAX, 2**32 - 1])
def test_a_first_frame_that_is_announced_as_long_is_not_waited_for(at, length):
    raw = at().raw()
    raw.send(struct.pack(">I", length))
    assert raw.is_hung_up()


def test_sixteen_mebibytes_instead_of_a_hello_are_not_read(apart):
    before = apart.host.megabytes
    fields = b"\x93\x17\x01\xa4jobs\x91\xdd" + struct.pack(">I", wire.FRAME_MAX - 40)
    for _ in range(5):
        raw = apart.raw()
        raw.send(wire.frame(fields + b"\x01" * (wire.FRAME_MAX - 40)))
        assert raw.is_hung_up()
        assert apart.is_well()
    assert apart.host.megabytes < before + 30


def test_a_stranger_under_tls_is_read_no_further(threads):
    known = Identity.new()
    host = threads.host("strict", identity=Identity.new(), trust=Trust.known([known.key]))
    raw = Raw.secure(host.address, Identity.new())
    raw.send(wire.frame(b"\x01" * wire.FRAME_MAX))
    assert raw.is_hung_up()
    raw.close()
    welcome = Raw.secure(host.address, known)
    assert isinstance(welcome.greet(), wire.Welcome)
    welcome.close()


def test_nothing_is_learned_from_a_first_frame(at):
    quarters = at()
    known = set(kind_module._kinds)
    raw = quarters.raw()
    raw.say(wire.Write(1, "jobs", [strange_entry()]))
    assert raw.is_hung_up()
    assert not any("Strange" in name for name, _, _ in set(kind_module._kinds) - known)
    with pytest.raises(BadFrame, match="first frame"):
        wire.decode_first(wire.encode(wire.DescribeHost(1)))


def test_a_host_tells_its_many_spaces_after_it_is_known(threads, until):
    here, there = threads.host("here"), threads.host("there")
    names = [f"{'x' * 60} {number}" for number in range(900)]
    for name in names:
        there.space(name)
    here.engage(there.address)
    until(lambda: here.engaged == ["there"])
    until(lambda: {*names} <= next(iter(here.core.peers.values())).spaces)
    assert sum(map(len, names)) > wire.HELLO_MAX


def test_lines_that_are_about_to_say_hello_are_bounded(at, until):
    quarters = at(handshakes=8)
    begun = PLAIN + wire.frame(wire.encode(quarters.raw().hello()))[:-1]
    silent = [quarters.raw(preamble=begun) for _ in range(40)]
    assert all(raw.is_hung_up() for raw in silent[:-8])
    assert quarters.is_well()
    newcomer = quarters.met()  # It takes the place of one of the last.
    assert isinstance(newcomer.call(wire.DescribeHost), wire.Answer)


def test_who_has_said_hello_is_not_counted_among_those_who_have_not(at):
    quarters = at(handshakes=2)
    all_of_them = [quarters.met() for _ in range(20)]
    assert all(isinstance(raw.call(wire.DescribeHost), wire.Answer) for raw in all_of_them)


def test_trickled_frames_of_many_lines_are_bounded_together(at):
    quarters = at(partial_bytes=MEBI)
    lines = [quarters.met() for _ in range(4)]
    for size, raw in enumerate(lines, start=1):
        raw.send(struct.pack(">I", wire.FRAME_MAX) + b"x" * (size * 150 * 1024))
    assert lines[-1].is_hung_up()  # That of the most.
    big = b"x" * (700 * 1024)
    quarters.good.write(("big", big))  # There is room for another again.
    assert quarters.good.take(("big", bytes), wait=0) == ("big", big)


def altered(rng: random.Random, contents: list[bytes]) -> bytes:
    content = bytearray(rng.choice(contents))
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(content))
        match rng.randrange(3):
            case 0:
                content[place] = rng.randrange(256)
            case 1:
                del content[place : place + rng.randrange(1, 8)]
            case _:
                content[place:place] = rng.randbytes(rng.randrange(8))
        content = content or bytearray(b"x")
    return bytes(content)


def test_a_flood_of_altered_frames_leaves_nothing_behind(at):
    quarters = at()
    rng = random.Random(7)
    hello = wire.encode(quarters.raw().hello())
    said = [wire.encode(wire.DescribeHost(1)), wire.encode(wire.Ping())]
    sent = 0
    while sent < ALTERED_FRAMES:
        raw = Raw(quarters.host.address)
        contents = [altered(rng, [hello])]
        if sent % 2:
            contents = [hello]
        words = [wire.encode(wire.Write(1, "jobs", [strange_entry(sent + n)])) for n in range(3)]
        contents += [altered(rng, [*said, *words]) for _ in range(60)]
        raw.send(b"".join(map(wire.frame, contents)))
        raw.close()
        sent += len(contents)
        if sent % 50 == 0:
            assert quarters.is_well()
    assert quarters.is_well()
    assert len(kind_module._kinds_at_hand) <= kind_module.KINDS_MAX
    assert len(entry_module._shapes_at_hand) <= entry_module.SHAPES_MAX


# Budgets of those who were let in


def test_connections_are_bounded_and_the_limit_is_named(at):
    quarters = at(connections=2)
    second = quarters.met()
    refusal = quarters.raw().greet()
    assert (refusal.kind, refusal.data["limit"]) == ("LimitReached", 2)
    with pytest.raises(LimitReached, match="2 connections"):
        tupelo.connect(f"tupelo://{quarters.host.address}/jobs")
    second.leave()
    assert isinstance(quarters.met().call(wire.DescribeHost), wire.Answer)


def test_what_a_connection_holds_is_bounded(at):
    quarters = at(held=3)
    space = quarters.good
    held: list[Any] = [space.session(), space.transaction(), space.subscribe(("x",))]
    for one_more in (space.session, space.transaction, lambda: space.subscribe(("x",))):
        with pytest.raises(LimitReached, match="sessions") as caught:
            one_more()
        assert caught.value.limit == 3
    held[0].close()
    held[0] = space.session()
    held[1].abort()
    held[1] = space.transaction()
    for one in (held[0], held[2]):
        one.close()
    held[1].abort()


def test_what_has_run_out_does_not_count(threads):
    clock = tupelo.ManualClock(1_000.0)
    host = threads.host("timed", clock=clock, limits=tupelo.Limits(held=2))
    raw = Raw.met(host.address)
    for _ in range(3):
        assert isinstance(raw.call(wire.OpenSession, "jobs", 5.0), wire.Answer)
        assert isinstance(raw.call(wire.Begin, "jobs", 5.0), wire.Answer)
        assert raw.call(wire.OpenSession, "jobs", 5.0).kind == "LimitReached"
        clock.advance(6.0)
        assert isinstance(raw.call(wire.CountRequest, "jobs", encoded("x")), wire.Answer)
    raw.close()


def test_what_all_connections_hold_is_bounded_and_freed_with_them(at, until):
    quarters = at(held_in_all=4)
    raw = quarters.met()
    for _ in range(4):
        assert isinstance(raw.call(wire.OpenSession, "jobs"), wire.Answer)
    with pytest.raises(LimitReached, match="at this host"):
        quarters.good.session()
    raw.leave()
    quarters.good.session().close()


def test_a_backlog_is_bounded(at):
    quarters = at(backlog=50)
    for asked in (51, 2**62):
        with pytest.raises(LimitReached, match="backlog") as caught:
            quarters.good.subscribe(("x",), backlog_max=asked)
        assert caught.value.limit == 50
    quarters.good.subscribe(("x",), backlog_max=50).close()


def test_durable_spaces_leave_descriptors_for_others_also_after_a_restart(threads, tmp_path):
    limits = tupelo.Limits(durable_spaces=6)
    host = threads.host("home", path=tmp_path, limits=limits)
    raw = Raw.met(host.address)
    said = [raw.call(wire.Open, f"space {number}") for number in range(10)]
    assert isinstance(said[0], wire.Answer)
    assert (said[-1].kind, said[-1].data["limit"]) == ("LimitReached", 6)
    made = sum(isinstance(one, wire.Answer) for one in said)
    host.space("of the host's own program")
    raw.close()
    host.close()
    again = threads.host("home", path=tmp_path, limits=limits)
    raw = Raw.met(again.address)
    assert isinstance(raw.call(wire.Open, f"space {made - 1}"), wire.Answer)
    assert raw.call(wire.Open, "one more").kind == "LimitReached"
    raw.close()


def test_shapes_of_a_space_are_bounded(at):
    quarters = at(shapes=5)
    with pytest.raises(LimitReached, match="shapes") as caught:
        for count in range(10):
            quarters.good.write(("many", *[1] * count))
    assert caught.value.limit == 5
    quarters.good.write(("kept", 2))  # of a shape that it has
    assert quarters.good.take(("kept", 2), wait=0) == ("kept", 2)


@pytest.mark.parametrize("wrong", [{"calls": 0}, {"held": -1}, {"backlog": 2.5}, {"spaces": True}])
def test_a_limit_is_a_whole_number(wrong):
    with pytest.raises(tupelo.errors.BadArgument, match=next(iter(wrong))):
        tupelo.Limits(**wrong)
    with pytest.raises(tupelo.errors.BadArgument, match="limits="):
        tupelo.Host("home", limits={"calls": 5})  # type: ignore[arg-type]


# Turns


def test_a_connection_with_its_calls_under_way_is_read_again_when_some_have_ended(at, tmp_path):
    quarters = at(tmp_path, working=4, working_in_all=6)
    raws = [quarters.met() for _ in range(3)]
    for raw in raws:
        raw.say(*(wire.Write(call, "jobs", [["job", call]]) for call in range(1, 301)))
    for raw in raws:
        assert all(isinstance(raw.answer(call), wire.Answer) for call in range(1, 301))
    assert quarters.good.count(("job", int)) == 900


def test_calls_that_wait_do_not_keep_their_connection_from_being_read(at, tmp_path):
    quarters = at(tmp_path, working=1, working_in_all=1)
    raw = quarters.met()
    raw.say(*(wire.Get(call, "jobs", encoded("job", int), True, None) for call in (1, 2, 3)))
    raw.say(*(wire.Write(call, "jobs", [["job", call]]) for call in (11, 12, 13)))
    for call in (1, 2, 3, 11, 12, 13):
        assert isinstance(raw.hear_until(lambda said: hasattr(said, "call")), wire.Answer), call


def test_a_newcomer_is_answered_while_others_have_thousands_in_flight(at):
    quarters = at()
    flooding = [quarters.met() for _ in range(4)]
    count = 5_000
    tell = b"".join(
        wire.frame(wire.encode(wire.DescribeHost(call))) for call in range(1, count + 1)
    )
    senders = [threading.Thread(target=raw.send, args=(tell,)) for raw in flooding]
    for sender in senders:
        sender.start()
    with tupelo.connect(f"tupelo://{quarters.host.address}/jobs") as newcomer:
        newcomer.write(("new", 1))
        assert newcomer.take(("new", int), wait=20) == ("new", 1)
    for raw in flooding:
        assert isinstance(raw.answer(count), wire.Answer)
    for sender in senders:
        sender.join()


class Sender:
    """A conversation with so many messages to serve."""

    def __init__(self, turns: TurnScheduler, messages: int, log: list[Any]) -> None:
        self.left = messages - turns.take(messages)
        self._log = log
        if self.left:
            turns.queue(self)

    @property
    def awaits_turn(self) -> bool:
        return self.left > 0

    def serve_turn(self, most: int) -> int:
        served = min(most, self.left)
        self.left -= served
        self._log.append((self, served))
        return served


def test_each_has_its_turn_and_the_loop_comes_round_in_between():
    async def scene() -> None:
        turns = TurnScheduler(asyncio.get_running_loop())
        log: list[Any] = []
        greedy = Sender(turns, 100 * ROUND_MESSAGES, log)
        assert greedy.left == 99 * ROUND_MESSAGES  # a round's worth was served at once
        modest = Sender(turns, 3, log)
        assert modest.left == 3  # It waits for its turn, but only for one of the other's.
        await asyncio.sleep(0)
        assert modest.left == 0
        assert log[:2] == [(greedy, ROUND_MESSAGES // 2), (modest, 3)]
        served = sum(count for _, count in log)
        assert served <= ROUND_MESSAGES
        while greedy.left:
            before = greedy.left
            await asyncio.sleep(0)
            assert before - greedy.left <= ROUND_MESSAGES

    asyncio.run(scene())


# Passwords


def test_wrong_passwords_are_counted_and_slowed(threads):
    host = threads.host("home")
    host.space("locked", access=Access(password="secret"))
    url = f"tupelo://{host.address}/locked"
    for number in range(1, guesses_module.FREE_GUESSES + 2):
        with pytest.raises(WrongPassword):
            tupelo.connect(url, password="guess")
        assert host.core.guesses.wrong_from("127.0.0.1") == number
    with pytest.raises(WrongPassword):
        tupelo.connect(url)  # No guess.
    assert host.core.guesses.wrong_from("127.0.0.1") == guesses_module.FREE_GUESSES + 1
    with tupelo.connect(url, password="secret") as space:  # once the pause is over
        assert space.count() == 0


def test_the_pause_before_a_guess_grows_and_other_addresses_have_none():
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        guard = PasswordGuard(loop)
        for _ in range(guesses_module.FREE_GUESSES):
            assert not await guard.check("here", lambda: False)
        here = guard._guessers["here"]
        assert here.not_before == 0.0
        pauses = []
        for _ in range(12):
            guard._was_wrong(here)
            pauses.append(here.not_before - here.last)
        assert pauses == sorted(pauses)
        assert pauses[0] == pytest.approx(guesses_module.FIRST_PAUSE_SECONDS)
        assert pauses[-1] == pytest.approx(guesses_module.PAUSE_MAX_SECONDS)
        waiting = asyncio.ensure_future(guard.check("here", lambda: True))
        assert await guard.check("there", lambda: True)
        assert not waiting.done()
        waiting.cancel()
        for number in range(2 * guesses_module.ADDRESSES_MAX):
            guard._guesser(f"address {number}")
        assert len(guard._guessers) <= guesses_module.ADDRESSES_MAX
        guard.close()

    asyncio.run(scene())


def test_a_flood_of_guesses_holds_up_nothing_else(at, tmp_path, monkeypatch):
    quarters = at(tmp_path)
    quarters.host.space("locked", access=Access(password="secret"))
    going_on = threading.Event()
    monkeypatch.setattr(Access, "matches_password", lambda access, text: going_on.wait(60) and 0)
    raw = quarters.met()
    raw.say(*(wire.Open(call, "locked", f"guess {call}") for call in range(1, 101)))
    refused = raw.hear()
    assert (refused.kind, refused.data["limit"]) == ("LimitReached", guesses_module.PENDING_MAX)
    quarters.good.write(("job", 1))
    assert quarters.good.take(("job", int), wait=0) == ("job", 1)
    # What needs a thread has one: all of those that guesses may use are taken.
    assert [change.kind for change in quarters.good.changes(limit=1)] == ["written"]
    raw.close()
    going_on.set()
