"""The reception: who knocks must say who it is, at once and in a few bytes, before it is heard."""

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
"""No name or id that is told may be longer."""
SPACES_MAX = 1_000
"""So many spaces may a host have, and tell of."""

Recognise = Callable[[Link, Hello], str | None]
"""The identity of whoever said Hello. It raises why it is not to be let in."""
Admit = Callable[[Link, Hello, HelloDetails, str | None], Conversation]
"""Begins the conversation with whoever was recognised, or raises why not."""


class Reception:
    """Waits for the Hello of a link that came in, and for its Arrival if there is one. Until it is
    recognised, the link takes no more than one short frame."""

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
        """Hear the first words; the conversation, if they were all."""
        arrival = HelloDetails()
        if self._known is None:
            hello = _read_hello(content)
            who = self._recognise(self._link, hello)
            self._known = hello, who
            self._link.admit(agreed_max(hello.message_max))
            if hello.more:
                return None
        else:
            hello, who = self._known
            arrival = read_arrival(content)
        return self._admit(self._link, hello, arrival, who)

    def eased(self) -> None:
        if self._inside is not None:
            self._inside.eased()

    def lost(self, reason: str) -> None:
        self._timer.cancel()
        if self._inside is not None:
            self._inside.lost(reason)

    def _too_late(self) -> None:
        logger.warning("%s said too little in %g seconds", self._link.label, HELLO_SECONDS)
        self._link.abort()


class Greeting:
    """Waits for the answer to our Hello on a link that we dialled."""

    @classmethod
    async def dial(cls, network: Network, address: str) -> Greeting:
        """CannotReach if nobody answers there."""
        greetings: list[Greeting] = []

        def answer(link: Link) -> Greeting:
            greetings.append(cls(link))
            return greetings[0]

        await network.dial(address, answer)
        return greetings[0]

    def __init__(self, link: Link) -> None:
        self.link = link
        self.arrival = HelloDetails()
        """What the host has said of itself beside its Welcome."""
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

    async def welcome(self, hello: Hello, arrival: HelloDetails | None = None) -> Welcome:
        """Say who we are, and perhaps more; the answer. CannotReach, or why we are not let in."""
        self.link.send(encode(hello))
        if arrival is not None:
            self.link.send(encode(arrival))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                welcome = check_welcome(decode_first(await self._next()), self.link.label)
                self.link.admit(agreed_max(welcome.message_max))
                if welcome.more:
                    self.arrival = read_arrival(await self._next())
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
        """What comes from now on is for this one."""
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


def read_arrival(content: bytes) -> HelloDetails:
    """The second word of a program that was recognised. BadFrame if it is something else."""
    message = decode(content)
    if not isinstance(message, HelloDetails):
        raise BadFrame(f"it went on with {type(message).__name__} instead of Arrival")
    require_names(message.spaces, SPACES_MAX)
    return message


def require_names(names: list[str], most: int) -> None:
    """BadFrame if there are more than this, or if one is too long."""
    if len(names) > most or any(len(name) > NAME_MAX for name in names):
        raise BadFrame(f"{len(names)} names are too many, or one of them is too long")


def check_welcome(message: Message, label: str) -> Welcome:
    """The first word of a host that was dialled; an error if it does not let us in."""
    if isinstance(message, Refusal):
        raise read_error(message.kind, message.message, message.data)
    if isinstance(message, Goodbye):
        raise CannotReach(label, message.reason or "it is leaving")
    if not isinstance(message, Welcome):
        raise CannotReach(label, f"it answered with {type(message).__name__}, not as a host does")
    if message.version != VERSION:
        raise CannotReach(label, f"it speaks version {message.version}, and we speak {VERSION}")
    return message
