"""A program for the tests that kill: threads write, take and move entries of a space, until stdin
ends. Each notes in a file what it begins and what was acknowledged, one line for each."""

import itertools
import os
import sys
import threading
from typing import Any

import tupelo
from tupelo.errors import PeerLost

url, name, path = sys.argv[1:4]
note_file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
is_over = threading.Event()


def note(*words: object) -> None:
    """What is written here outlives this program."""
    os.write(note_file, (" ".join(map(str, words)) + "\n").encode())


def write(space: Any, me: str) -> None:
    for n in itertools.count():
        note("write", me, n)
        if n % 5:
            space.write(("job", me, n))
        else:
            space.write_all([("job", me, n)] + [("extra", me, 10 * n + i) for i in range(8)])
        note("wrote", me, n)
        yield_to_others()


def take(space: Any, me: str) -> None:
    template: Any
    for n in itertools.count():
        template = ("job", str, int) if n % 3 else ("job", str, tupelo.Between(0, 10**9))
        note("take", me)
        found = space.take(template, wait=0.2)
        note("took", me, *(found or ("nothing",)))
        yield_to_others()


def move(space: Any, me: str) -> None:
    """Take in a transaction that also writes what it took."""
    while True:
        with space.transaction() as txn:
            found = space.take(("job", str, int), wait=0.2, txn=txn)
            if found is not None:
                space.write(("moved", *found[1:]), txn=txn)
        if found is not None:
            note("moved", *found[1:])
        yield_to_others()


def transfer(space: Any, me: str) -> None:
    for n in itertools.count():
        with space.transaction() as txn:
            one = space.take(("account", int, int), wait=0.2, txn=txn)
            other = space.take(("account", int, int), wait=0.2, txn=txn)
            if one is not None and other is not None:
                space.write(("account", one[1], one[2] - n % 7), txn=txn)
                space.write(("account", other[1], other[2] + n % 7), txn=txn)
            elif one is not None:
                space.write(one, txn=txn)
        note("transferred", me)
        yield_to_others()


class Over(Exception):
    pass


def yield_to_others() -> None:
    if is_over.wait(0.002):
        raise Over


def run(work: Any, space: Any, me: str) -> None:
    while not is_over.is_set():
        try:
            work(space, me)
        except Over:
            return
        except PeerLost as lost:
            if lost.in_doubt or work in (write, take):
                note("error", me, repr(lost))
                return
        except BaseException as error:
            note("error", me, repr(error))
            raise


with tupelo.connect(url, reconnect=300) as space:
    threads = [
        threading.Thread(target=run, args=(work, space, f"{name}-{work.__name__}"))
        for work in (write, take, move, transfer)
    ]
    note("connected")
    for thread in threads:
        thread.start()
    sys.stdin.read()
    is_over.set()
    for thread in threads:
        thread.join()
