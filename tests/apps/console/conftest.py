"""A host with its console, requests to it, and a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import tupelo
from tests.conftest import until_true
from tupelo.apps.console import Console

expect.set_options(timeout=60_000)

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Http:
    """Requests to one console; `call` returns the status and the JSON of the answer."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        status, raw, _ = self.raw(method, path, body, headers=headers)
        return status, json.loads(raw)

    def raw(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = HTTPConnection(self._console.address, timeout=60)
        given = {"Authorization": f"Bearer {self._console.token}"} | (headers or {})
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        try:
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.headers.items())
        finally:
            connection.close()

    def ok(self, path: str, body: Any = None) -> Any:
        """The answer to a POST, or to a GET if there is no body."""
        status, said = self.call("GET" if body is None else "POST", path, body)
        assert status in (200, 201), said
        return said

    @contextmanager
    def events(self, path: str, body: Any) -> Iterator[Iterator[tuple[str, Any]]]:
        """The server-sent events of this stream; the connection is closed at the end."""
        connection = HTTPConnection(self._console.address, timeout=60)
        headers = {"Authorization": f"Bearer {self._console.token}"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()

        def events() -> Iterator[tuple[str, Any]]:
            name = ""
            for line in answer:
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:])

        try:
            yield events()
        finally:
            connection.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tupelo.Host]:
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=tmp_path / "kitchen") as made:
        made.space("jobs")
        yield made


@pytest.fixture
def console(host: tupelo.Host) -> Iterator[Console]:
    with Console(host.url) as made:
        yield made


@pytest.fixture
def http(console: Console) -> Http:
    return Http(console)


@pytest.fixture
def garden(host: tupelo.Host) -> Iterator[tupelo.Host]:
    with tupelo.Host("garden", listen="127.0.0.1:0", peers=[host.address]) as made:
        until_true(lambda: made.engaged and host.engaged, "they are engaged")
        yield made


@pytest.fixture
def garden_console(garden: tupelo.Host) -> Iterator[Console]:
    with Console(garden.url) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one module: while Playwright is open, its event loop runs in this thread, and
    tests of other modules could not run one."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=CHROMIUM_ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages, each in a browser profile of its own. A script error fails the test."""
    contexts = []
    errors: list[str] = []

    def opened(url: str, **options: Any) -> Page:
        context = browser.new_context(**options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors, errors


def part(page: Page) -> None:
    """Part the host of this page from the others, by its button."""
    page.get_by_role("button", name="Part from other hosts").click()
    page.get_by_role("dialog").get_by_role("button", name="Part").click()
    expect(page.get_by_role("button", name="Apart from other hosts")).to_be_visible()
