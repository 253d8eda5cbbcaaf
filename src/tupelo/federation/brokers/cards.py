"""The card of a broker: what the brokers at all other hosts of the group must know of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.federation.brokers.messages import Kind, spell
from tupelo.federation.brokers.standing import RunningCollect
from tupelo.federation.brokers.tables import PATTERNS_MAX

if TYPE_CHECKING:
    from tupelo.federation.groups.roster import Membership, RosterId

logger = logging.getLogger("tupelo")


class StandingCollect(msgspec.Struct, array_like=True, frozen=True):
    """A standing collect."""

    number: int
    kind: Kind
    pattern: bytes
    answered: list[str]
    chosen: str | None


class BrokerMetadata(msgspec.Struct, array_like=True, frozen=True):
    """In which roster the broker was, if in any, and what stands for its host."""

    since: tuple[int, str] | None = None
    wants: list[bytes] = []
    collects: list[StandingCollect] = []


def spell_card(
    since: RosterId | None, wants: Iterable[bytes], collections: Iterable[RunningCollect]
) -> bytes:
    collects = [
        StandingCollect(one.number, one.kind, one.pattern.spelled, sorted(one.answered), one.chosen)
        for one in collections
    ]
    return spell(BrokerMetadata(since, list(wants), collects))


def read_cards(roster: Membership, name: str) -> dict[str, BrokerMetadata]:
    """Who takes part. Who has no card that can be read does not: so everyone sees it."""
    cards = {}
    for host, member in roster.members.items():
        raw: Any = member.cards.get(name)
        if type(raw) is bytes:
            try:
                cards[host] = _read_card(raw)
            except (msgspec.DecodeError, RecursionError) as error:
                logger.warning("the host %r takes no part in %r: %s", member.name, name, error)
    return cards


def _read_card(raw: bytes) -> BrokerMetadata:
    card = msgspec.msgpack.decode(raw, type=BrokerMetadata)
    if len(card.wants) + len(card.collects) > PATTERNS_MAX:
        raise msgspec.DecodeError(f"more than {PATTERNS_MAX} stand")
    return card
