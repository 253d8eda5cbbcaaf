"""What a broker knows of empty branches, and what it has promised others of its own.

A branch that answers empty for a key, while we are told of the updates that match it, may promise
to say when that ends. Until then it is not asked. Whoever makes a branch non-empty waits until
everyone who was promised otherwise has heard of it: so a pruned question finds what it would have
found without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tupelo.federation.brokers.tables import EncodedPattern


class PruningPromises:
    """Promises, given and received. `released` is told when an edge is to be asked again."""

    def __init__(self, released: Callable[[str, list[str]], None]) -> None:
        self._empty: dict[str, dict[str, None]] = {}
        self._promised: dict[str, dict[str, EncodedPattern]] = {}
        self._released = released

    # What others have promised

    def remember(self, edge: str, key: str) -> None:
        self._empty.setdefault(edge, {})[key] = None

    def is_empty(self, edge: str, key: str) -> bool:
        """Is the branch behind this edge known to be empty for this key?"""
        return key in self._empty.get(edge, ())

    def forget(self, edge: str, keys: Iterable[str]) -> None:
        """The branch is not empty any more, or would not tell us so."""
        known = self._empty.get(edge, {})
        gone = [key for key in keys if key in known]
        for key in gone:
            del known[key]
        if gone:
            self._released(edge, gone)

    def forget_edge(self, edge: str) -> None:
        self.forget(edge, list(self._empty.get(edge, ())))

    # What we have promised

    def promise(self, edge: str, pattern: EncodedPattern) -> None:
        self._promised.setdefault(edge, {})[pattern.key] = pattern

    def release(self, edge: str, key: str) -> None:
        """They do not rely on it any more."""
        self._promised.get(edge, {}).pop(key, None)

    def revoke(
        self, came_from: str, is_broken: Callable[[EncodedPattern], bool]
    ) -> dict[str, list[str]]:
        """Take back the promises that are broken; who must hear of which."""
        broken: dict[str, list[str]] = {}
        answers: dict[str, bool] = {}
        for edge, promised in self._promised.items():
            if edge == came_from:
                continue
            for key, pattern in promised.items():
                if key not in answers:
                    answers[key] = is_broken(pattern)
                if answers[key]:
                    broken.setdefault(edge, []).append(key)
            for key in broken.get(edge, ()):
                del promised[key]
        return broken
