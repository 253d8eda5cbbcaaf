"""The command `tupelo move FROM TO`: moves all entries of a space to another space."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

import tupelo
from tupelo.apps.progress import ProgressBar
from tupelo.apps.shell import (
    FAILED,
    PASSWORD_HELP,
    clear_errors,
    complain,
    examples,
    in_json,
    json_option,
    print_row,
    trust_option,
)
from tupelo.apps.spaces import is_url, opened
from tupelo.errors import AnswerTooLarge, BadArgument, CannotSend
from tupelo.space.clock import system_clock
from tupelo.space.port import port_of
from tupelo.space.twophase import DecisionLog, Outcome
from tupelo.values.entry import About

BATCH = 500
"""Entries moved in one transaction."""
SETTLE_SECONDS = 30.0
SETTLE_PAUSE_SECONDS = 0.1
_BEGUN = "begun"


@click.command(
    epilog=examples(
        "tupelo move jobs.tupelo tupelo://127.0.0.1:7700/jobs",
        "tupelo move tupelo://127.0.0.1:7700/jobs jobs.tupelo",
        "tupelo move jobs.tupelo 'postgresql://db.example/work?space=jobs'",
        notes="FROM and TO are files of durable spaces, or URLs of spaces at hosts or in databases;"
        " a missing TO is created. The entries keep their order, their types and the rest of their"
        " leases. Both spaces may be in use, except spaces in files. Every entry is in exactly one"
        " of the spaces at any moment. If the command is interrupted, run it again: no entry is"
        " lost, and no entry moves twice. Between two files, TO.moving keeps the state."
        f" {PASSWORD_HELP}",
    )
)
@click.argument("source", metavar="FROM")
@click.argument("to", metavar="TO")
@json_option
@trust_option
def move(source: str, to: str, json: bool | None, trust: str | None) -> None:
    """Move all entries of a space to another space, or finish an interrupted move."""
    try:
        with clear_errors():
            _move(source, to, json, trust)
    except KeyboardInterrupt:
        complain("interrupted: every entry is in one of the spaces; run it again for the rest")
        sys.exit(FAILED)


def _move(source: str, to: str, json: bool | None, trust: str | None) -> None:
    with opened(source, trust) as giver, _target(to, giver.name, trust) as taker:
        if _engine_of(giver) == _engine_of(taker):
            raise BadArgument("to", "another space than FROM", to)
        moved, left = 0, _held(giver)
        with _transactions(giver, taker, to) as begin, ProgressBar("moving") as bar:
            while True:
                moved += move_entries(giver, taker, begin, bar)
                before, left = left, _held(giver)
                if left >= before:  # Otherwise entries may have come back after the last take.
                    break
        if in_json(json):
            print_row({"moved": moved, "left": left}, json)
        else:
            print(f"{moved} moved")
        if left:
            complain(f"{left} entries are in the hands of others: run it again to move them")
        if undecided := len(giver.in_doubt()) + len(taker.in_doubt()):
            complain(f"{undecided} transactions are prepared and not decided: run it again")


def _held(space: tupelo.SpaceLike) -> int:
    return sum(held.entries for held in space.in_hand())


def move_entries(
    source: tupelo.SpaceLike,
    target: tupelo.SpaceLike,
    begin: Callable[[], Any],
    progress: Callable[[int, int], object],
) -> int:
    """Move the entries of one space to another, a batch in each transaction that `begin` returns,
    until none is left. Returns how many were moved."""
    moved, batch = 0, BATCH
    total = source.count()
    now = getattr(source, "host_time", getattr(source, "server_time", system_clock.now))
    while True:
        about: list[About] = []
        try:
            with begin() as txn:
                entries = source.take_all(limit=batch, txn=txn, about=about)
                if entries:
                    present = now()
                    leases = [
                        None if one.expires is None else max(0.0, one.expires - present)
                        for one in about
                    ]
                    target.write_all(entries, lease=leases, txn=txn)
        except (AnswerTooLarge, CannotSend):
            if batch == 1:
                raise
            batch = max(1, batch // 8)
            continue
        if not entries:
            return moved
        moved += len(entries)
        progress(moved, max(total, moved))


@contextmanager
def _target(to: str, name: str, trust: str | None) -> Iterator[tupelo.SpaceLike]:
    """The target space. A missing space is created; a new file gets the name of the source."""
    if is_url(to) or Path(to).exists():
        with opened(to, trust, create=True) as space:
            yield space
    else:
        with tupelo.Space(name, path=to) as space:
            yield space


def _engine_of(space: Any) -> str:
    return port_of(space).id if isinstance(space, tupelo.Space) else space.engine_id


def _settle(source: tupelo.SpaceLike, target: tupelo.SpaceLike) -> None:
    """Settle the transactions that an interrupted move has left prepared in a file or database, as
    soon as the decider knows the outcome. Wait a while until the hosts have settled theirs."""
    until = time.monotonic() + SETTLE_SECONDS
    while source.in_doubt() or target.in_doubt():
        with tupelo.transaction(source, target):  # It settles what is left.
            pass
        if time.monotonic() > until:
            return  # They may be transactions of others.
        time.sleep(SETTLE_PAUSE_SECONDS)


@contextmanager
def _transactions(
    source: tupelo.SpaceLike, target: tupelo.SpaceLike, to: str
) -> Iterator[Callable[[], Any]]:
    """Begins transactions over both spaces. Prepared transactions of an interrupted move
    are settled by the host or database that decided them, or between two files by a record
    beside the target."""
    if not (isinstance(source, tupelo.Space) and isinstance(target, tupelo.Space)):
        _settle(source, target)
        yield partial(tupelo.transaction, source, target)
        return
    file = Path(f"{to}.moving")
    with closing(tupelo.Space("moving", path=file)) as kept:
        log = DecisionLog(kept)
        begun = {txn_id for _, txn_id in kept.read_all((_BEGUN, str))}

        def outcome(txn_id: str) -> Outcome | None:
            return log.recorded_outcome(txn_id) if txn_id in begun else None

        def begin() -> Any:
            txn = tupelo.transaction(source, target, decisions=log)
            kept.write((_BEGUN, txn.id))
            return txn

        for space in (source, target):
            log.settle(port_of(space), outcome)
        yield begin
    for leftover in file.parent.glob(f"{file.name}*"):
        leftover.unlink()
