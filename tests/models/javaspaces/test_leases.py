"""Leases of JavaSpaces: renewed and cancelled one by one, many at once, and granted by a policy."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import pytest

from tupelo import Lease as GrantedLeases
from tupelo import ManualClock, Space, aio
from tupelo.errors import BadArgument, LeaseLost, SpaceClosed
from tupelo.models.javaspaces.leases import (
    ANY_LEASE,
    FOREVER,
    FixedLeasePeriodPolicy,
    Lease,
    LeaseMap,
    LeaseOutcome,
    PolicyByKind,
    seconds_asked,
)
from tupelo.space.port import port_of
from tupelo.values import lease as engine


@pytest.fixture
def space(clock):
    with Space("leases", clock=clock) as space:
        yield space


def leased(space: Space, n: int, seconds: float | None = 60.0) -> Lease:
    return Lease(space.write(("n", n), lease=seconds))


class Landlord:
    """One who lets single things only, and fails when told to."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.fails = False

    def now(self) -> float:
        return self.clock.now()

    def let(self, seconds: float) -> Lease:
        return Lease(GrantedLeases(self, Thing(self.clock.now() + seconds)))

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        if self.fails:
            raise OSError("gone fishing")
        thing.expires = None if seconds is None else self.clock.now() + seconds

    def cancel_lease(self, thing: Any) -> None:
        self.renew_lease(thing, 0)

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        self.renew_lease(thing, seconds)

    async def cancel_lease_async(self, thing: Any) -> None:
        self.cancel_lease(thing)


class Thing:
    def __init__(self, expires: float | None) -> None:
        self.expires = expires


def test_expiration_is_a_moment_or_forever(space, clock):
    assert leased(space, 1, 10).expiration == clock.now() + 10
    assert leased(space, 2, None).expiration == FOREVER == Lease.FOREVER == math.inf


def test_renew_counts_from_now(space, clock):
    lease = leased(space, 1, 10)
    clock.advance(5)
    lease.renew(10)
    assert lease.expiration == clock.now() + 10
    clock.advance(9)
    assert space.count() == 1
    lease.renew(FOREVER)
    clock.advance(1e6)
    assert space.count() == 1


def test_cancel_ends_it_at_once(space):
    lease = leased(space, 1)
    lease.cancel()
    assert space.count() == 0


@pytest.mark.parametrize("how", ["expired", "cancelled", "taken"])
def test_what_is_gone_can_be_neither_renewed_nor_cancelled(space, clock, how):
    lease = leased(space, 1, 10)
    if how == "expired":
        clock.advance(10)
    elif how == "cancelled":
        lease.cancel()
    else:
        space.take(("n", 1), wait=0)
    with pytest.raises(LeaseLost):
        lease.renew(10)
    with pytest.raises(LeaseLost):
        lease.cancel()


@pytest.mark.parametrize("duration", [-2, -0.5, math.nan, True, "10", None, -math.inf])
def test_a_duration_is_a_number_of_seconds(space, duration):
    lease = leased(space, 1)
    before = lease.expiration
    with pytest.raises(BadArgument, match="duration="):
        lease.renew(duration)
    assert lease.expiration == before


def test_seconds_asked_translates_the_constants():
    assert seconds_asked(FOREVER) is None
    assert seconds_asked(ANY_LEASE) == engine.ANY_LEASE
    assert seconds_asked(5) == 5.0
    with pytest.raises(BadArgument, match="lease="):
        seconds_asked(0)
    assert Lease.ANY == ANY_LEASE == -1


def test_leases_of_one_thing_are_equal(space):
    granted = space.write(("n", 1), lease=10)
    assert Lease(granted) == Lease(granted) and hash(Lease(granted)) == hash(Lease(granted))
    assert Lease(granted) != leased(space, 1) and Lease(granted) != granted
    assert "expiration=" in repr(Lease(granted))


def test_leases_of_one_space_can_be_batched(space, clock):
    with Space("other", clock=clock) as other:
        assert leased(space, 1).can_batch(leased(space, 2))
        assert not leased(space, 1).can_batch(leased(other, 2))
        assert not leased(space, 1).can_batch("a lease")


# Lease maps


def test_a_map_renews_all_and_tells_what_failed(space, clock):
    good, gone, other = (leased(space, n) for n in range(3))
    gone.cancel()
    leases = good.create_lease_map(100)
    leases[gone] = 100
    leases[other] = FOREVER
    outcome = leases.renew_all()
    assert outcome.renewed == [good, other] and outcome.cancelled == []
    assert list(outcome.failed) == [gone] and isinstance(outcome.failed[gone], LeaseLost)
    assert good.expiration == clock.now() + 100 and other.expiration == FOREVER
    assert list(leases) == [good, other], "what failed is in the map no more"
    assert leases.renew_all() == LeaseOutcome(renewed=[good, other])


def test_a_map_cancels_all_and_is_empty_then(space):
    first, second, gone = (leased(space, n) for n in range(3))
    space.take(("n", 2), wait=0)
    leases = LeaseMap({first: 10, second: 10, gone: 10})
    outcome = leases.cancel_all()
    assert outcome.cancelled == [first, second] and isinstance(outcome.failed[gone], LeaseLost)
    assert len(leases) == 0 and space.count() == 0
    assert leases.cancel_all() == LeaseOutcome() == leases.renew_all()


