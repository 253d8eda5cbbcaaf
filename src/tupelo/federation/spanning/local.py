"""What this host answers with, of its own part of a space that spans hosts."""

from __future__ import annotations

from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.query import Query
from tupelo.space.session import Seen, SessionState
from tupelo.store.index import Accept
from tupelo.values.entry import Entry


def choosing(seen: Seen | None, agent: str | None) -> Accept:
    """Which entries are asked for: not those that were seen, only those of this agent."""
    return lambda entry: (
        (agent is None or (entry.to or entry.origin) == agent)
        and (seen is None or entry not in seen)
    )


async def unread(
    hosted: HostedSpace,
    session: SessionState,
    query: Query,
    agent: str | None,
    bytes_max: int | None = None,
) -> tuple[list[Entry], bool]:
    """What is here that a session has not seen, and whether there is more than has room in so many
    bytes. The reader notes what it has seen."""
    port = hosted.port
    if query.order is not None or port.is_ordered:
        return await some(hosted, query.replace(only=choosing(session.seen, agent)), bytes_max)
    entries, cut, position = await port.unread_in_slices(query, session, agent, bytes_max)
    if position:
        await hosted.flush(position)
    return entries, cut


async def some(
    hosted: HostedSpace, query: Query, bytes_max: int | None
) -> tuple[list[Entry], bool]:
    """What is read here, and whether there is more than has room in so many bytes."""
    cut = False
    if bytes_max is not None and query.limit != 1:
        limit, cut = await hosted.port.room_for(query, bytes_max)
        query = query.replace(limit=limit)
    return await hosted.port.fetch(query), cut
