"""Channels: what is said to a host, in which order, and what becomes of it after a loss."""

import asyncio
import socket
from typing import Any

import pytest

from tests.federation.client.peer import PLAIN, REFUSED
from tests.federation.company import PATIENCE_SECONDS
from tupelo.errors import (
    BadArgument,
    BadEntry,
    BadFrame,
    BadTemplate,
    CannotReach,
    CannotSend,
    PeerLost,
    SpaceClosed,
    Stranger,
    TransactionEnded,
    UnknownType,
    WrongPassword,
)
from tupelo.federation.client.connect import connect_async
from tupelo.federation.links import wire
from tupelo.values.codec import entry_to_wire
from tupelo.values.entry import shape_of
from tupelo.values.kind import kind_named

JOB = ["job", 1]


def failure(call: int, error: Exception) -> wire.Failure:
    return wire.Failure(call, type(error).__name__, str(error), vars(error))


# Meeting


def test_the_host_is_told_who_we_are(dial, peer, later):
    call = later(dial, peer.url, name="me", password="secret")
    line = peer.dialled()
    assert line.preamble() == PLAIN
    hello = line.hear()
    assert (hello.version, hello.role, hello.name, hello.resume) == (
        wire.VERSION,
        "client",
        "me",
        "",
    )
    line.say(wire.Welcome(wire.VERSION, "h", "host", "i", "s", 5.0))
    opening = line.answer(wire.Open, [False, "id", "me", "h", 1_000.0])
    assert (opening.space, opening.password) == ("jobs", "secret")
    space = call.result()
    assert space.name == "jobs" and space.agent == "me"


def test_nobody_there(dial, peer):
    peer.close()
    with pytest.raises(CannotReach, match=str(peer.port)):
        dial(peer.url, reconnect=0)
    with pytest.raises(CannotReach, match=rf"{peer.port}.*dialled for 0.1 seconds \(reconnect=\)"):
        dial(peer.url, reconnect=0.1)


def test_a_host_that_starts_later(dial, threads, later):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    call = later(dial, f"tupelo://127.0.0.1:{port}/jobs", reconnect=PATIENCE_SECONDS)
    threads.child("late", listen=port)
    space = call.result()
    space.write(("job", 1))
    assert space.take(("job", int), wait=0) == ("job", 1)


@pytest.mark.parametrize("answer", [b"HTTP/1.1", b"TUPELO\x63P"])
def test_another_language(dial, peer, later, answer):
    call = later(dial, peer.url)
    peer.dialled().preamble(answer)
    with pytest.raises(CannotReach, match="speak"):
        call.result()


def test_a_host_that_hangs_up(dial, peer, later):
    call = later(dial, peer.url, reconnect=0)
    peer.dialled().close()
    with pytest.raises(CannotReach):
        call.result()


def test_a_refusal_before_the_first_frame(dial, peer, later):
    call = later(dial, peer.url)
    line = peer.dialled()
    line.preamble(REFUSED)
    line.say(wire.Refusal("Stranger", "who are you?"))
    with pytest.raises(Stranger, match="who are you"):
        call.result()


def test_a_refusal_instead_of_a_welcome(dial, peer, later):
    call = later(dial, peer.url)
    line = peer.dialled()
    line.preamble()
    line.hear()
    line.say(wire.Refusal("Stranger", "who are you?"))
    with pytest.raises(Stranger, match="who are you"):
        call.result()


def test_another_version(dial, peer, later):
    call = later(dial, peer.url)
    line = peer.dialled()
    line.preamble()
    line.hear()
    line.say(wire.Welcome(99, "h", "host", "i", "s", 5.0))
    with pytest.raises(CannotReach, match=f"99.*{wire.VERSION}"):
        call.result()


@pytest.mark.parametrize("heartbeat", [0.0, -1.0, float("nan"), float("inf")])
def test_a_host_whose_heart_cannot_beat(dial, peer, later, heartbeat):
    call = later(dial, peer.url)
    line = peer.dialled()
    line.preamble()
    line.hear()
    line.say(wire.Welcome(wire.VERSION, "h", "host", "i", "s", heartbeat))
    with pytest.raises(CannotReach):
        call.result()


