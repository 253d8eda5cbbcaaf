"""Logs at hosts elsewhere: what they are shown, and what they may answer."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from tests.federation.company import Company
from tupelo.errors import PipelineError, WrongPassword
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.serving import ClientServer
from tupelo.federation.identity.access import Access
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.commands.pipeline import app
from tupelo.pipeline.logs.remote import RemoteLog, Way
from tupelo.pipeline.source.locations import resolve
from tupelo.pipeline.source.options import ReadOptions


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


def test_a_password_is_shown_only_to_a_space_that_asks_for_one(company, monkeypatch):
    shown: list[tuple[str, str | None]] = []
    opened = ClientServer.open

    def noted(serving: ClientServer, message: Any) -> Any:
        shown.append((message.space, message.password))
        return opened(serving, message)

    monkeypatch.setattr(ClientServer, "open", noted)
    host = company.host("kitchen", space=False)
    host.space("open", log_keep=10).write(("job", 1))
    host.space("locked", log_keep=10, access=Access(password="secret")).write(("job", 1))
    way = Way("secret")
    assert RemoteLog(host.address, "open", way).bounds() == (1, 1)
    assert {password for _, password in shown} == {None}
    assert RemoteLog(host.address, "locked", way).bounds() == (1, 1)
    assert {space for space, password in shown if password == "secret"} == {"locked"}
    with pytest.raises(WrongPassword):
        RemoteLog(host.address, "locked", Way())


def test_with_federation_a_password_goes_only_to_the_host_that_was_named(
    company, monkeypatch, until
):
    shown: list[tuple[str, str | None]] = []
    opened = ClientServer.open

    def noted(serving: ClientServer, message: Any) -> Any:
        shown.append((serving.agent.rpartition("@")[2], message.password))
        return opened(serving, message)

    monkeypatch.setattr(ClientServer, "open", noted)
    named, around = company.host("named", space=False), company.host("around", space=False)
    for host in (named, around):
        host.space("open", log_keep=10).write(("job", 1))
    named.space("locked", log_keep=10, access=Access(password="secret")).write(("job", 2))
    named.engage(around.address)
    until(lambda: named.engaged == ["around"])
    options = {"path": named.url, "federation": "true", "password": "secret"}
    found = resolve(ReadOptions.read(options))
    spaces = [(log.host, log.space) for log in found if log.space != PRESENCE]
    assert sorted(spaces) == sorted([(named.id, "locked"), (named.id, "open"), (around.id, "open")])
    around.space("locked too", log_keep=10, access=Access(password="other"))
    with pytest.raises(PipelineError, match=r"'locked too' at .* paths="):
        resolve(ReadOptions.read(options))
    assert {host for host, password in shown if password is not None} == {named.id}


@pytest.mark.parametrize(
    "altered",
    [
        lambda answer: None,
        lambda answer: answer[:4],
        lambda answer: [7, *answer[1:]],
        lambda answer: [*answer[:2], "1", *answer[3:]],
        lambda answer: [*answer[:4], answer[4][1:]],
        lambda answer: [*answer[:4], [column[1:] for column in answer[4]]],
        lambda answer: [*answer[:4], [answer[4][0][1:], *answer[4][1:]]],
        lambda answer: [*answer[:4], [["x"] * len(column) for column in answer[4]]],
        lambda answer: [*answer[:4], [b"torn" if is_payload(c) else c for c in answer[4]]],
        lambda answer: [
            *answer[:4],
            [[b"\xc1"] * len(c) if is_payload(c) else c for c in answer[4]],
        ],
    ],
)
def test_what_is_no_answer_is_said_with_the_address(company, monkeypatch, altered):
    host = company.host("kitchen", space=False)
    host.space("jobs", log_keep=10).write_all([("job", n) for n in range(3)])
    log = RemoteLog(host.address, "jobs", Way())
    ask = RemoteSpace.ask

    async def asked(space: Any, message: Any, *others: Any) -> Any:
        return altered(await ask(space, message, *others))

    monkeypatch.setattr(RemoteSpace, "ask", asked)
    with pytest.raises(PipelineError, match=f"{host.address} answers is no part of the log"):
        list(log.batches(1, 3))


def is_payload(column: list[Any]) -> bool:
    return type(column[0]) is bytes


def test_a_space_with_a_password_is_sealed_from_the_prompt(company, tmp_path):
    host = company.host("kitchen", space=False, path=tmp_path / "kitchen")
    host.space("jobs").write(("job", 1))
    host.space("locked", access=Access(password="secret")).write_all([("job", 1), ("job", 2)])

    def sealed(*words: object) -> Any:
        words = ("archive", host.url, "--to", tmp_path / "archive", *words)
        return CliRunner().invoke(app, [str(word) for word in words])

    refused = sealed()
    assert refused.exit_code == 1 and "'locked' has a password" in refused.stderr
    assert sealed("--space", "jobs").exit_code == 0
    told = sealed("--password", "secret")
    assert told.exit_code == 0 and "'locked' of" in told.stdout and "2 changes" in told.stdout
