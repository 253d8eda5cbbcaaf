"""A program that says whatever a test wants, over a real socket: one side of the protocol."""

from __future__ import annotations

import itertools
import socket
import ssl
from contextlib import suppress
from typing import Any
from uuid import uuid4

from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.tls import client_context
from tupelo.federation.links import wire
from tupelo.values.template_encoding import template_to_wire

PATIENCE_SECONDS = 20.0
PLAIN = b"TUPELO" + bytes([wire.VERSION]) + b"P"
TLS = PLAIN[:-1] + b"T"


class Raw:
    """A line to a host. Nothing is said on it but what the test says."""

    def __init__(self, address: str, *, preamble: bytes = PLAIN) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        self._frames = wire.Frames(message_max=wire.MESSAGE_MAX)
        self._heard: list[bytes] = []
        self._others: list[Any] = []
        self._calls = itertools.count(1)
        self.id = uuid4().hex
        self.incarnation = uuid4().hex
        self.welcome: Any = None
        self.details = wire.HelloDetails()
        self._answered = False
        self.send(preamble)

    @classmethod
    def met(cls, address: str, role: str = "client", **hello: Any) -> Raw:
        """A line on which the host has said welcome."""
        raw = cls(address)
        raw.greet(role, **hello)
        assert isinstance(raw.welcome, wire.Welcome), raw.welcome
        return raw

    @classmethod
    def secure(cls, address: str, identity: Identity) -> Raw:
        """A line under TLS, on which we have proved who we are and said nothing."""
        raw = cls(address, preamble=TLS)
        assert raw.read(8) == TLS
        raw._answered = True
        raw._socket = client_context(identity).wrap_socket(raw._socket)
        return raw

    def hello(self, role: str = "client", **changed: Any) -> Any:
        told = {"version": wire.VERSION, "id": self.id, "name": "raw", **changed}
        return wire.Hello(
            told.pop("version"),
            role,  # type: ignore[arg-type]
            told.pop("id"),
            told.pop("name"),
            told.pop("incarnation", self.incarnation),
            **told,
        )

    def greet(
        self,
        role: str = "client",
        spaces: tuple[str, ...] | list[str] = (),
        received: tuple[int, ...] | list[int] = (),
        **changed: Any,
    ) -> Any:
        more = bool(spaces or received)
        words = [self.hello(role, more=more, **changed)]
        if more:
            words.append(wire.HelloDetails(list(spaces), list(received)))
        self.say(*words)
        if not self._answered:
            assert self.read(8) == PLAIN
        self.welcome = self.hear()
        if isinstance(self.welcome, wire.Welcome) and self.welcome.more:
            self.details = self.hear()
        return self.welcome

    # Speaking

    def send(self, data: bytes) -> None:
        """These bytes, or as many as the host takes before it hangs up."""
        with suppress(ConnectionError, ssl.SSLError):
            self._socket.sendall(data)

    def offer(self, data: bytes) -> bool:
        """These bytes, or as many as the host takes within a millisecond. False if it has hung
        up."""
        self._socket.settimeout(0.001)
        with suppress(TimeoutError):
            try:
                self._socket.send(data)
            except (ConnectionError, ssl.SSLError):
                return False
        return True

    def say(self, *messages: Any) -> None:
        self.send(b"".join(wire.frame(wire.encode(message)) for message in messages))

    def say_in_pieces(self, message: Any, *between: Any) -> None:
        """Say a long message, and others between its first two pieces."""
        first, *others = wire.pieces(wire.encode(message))
        self.send(first)
        self.say(*between)
        self.send(b"".join(others))

    def call(self, kind: Any, *args: Any, **kwargs: Any) -> Any:
        """Say this and get what it is answered: an Answer or a Failure."""
        number = next(self._calls)
        self.say(kind(number, *args, **kwargs))
        return self.answer(number)

    def answer(self, number: int) -> Any:
        return self.hear_until(lambda said: getattr(said, "call", None) == number)

    # Hearing

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                break
            data += more
        return data

    def hear(self) -> Any:
        """The next message that is no Ping; None if the host has hung up."""
        while True:
            while not self._heard:
                try:
                    data = self._socket.recv(65_536)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._heard += self._frames.feed(data)
            message = wire.decode(self._heard.pop(0))
            if type(message) is not wire.Ping:
                return message

    def hear_until(self, condition: Any) -> Any:
        while not condition(message := self.hear()):
            assert message is not None, "the host has hung up"
        return message

    def is_hung_up(self) -> bool:
        """Wait until the host has hung up, whatever it says before."""
        with suppress(ConnectionError, ssl.SSLError):
            while self._socket.recv(65_536):
                pass
        return True

    def ping(self) -> None:
        self.say(wire.Ping())

    def leave(self) -> None:
        """Say goodbye, and come back when the host has let go of us."""
        self.say(wire.Goodbye())
        self.is_hung_up()
        self.close()

    def close(self) -> None:
        self._socket.close()


def encoded(*template: Any) -> Any:
    """A template as it is sent."""
    return template_to_wire(template)
