"""The async API: the names of `tupelo`, with coroutines."""

from tupelo.federation.client.connect import connect_async as connect
from tupelo.federation.hosts.doors import AsyncHost as Host
from tupelo.space.asynchronous import MatchSet, Session, Space, Subscription, Transaction
from tupelo.space.protocol import AsyncSpaceLike as SpaceLike
from tupelo.values.lease import AsyncLease as Lease

__all__ = [
    "Host",
    "Lease",
    "MatchSet",
    "Session",
    "Space",
    "SpaceLike",
    "Subscription",
    "Transaction",
    "connect",
]
