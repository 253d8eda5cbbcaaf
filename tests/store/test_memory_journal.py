"""The log in memory: the newest changes, as long as the process lives."""

import sys
import threading

import pytest

import tupelo
from tupelo.errors import LogTrimmed


def test_a_space_in_memory_keeps_no_log_unless_it_is_asked_to():
    space = tupelo.Space()
    space.write(("a",))
    for attempt in (space.changes, lambda: space.trim(before=1), space.compact):
        with pytest.raises(LogTrimmed, match="log_keep"):
            attempt()


def test_it_keeps_the_newest():
    space = tupelo.Space(log_keep=3)
    space.write_all([("n", i) for i in range(5)])
    with pytest.raises(LogTrimmed) as trimmed:
        space.changes(since=1)
    assert trimmed.value.first == 3
    assert [change.position for change in space.changes(since=2)] == [3, 4, 5]


def test_it_keeps_all_if_so_wished():
    space = tupelo.Space(log_keep="all")
    space.write_all([("n", i) for i in range(2_000)])
    assert len(space.changes()) == 2_000


def test_a_reader_of_a_log_that_moves_on_misses_nothing_unawares():
    space = tupelo.Space(log_keep=50)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            space.write(("n",))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        since = 0
        for _ in range(20_000):  # always at the edge, where the oldest changes are forgotten
            try:
                page = space.changes(since=since, limit=5)
            except LogTrimmed as trimmed:
                since = trimmed.first + 3
                continue
            positions = [change.position for change in page]
            assert positions == list(range(since + 1, since + 1 + len(page)))
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(interval)
