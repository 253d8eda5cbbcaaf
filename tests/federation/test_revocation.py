"""What is withdrawn: keys, passwords and rights. Who has lost them is gone, not only kept out."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.conftest import Program, until_true
from tests.federation.raw import Raw
from tupelo import Access, Identity, Trust
from tupelo.errors import (
    BadArgument,
    CannotReach,
    NotAllAnswered,
    NotAllowed,
    PeerLost,
    Stranger,
    WrongPassword,
)
from tupelo.federation.links import wire
from tupelo.models.melon import Melon
from tupelo.space.clock import SystemClock
from tupelo.values.parts import ANY

LONG = 1e6
HERE = "127.0.0.1:0"


@pytest.fixture(scope="module")
def alice() -> Identity:
    return Identity.new()


@pytest.fixture(scope="module")
def bob() -> Identity:
    return Identity.new()


@pytest.fixture(scope="module")
def own() -> Identity:
    return Identity.new()


@pytest.fixture
def host(own: Identity, alice: Identity, bob: Identity) -> Iterator[tupelo.Host]:
    trust = Trust.known([alice.key, bob.key])
    with tupelo.Host("home", listen=HERE, identity=own, trust=trust) as made:
        yield made


def dial(host: tupelo.Host, identity: Identity, space: str = "jobs") -> Any:
    assert host.identity is not None
    known = Trust.known([host.identity])
    return tupelo.connect(f"{host.url}{space}", identity=identity, trust=known, tls=True)


def is_cut(space: Any) -> bool:
    """Has the link of this connection ended, and is there none in its place?"""
    try:
        space.read(wait=0)
    except (PeerLost, Stranger, CannotReach, WrongPassword):
        return True
    return False


def is_refused(space: Any) -> bool:
    """Is a search refused by another host? If none is reached, it finds nothing."""
    try:
        assert space.read_all() == []
    except NotAllAnswered:
        return True
    return False


# Keys


def test_a_key_that_is_withdrawn_ends_its_links_and_no_others(
    host: tupelo.Host, alice: Identity, bob: Identity
) -> None:
    with dial(host, alice) as hers, dial(host, bob) as his:
        hers.write(("a", 1))
        host.untrust(alice.key)
        until_true(lambda: is_cut(hers), "her link has ended")
        assert his.read(wait=0) == ("a", 1)
    with pytest.raises(Stranger):
        dial(host, alice)
    host.trust(alice.key)
    with dial(host, alice) as hers:
        assert hers.read(wait=0) == ("a", 1)


def test_a_host_whose_key_is_withdrawn_is_engaged_no_more(
    host: tupelo.Host, own: Identity, alice: Identity
) -> None:
    trust = Trust.known([own.key])
    with tupelo.Host("guest", peers=[host.address], identity=alice, trust=trust) as guest:
        until_true(lambda: host.engaged == ["guest"], "they are engaged")
        host.untrust(alice.key)
        until_true(lambda: not host.engaged and not guest.engaged, "they have parted")
        host.trust(alice.key)
        until_true(lambda: host.engaged == ["guest"], "they are engaged again")


def test_trust_that_is_lent_runs_out(own: Identity, alice: Identity, bob: Identity) -> None:
    now = SystemClock().now()
    trust = Trust.known([alice.key, bob.key], until={alice.key: now + LONG})
    with tupelo.Host("home", listen=HERE, identity=own, trust=trust) as host:
        with dial(host, alice) as hers, dial(host, bob) as his:
            host.trust(bob.key, lease=0.05)
            until_true(lambda: is_cut(his), "his link has ended")
            assert hers.read(wait=0) is None
        with pytest.raises(Stranger):
            dial(host, bob)


def test_whom_to_trust_can_be_said_anew(host: tupelo.Host, alice: Identity, bob: Identity) -> None:
    with dial(host, alice) as hers, dial(host, bob) as his:
        host.set_trust(Trust.known([bob.key]))
        until_true(lambda: is_cut(hers), "her link has ended")
        assert his.read(wait=0) is None
    with pytest.raises(BadArgument, match="trust="):
        host.set_trust([bob.key])  # type: ignore[arg-type]


def test_what_is_withdrawn_of_names_that_are_remembered_stays_so(
    tmp_path: Path, own: Identity, alice: Identity
) -> None:
    file = tmp_path / "known"
    for _ in range(2):
        with tupelo.Host("home", listen=HERE, identity=own, trust=Trust.on_first_use(file)) as host:
            if f"refused {alice.key}" in (file.read_text() if file.exists() else ""):
                with pytest.raises(Stranger):
                    dial(host, alice)
                with pytest.raises(BadArgument, match="refused"):
                    host.trust(alice.key)
            else:
                with dial(host, alice) as hers:
                    host.untrust(alice.key)
                    until_true(lambda: is_cut(hers), "her link has ended")


@pytest.mark.parametrize("key", ["alice", "", None])
def test_what_is_no_key_is_refused(host: tupelo.Host, key: Any) -> None:
    with pytest.raises(BadArgument):
        host.trust(key)
    with pytest.raises(BadArgument):
        host.untrust(key)


def test_the_ends_of_trust_are_checked(alice: Identity, bob: Identity) -> None:
    ended = Trust.known([alice.key], until={alice.key: 10.0})
    ended.check("alice", alice.key, 9.0)
    with pytest.raises(Stranger, match="no more"):
        ended.check("alice", alice.key, 10.0)
    assert ended.next_end(9.0) == 10.0 and ended.next_end(10.0) is None
    for wrong in ({bob.key: 1.0}, {alice.key: "soon"}, {alice.key: True}):
        with pytest.raises(BadArgument, match="until="):
            Trust.known([alice.key], until=wrong)  # type: ignore[arg-type]


# Passwords and rules


def test_a_password_that_is_withdrawn_ends_the_links_that_have_shown_it() -> None:
    with tupelo.Host("home", listen=HERE) as host:
        host.space("safe", access=Access(password="old"))
        host.space("open")
        url = f"{host.url}safe"
        with (
            tupelo.connect(url, password="old") as safe,
            tupelo.connect(f"{host.url}open") as other,
        ):
            safe.write(("a", 1))
            Melon(safe).write(("b", 2))
            other.write(("c", 3))
            host.change_access("safe", Access(password="new"))
            until_true(lambda: is_cut(safe), "its link has ended")
            assert other.read(wait=0) == ("c", 3)
        with pytest.raises(WrongPassword):
            tupelo.connect(url, password="old")
        with tupelo.connect(url, password="new") as safe:
            assert safe.read(wait=0) == ("a", 1)
            assert Melon(safe).read(ANY, 0) == ("b", 2)


def test_a_right_that_is_withdrawn_ends_the_links_that_have_used_it() -> None:
    with tupelo.Host("home", listen=HERE) as host:
        host.space("jobs")
        url = f"{host.url}jobs"
        with tupelo.connect(url) as writer, tupelo.connect(url) as reader:
            writer.write(("a", 1))
            assert reader.read(wait=0) == ("a", 1)
            links = set(host.core.servings)
            host.change_access("jobs", Access(write=()))
            assert len(links & set(host.core.servings)) == 1  # that of the reader
            assert reader.read(wait=0) == ("a", 1)
            for space in (reader, writer):
                with pytest.raises((NotAllowed, PeerLost)):
                    space.write(("a", 2))
        with pytest.raises(BadArgument, match="space="):
            host.change_access("no such space", Access())
        with pytest.raises(BadArgument, match="access="):
            host.change_access("jobs", "anyone")  # type: ignore[arg-type]


def test_what_another_host_may_not_see_any_more_it_is_not_told() -> None:
    with (
        tupelo.Host("home", listen=HERE) as home,
        tupelo.Host("guest", peers=[home.address]) as guest,
    ):
        mine, its = home.space("news"), guest.space("news")
        melon, reader = Melon(home, "news"), Melon(guest, "news")
        until_true(lambda: "news" in repr(guest.presence.read_all(ANY)), "they are engaged")
        told: list[Any] = []
        with its.subscribe(ANY, lambda notice: told.append(notice.entry)):
            mine.write(("a", 1))
            until_true(lambda: told == [("a", 1)], "it is told")
            melon.write(("b", 1))
            assert reader.read(ANY, 10) == ("b", 1)
            home.change_access("news", Access(read=(), subscribe=(), take=()))
            mine.write(("a", 2))
            melon.write(("b", 2))
            # Between the old link and the next the guest is alone, and finds only its own.
            until_true(lambda: is_refused(its), "they are engaged again, and it may not read")
            assert reader.read(ANY, 0) is None
            assert told == [("a", 1)]


# Programs on this machine


def test_who_comes_from_this_machine_is_a_stranger_if_the_host_says_so(
    tmp_path: Path, alice: Identity
) -> None:
    with tupelo.Host("home", listen=HERE, path=tmp_path, local_trust=False) as host:
        assert host.identity is not None
        for role in ("client", "host"):
            raw = Raw(host.address)
            answer = raw.greet(role)
            assert isinstance(answer, wire.Refusal) and answer.kind == "Stranger"
            raw.close()
        with pytest.raises(Stranger):
            dial(host, alice)
        host.trust(alice.key)
        with dial(host, alice) as hers:
            hers.write(("a", 1))
            with pytest.raises(NotAllowed):
                hers.trim(before=1)  # as a program of this machine could
    with pytest.raises(BadArgument, match="local_trust="):
        tupelo.Host("home", local_trust="no")  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP on Windows")
def test_the_command_reads_again_who_is_known(
    tmp_path: Path, alice: Identity, program: Callable[..., Program]
) -> None:
    file = tmp_path / "known"
    file.write_text(f"{alice.key} 2999-01-01T00:00+00:00  # Alice\n")
    host = ["-m", "tupelo.apps.cli", "host", "home", "--listen", HERE, "--no-local-trust"]
    process = program(host, "--path", tmp_path / "home", "--trust", file)
    url = process.line().split()[-1].removesuffix("SPACE")
    known = Trust.known([process.line().split()[-1]])
    with tupelo.connect(f"{url}jobs", identity=alice, trust=known, tls=True) as hers:
        hers.write(("a", 1))
        file.write_text("# nobody\n")
        os.kill(process.pid, signal.SIGHUP)
        until_true(lambda: is_cut(hers), "her link has ended")
    file.write_text("nonsense\n")
    os.kill(process.pid, signal.SIGHUP)
    with pytest.raises(Stranger):
        tupelo.connect(f"{url}jobs", identity=alice, trust=known, tls=True)
    process.terminate()
    process.wait(timeout=30)
