"""Who may do what in a space: rules by identity and operation, and a password."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tupelo.errors import BadArgument, LimitReached, NotAllowed, WrongPassword
from tupelo.federation.identity.keys import ID_CHARACTERS, id_of, is_key

ANYONE: Final = "anyone"
"""In a rule: every connection that the host has accepted."""

LOCAL: Final = "local"
"""In a rule: programs on the machine of the host that have no identity."""

OPERATIONS: Final = ("read", "write", "take", "subscribe", "administer")

_SALT_BYTES = 16

logger = logging.getLogger("tupelo")


class Access:
    """The access rules of one space.

    Each operation has a rule: ANYONE, or a list of identities, which may contain LOCAL. By default
    ANYONE may read, write, take and subscribe, and LOCAL may administer. With a `password`, a
    client must also send it before its first operation; only a salted hash of it is stored.
    """

    def __init__(
        self,
        *,
        read: str | Iterable[str] = ANYONE,
        write: str | Iterable[str] = ANYONE,
        take: str | Iterable[str] = ANYONE,
        subscribe: str | Iterable[str] = ANYONE,
        administer: str | Iterable[str] = LOCAL,
        password: str | None = None,
    ) -> None:
        rules = (read, write, take, subscribe, administer)
        self._rules = {
            operation: _check_rule(operation, rule)
            for operation, rule in zip(OPERATIONS, rules, strict=True)
        }
        self._salt = self._hash = b""
        if password is not None:
            if not isinstance(password, str) or not password:
                # What it was is not said: errors end up in logs.
                raise BadArgument("password", "a text that is not empty, or None")
            self._salt = os.urandom(_SALT_BYTES)
            self._hash = _scramble(password, self._salt)

    def __repr__(self) -> str:
        rules = [f"{operation}={rule}" for operation, rule in self.rules().items()]
        return f"Access({', '.join([*rules, 'password=...'] if self.protected else rules)})"

    @property
    def protected(self) -> bool:
        """Whether there is a password."""
        return bool(self._hash)

    def rules(self) -> dict[str, list[str]]:
        """For each operation who may do it: "anyone", "local" or identities."""
        return {operation: sorted(rule) for operation, rule in self._rules.items()}

    def matches_password(self, text: str) -> bool:
        """Whether this `text` is the password. Always True if there is none. It takes some
        hundredths of a second on purpose; it is called once for each connection."""
        if not self.protected:
            return True
        return isinstance(text, str) and hmac.compare_digest(
            _scramble(text, self._salt), self._hash
        )

    def check(self, operation: str, space: str, who: str | None, shown: bool) -> None:
        """Raise WrongPassword or NotAllowed if a program may not do this in the space of this name.

        `who` is an identity, None for a program on the host's own machine that shows none, or ""
        for a program elsewhere that shows none. `shown` says whether it has shown the password.
        """
        rule = self._rule(operation)
        if self._hash and not shown:
            logger.warning(
                "refused: %s did not show the password of the space %r", _call(who), space
            )
            raise WrongPassword(space)
        if not _is_in(rule, who):
            refusal = NotAllowed(operation, space, _call(who))
            logger.warning("refused: %s", refusal)
            raise refusal

    def allows(self, operation: str, who: str | None) -> bool:
        """Whether `who`, the id of a program, may do this without a password."""
        return not self._hash and _is_in(self._rule(operation), who)

    def allows_host(self, operation: str, host_id: str) -> bool:
        """Whether the host with the id `host_id` may do this. It need not be engaged, so the host
        that passes on its request must be allowed the same. A host without an identity counts as a
        program on this machine, and passwords are not shown."""
        rule = self._rule(operation)
        if self._hash:
            return False
        if ANYONE in rule:
            return True
        if len(host_id) != ID_CHARACTERS:
            return LOCAL in rule
        return any(who != LOCAL and id_of(who) == host_id for who in rule)

    def _rule(self, operation: str) -> frozenset[str]:
        rule = self._rules.get(operation)
        if rule is None:
            raise BadArgument("operation", f"one of {', '.join(OPERATIONS)}", operation)
        return rule


def check_access(access: object) -> None:
    """Raises BadArgument unless `access` is an Access."""
    if not isinstance(access, Access):
        raise BadArgument("access", "an Access(...)", access)


def _check_rule(operation: str, rule: object) -> frozenset[str]:
    expected = "ANYONE, LOCAL, or several identities, such as a list of them"
    if rule in (ANYONE, LOCAL):
        return frozenset([str(rule)])
    if isinstance(rule, str) or not isinstance(rule, Iterable):
        raise BadArgument(operation, expected, rule)
    allowed = list(rule)
    for who in allowed:
        if who != LOCAL and not is_key(who):
            raise BadArgument(operation, expected, who)
    return frozenset(allowed)


def _is_in(rule: frozenset[str], who: str | None) -> bool:
    return ANYONE in rule or (LOCAL if who is None else who) in rule


def _call(who: str | None) -> str:
    if who is None:
        return "a program on this machine without an identity"
    return who or "a program without an identity"


def _scramble(password: str, salt: bytes) -> bytes:
    # Every text has a encoding so, even one that is no proper Unicode.
    encoded = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(encoded, salt=salt, n=2**14, r=8, p=1)


NOBODY: Final = Access(read=(), write=(), take=(), subscribe=(), administer=())
"""Rules by which nobody may do anything: only the host itself uses such a space."""


FREE_GUESSES = 4
"""Wrong passwords of one address that cost no time."""
FIRST_PAUSE_SECONDS = 0.25
"""The pause after the next wrong password; each further one doubles it."""
PAUSE_MAX_SECONDS = 30.0
FORGET_SECONDS = 900.0
"""After so long without a wrong password the count of an address begins anew."""
PENDING_MAX = 16
"""The most checks of one address that may wait at a time."""
ADDRESSES_MAX = 1_024
"""The most addresses that are remembered; the oldest is forgotten first."""
THREADS = 1


class _AddressGuesses:
    """The wrong passwords of one address, and until when it has to pause."""

    def __init__(self) -> None:
        self.wrong = 0
        self.last = 0.0
        self.not_before = 0.0
        self.pending = 0
        self.turn = asyncio.Lock()


class PasswordGuard:
    """Checks the passwords that clients of one host show: in a thread of its own, one at a time for
    each address, and slower after each wrong one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._guessers: dict[str, _AddressGuesses] = {}
        self._pool: ThreadPoolExecutor | None = None

    def wrong_from(self, address: str) -> int:
        """How many wrong passwords of this address are remembered."""
        found = self._guessers.get(address)
        return 0 if found is None else found.wrong

    async def check(self, address: str, matches: Callable[[], bool]) -> bool:
        """Whether the password matches. The answer may be delayed. Raises LimitReached if too many
        checks of this address wait already."""
        guesser = self._guesser(address)
        if guesser.pending >= PENDING_MAX:
            raise LimitReached("password checks of one address", PENDING_MAX)
        guesser.pending += 1
        try:
            # One after another, and the pause before the check: who hangs up early gains nothing.
            async with guesser.turn:
                pause = guesser.not_before - self._loop.time()
                if pause > 0:
                    await asyncio.sleep(pause)
                right = await self._loop.run_in_executor(self._threads(), matches)
                if not right:
                    self._was_wrong(guesser)
                return right
        finally:
            guesser.pending -= 1

    def _guesser(self, address: str) -> _AddressGuesses:
        guesser = self._guessers.pop(address, None) or _AddressGuesses()
        if guesser.wrong and self._loop.time() - guesser.last > FORGET_SECONDS:
            guesser.wrong = 0
        self._guessers[address] = guesser
        if len(self._guessers) > ADDRESSES_MAX:
            idle = (name for name, one in self._guessers.items() if not one.pending)
            self._guessers.pop(next(idle, address), None)
        return guesser

    def _was_wrong(self, guesser: _AddressGuesses) -> None:
        guesser.wrong += 1
        guesser.last = self._loop.time()
        steps = guesser.wrong - FREE_GUESSES
        if steps > 0:
            doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(steps - 1, 32)
            guesser.not_before = guesser.last + min(doubled, PAUSE_MAX_SECONDS)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "tupelo-passwords")
        return self._pool

    def close(self) -> None:
        """End the thread; checks that wait are cancelled."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
