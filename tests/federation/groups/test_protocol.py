"""The round: whatever happens, all hosts that reach each other end in one membership."""

from __future__ import annotations

import pytest

from tests.federation.groups.crowd import Crowd
from tupelo.federation.groups.membership import Member, Membership
from tupelo.federation.groups.protocol import (
    Commit,
    DelayBegin,
    Echo,
    FoundHost,
    GroupMessage,
    Join,
    MembershipProtocol,
    Probe,
    SendMessage,
    Settled,
)

SEEDS = 15


@pytest.mark.parametrize("hosts", [2, 3, 4, 6, 9])
def test_whatever_happens_all_who_reach_each_other_agree(hosts):
    for seed in range(SEEDS):
        crowd = Crowd(seed, hosts)
        for _ in range(3):
            crowd.run(40)
            crowd.rest()
            crowd.check_agreed()


def test_what_is_said_in_peace_all_arrives():
    for seed in range(SEEDS):
        crowd = Crowd(seed, 6)
        crowd.calm = 1.0  # Hosts come, and none is lost.
        crowd.run(60)
        crowd.rest()
        assert crowd.parcels > 0
        assert len(crowd.delivered) == crowd.parcels


# One host, step by step


def member(host: str, life: str = "life 1") -> Member:
    return Member(host, host, life, {})


def said(protocol: MembershipProtocol) -> list[tuple[str, GroupMessage]]:
    """What it has said since it was last asked."""
    sayings = [
        (one.neighbour, one.message) for one in protocol.outbox if isinstance(one, SendMessage)
    ]
    protocol.outbox.clear()
    return sayings


def host_with_neighbours(*names: str) -> MembershipProtocol:
    protocol = MembershipProtocol(lambda: member("r"), lambda: False)
    for name in names:
        protocol.engaged(name)
        protocol.heard(name, Join("life 1", (0, name)))
    return protocol


def test_a_host_that_was_found_in_two_lives_is_in_no_membership():
    root = host_with_neighbours("p", "q")
    root.begin()
    old, new = member("h", "life 1"), member("h", "life 2")
    for parent, child in (("p", old), ("q", new)):
        root.heard(
            parent,
            Echo(
                root.id,
                [FoundHost(member(parent), "r", (0, parent)), FoundHost(child, parent, (0, "h"))],
            ),
        )
    assert not any(isinstance(message, Commit) for _, message in said(root))
    assert list(root.membership.members) == ["r"]
    root.begin()
    assert {host for host, message in said(root) if isinstance(message, Probe)} == {"p", "q"}


def test_who_comes_in_the_middle_of_a_protocol_is_asked_as_long_as_others_are():
    root = host_with_neighbours("p")
    root.begin()
    said(root)
    root.engaged("q")
    root.heard("q", Join("life 1", (0, "q")))
    assert ("q", Probe(root.id)) in said(root)


def test_who_comes_too_late_for_a_protocol_is_in_the_next():
    root = host_with_neighbours("p")
    root.begin()
    root.heard("p", Echo(root.id, [FoundHost(member("p"), "r", (0, "p"))]))
    root.engaged("q")
    root.heard("q", Join("life 1", (0, "q")))
    said(root)
    root.settled()
    root.heard("p", Settled(root.id))
    assert DelayBegin() in root.outbox
    said(root)
    root.begin()
    assert {host for host, message in said(root) if isinstance(message, Probe)} == {"p", "q"}


def test_who_returns_in_the_middle_of_a_protocol_is_answered_anew():
    host = host_with_neighbours("p", "q")
    host.heard("p", Probe((9, "p")))
    host.heard("q", Probe((9, "p")))
    host.departed("q")
    host.engaged("q")
    host.heard("q", Join("life 1", (0, "q")))
    said(host)
    host.heard("q", Probe((9, "p")))
    assert said(host) == [("q", Probe((9, "p")))]


def test_what_was_settled_for_one_membership_does_not_count_for_the_next():
    host = host_with_neighbours("p", "c")
    protocol = (9, "p")
    host.heard("p", Probe(protocol))
    host.settled()  # It came to its end just as the round began.
    host.heard("c", Echo(protocol, [FoundHost(member("c"), "r", (0, "c"))]))
    echo = said(host)[-1][1]
    assert isinstance(echo, Echo)
    host.heard("p", Commit(protocol, [FoundHost(member("p"), None, (0, "p")), *echo.found]))
    host.heard("c", Settled(protocol))
    assert ("p", Settled(protocol)) not in said(host)
    host.settled()
    assert said(host) == [("p", Settled(protocol))]


def test_the_greater_protocol_goes_on():
    host = host_with_neighbours("p", "q")
    host.begin()
    said(host)
    host.heard("p", Probe((0, "p")))
    assert said(host) == []
    host.heard("p", Probe((9, "p")))
    assert said(host) == [("q", Probe((9, "p")))]
    host.heard("q", Probe((9, "p")))
    assert said(host) == [("p", Echo((9, "p"), [FoundHost(member("r"), "p", host.membership.id)]))]


# The membership


def test_a_membership_knows_its_ways():
    names = "abcdef"
    membership = Membership(
        (1, "a"), map(member, names), [("a", "b"), ("b", "c"), ("b", "d"), ("e", "d")]
    )
    assert list(membership.members) == list(names)
    assert sorted(membership.neighbours("b")) == ["a", "c", "d"]
    assert membership.toward("a", "e") == "b" and membership.toward("b", "e") == "d"
    assert membership.toward("a", "a") is None and membership.toward("a", "f") is None
    assert membership.beyond("b", "d") == {"d", "e"} and membership.beyond("a", "b") == set("bcde")
    assert membership.beyond("a", "e") == frozenset() and membership.neighbours("x") == []
