"""`tupelo host`, as a user runs it: in a terminal, beside others, until it is told to stop."""

import json
import signal
import urllib.request

import pytest

import tupelo
from tupelo.errors import CannotReach, UnknownSpace


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_programs_connect_to_it_and_it_leaves_when_told(start, tmp_path, number):
    host = start("kitchen", "--listen", "127.0.0.1:0", "--path", str(tmp_path / "kitchen"))
    with tupelo.connect(host.url + "jobs") as space:
        space.write(("job", 1))
        assert space.host["name"] == "kitchen"
    assert host.stop(number) == (0, "kitchen has left\n")
    with pytest.raises(CannotReach):
        tupelo.connect(host.url + "jobs", reconnect=0)
    again = start("kitchen", "--listen", "127.0.0.1:0", "--path", str(tmp_path / "kitchen"))
    with tupelo.connect(again.url + "jobs") as space:
        assert space.take(("job", int), wait=0) == ("job", 1)
    again.stop(number)


def test_it_serves_its_console(start, tupelo, tmp_path):
    host = start("kitchen", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")
    address, _, token = host.line().removeprefix("console ").partition("#token=")
    request = urllib.request.Request(
        f"{address}api/host", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["name"] == "kitchen"
    busy = address.removeprefix("http://").rstrip("/")
    result = tupelo("console", host.url, "--listen", busy)
    assert result.returncode == 1
    assert "--listen must be an address that is free" in result.stderr
    host.stop(signal.SIGINT)
    result = tupelo("console", host.url, "--listen", "127.0.0.1:0")
    assert result.returncode == 1 and result.stderr.endswith(
        "cannot be reached: Connection refused\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--listen", "0.0.0.0:0"], ["--listen", "127.0.0.1:0", "--no-local-trust"]]
)
def test_a_host_that_trusts_few_serves_its_console(start, tmp_path, arguments):
    (tmp_path / "known").write_text("")
    more = ["--path", str(tmp_path / "kitchen"), "--trust", str(tmp_path / "known")]
    host = start("kitchen", *arguments, *more, "--console", "127.0.0.1:0")
    assert host.line().startswith("identity ")
    address, _, token = host.line().removeprefix("console ").partition("#token=")
    request = urllib.request.Request(
        f"{address}api/host", headers={"Authorization": f"Bearer {token}"}
    )
    for _ in range(2):
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["name"] == "kitchen"
        host.process.send_signal(signal.SIGHUP)
        assert host.line() == "who is trusted was read again"
    host.stop(signal.SIGINT)


def test_it_says_who_comes_and_goes(start):
    kitchen = start("kitchen", "--listen", "127.0.0.1:0", "--heartbeat", "10")
    address = kitchen.url.removeprefix("tupelo://").rstrip("/")
    hall = start("hall", "--listen", "127.0.0.1:0", "--peer", address, "--heartbeat", "10")
    assert kitchen.line().startswith("engaged  hall at 127.0.0.1:")
    assert hall.line().startswith(f"engaged  kitchen at {address}")
    hall.stop(signal.SIGINT)
    line = kitchen.line()
    assert line.startswith("departed hall at ") and line.endswith("(goodbye)")
    kitchen.stop(signal.SIGINT)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["kitchen", "--listen", "nowhere:port"], "--listen must be an address"),
        (["kitchen", "--listen", "127.0.0.1:0", "--peer", "a:b:c"], "--peer must be an address"),
        (["kitchen", "--listen", "127.0.0.1:0", "--trust", "no file"], "--trust must be"),
        (["", "--listen", "127.0.0.1:0"], "NAME must be"),
        (
            ["kitchen", "--listen", "127.0.0.1:0", "--console", "here"],
            "--console must be an address",
        ),
        (
            ["kitchen", "--listen", "127.0.0.1:0", "--console", "0.0.0.0:0"],
            "--console must be a loopback address (beyond this machine: `tupelo console URL"
            " --remote`",
        ),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(tupelo, arguments, complaint):
    result = tupelo("host", *arguments)
    assert result.returncode == 1
    assert result.stderr.startswith(f"tupelo: {complaint}") and result.stderr.count("\n") == 1


def test_the_logs_of_its_spaces_are_sealed_where_it_is_told(start, tmp_path):
    host = start(
        *("kitchen", "--listen", "127.0.0.1:0"),
        *("--path", str(tmp_path / "kitchen"), "--archive", str(tmp_path / "archive")),
    )
    with tupelo.connect(f"{host.url}jobs") as space:
        space.write_all([("job", number) for number in range(10)])
    assert host.stop(signal.SIGTERM)[0] == 0
    sealed = list((tmp_path / "archive").glob("host=*/space=jobs/day=*/1-10.parquet"))
    assert len(sealed) == 1


def test_a_host_that_makes_no_spaces(start, tmp_path):
    host = start("kitchen", "--listen", "127.0.0.1:0", "--no-create")
    with pytest.raises(UnknownSpace, match="jobs"):
        tupelo.connect(host.url + "jobs")
    assert host.stop(signal.SIGTERM)[0] == 0
