"""The public names are a contract: people write programs against them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import tupelo
from tupelo import aio, errors, lab, pipeline, queue, testing
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.models import event_heap, javaspaces, lime, linda, melon, pubsub, rpc, xvsm
from tupelo.space.protocol import (
    OPERATIONS,
    MatchSetLike,
    SessionLike,
    SubscriptionLike,
    TransactionLike,
)

JAVASPACES = [
    "Entry",
    "JavaSpace",
    "JavaSpace05",
    "MatchSet",
    "Lease",
    "LeaseMap",
    "LeaseRenewalManager",
    "LeaseRenewalService",
    "LeaseRenewalSet",
    "TransactionManager",
    "AsyncTransactionManager",
    "LookupService",
    "LookupDiscovery",
    "LookupLocator",
    "ServiceLocation",
    "offer",
    "announce",
    "RemoteEvent",
    "EventMailbox",
    "RemoteEventIterator",
    "EventRegistration",
    "NO_WAIT",
    "FOREVER",
]

LIME = [
    "Agent",
    "AgentLocation",
    "AgentPackages",
    "EngineFactory",
    "Host",
    "HostLocation",
    "LimeSystemTupleSpace",
    "LimeTupleSpace",
    "LocalizedReaction",
    "ONCE",
    "ONCE_PER_TUPLE",
    "Reaction",
    "ReactionEvent",
    "RegisteredReaction",
    "TupleEngine",
    "UNSPECIFIED",
    "UbiquitousReaction",
    "set_shared",
    "sign_package",
]

LIME_SPACE = [
    "name",
    "is_owner",
    "is_shared",
    "set_shared",
    "out",
    "in_",
    "rd",
    "inp",
    "rdp",
    "ing",
    "rdg",
    "add_strong_reaction",
    "add_weak_reaction",
    "remove_reaction",
    "is_registered_reaction",
    "get_registered_reactions",
]

PUBSUB = ["close", "collect", "hosts", "offer", "publish", "subscribe", "withdraw"]

MELON = ["Bound", "Collected", "Copies", "Melon"]

MELON_PROCESS = [
    "close",
    "identity",
    "read",
    "read_all",
    "refused",
    "store",
    "take",
    "take_all",
    "unpin",
    "write",
]

EVENT_HEAP = [
    "Bridge",
    "DestroyRequest",
    "Event",
    "EventHeap",
    "HeapRequest",
    "Made",
    "Query",
    "Session",
    "SessionRequest",
    "View",
    "ViewCloned",
    "ViewRequest",
]

HEAP = [
    "adopt",
    "close",
    "create",
    "destroy",
    "get",
    "get_all",
    "hosts",
    "put",
    "put_all",
    "query",
    "register",
    "remove",
    "session",
    "snoop",
    "snoop_all",
    "view",
    "wait",
    "wait_to_remove",
]

HEAP_SESSION = ["clone", "close", "destroy", "get", "get_all", "id", "resume", "share", "wait"]

HEAP_VIEW = ["cloned", "is_owner", "put", "put_all", "replay", "session"]

PIPELINE = ["changes", "session", "tables", "template"]

REPLIES = ["cancel", "close", "get", "is_over", "lost", "missed"]

PROMISED = [
    "ANY",
    "Between",
    "Prefix",
    "Suffix",
    "Regex",
    "OneOf",
    "Not",
    "Where",
    "Exactly",
    "Named",
    "Template",
    "entry",
    "Space",
    "Transaction",
    "Session",
    "Subscription",
    "Reaction",
    "Step",
    "Lease",
    "Notice",
    "Change",
    "Order",
    "Fifo",
    "Lifo",
    "Queue",
    "Stack",
    "Random",
    "Key",
    "Vector",
    "Capacity",
    "ManualClock",
    "MatchSet",
    "longest",
    "TupeloError",
    "errors",
    "aio",
    "ANYONE",
    "About",
    "Access",
    "Limits",
    "AgentPresence",
    "Archiving",
    "Coverage",
    "Delayed",
    "Doubt",
    "HERE",
    "Host",
    "HostPresence",
    "Identity",
    "InHand",
    "LOCAL",
    "Scope",
    "SpaceLike",
    "SpacePresence",
    "Trust",
    "connect",
    "transaction",
]

METHODS = [
    "write",
    "write_all",
    "read",
    "take",
    "read_all",
    "take_all",
    "count",
    "match_set",
    "transaction",
    "in_doubt",
    "in_hand",
    "delayed",
    "session",
    "subscribe",
    "react",
    "changes",
    "trim",
    "compact",
    "close",
    "name",
]

LINDA = [
    "out",
    "in_",
    "rd",
    "inp",
    "rdp",
    "ing",
    "rdg",
    "eval",
    "collect",
    "copy_collect",
    "count",
    "delete",
    "exchange",
    "close",
]


def public(thing: object) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def test_tupelo_offers_what_was_promised_and_nothing_else():
    assert set(tupelo.__all__) == set(PROMISED)
    assert all(hasattr(tupelo, name) for name in PROMISED)


def test_both_doors_have_the_same_methods():
    for space in (tupelo.Space, aio.Space):
        assert {name for name in dir(space) if name[0] != "_"} == set(METHODS)


KINDS = (aio.Space, RemoteSpace, FederatedSpace, tupelo.SpaceLike, aio.SpaceLike)


HANDED_OUT: dict[type, Callable[[tupelo.SpaceLike], object]] = {
    TransactionLike: lambda space: space.transaction(),
    SessionLike: lambda space: space.session(),
    SubscriptionLike: lambda space: space.subscribe(),
    MatchSetLike: lambda space: space.match_set(),
}


def test_the_protocol_names_every_method():
    assert set(METHODS) == {*OPERATIONS, "name"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_kind_of_space_has_the_same_methods_with_the_same_arguments(kind):
    for name in OPERATIONS:
        ours = [(p.name, p.kind, p.default) for p in signature(getattr(tupelo.Space, name))]
        theirs = [(p.name, p.kind, p.default) for p in signature(getattr(kind, name))]
        assert theirs == ours, name


def test_a_space_shows_its_public_names_only():
    with tupelo.Host("shop", listen="127.0.0.1:0") as host:
        spaces = [tupelo.Space(), host.space("jobs"), host.space("jobs").here]
        with tupelo.connect(f"{host.url}jobs") as remote:
            for space in (*spaces, remote):
                shown = {name for name in dir(space) if not name.startswith("_")}
                assert shown - {"here", "host", "space", "agent", "is_async"} == set(METHODS)


def test_what_spaces_hand_out_shows_its_public_names_only():
    with tupelo.Host("shop", listen="127.0.0.1:0") as host, tupelo.Space() as local:
        spanning = host.space("jobs")
        with tupelo.connect(f"{host.url}jobs") as remote:
            for protocol, make in HANDED_OUT.items():
                for space in (local, spanning, spanning.here, remote):
                    made: Any = make(space)
                    shown = {name for name in dir(made) if not name.startswith("_")}
                    assert shown - {"is_async", "refresh"} == public(protocol), (protocol, space)
                    assert " object at " not in f"{made!r} {made.lease!r}", protocol


def test_what_spaces_hand_out_is_the_same_at_both_doors():
    for kind in ("Transaction", "Session", "Subscription", "MatchSet", "Lease"):
        ours, theirs = (
            {name for name in dir(getattr(door, kind)) if name[0] != "_"} for door in (tupelo, aio)
        )
        assert ours == theirs - {"refresh"}, kind


def signature(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def test_linda_speaks_all_its_words():
    assert set(LINDA) <= public(linda.TupleSpace)


def test_javaspaces_speaks_all_its_words():
    assert set(JAVASPACES) <= set(javaspaces.__all__)


def test_lime_speaks_all_its_words():
    assert set(lime.__all__) == set(LIME)
    assert set(LIME_SPACE) == {name for name in dir(lime.LimeTupleSpace) if name[0] != "_"}
    only_here = {"is_shared", "set_shared", "out", "in_", "inp", "ing"}
    system = {name for name in dir(lime.LimeSystemTupleSpace) if name[0] != "_"}
    assert system == set(LIME_SPACE) - only_here


def test_pubsub_speaks_all_its_words():
    assert set(pubsub.__all__) == {"Collected", "PubSub", "Replies", "Reply"}
    assert public(pubsub.PubSub) == set(PUBSUB)
    assert public(pubsub.Replies) == set(REPLIES)


def test_rpc_speaks_all_its_words():
    names = {"GroupResult", "Invocation", "Outcome", "RemoteGroup", "RemoteObject", "Rpc"}
    assert set(rpc.__all__) == names
    assert public(rpc.Rpc) == {"close", "export", "find", "find_all", "withdraw"}
    assert public(rpc.RemoteGroup) == {"invoke", "start"}
    assert public(rpc.RemoteObject) == {"invoke"}
    assert {name for name in dir(rpc.Invocation) if name[0] != "_"} == set(REPLIES)


def test_melon_speaks_all_its_words():
    assert set(melon.__all__) == set(MELON)
    assert public(melon.Melon) == set(MELON_PROCESS)


def test_the_event_heap_speaks_all_its_words():
    assert set(event_heap.__all__) == set(EVENT_HEAP)
    for thing, names in (
        (event_heap.EventHeap, HEAP),
        (event_heap.Session, HEAP_SESSION),
        (event_heap.View, [*HEAP_SESSION, *HEAP_VIEW]),
    ):
        assert {name for name in dir(thing) if name[0] != "_"} == set(names)


def test_the_pipeline_offers_what_was_promised_and_nothing_else():
    assert set(pipeline.__all__) == set(PIPELINE)


def test_xvsm_speaks_all_its_words():
    kinds = ["Any", "Fifo", "Key", "Label", "Lifo", "Linda", "Query", "Random", "Vector", "Active"]
    words = [f"{kind}{word}" for kind in kinds for word in ("Coordinator", "Selector")]
    others = ["Capi", "AsyncCapi", "Aspect", "Notification", "Entry", "COUNT_ALL", "COUNT_MAX"]
    assert {*words, *others} <= set(xvsm.__all__)


def test_every_error_is_a_tupelo_error_and_stands_in_the_tree():
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, Exception):
            assert issubclass(error, tupelo.TupeloError), name
            assert name in errors.__doc__, f"{name} is missing from the tree at the top"


MODULES = (
    tupelo,
    aio,
    event_heap,
    javaspaces,
    lab,
    lime,
    linda,
    melon,
    pipeline,
    pubsub,
    queue,
    rpc,
    testing,
    xvsm,
)
BASES = {javaspaces.XVSMService, xvsm.Aspect}
"""Classes to derive from: a program sees the repr of its own class."""


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_and_operation_is_documented_and_shown(module):
    bare = []
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            bare += [name] if not inspect.getdoc(thing) else []
        if inspect.isclass(thing):
            bare += [f"{name}.{operation}" for operation in undocumented(thing)]
            is_made = not (inspect.isabstract(thing) or getattr(thing, "_is_protocol", False))
            if is_made and thing not in BASES and thing.__repr__ is object.__repr__:
                bare.append(f"{name}.__repr__")
    assert not bare, ", ".join(bare)


def undocumented(kind: type) -> list[str]:
    """The public operations of a class that have no docstring; those of other libraries aside."""
    found = []
    for operation in filter(lambda word: not word.startswith("_"), dir(kind)):
        home = next((base for base in kind.__mro__ if operation in vars(base)), object)
        member = inspect.getattr_static(kind, operation)
        is_operation = isinstance(member, (property, classmethod, staticmethod))
        if home.__module__.startswith("tupelo") and (is_operation or inspect.isfunction(member)):
            shown = member if isinstance(member, property) else getattr(kind, operation)
            found += [operation] if not inspect.getdoc(shown) else []
    return found


DESCRIBED = (
    tupelo.Space,
    tupelo.SpaceLike,
    SessionLike,
    SubscriptionLike,
    MatchSetLike,
    TransactionLike,
    tupelo.Host,
    tupelo.Access,
    tupelo.Key,
    tupelo.connect,
    tupelo.transaction,
    queue.JobQueue,
    linda.TupleSpace,
    melon.Melon,
    event_heap.EventHeap,
    pubsub.PubSub,
    rpc.Rpc,
    lab.World,
)
"""With docstrings that describe each argument: that of the function, of its class, or of SpaceLike
for the parameters that all spaces share."""


@pytest.mark.parametrize("thing", DESCRIBED, ids=lambda thing: thing.__name__)
def test_every_argument_is_described(thing):
    functions: list[Callable[..., object]] = [thing] if inspect.isfunction(thing) else []
    if inspect.isclass(thing):
        functions = [f for name, f in vars(thing).items() if name[0] != "_" and callable(f)]
        if not getattr(thing, "_is_protocol", False):
            functions.append(thing.__init__)
    shared = f"{inspect.getdoc(thing)} {inspect.getdoc(tupelo.SpaceLike)}"
    bare = [
        f"{function.__name__}({argument.name})"
        for function in functions
        for argument in signature(function)
        if argument.name != "self"
        and not re.search(
            rf"\b{argument.name}", f"{shared} {inspect.getdoc(function)}", re.IGNORECASE
        )
    ]
    assert not bare, ", ".join(bare)


def test_every_constant_of_tupelo_is_documented():
    assert [name for name in PROMISED if not inspect.getdoc(getattr(tupelo, name))] == []