def test_a_wrong_password(dial, peer, later):
    call = later(dial, peer.url, password="wrong")
    line, _ = peer.line(opened=0)
    line.say(failure(line.hear().call, WrongPassword("jobs")))
    with pytest.raises(WrongPassword) as refused:
        call.result()
    assert refused.value.space == "jobs"
    assert line.is_left()


@pytest.mark.parametrize(
    ("url", "options", "names"),
    [
        ("tupelo://127.0.0.1:7700", {}, "url="),
        ("http://127.0.0.1:7700/jobs", {}, "url="),
        ("tupelo://127.0.0.1:1/jobs", {"reconnect": -1}, "reconnect="),
        ("tupelo://127.0.0.1:1/jobs", {"reconnect": None}, "reconnect="),
        ("tupelo://127.0.0.1:1/jobs", {"tls": "yes"}, "tls="),
        ("tupelo://127.0.0.1:1/jobs", {"reconnect": True}, r"reconnect= .* 0 \(never\) to 1e\+09,"),
        ("tupelo://127.0.0.1:1/jobs", {"name": 1}, "name="),
        ("tupelo://127.0.0.1:1/jobs", {"name": "\ud800"}, "name="),
        ("tupelo://127.0.0.1:1/jobs", {"identity": 1}, "identity="),
        ("tupelo://127.0.0.1:1/jobs", {"trust": 1, "tls": False}, "tls="),
    ],
)
def test_what_makes_no_sense_is_refused(dial, url, options, names):
    with pytest.raises(BadArgument, match=names):
        dial(url, **options)


# Calls


def test_a_write(met, later):
    space, line = met()
    call = later(space.write, ("job", 1), lease=5)
    message = line.answer(wire.Write, [[7, 9, 105.0]])
    assert message.entries == [JOB] and message.lease == 5.0 and message.space == "jobs"
    lease = call.result()
    assert lease.expires == 105.0
    call = later(lease.renew, 10)
    message = line.answer(wire.Renew, 110.0)
    assert (message.thing, message.id, message.lease) == ("entry", "7:9", 10.0)
    call.result()
    assert lease.expires == 110.0


def test_a_take_is_confirmed_before_it_is_returned(met, later):
    space, line = met()
    call = later(space.take, ("job", int))
    taken = line.answer(wire.Get, [JOB])
    assert taken.take and taken.wait is None
    assert call.result() == ("job", 1)
    assert line.hear() == wire.Confirm([taken.call])


def test_what_is_read_or_not_found_is_not_confirmed(met, later):
    space, line = met()
    for verb, value, answer in (("read", [JOB], ("job", 1)), ("take", [], None)):
        call = later(getattr(space, verb), wait=0)
        line.answer(wire.Get, value)
        assert call.result() == answer
    later(space.count)
    assert type(line.hear()) is wire.CountRequest


def test_what_cannot_be_built_here_goes_back(met, later):
    space, line = met()
    strange = kind_named("of.another.program", ("x",), ("of.another.program",))
    encoded = entry_to_wire(shape_of(strange, (int,)), (1,))
    call = later(space.take)
    message = line.answer(wire.Get, [encoded])
    with pytest.raises(UnknownType):
        call.result()
    assert line.hear() == wire.Cancel([message.call])


@pytest.mark.parametrize("verb", ["take in a transaction", "read in a session"])
def test_what_cannot_be_built_here_is_undone_in_what_holds_it(met, later, verb):
    space, line = met()
    strange = kind_named("of.another.program", ("x",), ("of.another.program",))
    encoded = entry_to_wire(shape_of(strange, (int,)), (1,))
    if verb == "read in a session":
        call = later(space.session)
        line.answer(wire.OpenSession, ["s", None])
        call = later(call.result().read)
    else:
        call = later(space.transaction)
        line.answer(wire.Begin, ["t", None])
        call = later(space.take, txn=call.result())
    message = line.answer(wire.Get, [encoded])
    with pytest.raises(UnknownType):
        call.result()
    assert line.hear() == wire.Cancel([message.call])


