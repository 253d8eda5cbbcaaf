"""Long messages of a client, in pieces: what comes between them, and what is lost with a link."""

from __future__ import annotations

from typing import Any

import pytest

from tupelo.errors import CannotSend, PeerLost, SpaceClosed
from tupelo.federation.links import wire

LARGE = ("large", b"x" * (20 * 2**20))
LEASE = [[1, 1, None]]


@pytest.fixture
def met(dial, peer, later):
    """`met(**options)`: a space at a host that accepts pieces, and the line to it."""

    def meet(**options: Any) -> Any:
        call = later(dial, peer.url, **options)
        line, hello = peer.line(message_max=wire.MESSAGE_MAX)
        assert hello.message_max == wire.MESSAGE_MAX
        return call.result(), line

    return meet


def await_sending(space: Any, until: Any) -> None:
    """Until a second call was sent, or waits to be, while a long message is on its way."""
    channel, looks = space._channel, 0

    def is_sending() -> bool:
        nonlocal looks  # The sender of the long message holds this lock for moments only.
        looks = looks + 1 if not channel.is_async and channel._turn.locked() else 0
        return looks > 20 or len(channel._outstanding) > 1

    until(is_sending, "the call is about to be sent")


def test_a_long_message_is_written_and_read(met, later):
    space, line = met()
    writing = later(space.write, LARGE)
    assert line.answer(wire.Write, LEASE).entries == [list(LARGE)]
    writing.result()
    reading = later(space.take, ("large", bytes))
    asked = line.hear()
    line.send(b"".join(wire.pieces(wire.encode(wire.Answer(asked.call, [list(LARGE)])))))
    assert reading.result() == LARGE
    assert line.hear() == wire.Confirm([asked.call])


def test_other_calls_go_between_the_pieces(met, later, until):
    space, line = met()
    writing = later(space.write, LARGE)
    line.await_bytes()  # The first piece is there, and the host reads nothing.
    counting = later(space.count)
    await_sending(space, until)
    messages = [line.hear(), line.hear()]
    assert [type(message) for message in messages] == [wire.CountRequest, wire.Write]
    for message, value in zip(messages, (7, LEASE), strict=True):
        line.say(wire.Answer(message.call, value))
    assert counting.result() == 7
    writing.result()


def test_answers_come_between_the_pieces(met, later):
    space, line = met()
    reading, counting = later(space.read, ("large", bytes)), later(space.count)
    asked = {type(message): message.call for message in (line.hear(), line.hear())}
    first, *others = wire.pieces(wire.encode(wire.Answer(asked[wire.Get], [list(LARGE)])))
    line.send(first)
    line.say(wire.Ping(), wire.Answer(asked[wire.CountRequest], 7))
    assert counting.result() == 7
    line.send(b"".join(others))
    assert reading.result() == LARGE


def test_a_write_that_is_cut_in_the_middle_fails(met, later):
    space, line = met(reconnect=0)
    writing = later(space.write, LARGE)
    line.await_bytes()
    line.close()
    with pytest.raises(PeerLost) as lost:
        writing.result()
    assert lost.value.in_doubt


def test_a_take_that_is_cut_in_the_middle_is_asked_again(met, later, peer):
    space, line = met()
    taking = later(space.take, ("large", bytes))
    asked = line.hear()
    first, *_ = wire.pieces(wire.encode(wire.Answer(asked.call, [list(LARGE)])))
    line.send(first)
    line.close()
    line, _ = peer.line("second", message_max=wire.MESSAGE_MAX)
    assert not line.received
    asked = line.hear()
    line.send(b"".join(wire.pieces(wire.encode(wire.Answer(asked.call, [list(LARGE)])))))
    assert taking.result() == LARGE


def test_a_cancelled_write_is_cancelled_after_its_last_piece(met, later, peer):
    space, line = met()
    other = later(space.space, "other")
    line.answer(wire.Open, [False, "id", "me", "h", 1_000.0])
    writing = later(space.write, LARGE, wait=None)
    line.await_bytes()
    closing = later(space.close)
    messages = [line.hear(), line.hear()]
    assert [type(message) for message in messages] == [wire.Write, wire.Cancel]
    assert messages[1].calls == [messages[0].call]
    closing.result()
    with pytest.raises(SpaceClosed):
        writing.result()
    other.result().close()


@pytest.mark.parametrize("announced", [0, -1, wire.FRAME_MAX, 20 * 2**20])
def test_the_host_says_how_long_a_message_may_be(dial, peer, later, announced):
    call = later(dial, peer.url)
    line, _ = peer.line(message_max=announced)
    space = call.result()
    limit = max(announced, wire.FRAME_MAX)
    with pytest.raises(CannotSend, match=f"{limit:,}"):
        space.write(("a", b"x" * limit))
    fits = ["a", b"x" * (wire.FRAME_MAX - 1_000)]
    writing = later(space.write, tuple(fits))
    assert line.answer(wire.Write, LEASE).entries == [fits]
    writing.result()


@pytest.mark.parametrize("damage", ["gap", "too many bytes", "empty", "a piece too long"])
def test_pieces_that_do_not_fit_together_end_the_link(met, later, damage):
    space, line = met(reconnect=0)
    reading = later(space.read, ("large", bytes))
    asked = line.hear()
    first, second, *_ = wire.pieces(wire.encode(wire.Answer(asked.call, [list(LARGE)])))
    line.send(first)
    match damage:
        case "gap":
            second = second[:4] + (1).to_bytes(4) + second[8:]
        case "too many bytes":
            second = second[:4] + (2**31).to_bytes(4) + second[8:]
        case "empty":
            second = (2**31 + 4).to_bytes(4) + bytes(4)
        case _:
            second = (2**31 + 5 + wire.PIECE_BYTES).to_bytes(4) + bytes(4)
    line.send(second)
    with pytest.raises(PeerLost, match="piece"):
        reading.result()
