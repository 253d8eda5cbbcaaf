"""The command `tupelo work`: run a worker of a queue that a module defines."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from socket import gethostname
from traceback import format_exception
from types import TracebackType

import click

from tupelo.apps.hosting import log_to_stderr
from tupelo.apps.shell import FAILED, clear_errors, complain, examples
from tupelo.errors import BadArgument, BadInput, TupeloError, without_password
from tupelo.federation.client.connect import name_connections
from tupelo.queue import JobQueue


@click.command(
    epilog=examples(
        "tupelo work tasks:queue --threads 4",
        "tupelo work tasks:queue --until-empty",
        notes="MODULE is a Python module in the current directory; QUEUE is a tupelo.queue.JobQueue"
        " with tasks in this module. After SIGTERM or Ctrl-C, each thread finishes its job first.",
    )
)
@click.argument("queue", metavar="MODULE:QUEUE")
@click.option(
    "--threads",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of jobs at the same time.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Name of this worker in lists and logs of hosts. Default: HOST-PID.",
)
@click.option(
    "--until-empty",
    is_flag=True,
    help="End when no job is ready, in hand or delayed.",
)
@click.option(
    "--leave-delayed", is_flag=True, help="With --until-empty: do not wait for delayed jobs."
)
@click.option("-v", "--verbose", is_flag=True, help="Log messages below warnings too.")
def work(
    queue: str,
    threads: int,
    name: str | None,
    until_empty: bool,
    leave_delayed: bool,
    verbose: bool,
) -> None:
    """Run a worker of a job queue, until Ctrl-C."""
    if leave_delayed and not until_empty:
        raise click.UsageError("--leave-delayed needs --until-empty")
    with clear_errors():
        log_to_stderr(verbose)
        name = name or f"{gethostname()}-{os.getpid()}"
        name_connections(name)
        jobs = found(queue)
        name = getattr(jobs.space, "label", name)  # The module may have given another.
        tasks = ", ".join(jobs.tasks) or "no tasks"
        complain(f"{name} does the jobs of {jobs.name!r} in {jobs.space!r}: {tasks}")
        jobs.work(threads, until_empty=until_empty, leave_delayed=leave_delayed)


def found(text: str) -> JobQueue:
    """The queue of this name. Raises BadArgument if there is none."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise BadArgument("queue", "a module and a queue in it, such as tasks:queue", text)
    sys.path.insert(0, str(Path.cwd()))
    try:
        queue = getattr(import_module(module), name, None)
    except TupeloError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing in (module.partition(".")[0], module):
            raise BadInput(f"there is no module {module!r}, neither here nor installed") from None
        complain(f"the module {module!r} cannot be imported: {type(error).__name__}: {error}")
        error.with_traceback(_within_module(error.__traceback__))
        sys.stderr.write(without_password("".join(format_exception(error))))
        sys.exit(FAILED)
    if not isinstance(queue, JobQueue):
        raise BadArgument("queue", f"the name of a JobQueue in {module}", text)
    return queue


def _within_module(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the imported module."""
    ours = (__file__, import_module.__code__.co_filename)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in ours and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace
