"""`import tupelo` loads a name when it is first used, so that the command line starts quickly."""

import subprocess
import sys

import pytest

import tupelo

UNUSED = "tupelo.federation", "tupelo.space.core", "tupelo.pipeline", "asyncio", "typer", "rich"


def loaded_by(program: str, *names: str) -> set[str]:
    """Run a program in a new process; returns those of the modules that were loaded."""
    report = f"\nimport sys; print(*(set({names!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program + report], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_import_tupelo_loads_neither_the_engine_nor_the_federation():
    assert loaded_by("import tupelo; tupelo.__version__", *UNUSED) == set()


def test_a_space_in_memory_loads_no_federation():
    program = "import tupelo; tupelo.Space().write(('job', 1))"
    assert loaded_by(program, "tupelo.federation.links.wire", "tupelo.space.core") == {
        "tupelo.space.core"
    }


HEAVY = "pydantic", "rich", "typer", "tupelo.lab", "tupelo.pipeline", "tupelo.federation.hosts"


@pytest.mark.parametrize("arguments", [["count", "absent.tupelo"], ["log", "-h"], ["host", "-h"]])
def test_a_command_loads_only_its_own_modules(arguments):
    assert loaded_by(COMMAND.format(arguments=arguments), *HEAVY) == set()


def test_a_command_on_a_file_loads_neither_asyncio_nor_the_federation(tmp_path):
    path = str(tmp_path / "jobs.tupelo")
    tupelo.Space("jobs", path=path).close()
    for arguments in (["count", path], ["write", path, "(1,)"], ["take", path, "(1,)"]):
        program = COMMAND.format(arguments=arguments)
        assert loaded_by(program, *HEAVY, "asyncio", "tupelo.federation") == set()
    with tupelo.Space("jobs", path=path) as space:
        assert [change.kind for change in space.changes()] == ["written", "taken"]


def test_the_list_of_commands_loads_none_of_them():
    program = COMMAND.format(arguments=["-h"])
    assert (
        loaded_by(program, *HEAVY, "msgspec", "sqlite3", "asyncio", "tupelo.apps.spaces") == set()
    )


COMMAND = """
import sys
from tupelo.apps.cli import main
sys.argv = ["tupelo", *{arguments}]
try:
    main()
except SystemExit:
    print()"""


def test_an_entry_of_the_presence_space_is_known_to_a_program_that_did_not_import_its_class():
    written = repr(tupelo.HostPresence(id="1", name="kitchen"))
    program = f"""
import tupelo
from tupelo.values.kind import class_of, kind_named
names = "id", "name", "address", "state", "how", "since"
print(class_of(kind_named("tupelo.host", names, ("tupelo.host",)))("1", "kitchen") == {written})"""
    program = program.replace("HostPresence(", "tupelo.HostPresence(")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_every_public_name_is_found_and_no_other():
    listed = dir(tupelo)
    for name in tupelo.__all__:
        assert getattr(tupelo, name) is not None
        assert name in listed
    assert not hasattr(tupelo, "Spaces")
