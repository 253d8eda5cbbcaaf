"""The command `tupelo work`: do the jobs of a queue that a module defines."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from traceback import print_exception
from types import TracebackType

import click

from tupelo.apps.hosting import log_to_stderr
from tupelo.apps.shell import FAILED, clear_errors, complain, examples
from tupelo.errors import BadArgument, TupeloError
from tupelo.queue import JobQueue


@click.command(
    epilog=examples(
        "tupelo work tasks:queue --threads 4",
        "tupelo work tasks:queue --until-empty",
        notes="MODULE is imported from the current directory; QUEUE is a tupelo.queue.JobQueue in"
        " it, with its tasks. SIGTERM and Ctrl-C let each worker finish its job.",
    )
)
@click.argument("queue", metavar="MODULE:QUEUE")
@click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(1), help="Jobs at a time."
)
@click.option(
    "--until-empty",
    is_flag=True,
    help="End when no job is left: none is ready, in hand, or waits for its time.",
)
@click.option(
    "--leave-delayed", is_flag=True, help="With --until-empty: do not wait for delayed jobs."
)
@click.option("-v", "--verbose", is_flag=True, help="Log more than warnings.")
def work(queue: str, threads: int, until_empty: bool, leave_delayed: bool, verbose: bool) -> None:
    """Do the jobs of a queue, until it is stopped."""
    if leave_delayed and not until_empty:
        raise click.UsageError("--leave-delayed needs --until-empty")
    with clear_errors():
        log_to_stderr(verbose)
        found(queue).work(threads, until_empty=until_empty, leave_delayed=leave_delayed)


def found(text: str) -> JobQueue:
    """The queue of this name. BadArgument if there is none."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise BadArgument("queue", "MODULE:QUEUE, such as tasks:queue", text)
    sys.path.insert(0, str(Path.cwd()))
    try:
        queue = getattr(import_module(module), name, None)
    except TupeloError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing in (module.partition(".")[0], module):
            expected = f"a module that is here or installed; there is no {module!r}"
            raise BadArgument("queue", expected, text) from None
        complain(f"the module {module!r} cannot be imported: {type(error).__name__}: {error}")
        print_exception(error.with_traceback(_within_module(error.__traceback__)))
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
