"""The connection of a client to one host, which outlives the links that carry it.

`Channel` has what the blocking and the async client share: numbering calls, reconnecting, deciding
which calls are repeated after a lost link, and remembering which takes have reached the program
although the host may not know it yet. `blocking_channel` and `async_channel` add the waiting, the
reading and the sockets.
"""

from __future__ import annotations

import os
import random
import ssl
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import msgspec

from tupelo.errors import (
    BadArgument,
    BadFrame,
    CannotReach,
    CannotSend,
    LimitReached,
    LinkError,
    PeerLost,
    SpaceClosed,
    TupeloError,
)
from tupelo.federation.client.arguments import is_text
from tupelo.federation.links import wire
from tupelo.federation.links.address import Address
from tupelo.federation.links.calls import PendingCalls, read_failure
from tupelo.federation.links.reception import check_welcome
from tupelo.space.query import WAIT_MAX
from tupelo.values.checks import check_bool

DIAL_SECONDS = 10.0
"""How long a host may take to answer when it is dialled."""

PARTING_SECONDS = 1.0
"""How long a host may take to hang up after a Goodbye; then it has received all that was sent."""

SILENT_HEARTBEATS = 3
"""A host that sends nothing for so many heartbeats is lost."""
UNANSWERED_HEARTBEATS = 10
"""If calls are outstanding and no answer comes for so many heartbeats, the host is probed with a
call; if the probe is not answered in as many heartbeats either, the link is dropped."""
TICKS = 2
"""How many times per heartbeat a channel checks its link."""

PAUSE_FIRST, PAUSE_MAX = 0.05, 2.0
STEADY_SECONDS = 10.0
"""A link that has lasted so long counts as stable: when it is lost, the host is dialled at once and
outstanding calls get the full reconnect time again. After a shorter link, repeated calls only have
the rest of their reconnect time, and there is a pause before dialling."""

CONFIRMED_MAX = 4_096
"""How many confirmed takes are remembered; a host commits far fewer at a time."""


class ConnectionConfig(msgspec.Struct, frozen=True):
    """Address of the host, identity of this program, and how the host is recognised."""

    address: Address
    id: str
    name: str
    incarnation: str
    context: ssl.SSLContext | None
    """For TLS; None for an unencrypted link."""

    recognise: Callable[[str], None]
    """Raises if the host with this key is not trusted."""

    reconnect: float
    """For how many seconds a lost host is dialled again."""

    first_seconds: float = 0.0
    """For how many seconds a host is dialled that does not answer yet."""

    on_behalf: str = ""
    """The identity with whose rights this program acts: it has proved the host's own."""


class ChannelUser(Protocol):
    """A user of a channel, such as a remote space. Its handles end with the link."""

    @property
    def handles(self) -> Collection[object]: ...


class Line(Protocol):
    """A link that is being opened: how a channel sends and reads the first messages."""

    def send(self, content: bytes) -> None: ...

    async def first_message(self) -> wire.Message:
        """The first message of the host, which must be short; longer ones may follow."""
        ...

    async def messages(self) -> list[wire.Message]:
        """The next messages, at least one."""
        ...


class OutstandingCall(ABC):
    """A call, from its creation until its answer has reached the caller.

    `on_link` is the serial number of the only link over which it may be sent, or None; `serial`
    that of the link over which it was sent.
    """

    __slots__ = (
        "done",
        "error",
        "lost_since",
        "message",
        "number",
        "on_link",
        "owner",
        "serial",
        "signal",
        "since",
        "value",
        "wait",
    )

    def __init__(self, message: Any, owner: ChannelUser, on_link: int | None) -> None:
        self.message = message
        self.owner = owner
        self.on_link = on_link
        self.signal: Any = None
        self.number = 0  # 0 until it is sent
        self.serial = -1
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None
        self.since: float | None = None
        self.lost_since: float | None = None  # the first of several lost links in a row
        self.wait: float | None = getattr(message, "wait", 0)

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
        """Wake the caller: the answer is here, or the caller must read for the others."""

    def reset(self, now: float) -> None:
        """Prepare to send the call again, with the rest of its waiting time."""
        self.done = False
        self.number = 0
        self.value = None
        if self.since is not None and self.wait is not None:
            self.message.wait = max(0.0, self.wait - (now - self.since))


