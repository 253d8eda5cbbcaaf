"""Tupelo: programs meet in spaces. They write entries, and find them by content, not by address."""

from tupelo import aio, errors
from tupelo.errors import TupeloError
from tupelo.space.blocking import Space, Transaction
from tupelo.space.capacity import Capacity
from tupelo.space.clock import ManualClock
from tupelo.space.handles import Reaction, Session, Subscription
from tupelo.space.order import Fifo, Key, Lifo, Order, Random, Vector
from tupelo.space.reaction import Step
from tupelo.values.change import Change
from tupelo.values.kind import entry
from tupelo.values.lease import Lease, longest
from tupelo.values.notice import Notice
from tupelo.values.parts import ANY, Between, Exactly, Not, OneOf, Where
from tupelo.values.template import Named, Template

__version__ = "0.1.0"

__all__ = [
    "ANY",
    "Between",
    "Capacity",
    "Change",
    "Exactly",
    "Fifo",
    "Key",
    "Lease",
    "Lifo",
    "ManualClock",
    "Named",
    "Not",
    "Notice",
    "OneOf",
    "Order",
    "Random",
    "Reaction",
    "Session",
    "Space",
    "Step",
    "Subscription",
    "Template",
    "Transaction",
    "TupeloError",
    "Vector",
    "Where",
    "aio",
    "entry",
    "errors",
    "longest",
]
