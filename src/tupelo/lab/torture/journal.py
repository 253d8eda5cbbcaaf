"""Power loss: whether the part of a durable space that is synced to disk is always enough.

A process writes to and takes from a space with durability "full". At random moments it is stopped,
and its files are copied, as a killed process leaves them. A loss of power may also lose data that
was not synced. The writer reports after each operation how many frames of the write-ahead log there
are, which are synced then; later frames are cut off, or overwritten block by block, and the
high-water mark, which is never synced, is reset to its value at that time. Every copy must open,
and have all acknowledged entries and no others. The main file is kept as it is: pages that a
checkpoint writes there are in the synced log as well, so losing them would lose nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

import tupelo
from tupelo.errors import TupeloError
from tupelo.lab.torture.checker import DRAIN, Facts, Violation, check
from tupelo.lab.torture.history import ClientOperation, HistoryLog, TortureHistory, read_history
from tupelo.lab.torture.processes import Command, TortureFailed
from tupelo.lab.torture.round import RoundConfig, RoundResult

WRITER = "writer"
SPACE = "journal"
FILE = "journal.tupelo"
HISTORY = "writer.history"
SYNCED = "synced.jsonl"
BATCH_MAX = 12
PAYLOAD_CHARS_MAX = 3_000
"""Larger than a page, so that some commits have many frames."""
LIVING_MAX = 300
PAUSE_SECONDS_MAX = 0.08
"""The longest time that the process runs before it is stopped again."""
WAL_HEADER = struct.Struct(">IIII8sII")
FRAME_HEADER_BYTES = 24
SALT = slice(16, 24)
BLOCK_BYTES = 4_096


class Synced(msgspec.Struct):
    """What is certainly on disk: so many frames of the log with this salt; the high-water mark on
    disk is this one or an older one."""

    salt: bytes = b""
    frames: int = 0
    mark: bytes = b""


def wal_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def mark_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.high")


def count_frames(wal: bytes | bytearray) -> tuple[bytes, int, int]:
    """The salt of a write-ahead log, how many frames in a row have it, and the size of a frame."""
    if len(wal) < WAL_HEADER.size:
        return b"", 0, 0
    salt = bytes(wal[SALT])
    size = FRAME_HEADER_BYTES + struct.unpack_from(">I", wal, 8)[0]
    count = 0
    for start in range(WAL_HEADER.size, len(wal) - size + 1, size):
        if wal[start + 8 : start + 16] != salt:
            break
        count += 1
    return salt, count, size


# The writer


def write(folder: Path, seed: int) -> None:
    """Write and take, one after the other, until the process is killed."""
    rng = Random(seed)
    file = folder / FILE
    log = HistoryLog(folder / HISTORY)
    synced = os.open(folder / SYNCED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    number = living = 0

    def note() -> None:
        wal, mark = wal_of(file), mark_of(file)
        salt, frames, _ = count_frames(wal.read_bytes() if wal.exists() else b"")
        known = Synced(salt, frames, mark.read_bytes() if mark.exists() else b"")
        os.write(synced, msgspec.json.encode(known) + b"\n")

    with tupelo.Space(SPACE, path=file, durability="full", log_keep=1_000) as space:
        note()
        os.write(1, b"ready\n")
        while True:
            if living < LIVING_MAX and rng.random() < 0.6:
                values = [f"v{number + place}" for place in range(rng.randint(1, BATCH_MAX))]
                number += len(values)
                begun = log.begin(WRITER, "transfer", "journal:value", SPACE, wrote=values)
                begun.doing((), values)
                begun.committing()
                payload = "x" * rng.randint(0, PAYLOAD_CHARS_MAX)
                space.write_all([("value", value, payload) for value in values])
                living += len(values)
                note()
                begun.told()
            else:
                limit = rng.randint(1, 2 * BATCH_MAX)
                begun = log.begin(WRITER, "take", "journal:value", SPACE, many=True)
                taken = space.take_all(("value", str, str), limit=limit)
                living -= len(taken)
                note()
                begun.told(value for _, value, _ in taken)


# The parent


async def stop_and_look(plan: RoundConfig, told: Callable[[float], None]) -> RoundResult:
    plan.folder.mkdir(parents=True, exist_ok=True)
    rng = Random(plan.seed)
    result = RoundResult()
    command = [sys.executable, "-m", __name__, str(plan.folder), str(plan.seed)]
    process = await Command.start(WRITER, command, plan.folder, plan.folder / "home")
    try:
        await process.line()
        began = time.monotonic()
        while not result.violations:
            images = sum(result.faults.values())
            elapsed = time.monotonic() - began
            share = elapsed / plan.seconds if plan.faults is None else images / plan.faults
            told(min(1.0, share))
            if share >= 1.0:
                break
            if not process.running:
                raise TortureFailed("the writer has ended: see writer.log")
            await asyncio.sleep(rng.uniform(0.0, PAUSE_SECONDS_MAX))
            process.pause()
            image = plan.folder / "image"
            try:
                copy_files(plan.folder, image)
            finally:
                process.resume()
            kind = rng.choice(("process killed", "log cut", "log blotted"))
            result.faults[kind] += 1
            lose_power(image, kind, rng)
            result.violations += await asyncio.to_thread(check_image, image)
    finally:
        await process.kill()
    for one in read_history([plan.folder / HISTORY]).operations:
        result.operations[one.outcome] += 1
    return result


def copy_files(folder: Path, image: Path) -> None:
    """Copy the files of the stopped process, synced or not."""
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir()
    file = folder / FILE
    for one in (file, wal_of(file), mark_of(file), folder / HISTORY, folder / SYNCED):
        if one.exists():
            shutil.copyfile(one, image / one.name)


def lose_power(image: Path, kind: str, rng: Random) -> None:
    """Remove data that was not synced from the copy, all of it or parts."""
    if kind == "process killed":
        return
    file = image / FILE
    lines = (image / SYNCED).read_bytes().split(b"\n")[:-1]  # The last line may be incomplete.
    synced = msgspec.json.decode(lines[-1], type=Synced)
    mark_of(file).unlink(missing_ok=True)
    if synced.mark:
        mark_of(file).write_bytes(synced.mark)
    wal = wal_of(file)
    if not wal.exists():
        return
    log = bytearray(wal.read_bytes())
    salt, _, size = count_frames(log)
    # A log that was restarted since then has no acknowledged entries.
    kept = WAL_HEADER.size + (synced.frames * size if salt == synced.salt else 0)
    if kept >= len(log):
        return
    if kind == "log cut":
        wal.write_bytes(log[: rng.randint(kept, len(log))])
        return
    for start in range(kept, len(log), BLOCK_BYTES):
        if rng.random() < 0.5:
            end = min(start + BLOCK_BYTES, len(log))
            log[start:end] = bytes(end - start)
    wal.write_bytes(log)


def check_image(image: Path) -> list[Violation]:
    """Open the copy as after a restart, and compare its entries with the acknowledged ones."""
    history = read_history([image / HISTORY])
    try:
        with tupelo.Space(SPACE, path=image / FILE) as space:
            found = [value for _, value, _ in space.read_all(("value", str, str))]
    except TupeloError as error:
        return [Violation("lost", f"the file does not open: {error}")]
    now = time.monotonic()
    drain = ClientOperation(
        DRAIN, 1, "take", "journal:value", SPACE, now, now, "ok", got=found, many=True
    )
    cut = [  # The operation during which the process was stopped was never acknowledged.
        msgspec.structs.replace(one, client="stopped") if one.outcome == "pending" else one
        for one in history.operations
    ]
    ended = TortureHistory([*cut, drain], {WRITER, DRAIN})
    return check(ended, Facts({SPACE}))


def run_journal(
    plan: RoundConfig, told: Callable[[float], None] = lambda share: None
) -> RoundResult:
    return asyncio.run(stop_and_look(plan, told))


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