def test_what_is_too_large_to_be_sent_is_said_so(met, later):
    space, line = met()
    large = ("a", b"x" * wire.FRAME_MAX)
    for verb, entries in ((space.write, large), (space.write_all, [("b",), large])):
        with pytest.raises(CannotSend, match=r"16,777,\d+ bytes.*16,777,216"):
            verb(entries)
    call = later(space.count)  # The link is as it was.
    line.answer(wire.CountRequest, 0)
    assert call.result() == 0


def test_numbers_grow_and_answers_come_in_any_order(met, later):
    space, line = met()
    calls = [later(space.read, ("job", i)) for i in range(5)]
    asked = [line.hear() for _ in calls]
    numbers = [message.call for message in asked]
    assert numbers == sorted(set(numbers)) and min(numbers) > 1
    for message in reversed(asked):
        line.say(wire.Answer(message.call, [message.template]))
    assert [call.result() for call in calls] == [("job", i) for i in range(5)]


def test_an_error_is_raised_as_it_was(met, later):
    space, line = met()
    call = later(space.count)
    line.say(failure(line.hear().call, TransactionEnded("7", "aborted", "why")))
    with pytest.raises(TransactionEnded, match="why") as ended:
        call.result()
    assert ended.value.txn_id == "7" and ended.value.state == "aborted"


@pytest.mark.parametrize("nonsense", [None, [], [[1]], "text", 7])
def test_an_answer_that_makes_no_sense_is_an_error(met, later, nonsense):
    space, line = met()
    for attempt, kind in (
        (lambda: space.write(("job", 1)), wire.Write),
        (space.transaction, wire.Begin),
        (space.session, wire.OpenSession),
        (space.subscribe, wire.Subscribe),
        (space.read, wire.Get),
        (space.take, wire.Get),
    ):
        if kind is wire.Get and type(nonsense) not in (str, int):
            continue  # There is no match, or one that is fine.
        call = later(attempt)
        line.answer(kind, nonsense)
        with pytest.raises(BadFrame):
            call.result()


def test_a_cancelled_task_says_so(peer, loop_thread, later):
    async def play() -> Any:
        space = await connect_async(peer.url)
        task = asyncio.ensure_future(space.take(("job", int)))
        await asyncio.sleep(0)
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await space.close()

    began = asyncio.Event()
    call = later(loop_thread.call, play)
    line, _ = peer.line()
    message = line.hear()
    loop_thread.loop.call_soon_threadsafe(began.set)
    assert line.hear() == wire.Cancel([message.call])
    line.say(wire.Answer(message.call, [JOB]))
    call.result()


# Losses


def test_what_only_asks_is_asked_again(met, later, peer):
    space, line = met()
    calls = [later(space.take, ("job", int), wait=50), later(space.count)]
    asked = {type(message): message for message in (line.hear(), line.hear())}
    line.close()
    line, hello = peer.line("second")
    assert hello.resume == "first" and line.received == []
    for _ in calls:
        again = line.hear()
        assert again.call > asked[type(again)].call
        if type(again) is wire.Get:
            assert again.wait is not None and 0 <= again.wait < 50
        line.say(wire.Answer(again.call, [JOB] if type(again) is wire.Get else 3))
    assert [call.result() for call in calls] == [("job", 1), 3]


def test_what_was_received_is_told_after_a_loss(met, later, peer):
    space, line = met()
    call = later(space.take)
    first = line.answer(wire.Get, [JOB])
    assert call.result() == ("job", 1)
    line.hear()
    line.close()
    line, hello = peer.line("second")
    assert hello.resume == "first" and line.received == [first.call]
    call = later(space.take)
    second = line.answer(wire.Get, [JOB])
    call.result()
    line.hear()
    later(space.count)
    line.answer(
        wire.CountRequest, 1
    )  # The host has heard the Confirm, but may not have it on disk.
    later(space.count)
    line.hear()
    line.close()
    line, hello = peer.line("third")
    assert hello.resume == "second" and line.received == [second.call]
    line.answer(wire.CountRequest, 1)


