"""Every error that Tupelo raises.

```text
TupeloError
├── BadInput            an argument cannot be used; nothing was done
│   ├── BadEntry            a value of a type that entries cannot contain, or no entry at all
│   ├── BadTemplate         a template that cannot be used, or whose function raised
│   ├── BadSelector         a selector without its coordinator, or a coordinator without one
│   └── BadArgument         any other argument
├── UnknownType         the entry's class is not known in this program; the entry stays where it is
├── LeaseLost           the leased thing is gone: expired, cancelled or taken
│   └── MatchSetInvalid     a match set ended, or one of its entries was taken
├── Refused             the space cannot take the entry now; it may be able to later
│   ├── SpaceFull           the space's capacity is reached and nothing may be evicted
│   └── DuplicateKey        another entry has this key
├── CountNotMet         there were fewer entries than the selector asked for (XVSM)
│   ├── EntryLocked         other transactions hold the entries that match a test
│   └── IndexOutOfRange     no entry is at this index
├── ContainerError      errors about XVSM containers
│   ├── ContainerNotFound   no container has this name, or it was destroyed
│   └── ContainerExists     another container has this name
├── AspectError         an aspect stopped the operation, which was undone as far as possible
│   ├── AspectVeto          an aspect forbids the operation
│   ├── AspectFailed        an aspect raised; the cause is chained
│   └── PutOff              aspects rescheduled the operation until its timeout
├── SpaceClosed         the space was closed, before the operation or while it waited
├── TransactionError
│   ├── TransactionEnded    the transaction was committed, aborted or has expired
│   ├── Deadlock            transactions wait for each other; this operation gives way
│   ├── CannotCommit        a participant refused or failed; all of them were aborted
│   ├── CannotAbort         the transaction was committed before
│   ├── TimeoutExpired      it was decided, but not all participants were notified in time
│   ├── OutcomeUnknown      the only participant with changes failed while it committed
│   ├── CannotJoin          the participant came too late, or lost its earlier changes
│   └── UnknownTransaction  no transaction has this id (any more)
├── ReactionError       the atomic step was undone
│   ├── ReactionFailed      a reaction's function raised; the cause is chained
│   └── Livelock            reactions fed each other beyond the bound
├── LinkError           errors about other programs and the connections to them
│   ├── CannotReach         no program answers at this address, or not in our protocol
│   ├── PeerLost            the other program was lost during the operation
│   ├── NotAllAnswered      some hosts did not answer; it lists them
│   ├── HostClosed          the host was closed
│   ├── UnknownHost         no engaged host and no agent has this name
│   ├── UnknownSpace        the host has no space of this name, and was not to make one
│   ├── UnknownService      the host offers no service of this name
│   ├── NotExported         the object or method cannot be called; nothing was done
│   ├── NoAnswer            a call was not answered in time; it may have been executed
│   ├── RemoteError         the called method raised at its host
│   ├── TokenAway           the holder of the token is out of reach, or still uses it
│   │   └── SessionLost     the last host of a shared session is gone; it can be resumed
│   ├── SourceAway          the hosts of the events are out of reach; nothing was removed
│   ├── CannotSend          too large, not valid Unicode, or unknown there; nothing was done
│   ├── AnswerTooLarge      the operation was done, but its answer is too large to be sent
│   └── BadFrame            a message was invalid; the connection was closed
├── LimitReached        a limit of the host, or of this connection to it, is reached
├── AccessError         refusals that depend on the identity of the caller
│   ├── NotAllowed          the space's rules do not allow the caller this operation
│   ├── WrongPassword       the password of the space is missing or wrong
│   ├── Stranger            one of the two programs does not trust the identity of the other
│   ├── IdentityChanged     the program at a known name has another identity than before
│   ├── NotForUs            the sealed message is addressed to another identity
│   └── BadSeal             the sealed message was altered, or its signature is wrong
├── IdentityUnusable    the file of an identity is damaged, or readable by others
├── LimeError           errors about LIME agents, their spaces and migrations
│   ├── PrivateSpace        the space is private, so no other agent could end the wait
│   ├── NotOwner            the space belongs to another agent
│   ├── AgentEnded          the agent has ended or migrated
│   ├── LoadFailed          no agent was loaded at the other host
│   └── MigrationFailed     the agent did not migrate, and continues where it is
│       └── UnknownAgentClass   the host does not have the agent's class
├── HeapDestroyed       the event heap was destroyed, here or at another host
├── DiscoveryFailed     no lookup service has this address
├── ListenerFailed      a listener raised too often, and was dropped
├── UnknownEvent        raised by a listener to cancel its registration
├── InvalidIterator     an iterator over a mailbox's events was closed or replaced
├── EvalFailed          a live tuple's function raised
├── PipelineError       errors of the pipeline
│   ├── NoJava              no suitable Java is installed; it says what to install
│   ├── CorruptSegment      a file of an archive is torn, altered or missing
│   ├── WrongSchema         the file has a newer version of the schema
│   ├── CannotSink          these rows cannot become entries; nothing was written
│   ├── UnknownTable        the SQL names an unknown table; it lists the known ones
│   └── AuditFailed         the audit found faults; it counts them by name
└── JournalError        errors of the journal, its file or the disk
    ├── SpaceInUse          another space has the file open
    ├── ForeignFile         the file is not a Tupelo journal; it was not changed
    ├── DamagedFile         the file is torn or corrupt; it was not changed
    ├── JournalFailed       the disk refused; the space is closed, reopen it to recover
    ├── DiskFull            the disk is full; writes work again when there is room
    └── LogTrimmed          the requested changes are no longer (or were never) kept
```

"No match" is a result, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Up to the last @: one in the password may not be escaped. In a path the scheme has one slash.
_PASSWORD = re.compile(
    r"(?i)(\b[a-z][a-z0-9+.-]*:/{1,2}[^\s/@:?]*:)(?:[^\s?]*|[^\s/]*)(?=@)"
    r"|([?&](?:ssl)?password=)[^\s'\"&]*"
)


def without_password(text: str) -> str:
    """A text with `***` for the password of each URL in it, to be shown."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", text)


