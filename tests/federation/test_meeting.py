"""How hosts meet, and how they do not: who they are must be true, and what they claim bounded."""

import asyncio
from random import Random
from typing import Any

import pytest

import tupelo
from tests.federation.field import Field
from tests.federation.raw import Raw
from tests.virtual import WorldHost, play
from tupelo.errors import BadArgument, CannotReach, NotAllowed, WrongPassword
from tupelo.federation.hosts.discovery import Dialler
from tupelo.federation.identity.trust import Trust
from tupelo.federation.links import wire
from tupelo.federation.links.tcp import TcpNetwork
from tupelo.values import template_encoding


def answer_to(address: str, role: str, **hello: Any) -> str:
    """What a host says to one that it does not let in."""
    raw = Raw(address)
    raw.greet(role, **hello)
    raw.close()
    assert isinstance(raw.welcome, wire.Refusal)
    return raw.welcome.message


def test_a_host_does_not_meet_itself(threads):
    host = threads.host("alone")
    assert "id of the host that was dialled" in answer_to(host.address, "host", id=host.id)
    assert host.presence.read(tupelo.HostPresence(id=host.id), wait=0).state == "engaged"


@pytest.mark.parametrize("address", ["nonsense:port", 5.0, ""])
def test_an_address_that_is_none_is_refused(company, address):
    host = company.host("one")
    with pytest.raises(BadArgument, match="address="):
        host.engage(address)


def test_without_an_identity_nobody_is_dialled_beyond_this_machine():
    async def dial() -> None:
        await TcpNetwork().dial("192.0.2.7:7700", lambda link: None)  # type: ignore[arg-type,return-value]

    with pytest.raises(CannotReach, match="no identity"):
        asyncio.run(dial())


def test_two_hosts_of_one_user_are_two(monkeypatch, tmp_path):
    monkeypatch.setenv("TUPELO_HOME", str(tmp_path))
    # Hosts that are not started.
    ada, ben = (tupelo.aio.Host(name, listen="0.0.0.0:0").identity for name in ("ada", "ben"))
    assert ada is not None and ben is not None and ada != ben
    assert tupelo.aio.Host("ada", listen="0.0.0.0:0").identity == ada


def test_on_first_use_clients_are_told_apart_by_their_keys(tmp_path, threads):
    trust = Trust.on_first_use(tmp_path / "known")
    host = threads.host("open", identity=tupelo.Identity.new(), trust=trust)
    for _ in range(3):  # Nobody has given itself a name.
        other = tupelo.Identity.new()
        with tupelo.connect(
            host.url + "jobs", identity=other, trust=Trust.anyone(), tls=True
        ) as space:
            assert space.count() >= 0


@pytest.mark.parametrize("spaces", [["x" * 600], [f"space {i}" for i in range(1_001)]])
def test_who_claims_too_much_is_not_met(threads, spaces):
    host = threads.host("wary")
    raw = Raw(host.address)
    assert raw.greet("host", spaces=spaces) is None and host.engaged == []  # It has hung up.
    raw.close()


def test_a_long_template_is_not_kept_for_the_next_time():
    before = len(template_encoding._known)
    for text in ("x" * 100, "y" * 10_000):
        data = template_encoding.template_to_wire(tupelo.Named(name=text)).data
        template_encoding.read_wire_extension(template_encoding._TEMPLATE, memoryview(data))
    assert len(template_encoding._known) - before in (0, 1)


def test_who_welcomes_and_hangs_up_is_not_dialled_at_once_again(monkeypatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise asyncio.CancelledError

    async def greet(address: str) -> str:
        return "fickle"

    async def dial() -> None:
        dialler = Dialler("own", greet, lambda host_id, address: False, Random(1))
        monkeypatch.setattr("tupelo.federation.hosts.discovery.asyncio.sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await dialler._keep_dialling("somewhere")

    asyncio.run(dial())
    assert pauses[0] <= 0.1 and pauses[-1] > 1.0


def test_a_closing_host_lets_nobody_in(threads):
    host = threads.host("leaving")
    host.core._closed = True
    assert "the host is leaving" in answer_to(host.address, "client")
    host.core._closed = False


def test_a_space_with_rules_is_not_open_before_its_program_has_said_them(threads, tmp_path):
    host = threads.host("safe", path=tmp_path / "safe", space=False)
    host.space("secret", access=tupelo.Access(password="tea")).write(("plan", 1))
    host.space("bounded", capacity=tupelo.Capacity(entries=5))
    host.space("open").write(("note", 1))
    host.close()
    host = threads.host("safe", path=tmp_path / "safe", space=False)
    for name in ("secret", "bounded"):
        with pytest.raises(NotAllowed, match="before its program has opened it"):
            tupelo.connect(host.url + name)
    with tupelo.connect(host.url + "open") as space:
        assert space.read(("note", int), wait=0) == ("note", 1)
    host.space("secret", access=tupelo.Access(password="tea"))
    with pytest.raises(WrongPassword):
        tupelo.connect(host.url + "secret")
    with tupelo.connect(host.url + "secret", password="tea") as space:
        assert space.take(("plan", int), wait=0) == ("plan", 1)


@pytest.mark.parametrize("name", ["", "tupelo.x", "\ud800", "é" * 41, 5])
def test_a_name_that_cannot_be_one_is_refused(company, name):
    host = company.host("one")
    with pytest.raises(BadArgument, match="name="):
        host.space(name)


@pytest.mark.parametrize("seed", [3, 4, 7])
def test_what_comes_over_one_link_while_another_is_made_is_taken_once(seed):
    """The host that dials lists what it has received before it gets more over the other link."""

    async def main(field: Field) -> None:
        await field.host("b")
        b, a = field.members[0], WorldHost(field, "a")
        field.members.append(a)
        await a.start()
        jobs, ours = field.spaces[0], a.api.space("jobs")
        written = [("job", number) for number in range(100)]
        await b.do(jobs.write_all(written))
        field.network.slow("a", "b", 100)
        a.call(a.api.engage, b.address)
        while not any("a is linked to b" in line for line in field.network.trace):
            await asyncio.sleep(0.001)
        field.network.slow("a", "b", 1)  # What a has said by now comes late.
        b.call(b.api.engage, a.address)
        taken = []
        while (job := await a.do(ours.take(("job", int), wait=10))) is not None:
            taken.append(job)
        assert sorted(taken) == written

    play(Field, main, seed)
