"""JavaSpaces and JavaSpace05, with the names of Jini.

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
| services over the network           | offer(host, service); LookupLocator, LookupDiscovery       |

Times are in seconds; `FOREVER`, `Lease.ANY` (as the space likes it) and `NO_WAIT` are constants.
"""

from tupelo.errors import ListenerFailed, UnknownEvent
from tupelo.models.javaspaces.events import (
    AvailabilityEvent,
    EventRegistration,
    RemoteEvent,
    RemoteEventIterator,
    Retry,
)
from tupelo.models.javaspaces.leases import (
    ANY_LEASE,
    FOREVER,
    AsyncLease,
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
    LookupLocator,
    LookupService,
    ServiceEvent,
    ServiceRegistration,
)
from tupelo.models.javaspaces.mailbox import EventMailbox, MailboxRegistration
from tupelo.models.javaspaces.remote.clients import (
    RemoteEventMailbox,
    RemoteLeaseRenewalService,
    RemoteLeaseRenewalSet,
    RemoteLookupService,
    RemoteMailboxRegistration,
)
from tupelo.models.javaspaces.remote.hosting import offer
from tupelo.models.javaspaces.remote.multicast import LookupDiscovery, announce
from tupelo.models.javaspaces.remote.wire import ServiceLocation
from tupelo.models.javaspaces.renewal import (
    EXPIRATION_WARNING_EVENT_ID,
    RENEWAL_FAILURE_EVENT_ID,
    ExpirationWarningEvent,
    LeaseRenewalEvent,
    LeaseRenewalManager,
    LeaseRenewalService,
    LeaseRenewalSet,
    RenewalFailureEvent,
)
from tupelo.models.javaspaces.service_items import ServiceItem, ServiceMatches, ServiceTemplate
from tupelo.models.javaspaces.space import (
    NO_WAIT,
    Entry,
    JavaSpace,
    JavaSpace05,
    MatchSet,
    Snapshot,
)
from tupelo.models.javaspaces.space_service import JavaSpaceService, XVSMService
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
from tupelo.space.matchset import Skipped

__all__ = [
    "ABORTED",
    "ACTIVE",
    "ANY_LEASE",
    "COMMITTED",
    "EXPIRATION_WARNING_EVENT_ID",
    "FOREVER",
    "NOTCHANGED",
    "NO_WAIT",
    "PREPARED",
    "RENEWAL_FAILURE_EVENT_ID",
    "TRANSITION_MATCH_MATCH",
    "TRANSITION_MATCH_NOMATCH",
    "TRANSITION_NOMATCH_MATCH",
    "UNKNOWN",
    "VOTING",
    "AsyncLease",
    "AsyncTransaction",
    "AsyncTransactionManager",
    "AvailabilityEvent",
    "Created",
    "Entry",
    "EventMailbox",
    "EventRegistration",
    "ExpirationWarningEvent",
    "FixedLeasePeriodPolicy",
    "JavaSpace",
    "JavaSpace05",
    "JavaSpaceService",
    "Lease",
    "LeaseMap",
    "LeaseOutcome",
    "LeaseRenewalEvent",
    "LeaseRenewalManager",
    "LeaseRenewalService",
    "LeaseRenewalSet",
    "ListenerFailed",
    "LookupDiscovery",
    "LookupLocator",
    "LookupService",
    "MailboxRegistration",
    "MatchSet",
    "PolicyByKind",
    "RemoteEvent",
    "RemoteEventIterator",
    "RemoteEventMailbox",
    "RemoteLeaseRenewalService",
    "RemoteLeaseRenewalSet",
    "RemoteLookupService",
    "RemoteMailboxRegistration",
    "RenewalFailureEvent",
    "Retry",
    "ServiceEvent",
    "ServiceItem",
    "ServiceLocation",
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
    "announce",
    "offer",
]
