"""Frames: how messages are read and written."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import msgspec
from msgspec.msgpack import Decoder, Encoder

from tupelo.errors import BadFrame, CannotSend
from tupelo.federation.links.wire.between_hosts import (
    Ask,
    Carry,
    Decide,
    Forget,
    Hint,
    Move,
    Outcome,
    Presence,
    Settle,
    Told,
    Unnote,
    Unwatch,
    Watch,
)
from tupelo.federation.links.wire.calls import (
    Answer,
    Begin,
    Cancel,
    Changes,
    Close,
    Confirm,
    Count,
    Doubts,
    End,
    Failure,
    Get,
    Goodbye,
    Hello,
    Log,
    Message,
    Next,
    Open,
    Ping,
    Refusal,
    Remember,
    Renew,
    Revoke,
    State,
    Subscribe,
    Tell,
    Trim,
    Welcome,
    Write,
)
from tupelo.values.codec import BadBytes
from tupelo.values.spelling import read_wire_extension

VERSION = 1
FRAME_MAX = 16 * 2**20
"""The longest frame that is sent or accepted, in bytes."""

Call = (
    Open
    | Write
    | Get
    | Count
    | Begin
    | End
    | Doubts
    | Remember
    | Subscribe
    | Next
    | State
    | Close
    | Renew
    | Revoke
    | Changes
    | Log
    | Trim
    | Tell
    | Ask
    | Settle
    | Watch
    | Unwatch
    | Move
    | Decide
    | Outcome
    | Forget
)
Said = (
    Hello
    | Welcome
    | Refusal
    | Ping
    | Goodbye
    | Answer
    | Failure
    | Cancel
    | Confirm
    | Presence
    | Hint
    | Told
    | Unnote
    | Carry
    | Call
)

_length = Struct(">I").unpack_from
_encoder = Encoder()
_encode = _encoder.encode
_decode: Callable[[bytes | memoryview], Said] = Decoder(Said, ext_hook=read_wire_extension).decode


def encode(message: Message) -> bytes:
    """A message as a frame's content. CannotSend if it is too long; UnicodeEncodeError if a text in
    it is none."""
    content = _encode(message)
    if len(content) > FRAME_MAX:
        raise CannotSend(
            f"this needs {len(content):,} bytes, and {FRAME_MAX:,} can be sent at a time; "
            "write smaller entries, or ask for fewer with limit="
        )
    return content


def decode(content: bytes | memoryview) -> Said:
    """The message of a frame. BadFrame if it is none; nothing else is ever raised."""
    try:
        return _decode(content)
    except (msgspec.DecodeError, BadBytes, ValueError, TypeError, ArithmeticError) as error:
        raise BadFrame(f"this frame cannot be understood: {error}") from error
    except RecursionError as error:
        raise BadFrame("this frame is nested too deeply") from error


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


class Frames:
    """Cuts what arrives into frames. It never holds more than one that is allowed."""

    def __init__(self, frame_max: int = FRAME_MAX) -> None:
        self._frame_max = frame_max
        self._held = bytearray()
        self._needed = 4  # how much must be there before it is looked at again

    @property
    def begun(self) -> bool:
        """Is there a part of a frame?"""
        return bool(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The contents of the frames that are whole now. BadFrame if one claims to be too long."""
        held = self._held
        if held:
            held += data
            if len(held) < self._needed:
                return []
            data = bytes(held)
        contents = []
        start, end = 0, len(data)
        while end - start >= 4:
            (length,) = _length(data, start)
            if length > self._frame_max:
                raise BadFrame(f"a frame of {length} bytes is announced; {self._frame_max} may be")
            if end - start - 4 < length:
                self._needed = 4 + length
                break
            start += 4
            contents.append(data[start : start + length])
            start += length
        else:
            self._needed = 4
        self._held = bytearray(data[start:])
        return contents