class TupeloError(Exception):
    """Base class of all errors that Tupelo raises."""


class BadInput(TupeloError, ValueError):
    """An argument cannot be used; nothing was done."""


class BadEntry(BadInput):
    """A value of a type that entries cannot contain. `where` is its position, `found` its type."""

    def __init__(self, message: str, *, where: str = "entry", found: type | None = None) -> None:
        super().__init__(message)
        self.where = where
        self.found = found


class BadTemplate(BadInput):
    """A template that cannot be used, or whose `Where` function raised; that error is the cause."""


class BadArgument(BadInput):
    """Any other argument that cannot be used; `argument` names it. Without `got` it is not shown:
    `expected` says it all, or it is secret."""

    def __init__(self, argument: str, expected: str, got: object = ...) -> None:
        shown = "" if got is ... else f", not {got!r}"
        super().__init__(without_password(f"{argument}= must be {expected}{shown}"))
        self.argument = argument
        self.expected = expected


class BadSelector(BadInput):
    """The container has no coordinator for this selector, or a coordinator needs a selector."""


class UnknownType(TupeloError):
    """The entry's class is not known in this program; the entry stays in the space.

    `name` is the name of the class, `fields` the names of its fields in the entry.
    """

    def __init__(self, name: str, reason: str = "", fields: tuple[str, ...] = ()) -> None:
        super().__init__(
            reason
            or f"no class named {name!r} is known in this program: import it, "
            f"or declare it with @tupelo.entry({name!r}), and ask again"
        )
        self.name = name
        self.fields = fields


class LeaseLost(TupeloError):
    """The leased object is gone: it expired, or was cancelled, taken or evicted."""


class MatchSetInvalid(LeaseLost):
    """The match set has ended: one of its entries was taken, its lease ran out or it was closed."""


