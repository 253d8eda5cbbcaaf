"""The handshake: Hello and Welcome. A program is identified by a short first message before
anything else is read from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tupelo.errors import BadFrame, CannotReach, TupeloError
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.encoding import encode_error, read_error
from tupelo.federation.links.link import FrameReceiver, Link, Network
from tupelo.federation.links.wire import (
    VERSION,
    Goodbye,
    Hello,
    HelloDetails,
    Message,
    Refusal,
    Welcome,
    agreed_max,
    decode,
    decode_first,
    encode,
)

logger = logging.getLogger("tupelo")

HELLO_SECONDS = 10.0
NAME_MAX = 512
"""The longest name or id in a message, in characters."""
SPACES_MAX = 1_000
"""The most spaces of a host, and the most that it may announce."""

Recognise = Callable[[Link, Hello], str | None]
"""Returns the identity of the program that sent a Hello, or raises why it is refused."""
Admit = Callable[[Link, Hello, HelloDetails, str | None], Conversation]
"""Begins the conversation with an identified program, or raises why it is refused."""


class Reception:
    """The handshake on an accepted link: waits for a Hello, and for HelloDetails if they are
    announced; then it forwards all messages to the conversation. Before the program is identified
    the link reads one short frame only."""

    def __init__(self, link: Link, recognise: Recognise, admit: Admit) -> None:
        self._link = link
        self._recognise = recognise
        self._admit = admit
        self._known: tuple[Hello, str | None] | None = None
        self._inside: FrameReceiver | None = None
        self._timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._too_late)

    def heard(self, contents: list[bytes]) -> None:
        if self._inside is not None:
            self._inside.heard(contents)
            return
        for place, content in enumerate(contents):
            try:
                self._inside = self._meet(content)
            except TupeloError as error:
                self._timer.cancel()
                logger.warning("%s was refused: %s", self._link.label, error)
                if not isinstance(error, BadFrame):
                    self._link.send(encode(Refusal(*encode_error(error))))
                self._link.close()
                return
            if self._inside is not None:
                self._timer.cancel()
                self._inside.heard(contents[place + 1 :])
                return

    def _meet(self, content: bytes) -> Conversation | None:
        """Read a message of the handshake; returns the conversation after the last of them."""
        details = HelloDetails()
        if self._known is None:
            hello = _read_hello(content)
            who = self._recognise(self._link, hello)
            self._known = hello, who
            self._link.admit(agreed_max(hello.message_max))
            if hello.more:
                return None
        else:
            hello, who = self._known
            details = read_hello_details(content)
        return self._admit(self._link, hello, details, who)

    def eased(self) -> None:
        if self._inside is not None:
            self._inside.eased()

    def lost(self, reason: str) -> None:
        self._timer.cancel()
        if self._inside is not None:
            self._inside.lost(reason)

    def _too_late(self) -> None:
        logger.warning(
            "%s did not complete the handshake in %g seconds", self._link.label, HELLO_SECONDS
        )
        self._link.abort()


class Greeting:
    """The handshake on a link that we dialled: sends our Hello and waits for the Welcome."""

    @classmethod
    async def dial(cls, network: Network, address: str) -> Greeting:
        """Connect to this address. Raises CannotReach if nobody answers there."""
        greetings: list[Greeting] = []

        def answer(link: Link) -> Greeting:
            greetings.append(cls(link))
            return greetings[0]

        await network.dial(address, answer)
        return greetings[0]

    def __init__(self, link: Link) -> None:
        self.link = link
        self.details = HelloDetails()
        """The HelloDetails of the host."""
        self._inside: FrameReceiver | None = None
        self._heard: list[bytes] = []
        self._lost: str | None = None
        self._something = asyncio.Event()

    def heard(self, contents: list[bytes]) -> None:
        if self._inside is not None:
            self._inside.heard(contents)
        elif contents:
            self._heard += contents
            self._something.set()

    def eased(self) -> None:
        if self._inside is not None:
            self._inside.eased()

    def lost(self, reason: str) -> None:
        self._lost = reason
        self._something.set()
        if self._inside is not None:
            self._inside.lost(reason)

    async def welcome(self, hello: Hello, details: HelloDetails | None = None) -> Welcome:
        """Send our Hello, and our HelloDetails if there are any; return the Welcome. Raises
        CannotReach, or the error of the host that refuses us."""
        self.link.send(encode(hello))
        if details is not None:
            self.link.send(encode(details))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                welcome = check_welcome(decode_first(await self._next()), self.link.label)
                self.link.admit(agreed_max(welcome.message_max))
                if welcome.more:
                    self.details = read_hello_details(await self._next())
                return welcome
        except TimeoutError:
            raise CannotReach(self.link.label, "it does not answer") from None

    async def _next(self) -> bytes:
        while not self._heard:
            if self._lost is not None:
                raise CannotReach(self.link.label, self._lost)
            self._something.clear()
            await self._something.wait()
        return self._heard.pop(0)

    def go_on(self, inside: FrameReceiver) -> None:
        """Forward all further messages to the conversation `inside`."""
        self._inside = inside
        heard, self._heard = self._heard, []
        inside.heard(heard)
        if self._lost is not None:
            inside.lost(self._lost)


def _read_hello(content: bytes) -> Hello:
    message = decode_first(content)
    if not isinstance(message, Hello):
        raise BadFrame(f"it began with {type(message).__name__} instead of Hello")
    if message.version != VERSION:
        raise CannotReach(
            "this host", f"it speaks version {VERSION}, and you speak {message.version}"
        )
    for text in (message.id, message.name, message.incarnation, message.resume, message.address):
        if len(text) > NAME_MAX:
            raise BadFrame(f"a name of {len(text)} characters")
    if not (message.id and message.incarnation):
        raise BadFrame("it has no id")
    return message


def read_hello_details(content: bytes) -> HelloDetails:
    """Decode the HelloDetails of an identified program. Raises BadFrame if they are something
    else."""
    message = decode(content)
    if not isinstance(message, HelloDetails):
        raise BadFrame(f"it went on with {type(message).__name__} instead of HelloDetails")
    require_names(message.spaces, SPACES_MAX)
    return message


def require_names(names: list[str], most: int) -> None:
    """Raise BadFrame if there are more than `most` names, or if one is too long."""
    if len(names) > most or any(len(name) > NAME_MAX for name in names):
        raise BadFrame(f"{len(names)} names are too many, or one of them is too long")


def check_welcome(message: Message, label: str) -> Welcome:
    """The first message of a host that was dialled, if it is a Welcome. Raises the error of a
    Refusal, or CannotReach."""
    if isinstance(message, Refusal):
        raise read_error(message.kind, message.message, message.data)
    if isinstance(message, Goodbye):
        raise CannotReach(label, message.reason or "it is leaving")
    if not isinstance(message, Welcome):
        raise CannotReach(label, f"it answered with {type(message).__name__}, not as a host does")
    if message.version != VERSION:
        raise CannotReach(label, f"it speaks version {message.version}, and we speak {VERSION}")
    return message
