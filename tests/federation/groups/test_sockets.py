"""Groups of hosts that meet over real sockets."""

from __future__ import annotations

import asyncio

import tupelo
from tests.federation.groups.neighbourhood import PART, Recorder
from tupelo import aio
from tupelo.federation.groups.group import Group, group_of

PATIENCE_SECONDS = 20.0


async def agreed(*groups: Group) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            members = [set(group.membership.members) for group in groups]
            if all(
                one == {group._core.id for group in groups} and not group.halted
                for one, group in zip(members, groups, strict=True)
            ):
                return
            await asyncio.sleep(0.01)


async def row_of_three() -> None:
    async with (
        aio.Host("one", listen=0) as one,
        aio.Host("two", listen=0, peers=[one.address]) as two,
        aio.Host("three", listen=0, peers=[two.address]) as three,
    ):
        hosts = [one, two, three]
        groups = [group_of(host.core) for host in hosts]
        parts = [Recorder(host.name) for host in hosts]
        voices = [group.part(PART, part) for group, part in zip(groups, parts, strict=True)]
        await agreed(*groups)
        parts[0].value = {"bytes": b"\0\xff", "list": [1, 2.5, None, "ä"]}
        await groups[0].renew()
        assert groups[2].membership.members[one.id].metadata_of[PART] == parts[0].value
        answer = await voices[2].ask(one.id, [b"far", {"away": 1}])
        assert answer == ["one", three.id, [b"far", {"away": 1}]]
        await groups[1].leave()
        assert [len(group.membership.members) for group in groups] == [1, 1, 1]
        await groups[1].join()
        await agreed(*groups)
        await two.close()
        await agreed(groups[0])
        await agreed(groups[2])


def test_three_hosts_in_a_row_are_one_group():
    asyncio.run(row_of_three())


def test_hosts_at_the_blocking_door_are_one_group():
    with (
        tupelo.Host("one", listen=0) as one,
        tupelo.Host("two", listen=0, peers=[one.address]) as two,
    ):

        async def begin(host: tupelo.Host) -> Group:
            return group_of(host.core)

        groups = [host.now(begin(host)) for host in (one, two)]
        one.now(agreed(*groups))

        async def operate() -> list[str]:
            async with groups[1].operating():
                return sorted(groups[1].membership.members)

        assert two.now(operate()) == sorted([one.id, two.id])
