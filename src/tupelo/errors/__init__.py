"""Every error that Tupelo raises, and whose fault each one is.

TupeloError
├── BadInput            you passed something that cannot be used; nothing was done
│   ├── BadEntry            a value outside the closed set, or not an entry at all
│   ├── BadTemplate         a template that can never be asked, or whose function failed
│   ├── BadSelector         a selector without its coordinator, or a coordinator without one
│   └── BadArgument         any other argument
├── UnknownType         the entry's class is not known in this program; the entry stays where it is
├── LeaseLost           the leased thing is gone: expired, cancelled or taken
│   └── MatchSetInvalid     a match set ended, or one of its entries was taken
├── Refused             the space cannot take the entry now; it may be able to later
│   ├── SpaceFull           the space's capacity is reached and nothing may be evicted
│   └── DuplicateKey        another entry has this key
├── CountNotMet         there were fewer entries than the selector asked for (XVSM)
│   ├── EntryLocked         other transactions hold what a test asked for
│   └── IndexOutOfRange     nothing stands at this index
├── ContainerError      something about an XVSM container
│   ├── ContainerNotFound   there is none of this name, or it was destroyed
│   └── ContainerExists     another container has this name
├── AspectError         an aspect stopped the operation; what can be undone was
│   ├── AspectVeto          an aspect forbids it, and says why
│   ├── AspectFailed        an aspect raised; the cause is chained
│   └── PutOff              aspects put it off until its time was up
├── SpaceClosed         you closed the space (or it was closed while you waited)
├── TransactionError
│   ├── TransactionEnded    the transaction was committed, aborted or has expired
│   ├── Deadlock            transactions wait for each other; this operation gives way
│   ├── CannotCommit        a participant refused or failed; all of them were aborted
│   ├── CannotAbort         the transaction was committed before
│   ├── TimeoutExpired      it was decided, and not everyone was told of it in time
│   ├── OutcomeUnknown      whoever had to commit failed to answer: it may have, or not
│   ├── CannotJoin          the participant came too late, or has lost what it did before
│   └── UnknownTransaction  the manager has no transaction of this id (any more)
├── ReactionError       the atomic step was undone
│   ├── ReactionFailed      a reaction's function raised; the cause is chained
│   └── Livelock            reactions fed each other beyond the bound
├── LinkError           something about another program, or the line to it
│   ├── CannotReach         nobody answers at this address, or not in our language
│   ├── PeerLost            the other program was lost while it was needed
│   ├── NotAllAnswered      some hosts answered and some did not; it says which
│   ├── HostClosed          you closed the host
│   ├── UnknownHost         no engaged host, or agent, is known by this name
│   ├── UnknownService      the host offers no service of this name
│   ├── NotExported         the object, or its method, cannot be called; nothing was done
│   ├── NoAnswer            a call was not answered in time: it may have been done or not
│   ├── RemoteError         the called method raised, at its host
│   ├── TokenAway           whoever has the token is out of reach, or does not let go of it
│   │   └── SessionLost     the host that used a shared session last is gone: it can be resumed
│   ├── SourceAway          the hosts at which the events live are out of reach: nothing was removed
│   ├── CannotSend          too large to be sent, or not valid Unicode; nothing was done
│   ├── AnswerTooLarge      it was done, but the answer is too large to be sent
│   └── BadFrame            the other program said what cannot be understood; the link was closed
├── LimitReached        a budget of the host, or of your connection to it, is used up
├── AccessError         you were recognised, or not, and refused
│   ├── NotAllowed          the space's rules do not allow you this operation
│   ├── WrongPassword       the space is protected, and this is not its password
│   ├── Stranger            the identity is not one that is known there
│   ├── IdentityChanged     the one who answers is not who it was the last time
│   ├── NotForUs            the sealed message is addressed to another identity
│   └── BadSeal             the sealed message was altered, or is not what or whose it claims
├── IdentityUnusable    the file of an identity is damaged, or open to others
├── LimeError           something about a LIME agent, its spaces or its journey
│   ├── PrivateSpace        the space is not shared, so nobody could end the wait
│   ├── NotOwner            the space belongs to another agent
│   ├── AgentEnded          the agent has ended, or gone on to another host
│   ├── LoadFailed          no agent was loaded at the other host; it says why
│   └── MigrationFailed     the agent did not move: it goes on where it was
│       └── UnknownAgentClass   the host does not know the agent's class
├── HeapDestroyed       the event heap was destroyed, here or at another host
├── DiscoveryFailed     no lookup service is at this address
├── ListenerFailed      a listener raised too often, and was dropped
├── UnknownEvent        raised by a listener that wants to be told no more
├── InvalidIterator     an iterator over a mailbox's events was closed or replaced
├── EvalFailed          a live tuple's function raised; described, not silent
├── PipelineError       something about the change log on Spark
│   ├── NoJava              there is no Java that Spark runs on; it says what to install
│   ├── CorruptSegment      a file of an archive is torn, altered or gone
│   ├── WrongSchema         it has a version of the schema that this Tupelo does not know
│   ├── CannotSink          these rows cannot become entries; nothing was written
│   ├── UnknownTable        the SQL names a table that is not there; it says which are
│   └── AuditFailed         the log says what cannot be; it says what, and how often
└── JournalError        the world outside broke it
    ├── SpaceInUse          another space has the file open
    ├── ForeignFile         the file is not a Tupelo journal; it was left as it was
    ├── DamagedFile         the file is torn or corrupt; it was left as it was
    ├── JournalFailed       the disk refused; the space is closed, reopen it to recover
    ├── DiskFull            the disk has no room; the space goes on when it has
    └── LogTrimmed          the changes asked for are no longer (or were never) kept

"No match" is an answer, not an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from tupelo.errors import damage
from tupelo.errors.hosts import AccessError as AccessError
from tupelo.errors.hosts import AnswerTooLarge as AnswerTooLarge
from tupelo.errors.hosts import BadFrame as BadFrame
from tupelo.errors.hosts import BadSeal as BadSeal
from tupelo.errors.hosts import CannotReach as CannotReach
from tupelo.errors.hosts import CannotSend as CannotSend
from tupelo.errors.hosts import HostClosed as HostClosed
from tupelo.errors.hosts import IdentityChanged as IdentityChanged
from tupelo.errors.hosts import LimitReached as LimitReached
from tupelo.errors.hosts import LinkError as LinkError
from tupelo.errors.hosts import NoAnswer as NoAnswer
from tupelo.errors.hosts import NotAllAnswered as NotAllAnswered
from tupelo.errors.hosts import NotAllowed as NotAllowed
from tupelo.errors.hosts import NotExported as NotExported
from tupelo.errors.hosts import NotForUs as NotForUs
from tupelo.errors.hosts import PeerLost as PeerLost
from tupelo.errors.hosts import RemoteError as RemoteError
from tupelo.errors.hosts import SessionLost as SessionLost
from tupelo.errors.hosts import SourceAway as SourceAway
from tupelo.errors.hosts import Stranger as Stranger
from tupelo.errors.hosts import TokenAway as TokenAway
from tupelo.errors.hosts import UnknownHost as UnknownHost
from tupelo.errors.hosts import UnknownService as UnknownService
from tupelo.errors.hosts import WrongPassword as WrongPassword
from tupelo.errors.pipeline import AuditFailed as AuditFailed
from tupelo.errors.pipeline import CannotSink as CannotSink
from tupelo.errors.pipeline import CorruptSegment as CorruptSegment
from tupelo.errors.pipeline import NoJava as NoJava
from tupelo.errors.pipeline import PipelineError as PipelineError
from tupelo.errors.pipeline import UnknownTable as UnknownTable
from tupelo.errors.pipeline import WrongSchema as WrongSchema
from tupelo.errors.root import TupeloError as TupeloError


class BadInput(TupeloError, ValueError):
    """An argument cannot be used; nothing was done."""


class BadEntry(BadInput):
    """A value outside the closed set. `where` is the path to it, `found` its type."""

    def __init__(self, message: str, *, where: str = "entry", found: type | None = None) -> None:
        super().__init__(message)
        self.where = where
        self.found = found


class BadTemplate(BadInput):
    """A template that cannot be asked, or whose `Where` function raised (chained)."""


class BadArgument(BadInput):
    """Any other argument that cannot be used."""

    def __init__(self, argument: str, expected: str, got: object) -> None:
        super().__init__(f"{argument}= must be {expected}, not {got!r}")
        self.argument = argument
        self.expected = expected


class BadSelector(BadInput):
    """A selector for which the container has no coordinator, or a coordinator that needs one."""


class UnknownType(TupeloError):
    """The entry's class is not known here, so it cannot be built; it stays in the space.

    `name` is the class, and `fields` are the names of its fields, as they are in the entry.
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
    """What was leased is gone: it expired, was cancelled, taken or evicted."""


