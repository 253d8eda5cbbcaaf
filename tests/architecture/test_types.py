"""What a type checker sees: a typed program passes, and every method has its parameters."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tupelo
from tests.architecture import typed_program
from tupelo import aio

ROOT = Path(__file__).parents[2]
PROGRAM = Path("tests", "architecture", "typed_program.py")
PACKAGES = ("values", "space", "federation", "models")
ANYTHING = '"def (*Any, **Any) -> Any"'


def mypy(*arguments: object) -> str:
    run = [sys.executable, "-m", "mypy", *map(str, arguments)]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=280).stdout


def test_a_typed_program_is_accepted():
    assert mypy("--strict", PROGRAM).startswith("Success")


def test_the_typed_program_runs():
    with tupelo.Host("shop", listen="127.0.0.1:0") as host:
        for name in ("elsewhere", "other"):
            host.space(name)
        typed_program.kinds_of_space(host)
        typed_program.linda_doors(host.space("linda"))
        typed_program.java_spaces()

    async def play() -> None:
        async with aio.Host("shop", listen="127.0.0.1:0") as host:
            for name in ("elsewhere", "other"):
                host.space(name)
            await typed_program.async_kinds_of_space(host)
            await typed_program.async_linda_doors(host.space("linda"))
            await typed_program.async_java_spaces()

    asyncio.run(play())


def methods() -> Iterator[tuple[str, str]]:
    """The public methods of all public classes, each with its module."""
    for package in PACKAGES:
        top = importlib.import_module(f"tupelo.{package}")
        for info in pkgutil.walk_packages(top.__path__, top.__name__ + "."):
            for kind in vars(importlib.import_module(info.name)).values():
                if not inspect.isclass(kind) or kind.__module__ != info.name:
                    continue
                for name, method in vars(kind).items():
                    if inspect.isfunction(method) and "_" not in (kind.__name__[0], name[0]):
                        yield info.name, f"{info.name}.{kind.__qualname__}.{name}"


def test_no_public_method_takes_and_returns_anything(tmp_path):
    found = dict.fromkeys(methods())
    assert len(found) > 1_000
    modules = dict.fromkeys(module for module, _ in found)
    shown = tmp_path / "shown.py"
    lines = [f"import {module}" for module in modules]
    first = len(lines) + 1
    shown.write_text("\n".join([*lines, *(f"reveal_type({name})" for _, name in found)]))
    told = [line for line in mypy(shown).splitlines() if "Revealed type" in line]
    assert len(told) == len(found)
    names = [name for _, name in found]
    anything = [line for line in told if line.endswith(ANYTHING)]
    assert [names[int(line.split(":")[1]) - first] for line in anything] == []
