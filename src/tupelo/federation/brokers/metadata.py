"""The metadata of a broker: what the brokers at all other hosts of the group must know of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.federation.brokers.messages import Kind, encode
from tupelo.federation.brokers.standing import RunningCollect
from tupelo.federation.brokers.tables import PATTERNS_MAX

if TYPE_CHECKING:
    from tupelo.federation.groups.membership import Membership, MembershipId

logger = logging.getLogger("tupelo")


class StandingCollect(msgspec.Struct, array_like=True, frozen=True):
    """A standing collect."""

    number: int
    kind: Kind
    pattern: bytes
    answered: list[str]
    chosen: str | None


class BrokerMetadata(msgspec.Struct, array_like=True, frozen=True):
    """In which membership the broker was, if in any, and what stands for its host."""

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
    """Who takes part. Who has no metadata that can be read does not: so everyone sees it."""
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
