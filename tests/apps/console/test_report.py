"""The report of the pipeline in the console."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

import tupelo
from tests.apps.console.conftest import Http
from tupelo.apps.console import Console

PAGE = "<!DOCTYPE html><title>x</title><h1>What happened</h1><script>parent.bad = 1</script>"


@pytest.fixture
def reported(host: tupelo.Host, tmp_path: Path) -> Iterator[tuple[Console, Path]]:
    with Console(host.url, report=tmp_path / "report") as console:
        yield console, tmp_path / "report"


def test_the_report_is_shown_when_there_is_one(reported, open_page):
    console, folder = reported
    page = open_page(console.url)
    page.get_by_role("link", name="Report").click()
    expect(page.get_by_text("No report yet")).to_be_visible()
    folder.mkdir()
    (folder / "report.html").write_text(PAGE)
    page.get_by_role("link", name="Hosts").click()
    page.get_by_role("link", name="Report").click()
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="What happened")).to_be_visible()
    assert page.evaluate("window.bad") is None


def test_its_address_holds_for_who_has_the_token_only(reported):
    console, folder = reported
    http = Http(console)
    assert http.ok("/api/report") == {"report": None}
    folder.mkdir()
    (folder / "report.html").write_text(PAGE)
    assert http.call("GET", "/api/report", headers={"Authorization": "Bearer x"})[0] == 401
    address = http.ok("/api/report")["report"]["page"]
    status, raw, headers = http.raw("GET", address, headers={"Authorization": ""})
    assert (status, raw) == (200, PAGE.encode())
    assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    for other in ("/report/", "/report/x", f"{address}x", "/report/../report.html"):
        assert http.call("GET", other)[0] == 404
    assert http.call("POST", address)[0] == 404
