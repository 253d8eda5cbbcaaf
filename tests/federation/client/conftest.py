"""Both doors of a client, and a host that is told what to say."""

from typing import Any

import pytest

from tests.federation.client.hosting import Hosting
from tests.federation.client.peer import Peer
from tests.laws.doors import Door, LoopThread
from tupelo.federation.client.connect import connect, connect_async


@pytest.fixture(scope="session")
def loop_thread():
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(params=["blocking", "async"])
def dial(request, loop_thread):
    """`dial(url, **options)`: a space at this door."""
    made: list[Any] = []

    def call(url: str, **options: Any) -> Any:
        if request.param == "blocking":
            space: Any = connect(url, **options)
        else:
            space = Door(loop_thread.call(connect_async, url, **options), loop_thread)
        made.append(space)
        return space

    yield call
    for space in made:
        space.close()


@pytest.fixture
def met(dial, peer, later):
    """`met(**options)`: a space, and the line to the host that has it."""

    def meet(**options: Any) -> Any:
        call = later(dial, peer.url, **options)
        line, _ = peer.line()
        return call.result(), line

    return meet


@pytest.fixture
def host():
    hosting = Hosting()
    yield hosting
    hosting.close()
