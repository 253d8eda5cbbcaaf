"""Channels: a client's conversation with one host, which outlives the links that carry it.

Two keep this one text: `blocking_channel` for threads, `async_channel` for tasks. Here is what
they share: the numbers of calls, what may be asked again after a link was lost, and which takes
have reached their user though the host may not know it yet.
"""

from __future__ import annotations

import os
import random
import ssl
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any, ClassVar, Protocol

import msgspec

from tupelo.errors import BadFrame, CannotReach, LinkError, PeerLost, SpaceClosed, TupeloError
from tupelo.federation.links import wire
from tupelo.federation.links.address import Address
from tupelo.federation.links.calls import PendingCalls, read_failure
from tupelo.federation.links.reception import check_welcome
from tupelo.space.checks import WAIT_MAX

DIAL_SECONDS = 10.0
"""How long a host may take to answer when it is dialled."""

PARTING_SECONDS = 1.0
"""How long a host may take to hang up when it is told goodbye: then it has heard all we said."""

SILENT_HEARTBEATS = 3
UNANSWERED_HEARTBEATS = 10
"""With calls under way, and nothing heard in so many heartbeats but that the host is there, it is
asked whether it answers calls at all; if it does not answer that in as many, the link is lost."""
TICKS = 2
"""How often within a heartbeat a channel looks whether it must say something."""

PAUSE_FIRST, PAUSE_MAX = 0.05, 2.0
STEADY_SECONDS = 10.0
"""A link that has stood so long was a good one: calls that are lost with it are asked again as if
for the first time. Those that were asked again over a shorter one have only the rest of their time,
and there is a pause before the host is dialled."""

CONFIRMED_MAX = 4_096
"""So many takes are remembered as received; a host commits far fewer at a time."""


class ConnectionConfig(msgspec.Struct, frozen=True):
    """Who dials whom: the address, who we are, and how the other end is recognised."""

    address: Address
    id: str
    name: str
    incarnation: str
    context: ssl.SSLContext | None
    """For TLS; without it the link goes in the clear."""

    recognise: Callable[[str], None]
    """Raises if a host with this key is not to be met."""

    reconnect: float
    """For how many seconds after a loss the host is dialled again."""


class ChannelUser(Protocol):
    """A space that uses a channel; what it has `held` ends with the link."""

    @property
    def held(self) -> Collection[object]: ...


class OutstandingCall(ABC):
    """A call that was asked, until its answer has reached the caller."""

    __slots__ = (
        "done",
        "error",
        "lost_since",
        "message",
        "number",
        "owner",
        "patient",
        "serial",
        "signal",
        "since",
        "value",
        "wait",
        "within",
    )

    def __init__(self, message: Any, owner: ChannelUser, within: int | None, signal: Any) -> None:
        self.message = message
        self.owner = owner
        self.within = within
        self.signal = signal
        self.number = 0  # not sent yet
        self.serial = -1
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None
        self.since: float | None = None
        self.lost_since: float | None = None  # the first of the losses that it has seen in a row
        self.wait: float | None = getattr(message, "wait", 0)
        self.patient = self.wait != 0

    def answered(self, value: Any) -> None:
        self.value = value
        self.done = True
        self.wake()

    def failed(self, error: Exception) -> None:
        self.error = error
        self.done = True
        self.wake()

    @abstractmethod
    def wake(self) -> None:
        """The caller can go on: the answer is there, or it is to read for others."""

    def ask_again(self, now: float) -> None:
        """Forget the answer; as much patience is left as the time that has passed leaves."""
        self.done = False
        self.number = 0
        self.value = None
        if self.since is not None and self.wait is not None:
            self.message.wait = max(0.0, self.wait - (now - self.since))


