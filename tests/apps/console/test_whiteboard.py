"""The whiteboard: one picture at several hosts, which part and meet again."""

import os
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import tupelo
from tests.apps.console.conftest import Http, part
from tests.conftest import until_true
from tupelo.apps.console import Console
from tupelo.models.event_heap import Event, EventHeap

LINE = {"colour": "#1c5d4a", "width": 4, "points": [10, 10, 200, 200]}


def _at_most_one(space: tupelo.SpaceLike) -> bool:
    return space.count() <= 1


def draw(page: Page, *points: tuple[float, float]) -> None:
    """Draw a line on the board; points are parts of its width and height."""
    box = page.locator(".board").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()


def strokes(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        ".strokes polyline", "all => all.map((one) => one.outerHTML)"
    )
    return found


def test_two_hosts_draw_part_draw_meet_and_show_one_picture(
    console, host, garden_console, garden, open_page, tmp_path
):
    pages = [open_page(console.url), open_page(garden_console.url)]
    for page in pages:
        page.get_by_role("link", name="Whiteboard").click()
    here, there = pages
    expect(here.locator(".hosts-here")).to_have_text("Connected hosts: garden.")
    drawn = here.locator(".strokes polyline")
    drawn_there = there.locator(".strokes polyline")
    draw(here, (0.1, 0.1), (0.4, 0.5), (0.2, 0.8))
    expect(drawn_there).to_have_count(1)
    there.get_by_label("Colour").select_option("red")
    draw(there, (0.5, 0.2), (0.9, 0.3))
    expect(drawn).to_have_count(2)
    expect(drawn_there).to_have_count(2)

    part(there)
    until_true(lambda: not host.engaged and not garden.engaged, "they are apart")
    here.get_by_label("Colour").select_option("blue")
    here.get_by_label("Width").select_option("marker")
    there.get_by_label("Width").select_option("marker")
    for n in range(3):  # They cross, so the order is seen.
        draw(here, (0.2, 0.3 + n / 5), (0.8, 0.3 + n / 5))
        draw(there, (0.3 + n / 5, 0.2), (0.3 + n / 5, 0.9))
        expect(drawn).to_have_count(3 + n)
        expect(drawn_there).to_have_count(3 + n)
    assert strokes(here)[2:] != strokes(there)[2:]

    there.get_by_role("button", name="Apart from other hosts").click()
    expect(drawn).to_have_count(8)
    expect(drawn_there).to_have_count(8)
    until_true(lambda: strokes(here) == strokes(there), "one picture")
    expect(here.locator(".hosts-here")).to_have_text("Connected hosts: garden.")
    folder = Path(os.environ.get("TUPELO_ARTEFACTS", tmp_path))
    here.screenshot(path=folder / "whiteboard.png", full_page=True)

    here.get_by_role("button", name="Wipe").click()
    here.get_by_role("dialog").get_by_role("button", name="Wipe").click()
    expect(drawn).to_have_count(0)
    expect(drawn_there).to_have_count(0)
    for space in (host.space("whiteboard"), garden.space("whiteboard")):
        # Of all events only the wipe is left.
        until_true(partial(_at_most_one, space), "the strokes are removed")


def test_the_keyboard_draws(console, open_page):
    page = open_page(console.url)
    page.get_by_role("link", name="Whiteboard").click()
    page.locator(".board").focus()
    for key in ("Space", "ArrowRight", "ArrowRight", "ArrowDown", "Space"):
        page.keyboard.press(key)
    expect(page.locator(".strokes polyline")).to_have_attribute(
        "points", "500 300 500 300 520 300 540 300 540 320"
    )


def test_a_new_reader_gets_the_whole_picture_and_then_what_changes(http, console):
    first = http.ok("/api/whiteboard/draw", LINE)["id"]
    with http.events("/api/whiteboard/watch", {}) as events:
        said = next(said for _, said in events if said["strokes"])
        assert [one["id"] for one in said["strokes"]] == [first]
        second = http.ok("/api/whiteboard/draw", LINE)["id"]
        _, said = next(events)
        assert (said["keep"], [one["id"] for one in said["strokes"]]) == (1, [second])
        http.ok("/api/whiteboard/wipe", {})
        _, said = next(events)
        assert (said["keep"], said["strokes"]) == (0, [])


def test_two_boards_that_were_begun_apart_become_one(tmp_path):
    line = {"colour": "#2458a6", "width": 4, "points": [1, 1]}
    with (
        tupelo.Host("kitchen", listen="127.0.0.1:0") as one,
        tupelo.Host("garden", listen="127.0.0.1:0") as other,
        Console(one.url) as here,
        Console(other.url) as there,
    ):
        mine, yours = Http(here), Http(there)
        for http in (mine, yours):
            http.ok("/api/whiteboard/draw", line)
        one.engage(other.address)

        def picture(http: Http) -> list[str]:
            with http.events("/api/whiteboard/watch", {}) as events:
                return [stroke["id"] for stroke in next(events)[1]["strokes"]]

        until_true(lambda: len(picture(mine)) == 2, "both are here")
        until_true(lambda: picture(mine) == picture(yours), "one order")


def test_what_other_programs_write_there_is_not_shown(http, host):
    heap = EventHeap(host, "whiteboard")
    heap.put(Event("stroke", id="x", colour="red", width=1, points=[]))
    heap.put(Event("stroke", id="<b>"))
    host.space("whiteboard").write(("stroke", 1))
    drawn = http.ok("/api/whiteboard/draw", LINE)["id"]
    with http.events("/api/whiteboard/watch", {}) as events:
        said = next(said for _, said in events if said["strokes"])
        assert [one["id"] for one in said["strokes"]] == [drawn]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"colour": "red"}, "colour="),
        ({"colour": None}, "colour="),
        ({"width": 0}, "width="),
        ({"width": True}, "width="),
        ({"points": [1]}, "points="),
        ({"points": [0, 601]}, "points="),
        ({"points": [1, 2] * 501}, "points="),
        ({"who": 1}, "who="),
    ],
)
def test_a_wrong_stroke_is_refused(http, changed, named):
    status, said = http.call("POST", "/api/whiteboard/draw", LINE | changed)
    assert (status, named in said["message"]) == (400, True)


# Parting a host


def test_a_host_is_parted_and_meets_again(http, host, garden):
    assert http.ok("/api/host/disengage", {}) == {"disengaged": True}
    assert http.ok("/api/host/disengage", {}) == {"disengaged": True}
    until_true(lambda: not garden.engaged, "they are apart")
    about = http.ok("/api/host")
    assert (about["disengaged"], about["peers"]) == (True, [])
    with tupelo.connect(host.url + "jobs") as jobs:  # Clients come and go.
        jobs.write(("job", 1))
    assert garden.space("jobs").read(("job", int), wait=0) is None
    assert http.ok("/api/host/engage", {}) == {"disengaged": False}
    until_true(lambda: host.engaged and garden.engaged, "they meet")
    assert garden.space("jobs").read(("job", int)) == ("job", 1)


def test_only_programs_on_its_machine_part_a_host(tmp_path):
    alice = tupelo.Identity.new()
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=tmp_path, local_trust=False) as host:
        assert host.identity is not None
        host.trust(alice.key)
        known = tupelo.Trust.known([host.identity])
        with Console(host.url, identity=alice, trust=known, tls=True) as console:
            status, said = Http(console).call("POST", "/api/host/disengage", {})
            assert (status, said["error"]) == (403, "NotAllowed")
            assert Http(console).ok("/api/host")["disengaged"] is False
