"""Linda, with the names of Gelernter's coordination language.

| Linda                | Tupelo                                                        |
| -------------------- | ------------------------------------------------------------- |
| tuple space          | space                                                         |
| tuple, anti-tuple    | entry, template (formals are types, actuals are values)       |
| out(t)               | write(t)                                                      |
| in(p), rd(p)         | take(p), read(p), waiting for ever                            |
| inp(p), rdp(p)       | take(p, wait=0), read(p, wait=0): None if there is none       |
| ing(p), rdg(p)       | take_all(p), read_all(p)                                      |
| eval(t)              | its live fields are computed elsewhere, then write(t)         |
| collect(ts, p)       | take_all(p), then ts.write_all: moved, and counted            |
| copy_collect(ts, p)  | read_all(p), then ts.write_all: copied, and counted           |
| count, delete (TSpaces)   | count(p); take(p, wait=0), and say only whether it was there |
| exchange (TSpaces' rhonda)| two offers of the same types meet, and are swapped in one step |

LIME (section 3.1) leaves open which of several matches is chosen; here it is the oldest.

A TupleSpace works on any kind of space: of this program, at a host elsewhere (`tupelo.connect`),
spanning hosts (`host.space`), or at one host (`.here`). On an async space its operations are
awaited. Tuples are exchanged within one place: between users of a space of one program, or between
clients of one host and its program (with `.here`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import reprlib
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload
from uuid import uuid4
from weakref import WeakKeyDictionary

from tupelo.errors import BadArgument, EvalFailed, TupeloError
from tupelo.federation.client.services import invoke
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.services import Caller, HandOver
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_any, read_any
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.space import asynchronous
from tupelo.space.blocking import Space
from tupelo.space.dual_api import (
    Async,
    Blocking,
    Closing,
    DoorT,
    OnDoor,
    dual_api,
    either_many,
    either_one,
    maybe_await,
    run_coroutine,
)
from tupelo.space.port import Port, port_of
from tupelo.space.protocol import AsyncSpaceLike, SpaceLike, is_space
from tupelo.space.query import check_wait
from tupelo.space.reaction import Step
from tupelo.values.kind import entry

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

__all__ = ["EvalError", "LiveTuple", "TupleSpace", "live"]

Fields = tuple[Any, ...]


@entry("tupelo.linda.EvalError")
@dataclass
class EvalError:
    """The entry that `eval` writes if a live tuple could not be computed: the tuple, the class of
    the error, and its text."""

    tuple: str | None = None
    error: str | None = None
    detail: str | None = None


def live(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Live:
    """A field of a live tuple, computed by a call of this function:
    `space.eval(("sum", live(add, 2, 3)))`."""
    if not callable(function):
        raise BadArgument("function", "a function", function)
    return Live(partial(function, *args, **kwargs))


@dataclass(frozen=True)
class Live:
    """A field of a live tuple; made by `live`."""

    compute: partial[Any]

    def __repr__(self) -> str:
        function = self.compute.func
        return f"live({getattr(function, '__qualname__', function)})"


class LiveTuple:
    """A tuple that `eval` is computing. It becomes an ordinary tuple, or an EvalError."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async
        self._outcome: Future[Fields] = Future()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<LiveTuple, {'done' if self.done else 'being computed'}>"

    @property
    def done(self) -> bool:
        """Whether the tuple, or an EvalError, was written."""
        return self._outcome.done()

    @dual_api
    async def result(self, *, wait: float | None = None) -> Fields:
        """The tuple that was written. EvalFailed if it could not be computed or written;
        TimeoutError if it is not there within `wait` seconds."""
        if not self.is_async:
            return self._outcome.result(timeout=wait)
        outcome = asyncio.wrap_future(self._outcome)
        return await asyncio.wait_for(asyncio.shield(outcome), wait)


AnySpace = SpaceLike | AsyncSpaceLike
EvalOn = Literal["threads", "processes"]