class Refused(TupeloError):
    """The space refused a write, and nothing was written. A write with `wait=` is tried again when
    entries leave the space, unless the refusal is `hopeless`: no such entry will ever fit."""

    def __init__(self, message: str = "", *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.hopeless = hopeless


class SpaceFull(Refused):
    """The capacity is reached and nothing may be evicted; nothing was written."""


class DuplicateKey(Refused):
    """Keys are unique in this space, and another entry has this `key`."""

    def __init__(self, key: object, *, hopeless: bool = False) -> None:
        super().__init__(f"there is an entry with the key {key!r} already", hopeless=hopeless)
        self.key = key


class CountNotMet(TupeloError):
    """An XVSM selector found fewer entries than it requires: `found` of the `wanted` number."""

    def __init__(self, message: str, *, wanted: int, found: int) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.found = found


class EntryLocked(CountNotMet):
    """Entries match an XVSM test, but other transactions hold them."""


class IndexOutOfRange(CountNotMet):
    """No entry is at this index of a vector."""


class ContainerError(TupeloError):
    """Base class of errors about XVSM containers."""


class ContainerNotFound(ContainerError):
    """No container has this name, or it was destroyed."""


class ContainerExists(ContainerError):
    """Another container has this name."""


class AspectError(TupeloError):
    """An aspect stopped the operation, which was undone as far as possible."""


class AspectVeto(AspectError):
    """An aspect forbids the operation at `point`; `reason` explains it."""

    def __init__(self, point: str, reason: str) -> None:
        super().__init__(f"vetoed at {point}: {reason}")
        self.point = point
        self.reason = reason


class AspectFailed(AspectError):
    """An aspect raised; its error is the cause of this one."""


class PutOff(AspectError):
    """Aspects rescheduled the operation until its timeout."""


class SpaceClosed(TupeloError):
    """The space was closed before the operation or while it waited."""


class TransactionError(TupeloError):
    """Base class of errors about transactions."""


class TransactionEnded(TransactionError):
    """The transaction has ended; `state` is its outcome and `reason` explains it."""

    def __init__(self, txn_id: str, state: str, reason: str = "") -> None:
        super().__init__(f"transaction {txn_id} is {state}" + (f": {reason}" if reason else ""))
        self.txn_id = txn_id
        self.state = state
        self.reason = reason


class Deadlock(TransactionError):
    """Transactions wait for each other's entries; `waits_for` names the others."""

    def __init__(self, txn_id: str, waits_for: list[str]) -> None:
        others = ", ".join(waits_for)
        super().__init__(
            f"transaction {txn_id} and {others} wait for each other's entries; "
            "abort one of them and try again"
        )
        self.txn_id = txn_id
        self.waits_for = waits_for


class CannotCommit(TransactionError):
    """Nothing was committed, because `participant` refused or failed; if it raised, that error is
    the cause. `participant` is empty if the transaction was aborted for another reason."""

    def __init__(self, txn_id: str, participant: str, reason: str) -> None:
        whose = f"{participant} could not promise to commit: " if participant else ""
        super().__init__(f"transaction {txn_id} was aborted: {whose}{reason}")
        self.txn_id = txn_id
        self.participant = participant


class CannotAbort(TransactionError):
    """The transaction was committed and cannot be aborted."""

    def __init__(self, txn_id: str) -> None:
        super().__init__(f"transaction {txn_id} was committed; it cannot be aborted any more")
        self.txn_id = txn_id


class TimeoutExpired(TransactionError):
    """The transaction ended (`state` is its outcome), but the timeout was over before the `untold`
    participants were notified."""

    def __init__(self, txn_id: str, state: str, untold: list[str]) -> None:
        names = f": {', '.join(untold)}" if untold else ""
        super().__init__(
            f"transaction {txn_id} is {state}, but not all participants were told in time{names}"
        )
        self.txn_id = txn_id
        self.state = state
        self.untold = untold


class OutcomeUnknown(TransactionError):
    """The only participant with changes failed while it committed; whether it did is not known."""

    def __init__(self, txn_id: str, participant: str, reason: str) -> None:
        super().__init__(
            f"it is not known whether transaction {txn_id} was committed: {participant} failed "
            f"during the commit: {reason}"
        )
        self.txn_id = txn_id
        self.participant = participant


class CannotJoin(TransactionError):
    """The participant cannot join this transaction."""


class UnknownTransaction(TransactionError):
    """No transaction has this id: it never existed, or has ended and was forgotten."""

    def __init__(self, txn_id: object) -> None:
        super().__init__(f"no transaction {txn_id!r} is known here")
        self.txn_id = txn_id


class ReactionError(TupeloError):
    """A reaction failed, so the whole atomic step was undone."""


class ReactionFailed(ReactionError):
    """A reaction's function raised; its error is the cause of this one."""


class Livelock(ReactionError):
    """Reactions triggered each other more often than `bound` times in one step."""

    def __init__(self, bound: int) -> None:
        super().__init__(
            f"reactions fired {bound} times in one step without coming to rest; the step was undone"
        )
        self.bound = bound


class LinkError(TupeloError):
    """Base class of errors about other programs and the connections to them."""


class CannotReach(LinkError):
    """No program answers at this `address`, or it does not speak Tupelo's protocol."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} cannot be reached: {reason}")
        self.address = address
        self.reason = reason


class PeerLost(LinkError):
    """`peer` was lost during an operation. With `in_doubt` the operation may have been done;
    otherwise it was not."""

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
    """The hosts that answered (`covered`) have no match; the `missing` hosts did not answer."""

    def __init__(self, during: str, covered: list[str], missing: list[str]) -> None:
        super().__init__(
            f"{during} found no match at {', '.join(covered) or 'any host'}, but not all hosts "
            f"answered: {', '.join(missing)}"
        )
        self.during = during
        self.covered = covered
        self.missing = missing


class UnknownHost(LinkError):
    """No engaged host and no agent has this `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no host or agent {name!r} is engaged")
        self.name = name


class UnknownSpace(LinkError):
    """The host or database has no space of this name, and the caller or the host wants none to be
    made. `near` has the names of its spaces that are spelt alike."""

    def __init__(self, space: str, near: Sequence[str] = (), where: str = "at this host") -> None:
        hint = f"; there is {', '.join(map(repr, near))}" if near else ""
        super().__init__(f"there is no space {space!r} {where}{hint}")
        self.space = space
        self.near = list(near)


class UnknownService(LinkError):
    """The host at the address `peer` offers no `service` of this name."""

    def __init__(self, service: str, peer: str = "") -> None:
        where = f" {peer}" if peer else ""
        super().__init__(
            f"the host{where} offers no {service!r} service: a program there must offer it"
        )
        self.service = service
        self.peer = peer


class NotExported(LinkError):
    """The object or method `what` is not exported at its host (any more). Nothing was done."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not exported there (any more): nothing was done")
        self.what = what


class NoAnswer(LinkError):
    """A call was not answered in time: it may have been executed, now or later, or not."""

    def __init__(self, during: str) -> None:
        super().__init__(f"{during} was not answered in time: it may have been done or not")
        self.during = during


class RemoteError(LinkError):
    """The `method` raised at its host: an error of class `kind` with the message `text`."""

    def __init__(self, method: str, kind: str, text: str) -> None:
        super().__init__(f"{method} raised {kind} at its host: {text}")
        self.method = method
        self.kind = kind
        self.text = text


class TokenAway(LinkError):
    """The `token` did not arrive in time: its `holder`, if known, is out of reach or still uses
    it."""

    def __init__(self, token: str, holder: str | None) -> None:
        where = f"the host {holder!r}" if holder else "a host that is not known here"
        super().__init__(f"the token {token!r} did not come in time: it is at {where}")
        self.token = token
        self.holder = holder


class SessionLost(TokenAway):
    """The `holder` of a shared `session` is gone and did not keep the session in a folder, so some
    of the session's record is lost. If the holder will not come back, `resume()` continues the
    session. Each program that shares a resumed session gets this error once, with `resumed`:
    entries that the holder read last may be returned again."""

    def __init__(self, session: str, holder: str | None, *, resumed: bool = False) -> None:
        super().__init__(f"session {session}", holder)
        self.session = session
        self.resumed = resumed
        again = "entries that it read last may be returned again"
        self.args = (
            f"the host {holder!r} with the shared session {session!r} is gone, and the session was "
            f"resumed: {again}; read on, or share a new one, by share()"
            if resumed
            else f"the shared session {session!r} is lost with the host {holder!r}, which has no "
            f"folder for it; resume() continues it: {again}; or share a new one, by share()",
        )


class SourceAway(LinkError):
    """Events match, but they can only be removed at their `hosts`, which are out of reach. Nothing
    was done."""

    def __init__(self, hosts: list[str], names: Mapping[str, str] | None = None) -> None:
        names = names or {}
        labels = [f"{names[host]!r} ({host})" if host in names else host for host in hosts]
        super().__init__(f"events match, but live at hosts out of reach: {', '.join(labels)}")
        self.hosts = hosts


class HostClosed(LinkError):
    """The host was closed."""


class CannotSend(LinkError):
    """The message cannot be sent, because it is too large or not valid Unicode, or because the
    other program is of an older version that does not know it. Nothing was done."""


class AnswerTooLarge(LinkError):
    """The operation was done, but its answer is too large to be sent; the message gives
    details."""


class BadFrame(LinkError):
    """A message from the other program is invalid or too large; the connection was closed."""


class LimitReached(TupeloError):
    """A limit of the host, or of this connection to it, is reached: there are already `limit` of
    `what`. Nothing was done."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"the limit is reached: {limit:,} {what}; end some first, or have the host started "
            "with higher limits="
        )
        self.what = what
        self.limit = limit


class AccessError(TupeloError):
    """Base class of refusals that depend on the caller's identity."""


class NotAllowed(AccessError):
    """The rules of the `space` do not allow the caller (`who`) this `operation`."""

    def __init__(self, operation: str, space: str, who: str) -> None:
        super().__init__(f"{who} is not allowed to {operation} in the space {space!r}")
        self.operation = operation
        self.space = space
        self.who = who


class WrongPassword(AccessError):
    """The space is protected by a password, and the password is missing or wrong."""

    def __init__(self, space: str) -> None:
        super().__init__(f"the space {space!r} is protected, and this is not its password")
        self.space = space


class Stranger(AccessError):
    """One of the two programs does not trust the identity of the other; the message names it."""


class IdentityChanged(AccessError):
    """The program at a known name has another identity than before."""


class NotForUs(AccessError):
    """The message is sealed for another identity, the `addressee`."""

    def __init__(self, addressee: str) -> None:
        super().__init__(f"this message is sealed for {addressee}")
        self.addressee = addressee


class BadSeal(AccessError):
    """The sealed message was altered, was sent to the wrong place, or has a wrong signature."""


class IdentityUnusable(TupeloError):
    """The file of an identity is damaged, or other users can read it."""


class LimeError(TupeloError):
    """Base class of errors about LIME agents, their interface tuple spaces and migrations."""


class PrivateSpace(LimeError):
    """The interface tuple space is private, so only the waiting agent itself could write a
    match."""

    def __init__(self, operation: str, space: str) -> None:
        super().__init__(
            f"{operation} would wait for ever in the space {space!r}, which is private: "
            "share it first, or ask without waiting"
        )
        self.operation = operation
        self.space = space


class NotOwner(LimeError):
    """Only its own agent may use an interface tuple space."""

    def __init__(self, space: str, owner: str, reason: str = "") -> None:
        super().__init__(
            f"the space {space!r} is the agent {owner}'s alone" + (f": {reason}" if reason else "")
        )
        self.space = space
        self.owner = owner


class AgentEnded(LimeError):
    """The `agent` is not at this host (any more): it has ended or migrated."""

    def __init__(self, agent: str) -> None:
        super().__init__(f"the agent {agent} has ended here, or gone on to another host")
        self.agent = agent


class MigrationFailed(LimeError):
    """The agent did not migrate to `host`; it continues at its host."""

    def __init__(self, agent: str, host: str, reason: str) -> None:
        super().__init__(f"the agent {agent} stays where it is, and not at {host}: {reason}")
        self.agent = agent
        self.host = host
        self.reason = reason


class UnknownAgentClass(MigrationFailed):
    """The `host` does not have the agent's class, and code is never sent."""

    def __init__(self, agent: str, host: str, class_name: str) -> None:
        super().__init__(agent, host, f"it knows no agent class named {class_name!r}")
        self.class_name = class_name


class LoadFailed(LimeError):
    """No agent of the class `class_name` was loaded at `host`."""

    def __init__(self, class_name: str, host: str, reason: str) -> None:
        super().__init__(f"no agent of the class {class_name!r} was loaded at {host}: {reason}")
        self.class_name = class_name
        self.host = host
        self.reason = reason


class HeapDestroyed(TupeloError):
    """The event heap `name` was destroyed, here or at another host."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the event heap {name!r} was destroyed")
        self.name = name


class DiscoveryFailed(TupeloError):
    """No lookup service has registered this `address` in this process."""

    def __init__(self, address: str) -> None:
        super().__init__(f"there is no lookup service at {address}; start one there first")
        self.address = address


class ListenerFailed(TupeloError):
    """A listener or callback raised too often and was dropped; its last error is the cause."""


class UnknownEvent(TupeloError):
    """A listener raises this to cancel its registration for the event."""


class InvalidIterator(TupeloError):
    """The iterator returns no more events of its mailbox: it was closed, a newer iterator or a
    listener replaced it, or the registration is gone."""


class EvalFailed(TupeloError):
    """A live tuple could not be computed; the message gives the reason."""


class PipelineError(TupeloError):
    """Base class of errors of the pipeline."""


class NoJava(PipelineError):
    """Spark needs Java `least` or newer; `tried` lists the versions that were found."""

    def __init__(self, least: int, tried: list[str]) -> None:
        found = "; ".join(tried) or "there is none in JAVA_HOME or PATH"
        super().__init__(
            f"Spark needs Java {least} or newer ({found}): install one,"
            ' or use the one from Python\'s registry: pip install "tupelo[java]"'
        )
        self.least = least
        self.tried = tried


class CorruptSegment(PipelineError):
    """The file `path` of an archive is torn, altered or missing; none of it was used."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")
        self.path = path


class WrongSchema(PipelineError):
    """The file `path` has `version` of the schema, which this release does not know."""

    def __init__(self, path: str, version: int, known: int) -> None:
        super().__init__(
            f"{path} has version {version} of the schema, and this Tupelo knows {known}"
        )
        self.path = path
        self.version = version


class CannotSink(PipelineError):
    """These rows cannot become entries; none of them was written."""


class UnknownTable(PipelineError):
    """No table has this `name`; `tables` lists the existing ones."""

    def __init__(self, name: str, tables: list[str], *, quote: bool = False) -> None:
        hint = f"write it as `{name}`" if quote else f"there are {', '.join(tables)}"
        super().__init__(f"there is no table {name!r}: {hint}")
        self.name = name
        self.tables = tables


class AuditFailed(PipelineError):
    """The audit found faults; `faults` counts them by name."""

    def __init__(self, faults: dict[str, int]) -> None:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))
        super().__init__(f"the audit failed: {counts}")
        self.faults = faults


class Damage(NamedTuple):
    """One damage of a journal. `lost` is "entry", "change", "promise", "description" or, if only
    the order of the file is wrong, "nothing". `first` and `last` are the affected positions, or
    0."""

    lost: str
    first: int
    last: int
    text: str

    def __str__(self) -> str:
        return self.text


class JournalError(TupeloError):
    """The journal's file cannot be used, because of its content, the disk or another program."""


class SpaceInUse(JournalError):
    """Another space, in this or another process, has this file open."""


class ForeignFile(JournalError):
    """The file is not a Tupelo journal, or has a newer format; it was not changed."""


class DamagedFile(JournalError):
    """The journal is torn or corrupt, and was not changed. `found` lists the damages."""

    def __init__(self, message: str, found: Sequence[Damage] = ()) -> None:
        super().__init__(message)
        self.found = tuple(found)


class DiskFull(JournalError):
    """The disk is full. Entries can be read; writes work again when there is room. Nothing was
    done, unless `in_doubt`: then the change was made in memory and is stored as soon as there is
    room."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt


class JournalFailed(JournalError):
    """The disk refused a commit, and the space was closed; reopen it to recover."""


class LogTrimmed(JournalError):
    """The requested changes are not kept; `first` is the earliest position that is."""

    def __init__(self, message: str, first: int) -> None:
        super().__init__(message)
        self.first = first
