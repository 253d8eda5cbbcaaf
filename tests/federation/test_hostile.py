"""Hostile programs: whatever they say, they harm nothing but their own link.

In every test a well-behaved client uses the same host, and goes on doing so."""

import random
import struct
import time
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tupelo
from tests.federation.company import Company, await_space
from tests.federation.raw import PLAIN, Raw, encoded
from tupelo.errors import BadFrame, LinkError
from tupelo.federation.client.connect import connect
from tupelo.federation.links import reception, tcp, wire
from tupelo.federation.links.encoding import encode_change, read_change
from tupelo.values.entry import DELIVERIES_MAX, About
from tupelo.values.scope import HERE, Coverage, Scope

PATIENCE = 60.0
JOBS = encoded("job", int)


class Siege:
    """A host, its good client, and those who mean harm."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.good = connect(f"tupelo://{host.address}/jobs")
        self.good.write(("kept", 1))
        self._raws: list[Raw] = []
        self._rounds = 0

    def raw(self, **how: Any) -> Raw:
        return self._keep(Raw(self.host.address, **how))

    def met(self, role: str = "client", **hello: Any) -> Raw:
        return self._keep(Raw.met(self.host.address, role, **hello))

    def _keep(self, raw: Raw) -> Raw:
        self._raws.append(raw)
        return raw

    def all_is_well(self) -> None:
        """The good client's things are as it left them, and it goes on."""
        self._rounds += 1
        assert self.good.read(("kept", 1), wait=0) == ("kept", 1)
        self.good.write(("round", self._rounds))
        assert self.good.take(("round", int), wait=PATIENCE) == ("round", self._rounds)
        assert self.good.read_all(("kept", int)) == [("kept", 1)]

    def close(self) -> None:
        for raw in self._raws:
            raw.close()
        self.good.close()


@pytest.fixture
def siege(threads):
    siege = Siege(threads.host("besieged", heartbeat=30.0))
    yield siege
    siege.all_is_well()
    siege.close()


# Noise


def test_garbage_instead_of_a_greeting(siege):
    rng = random.Random(1)
    for size in (1, 7, 8, 9, 100, 5_000):
        raw = siege.raw(preamble=rng.randbytes(size))
        if size >= 8:
            assert raw.is_hung_up()
        siege.all_is_well()


@pytest.mark.parametrize("preamble", [b"GET / HTTP/1.1\r\n\r\n", b"TUPELO\xffP", b"TUPELO\x01?"])
def test_another_language_or_version(siege, preamble):
    assert siege.raw(preamble=preamble).is_hung_up()


def test_tls_is_refused_by_a_host_that_has_no_identity(siege):
    raw = siege.raw(preamble=PLAIN[:-1] + b"T")
    assert raw.read(8) == PLAIN[:-1] + b"X"
    assert raw.hear().kind == "CannotReach"
    assert raw.is_hung_up()


def test_those_who_say_nothing_are_dropped(siege, monkeypatch):
    monkeypatch.setattr(tcp, "HANDSHAKE_SECONDS", 0.2)
    monkeypatch.setattr(reception, "HELLO_SECONDS", 0.2)
    hello = wire.frame(wire.encode(siege.raw().hello()))
    silent = [siege.raw(preamble=start) for start in (b"", PLAIN[:5], PLAIN, PLAIN + hello[:-1])]
    siege.all_is_well()
    assert all(raw.is_hung_up() for raw in silent)


def test_a_hello_that_drips_is_heard_if_it_ends_in_time(siege):
    raw = siege.raw(preamble=b"")
    for byte in PLAIN + wire.frame(wire.encode(raw.hello())):
        raw.send(bytes([byte]))
    assert raw.read(8) == PLAIN
    assert isinstance(raw.hear(), wire.Welcome)


def test_a_frame_that_drips_for_ever_keeps_nobody_waiting(siege):
    raw = siege.met()
    content = wire.encode(wire.DescribeHost(1))
    raw.send(struct.pack(">I", 1_000))
    for _ in range(50):
        raw.send(b"\x00")
    siege.all_is_well()
    raw.send(content)
    siege.all_is_well()