class TupleSpace(Closing, OnDoor[DoorT]):
    """A Linda tuple space on a given space of any kind, or, with a name, on a new one in memory. On
    an async space its operations are awaited.

    `eval_on` says where live tuples are computed: on threads of this program, or in processes,
    which need functions that can be imported.
    """

    @overload
    def __init__(
        self: TupleSpace[Blocking], space: SpaceLike | str = "linda", *, eval_on: EvalOn = ...
    ) -> None: ...

    @overload
    def __init__(
        self: TupleSpace[Async], space: AsyncSpaceLike, *, eval_on: EvalOn = ...
    ) -> None: ...

    def __init__(self, space: AnySpace | str = "linda", *, eval_on: EvalOn = "threads") -> None:
        if eval_on not in ("threads", "processes"):
            raise BadArgument("eval_on", '"threads" or "processes"', eval_on)
        if not isinstance(space, str) and not is_space(space):
            raise BadArgument("space", "a space of any kind, or a name", space)
        self.space: Any = Space(space) if isinstance(space, str) else space
        self.is_async = isinstance(space, asynchronous.Space) or bool(
            getattr(space, "is_async", False)
        )
        self._eval_on = eval_on
        self._processes: ProcessPoolExecutor | None = None

    @dual_api
    async def out(self, fields: Fields) -> None:
        """Add a tuple with these `fields`."""
        await maybe_await(self.space.write(fields))

    @either_one
    def in_(self, template: object) -> Any:
        """Remove a matching tuple; wait for one."""
        return self.space.take(template)

    @either_one
    def rd(self, template: object) -> Any:
        """Copy a matching tuple; wait for one."""
        return self.space.read(template)

    @either_one
    def inp(self, template: object) -> Any:
        """Remove a matching tuple, or None."""
        return self.space.take(template, wait=0)

    @either_one
    def rdp(self, template: object) -> Any:
        """Copy a matching tuple, or None."""
        return self.space.read(template, wait=0)

    @either_many
    def ing(self, template: object) -> Any:
        """Remove all matching tuples, in one step: a list."""
        return self.space.take_all(template)

    @either_many
    def rdg(self, template: object) -> Any:
        """Copy all matching tuples, in one step: a list."""
        return self.space.read_all(template)

    @dual_api
    async def collect(self, destination: TupleSpace[Any], template: object) -> int:
        """Move all matching tuples to another space; return how many.

        If the destination refuses them, they stay here.
        """
        target = self._door(destination)
        txn = await maybe_await(self.space.transaction())
        try:
            found = await maybe_await(self.space.take_all(template, txn=txn))
            inside = txn if target.space is self.space else None
            await maybe_await(target.space.write_all(found, txn=inside))
        except BaseException:
            await maybe_await(txn.abort())
            raise
        await maybe_await(txn.commit())
        return len(found)

    @dual_api
    async def copy_collect(self, destination: TupleSpace[Any], template: object) -> int:
        """Copy all matching tuples to the `destination`, another space; return how many."""
        target = self._door(destination)
        found = await maybe_await(self.space.read_all(template))
        await maybe_await(target.space.write_all(found))
        return len(found)

    def _door(self, destination: object) -> TupleSpace[Any]:
        if not isinstance(destination, TupleSpace) or destination.is_async != self.is_async:
            raise BadArgument("destination", "a TupleSpace of the same door", destination)
        return destination

    def count(self, template: object) -> Any:
        """The number of matching tuples."""
        return self.space.count(template)

    @dual_api
    async def delete(self, template: object) -> bool:
        """Remove a matching tuple; return whether there was one."""
        return await maybe_await(self.space.take(template, wait=0)) is not None

    # Live tuples

    def eval(self, fields: Fields) -> LiveTuple:
        """Compute those of the `fields` that were made by `live`, each on its own thread or in a
        process, and then `out` the tuple. Returns at once. If a field fails, an EvalError is
        written instead, and `result()` of the LiveTuple raises EvalFailed.
        """
        if type(fields) is not tuple:
            raise BadArgument("fields", "a tuple, with live fields", fields)
        outcome = LiveTuple(self.is_async)
        running = {
            i: self._start(field.compute)
            for i, field in enumerate(fields)
            if isinstance(field, Live)
        }
        finish = partial(self._finish, fields, running, outcome)
        if self.is_async:
            outcome._task = asyncio.ensure_future(finish())
        else:
            threading.Thread(
                target=lambda: run_coroutine(finish()), name="tupelo-eval", daemon=True
            ).start()
        return outcome

    def _start(self, compute: partial[Any]) -> Future[Any]:
        if self._eval_on == "processes":
            if self._processes is None:
                # A forked child would inherit locks that threads of this program hold.
                context = multiprocessing.get_context("spawn")
                self._processes = ProcessPoolExecutor(mp_context=context)
            try:
                return self._processes.submit(compute)
            except BrokenProcessPool:  # A child has died: start new ones.
                self._processes = None
                return self._start(compute)
        # A thread for each, not a pool: live tuples may wait for one another in the space.
        future: Future[Any] = Future()
        threading.Thread(
            target=_run, args=(compute, future), name="tupelo-live", daemon=True
        ).start()
        return future

    async def _finish(
        self, fields: Fields, running: dict[int, Future[Any]], outcome: LiveTuple
    ) -> None:
        try:
            computed = list(fields)
            for i, future in running.items():
                computed[i] = (
                    await asyncio.wrap_future(future) if self.is_async else future.result()
                )
            await maybe_await(self.space.write(tuple(computed)))
        except BaseException as error:
            await self._fail(fields, error, outcome)
        else:
            outcome._outcome.set_result(tuple(computed))

    async def _fail(self, fields: Fields, error: BaseException, outcome: LiveTuple) -> None:
        reason = f"{type(error).__name__}: {error}"
        what = reprlib.repr(fields)
        failure = EvalFailed(f"the live tuple {what} failed: {reason}")
        failure.__cause__ = error
        detail = "".join(traceback.format_exception(error))
        with suppress(TupeloError):  # If the space is closed, `result()` still raises.
            await maybe_await(self.space.write(EvalError(what, reason, detail)))
        outcome._outcome.set_exception(failure)

    # Exchange

    @dual_api
    async def exchange(self, fields: Fields, *, wait: float | None = None) -> Fields | None:
        """Offer a tuple with these `fields`, and get a tuple of the same types that another program
        offers: both are swapped in one step. None if there is no such offer within `wait` seconds;
        then this offer is withdrawn. A client exchanges with clients of the same host, and with
        programs there that use `.here`.
        """
        if type(fields) is not tuple:
            raise BadArgument("fields", "a tuple", fields)
        check_wait(wait)
        if isinstance(self.space, FederatedSpace):
            raise BadArgument("space", "at one place for an exchange: give its .here", self.space)
        if not isinstance(self.space, (Space, asynchronous.Space, RemoteSpace)):
            raise BadArgument("space", "in this program or at a host for an exchange", self.space)
        await maybe_await(self.space.count(fields))  # refuses what is no entry, and a closed space
        if isinstance(self.space, RemoteSpace):
            offered = encode_any(fields, "fields")
            name = self.space.name
            answered = await invoke(
                self.space, *("linda", "exchange", offered), about=name, wait=wait, handed_over=True
            )
            return None if answered is None else tuple(read_any(answered))
        offers = _offers_of(port_of(self.space))
        return await _exchange(
            asynchronous.Space(offers) if self.is_async else offers, fields, wait
        )

    @dual_api
    async def close(self) -> None:
        """Close the space and wait for the processes of `eval`. Waiting calls raise SpaceClosed. A
        space of `host.space` stays open at its host."""
        if isinstance(self.space, (Space, asynchronous.Space)):
            with _offers_lock:
                offers = _offer_spaces.pop(port_of(self.space), None)
            if offers is not None:
                offers.close()
        if self._processes is not None:
            self._processes.shutdown()
        await maybe_await(self.space.close())

    def __repr__(self) -> str:
        return f"<TupleSpace on {self.space!r}>"


