"""The async door: the names of `tupelo`, as coroutines."""

from tupelo.space.asynchronous import Session, Space, Subscription, Transaction

__all__ = ["Session", "Space", "Subscription", "Transaction"]
