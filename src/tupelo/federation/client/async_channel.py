"""A channel for tasks, in the running loop: who waits for an answer awaits a future."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

from tupelo.errors import CannotReach, LimitReached, LinkError, TupeloError
from tupelo.federation.client.channel import (
    DIAL_SECONDS,
    PARTING_SECONDS,
    SILENT_HEARTBEATS,
    TICKS,
    Channel,
    ChannelUser,
    ConnectionConfig,
    OutstandingCall,
)
from tupelo.federation.links import wire
from tupelo.federation.links.link import Link, Network
from tupelo.federation.links.wire import encode

UNSENT_MAX = wire.FRAME_MAX
"""With more bytes than this unsent, callers wait before they send more."""


class AsyncLine:
    """One link. At first it is asked for what comes; then it tells its channel."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.free = asyncio.Event()  # to send more
        self.free.set()
        self._come: deque[bytes] = deque()
        self._something = asyncio.Event()
        self._channel: AsyncChannel | None = None
        self.reason: str | None = None
        self.gone = asyncio.Event()

    def send(self, content: bytes, *, ordered: bool = False) -> None:
        self.link.send(content, overtake=not ordered)
        if self.link.waiting - self.link.in_pieces > UNSENT_MAX:
            self.free.clear()

    # Ear

    def heard(self, contents: list[bytes]) -> None:
        if self._channel is not None:
            self._channel.heard(self, contents)
        else:
            self._come.extend(contents)
            self._something.set()

    def eased(self) -> None:
        self.free.set()

    def lost(self, reason: str) -> None:
        self.reason = reason
        self.gone.set()
        self.free.set()
        self._something.set()
        if self._channel is not None:
            self._channel.lost(self, reason)

    # Until it tells its channel

    async def word(self) -> wire.Message:
        """The next message."""
        return wire.decode(await self.content())

    async def content(self) -> bytes:
        """The next frame."""
        while not self._come:
            if self.reason is not None:
                raise LinkError(self.reason)
            self._something.clear()
            await self._something.wait()
        return self._come.popleft()

    def tell(self, channel: AsyncChannel) -> None:
        """From now on the channel is told what comes, and of the loss."""
        self._channel = channel
        if self._come:
            channel.heard(self, list(self._come))
        if self.reason is not None:
            channel.lost(self, self.reason)


class AsyncOutstandingCall(OutstandingCall):
    """A call that a task awaits; its signal is a future."""

    __slots__ = ()

    def wake(self) -> None:
        if self.signal is not None and not self.signal.done():
            self.signal.set_result(None)