def test_what_cannot_be_sent_is_refused_without_a_link_too(met, later, peer):
    space, line = met()
    taking = later(space.take)
    line.hear()
    line.close()
    line = peer.dialled()  # There is no link now.
    for attempt, error in (
        (lambda: space.write(("\ud800",)), BadEntry),
        (lambda: space.write(("a",), at=object()), BadArgument),
        (lambda: space.write(("a", b"x" * wire.MESSAGE_MAX)), CannotSend),
        (lambda: space.read(("\ud800",)), BadTemplate),
        (lambda: space.take(("\ud800",)), BadTemplate),
        (lambda: space.space("\ud800"), BadArgument),
        (lambda: space.space("others", "\ud800"), BadArgument),
    ):
        with pytest.raises(error):
            later(attempt).result()
    peer.greet(line, "second")
    line.answer(wire.Get, [JOB])
    assert taking.result() == ("job", 1)


def test_how_long_a_lease_lasts_is_known_without_a_link(met, later, peer):
    space, line = met()
    call = later(space.write, ("job", 1), lease=5)
    line.answer(wire.Write, [[7, 9, 1_005.0]])
    lease = call.result()
    call = later(lambda: lease.remaining)
    line.answer(wire.DescribeHost, {"now": 1_000.0})
    assert call.result() == 5
    call = later(lambda: lease.remaining)
    line.hear()
    line.close()  # while it is asked
    line = peer.dialled()
    for remaining in (call.result(), later(lambda: lease.remaining).result()):
        assert 0 <= remaining <= 5
    peer.greet(line, "second")


def test_a_write_in_flight_is_in_doubt(met, later, peer):
    space, line = met()
    call = later(space.write, ("job", 1))
    line.hear()
    line.close()
    with pytest.raises(PeerLost) as lost:
        call.result()
    assert lost.value.in_doubt and lost.value.peer.endswith(str(peer.port))
    call = later(space.write, ("job", 2))
    line, _ = peer.line("second")
    line.answer(wire.Write, [[1, 1, None]])
    call.result()


def test_without_reconnecting_a_loss_is_final(met, later):
    space, line = met(reconnect=0)
    call = later(space.take)
    line.hear()
    line.close()
    for attempt, during in (
        (call.result, "a take"),
        (space.read, "a read"),
        (space.count, "a count"),
    ):
        with pytest.raises(PeerLost) as lost:
            attempt()
        assert not lost.value.in_doubt and lost.value.during == during


def test_patience_with_a_lost_host_ends(met, later, peer):
    space, line = met(reconnect=0.2)
    call = later(space.take)
    line.hear()
    line.close()
    peer.close()
    with pytest.raises(PeerLost, match="take"):
        call.result()
    with pytest.raises(PeerLost):
        space.count()


def test_goodbye_is_a_loss_and_says_why(met, later):
    space, line = met(reconnect=0)
    call = later(space.take)
    line.hear()
    line.say(wire.Goodbye("the lights go out"))
    with pytest.raises(PeerLost, match="the lights go out"):
        call.result()


@pytest.mark.parametrize("garbage", [b"\x00\x00\x00\x01\xc1", b"\xff\xff\xff\xff"])
def test_garbage_is_a_loss(met, later, garbage):
    space, line = met(reconnect=0)
    call = later(space.take)
    line.hear()
    line.send(garbage)
    with pytest.raises(PeerLost):
        call.result()


def test_a_silent_host_is_lost(dial, peer, later):
    peer.heartbeat = 0.05
    call = later(dial, peer.url, reconnect=0)
    peer.line()
    space = call.result()
    with pytest.raises(PeerLost, match="silent"):
        later(space.take).result()


def test_a_host_that_says_something_is_not_lost(dial, peer, later):
    peer.heartbeat = 0.3
    call = later(dial, peer.url, reconnect=0)
    line, _ = peer.line()
    space = call.result()
    call = later(space.take)
    message = line.hear()
    for _ in range(8):
        assert type(wire.decode(line.any_frame())) is wire.Ping
        line.say(wire.Ping())
    line.say(wire.Answer(message.call, [JOB]))
    assert call.result() == ("job", 1)


