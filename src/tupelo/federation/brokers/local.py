"""What is asked of the application at this host, and what becomes of its failures."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tupelo.errors import BadFrame, CannotSend
from tupelo.federation.brokers.messages import read_value
from tupelo.federation.brokers.tables import (
    ANSWER_BYTES_MAX,
    Application,
    EncodedPattern,
    encode_checked,
)

Matching = Callable[[EncodedPattern], bool | None]
"""Does an update match this pattern? None: it cannot be told here."""

OnlyAt = Callable[[Any], str | None]
"""The one host that can have something for a pattern, the same for all brokers in a membership;
None if it could be any. A host that is not in the membership has nothing before the next one."""

IsEmpty = Callable[[Any], bool]
"""Is there nothing here, for anybody, for this pattern and all others of its key?"""

KEY_LENGTH_MAX = 200
"""Of a longer key its hash is said: many of them go in one message."""

LOG_BYTES_MAX = 2**20
"""So many bytes of the last updates are kept, to tell which patterns they concern."""

logger = logging.getLogger("tupelo")


class LocalApplication:
    """The application here. A pattern that it cannot read is one for which it has nothing."""

    def __init__(
        self,
        me: str,
        application: Application,
        only_at: OnlyAt | None = None,
        is_empty: IsEmpty | None = None,
    ) -> None:
        self.me = me
        self._is_empty = is_empty
        self._application = application
        self._only_at = only_at
        # A broker that is made anew at this host goes on with higher numbers.
        self.number = self._forgotten = 1 + int(asyncio.get_running_loop().time() * 1e6)
        """The number of the last update of this host."""
        self._log: deque[tuple[int, bytes]] = deque()
        self._log_bytes = 0

    def published(self, body: bytes) -> int:
        """This host publishes an update; its number."""
        self.number += 1
        self._log.append((self.number, body))
        self._log_bytes += len(body)
        while self._log_bytes > LOG_BYTES_MAX:
            self._forgotten, oldest = self._log.popleft()
            self._log_bytes -= len(oldest)
        return self.number

    def last_update(self, pattern: EncodedPattern) -> int:
        """The number of the last update that may concern this pattern."""
        for number, body in reversed(self._log):
            if self._matches(pattern, read_value(body)) is not False:
                return number
        return self._forgotten

    def only_at(self, pattern: EncodedPattern) -> str | None:
        """The one host of the membership in force that can have something for this; None if it
        could be any."""
        if self._only_at is None or not pattern.readable:
            return None
        return self._only_at(pattern.value)

    def pattern(self, value: Any) -> EncodedPattern:
        """A pattern of this host's own; what the application says against it is raised."""
        key = self._application.key(value)
        return EncodedPattern(encode_checked(value, "pattern"), value, _short(key))

    def read_pattern(self, encoded: bytes) -> EncodedPattern:
        """A pattern of someone else's."""
        value = read_value(encoded)
        try:
            return EncodedPattern(encoded, value, _short(self._application.key(value)))
        except Exception as error:
            logger.warning("a pattern from elsewhere cannot be read: %r", error)
            return EncodedPattern(encoded, value, _short(encoded.hex()), readable=False)

    def read_patterns(self, host: str, encoded: Iterable[bytes]) -> list[EncodedPattern | None]:
        """Those on a host's metadata; None for what is no value, which stands nowhere."""
        patterns: list[EncodedPattern | None] = []
        for one in encoded:
            try:
                patterns.append(self.read_pattern(one))
            except BadFrame as error:
                logger.warning("what the host %r wants cannot be read: %s", host, error)
                patterns.append(None)
        return patterns

    def state(self, pattern: EncodedPattern) -> list[bytes] | None:
        """What is here now; None if it cannot be told."""
        if not pattern.readable:
            return []
        try:
            items = self._application.state(pattern.value)
            return None if items is None else [encode_checked(item, "item") for item in items]
        except CannotSend as error:
            logger.warning("what is here cannot be told: %s", error)
        except Exception:
            logger.exception("the state of this host cannot be told")
        return None

    def state_for(self, asker: str, pattern: EncodedPattern) -> list[bytes] | None:
        """The same for whoever asks: nothing, if they may not know."""
        if not self.may_tell(asker, pattern):
            return []
        items = self.state(pattern)
        if asker != self.me and items and sum(map(len, items)) > ANSWER_BYTES_MAX:
            logger.warning("what is here cannot be told: more than %d bytes", ANSWER_BYTES_MAX)
            return None
        return items

    def may_promise(self, asker: str, pattern: EncodedPattern) -> bool:
        """May they rely on it that nothing is here for any pattern of this key? They may not if
        something is kept from them, for they could be allowed it later, or another use of it."""
        if not self.may_tell(asker, pattern):
            return False
        if self._is_empty is not None:
            return self._is_empty(pattern.value)
        return self.state(pattern) == []

    def matching(self, update: Any) -> Matching:
        """Which patterns this update matches; it is asked once for each."""
        known: dict[bytes, bool | None] = {}

        def matches(pattern: EncodedPattern) -> bool | None:
            if pattern.encoded not in known:
                known[pattern.encoded] = self._matches(pattern, update)
            return known[pattern.encoded]

        return matches

    def _matches(self, pattern: EncodedPattern, update: Any) -> bool | None:
        if not pattern.readable:
            return None
        try:
            return self._application.matches(pattern.value, update)
        except Exception:
            logger.exception("whether an update matches cannot be told")
            return None

    def may_tell(self, asker: str, pattern: EncodedPattern) -> bool:
        """May this neighbour, or this host itself, know what is here?"""
        return asker == self.me or (
            pattern.readable and self._application.allows(asker, pattern.value)
        )


def _short(key: str) -> str:
    if len(key) <= KEY_LENGTH_MAX:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
