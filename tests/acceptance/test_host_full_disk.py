"""`tupelo host` on a disk that is full for a while: it says so, serves reads, and goes on."""

import json
import re
import signal
import subprocess
from typing import Any

import pytest

import tupelo as package
from tests.conftest import leave_free
from tupelo.errors import DiskFull

LEFT_BYTES = 2**20


def said_of(url: str, result: subprocess.CompletedProcess[str]) -> Any:
    found = map(json.loads, result.stdout.splitlines())
    return next(one for one in found if one["what"] == url)


def test_a_host_goes_on_when_its_disk_has_room_again(disk, start, tupelo):
    host = start("kitchen", "--listen", "127.0.0.1:0", "--path", str(disk / "kitchen"))
    with package.connect(host.url + "jobs") as jobs, package.connect(host.url + "news") as news:
        for space in (jobs, news):
            space.write(("n", 1))
        ballast = leave_free(disk, LEFT_BYTES)
        for space in (jobs, news):
            space.write(("the last", 1))  # Its commit sees that there is little left.
            for _ in range(10):
                with pytest.raises(DiskFull):
                    space.write(("late", 1))
        assert tupelo("count", host.url + "jobs").stdout == "2\n"
        said = said_of(host.url, tupelo("doctor", host.url))
        assert said["state"] == "bad" and said["found"].count("the disk is full") >= 2
        ballast.unlink()
        for space in (jobs, news):
            space.write(("after", 1))
        with package.connect(host.url + "new") as new:
            new.write(("n", 1))
        assert said_of(host.url, tupelo("doctor", host.url))["state"] == "ok"
    host.process.send_signal(signal.SIGTERM)
    log = host.process.communicate()[1]
    for name in ("jobs", "news"):
        assert len(re.findall(f"ERROR .*/{name}.tupelo: the disk is full", log)) == 1
        assert len(re.findall(f"/{name}.tupelo: the disk has room again", log)) == 1


def test_a_host_that_starts_on_a_full_disk_serves_what_it_has(disk, start):
    arguments = ("kitchen", "--listen", "127.0.0.1:0", "--path", str(disk / "kitchen"))
    host = start(*arguments)
    with package.connect(host.url + "jobs") as jobs:
        jobs.write(("n", 1))
    host.stop(signal.SIGTERM)
    ballast = leave_free(disk, LEFT_BYTES)
    host = start(*arguments)
    with package.connect(host.url + "jobs") as jobs:
        assert jobs.count() == 1
        with pytest.raises(DiskFull):
            jobs.write(("late", 1))
        ballast.unlink()
        jobs.write(("after", 1))
    host.process.send_signal(signal.SIGTERM)
    assert host.process.communicate()[0].endswith("kitchen has left\n")
