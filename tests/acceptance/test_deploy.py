"""The files of examples/deploy, as far as this machine can try them."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tupelo as package

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def test_the_host_runs_as_configured(start, tmp_path, monkeypatch):
    monkeypatch.setenv("JOBS_PASSWORD", "tea")
    shutil.copytree(DEPLOY, tmp_path / "etc")
    host = start(
        *("--config", str(tmp_path / "etc" / "host.toml"), "--path", str(tmp_path / "data")),
        *("--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"),
    )
    assert host.line().startswith("console http://127.0.0.1:")
    with package.connect(host.url + "jobs", password="tea") as jobs:
        jobs.write(("job", 1))
    assert host.stop(signal.SIGTERM) == (0, "kitchen has left\n")


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    text = (DEPLOY / "tupelo.service").read_text()
    assert text.count("/opt/tupelo/bin/tupelo host") == 1
    unit = tmp_path / "tupelo.service"
    command = f'"{sys.executable}" -m tupelo host'  # A path may have spaces in it.
    unit.write_text(text.replace("/opt/tupelo/bin/tupelo host", command))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_container_has_what_it_copies_and_runs(tupelo):
    text = (DEPLOY / "Containerfile").read_text()
    for sources in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (DEPLOY.parents[1] / source).exists()
    assert "host" in text and tupelo("host", "-h").returncode == 0
    for source in re.findall(r"\./(\S+?):", (DEPLOY / "compose.yaml").read_text()):
        assert (DEPLOY / source).exists()
