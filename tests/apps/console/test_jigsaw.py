"""The jigsaw in the console: one tray at several hosts, which part and meet again."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

import tupelo
from tests.apps.console.conftest import Http, part
from tests.conftest import until_true
from tupelo.apps.console import Console
from tupelo.models import lime

PICK = {"puzzle": "x", "cells": [0]}
JOIN = {"puzzle": "x", "one": [0], "other": [1]}


def piece(page: Page, place: str) -> Locator:
    """A piece by its place, "1 2": row 1 and column 2; or an assembly by the place of its first."""
    row, column = place.split()
    named = f"row {row} column {column},"
    return page.locator(f'.piece[aria-label*="{named}"]')


def join(page: Page, one: str, other: str) -> None:
    """Join two pieces of the player of this page."""
    piece(page, one).click()
    expect(piece(page, one)).to_have_attribute("aria-pressed", "true")
    piece(page, other).click()


def tray(page: Page) -> list[Any]:
    """What is on the tray, in its order: the drawings, and the colours of their players."""
    found: list[Any] = page.eval_on_selector_all(
        ".tray .piece",
        "all => all.map((one) => [one.innerHTML.replace(/<span.*/, ''), "
        "getComputedStyle(one).color])",
    )
    return found


def shown(http: Http) -> Any:
    """The first puzzle on the tray: names of owners by cells."""
    with http.events("/api/jigsaw/watch", {}) as events:
        said = next(events)[1]
    names = {one["id"]: one["name"] for one in said["players"]}
    pieces = said["puzzles"][0]["pieces"] if said["puzzles"] else []
    return {tuple(one["cells"]): names[one["owner"]] for one in pieces}


def test_two_hosts_pick_join_part_go_on_meet_and_show_one_picture(
    console, host, garden_console, garden, open_page, tmp_path
):
    here = open_page(console.url)
    there = open_page(garden_console.url, viewport={"width": 390, "height": 800})
    for page in (here, there):
        page.get_by_role("link", name="Jigsaw").click()
    for page in (here, there):
        expect(page.locator(".players li")).to_have_count(2)
    here.get_by_label("Size").select_option("6 pieces")
    here.get_by_role("button", name="New puzzle").click()
    expect(there.locator(".piece")).to_have_count(6)

    for place in ("2 1", "2 2", "2 3"):
        piece(there, place).click()
        expect(piece(there, place)).to_have_attribute("aria-pressed", "false")
        expect(piece(here, place)).to_have_accessible_name(
            f"Piece at row {place[0]} column {place[2]}, of garden"
        )
    join(there, "2 1", "2 3")
    expect(there.locator(".told")).to_have_text("These two do not fit.")
    assert tray(here) == tray(there)

    part(there)
    until_true(lambda: not host.engaged and not garden.engaged, "they are apart")
    join(there, "2 1", "2 2")
    expect(there.locator(".piece")).to_have_count(5)
    join(here, "1 1", "1 2")
    expect(here.locator(".piece")).to_have_count(5)
    piece(here, "2 3").click()
    expect(here.locator(".told")).to_contain_text("not to be had")
    assert tray(here) != tray(there)

    there.get_by_role("button", name="Apart from other hosts").click()
    for page in (here, there):
        expect(page.locator(".piece")).to_have_count(4)
    until_true(lambda: tray(here) == tray(there), "one picture")
    folder = Path(os.environ.get("TUPELO_ARTEFACTS", tmp_path))
    here.screenshot(path=folder / "jigsaw.png", full_page=True)
    there.screenshot(path=folder / "jigsaw-phone.png", full_page=True)
    assert there.evaluate("document.documentElement.scrollWidth") <= 390

    for place in ("1 1", "1 3"):
        piece(there, place).click()
        expect(piece(there, place)).to_have_attribute("aria-pressed", "false")
    for one, other in (("1 1", "1 3"), ("1 1", "2 1"), ("1 1", "2 3")):
        count = there.locator(".piece").count()
        join(there, one, other)
        expect(there.locator(".piece")).to_have_count(count - 1)
    for page in (here, there):
        expect(page.locator(".told")).to_have_text("The puzzle is complete.")
    assert tray(here) == tray(there)

    here.get_by_role("button", name="Put away").click()
    here.get_by_role("dialog").get_by_role("button", name="Put away").click()
    for page in (here, there):
        expect(page.locator(".piece")).to_have_count(0)


def test_the_keyboard_plays(console, open_page):
    page = open_page(console.url)
    page.get_by_role("link", name="Jigsaw").click()
    page.get_by_label("Size").select_option("6 pieces")
    page.get_by_role("button", name="New puzzle").click()
    expect(page.locator(".piece")).to_have_count(6)

    def focused() -> str:
        return str(page.evaluate("document.activeElement.getAttribute('aria-label') || ''"))

    def go_to(place: str) -> None:
        """By the arrow keys; those up and down stay on the tray."""
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        for _ in range(6):
            page.keyboard.press("ArrowLeft")
        row, column = place.split()
        while f"row {row} column {column}," not in focused():
            before = focused()
            page.keyboard.press("ArrowRight")
            assert focused() != before, f"{place} cannot be reached"

    page.get_by_role("button", name="Part from").focus()
    page.keyboard.press("Tab")
    assert "row" in focused()
    go_to("1 1")
    page.keyboard.press("Enter")
    go_to("1 2")
    page.keyboard.press("Enter")
    expect(page.locator(".piece")).to_have_count(5)
    page.wait_for_function(
        "document.activeElement.getAttribute('aria-label').startsWith('Assembly of 2')"
    )


def test_players_over_http_and_at_a_lime_host_of_a_program_play_together(tmp_path):
    """A program has a lime.Host of the blocking API; the other host gets one of its own."""
    with (
        tupelo.Host("kitchen", listen="127.0.0.1:0") as one,
        lime.Host("garden", listen="127.0.0.1:0", peers=[one.address]) as other,
        Console(one.url) as here,
        Console(other.host.url) as there,
    ):
        mine, yours = Http(here), Http(there)
        puzzle = yours.ok("/api/jigsaw/new", {"columns": 2, "rows": 1})["puzzle"]
        until_true(lambda: shown(mine) == {(0,): "garden", (1,): "garden"}, "two pieces")
        for cell in (0, 1):
            picked = mine.ok("/api/jigsaw/select", {"puzzle": puzzle, "cells": [cell]})
            assert picked == {"selected": True}
        joined = {"puzzle": puzzle, "one": [0], "other": [1]}
        assert yours.ok("/api/jigsaw/assemble", joined) == {"assembled": False}
        assert mine.ok("/api/jigsaw/assemble", joined) == {"assembled": True}
        until_true(lambda: shown(yours) == {(0, 1): "kitchen"}, "one piece")
        assert other.agent("ada").name == "ada"  # The program goes on with its host.
        yours.ok("/api/jigsaw/away", {"puzzle": puzzle})
        until_true(lambda: shown(mine) == {}, "it is put away")
        with pytest.raises(tupelo.errors.BadInput, match=r"has a lime\.Host already"):
            lime.Host(one)


def test_the_pieces_of_a_host_that_closes_stay_in_the_game(http, host):
    with (
        tupelo.Host("garden", listen="127.0.0.1:0", peers=[host.address]) as garden,
        Console(garden.url) as console,
    ):
        Http(console).ok("/api/jigsaw/new", {"columns": 2, "rows": 2})
        until_true(lambda: Counter(shown(http).values()) == {"garden": 4}, "four pieces")
    until_true(lambda: Counter(shown(http).values()) == {"kitchen": 4}, "they are here")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("new", {"columns": 0, "rows": 2}, "columns="),
        ("new", {"columns": 2, "rows": 2**70}, "rows="),
        ("new", {"columns": True, "rows": 2}, "columns="),
        ("new", {}, "columns="),
        ("select", PICK | {"cells": []}, "cells="),
        ("select", PICK | {"cells": [144]}, "cells="),
        ("select", PICK | {"cells": "0"}, "cells="),
        ("select", PICK | {"puzzle": 1}, "puzzle="),
        ("assemble", JOIN | {"other": None}, "other="),
        ("assemble", JOIN | {"one": [-1]}, "one="),
        ("away", {}, "puzzle="),
        ("away", {"puzzle": "x", "who": 1}, "who="),
    ],
)
def test_wrong_input_is_refused(http, path, body, named):
    status, said = http.call("POST", f"/api/jigsaw/{path}", body)
    assert (status, named in said["message"]) == (400, True), said


def test_what_is_not_there_is_not_to_be_had(http):
    assert http.ok("/api/jigsaw/select", PICK) == {"selected": False}
    assert http.ok("/api/jigsaw/assemble", JOIN) == {"assembled": False}
    assert http.ok("/api/jigsaw/away", {"puzzle": "x"}) == {}


def test_a_caller_without_the_rights_sees_the_tray_or_not_even_that(tmp_path):
    reads = tupelo.Access(write=(), take=())
    with (
        tupelo.Host("kitchen", listen="127.0.0.1:0", spaces={"jigsaw": {"access": reads}}) as host,
        Console(host.url) as console,
    ):
        http = Http(console)
        assert shown(http) == {}
        status, said = http.call("POST", "/api/jigsaw/new", {"columns": 2, "rows": 2})
        assert (status, said["error"]) == (403, "NotAllowed")