def test_a_transaction_ends_with_its_link(met, later, peer):
    space, line = met()
    call = later(space.transaction)
    line.answer(wire.Begin, ["t", None])
    txn = call.result()
    call = later(space.take, txn=txn)
    assert line.hear().txn == "t"
    line.close()
    with pytest.raises(PeerLost) as lost:
        call.result()
    assert not lost.value.in_doubt
    peer.line("second")
    with pytest.raises(TransactionEnded):
        space.write(("job", 1), txn=txn)
    assert txn.state == "aborted"
    txn.abort()


def test_a_transaction_that_was_at_rest_says_that_its_link_was_lost(met, later, peer):
    space, line = met()
    call = later(space.transaction)
    line.answer(wire.Begin, ["t", None])
    txn = call.result()
    line.close()
    call = later(space.count)
    line, _ = peer.line("second")
    line.answer(wire.CountRequest, 0)
    call.result()
    with pytest.raises(PeerLost):
        space.take(txn=txn)
    with pytest.raises(TransactionEnded):
        txn.commit()


def test_a_commit_in_flight_is_in_doubt(met, later):
    space, line = met(reconnect=0)
    call = later(space.transaction)
    line.answer(wire.Begin, ["t", None])
    call = later(call.result().commit)
    assert line.hear().how == "commit"
    line.close()
    with pytest.raises(PeerLost) as lost:
        call.result()
    assert lost.value.in_doubt


def test_a_subscription_ends_with_its_link(met, later, peer):
    space, line = met()
    call = later(space.subscribe, ("job", int), handback="mine")
    line.answer(wire.Subscribe, ["s", 4, None])
    listener = call.result()
    assert listener.event_id == 4
    call = later(listener.get)
    line.answer(wire.Next, [[4, 1, "visible", [JOB, "me", 1, 1, None, None], 0]])
    notice = call.result()
    assert notice.entry == ("job", 1) and notice.handback == "mine"
    call = later(listener.get)
    line.hear()
    line.close()
    with pytest.raises(PeerLost):
        call.result()
    peer.line("second")
    assert isinstance(listener.error, PeerLost) and not listener.active


def test_a_callback_whose_link_is_lost_is_told_so(met, later, until, caplog):
    space, line = met()
    call = later(space.subscribe, ("job", int), print)
    line.answer(wire.Subscribe, ["s", 4, None])
    listener = call.result()
    line.hear()
    line.close()
    until(lambda: "subscribe again" in caplog.text)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "'jobs'" in record.getMessage()
    assert isinstance(listener.error, PeerLost) and not listener.active


def test_a_reaction_whose_link_is_lost_is_told_so(met, later, until, caplog):
    space, line = met()
    call = later(space.react, ("job", int), print, existing=False)
    line.answer(wire.Subscribe, ["s", 4, None])
    reaction = call.result()
    line.hear()
    line.close()
    until(lambda: "react again" in caplog.text)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "'jobs'" in record.getMessage()
    assert isinstance(reaction.error, PeerLost)


# Closing


def test_closing_tells_who_waits_and_hangs_up(met, later):
    space, line = met()
    call = later(space.take)
    message = line.hear()
    closing = later(space.close)
    with pytest.raises(SpaceClosed):
        call.result()
    assert line.hear() == wire.Cancel([message.call])
    assert type(line.hear()) is wire.Goodbye
    closing.result()
    with pytest.raises(SpaceClosed, match="jobs"):
        space.count()
    assert line.is_left()


def test_two_spaces_share_a_link_until_both_are_closed(met, later):
    space, line = met()
    call = later(space.space, "others")
    assert line.answer(wire.Open, [False, "id", "me", "h", 1_000.0]).space == "others"
    other = call.result()
    waiting, wanting = later(space.take), later(other.take)
    asked = {message.space: message for message in (line.hear(), line.hear())}
    space.close()
    assert line.hear() == wire.Cancel([asked["jobs"].call])
    line.say(wire.Ping())  # A host does so now and then.
    with pytest.raises(SpaceClosed):
        waiting.result()
    line.say(wire.Answer(asked["others"].call, [JOB]))
    assert wanting.result() == ("job", 1)
    while type(message := line.hear()) is wire.DescribeHost:
        pass
    assert message == wire.Confirm([asked["others"].call])
    other.close()
    assert line.is_left()
