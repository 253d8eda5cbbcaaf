"""Company for the tests of hosts: hosts here, at either door, and in processes of their own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.laws.doors import LoopThread
from tupelo.federation.hosts.doors import AsyncHost, Host
from tupelo.federation.hosts.presence import HostPresence, SpacePresence
from tupelo.federation.spanning.handles import FederatedNotices, FederatedSession
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.space.asynchronous import Space, Subscription
from tupelo.space.fetching import FetchingReaction

PATIENCE_SECONDS = 60.0
HEARTBEAT_SECONDS = 1.0  # So that no link is lost on a busy machine.
ASYNC_THINGS = (
    FederatedSpace,
    FederatedSession,
    FederatedNotices,
    FetchingReaction,
    Space,
    Subscription,
)


class Driven:
    """A thing that lives on a loop, used like a blocking one."""

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = self._loop.call(lambda: getattr(self._inner, name))
        if not callable(found):
            return self._wrapped(found)
        return lambda *args, **kwargs: self._wrapped(self._loop.call(found, *args, **kwargs))

    def _wrapped(self, answer: Any) -> Any:
        return Driven(answer, self._loop) if isinstance(answer, ASYNC_THINGS) else answer


class Company:
    """Makes hosts, and sees to it that all of them are gone in the end."""

    def __init__(
        self, loop: LoopThread | None = None, heartbeat: float = HEARTBEAT_SECONDS
    ) -> None:
        self._loop = loop
        self._heartbeat = heartbeat
        self._hosts: list[Any] = []
        self._children: list[ChildHost] = []

    def host(self, name: str, *, space: bool = True, **options: Any) -> Any:
        """A host at loopback, with a space "jobs"."""
        options = {"listen": 0, "heartbeat": self._heartbeat, **options}
        host: Any = Host(name, **options) if self._loop is None else self._driven(name, options)
        self._hosts.append(host)
        if space:
            host.space("jobs")
        return host

    def _driven(self, name: str, options: dict[str, Any]) -> Any:
        assert self._loop is not None
        host = self._loop.call(lambda: AsyncHost(name, **options))
        self._loop.call(host.start)
        return Driven(host, self._loop)

    def child(
        self, name: str, pause: str = "", program: str = "host_child.py", **options: Any
    ) -> ChildHost:
        child = ChildHost({"name": name, **options}, pause, program)
        self._children.append(child)
        return child

    def close(self) -> None:
        for child in self._children:
            child.end()
        for host in self._hosts:
            host.close()


def meet(*hosts: Any) -> None:
    """Every host knows the spaces of every other."""
    for place, host in enumerate(hosts):
        for other in hosts[place + 1 :]:
            host.engage(other.address)
    for host in hosts:
        for other in hosts:
            await_space(host, other.id)


def await_space(host: Any, other_id: str, space: str = "jobs") -> None:
    found = host.presence.read(SpacePresence(space, other_id), wait=PATIENCE_SECONDS)
    assert found is not None, f"{host.name} does not hear of the space"


def await_host(host: Any, other_id: str, state: str) -> HostPresence:
    found = host.presence.read(HostPresence(other_id, state=state), wait=PATIENCE_SECONDS)
    assert found is not None, f"{host.name} does not see it {state}"
    return found  # type: ignore[no-any-return]


class ChildHost:
    """A host in a process of its own; see `host_child`."""

    def __init__(self, options: dict[str, Any], pause: str, program: str = "host_child.py") -> None:
        self.options = options
        path = Path(__file__).with_name(program)
        self._process = subprocess.Popen(
            [sys.executable, str(path), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TUPELO_TEST_PAUSE": pause},
        )
        self._said: dict[Any, queue.SimpleQueue[Any]] = {}
        self._lock = threading.Lock()
        self._numbers = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            _, self.address, self.id = self.hear("ready")
        except BaseException:
            self.end()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self._box(said[1] if said[0] in ("answer", "error") else said[0]).put(said)

    def _box(self, key: Any) -> queue.SimpleQueue[Any]:
        with self._lock:
            return self._said.setdefault(key, queue.SimpleQueue())

    def hear(self, key: Any) -> Any:
        """What it says next of this."""
        try:
            return self._box(key).get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise AssertionError(f"the child did not say {key!r} in time") from None

    def has_said(self, key: Any) -> bool:
        return not self._box(key).empty()

    def wait_for(self, number: int) -> None:
        """Until it has answered this, which stays to be heard."""
        self._box(number).put(self.hear(number))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def megabytes(self) -> int:
        """Its resident memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) // 1024

    def order(self, verb: str, *args: Any) -> int:
        """Begin something; its number, by which `answer` knows it."""
        assert self._process.stdin is not None
        with self._lock:
            self._numbers += 1
            number = self._numbers
        with suppress(BrokenPipeError):  # It is dead, and will not answer.
            self._process.stdin.write((json.dumps([number, verb, args]) + "\n").encode())
            self._process.stdin.flush()
        return number

    def answer(self, number: int) -> Any:
        said = self.hear(number)
        assert said[0] == "answer", said
        return said[2]

    def do(self, verb: str, *args: Any) -> Any:
        return self.answer(self.order(verb, *args))

    def stop(self) -> None:
        """Stop its heart: no process says goodbye so. It has stopped when this returns."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and take in everything that it has said before."""
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_SECONDS)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def port_number(address: str) -> int:
    return int(address.rpartition(":")[2])
