"""Tupelo: programs meet in spaces. They write entries, and find them by content, not by address."""

from tupelo import aio, errors
from tupelo.errors import TupeloError
from tupelo.federation.client.connect import connect
from tupelo.federation.hosts.doors import Host
from tupelo.federation.hosts.folder import Archiving
from tupelo.federation.hosts.limits import Limits
from tupelo.federation.hosts.presence import AgentPresence, HostPresence, SpacePresence
from tupelo.federation.identity.access import ANYONE, LOCAL, Access
from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.trust import Trust
from tupelo.federation.spaces.hosted import Doubt
from tupelo.federation.transactions import transaction
from tupelo.space.blocking import Space, Transaction
from tupelo.space.capacity import Capacity
from tupelo.space.clock import ManualClock
from tupelo.space.handles import MatchSet, Reaction, Session, Subscription
from tupelo.space.order import Fifo, Key, Lifo, Order, Queue, Random, Stack, Vector
from tupelo.space.protocol import SpaceLike
from tupelo.space.reaction import Step
from tupelo.values.change import Change
from tupelo.values.coverage import Coverage
from tupelo.values.field_parts import ANY, Between, Exactly, Not, OneOf, Where
from tupelo.values.kind import entry
from tupelo.values.lease import Lease, longest
from tupelo.values.notice import Notice
from tupelo.values.scope import HERE, Scope
from tupelo.values.template import Named, Template

__version__ = "0.1.0"

__all__ = [
    "ANY",
    "ANYONE",
    "Access",
    "AgentPresence",
    "Archiving",
    "Between",
    "Capacity",
    "Change",
    "Coverage",
    "Doubt",
    "Exactly",
    "Fifo",
    "HERE",
    "Host",
    "HostPresence",
    "Identity",
    "Key",
    "LOCAL",
    "Lease",
    "Lifo",
    "Limits",
    "ManualClock",
    "MatchSet",
    "Named",
    "Not",
    "Notice",
    "OneOf",
    "Order",
    "Queue",
    "Random",
    "Reaction",
    "Scope",
    "Session",
    "Space",
    "SpaceLike",
    "SpacePresence",
    "Stack",
    "Step",
    "Subscription",
    "Template",
    "Transaction",
    "Trust",
    "TupeloError",
    "Vector",
    "Where",
    "aio",
    "connect",
    "entry",
    "errors",
    "longest",
    "transaction",
]
