"""Standing requests of this host, that is subscriptions and collects, and the metadata by which the
brokers of other hosts know of them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tupelo.federation.brokers.messages import HostResult, Kind, encode, read_value
from tupelo.federation.brokers.probing import ProbeEvaluation
from tupelo.federation.brokers.tables import PATTERNS_MAX, EncodedPattern

if TYPE_CHECKING:
    from tupelo.federation.groups.membership import Membership, MembershipId


logger = logging.getLogger("tupelo")


class Reply(msgspec.Struct, frozen=True):
    """The state of one host for a pattern, or an update of it that matches (`is_update`)."""

    host: str
    items: list[Any]
    is_update: bool


class Collected(msgspec.Struct, frozen=True):
    """The result of a probe: the replies, the hosts that have nothing (`empty`), and the hosts that
    could not answer (`lost`)."""

    replies: list[Reply]
    empty: frozenset[str]
    lost: frozenset[str]


Deliver = Callable[[Reply], None]
Lost = Callable[[frozenset[str]], None]


class StandingRequest:
    """A subscription or collect that stands until it is cancelled or, if single, satisfied."""

    def __init__(self, pattern: EncodedPattern, deliver: Deliver, lost: Lost | None) -> None:
        self.is_over = False
        self.when_over: Callable[[], None] = _nothing
        """Called when the request is over; its holder sets it."""
        self.pattern = pattern
        self.remove: Callable[[], None] = _nothing
        """Called by `cancel`; the broker sets it."""
        self._deliver = deliver
        self._lost = lost

    def cancel(self) -> None:
        """End the request; nothing is delivered from now on."""
        if not self.is_over:
            self.is_over = True
            self.remove()
            self.when_over()

    def deliver(self, reply: Reply) -> None:
        if not self.is_over:
            _call(self._deliver, reply)

    def tell_lost(self, hosts: frozenset[str]) -> None:
        if hosts and self._lost is not None and not self.is_over:
            _call(self._lost, hosts)

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts are out of reach."""
        self.tell_lost(hosts)


class Known(NamedTuple):
    """The knowledge of a persistent collect of all about a host: its incarnation, the number of its
    last update, and the hash of its state if no update has come since."""

    incarnation: str
    number: int = 0
    state: bytes | None = None


class StandingSubscription(StandingRequest):
    """A subscription, or a persistent collect of all: a subscription that also gets the state of
    each host once (`have`: the hosts whose state it has)."""

    def __init__(
        self, pattern: EncodedPattern, deliver: Deliver, lost: Lost | None, *, collects: bool
    ) -> None:
        super().__init__(pattern, deliver, lost)
        self.collects = collects
        self.have: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        """The hosts that were reported as lost in this membership."""
        self.asking: ProbeEvaluation | None = None
        self.held: list[HostResult] = []
        """Updates of hosts whose state is awaited; the state will contain them."""
        self._known: dict[str, Known] = {}

    def tell(self, found: HostResult, incarnation: str) -> None:
        """Deliver a result of a host, unless it is known already: an update with a known number, or
        a state that has not changed since it, or the last update, was delivered."""
        known = self._known.get(found.host)
        if known is not None and known.incarnation != incarnation:
            known = None
        if found.is_update:
            is_news = known is None or found.number > known.number
            if known is not None and is_news:
                self._known[found.host] = Known(incarnation, found.number)
        else:
            state = _hash(found.items)
            is_news = (
                known is None or found.number > known.number or known.state not in (None, state)
            )
            number = found.number if known is None else max(found.number, known.number)
            self._known[found.host] = Known(incarnation, number, state)
        readable_reply = reply(found)
        if is_news and readable_reply.items:
            self.deliver(readable_reply)

    def tell_empty(self, host: str, incarnation: str) -> None:
        """A host has an empty state: its next state or update is news."""
        known = self._known.get(host)
        number = known.number if known is not None and known.incarnation == incarnation else 0
        self._known[host] = Known(incarnation, number)

    def tell_held(self, hosts: Container[str], incarnation_of: Callable[[str], str]) -> None:
        """Deliver the held updates of these hosts, whose state does not come."""
        held, self.held = self.held, []
        for found in held:
            if found.host in hosts:
                self.tell(found, incarnation_of(found.host))
            else:
                self.held.append(found)

    def tell_lost(self, hosts: frozenset[str]) -> None:
        """Report each host once, though both `cut` and an answer may name it."""
        new = hosts - self.lost
        self.lost |= hosts
        super().tell_lost(new)

    def awaits(self, host: str) -> bool:
        """Whether the awaited state of this host will contain its current updates."""
        asking = self.asking
        return asking is not None and (asking.only is None or host in asking.only)


