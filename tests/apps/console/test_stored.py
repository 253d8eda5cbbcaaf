"""The console of a host whose spaces are in a database."""

from uuid import uuid4

import pytest
from playwright.sync_api import expect

import tupelo
from tests.apps.console.conftest import Http
from tests.kinds import database_url
from tupelo.apps.console import Console


@pytest.fixture
def name():
    return f"jobs-{uuid4()}"


@pytest.fixture
def stored_console(name):
    with tupelo.Host("office", listen=0, store=database_url()) as host:
        host.space(name).write_all([("job", n) for n in range(3)])
        with Console(host.url) as console:
            yield console


def test_the_page_shows_the_entries_of_a_space_in_a_database(stored_console, name, open_page):
    page = open_page(stored_console.url)
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("link", name=name).click()
    entries = page.locator("ol.entries li")
    expect(entries).to_have_text(['("job", 0)', '("job", 1)', '("job", 2)'])
    page.get_by_role("button", name="Take one").click()
    page.get_by_role("button", name="Take", exact=True).click()
    expect(entries).to_have_text(['("job", 1)', '("job", 2)'])
    page.get_by_label("New entry").fill('("job", 3)')
    page.get_by_role("button", name="Write").click()
    expect(entries).to_have_text(['("job", 1)', '("job", 2)', '("job", 3)'])


def test_the_http_api_uses_a_space_in_a_database(stored_console, name):
    http = Http(stored_console)
    space = f"/api/spaces/{name}"
    assert http.ok(f"{space}/count", {"template": '("job", int)'}) == {"count": 3}
    assert http.ok(f"{space}/take", {"template": '("job", int)'}) == {"entry": ["job", 0]}
    (row,) = [one for one in http.ok("/api/spaces")["spaces"] if one["name"] == name]
    assert row["durable"] and not row["shared"]
    assert http.ok(space)["entries"] == 2
