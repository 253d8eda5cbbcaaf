"""Takes the pictures of the docs: `python docs/screenshots.py`, with Chromium installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import tupelo
from tupelo.apps.console import Console
from tupelo.apps.jigsaw import Player
from tupelo.errors import SpaceClosed
from tupelo.models import lime

IMAGES = Path(__file__).parent / "images"
WORK = ("resize", "scan", "print")


def wait_for_a_priority_job(worker: tupelo.SpaceLike) -> None:
    with suppress(SpaceClosed):
        worker.take(("priority", int))


def take_pictures(page: Page, url: str) -> None:
    """The page of one space, with a worker that waits and another that has a job in hand."""
    page.goto(url)
    page.get_by_role("link", name="jobs").click()
    page.get_by_text("1 taken").wait_for()
    page.screenshot(path=IMAGES / "console.png")


def take_picture_of_jigsaw(chromium: Browser) -> None:
    """Kitchen's tray, after it was apart from a program, garden, and both have joined pieces."""
    with (
        tupelo.Host("kitchen", listen="127.0.0.1:0") as kitchen,
        lime.Host("garden", listen="127.0.0.1:0", peers=[kitchen.address]) as garden,
        Console(kitchen.url) as console,
    ):
        player = Player.join(garden)
        puzzle = player.new_puzzle(4, 3)
        page = chromium.new_page(viewport={"width": 900, "height": 860})
        page.goto(console.url)
        page.get_by_role("link", name="Jigsaw").click()
        for column in (1, 2, 3):
            page.locator(f'[aria-label*="row 1 column {column},"]').click()
        page.locator(".piece[aria-pressed]").nth(2).wait_for()
        garden.disengage()
        for one, other in (([4], [8]), ([8, 4], [9]), ([6], [7])):
            player.assemble(puzzle, one, other)
        for column in (1, 2, 1, 3):
            page.locator(f'.piece[aria-pressed][aria-label*="row 1 column {column},"]').click()
        garden.engage()
        page.get_by_label("Assembly of 3").nth(1).wait_for()
        page.mouse.move(0, 0)
        page.screenshot(path=IMAGES / "jigsaw.png", full_page=True)


with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
    command = [sys.executable, "-m", "tupelo.apps.cli", "host", "kitchen", "--path", folder]
    command += ["--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        url = host.stdout.readline().split()[-1].removesuffix("SPACE")
        address = host.stdout.readline().split()[-1]
        with tupelo.connect(url + "jobs", name="worker-1") as worker:
            worker.write_all([("job", n, WORK[n % 3]) for n in range(1, 9)])
            threading.Thread(target=wait_for_a_priority_job, args=[worker]).start()
            with worker.transaction(lease=60) as txn:
                worker.take(("job", int, str), txn=txn)
                program = shutil.which("chromium") or shutil.which("chromium-browser")
                chromium = playwright.chromium.launch(
                    executable_path=program, args=["--no-sandbox"]
                )
                take_pictures(chromium.new_page(viewport={"width": 900, "height": 600}), address)
                take_picture_of_jigsaw(chromium)
                chromium.close()
        host.terminate()
