"""Linda: the door with the words of Gelernter's coordination language.

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
"""

from __future__ import annotations

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
from typing import Any, Literal, Self
from uuid import uuid4
from weakref import WeakKeyDictionary

from tupelo.errors import BadArgument, EvalFailed, TupeloError
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.space.blocking import Space
from tupelo.space.reaction import Step
from tupelo.values.kind import entry

Fields = tuple[Any, ...]


@entry("tupelo.linda.EvalError")
@dataclass
class EvalError:
    """What `eval` leaves in the space when a live tuple could not be computed."""

    tuple: str | None = None
    error: str | None = None
    detail: str | None = None


def live(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Live:
    """A field that is to be computed: `space.eval(("sum", live(add, 2, 3)))`."""
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
    """A tuple that is being computed. It becomes an ordinary tuple, or an EvalError."""

    def __init__(self) -> None:
        self._outcome: Future[Fields] = Future()

    @property
    def done(self) -> bool:
        return self._outcome.done()

    def result(self, *, wait: float | None = None) -> Fields:
        """The tuple that was written. EvalFailed if it could not be; TimeoutError if not yet."""
        return self._outcome.result(timeout=wait)


AnySpace = Space | RemoteSpace | FederatedSpace


class TupleSpace:
    """A Linda tuple space: a door to a space that is given, here or at a host, or to one of its own
    in memory.

    `eval_on` says where live tuples are computed: on threads of this program, or on processes,
    which need functions that can be imported.
    """

    def __init__(
        self,
        space: AnySpace | str = "linda",
        *,
        eval_on: Literal["threads", "processes"] = "threads",
    ) -> None:
        if eval_on not in ("threads", "processes"):
            raise BadArgument("eval_on", '"threads" or "processes"', eval_on)
        if isinstance(space, (RemoteSpace, FederatedSpace)) and space.is_async:
            raise BadArgument("space", "one that is not async", space)
        if not isinstance(space, (Space, RemoteSpace, FederatedSpace, str)):
            raise BadArgument("space", "a space, here or at a host, or a name", space)
        self.space: AnySpace = Space(space) if isinstance(space, str) else space
        self._eval_on = eval_on
        self._processes: ProcessPoolExecutor | None = None

    def out(self, fields: Fields) -> None:
        """Add a tuple."""
        self.space.write(fields)

    def in_(self, template: object) -> Any:
        """Remove a matching tuple; wait for one."""
        return self.space.take(template)

    def rd(self, template: object) -> Any:
        """Copy a matching tuple; wait for one."""
        return self.space.read(template)

    def inp(self, template: object) -> Any:
        """Remove a matching tuple, or None."""
        return self.space.take(template, wait=0)

    def rdp(self, template: object) -> Any:
        """Copy a matching tuple, or None."""
        return self.space.read(template, wait=0)

    def ing(self, template: object) -> list[Any]:
        """Remove all matching tuples, in one step."""
        return self.space.take_all(template)

    def rdg(self, template: object) -> list[Any]:
        """Copy all matching tuples, in one step."""
        return self.space.read_all(template)

    def collect(self, destination: TupleSpace, template: object) -> int:
        """Move all matching tuples to another space; how many were moved.

        If the destination refuses them, they stay here.
        """
        target = _door(destination)
        with self.space.transaction() as txn:
            found = self.space.take_all(template, txn=txn)
            target.space.write_all(found, txn=txn if target.space is self.space else None)
        return len(found)

    def copy_collect(self, destination: TupleSpace, template: object) -> int:
        """Copy all matching tuples to another space; how many were copied."""
        target = _door(destination)
        found = self.space.read_all(template)
        target.space.write_all(found)
        return len(found)

    def count(self, template: object) -> int:
        """How many tuples match."""
        return self.space.count(template)

    def delete(self, template: object) -> bool:
        """Remove a matching tuple without getting it; was there one?"""
        return self.space.take(template, wait=0) is not None

    # Live tuples

    def eval(self, fields: Fields) -> LiveTuple:
        """Add a live tuple: fields made by `live` are computed, each on its own; then it is out.

        If one fails, an EvalError with the reason is written instead, and `result()` raises.
        """
        if type(fields) is not tuple:
            raise BadArgument("fields", "a tuple, with live fields", fields)
        outcome = LiveTuple()
        running = {
            i: self._start(field.compute)
            for i, field in enumerate(fields)
            if isinstance(field, Live)
        }
        threading.Thread(
            target=self._finish, args=(fields, running, outcome), name="tupelo-eval", daemon=True
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
            except BrokenProcessPool:  # A child has died; the next one starts afresh.
                self._processes = None
                return self._start(compute)
        # A thread for each, not a pool: live tuples may wait for one another in the space.
        future: Future[Any] = Future()
        threading.Thread(
            target=_run, args=(compute, future), name="tupelo-live", daemon=True
        ).start()
        return future

    def _finish(self, fields: Fields, running: dict[int, Future[Any]], outcome: LiveTuple) -> None:
        try:
            computed = tuple(
                running[i].result() if i in running else field for i, field in enumerate(fields)
            )
            self.space.write(computed)
        except BaseException as error:
            self._fail(fields, error, outcome)
        else:
            outcome._outcome.set_result(computed)

    def _fail(self, fields: Fields, error: BaseException, outcome: LiveTuple) -> None:
        reason = f"{type(error).__name__}: {error}"
        what = reprlib.repr(fields)
        failure = EvalFailed(f"the live tuple {what} failed: {reason}")
        failure.__cause__ = error
        detail = "".join(traceback.format_exception(error))
        with suppress(TupeloError):  # Should the space be closed by now, the holder is told still.
            self.space.write(EvalError(what, reason, detail))
        outcome._outcome.set_exception(failure)

    # Exchange

    def exchange(self, fields: Fields, *, wait: float | None = None) -> Fields | None:
        """Offer a tuple, and get one of the same types that another offers; they are swapped.

        None if nobody came in time; then the offer is withdrawn.
        """
        if type(fields) is not tuple:
            raise BadArgument("fields", "a tuple", fields)
        self.space.count(fields)  # refuses what is no entry, and a space that is closed
        meeting = _meeting_of(self.space)
        mine = uuid4()
        signature = tuple([type(field).__qualname__ for field in fields])
        answer = ("answer", mine, tuple)
        try:
            meeting.write(("offer", signature, mine, fields))
            met = meeting.take(answer, wait=wait)
        except TupeloError:  # nothing was offered, or the space was closed
            raise
        except BaseException:
            # Interrupted: withdraw. If the swap has just happened, what was got is offered again.
            if meeting.take(("offer", signature, mine, tuple), wait=0) is None:
                met = meeting.take(answer, wait=0)
                if met is not None:
                    meeting.write(("offer", signature, uuid4(), met[2]))
            raise
        if met is None:
            withdrawn = meeting.take(("offer", signature, mine, tuple), wait=0)
            met = None if withdrawn else meeting.take(answer, wait=0)
        return None if met is None else met[2]

    def close(self) -> None:
        """Close the space, and whoever waits to exchange is told; processes are waited for."""
        if isinstance(self.space, Space):
            with _meetings_lock:
                meeting = _meetings.pop(self.space, None)
            if meeting is not None:
                meeting.close()
        if self._processes is not None:
            self._processes.shutdown()
        if not isinstance(self.space, FederatedSpace):  # That one is its host's to close.
            self.space.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_meetings: WeakKeyDictionary[Space, Space] = WeakKeyDictionary()
_meetings_lock = threading.Lock()


def _meeting_of(space: AnySpace) -> Space:
    """Where the offers for exchange meet: beside the space, so that nobody reads them by chance."""
    if not isinstance(space, Space):
        raise BadArgument("space", "in this program, for an exchange: it meets beside it", space)
    with _meetings_lock:
        meeting = _meetings.get(space)
        if meeting is None:
            meeting = _meetings[space] = Space(f"{space.name}.exchange")
            meeting.react(("offer", tuple, object, tuple), _swap)
        return meeting


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


def _door(destination: object) -> TupleSpace:
    if not isinstance(destination, TupleSpace):
        raise BadArgument("destination", "a TupleSpace", destination)
    return destination
