"""Gathering: all that is there now, at every host that takes part.

An answer holds so much and no more. Who has more says so and is asked on: a taker asks for as many
again, and a reader for what it has not read; outside a session, in one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tupelo.errors import TupeloError
from tupelo.federation.spanning.peers import EngagedPeer
from tupelo.federation.spanning.question import FederatedQuery, FederatedResult

if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation

ROUNDS_MAX = 100
"""So often at most are the hosts asked for one read of many, if others read in the same session."""


async def gather(
    federation: Federation,
    question: FederatedQuery,
    here: bool,
    wanted: Callable[[EngagedPeer], bool],
    limit: int | None,
) -> FederatedResult:
    """All that answers a question now, or so many of it."""
    if question.take:
        return await _ask_all(federation, question, here, wanted, limit)
    result = FederatedResult(question.hosted, question.record)
    asked, rounds = question, 0
    try:
        while rounds < ROUNDS_MAX:
            left = None if limit is None else limit - len(result.entries)
            with asked.held():
                more = await _ask_all(federation, asked, here, wanted, left)
                got = len(more.entries)
                more.entries = asked.choose(more.entries, left)
            result.join(more)
            if limit is not None and len(result.entries) >= limit:
                break
            if more.cut:  # They have more than one answer holds; the others have said all.
                asked, here, wanted = asked.going_on(result.entries), False, more.is_cut
            elif question.record is None or limit is None or got == len(more.entries):
                break
            # Other readers of the session may have been quicker; then there may be others yet.
            if not (more.cut and more.entries):
                rounds += 1
    except BaseException:
        result.give_back()
        raise
    finally:
        if asked is not question and asked.record is not None:
            asked.record.close()
    return result


async def _ask_all(
    federation: Federation,
    question: FederatedQuery,
    here: bool,
    wanted: Callable[[EngagedPeer], bool],
    limit: int | None,
) -> FederatedResult:
    """What all have now. What was read is of each the first so many."""
    result = FederatedResult(question.hosted)
    try:
        if here:
            await _get_here(federation, question, limit, result)
        peers = federation.asked(question.hosted, wanted)
        if question.take and limit is not None:
            for peer in peers:
                left = limit - len(result.entries)
                if left > 0:
                    await _get_from(federation, peer, question, left, result)
        else:
            # All have come to their end by then: nothing is added after it was given back.
            errors = await asyncio.gather(
                *(_get_from(federation, peer, question, limit, result) for peer in peers),
                return_exceptions=True,
            )
            for error in errors:
                if error is not None:
                    raise error
    except BaseException:
        result.give_back()
        raise
    return result


async def _get_here(
    federation: Federation, question: FederatedQuery, limit: int | None, result: FederatedResult
) -> None:
    result.covered[federation.host.name] = None
    if question.take:
        port = question.hosted.port
        delivery = await port.reserve(question.here(limit), question.holder)
        if delivery is not None:
            result.add(delivery)
    else:
        result.entries += await question.read_here(limit)


async def _get_from(
    federation: Federation,
    peer: EngagedPeer,
    question: FederatedQuery,
    limit: int | None,
    result: FederatedResult,
) -> None:
    get = _take_from if question.take else read_from
    answered = await get(federation, peer, question, limit, result)
    (result.covered if answered else result.missing)[peer.name] = None


async def _take_from(
    federation: Federation,
    peer: EngagedPeer,
    question: FederatedQuery,
    limit: int | None,
    result: FederatedResult,
) -> bool:
    """False if it does not answer."""
    at_once = limit
    while True:
        message = question.ask(peer, federation.host.next_call(), "take", at_once, None)
        brought = await federation.claim(peer, question, message)
        if brought is None:
            return False
        result.add(brought)
        got = len(brought.entries)
        limit = None if limit is None else limit - got
        if not got or limit == 0 or not (brought.cut or got == at_once):
            return True
        at_once = got if limit is None else min(limit, got)


async def read_from(
    federation: Federation,
    peer: EngagedPeer,
    question: FederatedQuery,
    limit: int | None,
    result: FederatedResult,
) -> bool:
    """What one host has, unchosen. False if it does not answer."""
    read = None
    while read is None:  # Who has forgotten the session is told all of it.
        message = question.ask(peer, federation.host.next_call(), "read", limit, None)
        said = peer.talk.call(message, "read")
        try:
            async with asyncio.timeout(federation.host.answer_seconds):
                answer = await said
            read = question.read_answer(peer, message, answer)
        except (TupeloError, TimeoutError):
            return False
    entries, cut = read
    result.entries += entries
    if cut:
        result.cut.add(peer.id)
    return True
