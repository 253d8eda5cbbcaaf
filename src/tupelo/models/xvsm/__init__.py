"""XVSM, with the names of MozartSpaces (the thesis, chapter 5, and MozartSpaces 2).

| XVSM, MozartSpaces           | Tupelo                                                           |
| ---------------------------- | ---------------------------------------------------------------- |
| space (core, peer)           | a Capi: named spaces, and a registry space that names them       |
| site                         | a host that offers them: `capi.offer(host)`, `Capi(site=uri)`    |
| container, cref              | a space with coordinators; `cref.space` is it                    |
| xvsm://host:7700/container   | the URI of a container, wherever a cref is wanted                |
| size of a container          | Capacity(entries=size)                                           |
| entry, tuple, AtomicEntry    | entry: a tuple, a dataclass; any other value in an AtomicEntry   |
| coordinator                  | an order, and perhaps a field stored in front of the entry       |
| coordination data            | selectors given with a written entry: Entry(value, selector)     |
| selector, selector chain     | a template, and an order that chooses                            |
| count, COUNT_ALL, COUNT_MAX  | limit; all, if_exists=True; all, wait=0                          |
| read, take                   | read_all, take_all (of one: read, take)                          |
| test                         | how many entries a read or take would return                     |
| isolation level              | whether a read locks entries, and sees those that others took    |
| destroy                      | take, and return only the number                                 |
| write                        | write_all, waiting while the container is full or a key is taken |
| shift                        | remove what is in the way, and write, in one transaction         |
| timeout                      | wait, in seconds; INFINITE_TIMEOUT waits for ever                |
| transaction                  | a shared transaction, over any number of spaces                  |
| aspect, IPoint               | a function before or after an operation, in its transaction      |
| notification                 | an aspect that reports operations when they have committed       |
| lookup, create, destroy container | read, write, take a row of the registry                     |

Where the thesis leaves a choice, or MozartSpaces differs: without a selector the AnySelector is
used, which returns the oldest entries (in the thesis, the RandomSelector; a container has both);
entries that another transaction holds are skipped while there are others; times are in seconds; a
timeout raises CountNotMet. At a site elsewhere, transactions and notifications end with the link,
and code is not sent: see `serving` and `site`.
"""

from tupelo.models.xvsm.active import (
    ActiveCoordinator,
    ActiveEntry,
    ActiveError,
    ActiveSpace,
    current,
)
from tupelo.models.xvsm.aspects import (
    GLOBAL_POINTS,
    LOCAL_POINTS,
    OK,
    RESCHEDULE,
    SKIP,
    Aspect,
    Point,
    Registration,
    Request,
    Verdict,
    Veto,
)
from tupelo.models.xvsm.capi import INFINITE, INFINITE_TIMEOUT, TRY_ONCE, AsyncCapi, Capi
from tupelo.models.xvsm.container import AtomicEntry, Container, Entry
from tupelo.models.xvsm.coordinators import (
    AnyCoordinator,
    Coordinator,
    FifoCoordinator,
    KeyCoordinator,
    LabelCoordinator,
    LifoCoordinator,
    LindaCoordinator,
    QueryCoordinator,
    RandomCoordinator,
    TypeCoordinator,
    VectorCoordinator,
)
from tupelo.models.xvsm.notifications import Notification
from tupelo.models.xvsm.selectors import (
    COUNT_ALL,
    COUNT_MAX,
    READ_COMMITTED,
    REPEATABLE_READ,
    ActiveSelector,
    AnySelector,
    FifoSelector,
    IsolationLevel,
    KeySelector,
    LabelSelector,
    LifoSelector,
    LindaSelector,
    Query,
    QuerySelector,
    RandomSelector,
    Selector,
    TypeSelector,
    VectorSelector,
)
from tupelo.models.xvsm.site import Helper, RemoteContainer, RemoteTransaction
from tupelo.space.shared import SharedTransaction as Transaction

__all__ = [
    "COUNT_ALL",
    "COUNT_MAX",
    "GLOBAL_POINTS",
    "INFINITE",
    "INFINITE_TIMEOUT",
    "LOCAL_POINTS",
    "OK",
    "READ_COMMITTED",
    "REPEATABLE_READ",
    "RESCHEDULE",
    "SKIP",
    "TRY_ONCE",
    "ActiveCoordinator",
    "ActiveEntry",
    "ActiveError",
    "ActiveSelector",
    "ActiveSpace",
    "AnyCoordinator",
    "AnySelector",
    "Aspect",
    "AsyncCapi",
    "AtomicEntry",
    "Capi",
    "Container",
    "Coordinator",
    "Entry",
    "FifoCoordinator",
    "FifoSelector",
    "Helper",
    "IsolationLevel",
    "KeyCoordinator",
    "KeySelector",
    "LabelCoordinator",
    "LabelSelector",
    "LifoCoordinator",
    "LifoSelector",
    "LindaCoordinator",
    "LindaSelector",
    "Notification",
    "Point",
    "Query",
    "QueryCoordinator",
    "QuerySelector",
    "RandomCoordinator",
    "RandomSelector",
    "Registration",
    "RemoteContainer",
    "RemoteTransaction",
    "Request",
    "Selector",
    "Transaction",
    "TypeCoordinator",
    "TypeSelector",
    "VectorCoordinator",
    "VectorSelector",
    "Verdict",
    "Veto",
    "current",
]
