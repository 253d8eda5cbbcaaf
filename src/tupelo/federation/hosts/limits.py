"""Limits: how much programs elsewhere may use of a host."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tupelo.errors import BadArgument, LimitReached
from tupelo.federation.links.calls import CLIENT_CALLS_MAX, WORKING_IN_ALL_MAX, WORKING_MAX
from tupelo.federation.links.reception import SPACES_MAX
from tupelo.federation.links.tcp import HANDSHAKES_MAX, PARTIAL_BYTES_MAX
from tupelo.federation.links.wire import MESSAGE_MAX

AGENTS_MAX = 10_000
"""The most agents at one host."""

FILES_OF_SPACE = 5
"""Descriptors of a durable space: its file, two beside it, the high-water mark and the lock."""

_DESCRIPTORS_ELSEWHERE = 1_024
"""The number of open files that is assumed on systems that do not tell it."""


@dataclass(frozen=True)
class Limits:
    """How much programs elsewhere may use of a host: `tupelo.Host(limits=...)`.

    Where a limit is reached, LimitReached names it; only `working` and `working_in_all` make
    programs wait instead: nothing more is read from them until some calls have ended. What the
    host's own program does is not limited.
    """

    connections: int | None = None
    """Programs that are connected at a time. None: 10,000, or half of the descriptors that the
    process may have, if those are fewer."""

    handshakes: int = HANDSHAKES_MAX
    """Links whose handshake is not complete. With one more, the oldest is dropped."""

    partial_bytes: int = PARTIAL_BYTES_MAX
    """Bytes of incomplete frames and messages, of all connections together."""

    message_bytes: int = MESSAGE_MAX
    """Bytes of one message that comes in pieces, up to 64 MiB, and so of the longest entry that
    programs elsewhere may write. Messages of up to 16 MiB are always accepted."""

    calls: int = CLIENT_CALLS_MAX
    """Open calls of one connection, including waiting ones."""

    working: int = WORKING_MAX
    """Calls of one connection that are worked on at a time."""

    working_in_all: int = WORKING_IN_ALL_MAX
    """Calls of all connections that are worked on at a time."""

    held: int = 5_000
    """Transactions, sessions, subscriptions and match sets that one connection has open."""

    held_in_all: int = 50_000
    """The same resources of all connections together."""

    backlog: int = 100_000
    """Notices that a subscription of a program elsewhere keeps: the most that `backlog_max=` may
    be."""

    spaces: int = SPACES_MAX
    """Spaces of the host; programs elsewhere cannot make more."""

    durable_spaces: int | None = None
    """Durable spaces of the host; programs elsewhere cannot make more. None: as many as a quarter
    of the descriptors is enough for."""

    shapes: int = 10_000
    """Shapes (the class of an entry, and the types of its fields) of one space; programs elsewhere
    cannot write entries of further shapes."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if type(value) is not int or value < 1:
                raise BadArgument(field.name, "a whole number above 0", value)
        if self.message_bytes > MESSAGE_MAX:
            raise BadArgument("message_bytes", f"at most {MESSAGE_MAX:,}", self.message_bytes)

    def resolved(self) -> Limits:
        """A copy with numbers instead of None, as the descriptors of this process allow."""
        descriptors = descriptors_max()
        return dataclasses.replace(
            self,
            connections=self.connections or max(1, min(AGENTS_MAX, descriptors // 2)),
            handshakes=min(self.handshakes, max(1, descriptors // 8)),
            durable_spaces=self.durable_spaces or max(1, descriptors // 4 // FILES_OF_SPACE),
        )


class Budget:
    """A limit of something that all connections use together."""

    def __init__(self, what: str, limit: int) -> None:
        self.used = 0
        self._what = what
        self._limit = limit

    def require_room(self) -> None:
        """Raise LimitReached if nothing is left."""
        if self.used >= self._limit:
            raise LimitReached(self._what, self._limit)


def descriptors_max() -> int:
    """How many files and sockets this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return _DESCRIPTORS_ELSEWHERE
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return AGENTS_MAX * 8 if soft == resource.RLIM_INFINITY else soft


def raise_descriptors_max() -> None:
    """Raise the limit of open files of this process to the most that the system allows. For
    programs that only run a host: others may use `select`, which fails with many descriptors."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # macOS tells of more than it grants.
        return
