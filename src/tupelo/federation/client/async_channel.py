"""The channel of the async client, on the running event loop: callers await futures."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any, Self

from tupelo.errors import CannotReach, LinkError
from tupelo.federation.client.channel import (
    PARTING_SECONDS,
    TICKS,
    Channel,
    ConnectionConfig,
    OutstandingCall,
)
from tupelo.federation.links import wire
from tupelo.federation.links.link import Link, Network
from tupelo.space.tasks import Tasks

UNSENT_MAX = wire.FRAME_MAX
"""With more unsent bytes than this, callers wait before they send more."""


class AsyncLine:
    """One link, and the `Ear` that its network calls. Frames wait here until a channel is attached,
    and then go to the channel."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.gone = asyncio.Event()
        self._frames: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._channel: AsyncChannel | None = None
        self._reason: str | None = None  # of the loss

    def send(self, content: bytes, *, ordered: bool = False) -> None:
        self.link.send(content, overtake=not ordered)
        if self.link.waiting - self.link.in_pieces > UNSENT_MAX:
            self.may_send.clear()

    # Called by the link

    def heard(self, contents: list[bytes]) -> None:
        if self._channel is not None:
            self._channel.frames_came(self, contents)
        else:
            self._frames.extend(contents)
            self._changed.set()

    def eased(self) -> None:
        self.may_send.set()

    def lost(self, reason: str) -> None:
        self._reason = reason
        self.gone.set()
        self.may_send.set()
        self._changed.set()
        if self._channel is not None:
            self._channel.line_lost(self, reason)

    # Called by the channel

    async def first_message(self) -> wire.Message:
        message = wire.decode_first(await self._next_frame())
        if isinstance(message, wire.Welcome):
            self.link.admit(wire.agreed_max(message.message_max))
        return message

    async def messages(self) -> list[wire.Message]:
        return [wire.decode(await self._next_frame())]

    async def _next_frame(self) -> bytes:
        while not self._frames:
            if self._reason is not None:
                raise LinkError(self._reason)
            self._changed.clear()
            await self._changed.wait()
        return self._frames.popleft()

    def attach(self, channel: AsyncChannel) -> None:
        """Give the frames, and the loss, to this channel from now on."""
        self._channel = channel
        if self._frames:
            channel.frames_came(self, list(self._frames))
        if self._reason is not None:
            channel.line_lost(self, self._reason)


class AsyncOutstandingCall(OutstandingCall):
    """A call that a task awaits; its signal is a future."""

    __slots__ = ()

    def wake(self) -> None:
        if self.signal is not None and not self.signal.done():
            self.signal.set_result(None)


class AsyncChannel(Channel):
    """A conversation of many tasks of one event loop with one host."""

    is_async = True
    _call_type = AsyncOutstandingCall
    _lock = _turn = nullcontext()
    _line: AsyncLine | None

    def __init__(self, config: ConnectionConfig, chance: random.Random, network: Network) -> None:
        super().__init__(config, chance)
        self._loop = asyncio.get_running_loop()
        self._network = network
        self._tasks = Tasks()
        self._dialling: asyncio.Task[None] | None = None
        self._next_tick: asyncio.TimerHandle | None = None
        self._to_confirm: list[int] = []

    @classmethod
    async def made(cls, config: ConnectionConfig, chance: random.Random, network: Network) -> Self:
        """Dial the host. Raises CannotReach, or the refusal of the host."""
        channel = cls(config, chance, network)
        channel._use_line(*await channel._dial_first())
        return channel

    # Calls

    async def run(self, call: OutstandingCall) -> None:
        if call.done:
            call.reset(self._loop.time())
        while self._line is not None and not self._line.may_send.is_set():
            await self._line.may_send.wait()
        call.signal = self._loop.create_future()
        self._post(call)
        try:
            await call.signal
        except BaseException:  # cancelled, perhaps just when the answer came
            self.cancel(call)
            raise
        if call.error is not None:
            raise call.error

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._tasks.start(work()).set_name(name)

    def time(self) -> float:
        return self._loop.time()

    def detach(self) -> None:
        super().detach()
        self._line = self._dialling = self._next_tick = None  # Their loop runs in the parent.

    # Sending and receiving

    def _send(self, content: bytes, *, ordered: bool = False) -> None:
        if self._to_confirm:
            self._send_confirmations()
        if self._line is not None:
            self._sent += 1
            self._line.send(content, ordered=ordered)

    def _send_long(self) -> None:
        """The link sends them."""

    def _send_confirmation(self, number: int) -> None:
        """Takes that reach their tasks in one turn of the loop are confirmed in one message,
        before any other message is sent."""
        if not self._to_confirm:
            self._loop.call_soon(self._send_confirmations)
        self._to_confirm.append(number)

    def _send_confirmations(self) -> None:
        if self._to_confirm:
            calls, self._to_confirm = self._to_confirm, []
            self._send(wire.encode(wire.Confirm(calls)))

    def frames_came(self, line: AsyncLine, contents: list[bytes]) -> None:
        """The link has received these frames; none, if it was a part of a frame."""
        self._received += 1
        if not contents:
            self._progress += 1
        try:
            for content in contents:
                self._receive(content)
        except LinkError as error:
            self._drop(line, str(error))

    def _free_reader(self) -> None:
        """No task reads for others."""

    # Losing and dialling

    def _drop(self, line: AsyncLine, reason: str) -> None:
        line.link.abort()
        self.line_lost(line, reason)

    def line_lost(self, line: AsyncLine, reason: str) -> None:
        if self._line is not line:
            return
        self._line = None
        self._to_confirm.clear()  # They are reported with the next Hello.
        if self._next_tick is not None:
            self._next_tick.cancel()
        self._lose_link(reason)
        if self.closed or not self.config.reconnect:
            self._give_up(None, reason)
        else:
            self._dial_soon()

    def _dial_soon(self) -> None:
        if self._dialling is None or self._dialling.done():
            self._dialling = self._loop.create_task(self._dial_again(), name="tupelo-channel")

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _use_line(self, line: AsyncLine, welcome: wire.Welcome) -> None:
        self._begin_link(welcome)
        self._line = line
        self._tick_later()
        self._post_unsent()
        line.attach(self)

    def _tick_later(self) -> None:
        self._next_tick = self._loop.call_later(self.heartbeat / TICKS, self._check_line)

    def _check_line(self) -> None:
        line = self._line
        if line is None:
            return
        reason = self._tick()
        if reason:
            self._drop(line, reason)
        else:
            self._tick_later()

    async def _dial(self, seconds: float) -> tuple[AsyncLine, wire.Welcome]:
        lines: list[AsyncLine] = []

        def answer(link: Link) -> AsyncLine:
            lines.append(AsyncLine(link))
            return lines[0]

        try:
            async with asyncio.timeout(seconds):
                link = await self._network.dial(self.peer, answer)
                if link.identity is not None:
                    self.config.recognise(link.identity)
                return lines[0], await self._shake_hands(lines[0])
        except BaseException as error:
            for line in lines:
                line.link.abort()
            if isinstance(error, CannotReach) or not isinstance(error, (OSError, LinkError)):
                raise
            raise CannotReach(self.peer, str(error) or "it does not answer") from error

    async def _close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        line = self._line
        if line is None:
            self._give_up(None, "the channel was closed")
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PARTING_SECONDS):
                    await line.gone.wait()
        finally:
            self._drop(line, "the channel was closed")
