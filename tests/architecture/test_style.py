"""The project's rules that no linter knows: sizes, docstrings, purity, pages, portability."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "tupelo"


# Globs below src/tupelo: rules and values, which get time and chance handed in.
PURE = ("space/core*", "values", "store/index*")
IMPURE_MODULES = {"asyncio", "random", "socket", "sqlite3", "threading", "time"}
ALLOWED_FOR_TYPING = {"random"}

PAGES = ("CHANGELOG.md", "docs/ARCHITECTURE.md", "docs/GLOSSARY.md")

# Written in pieces so that this file does not find itself.
FORBIDDEN_TEXT = {
    "an absolute path": re.compile(
        r"(?<![\w.:/~])/" + r"(?:(?:work|root)(?![\w-])|(?:home|Users)/\w)"
    ),
    "a package registry": re.compile(r"py" + r"pi[./-]\w|python" + "hosted", re.IGNORECASE),
    "a package index option": re.compile("index" + "-url"),
}

MODULES = sorted(SOURCE.rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_module_says_what_it_is():
    assert [name(module) for module in MODULES if not ast.get_docstring(parse(module))] == []


def test_every_package_has_an_init():
    packages = {parent for module in PACKAGE.rglob("*.py") for parent in package_parents(module)}
    bare = sorted(name(package) for package in packages if not (package / "__init__.py").exists())
    assert packages, "there is no package below src/"
    assert not bare, f"no __init__.py in {', '.join(bare)}"


@pytest.mark.parametrize("pattern", PURE)
def test_the_core_is_pure(pattern):
    modules = modules_matching(pattern)
    impure = [
        f"{name(module)}:{line} imports {imported}"
        for module in modules
        for line, imported in impure_imports(parse(module))
    ]
    assert modules, f"nothing matches src/tupelo/{pattern}: adjust PURE"
    assert not impure, "\n".join(impure)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_exists(page):
    assert (ROOT / page).is_file()


def test_the_page_of_the_benchmarks_names_every_section():
    (sections,) = [
        [ast.literal_eval(key) for key in node.value.keys if key is not None]
        for node in ast.walk(parse(ROOT / "benchmarks" / "__main__.py"))
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
        if ast.unparse(node.target) == "SECTIONS"
    ]
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text("utf-8")
    assert sections
    assert [section for section in sections if f"`{section}`" not in page] == []


def test_no_text_names_this_machine_or_a_registry():
    found = [
        f"{name(path)}:{number} names {what}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(text_lines(path), start=1)
        for what, pattern in FORBIDDEN_TEXT.items()
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_impure_imports_are_found_wherever_they_hide():
    code = """
import time as t, json
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from random import Random
    import socket
else:
    import random
def late():
    from asyncio.events import get_event_loop
"""
    found = [imported for _, imported in sorted(impure_imports(ast.parse(code)))]
    assert found == ["time", "socket", "random", "asyncio"]


def parse(module: Path) -> ast.Module:
    return ast.parse(module.read_text("utf-8"), filename=name(module))


def package_parents(module: Path) -> list[Path]:
    return [parent for parent in module.parents if parent.is_relative_to(PACKAGE)]


def modules_matching(pattern: str) -> list[Path]:
    found: set[Path] = set()
    for path in PACKAGE.glob(pattern):
        found.update(path.rglob("*.py") if path.is_dir() else [path])
    return sorted(path for path in found if path.suffix == ".py")


def impure_imports(tree: ast.Module) -> list[tuple[int, str]]:
    for_typing = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and is_type_checking(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return [
        (node.lineno, top)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for top in imported_packages(node)
        if top in IMPURE_MODULES and not (node in for_typing and top in ALLOWED_FOR_TYPING)
    ]


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imported_packages(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if node.module and node.level == 0 else []


def project_files() -> list[Path]:
    """What git tracks or would track; a new file is held to the rules before its first commit."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("needs git and a checkout")
    paths = [ROOT / path for path in listed.stdout.decode().split("\0") if path]
    return [path for path in paths if path.is_file()]


def text_lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        return []