class Channel(ABC):
    """What both channels share. `serial` numbers the links: what a lost one has carried, such as
    a transaction, is not used on the next."""

    is_async: ClassVar[bool]

    def __init__(self, config: ConnectionConfig, chance: random.Random) -> None:
        self.config = config
        self.chance = chance
        self.serial = 0
        self.session = ""
        self.heartbeat = 1.0
        self.message_max = wire.MESSAGE_MAX
        """The longest message that the host accepts, in bytes."""
        self.closed = False
        self.given_up: TupeloError | None = None
        self._number = 0
        self._asked: PendingCalls[OutstandingCall] = PendingCalls()
        self._unsent: deque[OutstandingCall] = deque()
        # What was confirmed on this link: the host may not have it on disk yet when it crashes.
        self._confirmed: deque[int] = deque(maxlen=CONFIRMED_MAX)
        self._received: list[int] = []
        self._resuming = False
        self._reason = ""
        self._opened: dict[ChannelUser, wire.Open] = {}
        self._sent = self._heard = 0
        self._progress = 0  # what was heard beside that the host is there
        self._unanswered = (0, 0)  # progress at the last tick, and the ticks since it changed
        self._stood_since = 0.0
        self._begun_at = 0  # the progress when this link began
        self._next_pause = self.pauses()
        self._dials_at_once = True
        self._forked = False
        _channels.add(self)

    @property
    def peer(self) -> str:
        return str(self.config.address)

    # What a space uses

    async def ask(
        self, message: Any, owner: ChannelUser, within: int | None = None
    ) -> OutstandingCall:
        """Send a call and wait for its answer, or raise its error. `within` is the serial of the
        link that carries what it needs."""
        asked = self.asking(message, owner, within)
        await self.run(asked)
        return asked

    @abstractmethod
    def asking(
        self, message: Any, owner: ChannelUser, within: int | None = None
    ) -> OutstandingCall:
        """A call that is about to be asked."""

    @abstractmethod
    async def run(self, asked: OutstandingCall) -> None:
        """Ask it, and return with its answer; once more, if it was answered before."""

    @abstractmethod
    def confirm(self, asked: OutstandingCall) -> bool:
        """What was taken reaches its user now. False: the host has it back by now; ask again."""

    @abstractmethod
    def cancel(self, asked: OutstandingCall) -> None:
        """Nobody wants the answer any more; what was taken goes back."""

    def tell(self, message: Any, within: int | None = None) -> None:
        """Send a call whose answer does not matter, if there is a link."""
        if not self.awaits_link and (within is None or within == self.serial):
            self._number += 1
            message.call = self._number
            self._send(wire.encode(message))

    @abstractmethod
    def _post(self, asked: OutstandingCall) -> None:
        """Send this call now, or over the next link."""

    @abstractmethod
    def _send(self, content: bytes, *, ordered: bool = False) -> None:
        """Send this, if there is a link. With `ordered` it does not overtake a long message that
        was sent before and is still on its way."""

    def _post_unsent(self) -> None:
        """A new link stands: send what waits for it."""
        waiting, self._unsent = self._unsent, deque()
        for asked in waiting:
            try:
                self._post(asked)
            except Exception as error:  # It is its caller's, who waits for it.
                asked.failed(error)

    @abstractmethod
    async def leave(self, owner: ChannelUser, goodbyes: list[Any]) -> None:
        """This space is closed: who waits in it is told, and the host gets the goodbyes. With the
        last space the channel is closed."""

    @abstractmethod
    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run this in a thread, or a task, of its own."""

    @abstractmethod
    def time(self) -> float:
        """By a clock here that only goes on."""

    def let_go(self) -> None:
        """This is a copy, in a process that was forked: the link is our parent's, who goes on
        using it."""
        self._forked = True

    async def open(self, owner: ChannelUser, space: str, password: str | None) -> list[Any]:
        """Use a space from now on, on every link; what the host says of it."""
        message = wire.Open(0, space, password)
        self._opened[owner] = message
        try:
            return list((await self.ask(message, owner)).value)
        except BaseException:
            await self.leave(owner, [])
            raise

    # What goes out

    def greeting(self) -> list[bytes]:
        """The first words on a link; from now on nothing more is added to what was received."""
        self._resuming = True
        config = self.config
        hello = wire.Hello(
            wire.VERSION,
            "client",
            config.id,
            config.name,
            config.incarnation,
            resume=self.session,
            more=bool(self._received),
            message_max=wire.MESSAGE_MAX,
        )
        arrivals = [wire.HelloDetails([], self._received)] if self._received else []
        return [wire.encode(word) for word in (hello, *arrivals)]

    def welcomed(self, welcome: wire.Message) -> wire.Welcome:
        """The host's first word, if it is a good one."""
        found = check_welcome(welcome, self.peer)
        if not 0 < found.heartbeat <= WAIT_MAX:
            raise CannotReach(self.peer, "it does not answer as a host does")
        return found

    def begin(self, welcome: wire.Welcome) -> None:
        """A new link stands."""
        self.session = welcome.session
        self.heartbeat = welcome.heartbeat
        self.message_max = wire.agreed_max(welcome.message_max)
        self.given_up = None
        self._received.clear()
        self._resuming = False
        self._stood_since = self.time()
        self._begun_at = self._progress
        self._unanswered = (self._progress, 0)

    def reopening(self) -> dict[int, tuple[ChannelUser, bytes]]:
        """What opens the spaces on a new link: for each call, whose it is and its content."""
        contents = {}
        for owner, message in list(self._opened.items()):
            self._number += 1
            message.call = self._number
            contents[self._number] = owner, wire.encode(message)
        return contents

    def number(self, asked: OutstandingCall) -> bytes:
        """The content of a call, which is in flight from now on."""
        self._number += 1
        message = asked.message
        message.call = self._number
        content = wire.encode(message, self.message_max)
        asked.number = self._number
        asked.serial = self.serial
        self._asked[asked.number] = asked
        return content

    def require_link_of(self, asked: OutstandingCall) -> None:
        """Can this be asked at all?"""
        if self._forked:
            raise LinkError("this connection was made before a fork; connect again in the child")
        if self.closed:
            raise SpaceClosed("the link was closed")
        if asked.within is not None and asked.within != self.serial:
            raise self.loss(asked.message, "its link was lost")
        if self.given_up is not None and not self.config.reconnect:
            raise self.loss(asked.message, self._reason)

    def settle(self, asked: OutstandingCall) -> bool | None:
        """For `confirm`. True: say it to the host; None: it is said with the next Hello."""
        if asked.serial == self.serial:
            self._confirmed.append(asked.number)
            return True
        if asked.serial == self.serial - 1 and not self._resuming and self.awaits_link:
            self._received.append(asked.number)
            return None
        return False

    def unsettle(self, asked: OutstandingCall) -> None:
        """It does not reach its user after all."""
        for known in (self._confirmed, self._received):
            if asked.number in known:
                known.remove(asked.number)

    def queue(self, asked: OutstandingCall) -> None:
        """It is sent over the next link; if it never can be, its caller is told now."""
        wire.encode(asked.message)
        self._unsent.append(asked)

    def withdraw(self, asked: OutstandingCall) -> bool:
        """For `cancel`. Is the host to be told?"""
        self._asked.pop(asked.number, None)
        if asked in self._unsent:
            self._unsent.remove(asked)
            return False
        self.unsettle(asked)
        return asked.number > 0 and asked.serial == self.serial

    def reopened(
        self, opening: dict[int, tuple[ChannelUser, bytes]], heard: list[wire.Message]
    ) -> None:
        """Cross out what was opened; who waits in a space that cannot be is told."""
        for message in heard:
            if isinstance(message, (wire.Answer, wire.Failure)):
                owner, _ = opening.pop(message.call, (None, b""))
                if owner is not None and isinstance(message, wire.Failure):
                    for asked in self._unsent_of(owner):
                        asked.failed(read_failure(message))

    def _unsent_of(self, owner: ChannelUser) -> list[OutstandingCall]:
        """The calls of a space that are not sent yet, and will not be."""
        found = [asked for asked in self._unsent if asked.owner is owner]
        for asked in found:
            self._unsent.remove(asked)
        return found

    @property
    def carries(self) -> bool:
        """Would anything end with the link?"""
        return any(owner.held for owner in list(self._opened))

    @property
    @abstractmethod
    def awaits_link(self) -> bool:
        """Is there no link now?"""

    # What comes in

    def hear(self, content: bytes) -> None:
        """Tell the caller that waits for it what a frame says. LinkError: the link is no good."""
        message = wire.decode(content)
        kind = type(message)
        if kind is wire.Answer or kind is wire.Failure:
            self._progress += 1
            self._asked.resolve(message)  # type: ignore[arg-type]
        elif isinstance(message, wire.Goodbye):
            raise LinkError(message.reason or "it left")
        elif not isinstance(message, wire.Ping):
            raise BadFrame(f"a {kind.__name__} is nothing for a client")

    def answers(self) -> bool:
        """At every tick: does the host answer calls? If none is answered for long it is asked for
        a sign, and if that does not come either, False."""
        progress, ticks = self._unanswered
        ticks = ticks + 1 if self._asked and progress == self._progress else 0
        self._unanswered = self._progress, ticks
        if ticks == UNANSWERED_HEARTBEATS * TICKS:
            self._ask_for_a_sign()
        return ticks < 2 * UNANSWERED_HEARTBEATS * TICKS

    def _ask_for_a_sign(self) -> None:
        self.tell(wire.DescribeHost(0, brief=True))

    # Losses

    def lose(self, reason: str, now: float) -> None:
        """The link is lost. Who can be asked again waits for the next one, for as long as the host
        is dialled after a loss; the others are told."""
        self.serial += 1
        under_way = self._asked.pop_all()
        is_steady = now - self._stood_since >= STEADY_SECONDS
        again = any(asked.lost_since is not None for asked in under_way)
        self._dials_at_once = is_steady or (self._progress > self._begun_at and not again)
        if self._dials_at_once:
            self._next_pause = self.pauses()
        self._resuming = False
        self._received.extend(self._confirmed)
        self._confirmed.clear()
        for asked in reversed(under_way):
            if asked.lost_since is None or is_steady:
                asked.lost_since = now
            in_time = now - asked.lost_since <= self.config.reconnect
            if asked.within is None and may_ask_again(asked.message) and in_time:
                asked.ask_again(now)
                self._unsent.appendleft(asked)
            else:
                asked.failed(self.loss(asked.message, reason, sent=True))

    def closing(self, owner: ChannelUser) -> list[int]:
        """Nobody uses this space here any more: its calls are over. Those that the host knows."""
        self._opened.pop(owner, None)
        over = self._unsent_of(owner) + self._asked.pop_all(lambda asked: asked.owner is owner)
        for asked in over:
            asked.failed(SpaceClosed("the space was closed while it was waited for"))
        return [asked.number for asked in over if asked.number]

    def give_up(self, error: TupeloError | None, reason: str) -> None:
        """The host does not come back: everyone who waits for it is told so."""
        self._reason = reason
        self.given_up = error or PeerLost(self.peer, "reconnecting", reason)
        unsent, self._unsent = self._unsent, deque()
        for asked in unsent:
            asked.failed(error or self.loss(asked.message, reason))

    def loss(self, message: Any, reason: str, *, sent: bool = False) -> PeerLost:
        in_doubt = sent and changes_something(message)
        return PeerLost(self.peer, name_of(message), reason, in_doubt=in_doubt)

    def first_pause(self) -> float:
        """How long to pause before the host is dialled after a loss."""
        return 0.0 if self._dials_at_once else self._next_pause()

    def pauses(self) -> Callable[[], float]:
        """How long to pause before each new attempt: longer and longer, and no two alike."""
        pause = PAUSE_FIRST / 2

        def following() -> float:
            nonlocal pause
            pause = min(PAUSE_MAX, pause * 2)
            return pause * self.chance.uniform(0.5, 1.0)

        return following