async def _exchange(offers: Any, fields: Fields, wait: float | None) -> Fields | None:
    """Swap a tuple in a space of offers, blocking or async; None if no other offer came in time."""
    mine = uuid4()
    offer = ("offer", tuple([type(field).__qualname__ for field in fields]), mine, tuple)
    answer = ("answer", mine, tuple)
    try:
        await maybe_await(offers.write((*offer[:3], fields)))
        answered = await maybe_await(offers.take(answer, wait=wait))
    except TupeloError:  # nothing was offered, or the space was closed
        raise
    except BaseException:
        # Interrupted: withdraw. If the swap has just happened, its tuple is offered again.
        if await maybe_await(offers.take(offer, wait=0)) is None:
            answered = await maybe_await(offers.take(answer, wait=0))
            if answered is not None:
                await maybe_await(_offer_again(offers, answered[2]))
        raise
    if answered is None:
        withdrawn = await maybe_await(offers.take(offer, wait=0))
        answered = None if withdrawn else await maybe_await(offers.take(answer, wait=0))
    return None if answered is None else answered[2]


def _offer_again(offers: Any, fields: Fields) -> Any:
    """Offer a tuple again: the program that got it in a swap has vanished."""
    signature = tuple([type(field).__qualname__ for field in fields])
    return offers.write(("offer", signature, uuid4(), fields))


class Exchanges:
    """The service "linda" of a host, by which its clients exchange tuples."""

    def __init__(self, core: HostCore) -> None:
        pass

    async def invoke(self, caller: Caller, message: wire.Invoke) -> Any:
        if message.method != "exchange" or len(message.args) != 1:
            raise BadArgument("method", "exchange, with a tuple", message.method)
        hosted = caller.hosted(message.space, "take")
        caller.hosted(message.space, "write")
        offers = _offers_of(hosted.port)
        fields = tuple(read_any(message.args[0]))
        answered = await _exchange(asynchronous.Space(offers), fields, message.wait)
        if answered is None:
            return None
        give_back = partial(_offer_again, offers, answered)
        return HandOver(encode_any(answered), None, give_back)

    def left(self, caller: Caller) -> None:
        """Nothing: a client holds nothing but its calls, which are cancelled."""


_offer_spaces: WeakKeyDictionary[Port, Space] = WeakKeyDictionary()
_offers_lock = threading.Lock()


def _offers_of(port: Port) -> Space:
    """The space of the offers for exchange in a space; a separate one, so that reads and takes of
    programs do not match offers."""
    with _offers_lock:
        offers = _offer_spaces.get(port)
        if offers is None:
            offers = _offer_spaces[port] = Space(f"{port.name}.exchange")
            offers.react(("offer", tuple, object, tuple), _swap)
        return offers


def _swap(offer: Fields, step: Step) -> None:
    """The reaction: a new offer meets the oldest other one of its kind, in the same step."""
    _, signature, mine, my_fields = offer
    for _, _, other, other_fields in step.read_all(("offer", signature, object, tuple)):
        if other != mine:
            step.take(("offer", signature, mine, tuple))
            step.take(("offer", signature, other, tuple))
            step.write(("answer", mine, other_fields))
            step.write(("answer", other, my_fields))
            return


def _run(compute: partial[Any], future: Future[Any]) -> None:
    try:
        future.set_result(compute())
    except BaseException as error:
        future.set_exception(error)