class MatchSetInvalid(LeaseLost):
    """The match set is over, so what it held is not to be relied on."""


class Refused(TupeloError):
    """The space cannot take what was to be written, and nothing was. What is refused now may be
    taken when something has left, so a write can wait, unless it is `hopeless`."""

    def __init__(self, message: str = "", *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.hopeless = hopeless


class SpaceFull(Refused):
    """The capacity is reached and nothing may be evicted; nothing was written."""


class DuplicateKey(Refused):
    """Keys are unique here, and another entry has this `key`."""

    def __init__(self, key: object, *, hopeless: bool = False) -> None:
        super().__init__(f"there is an entry with the key {key!r} already", hopeless=hopeless)
        self.key = key


class CountNotMet(TupeloError):
    """An XVSM selector asked for more entries than there were in time."""

    def __init__(self, message: str, *, wanted: int, found: int) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.found = found


class EntryLocked(CountNotMet):
    """What an XVSM test asked for is there, and other transactions hold it."""


class IndexOutOfRange(CountNotMet):
    """Nothing stands at this index of a vector."""


class ContainerError(TupeloError):
    """Something about an XVSM container."""


class ContainerNotFound(ContainerError):
    """There is no container of this name, or it was destroyed."""


class ContainerExists(ContainerError):
    """Another container has this name."""


class AspectError(TupeloError):
    """An aspect stopped the operation; what can be undone was."""


class AspectVeto(AspectError):
    """An aspect forbids the operation; `reason` says why."""

    def __init__(self, point: str, reason: str) -> None:
        super().__init__(f"vetoed at {point}: {reason}")
        self.point = point
        self.reason = reason


class AspectFailed(AspectError):
    """An aspect raised; its error is the cause of this one."""


class PutOff(AspectError):
    """Aspects put the operation off, again and again, until its time was up."""


class SpaceClosed(TupeloError):
    """The space was closed, before or while this operation waited."""


class TransactionError(TupeloError):
    """Something about a transaction."""


class TransactionEnded(TransactionError):
    """The transaction can do no more: `state` says what became of it."""

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
    """Nothing was committed: `participant` refused or failed, which is the cause if it raised.
    It is empty if the transaction was aborted for another reason."""

    def __init__(self, txn_id: str, participant: str, reason: str) -> None:
        whose = f"{participant} could not promise to commit: " if participant else ""
        super().__init__(f"transaction {txn_id} was aborted: {whose}{reason}")
        self.txn_id = txn_id
        self.participant = participant


class CannotAbort(TransactionError):
    """The transaction was committed before, and cannot be aborted any more."""

    def __init__(self, txn_id: str) -> None:
        super().__init__(f"transaction {txn_id} was committed; it cannot be aborted any more")
        self.txn_id = txn_id


class TimeoutExpired(TransactionError):
    """The transaction came to its end, which `state` names, but the time to wait was over before
    the `untold` participants were told of it."""

    def __init__(self, txn_id: str, state: str, untold: list[str]) -> None:
        names = f": {', '.join(untold)}" if untold else ""
        super().__init__(
            f"transaction {txn_id} is {state}, but not all participants were told in time{names}"
        )
        self.txn_id = txn_id
        self.state = state
        self.untold = untold


class OutcomeUnknown(TransactionError):
    """The only one who had something to commit did not answer; ask it what became of it."""

    def __init__(self, txn_id: str, participant: str, reason: str) -> None:
        super().__init__(
            f"it is not known whether transaction {txn_id} was committed: {participant} failed "
            f"while it was told: {reason}"
        )
        self.txn_id = txn_id
        self.participant = participant


class CannotJoin(TransactionError):
    """A participant cannot take part in this transaction."""


class UnknownTransaction(TransactionError):
    """No transaction of this id is known: it never was, or has ended and been forgotten."""

    def __init__(self, txn_id: object) -> None:
        super().__init__(f"no transaction {txn_id!r} is known here")
        self.txn_id = txn_id


class ReactionError(TupeloError):
    """A reaction stopped the atomic step, which was undone as a whole."""


class ReactionFailed(ReactionError):
    """A reaction's function raised; its error is the cause of this one."""


class Livelock(ReactionError):
    """Reactions fed each other beyond the space's bound."""

    def __init__(self, bound: int) -> None:
        super().__init__(
            f"reactions fired {bound} times in one step without coming to rest; the step was undone"
        )
        self.bound = bound


class IdentityUnusable(TupeloError):
    """The file of an identity is damaged, or others may read it."""


class LimeError(TupeloError):
    """Something about a LIME agent, its interface tuple spaces or its journey."""


class PrivateSpace(LimeError):
    """The interface tuple space is private: only its agent could write what it would wait for."""

    def __init__(self, operation: str, space: str) -> None:
        super().__init__(
            f"{operation} would wait for ever in the space {space!r}, which is private: "
            "share it first, or ask without waiting"
        )
        self.operation = operation
        self.space = space


class NotOwner(LimeError):
    """An interface tuple space is its agent's alone: nobody else may use it."""

    def __init__(self, space: str, owner: str, reason: str = "") -> None:
        super().__init__(
            f"the space {space!r} is the agent {owner}'s alone" + (f": {reason}" if reason else "")
        )
        self.space = space
        self.owner = owner


class AgentEnded(LimeError):
    """The `agent` is not here (any more): it has ended, or gone on to another host."""

    def __init__(self, agent: str) -> None:
        super().__init__(f"the agent {agent} has ended here, or gone on to another host")
        self.agent = agent


class MigrationFailed(LimeError):
    """The agent was not moved to `host`; it goes on where it was."""

    def __init__(self, agent: str, host: str, reason: str) -> None:
        super().__init__(f"the agent {agent} stays where it is, and not at {host}: {reason}")
        self.agent = agent
        self.host = host
        self.reason = reason


class UnknownAgentClass(MigrationFailed):
    """The `host` does not know the agent's class, and code is never shipped."""

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
    """Nobody is there: no lookup service has claimed this `address` in this process."""

    def __init__(self, address: str) -> None:
        super().__init__(f"there is no lookup service at {address}; start one there first")
        self.address = address


class ListenerFailed(TupeloError):
    """A listener, or a callback, was dropped; what it raised last is the cause."""


class UnknownEvent(TupeloError):
    """Raised by a listener that does not want this event: it is told no more."""


class InvalidIterator(TupeloError):
    """The iterator hands out no more events of its mailbox: it was closed, another took its place,
    events are delivered to a listener instead, or the registration is gone."""


class EvalFailed(TupeloError):
    """A live tuple could not be computed; the reason is in the message."""


class JournalError(TupeloError):
    """The file, the disk or another program stands in the way."""


class SpaceInUse(JournalError):
    """Another space, here or in another process, has this file open."""


class ForeignFile(JournalError):
    """Not a Tupelo journal, or one of a newer version; it was left as it was."""


class DamagedFile(JournalError):
    """A Tupelo journal that is torn or corrupt; it was left as it was. `found` is what is wrong,
    each with a `text` and the positions that are meant."""

    def __init__(self, message: str, found: Sequence[damage.Damage] = ()) -> None:
        super().__init__(message)
        self.found = tuple(found)


class DiskFull(JournalError):
    """The disk has no room for changes; what was there before can be read, and when there is room
    again the space goes on. Nothing was done, unless it is `in_doubt`: then it was done in memory,
    and is kept as soon as there is room."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt


class JournalFailed(JournalError):
    """The disk refused a commit. The space is closed; reopen it to recover."""


class LogTrimmed(JournalError):
    """The changes asked for are not kept; `first` is the earliest position that is."""

    def __init__(self, message: str, first: int) -> None:
        super().__init__(message)
        self.first = first
