"""The errors of hosts that meet: the line between them, and who is at its other end."""

from __future__ import annotations

from collections.abc import Mapping

from tupelo.errors.root import TupeloError


class LinkError(TupeloError):
    """Something about another program, or the line to it."""


class CannotReach(LinkError):
    """Nobody answers at this `address`, or what answers does not speak our language."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} cannot be reached: {reason}")
        self.address = address


class PeerLost(LinkError):
    """`peer` was lost during an operation. If it is `in_doubt`, it may have been done or not; else
    it was not."""

    def __init__(self, peer: str, during: str, reason: str = "", *, in_doubt: bool = False) -> None:
        super().__init__(
            f"{peer} was lost during {during}"
            + (f" ({reason})" if reason else "")
            + (": it may have been done or not" if in_doubt else "")
        )
        self.peer = peer
        self.during = during
        self.in_doubt = in_doubt


class NotAllAnswered(LinkError):
    """There was no match at the hosts that answered, `covered`; the `missing` ones did not answer,
    so there may be one there."""

    def __init__(self, during: str, covered: list[str], missing: list[str]) -> None:
        super().__init__(
            f"{during} found no match at {', '.join(covered) or 'any host'}, but not all hosts "
            f"answered: {', '.join(missing)}"
        )
        self.during = during
        self.covered = covered
        self.missing = missing


class UnknownHost(LinkError):
    """No engaged host, or agent, is known by this `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no host or agent {name!r} is engaged")
        self.name = name


class UnknownService(LinkError):
    """The host offers no service of this name: `service` and `peer`, the host's address."""

    def __init__(self, service: str, peer: str = "") -> None:
        where = f" {peer}" if peer else ""
        super().__init__(
            f"the host{where} offers no {service!r} service: a program there must offer it"
        )
        self.service = service
        self.peer = peer


class NotExported(LinkError):
    """`what` was to be called, an object or a method of it, is not exported there, or not any more.
    Nothing was done."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not exported there (any more): nothing was done")
        self.what = what


class NoAnswer(LinkError):
    """A call was not answered in time: it may have been done, or be done later, or not."""

    def __init__(self, during: str) -> None:
        super().__init__(f"{during} was not answered in time: it may have been done or not")
        self.during = during


class RemoteError(LinkError):
    """The called `method` raised at its host: an error of the class `kind`, which says `text`."""

    def __init__(self, method: str, kind: str, text: str) -> None:
        super().__init__(f"{method} raised {kind} at its host: {text}")
        self.method = method
        self.kind = kind
        self.text = text


class TokenAway(LinkError):
    """The `token` did not come in time: its `holder`, if one is known, is out of reach, or does not
    let go of it."""

    def __init__(self, token: str, holder: str | None) -> None:
        where = f"the host {holder!r}" if holder else "a host that is not known here"
        super().__init__(f"the token {token!r} did not come in time: it is at {where}")
        self.token = token
        self.holder = holder


class SessionLost(TokenAway):
    """The `holder` of a shared `session`, which kept it in no folder, has crashed, or at least is
    gone: nobody else knows all that was read. Whoever knows that it is gone for good can `resume()`
    the session; those who share it are told so by this error, once (`resumed`), before they go on:
    what the holder got last, and told nobody of, may be given again."""

    def __init__(self, session: str, holder: str | None, *, resumed: bool = False) -> None:
        super().__init__(f"session {session}", holder)
        self.session = session
        self.resumed = resumed
        again = "what it got last, and told nobody of, may be given again"
        self.args = (
            f"the host {holder!r}, which had the shared session {session!r}, is gone, and somebody "
            f"has resumed the session: {again}; read on, or share a new one, by share()"
            if resumed
            else f"the shared session {session!r} is lost with the host {holder!r}, which had it "
            f"in no folder, and is gone; resume() goes on with what is known of it: {again}; or "
            "share a new one, by share()",
        )


class SourceAway(LinkError):
    """There are events that match, but the `hosts` at which they live are out of reach, and only
    there they can be removed. Nothing was done."""

    def __init__(self, hosts: list[str], names: Mapping[str, str] | None = None) -> None:
        called = [f"{names[one]!r} ({one})" if names and one in names else one for one in hosts]
        super().__init__(f"events match, but live at hosts out of reach: {', '.join(called)}")
        self.hosts = hosts


class HostClosed(LinkError):
    """The host was closed."""


class CannotSend(LinkError):
    """A message cannot be sent to another program, because it is too large or contains text that
    is not valid Unicode. Nothing was done."""


class AnswerTooLarge(LinkError):
    """The operation was done, but its answer is too large to be sent. The message says what was
    done, and what the caller does not learn of it."""


class BadFrame(LinkError):
    """What came over a link cannot be understood, or is larger than allowed."""


class LimitReached(TupeloError):
    """A budget of the host, or of your connection to it, is used up: there are `limit` of `what`
    already. Nothing was done."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"the limit is reached: {limit:,} {what}; end some first, or have the host started "
            "with higher limits="
        )
        self.what = what
        self.limit = limit


class AccessError(TupeloError):
    """Refused because of who asks."""


class NotAllowed(AccessError):
    """The rules of the `space` do not allow the one who asks this `operation`."""

    def __init__(self, operation: str, space: str, who: str) -> None:
        super().__init__(f"{who} is not allowed to {operation} in the space {space!r}")
        self.operation = operation
        self.space = space
        self.who = who


class WrongPassword(AccessError):
    """The space is protected by a password, and none or another one was given."""

    def __init__(self, space: str) -> None:
        super().__init__(f"the space {space!r} is protected, and this is not its password")
        self.space = space


class Stranger(AccessError):
    """The identity is not one that is known there."""


class IdentityChanged(AccessError):
    """Who answers at a known name has another identity than before."""


class NotForUs(AccessError):
    """The message is sealed for another: the `addressee`."""

    def __init__(self, addressee: str) -> None:
        super().__init__(f"this message is sealed for {addressee}")
        self.addressee = addressee


class BadSeal(AccessError):
    """The sealed message was altered, belongs elsewhere, or was not sealed by who it names."""
