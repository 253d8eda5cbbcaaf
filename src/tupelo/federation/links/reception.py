"""The reception: who knocks must say who it is, at once and in our language, before it is heard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tupelo.errors import BadFrame, CannotReach, TupeloError
from tupelo.federation.links.conversation import Conversation
from tupelo.federation.links.link import Ear, Link, Network
from tupelo.federation.links.spelled import read_error, spell_error
from tupelo.federation.links.wire import (
    VERSION,
    Goodbye,
    Hello,
    Message,
    Refusal,
    Welcome,
    decode,
    encode,
)

logger = logging.getLogger("tupelo")

HELLO_SECONDS = 10.0
NAME_MAX = 512
"""No name or id that is told may be longer."""
SPACES_MAX = 1_000
"""So many spaces may a host have, and tell of."""


class Reception:
    """Waits for the Hello of a link that came in. `admit` lets it in, or raises why not."""

    def __init__(self, link: Link, admit: Callable[[Link, Hello], Conversation]) -> None:
        self._link = link
        self._admit = admit
        self._inside: Ear | None = None
        self._timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._too_late)

    def heard(self, contents: list[bytes]) -> None:
        if self._inside is not None:
            self._inside.heard(contents)
        elif contents:
            self._timer.cancel()
            try:
                self._inside = self._admit(self._link, _read_hello(contents[0]))
            except TupeloError as error:
                logger.warning("%s was refused: %s", self._link.label, error)
                if not isinstance(error, BadFrame):
                    self._link.send(encode(Refusal(*spell_error(error))))
                self._link.close()
                return
            self._inside.heard(contents[1:])

    def eased(self) -> None:
        if self._inside is not None:
            self._inside.eased()

    def lost(self, reason: str) -> None:
        self._timer.cancel()
        if self._inside is not None:
            self._inside.lost(reason)

    def _too_late(self) -> None:
        logger.warning("%s said nothing in %g seconds", self._link.label, HELLO_SECONDS)
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
        self._inside: Ear | None = None
        self._rest: list[bytes] = []
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    def heard(self, contents: list[bytes]) -> None:
        if self._inside is not None:
            self._inside.heard(contents)
        elif self._welcome.done():
            self._rest += contents
        elif contents:
            self._rest = contents[1:]
            try:
                self._welcome.set_result(check_welcome(decode(contents[0]), self.link.label))
            except TupeloError as error:
                self._welcome.set_exception(error)

    def eased(self) -> None:
        if self._inside is not None:
            self._inside.eased()

    def lost(self, reason: str) -> None:
        if self._inside is not None:
            self._inside.lost(reason)
        elif not self._welcome.done():
            self._welcome.set_exception(CannotReach(self.link.label, reason))
            self._welcome.exception()

    async def welcome(self, hello: Hello) -> Welcome:
        self.link.send(encode(hello))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                return await self._welcome
        except TimeoutError:
            raise CannotReach(self.link.label, "it does not answer") from None

    def go_on(self, inside: Ear) -> None:
        """What comes from now on is for this one."""
        self._inside = inside
        rest, self._rest = self._rest, []
        inside.heard(rest)


def _read_hello(content: bytes) -> Hello:
    message = decode(content)
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
    require_names(message.spaces, SPACES_MAX)
    return message
