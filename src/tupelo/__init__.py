"""Tupelo: programs coordinate through spaces, in which entries are found by their content."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from tupelo.space.blocking import MatchSet, Reaction, Session, Space, Subscription, Transaction
    from tupelo.space.capacity import Capacity
    from tupelo.space.clock import ManualClock
    from tupelo.space.order import Fifo, Key, Lifo, Order, Queue, Random, Stack, Vector
    from tupelo.space.protocol import SpaceLike
    from tupelo.space.reaction import Step
    from tupelo.values.change import Change, Notice
    from tupelo.values.entry import About
    from tupelo.values.field_parts import (
        ANY,
        Between,
        Exactly,
        Not,
        OneOf,
        Prefix,
        Regex,
        Suffix,
        Where,
    )
    from tupelo.values.holder import Delayed, InHand
    from tupelo.values.kind import entry
    from tupelo.values.lease import Lease, longest
    from tupelo.values.scope import HERE, Coverage, Scope
    from tupelo.values.template import Named, Template

__version__ = "0.1.0"

__all__ = [
    "ANY",
    "ANYONE",
    "About",
    "Access",
    "AgentPresence",
    "Archiving",
    "Between",
    "Capacity",
    "Change",
    "Coverage",
    "Delayed",
    "Doubt",
    "Exactly",
    "Fifo",
    "HERE",
    "Host",
    "HostPresence",
    "Identity",
    "InHand",
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
    "Prefix",
    "Queue",
    "Random",
    "Reaction",
    "Regex",
    "Scope",
    "Session",
    "Space",
    "SpaceLike",
    "SpacePresence",
    "Stack",
    "Step",
    "Subscription",
    "Suffix",
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

_NAMES = {
    "errors": "TupeloError",
    "federation.client.connect": "connect",
    "federation.hosts.doors": "Host",
    "federation.hosts.folder": "Archiving",
    "federation.hosts.limits": "Limits",
    "federation.hosts.presence": "AgentPresence HostPresence SpacePresence",
    "federation.identity.access": "ANYONE LOCAL Access",
    "federation.identity.keys": "Identity",
    "federation.identity.trust": "Trust",
    "federation.spaces.hosted": "Doubt",
    "federation.transactions": "transaction",
    "space.blocking": "MatchSet Reaction Session Space Subscription Transaction",
    "space.capacity": "Capacity",
    "space.clock": "ManualClock",
    "space.order": "Fifo Key Lifo Order Queue Random Stack Vector",
    "space.protocol": "SpaceLike",
    "space.reaction": "Step",
    "values.change": "Change Notice",
    "values.entry": "About",
    "values.field_parts": "ANY Between Exactly Not OneOf Prefix Regex Suffix Where",
    "values.holder": "Delayed InHand",
    "values.kind": "entry",
    "values.lease": "Lease longest",
    "values.scope": "HERE Coverage Scope",
    "values.template": "Named Template",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used, so that a command that reads a file does not
        load the code of hosts."""
        if name in ("aio", "errors"):
            return import_module(f"tupelo.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module 'tupelo' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"tupelo.{_MODULES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
