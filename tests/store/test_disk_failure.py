"""The disk refuses: JournalFailed, the space is closed, and what was acknowledged is kept."""

import pytest

import tupelo

# A limit on the size of files stands for a full disk: the program fills it up.
FILLS_THE_DISK = """
import resource, sys, threading
from pathlib import Path
import tupelo
from tupelo.errors import JournalFailed, TupeloError

path, durability = Path(sys.argv[1]), sys.argv[2]
space = tupelo.Space("jobs", path=path, durability=durability)
first = space.write(("first",))
waiter_said = []

def wait():
    try:
        space.take(("never",))
    except TupeloError as error:
        waiter_said.append(type(error).__name__)

waiter = threading.Thread(target=wait, daemon=True)
waiter.start()
listener = space.subscribe(("never",))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))

written = 0
try:
    while True:
        space.write(("n", written, b"x" * 500))
        written += 1
except JournalFailed as error:
    print("failed", "refused" in str(error), path.name in str(error))
print(written)

def refused(attempt):
    try:
        return repr(attempt())
    except TupeloError as error:
        return type(error).__name__

said = {
    refused(lambda: space.write(("late",))),
    refused(lambda: space.write_all([("late",)])),
    refused(lambda: space.take(("first",), wait=0)),
    refused(lambda: space.read(("first",), wait=0)),
    refused(lambda: space.read(("n", written, bytes), wait=0)),
    refused(lambda: space.read_all()),
    refused(lambda: space.count()),
    refused(lambda: space.changes()),
    refused(lambda: space.trim(before=1)),
    refused(lambda: space.transaction()),
    refused(lambda: first.renew(5)),
    refused(lambda: space.read(("not there",), wait=0)),
}
print(*sorted(said))
waiter.join(5)
print(*waiter_said)
try:
    space.close()
except JournalFailed:
    pass
print("end", flush=True)
"""


@pytest.mark.parametrize("durability", ["full", "process"])
def test_a_full_disk_loses_nothing_that_was_acknowledged(program, path, durability):
    failed, written, said, waiter_said, end = program(FILLS_THE_DISK, path, durability).output()
    assert failed == "failed True True" and end == "end"
    assert int(written) > 50
    assert set(said.split()) <= {"JournalFailed", "SpaceClosed"}, "the space goes on"
    assert waiter_said in ("JournalFailed", "SpaceClosed"), "who waits is not told"
    with tupelo.Space("jobs", path=path) as space:
        assert space.read_all(("first",)) == [("first",)]
        found = [entry[1] for entry in space.read_all(("n", int, bytes))]
        assert found[: int(written)] == list(range(int(written)))
        assert len(found) <= int(written) + 1
        assert space.count(("late",)) == 0
        space.write(("after",))


def test_a_full_disk_is_logged(program, path):
    code = """
    import resource, sys, tupelo
    from tupelo.errors import JournalFailed
    space = tupelo.Space("jobs", path=sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        space.write(("large", b"x" * 200_000))
    except JournalFailed:
        print("told")
    """
    out, errors = program(code, path).communicate(timeout=60)
    assert out == "told\n"
    assert "the space 'jobs' is closed: " in errors and "refused a commit" in errors


def test_with_durability_none_a_full_disk_is_told_at_the_latest_when_the_space_is_closed(
    program, path
):
    code = """
    import resource, sys, tupelo
    from tupelo.errors import JournalFailed
    space = tupelo.Space("jobs", path=sys.argv[1], durability="none")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        for i in range(1_000):
            space.write(("n", i, b"x" * 500))
        space.close()
    except JournalFailed:
        print("told")
    """
    assert program(code, path).output() == ["told"]
    with tupelo.Space("jobs", path=path) as space:
        found = [entry[1] for entry in space.read_all()]
        assert found == list(range(len(found)))


def test_a_disk_too_full_to_make_the_file_says_so(program, path):
    code = """
    import resource, sys, tupelo
    from tupelo.errors import JournalFailed
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
    try:
        tupelo.Space("jobs", path=sys.argv[1])
    except JournalFailed as error:
        print("told")
    """
    assert program(code, path).output() == ["told"]
    with tupelo.Space("jobs", path=path) as space:
        space.write(("fine",))


def test_a_compaction_that_finds_no_room_leaves_the_space_as_it_was(program, path):
    code = """
    import resource, sys, tupelo
    from tupelo.errors import JournalFailed
    space = tupelo.Space("jobs", path=sys.argv[1], durability="process")
    space.write_all([("n", i, b"x" * 500) for i in range(400)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        space.compact()
    except JournalFailed:
        print("told")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        print(space.count())
        space.close()
    except JournalFailed:
        print("closed")
    """
    assert program(code, path).output()[0] == "told"
    with tupelo.Space("jobs", path=path) as space:
        assert space.count() == 400
