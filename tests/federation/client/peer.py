"""A host that says what a test tells it to: one side of the protocol, on a real socket."""

import socket
from typing import Any

from tupelo.federation.links import wire

PATIENCE_SECONDS = 60.0
PLAIN = b"TUPELO" + bytes([wire.VERSION]) + b"P"
REFUSED = PLAIN[:-1] + b"X"


class Line:
    """One link that was dialled."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_SECONDS)
        self._socket = sock
        self._frames = wire.Frames(message_max=wire.MESSAGE_MAX)
        self._heard: list[bytes] = []
        self.received: list[int] = []  # as the client has said when it came

    def preamble(self, answer: bytes = PLAIN) -> bytes:
        first = b""
        while len(first) < 8:
            first += self._socket.recv(8 - len(first))
        self._socket.sendall(answer)
        return first

    def await_bytes(self) -> None:
        """Wait until something has come, and leave it unread."""
        assert self._socket.recv(1, socket.MSG_PEEK), "the client hung up"

    def any_frame(self) -> bytes:
        while not self._heard:
            data = self._socket.recv(65536)
            assert data, "the client hung up"
            self._heard += self._frames.feed(data)
        return self._heard.pop(0)

    def hear(self) -> Any:
        """The next message that is no Ping."""
        while type(message := wire.decode(self.any_frame())) is wire.Ping:
            pass
        return message

    def say(self, *messages: wire.Message) -> None:
        self._socket.sendall(b"".join(wire.frame(wire.encode(message)) for message in messages))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self, kind: type[Any], value: Any = None) -> Any:
        """Hear a call of this kind and answer it."""
        message = self.hear()
        assert type(message) is kind, message
        self.say(wire.Answer(message.call, value))
        return message

    def is_left(self) -> bool:
        """Has the client hung up, having said only goodbye?"""
        while data := self._socket.recv(65536):
            for content in self._frames.feed(data):
                assert type(wire.decode(content)) in (wire.Ping, wire.Goodbye, wire.Cancel)
        return True

    def close(self) -> None:
        self._socket.close()


class Peer:
    """Listens; each `line()` is the next link that is dialled, greeted as a host does."""

    def __init__(self, heartbeat: float = 5.0) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE_SECONDS)
        self._lines: list[Line] = []
        self.heartbeat = heartbeat
        self.port = self._listening.getsockname()[1]

    @property
    def url(self) -> str:
        return f"tupelo://127.0.0.1:{self.port}/jobs"

    def dialled(self) -> Line:
        """A link on which nothing was said."""
        line = Line(self._listening.accept()[0])
        self._lines.append(line)
        return line

    def line(
        self, session: str = "first", *, opened: int = 1, message_max: int = 0
    ) -> tuple[Line, wire.Hello]:
        """A link on which the client is welcome, and has opened its spaces."""
        line = self.dialled()
        return line, self.greet(line, session, opened=opened, message_max=message_max)

    def greet(
        self, line: Line, session: str, *, opened: int = 1, message_max: int = 0
    ) -> wire.Hello:
        """Welcome the client, and open its spaces."""
        line.preamble()
        hello: wire.Hello = line.hear()
        line.received = line.hear().received if hello.more else []
        welcome = wire.Welcome(wire.VERSION, "h", "host", "i", session, self.heartbeat)
        welcome.message_max = message_max
        line.say(welcome)
        for _ in range(opened):
            line.answer(wire.Open, [False, "id", "me", "h", 1_000.0])
        return hello

    def close(self) -> None:
        self._listening.close()
        for line in self._lines:
            line.close()
