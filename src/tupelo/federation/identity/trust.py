"""Who may be met: any identity, those on a list, or under each name the one that came first.

The other end has proved its key when this is asked (`tls.key_of`). What it may do in a space is
decided later, by the space's rules. Trust in a key may end: at a moment, or when it is withdrawn
(`Host.untrust`); a host then ends the links of that key.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from tupelo.errors import BadArgument, IdentityChanged, IdentityUnusable, Stranger
from tupelo.federation.identity.keys import check_key, is_key, make_folder, require_private
from tupelo.values.checks import is_number

if sys.platform == "win32":

    def _lock(handle: int, *, alone: bool) -> None:
        """Windows locks ranges that nobody else may read then; there it goes without."""

else:
    import fcntl

    def _lock(handle: int, *, alone: bool) -> None:
        """Wait until nobody is writing (or, to be alone, reading); closing the file ends it."""
        fcntl.flock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)


NAME_MAX = 255
"""The most characters of a name that is remembered."""

NAMES_MAX = 10_000
"""How many names are remembered; then new ones are strangers. Nobody can fill the disk."""

REFUSED = "refused"
"""Before an identity that was withdrawn. No name is this word: a name has a role, key or port."""

_SAFE = ":[]@"
_WORD_MAX = NAME_MAX * len("%F0%9F%8C%B1")

logger = logging.getLogger("tupelo")


@dataclass(frozen=True)
class Trust:
    """Which identities a host or client accepts: `Trust.known(...)`, `Trust.on_first_use(...)` or
    `Trust.anyone()`.

    `until` has the times, in seconds since 1970, at which the trust in some keys ends; `refused`
    has the keys that were withdrawn.
    """

    keys: frozenset[str] | None = None
    path: Path | None = None
    until: frozenset[tuple[str, float]] = frozenset()
    refused: frozenset[str] = frozenset()

    @classmethod
    def anyone(cls) -> Self:
        """Accept every identity."""
        return cls()

    @classmethod
    def known(cls, keys: Iterable[str], *, until: Mapping[str, float] | None = None) -> Self:
        """Accept these identities, under any name. `until` has the end of the trust in some of
        them, in seconds since 1970."""
        if isinstance(keys, str):
            raise BadArgument("keys", "several identities, such as a list of them", keys)
        known = frozenset(check_key(key, "keys") for key in keys)
        ends = dict(until or {})
        for key, moment in ends.items():
            if key not in known or not is_number(moment):
                expected = "for identities of the list, moments in seconds since 1970"
                raise BadArgument("until", expected, {key: moment})
        return cls(keys=known, until=frozenset((key, float(end)) for key, end in ends.items()))

    @classmethod
    def on_first_use(cls, path: str | os.PathLike[str]) -> Self:
        """Accept the first identity that is seen under a name or address, and later only this one
        under that name.

        The names are stored in a text file, one on each line with its identity. Lines may be added
        and removed by hand, and several programs may use the file. A withdrawn identity has a line
        "refused <identity>".
        """
        return cls(path=Path(path))

    def plus(self, key: str, until: float | None) -> Trust:
        """The same, and this identity too, until a moment or for good. BadArgument if a file
        refuses it."""
        check_key(key)
        if self.path is not None and key in _refused(self.path):
            expected = f"one that is not refused: remove the line 'refused {key}' from {self.path}"
            raise BadArgument("key", expected, key)
        return replace(
            self,
            keys=None if self.keys is None else self.keys | {key},
            until=self._until_of_others(key) | ({(key, until)} if until is not None else set()),
            refused=self.refused - {key},
        )

    def minus(self, key: str) -> Trust:
        """The same without this identity: it is refused from now on, and if names are kept in a
        file also by those who use that file later."""
        check_key(key)
        if self.path is not None and key not in _refused(self.path):
            _append(self.path, f"{REFUSED} {key}\n")
        keys = None if self.keys is None else self.keys - {key}
        refused = self.refused | {key} if keys is None else self.refused
        return replace(self, keys=keys, until=self._until_of_others(key), refused=refused)

    def _until_of_others(self, key: str) -> frozenset[tuple[str, float]]:
        return frozenset(one for one in self.until if one[0] != key)

    def is_over(self, key: str, now: float) -> bool:
        """Whether this identity was withdrawn, or its time has ended."""
        unknown = self.keys is not None and key not in self.keys
        return unknown or key in self.refused or any(k == key and now >= t for k, t in self.until)

    def next_end(self, now: float) -> float | None:
        """The next moment at which trust in an identity ends, or None."""
        return min((moment for _, moment in self.until if moment > now), default=None)

    def check(self, name: str, key: str, now: float) -> None:
        """Raise Stranger or IdentityChanged if this identity may not be met under this name at this
        moment."""
        try:
            if self.keys is not None and key not in self.keys:
                raise Stranger(
                    f"{name!r} has the identity {key}, which is not among the known ones; "
                    "to trust it, add this identity to the file of --trust, or to Trust.known, at "
                    "the end that refuses it"
                )
            if self.is_over(key, now):
                raise Stranger(f"{name!r} has the identity {key}, which is trusted no more")
            if self.path is not None:
                self._compare(self.path, name, check_key(key))
        except (Stranger, IdentityChanged) as error:
            logger.warning("refused: %s", error)
            raise

    def _compare(self, path: Path, name: str, key: str) -> None:
        encoded = _encode(name)
        try:
            if key in _refused(path):
                raise Stranger(
                    f"{name!r} has the identity {key}, which was withdrawn: {path} refuses it"
                )
            remembered = _read(path)
            if encoded not in remembered:
                if len(remembered) >= NAMES_MAX:
                    raise Stranger(
                        f"{name!r} is not known, and {path} remembers {NAMES_MAX} names already; "
                        "remove lines from it, or use another file"
                    )
                _append(path, f"{encoded} {key}\n")
                logger.info("first met %s, which has the identity %s", encoded, key)
                # Another program may have met another under this name just now. The first line
                # counts, and everybody sees the lines in the same order.
                remembered = _read(path)
        except OSError as error:
            raise IdentityUnusable(f"{path} cannot be used: {error}") from error
        # Missing if an editor has replaced the file just now: then the next time is the first.
        before = remembered.get(encoded, key)
        if before != key:
            raise IdentityChanged(
                f"{name!r} was {before} and is now {key}: it has a new identity, or "
                f"somebody else answers in its place. If you know that it has a new identity, "
                f"remove the line that begins with {encoded} from {path}, and try again"
            )


def _encode(name: str) -> str:
    """A name as a word of the file: no spaces, no line ends, and no beginning of a remark."""
    try:
        if isinstance(name, str) and 0 < len(name) <= NAME_MAX:
            return quote(name, safe=_SAFE)
    except UnicodeEncodeError:  # half a surrogate pair
        pass
    raise BadArgument("name", f"a text of 1 to {NAME_MAX} characters", name)


def _read(path: Path) -> dict[str, str]:
    """The names that are remembered. The first line of a name counts."""
    remembered: dict[str, str] = {}
    for word, key in _lines(path):
        if word != REFUSED:
            remembered.setdefault(quote(unquote(word), safe=_SAFE), key)
    return remembered


def _refused(path: Path) -> set[str]:
    """The identities that were withdrawn."""
    return {key for word, key in _lines(path) if word == REFUSED}


def _lines(path: Path) -> list[tuple[str, str]]:
    """The words of each line that is no remark: a name, or REFUSED, and an identity."""
    found: list[tuple[str, str]] = []
    try:
        with path.open("rb") as file:
            require_private(path, os.fstat(file.fileno()), stat.S_IWGRP | stat.S_IWOTH)
            _lock(file.fileno(), alone=False)  # else half of a line might be seen
            lines = file.read().splitlines()
    except FileNotFoundError:
        return found
    for number, line in enumerate(lines, start=1):
        words = line.decode("utf-8", "replace").split()
        if not words or words[0].startswith("#"):
            continue
        # A line that is not understood may be the one that would have warned us.
        if len(words) != 2 or len(words[0]) > _WORD_MAX or not is_key(words[1]):
            raise IdentityUnusable(
                f"line {number} of {path} is not a name and an identity; mend it or remove it"
            )
        found.append((words[0], words[1]))
    return found


def _append(path: Path, line: str) -> None:
    """Add a line with one write at the file's end: whole, and not into somebody else's."""
    make_folder(path.parent)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        _lock(handle, alone=True)
        size = os.fstat(handle).st_size
        if size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            if os.read(handle, 1) != b"\n":  # written by hand, or torn when the power went
                line = "\n" + line
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)
