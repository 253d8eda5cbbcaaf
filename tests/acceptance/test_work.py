"""`tupelo work`, as a user runs it."""

import re
import subprocess
import sys
from socket import gethostname

import pytest

import tupelo as tupelo_package
from tests.conftest import until_true
from tupelo.queue import JobQueue

TASKS = """
import tupelo
from tupelo.queue import JobQueue

queue = JobQueue(tupelo.Space("jobs", path="jobs.tupelo"))


@queue.task
def upper(text):
    return text.upper()
"""


def test_work_does_the_jobs_of_a_module(tupelo, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    with tupelo_package.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        jobs = [JobQueue(space).submit("upper", text) for text in "abc"]
    result = tupelo("work", "tasks:queue", "--until-empty", "--threads", 2)
    assert (result.returncode, result.stdout) == (0, "")
    said = rf"tupelo: {gethostname()}-\d+ does the jobs of 'jobs' in Space\('jobs'\): upper\n"
    assert re.fullmatch(said, result.stderr)
    with tupelo_package.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        queue = JobQueue(space)
        assert [queue.job(job.id).result(0) for job in jobs] == ["A", "B", "C"]


AT_A_HOST = """
import tupelo
from tupelo.queue import JobQueue

space = tupelo.connect({url!r}{more})
queue = JobQueue(space)


@queue.task
def wait():
    space.take(("go",))
"""


@pytest.mark.parametrize(
    ("given", "more", "name"),
    [
        ((), "", None),
        (("--name", "worker-1"), "", "worker-1"),
        (("--name", "worker-1"), ", name='oven'", "oven"),
    ],
)
def test_a_worker_says_what_it_does_under_a_name_that_others_see(tmp_path, given, more, name):
    with (
        tupelo_package.Host("kitchen", path=tmp_path / "kitchen", listen=0) as host,
        tupelo_package.connect(f"{host.url}jobs", name="owner") as space,
    ):
        (tmp_path / "tasks.py").write_text(AT_A_HOST.format(url=f"{host.url}jobs", more=more))
        queue = JobQueue(space)
        job = queue.submit("wait")
        command = [sys.executable, "-m", "tupelo", "work", "tasks:queue", "--until-empty", *given]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
            name = name or f"{gethostname()}-{worker.pid}"
            until_true(lambda: queue.status().in_hand, "the job is in hand")
            assert [held.agent_name for held in queue.status().in_hand] == [name]
            space.write(("go",))
            job.result()
            _, said = worker.communicate()
        place = f"RemoteSpace('jobs', '{host.url.split('/')[2]}')"
        assert said == f"tupelo: {name} does the jobs of 'jobs' in {place}: wait\n"
        takers = {one.agent_name for one in space.changes() if one.kind == "taken"}
        assert takers == {name}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tasks", "MODULE:QUEUE must be a module and a queue in it, such as tasks:queue"),
        ("nothing:queue", "there is no module 'nothing'"),
        ("tasks:nothing", "the name of a JobQueue in tasks"),
        ("tasks:tupelo", "the name of a JobQueue in tasks"),
    ],
)
def test_a_queue_that_is_not_there_is_named(tupelo, tmp_path, name, expected):
    (tmp_path / "tasks.py").write_text(TASKS)
    result = tupelo("work", name)
    assert result.returncode != 0
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def boil():\n    raise ValueError('dry')\nboil()\n", "ValueError: dry"),
        ("import absent_package\n", "ModuleNotFoundError: No module named 'absent_package'"),
        ("def (\n", "SyntaxError: "),
    ],
)
def test_a_module_that_raises_is_named_and_its_traceback_is_its_own(tupelo, tmp_path, source, said):
    (tmp_path / "tasks.py").write_text(source)
    result = tupelo("work", "tasks:queue")
    assert result.returncode == 1
    first = result.stderr.splitlines()[0]
    assert first.startswith(f"tupelo: the module 'tasks' cannot be imported: {said}")
    assert "tasks.py" in result.stderr and said in result.stderr.splitlines()[-1]
    assert not [word for word in ("click", "importlib", "working.py") if word in result.stderr]
