"""What a notebook shows of spaces, hosts and queues: small, and hostile entries as text."""

import asyncio
from html.parser import HTMLParser
from typing import Any, cast

import pytest

import tupelo
from tupelo.queue import JobQueue

HOSTILE = "<script>alert(1)</script>&amp;\"'\x00\u202e"


class Shown(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, page: str | None) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        assert page is not None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        assert attrs == []
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(params=["memory", "host", "spanning"])
def space(request):
    with tupelo.Host(HOSTILE, listen=0) as host:
        match request.param:
            case "memory":
                with tupelo.Space(HOSTILE) as space:
                    yield space
            case "host":
                host.space("jobs")
                with tupelo.connect(f"{host.url}jobs") as space:
                    yield space
            case "spanning":
                yield host.space("jobs")


def test_a_space_shows_its_first_entries(space):
    space.write_all([(HOSTILE, number) for number in range(7)])
    shown = Shown(space._repr_html_())
    assert shown.tags == {"table", "caption", "tr", "td"}
    assert shown.texts[0].endswith(": 7 entries") and len(shown.texts) == 6
    assert "<script>alert(1)</script>&amp;" in shown.texts[1]
    assert all(text.isprintable() for text in shown.texts)
    assert space.count() == 7


def test_a_long_entry_is_shortened(space):
    space.write(("a" * 10_000, {"<b>": ["c"] * 1_000}))
    assert len(space._repr_html_()) < 1_000


def test_a_host_shows_its_spaces():
    with tupelo.Host("<b>", listen=0) as host:
        host.space("<i>jobs").write(("a",))
        shown = Shown(host._repr_html_())
    assert shown.tags == {"table", "caption", "tr", "td"}
    assert shown.texts[0].startswith("<the host '<b>' at 127.0.0.1:")
    assert shown.texts[1:4] == ["space", "<i>jobs", "1 entries"]


def test_a_queue_shows_its_jobs(space):
    queue = JobQueue(space, "<b>")
    queue.submit("resize", HOSTILE)
    queue.submit("resize", HOSTILE, delay=3600)
    shown = Shown(queue._repr_html_())
    assert shown.tags == {"table", "caption", "tr", "td"} and "'<b>'" in shown.texts[0]
    counts = ["ready: 1", "delayed: 1", "in hand: 0", "done: 0", "dead: 0"]
    assert shown.texts[1:] == counts


def test_what_cannot_be_read_at_once_is_shown_as_text():
    space = tupelo.Space()
    space.close()
    assert space._repr_html_() is None and JobQueue(space)._repr_html_() is None
    with tupelo.Host("h", listen=0) as host:
        host.space("jobs")

        async def open_and_show() -> Any:
            async with await tupelo.aio.connect(f"{host.url}jobs") as remote:
                return cast(Any, remote)._repr_html_()

        assert asyncio.run(open_and_show()) is None
