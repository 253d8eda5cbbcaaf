"""JavaSpaces and JavaSpace05: the doors with the words of Jini.

| JavaSpaces                          | Tupelo                                                     |
| ----------------------------------- | ---------------------------------------------------------- |
| space, entry, template              | space; a dataclass; one whose None fields match anything   |
| write(entry, txn, lease)            | write(entry, lease=, txn=); the lease can be renewed       |
| read, take(template, txn, timeout)  | read, take(template, wait=, txn=): None when time is up    |
| readIfExists, takeIfExists          | if_exists=True: wait for the fate of what is locked only   |
| notify                              | subscribe, with a callback that is tried again if it fails |
| snapshot                            | a template that is compiled once                           |
| JavaSpace05.write, take (of many)   | write_all, take_all with templates joined by `|`           |
| contents, MatchSet                  | a leased set of matches, over when one of them is taken    |
| registerForAvailabilityEvent        | subscribe(available=) with templates joined by `|`         |
| Transaction, TransactionManager     | a shared transaction, two-phase over all that take part    |
| Lease, LeaseMap, renewal manager    | lease; many renewed in one step; renewed in time by itself |
| Lookup, event mailbox               | spaces of registrations and of events                      |

Times are in seconds; `FOREVER`, `Lease.ANY` (as the space likes it) and `NO_WAIT` are constants.
"""

from tupelo.errors import ListenerFailed, UnknownEvent
from tupelo.models.javaspaces.discovery import (
    LookupLocator,
)
from tupelo.models.javaspaces.events import (
    AvailabilityEvent,
    EventRegistration,
    RemoteEvent,
    Retry,
)
from tupelo.models.javaspaces.leases import (
    ANY_LEASE,
    FOREVER,
    FixedLeasePeriodPolicy,
    Lease,
    LeaseMap,
    LeaseOutcome,
    PolicyByKind,
)
from tupelo.models.javaspaces.lookup import (
    TRANSITION_MATCH_MATCH,
    TRANSITION_MATCH_NOMATCH,
    TRANSITION_NOMATCH_MATCH,
    LookupService,
    ServiceEvent,
    ServiceRegistration,
)
from tupelo.models.javaspaces.mailbox import (
    EventMailbox,
    MailboxRegistration,
)
from tupelo.models.javaspaces.matchset import (
    MatchSet,
    Skipped,
)
from tupelo.models.javaspaces.renewal import (
    LeaseRenewalEvent,
    LeaseRenewalManager,
)
from tupelo.models.javaspaces.service import (
    JavaSpaceService,
    XVSMService,
)
from tupelo.models.javaspaces.services import (
    ServiceItem,
    ServiceMatches,
    ServiceTemplate,
)
from tupelo.models.javaspaces.snapshot import (
    Snapshot,
)
from tupelo.models.javaspaces.space import (
    NO_WAIT,
    Entry,
    JavaSpace,
    JavaSpace05,
)
from tupelo.models.javaspaces.transactions import (
    ABORTED,
    ACTIVE,
    COMMITTED,
    NOTCHANGED,
    PREPARED,
    UNKNOWN,
    VOTING,
    AsyncTransaction,
    AsyncTransactionManager,
    Created,
    Transaction,
    TransactionManager,
    TransactionParticipant,
)

__all__ = [
    "ABORTED",
    "ACTIVE",
    "ANY_LEASE",
    "COMMITTED",
    "FOREVER",
    "NOTCHANGED",
    "NO_WAIT",
    "PREPARED",
    "TRANSITION_MATCH_MATCH",
    "TRANSITION_MATCH_NOMATCH",
    "TRANSITION_NOMATCH_MATCH",
    "UNKNOWN",
    "VOTING",
    "AsyncTransaction",
    "AsyncTransactionManager",
    "AvailabilityEvent",
    "Created",
    "Entry",
    "EventMailbox",
    "EventRegistration",
    "FixedLeasePeriodPolicy",
    "JavaSpace",
    "JavaSpace05",
    "JavaSpaceService",
    "Lease",
    "LeaseMap",
    "LeaseOutcome",
    "LeaseRenewalEvent",
    "LeaseRenewalManager",
    "ListenerFailed",
    "LookupLocator",
    "LookupService",
    "MailboxRegistration",
    "MatchSet",
    "PolicyByKind",
    "RemoteEvent",
    "Retry",
    "ServiceEvent",
    "ServiceItem",
    "ServiceMatches",
    "ServiceRegistration",
    "ServiceTemplate",
    "Skipped",
    "Snapshot",
    "Transaction",
    "TransactionManager",
    "TransactionParticipant",
    "UnknownEvent",
    "XVSMService",
]