class AsyncChannel(Channel):
    """A conversation of many tasks of one loop with one host."""

    is_async = True

    def __init__(self, config: ConnectionConfig, chance: random.Random, network: Network) -> None:
        super().__init__(config, chance)
        self._loop = asyncio.get_running_loop()
        self._network = network
        self._line: AsyncLine | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dialling: asyncio.Task[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._seen = (0, 0)  # what had been sent and heard at the last tick
        self._silence = 0
        self._confirming: list[int] = []

    @classmethod
    async def made(cls, config: ConnectionConfig, chance: random.Random, network: Network) -> Self:
        channel = cls(config, chance, network)
        channel._go_on(*await channel._dial(DIAL_SECONDS))
        return channel

    @property
    def awaits_link(self) -> bool:
        return self._line is None

    # What a space uses

    def asking(
        self, message: Any, owner: ChannelUser, within: int | None = None
    ) -> OutstandingCall:
        asked = AsyncOutstandingCall(message, owner, within, None)
        if asked.wait:
            asked.since = self._loop.time()
        return asked

    async def run(self, asked: OutstandingCall) -> None:
        if asked.done:
            asked.ask_again(self._loop.time())
        while self._line is not None and not self._line.free.is_set():
            await self._line.free.wait()
        asked.signal = self._loop.create_future()
        self._post(asked)
        try:
            await asked.signal
        except BaseException:  # cancelled, perhaps just when the answer came
            self.cancel(asked)
            raise
        if asked.error is not None:
            raise asked.error

    def confirm(self, asked: OutstandingCall) -> bool:
        answer = self.settle(asked)
        if answer:
            if not self._confirming:
                self._loop.call_soon(self._say_confirmed)
            self._confirming.append(asked.number)
        return answer is not False

    def _say_confirmed(self) -> None:
        """What reaches its users in one go is confirmed in one go, before more is asked."""
        if self._confirming:
            calls, self._confirming = self._confirming, []
            self._send(encode(wire.Confirm(calls)))

    def cancel(self, asked: OutstandingCall) -> None:
        if self.withdraw(asked):
            self._send(encode(wire.Cancel([asked.number])), ordered=True)
        asked.number = 0

    async def leave(self, owner: ChannelUser, goodbyes: list[Any]) -> None:
        calls = self.closing(owner)
        if calls:
            self._send(encode(wire.Cancel(calls)), ordered=True)
        for message, within in goodbyes:
            self.tell(message, within)
        if not self._opened and not self.closed:
            await self._close()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        task = self._loop.create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def time(self) -> float:
        return self._loop.time()

    def let_go(self) -> None:
        super().let_go()
        self._line = self._dialling = self._tick = None  # They are of a loop that does not run.

    # Sending and receiving

    def _post(self, asked: OutstandingCall) -> None:
        self.require_link_of(asked)
        if self._line is None:
            self.queue(asked)
            self._redial()
        else:
            self._send(self.number(asked))

    def _send(self, content: bytes, *, ordered: bool = False) -> None:
        if self._confirming:
            self._say_confirmed()
        if self._line is not None:
            self._sent += 1
            self._line.send(content, ordered=ordered)

    def heard(self, line: AsyncLine, contents: list[bytes]) -> None:
        self._heard += 1
        if not contents:  # a part of a frame
            self._progress += 1
        try:
            for content in contents:
                self.hear(content)
        except LinkError as error:
            line.link.abort()
            self.lost(line, str(error))

    # Losing and dialling

    def lost(self, line: AsyncLine, reason: str) -> None:
        if self._line is not line:
            return
        self._line = None
        self._confirming.clear()  # The next Hello says it.
        if self._tick is not None:
            self._tick.cancel()
        self.lose(reason, self._loop.time())
        if self.closed or not self.config.reconnect:
            self.give_up(None, reason)
        else:
            self._redial()

    def _beat(self) -> None:
        """Say that we are still here, and notice if the host is not."""
        line = self._line
        if line is None:
            return
        sent, heard = self._seen
        self._silence = self._silence + 1 if heard == self._heard else 0
        if self._silence >= SILENT_HEARTBEATS * TICKS:
            line.link.abort()
            self.lost(line, "it is silent")
            return
        if not self.answers():
            line.link.abort()
            self.lost(line, "it answers no calls")
            return
        if sent == self._sent:
            self._send(encode(wire.Ping()))
        self._seen = self._sent, self._heard
        self._tick = self._loop.call_later(self.heartbeat / TICKS, self._beat)

    def _redial(self) -> None:
        if self._dialling is None or self._dialling.done():
            self._dialling = self._loop.create_task(self._dial_again(), name="tupelo-channel")

    async def _dial_again(self) -> None:
        now = self._loop.time
        end = now() + self.config.reconnect
        pause = self._next_pause
        reason, error = "", None
        await asyncio.sleep(self.first_pause())
        while (left := end - now()) > 0:
            try:
                self._go_on(*await self._dial(min(left, DIAL_SECONDS)))
                return
            except (CannotReach, LimitReached) as refusal:  # It may be less busy soon.
                reason = str(refusal)
            except TupeloError as refusal:
                error = refusal
                break
            await asyncio.sleep(min(pause(), max(0.0, end - now())))
        self.give_up(error, reason)

    def _go_on(self, line: AsyncLine, welcome: wire.Welcome) -> None:
        """A new link stands: what waits for it is sent."""
        self.begin(welcome)
        self._line = line
        self._silence = 0
        self._tick = self._loop.call_later(self.heartbeat / TICKS, self._beat)
        self._post_unsent()
        line.tell(self)

    async def _dial(self, seconds: float) -> tuple[AsyncLine, wire.Welcome]:
        """A link to the host, on which the spaces are open. CannotReach, or why it refuses us."""
        lines: list[AsyncLine] = []

        def answer(link: Link) -> AsyncLine:
            lines.append(AsyncLine(link))
            return lines[0]

        try:
            async with asyncio.timeout(seconds):
                link = await self._network.dial(self.peer, answer)
                if link.identity is not None:
                    self.config.recognise(link.identity)
                line = lines[0]
                for content in self.greeting():
                    line.send(content)
                welcome = self.welcomed(wire.decode_first(await line.content()))
                link.admit(wire.agreed_max(welcome.message_max))
                await self._reopen(line)
                return line, welcome
        except BaseException as error:
            for line in lines:
                line.link.abort()
            if isinstance(error, CannotReach) or not isinstance(error, (OSError, LinkError)):
                raise
            raise CannotReach(self.peer, str(error) or "it does not answer") from error

    async def _reopen(self, line: AsyncLine) -> None:
        opening = self.reopening()
        for _, content in opening.values():
            line.send(content)
        while opening:
            self.reopened(opening, [await line.word()])

    async def _close(self) -> None:
        """Wait until the host has heard our last word and hangs up."""
        self.closed = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        line = self._line
        if line is None:
            self.give_up(None, "the channel was closed")
            return
        self._send(encode(wire.Goodbye("the last space was closed")), ordered=True)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PARTING_SECONDS):
                    await line.gone.wait()
        finally:
            line.link.abort()
            self.lost(line, "the channel was closed")