def test_leases_of_many_landlords_may_be_mixed(space, clock):
    closed = Space("closed", clock=clock)
    landlord, broken = Landlord(clock), Landlord(clock)
    leases = LeaseMap(
        [
            (leased(space, 1), 90),
            (leased(closed, 1), 90),
            (landlord.let(10), 90),
            (leased(space, 2), 90),
            (broken.let(10), 90),
        ]
    )
    a, shut, b, c, failing = leases
    closed.close()
    broken.fails = True
    outcome = leases.renew_all()
    assert set(outcome.renewed) == {a, b, c}
    assert {a.expiration, b.expiration, c.expiration} == {clock.now() + 90}
    assert isinstance(outcome.failed[shut], SpaceClosed)
    assert isinstance(outcome.failed[failing], OSError)
    leases[failing] = 1
    outcome = leases.cancel_all()
    assert set(outcome.cancelled) == {a, b, c} and list(outcome.failed) == [failing]


def test_a_map_of_a_durable_space_is_one_step(tmp_path, clock, monkeypatch):
    with Space(path=tmp_path / "a", log_keep="all", clock=clock) as space:
        leases = LeaseMap((leased(space, n), 100) for n in range(5))
        steps: list[int] = []
        flush = port_of(space)._engine.flush

        def spy(position: int) -> None:
            steps.append(position)
            flush(position)

        monkeypatch.setattr(port_of(space)._engine, "flush", spy)
        assert len(leases.renew_all().renewed) == 5
        assert len([position for position in steps if position]) == 1
    with Space(path=tmp_path / "a", clock=clock) as space:
        clock.advance(99)
        assert space.count() == 5
        clock.advance(1)
        assert space.count() == 0


def test_a_map_is_a_mapping(space):
    lease, other = leased(space, 1), leased(space, 2)
    leases = LeaseMap({lease: 5})
    assert leases[lease] == 5 and lease in leases and other not in leases
    leases.update({other: 7})
    assert dict(leases) == {lease: 5, other: 7} and "LeaseMap" in repr(leases)
    del leases[lease]
    assert list(leases) == [other]
    assert leases.can_contain_key(lease) and not leases.can_contain_key("lease")


@pytest.mark.parametrize("duration", [-3, "5", None, True])
def test_a_map_refuses_what_is_no_duration(space, duration):
    with pytest.raises(BadArgument, match="duration="):
        LeaseMap({leased(space, 1): duration})


def test_a_map_refuses_what_is_no_lease(space):
    with pytest.raises(BadArgument, match="lease="):
        LeaseMap({cast(Any, "lease"): 5})


def test_leases_of_the_async_door_are_not_awaited(clock):
    async def program() -> None:
        async with aio.Space("aio", clock=clock) as space:
            lease = Lease(await space.write(("n", 1), lease=10))
            lease.renew(20)
            assert LeaseMap({lease: 30}).renew_all().renewed == [lease]
            assert lease.expiration == clock.now() + 30
            lease.cancel()
            assert await space.count() == 0

    asyncio.run(program())


# Policies


def test_a_fixed_policy_grants_up_to_its_maximum(clock):
    with Space(lease_policy=FixedLeasePeriodPolicy(60, 10), clock=clock) as space:
        assert leased(space, 1, 30).expiration == clock.now() + 30
        assert leased(space, 1, 90).expiration == clock.now() + 60
        assert leased(space, 1, None).expiration == clock.now() + 60
        lease = leased(space, 1, 30)
        lease.renew(FOREVER)
        assert lease.expiration == clock.now() + 60
        lease.renew(Lease.ANY)
        assert lease.expiration == clock.now() + 10
        lease.create_lease_map(Lease.ANY).renew_all()
        assert lease.expiration == clock.now() + 10


def test_any_without_a_preference_is_forever(space):
    lease = leased(space, 1, 10)
    lease.renew(Lease.ANY)
    assert lease.expiration == FOREVER


def test_a_fixed_policy_without_limits_grants_everything():
    policy = FixedLeasePeriodPolicy()
    assert policy("entry", None) is None and policy("entry", 5.0) == 5.0
    assert policy.default is None and FixedLeasePeriodPolicy(60).default == 60
    assert "60" in repr(FixedLeasePeriodPolicy(60))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((0,), "maximum="), (("x",), "maximum="), ((60, 0), "default="), ((60, 61), "default=")],
)
def test_a_fixed_policy_refuses_nonsense(arguments, named):
    with pytest.raises(BadArgument, match=named):
        FixedLeasePeriodPolicy(*arguments)


def test_a_policy_for_each_kind(clock):
    policy = PolicyByKind(entry=FixedLeasePeriodPolicy(60, 5), session=FixedLeasePeriodPolicy(7))
    with Space(lease_policy=policy, clock=clock) as space:
        assert leased(space, 1, None).expiration == clock.now() + 60
        assert space.session().lease.remaining == 7
        assert space.subscribe().lease.remaining is None
        asked = leased(space, 1, None)
        asked.renew(Lease.ANY)
        assert asked.expiration == clock.now() + 5


def test_a_policy_for_each_kind_refuses_nonsense():
    with pytest.raises(BadArgument, match="thing="):
        PolicyByKind(thing=FixedLeasePeriodPolicy(60))
    with pytest.raises(BadArgument, match="entry="):
        PolicyByKind(entry=cast(Any, 60))