class RunningCollect(StandingRequest):
    """A single collect, or a persistent one of any host: it stands in the tables of all brokers
    under its number."""

    def __init__(
        self, number: int, kind: Kind, pattern: EncodedPattern, deliver: Deliver, lost: Lost | None
    ) -> None:
        super().__init__(pattern, deliver, lost)
        self.number = number
        self.kind = kind
        self.answered: set[str] = set()
        """The hosts that have answered, if the collect is of all hosts."""
        self.chosen: str | None = None
        """The host on which a persistent collect has settled."""

    def found(self, found: HostResult) -> None:
        if self.kind == "persistent any":
            self.chosen = found.host
        elif found.host in self.answered:
            return  # In a new membership the host was asked once more.
        else:
            self.answered.add(found.host)
        readable_reply = reply(found)
        if readable_reply.items:
            self.deliver(readable_reply)

    def settle(self, chosen: str | None) -> None:
        """A persistent collect has settled on this host, or on none; report the former one as
        lost."""
        before, self.chosen = self.chosen, chosen
        if before is not None and before != chosen:
            self.tell_lost(frozenset({before}))

    def cut(self, hosts: frozenset[str]) -> None:
        if self.kind == "single any":
            self.tell_lost(hosts)
        elif self.kind == "single all":
            self.tell_lost(hosts - self.answered)
        elif self.chosen in hosts:
            self.settle(None)


def reply(found: HostResult) -> Reply:
    return read_reply(Reply(found.host, found.items, found.is_update), read_value)


def read_reply(reply: Reply, read: Callable[[Any], Any]) -> Reply:
    """The reply with decoded items. Items that cannot be decoded are left out, with a warning."""
    items = []
    for item in reply.items:
        try:
            items.append(read(item))
        except Exception as error:
            logger.warning("an item of the host %r cannot be read: %r", reply.host, error)
    return Reply(reply.host, items, reply.is_update)


def readable(collected: Collected) -> Collected:
    """Move hosts of whose replies nothing could be decoded to the lost ones."""
    lost = collected.lost.union(one.host for one in collected.replies if not one.items)
    return Collected([one for one in collected.replies if one.items], collected.empty, lost)


def _hash(items: list[bytes]) -> bytes:
    """The hash of a state, whatever the order of its items."""
    whole = hashlib.sha256()
    for item in sorted(hashlib.sha256(item).digest() for item in items):
        whole.update(item)
    return whole.digest()


def _nothing() -> None:
    pass


def _call(function: Callable[[Any], None], value: Any) -> None:
    try:
        function(value)
    except Exception:
        logger.exception("the callback of a subscription or collect failed")


class StandingCollect(msgspec.Struct, array_like=True, frozen=True):
    """A standing collect in the metadata of its host."""

    number: int
    kind: Kind
    pattern: bytes
    answered: list[str]
    chosen: str | None


class BrokerMetadata(msgspec.Struct, array_like=True, frozen=True):
    """The subscriptions (`wants`) and collects of a host, and the membership (`since`) in which its
    broker was."""

    since: tuple[int, str] | None = None
    wants: list[bytes] = []
    collects: list[StandingCollect] = []


def encode_metadata(
    since: MembershipId | None, wants: Iterable[bytes], collections: Iterable[RunningCollect]
) -> bytes:
    collects = [
        StandingCollect(one.number, one.kind, one.pattern.encoded, sorted(one.answered), one.chosen)
        for one in collections
    ]
    return encode(BrokerMetadata(since, list(wants), collects))


def read_metadata_of(membership: Membership, name: str) -> dict[str, BrokerMetadata]:
    """The metadata of all hosts that take part in the broker of this name. A host whose metadata
    cannot be read does not take part, for all hosts alike."""
    metadata_of = {}
    for host, member in membership.members.items():
        raw: Any = member.metadata_of.get(name)
        if type(raw) is bytes:
            try:
                metadata_of[host] = _read_metadata(raw)
            except (msgspec.DecodeError, RecursionError) as error:
                logger.warning("the host %r takes no part in %r: %s", member.name, name, error)
    return metadata_of


def _read_metadata(raw: bytes) -> BrokerMetadata:
    metadata = msgspec.msgpack.decode(raw, type=BrokerMetadata)
    if len(metadata.wants) + len(metadata.collects) > PATTERNS_MAX:
        raise msgspec.DecodeError(f"more than {PATTERNS_MAX} stand")
    return metadata