@pytest.mark.parametrize("length", [wire.FRAME_MAX + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("greeted", [False, True])
def test_a_frame_that_claims_to_be_giant(siege, length, greeted):
    raw = siege.met() if greeted else siege.raw()
    raw.send(struct.pack(">I", length) + b"x" * 1_000)
    assert raw.is_hung_up()


@pytest.mark.parametrize("role", ["client", "host"])
def test_a_valid_hello_and_then_garbage(siege, role):
    rng = random.Random(2)
    for _ in range(20):
        raw = siege.met(role)
        raw.send(wire.frame(rng.randbytes(rng.randrange(1, 200))))
        assert raw.is_hung_up()
    assert siege.host.engaged == []


@pytest.mark.parametrize("role", ["client", "host"])
def test_garbage_in_the_same_breath_as_the_hello(siege, role, until):
    for _ in range(10):
        raw = siege.raw()
        raw.send(wire.frame(wire.encode(raw.hello(role))) + wire.frame(b"\xc1garbage"))
        assert raw.is_hung_up()
    until(lambda: siege.host.engaged == [])


def test_empty_frames_are_garbage(siege):
    raw = siege.met()
    raw.send(wire.frame(b"") * 1_000)
    assert raw.is_hung_up()


@pytest.mark.parametrize(
    "first",
    [
        wire.Ping(),
        wire.DescribeHost(1),
        wire.Goodbye(),
        wire.Welcome(wire.VERSION, "h", "h", "i", "s", 1.0),
        wire.Answer(1),
        wire.Write(1, "jobs", [["kept", 2]]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_one_who_does_not_begin_with_hello(siege, first):
    raw = siege.raw()
    raw.say(first)
    assert raw.is_hung_up()


def test_another_version_is_told_so(siege):
    raw = siege.raw()
    refusal = raw.greet(version=wire.VERSION + 1)
    assert isinstance(refusal, wire.Refusal) and refusal.kind == "CannotReach"
    assert str(wire.VERSION + 1) in refusal.message
    assert raw.is_hung_up()


@pytest.mark.parametrize("changed", [{"id": ""}, {"id": "x" * 5_000}, {"name": "x" * 5_000}])
def test_a_hello_without_a_proper_name(siege, changed):
    raw = siege.raw()
    raw.say(raw.hello(**changed))
    assert raw.is_hung_up()


def test_deep_nesting(siege):
    for role in ("client", "host"):
        for depth in (1_000, 100_000, 5_000_000):
            raw = siege.met(role)
            raw.send(wire.frame(b"\x93\x17\x01" + b"\x91" * depth))
            assert raw.is_hung_up()
            raw = siege.met(role)
            raw.send(wire.frame(b"\x81\xa1x" * depth))
            assert raw.is_hung_up()


def test_nested_values_within_a_call(siege):
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    raw = siege.met()
    said = raw.call(wire.Write, "jobs", [["kept", deep]])
    assert isinstance(said, wire.Failure)
    said = raw.call(wire.Get, "jobs", deep, True, 0.0)
    assert isinstance(said, wire.Failure)


def test_a_frame_as_large_as_allowed_is_taken(siege):
    raw = siege.met()
    room = wire.FRAME_MAX - len(wire.encode(wire.Write(1, "others", [["big", b"x" * 70_000]])))
    said = raw.call(wire.Write, "others", [["big", b"x" * (room + 70_000)]])
    assert isinstance(said, wire.Answer)
    got = raw.call(wire.Get, "others", encoded("big", bytes), True, 0.0)
    assert len(got.value[0][1]) == room + 70_000
    raw.say(wire.Confirm([got.call]))


# Wrong arguments

NAN, INFINITY = float("nan"), float("inf")
WRONG = [
    wire.Get(1, "jobs", JOBS, True, NAN),
    wire.Get(1, "jobs", JOBS, True, INFINITY),
    wire.Get(1, "jobs", JOBS, True, -1.0),
    wire.Get(1, "jobs", JOBS, True, 1e300, many=True),
    wire.Get(1, "jobs", JOBS, True, 0.0, many=True, limit=-1),
    wire.Get(1, "jobs", JOBS, True, 0.0, order=[1]),
    wire.Get(1, "jobs", JOBS, True, 0.0, txn="1"),
    wire.Get(1, "jobs", JOBS, False, 0.0, session="1"),
    wire.Get(1, "", JOBS, True, 0.0),
    wire.Get(1, "jobs", JOBS, True, 0.0, scope=Scope("host", "nobody")),
    wire.Write(1, "jobs", [5]),
    wire.Write(1, "jobs", [["kept", 2]], NAN),
    wire.Write(1, "jobs", [["kept", 2]], [1.0, 2.0]),
    wire.Write(1, "jobs", [["kept", 2]], at=[{}]),
    wire.Write(1, "jobs", [["kept", 2]], wait=NAN),
    wire.Write(1, "tupelo.presence", [["kept", 2]]),
    wire.Write(1, "tupelo.decisions", [["kept", 2]]),
    wire.CountRequest(1, "tupelo.decisions", JOBS),
    wire.Open(1, "x" * 100_000),
    wire.Begin(1, "jobs", NAN),
    wire.Begin(1, "jobs", id="handover:host:1"),
    wire.Begin(1, "jobs", id="move:host:o:1"),
    wire.Begin(1, "jobs", None, "parent"),
    wire.End(1, "jobs", "1", "commit"),
    wire.OpenSession(1, "jobs", -1.0),
    wire.OpenSession(1, "jobs", None, "1"),
    wire.Subscribe(1, "jobs", JOBS, backlog_max=-1),
    wire.Next(1, "jobs", "1"),
    wire.State(1, "jobs", "entry", "x"),
    wire.State(1, "jobs", "entry", "9" * 5_000 + ":1"),
    wire.Renew(1, "jobs", "entry", "1:1", 5.0),
    wire.CancelLease(1, "jobs", "entry", "1:1"),
    wire.Changes(1, "jobs", -1),
    wire.Trim(1, "jobs", -1),
    wire.Decide(1, "x", [("y", "z")]),
    # of the other role
    wire.Ask(1, "jobs", JOBS, "take"),
    wire.Settle(1, 1, True, "jobs", "i"),
    wire.WatchRequest(1, "jobs", JOBS, 1),
    wire.UnwatchRequest(1, 1),
    wire.MoveEntry(1, "jobs", [["kept", 2], "o", 1, 1, None, None]),
]


@pytest.mark.parametrize("message", WRONG, ids=lambda message: type(message).__name__)
def test_a_call_that_cannot_be_is_refused_and_the_next_is_answered(siege, message):
    raw = siege.met()
    raw.say(message)
    assert isinstance(raw.answer(1), wire.Failure)
    raw.say(wire.DescribeHost(2))
    assert isinstance(raw.answer(2), wire.Answer)


SAID = [
    ("client", wire.PresenceUpdate(["jobs"], ["x"])),
    ("client", wire.Hello(wire.VERSION, "client", "a", "b", "c")),
    ("client", wire.Welcome(wire.VERSION, "a", "b", "c", "s", 1.0)),
    ("client", wire.Refusal("Stranger", "go")),
    ("client", wire.Hint(1)),
    ("client", wire.HintAck(1, 1)),
    ("client", wire.DescribeHost(0)),
    ("host", wire.Confirm([1])),
    ("host", wire.Cancel([1])),
    ("host", wire.Get(1, "jobs", JOBS, True)),
    ("host", wire.Write(1, "jobs", [["kept", 2]])),
    ("host", wire.Open(1, "jobs")),
    ("host", wire.Begin(1, "jobs")),
    ("host", wire.Hello(wire.VERSION, "host", "a", "b", "c")),
]


@pytest.mark.parametrize(("role", "message"), SAID, ids=lambda said: type(said).__name__)
def test_what_is_not_its_to_say_ends_a_link(siege, role, message):
    raw = siege.met(role)
    raw.say(message)
    assert raw.is_hung_up()


@pytest.mark.parametrize("role", ["client", "host"])
def test_answers_to_calls_that_were_never_made(siege, role):
    raw = siege.met(role)
    for number in (0, 1, 2, -5, 2**63):
        raw.say(wire.Answer(number, [["kept", 5]]))
        raw.say(wire.Failure(number, "Stranger", "go", {"args": 5, "__class__": 3}))
    raw.say(wire.Ping())
    siege.all_is_well()


# What belongs to others


def test_nobody_confirms_or_cancels_the_calls_of_another(siege):
    """The good one has taken something that it has not confirmed, and waits for more."""
    good, bad = siege.met(), siege.met()
    siege.good.write_all([("job", 1), ("job", 2)])
    taken = good.call(wire.Get, "jobs", JOBS, True, 0.0)
    waiting = 77
    good.say(wire.Get(waiting, "jobs", encoded("more", int), True))
    calls = list(range(100))
    bad.say(wire.Confirm(calls), wire.Cancel(calls))
    assert isinstance(bad.call(wire.DescribeHost), wire.Answer)
    good.say(wire.Cancel([taken.call]))
    siege.good.write(("more", 1))
    assert good.answer(waiting).value == [["more", 1]]
    good.say(wire.Confirm([waiting]))
    assert isinstance(good.call(wire.DescribeHost), wire.Answer)
    assert siege.good.take_all(("job", int)) == [("job", 1), ("job", 2)]


def test_no_host_settles_what_another_took(siege):
    siege.good.write(("job", 1))
    one, other = siege.met("host"), siege.met("host")
    one.say(wire.Ask(5, "jobs", JOBS, "take"))
    assert len(one.answer(5).value) == 1
    for keep in (True, False):
        other.call(wire.Settle, 5, keep, "jobs", siege.host.core.incarnation)
    assert siege.good.count(("job", int), scope=HERE) == 0
    one.call(wire.Settle, 5, False, "jobs", siege.host.core.incarnation)
    assert siege.good.take(("job", int), wait=0) == ("job", 1)


def test_an_entry_with_impossible_numbers_closes_no_durable_space(threads, tmp_path):
    host = threads.host("owner", space=False, path=tmp_path)
    space = host.space("jobs")
    liar = Raw.met(host.address, "host")

    def moved(n: int, deliveries: int) -> Any:
        entry = [["job", n], liar.id, n, 1, None, host.id, deliveries]
        return liar.call(wire.MoveEntry, "jobs", entry)

    for n, deliveries in ((2**63, 0), (1, DELIVERIES_MAX + 1), (1, 2**63 - 1)):
        assert moved(n, deliveries).kind == "BadFrame"
    assert moved(1, DELIVERIES_MAX).value is True
    for _ in range(2):
        txn = space.transaction()
        about: list[About] = []
        assert space.take(("job", 1), wait=0, txn=txn, about=about) == ("job", 1)
        assert about[0].deliveries == DELIVERIES_MAX
        txn.abort()
    space.write(("after",))
    assert space.take_all() == [("job", 1), ("after",)]
    liar.close()


def test_the_greatest_number_of_an_entry_leaves_a_durable_space_usable(threads, tmp_path):
    host = threads.host("owner", space=False, path=tmp_path)
    space = host.space("jobs")
    for n in (2**63 - 1, 2**63 - 2):
        space.write(("own", n))
        liar = Raw.met(host.address, "host")
        entry = [["job", n], liar.id, n, 1, None, host.id]
        assert liar.call(wire.MoveEntry, "jobs", entry).value is True
        liar.close()
        host.close()
        host = threads.host("owner", space=False, path=tmp_path)
        space = host.space("jobs")
    space.write(("own", 0))
    assert space.count(("own", int)) == 3 and space.count(("job", int)) == 2


BAD_CHANGES: dict[str, Any] = {
    "too short": lambda change: change[:4],
    "too long": lambda change: [*change, "me", 0, None, None, 1],
    "no list": lambda change: 7,
    "no position": lambda change: ["1", *change[1:]],
    "no kind": lambda change: [*change[:2], 3, *change[3:]],
    "no entry": lambda change: [*change[:10], 5, *change[11:]],
    "no name": lambda change: [*change, {"a": 1}],
    "no number of deliveries": lambda change: [*change, "me", "abc"],
    "too many deliveries": lambda change: [*change, "me", DELIVERIES_MAX + 1],
    "no time": lambda change: [*change, "me", 0, "x"],
    "no arrival": lambda change: [*change, "me", 0, None, []],
}


@pytest.mark.parametrize("spoil", BAD_CHANGES.values(), ids=BAD_CHANGES)
def test_a_change_that_cannot_be_is_refused(spoil):
    with tupelo.Space("jobs", log_keep="all") as space:
        space.write(("kept", 1))
        sent = msgspec.msgpack.encode(encode_change(space.changes()[0]))
    change = msgspec.msgpack.decode(sent)
    assert len(change) == 13  # The rest has its defaults.
    assert read_change(change).entry == ("kept", 1)
    with pytest.raises(BadFrame):
        read_change(spoil(change))


def left_in_doubt(siege: Siege, role: str, until: Any) -> Raw:
    """Someone took an entry and lost its link before it could confirm."""
    siege.good.write(("job", 1))
    lost = siege.met(role)
    if role == "client":
        assert lost.call(wire.Get, "jobs", JOBS, True, 0.0).value == [["job", 1]]
    else:
        assert len(lost.call(wire.Ask, "jobs", JOBS, "take").value) == 1
    lost.close()
    until(siege.host.core.doubts.owners)
    return lost


def test_nobody_resumes_the_session_of_another(siege, until):
    lost = left_in_doubt(siege, "client", until)
    forged = siege.met(resume=lost.welcome.session, received=[1])
    assert isinstance(forged.call(wire.DescribeHost), wire.Answer)
    assert siege.host.core.doubts.owners()
    back = siege.met(id=lost.id, resume=lost.welcome.session, received=[])
    assert isinstance(back.call(wire.DescribeHost), wire.Answer)
    assert siege.good.take(("job", int), wait=0) == ("job", 1)


def test_no_client_speaks_for_a_host(siege, until):
    lost = left_in_doubt(siege, "host", until)
    resume = f"host:{lost.id}:{lost.incarnation}"
    siege.met(resume=resume, received=[1])
    siege.met(resume=resume, received=[])
    assert siege.host.core.doubts.owners() == [("host", lost.id, lost.incarnation)]
    back = siege._keep(Raw(siege.host.address))
    back.incarnation = lost.incarnation
    back.greet("host", id=lost.id, received=[])
    assert siege.good.take(("job", int), wait=PATIENCE) == ("job", 1)


def test_nobody_has_a_hold_on_the_leases_transactions_and_listeners_of_another(siege):
    lease = siege.good.write(("job", 1), lease=1_000)
    good, bad = siege.met(), siege.met()
    txn = good.call(wire.Begin, "jobs").value[0]
    assert good.call(wire.Get, "jobs", JOBS, True, 0.0, txn=txn).value
    session = good.call(wire.OpenSession, "jobs").value[0]
    listening = good.call(wire.Subscribe, "jobs", JOBS).value[0]
    entry = f"{lease.thing.n}:{lease.thing.arrival}" if hasattr(lease, "thing") else "1:2"
    for how in ("commit", "abort", "prepare", "state"):
        assert isinstance(bad.call(wire.End, "jobs", txn, how), wire.Failure)
    assert isinstance(bad.call(wire.Get, "jobs", JOBS, True, 0.0, txn=txn), wire.Failure)
    for thing, name in (("session", session), ("subscription", listening), ("transaction", txn)):
        assert isinstance(bad.call(wire.Renew, "jobs", thing, name, 1.0), wire.Failure)
        assert isinstance(bad.call(wire.CancelLease, "jobs", thing, name), wire.Failure)
        bad.call(wire.Close, "jobs", thing, name)
    for n in range(1, 6):
        for arrival in range(1, 6):
            assert isinstance(
                bad.call(wire.CancelLease, "jobs", "entry", f"{n}:{arrival}"), wire.Failure
            )
    assert isinstance(bad.call(wire.CancelLease, "jobs", "entry", entry), wire.Failure)
    assert good.call(wire.End, "jobs", txn, "abort").value[1] == "aborted"
    assert good.call(wire.State, "jobs", "session", session).value[0]
    assert good.call(wire.State, "jobs", "subscription", listening).value[0]
    assert siege.good.take(("job", int), wait=0) == ("job", 1)


def test_an_entry_is_always_its_writers(siege):
    """A client cannot write under another's name: the host names the origin."""
    raw = siege.met()
    raw.call(wire.Write, "jobs", [["job", 1]])
    got = raw.call(wire.Get, "jobs", JOBS, False, 0.0, whole=True).value[0]
    assert raw.id in got[1]


def test_a_number_that_is_used_twice_loses_nothing(siege):
    raw = siege.met()
    raw.say(*[wire.Get(7, "jobs", JOBS, True) for _ in range(3)])
    raw.say(*[wire.Get(8, "jobs", JOBS, True, many=True) for _ in range(3)])
    assert isinstance(raw.call(wire.DescribeHost), wire.Answer)
    raw.leave()
    siege.good.write_all([("job", 1), ("job", 2)])
    again = siege.met()
    again.say(*[wire.Get(7, "jobs", JOBS, True, 0.0) for _ in range(2)])
    again.answer(7)
    again.say(wire.Cancel([7]))
    again.call(wire.DescribeHost)
    host = siege.met("host")
    host.say(*[wire.Ask(9, "jobs", JOBS, "take") for _ in range(2)])
    host.answer(9)
    host.answer(9)
    host.call(wire.Settle, 9, False, "jobs", siege.host.core.incarnation)
    host.leave()
    assert sorted(siege.good.take_all(("job", int))) == [("job", 1), ("job", 2)]


# Hosts that lie


def lying(siege: Siege, lie: Any) -> Any:
    """A host that answers every call with a lie."""
    raw = siege.met("host", spaces=["jobs"])
    await_space(siege.host, raw.id)
    siege.host.core.answer_seconds = 0.3

    def answer_all() -> None:
        while (said := raw.hear()) is not None:
            if getattr(said, "call", None) is not None:
                raw.say(lie(said))

    return raw, answer_all


LIES = {
    "a number": lambda said: wire.Answer(said.call, 5),
    "a text": lambda said: wire.Answer(said.call, "yes"),
    "nothing": lambda said: wire.Answer(said.call, None),
    "no entries": lambda said: wire.Answer(said.call, [5, "x", None]),
    "half an entry": lambda said: wire.Answer(said.call, [[["job", 1], "o", 1]]),
    "a bad entry": lambda said: wire.Answer(said.call, [[5, "o", 1, 1, None, None]]),
    "a negative number": lambda said: wire.Answer(
        said.call, [[["job", 1], "o", -1, 1, None, None]]
    ),
    "a strange error": lambda said: wire.Failure(said.call, "KeyError", "x", {"args": 1}),
    "an answer to another": lambda said: wire.Answer(said.call + 1, []),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_host_that_answers_nonsense_is_one_that_does_not_answer(siege, later, lie):
    raw, answer_all = lying(siege, LIES[lie])
    later(answer_all)
    space = siege.host.space("jobs")
    space.write(("here", 1))
    for verb in (space.read, space.take):
        with suppress(LinkError):
            assert verb(("job", int), wait=0) is None
    for verb in (space.read_all, space.take_all, space.count):
        coverage = Coverage()
        assert verb(("here", int), coverage=coverage) in ([("here", 1)], [], 0, 1, 5, 6)
    listening = space.subscribe(("job", int))
    listening.close()
    raw.say(wire.Goodbye())


def test_hints_that_are_nonsense_end_the_link_of_their_host(siege, later):
    raw = siege.met("host", spaces=["jobs"])
    await_space(siege.host, raw.id)
    call = later(siege.host.space("jobs").subscribe, ("job", int))
    watch = raw.hear_until(lambda said: isinstance(said, wire.WatchRequest))
    raw.say(wire.Answer(watch.call, None))
    listening = call.result()
    raw.say(wire.Hint(watch.watch, [["visible", [["job", 1], raw.id, 1, 1, None, None]]]))
    assert listening.get(wait=PATIENCE).subject.fields == ("job", 1)
    raw.say(wire.Hint(watch.watch, [5]))
    assert raw.is_hung_up()
    siege.host.space("jobs").write(("job", 2))
    assert listening.get(wait=PATIENCE).subject.fields == ("job", 2)
    listening.close()


def test_a_host_that_claims_to_have_everything(siege):
    raw = siege.met("host")
    names = [f"space {number}" for number in range(5_000)]
    raw.say(wire.PresenceUpdate(["jobs", *names], [f"agent {number}" for number in range(5_000)]))
    siege.all_is_well()
    raw.say(wire.PresenceUpdate([], []))
    siege.all_is_well()
    raw.say(wire.Goodbye())


# Floods, against a host in a process of its own, whose memory can be seen


@pytest.fixture
def flooded(threads):
    child = threads.child("besieged", heartbeat=30.0)
    siege = Siege(child)
    yield siege
    siege.all_is_well()
    siege.close()


def test_a_flood_of_connections(flooded):
    crowd = [flooded.raw(preamble=b"") for _ in range(600)]
    for raw in crowd:
        raw.close()
    flooded.all_is_well()
    many = [flooded.met() for _ in range(200)]
    flooded.all_is_well()
    for raw in many:
        raw.close()


def test_a_flood_of_waiters(flooded):
    raw = flooded.met()
    count = 21_000
    for start in range(0, count, 1_500):
        raw.say(*[wire.Get(start + n + 1, "jobs", JOBS, True) for n in range(1_500)])
    assert isinstance(raw.hear(), wire.Failure)  # There were too many.
    flooded.all_is_well()
    assert flooded.host.megabytes < 600
    raw.leave()
    flooded.good.write(("job", 1))
    assert flooded.good.take(("job", int), wait=PATIENCE) == ("job", 1)


def test_a_flood_of_watches(flooded):
    raw = flooded.met("host")
    for start in range(0, 20_000, 1_000):
        raw.say(
            *[
                wire.Ask(start + n + 1, "jobs", JOBS, "peek", watch=start + n + 1)
                for n in range(1_000)
            ]
        )
    raw.answer(20_000)
    flooded.all_is_well()
    assert flooded.host.megabytes < 600
    flooded.good.write(("job", 1))
    assert flooded.good.take(("job", int), wait=PATIENCE) == ("job", 1)
    raw.close()


def test_a_flood_of_subscriptions_sessions_and_transactions(flooded):
    raw = flooded.met()
    number = 0
    for _ in range(10):
        calls = []
        for _ in range(500):
            calls += [
                wire.Subscribe(number + 1, "jobs", JOBS),
                wire.OpenSession(number + 2, "jobs"),
                wire.Begin(number + 3, "jobs"),
            ]
            number += 3
        raw.say(*calls)
        raw.answer(number)
    flooded.good.write(("job", 1))
    assert flooded.good.take(("job", int), wait=PATIENCE) == ("job", 1)
    assert flooded.host.megabytes < 600
    raw.close()


def test_a_flood_of_spaces(flooded):
    raw = flooded.met()
    said = [raw.call(wire.Open, f"space {number}") for number in range(1_050)]
    assert isinstance(said[0], wire.Answer)
    assert isinstance(said[-1], wire.Failure) and said[-1].kind == "LimitReached"
    assert flooded.host.megabytes < 600


def test_one_who_never_reads_is_not_waited_for(threads):
    child = threads.child("besieged", heartbeat=0.2)
    siege = Siege(child)
    raw = siege.met()
    raw.call(wire.Write, "others", [["big", b"x" * 1_000_000]])
    before = siege.host.megabytes
    peak = 0
    end = time.monotonic() + PATIENCE
    number = 100
    cut = False
    while not cut:
        assert time.monotonic() < end, "it is listened to for ever"
        number += 1
        get = wire.Get(number, "others", encoded("big", bytes), False, 0.0)
        cut = not raw.offer(wire.frame(wire.encode(get)))
        peak = max(peak, siege.host.megabytes)
    assert peak - before < 400
    siege.all_is_well()
    siege.close()


# Fuzz

MESSAGES = [
    wire.Hello(wire.VERSION, "client", "id", "name", "incarnation", "a", "s", True),
    wire.HelloDetails(["jobs"], [1, 2]),
    wire.Welcome(wire.VERSION, "id", "name", "i", "s", 1.0, True),
    wire.Refusal("Stranger", "go", {"name": 1}),
    wire.Answer(1, [["job", 1]]),
    wire.Failure(1, "BadFrame", "x", {}),
    wire.Write(1, "jobs", [["job", 1, 2.5, b"x", None, True]], [1.0, None], "t", None, None, "to"),
    wire.Get(1, "jobs", JOBS, True, 1.0, True, 5, "t", ["key", 1, True], False, "s", HERE),
    wire.Subscribe(1, "jobs", JOBS, 1.0),
    wire.Ask(
        1, "jobs", JOBS, "take", 1, "fifo", "agent", wire.SessionDelta(1, 0, 2, {"o": b"bits"}), 4
    ),
    wire.Hint(1, [["visible", [["job", 1], "o", 1, 1, None, None]]], 2),
    wire.Decide(1, "t", [("t", "p")]),
]
ENCODED = [wire.encode(message) for message in MESSAGES]


def understood(content: bytes) -> object:
    """A message or BadFrame; nothing else may come."""
    try:
        return wire.decode(content)
    except BadFrame:
        return None


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_a_bad_frame(content):
    understood(content)


@st.composite
def mutated(draw: Any, contents: list[bytes] = ENCODED) -> bytes:
    """Valid bytes, with some of them changed, left out, doubled or added."""
    content = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["set", "cut", "insert", "double"])):
            case "set" if content:
                content[place] = draw(st.integers(0, 255))
            case "cut":
                del content[place : place + draw(st.integers(1, 8))]
            case "insert":
                content[place:place] = draw(st.binary(max_size=8))
            case "double":
                content[place:place] = content[place : place + draw(st.integers(1, 16))]
    return bytes(content)


@settings(max_examples=500)
@given(mutated())
def test_valid_bytes_that_were_damaged_are_a_message_or_a_bad_frame(content):
    understood(content)


@given(st.sampled_from(MESSAGES))
def test_a_message_survives_the_wire(message):
    assert type(wire.decode(wire.encode(message))) is type(message)


@given(st.lists(st.binary(max_size=40), max_size=12), st.data())
def test_frames_are_the_same_however_they_are_cut(contents, data):
    stream = b"".join(map(wire.frame, contents))
    frames = wire.Frames()
    cut: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        cut += frames.feed(stream[:size])
        stream = stream[size:]
    assert cut == contents
    assert not frames.held


@given(st.binary(max_size=200), st.data())
def test_any_stream_is_frames_or_a_bad_frame_however_it_is_cut(stream, data):
    def read(pieces: list[bytes]) -> tuple[list[bytes], str]:
        frames = wire.Frames(50)
        found: list[bytes] = []
        try:
            for piece in pieces:
                found += frames.feed(piece)
        except BadFrame:
            return found, "bad"
        return found, "good"

    pieces, rest = [], stream
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        rest = rest[size:]
    whole, judged = read([bytes([byte]) for byte in stream])
    cut, judged_too = read(pieces)
    assert judged == judged_too
    assert whole[: len(cut)] == cut  # With what follows a bad frame in one piece, less is read.


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated([PLAIN + wire.frame(ENCODED[0]), PLAIN + wire.frame(ENCODED[0]) * 2]))
def test_a_handshake_that_was_damaged_harms_nobody(steady, stream):
    raw = Raw(steady.host.address, preamble=stream)
    raw.close()
    steady.all_is_well()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(mutated(), max_size=4), st.sampled_from(["client", "host"]))
def test_frames_that_were_damaged_harm_nobody(steady, contents, role):
    raw = Raw.met(steady.host.address, role)
    raw.send(b"".join(map(wire.frame, contents)))
    raw.close()
    steady.all_is_well()


@pytest.fixture(scope="module")
def steady():
    """One siege for all examples."""
    company = Company()
    siege = Siege(company.host("besieged", heartbeat=30.0))
    yield siege
    siege.close()
    company.close()