def may_ask_again(message: Any) -> bool:
    """Is it harmless if this was done, and is asked again by the same one on another link?"""
    match message:
        case wire.Get(txn=None, session=None) | wire.CountRequest(txn=None):
            return True
        case (
            wire.Begin(parent=None, id=None)
            | wire.OpenSession(like=None)
            | wire.Subscribe(txn=None)
        ):
            return True
        case wire.Match(txn=None):
            return True
        case wire.Invoke(again=again):
            return again
        case (
            wire.Open()
            | wire.Changes()
            | wire.ReadLog()
            | wire.Trim()
            | wire.DescribeHost()
            | wire.ListPrepared()
        ):
            return True
    return False


def changes_something(message: Any) -> bool:
    """May this have been done, once it was sent, and stay done without us?"""
    match message:
        case wire.Write(txn=None) | wire.Renew() | wire.CancelLease():
            return True
        case wire.End(how="commit" | "prepare"):
            return True
        case wire.Invoke(again=again):
            return not again
    return False


def name_of(message: Any) -> str:
    """What was being done, for people."""
    match message:
        case wire.Get(take=take):
            return "a take" if take else "a read"
        case wire.End(how=how):
            return {"state": "a question"}.get(how, f"a {how}")
        case wire.Write() | wire.CountRequest():
            return f"a {type(message).__name__.lower()}"
        case wire.Next() | wire.Subscribe() | wire.State(thing="subscription"):
            return "a subscription"
        case wire.Invoke(service=service, method=method):
            return f"{service} {method}"
        case wire.DescribeHost():
            return "a question"
    return "an operation"


# Forks

_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _let_all_go() -> None:
    for channel in list(_channels):
        channel.let_go()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_let_all_go)
