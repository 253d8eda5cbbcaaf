"""Private names stay in their package: nobody reads another package's insides."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tupelo"

ROOMS = ("federation", "models", "lab", "pipeline")
"""Their packages are packages of their own, each with its insides."""

NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}

STANDARD_LIBRARY = {
    "_exit",  # os: leave at once, as a killed process does
    "_is_owned",  # threading.RLock: does this thread have it?
    "_run",  # asyncio.Handle, for an event loop of our own
}
"""Private only by their names, of modules of Python itself."""


def package_of(module: Path) -> str:
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] in ROOMS and len(parts) > 2:
        return f"{parts[0]}.{parts[1]}"
    return parts[0]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLES


def defined(tree: ast.AST) -> Iterator[str]:
    """The private names that a module gives to its own things."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Constant(value=str() as name) if is_private(name):  # in __slots__
                yield name


def used(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The private names that it uses of other things, and in which line."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                yield name, node.lineno
            case ast.ImportFrom(names=names, module=module) if (module or "").startswith("tupelo"):
                for alias in names:
                    if is_private(alias.name):
                        yield alias.name, node.lineno


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_package_uses_private_names_of_another(modules):
    own: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules.items():
        own[package_of(path)].update(name for name in defined(tree) if is_private(name))
    foreign = [
        f"{path.relative_to(ROOT).as_posix()}:{line} {name}"
        for path, tree in modules.items()
        for name, line in used(tree)
        if name not in own[package_of(path)] and name not in STANDARD_LIBRARY
    ]
    assert not foreign, "\n" + "\n".join(foreign)
