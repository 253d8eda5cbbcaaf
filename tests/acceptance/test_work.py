"""`tupelo work`, as a user runs it."""

import pytest

import tupelo as tupelo_package
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
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    with tupelo_package.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        queue = JobQueue(space)
        assert [queue.job(job.id).result(0) for job in jobs] == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tasks", "MODULE:QUEUE, such as tasks:queue"),
        ("nothing:queue", "there is no 'nothing'"),
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
