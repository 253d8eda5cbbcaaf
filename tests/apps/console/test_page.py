"""The console as people use it, in a real browser."""

import os
import re
from pathlib import Path

from playwright.sync_api import expect

import tupelo


def test_spaces_are_browsed_written_and_taken(console, host, open_page):
    jobs = host.space("jobs")
    jobs.write_all([("job", n) for n in range(120)])
    page = open_page(console.url)
    expect(page.get_by_role("row")).to_have_count(2)
    assert "token" not in page.url
    page.get_by_role("link", name="jobs").click()
    entries = page.locator("ol.entries li")
    expect(entries).to_have_count(50)
    page.get_by_role("button", name="More").click()
    expect(entries).to_have_count(100)
    page.get_by_label("Template").fill('("job", Between(3, 4))')
    page.get_by_role("button", name="Browse").click()
    expect(entries).to_have_text(['("job", 3)', '("job", 4)'])
    page.get_by_role("button", name="Take one").click()
    expect(page.get_by_role("dialog")).to_contain_text('("job", 3)')
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("status")).to_have_text("Nothing was taken.")
    assert jobs.count() == 120
    page.get_by_role("button", name="Take one").click()
    page.get_by_role("button", name="Take", exact=True).click()
    expect(entries).to_have_text(['("job", 4)'])
    assert jobs.read(("job", 3), wait=0) is None
    page.get_by_label("New entry").fill('("job", 3)')
    page.get_by_role("button", name="Write").click()
    expect(entries).to_have_text(['("job", 4)', '("job", 3)'])
    page.get_by_label("Template").fill("((")
    page.get_by_role("button", name="Browse").click()
    expect(page.get_by_role("status")).to_contain_text("cannot be read")


def test_work_in_hand_is_seen_with_names(console, host, open_page):
    host.space("jobs").write(("job", 1))
    with tupelo.connect(host.url + "jobs", name="worker-1") as worker:
        with worker.transaction(lease=600) as txn:
            worker.take(("job", int), txn=txn)
            page = open_page(console.url)
            page.get_by_role("link", name="jobs").click()
            expect(page.locator(".transactions")).to_contain_text("worker-1, active: 1 taken")
        page.get_by_role("link", name="Hosts").click()
        expect(page.locator(".clients")).to_contain_text("worker-1")


def test_a_lease_is_renewed_and_cancelled(console, host, open_page):
    host.space("jobs").write(("job", 0))
    page = open_page(console.url)
    page.get_by_role("link", name="jobs").click()
    page.get_by_label("New entry").fill('("job", 1)')
    page.get_by_label("Lease in seconds").fill("600")
    page.get_by_role("button", name="Write").click()
    expect(page.locator(".held li")).to_contain_text('("job", 1) until')
    page.get_by_role("button", name="Renew for 600 s").click()
    expect(page.get_by_role("status")).to_have_text("The lease was renewed.")
    page.locator(".held").get_by_role("button", name="Cancel").click()
    expect(page.locator("ol.entries li")).to_have_text(['("job", 0)'])
    expect(page.locator(".held li")).to_have_count(0)
    expect(page.locator(".access")).to_contain_text("administer")


def test_hosts_and_their_links_are_shown(console, host, open_page, tmp_path):
    with tupelo.Host("garden", listen="127.0.0.1:0", peers=[host.address]):
        page = open_page(console.url, viewport={"width": 900, "height": 700})
        page.get_by_role("link", name="Hosts").click()
        peer = page.locator(".peers tr")
        expect(peer).to_contain_text("garden")
        expect(peer).to_contain_text(re.compile(r"\d ms.*B/s.*B/s"))
        folder = Path(os.environ.get("TUPELO_ARTEFACTS", tmp_path))
        page.screenshot(path=folder / "hosts.png")
    expect(page.locator(".news li").first).to_contain_text("garden departed")


def test_live_changes_say_who_did_them(console, host, open_page):
    host.space("a first space")
    host.space("jobs").write(("job", 1))
    page = open_page(console.url)
    page.get_by_role("link", name="jobs").click()
    page.get_by_role("link", name="Live changes of this space").click()
    expect(page.get_by_role("status")).to_have_text("Watching.")
    expect(page.get_by_label("Space")).to_have_value("jobs")
    with tupelo.connect(host.url + "jobs", name="worker-1") as worker:
        worker.write(("job", 2))
        expect(page.locator("tbody.changes tr")).to_contain_text(["worker-1"])


def test_a_flood_of_changes_is_watched_paused_and_resumed(console, host, open_page):
    jobs = host.space("jobs")
    jobs.write(("job", 0))
    page = open_page(console.url)
    page.get_by_role("link", name="Live changes").click()
    expect(page.get_by_role("status")).to_have_text("Watching.")
    rows = page.locator("tbody.changes tr")
    jobs.write(("first",))
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    for start in range(0, 50_000, 5_000):
        jobs.write_all([("job", start + n) for n in range(5_000)])
    jobs.write(("last",))
    expect(page.locator(".rate")).to_contain_text("more were not shown")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Resume").click()
    expect(rows.first).to_contain_text('("last",)')
    assert rows.count() <= 500


def test_hostile_entries_are_shown_as_text(console, host, open_page):
    jobs = host.space("jobs")
    jobs.write(("<img src=x onerror=alert(1)>", "\u202e\x00\n", "x" * 100_000))
    deep: object = "end"
    for _ in range(30):
        deep = [deep]
    jobs.write(("deep", deep))
    page = open_page(console.url)
    page.get_by_role("link", name="jobs").click()
    first = page.locator("ol.entries li").first
    expect(first).to_contain_text("<img src=x onerror=alert(1)>")
    expect(first).to_contain_text("\\u202e\\u0000\\n")
    assert page.locator("ol.entries img").count() == 0


def test_a_wrong_token_asks_for_another(console, open_page):
    page = open_page(f"http://{console.address}/#token=wrong")
    expect(page.get_by_role("status")).to_have_text("A valid token is needed.")
    page.get_by_label("The token").fill(console.token)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="Spaces")).to_be_visible()


def test_the_keyboard_is_enough(console, host, open_page):
    jobs = host.space("jobs")
    jobs.write(("job", 1))
    page = open_page(console.url)
    expect(page.get_by_role("link", name="jobs")).to_be_visible()

    def tab_to(name: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            focused = page.evaluate(
                "(document.activeElement.labels?.[0] || document.activeElement).innerText"
            )
            if focused.strip().startswith(name):
                return
        raise AssertionError(f"{name} cannot be reached with Tab")

    tab_to("jobs")
    page.keyboard.press("Enter")
    expect(page.locator("ol.entries li")).to_have_count(1)
    tab_to("Take one")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    tab_to("Take")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Taken")
    assert jobs.count() == 0


def test_it_fits_a_phone_and_is_dark_if_wanted(console, host, open_page):
    host.space("a-space-with-a-rather-long-name").write(("x" * 300,))
    viewport = {"width": 360, "height": 700}
    page = open_page(console.url, viewport=viewport, color_scheme="dark")
    page.get_by_role("link", name="a-space-with").click()
    expect(page.locator("ol.entries li")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