class Channel(ABC):
    """A conversation with one host over one link at a time. `serial` numbers the links: handles
    such as transactions end with their link and are not used on the next one."""

    is_async: ClassVar[bool]
    _call_type: ClassVar[type[OutstandingCall]]
    _lock: AbstractContextManager[object]
    """Guards sending and the state of the channel, where threads share it."""
    _turn: AbstractContextManager[object]
    """Taken before the lock to send a message: the sender of a long one lets others go first."""

    def __init__(self, config: ConnectionConfig, chance: random.Random) -> None:
        self.config = config
        self.chance = chance
        self.serial = 0
        self.session = ""
        self.heartbeat = 1.0
        self.message_max = wire.MESSAGE_MAX
        self.level = wire.LEVEL  # of the host
        """The longest message that the host accepts, in bytes."""
        self.closed = False
        self.given_up: TupeloError | None = None
        self._number = 0
        self._outstanding: PendingCalls[OutstandingCall] = PendingCalls()
        self._unsent: deque[OutstandingCall] = deque()
        # Takes confirmed on this link, which the host may not have on disk yet when it crashes;
        # after a lost link they are reported with the next Hello.
        self._confirmed: deque[int] = deque(maxlen=CONFIRMED_MAX)
        self._to_report: list[int] = []
        self._hello_sent = False
        self._reason = ""
        self._open_spaces: dict[ChannelUser, wire.Open] = {}
        self._sent = self._received = 0
        self._at_last_tick = (0, 0)  # _sent and _received
        self._silent_ticks = 0
        self._progress = 0  # counts answers and parts of frames: all but Pings
        self._unanswered = (0, 0)  # _progress at the last tick, and ticks since it changed
        self._link_since = 0.0
        self._progress_at_start = 0  # _progress when this link began
        self._next_pause = self._pauses()
        self._dials_at_once = True
        self._forked = False
        self._line: Any = None
        _channels.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.peer}>"

    @property
    def peer(self) -> str:
        """The address of the host."""
        return str(self.config.address)

    @property
    def awaits_link(self) -> bool:
        """Whether there is no link now."""
        return self._line is None

    # Calls

    async def ask(
        self, message: Any, owner: ChannelUser, on_link: int | None = None
    ) -> OutstandingCall:
        """Send a call and wait for its answer, or raise its error. With `on_link`, only over the
        link with that serial number: PeerLost if it was lost."""
        call = self.new_call(message, owner, on_link)
        await self.run(call)
        return call

    def new_call(
        self, message: Any, owner: ChannelUser, on_link: int | None = None
    ) -> OutstandingCall:
        """A call that is not sent yet; see `run`."""
        call = self._call_type(message, owner, on_link)
        if call.wait:
            call.since = self.time()
        return call

    @abstractmethod
    async def run(self, call: OutstandingCall) -> None:
        """Send a call, again if it was answered before, and return when it is answered. Raises
        the error of the host."""

    def confirm(self, call: OutstandingCall) -> bool:
        """Tell the host that the program has the taken entries: with the next Hello, if the link
        was just lost. False if the host has put them back by now: run the call again."""
        with self._turn, self._lock:
            if call.serial == self.serial:
                self._confirmed.append(call.number)
                try:
                    self._send_confirmation(call.number)
                except BaseException:  # The caller is interrupted and gets nothing.
                    self._unconfirm(call)
                    raise
                return True
            if call.serial == self.serial - 1 and not self._hello_sent and self.awaits_link:
                self._to_report.append(call.number)
                return True
            return False

    def cancel(self, call: OutstandingCall) -> None:
        """Drop a call: the host puts back the entries that it took."""
        with self._turn, self._lock:
            self._outstanding.pop(call.number, None)
            if call in self._unsent:
                self._unsent.remove(call)
            else:
                self._unconfirm(call)
                if call.number > 0 and call.serial == self.serial:
                    self._send(wire.encode(wire.Cancel([call.number])), ordered=True)
            call.number = 0
        self._send_long()

    def _unconfirm(self, call: OutstandingCall) -> None:
        for numbers in (self._confirmed, self._to_report):
            if call.number in numbers:
                numbers.remove(call.number)

    def tell(self, message: Any, on_link: int | None = None) -> None:
        """Send a call without waiting for its answer; nothing is sent if there is no link."""
        with self._turn, self._lock:
            self._tell(message, on_link)

    def _tell(self, message: Any, on_link: int | None = None) -> None:
        if not self.awaits_link and (on_link is None or on_link == self.serial):
            self._number += 1
            message.call = self._number
            self._send(wire.encode(message))

    def _post(self, call: OutstandingCall) -> None:
        """With the lock held: send this call now, or over the next link."""
        if self._forked:
            raise LinkError("this connection was made before a fork; connect again in the child")
        if self.closed:
            raise SpaceClosed("the link was closed")
        if call.on_link is not None and call.on_link != self.serial:
            raise self.loss(call.message, "its link was lost")
        if self.given_up is not None and not self.config.reconnect:
            raise self.loss(call.message, self._reason)
        if self._line is None:
            wire.encode(call.message)  # raises now what would otherwise be raised later
            self._unsent.append(call)
            self._dial_soon()
            return
        self._number += 1
        call.message.call = self._number
        content = wire.encode(call.message, self.message_max)
        call.number = self._number
        call.serial = self.serial
        self._outstanding[call.number] = call
        self._send(content)

    @abstractmethod
    def _send(self, content: bytes, *, ordered: bool = False) -> None:
        """With the lock held: send this message, if there is a link. With `ordered` it does not
        overtake a long message that is being sent."""

    @abstractmethod
    def _send_long(self) -> None:
        """Without the lock: send the long messages that `_send` has queued, and the ordered ones
        behind them."""

    @abstractmethod
    def _send_confirmation(self, number: int) -> None:
        """Send a Confirm for this call, now or together with others."""

    @abstractmethod
    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run this in a thread, or a task, of its own."""

    @abstractmethod
    def time(self) -> float:
        """The time on a monotonic clock of this machine."""

    def detach(self) -> None:
        """In a forked child: stop using the link, which belongs to the parent process."""
        self._forked = True

    def require_level(self, level: int, what: str) -> None:
        """Raise CannotSend if the host is of an older version that would ignore the request."""
        if self.level < level:
            raise CannotSend(
                f"the host at {self.peer} runs an older version of Tupelo, which cannot {what};"
                " nothing was done"
            )

    # Opening and closing spaces

    async def open(
        self, owner: ChannelUser, space: str, password: str | None, create: bool = True
    ) -> list[Any]:
        """Open a space of the host, on this and every later link; return its description."""
        message = wire.Open(0, space, password, create)
        self._open_spaces[owner] = message
        try:
            if not is_text(space) or not space:
                raise BadArgument("name", "the name of a space", space)
            if password is not None and not is_text(password):
                raise BadArgument("password", "a text, or None", password)
            check_bool("create", create)
            if not create:
                self.require_level(3, "open a space without creating it")
            return list((await self.ask(message, owner)).value)
        except BaseException:
            await self.leave(owner, [])
            raise

    async def leave(self, owner: ChannelUser, goodbyes: list[Any]) -> None:
        """Close a space: its waiting calls fail with SpaceClosed, and the host gets the goodbyes,
        each a message and the serial number of its link. The last space closes the channel."""
        with self._turn, self._lock:  # The callers learn why before the host can answer.
            calls = self._end_calls(owner)
            if calls:
                self._send(wire.encode(wire.Cancel(calls)), ordered=True)
            for message, on_link in goodbyes:
                self._tell(message, on_link)
            is_last = not self._open_spaces and not self.closed
            if is_last:
                goodbye = wire.encode(wire.Goodbye("the last space was closed"))
                self._send(goodbye, ordered=True)
                self.closed = True
        self._send_long()
        if is_last:
            await self._close()
        elif calls:
            self._free_reader()

    def _end_calls(self, owner: ChannelUser) -> list[int]:
        """Fail the calls of a space that is closed; return the numbers that the host knows."""
        self._open_spaces.pop(owner, None)
        ended = self._remove_unsent(owner)
        ended += self._outstanding.pop_all(lambda call: call.owner is owner)
        for call in ended:
            call.failed(SpaceClosed("the space was closed while it was waited for"))
        return [call.number for call in ended if call.number]

    def _remove_unsent(self, owner: ChannelUser) -> list[OutstandingCall]:
        found = [call for call in self._unsent if call.owner is owner]
        for call in found:
            self._unsent.remove(call)
        return found

    @abstractmethod
    async def _close(self) -> None:
        """Wait until the host has received the Goodbye and hangs up."""

    @abstractmethod
    def _free_reader(self) -> None:
        """Calls have ended without an answer: wake the thread that reads, if there is one."""

    @property
    def _has_handles(self) -> bool:
        """Whether a transaction, session or subscription would end with the link."""
        return any(owner.handles for owner in list(self._open_spaces))

    # Receiving

    def _receive(self, content: bytes) -> None:
        """Give a message to the caller that waits for it. LinkError if the link must be dropped."""
        message = wire.decode(content)
        kind = type(message)
        if kind is wire.Answer or kind is wire.Failure:
            self._progress += 1
            self._outstanding.resolve(message)  # type: ignore[arg-type]
        elif isinstance(message, wire.Goodbye):
            raise LinkError(message.reason or "it left")
        elif not isinstance(message, wire.Ping):
            raise BadFrame(f"a {kind.__name__} is nothing for a client")

    # Heartbeats

    def _tick(self) -> str:
        """Check the link, and send a Ping if nothing else was sent since the last tick. Returns
        the reason to drop the link, or an empty string."""
        sent, received = self._at_last_tick
        self._silent_ticks = self._silent_ticks + 1 if received == self._received else 0
        if self._silent_ticks >= SILENT_HEARTBEATS * TICKS:
            return "it is silent"
        progress, ticks = self._unanswered
        ticks = ticks + 1 if self._outstanding and progress == self._progress else 0
        self._unanswered = self._progress, ticks
        if ticks >= 2 * UNANSWERED_HEARTBEATS * TICKS:
            return "it answers no calls"
        if ticks == UNANSWERED_HEARTBEATS * TICKS:
            self._unless_locked(lambda: self._tell(wire.DescribeHost(0, brief=True)))
        if sent == self._sent:
            self._unless_locked(lambda: self._send(wire.encode(wire.Ping())))
        self._at_last_tick = self._sent, self._received
        return ""

    def _unless_locked(self, send: Callable[[], None]) -> None:
        """Run `send`, unless another thread holds the lock: it sends too, or is stuck in it."""
        send()

    # Links

    @abstractmethod
    def _dial_soon(self) -> None:
        """Begin to dial the host, unless that has begun."""

    @abstractmethod
    async def _dial(self, seconds: float) -> tuple[Any, wire.Welcome]:
        """A new link on which the spaces are open. Raises CannotReach, or the refusal of the
        host."""

    @abstractmethod
    def _use_line(self, line: Any, welcome: wire.Welcome) -> None:
        """Use a new link, see `_begin_link`, and send the calls that wait for it."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    async def _dial_first(self) -> tuple[Any, wire.Welcome]:
        """Dial a host that may not be up yet: see `_dial`."""
        seconds = self.config.first_seconds
        end = self.time() + seconds
        next_pause = self._pauses()
        while True:
            try:
                return await self._dial(DIAL_SECONDS)
            except CannotReach as error:
                cause = error.__cause__
                if not seconds or not isinstance(cause, OSError) or isinstance(cause, ssl.SSLError):
                    raise
                left = end - self.time()
                if left <= 0:
                    waited = f"{error.reason}; it was dialled for {seconds:g} seconds (reconnect=)"
                    raise CannotReach(self.peer, waited) from cause
            await self._pause(min(next_pause(), left))

    async def _dial_again(self) -> None:
        """Dial a lost host until it answers, refuses, or the reconnect time is over."""
        end = self.time() + self.config.reconnect
        next_pause = self._next_pause
        reason, error = "", None
        await self._pause(0.0 if self._dials_at_once else next_pause())
        while not self.closed and (left := end - self.time()) > 0:
            try:
                line, welcome = await self._dial(min(left, DIAL_SECONDS))
            except (CannotReach, LimitReached) as refusal:  # It may be less busy soon.
                reason = str(refusal)
            except TupeloError as refusal:
                error = refusal
                break
            else:
                self._use_line(line, welcome)
                return
            await self._pause(min(next_pause(), max(0.0, end - self.time())))
        with self._lock:
            self._give_up(error, reason)

    def _pauses(self) -> Callable[[], float]:
        """Exponential backoff with jitter: a function that returns the next pause in seconds."""
        pause = PAUSE_FIRST / 2

        def next_pause() -> float:
            nonlocal pause
            pause = min(PAUSE_MAX, pause * 2)
            return pause * self.chance.uniform(0.5, 1.0)

        return next_pause

    async def _shake_hands(self, line: Line) -> wire.Welcome:
        """Exchange Hello and Welcome on a new link, and open the spaces on it."""
        with self._lock:
            frames = self._hello()
        for content in frames:
            line.send(content)
        welcome = check_welcome(await line.first_message(), self.peer)
        if not 0 < welcome.heartbeat <= WAIT_MAX:
            raise CannotReach(self.peer, "it does not answer as a host does")
        with self._lock:
            opening = self._numbered_opens()
        for _, content in opening.values():
            line.send(content)
        while opening:
            messages = await line.messages()
            with self._lock:
                self._check_opened(opening, messages)
        return welcome

    def _hello(self) -> list[bytes]:
        """The first frames on a link. From now on no take is added to those reported in them."""
        self._hello_sent = True
        config = self.config
        hello = wire.Hello(
            wire.VERSION,
            "client",
            config.id,
            config.name,
            config.incarnation,
            resume=self.session,
            more=bool(self._to_report),
            message_max=wire.MESSAGE_MAX,
            level=wire.LEVEL,
            on_behalf=config.on_behalf,
        )
        details = [wire.HelloDetails([], self._to_report)] if self._to_report else []
        return [wire.encode(message) for message in (hello, *details)]

    def _numbered_opens(self) -> dict[int, tuple[ChannelUser, bytes]]:
        """The Open calls for a new link, by number: the owner and the frame of each."""
        frames = {}
        for owner, message in list(self._open_spaces.items()):
            self._number += 1
            message.call = self._number
            frames[self._number] = owner, wire.encode(message)
        return frames

    def _check_opened(
        self, opening: dict[int, tuple[ChannelUser, bytes]], messages: list[wire.Message]
    ) -> None:
        """Remove the answered calls from `opening`; fail the unsent calls of a refused space."""
        for message in messages:
            if isinstance(message, (wire.Answer, wire.Failure)):
                owner, _ = opening.pop(message.call, (None, b""))
                if owner is not None and isinstance(message, wire.Failure):
                    for call in self._remove_unsent(owner):
                        call.failed(read_failure(message))

    def _begin_link(self, welcome: wire.Welcome) -> None:
        """A new link is open: reset the state that belongs to one link."""
        self.session = welcome.session
        self.heartbeat = welcome.heartbeat
        self.message_max = wire.agreed_max(welcome.message_max)
        self.level = welcome.level
        self.given_up = None
        self._to_report.clear()
        self._hello_sent = False
        self._link_since = self.time()
        self._progress_at_start = self._progress
        self._unanswered = (self._progress, 0)
        self._silent_ticks = 0

    def _post_unsent(self) -> None:
        """A new link is in use: send the calls that wait for it."""
        waiting, self._unsent = self._unsent, deque()
        for call in waiting:
            try:
                self._post(call)
            except Exception as error:
                call.failed(error)

    # Losses

    def _lose_link(self, reason: str) -> None:
        """The link is lost. Calls that may be repeated wait for the next link, for at most the
        reconnect time; the others fail with PeerLost."""
        now = self.time()
        self.serial += 1
        calls = self._outstanding.pop_all()
        is_steady = now - self._link_since >= STEADY_SECONDS
        repeated = any(call.lost_since is not None for call in calls)
        has_progress = self._progress > self._progress_at_start
        self._dials_at_once = is_steady or (has_progress and not repeated)
        if self._dials_at_once:
            self._next_pause = self._pauses()
        self._hello_sent = False
        self._to_report.extend(self._confirmed)
        self._confirmed.clear()
        for call in reversed(calls):
            if call.lost_since is None or is_steady:
                call.lost_since = now
            in_time = now - call.lost_since <= self.config.reconnect
            if call.on_link is None and may_ask_again(call.message) and in_time:
                call.reset(now)
                self._unsent.appendleft(call)
            else:
                call.failed(self.loss(call.message, reason, sent=True))

    def _give_up(self, error: TupeloError | None, reason: str) -> None:
        """The host does not come back: fail the calls that wait for a link."""
        self._reason = reason
        self.given_up = error or PeerLost(self.peer, "reconnecting", reason)
        unsent, self._unsent = self._unsent, deque()
        for call in unsent:
            call.failed(error or self.loss(call.message, reason))

    def loss(self, message: Any, reason: str, *, sent: bool = False) -> PeerLost:
        """The error for a call whose link was lost; in doubt if it was sent and has effects."""
        in_doubt = sent and changes_something(message)
        return PeerLost(self.peer, name_of(message), reason, in_doubt=in_doubt)


