"""A trace: what happened on a virtual network, to be read by people and compared by its digest."""

from __future__ import annotations

import hashlib
from collections import deque

from tupelo.errors import BadFrame
from tupelo.federation.links import wire

KEPT_BYTES_MAX = 4_096
TEXT_MAX = 120


class Trace:
    """The last `lines_max` things that happened, and a digest of all that ever did.

    Two runs with the same digest carried the same frames at the same moments.
    """

    def __init__(self, lines_max: int) -> None:
        # A frame is put into words when somebody reads the trace: mostly nobody does.
        self._kept: deque[str | tuple[float, str, str, bytes]] = deque(maxlen=lines_max)
        self._digest = hashlib.blake2b(digest_size=16)

    def frame(self, now: float, source: str, target: str, content: bytes) -> None:
        self._digest.update(f"{now!r} {source} {target} {len(content)}\n".encode())
        self._digest.update(content)
        if len(content) > KEPT_BYTES_MAX:
            self._kept.append(_in_words(now, source, target, content))
        else:
            self._kept.append((now, source, target, content))

    def event(self, now: float, text: str) -> None:
        self._digest.update(f"{now!r} {text}\n".encode())
        self._kept.append(f"{now:12.6f}  {text}")

    @property
    def lines(self) -> list[str]:
        return [kept if isinstance(kept, str) else _in_words(*kept) for kept in self._kept]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def _in_words(now: float, source: str, target: str, content: bytes) -> str:
    try:
        text = repr(wire.decode(content))
    except BadFrame:
        text = f"no message, {len(content)} bytes: {content[:40]!r}"
    short = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
    return f"{now:12.6f}  {source} → {target}  {short}"
