"""The async door: the names of `tupelo`, as coroutines."""

from tupelo.federation.client.connect import connect_async as connect
from tupelo.federation.hosts.doors import AsyncHost as Host
from tupelo.space.asynchronous import Session, Space, Subscription, Transaction

__all__ = ["Host", "Session", "Space", "Subscription", "Transaction", "connect"]