def may_ask_again(message: Any) -> bool:
    """Whether this call may be repeated on another link, although the host may have executed it."""
    match message:
        case wire.Invoke(again=again):
            return again
        case wire.Get(txn=None, session=None) | wire.CountRequest(txn=None):
            return True
        case wire.Begin(parent=None, id=None) | wire.OpenSession(like=None):
            return True
        case wire.Subscribe(txn=None) | wire.Match(txn=None) | wire.DescribeHost() | wire.Open():
            return True
        case wire.Changes() | wire.ReadLog() | wire.Trim():
            return True
        case wire.ListPrepared() | wire.ListInHand() | wire.ListDelayed(cancel=False):
            return True
    return False


def changes_something(message: Any) -> bool:
    """Whether this call, once sent, may have an effect that outlives the link."""
    match message:
        case (
            wire.Write(txn=None) | wire.Renew() | wire.CancelLease() | wire.ListDelayed(cancel=True)
        ):
            return True
        case wire.End(how="commit" | "prepare"):
            return True
        case wire.Invoke(again=again):
            return not again
    return False


def name_of(message: Any) -> str:
    """The operation, as error messages name it."""
    match message:
        case wire.Get(take=take):
            return "a take" if take else "a read"
        case wire.End(how=how):
            return {"state": "a question"}.get(how, f"a {how}")
        case wire.Write():
            return "a write"
        case wire.CountRequest():
            return "a count"
        case wire.Next() | wire.Subscribe() | wire.State(thing="subscription"):
            return "a subscription"
        case wire.Invoke(service=service, method=method):
            return f"{service} {method}"
        case wire.DescribeHost():
            return "a question"
    return "an operation"


# Forks

_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _detach_all() -> None:
    for channel in list(_channels):
        channel.detach()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_detach_all)
