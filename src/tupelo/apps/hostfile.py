"""The configuration of `tupelo host --config host.toml`: its keys, and errors in the file.

Paths are relative to the folder of the file. Passwords are read from files or the environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import inspect

import tupelo
from tupelo.errors import BadArgument, BadInput
from tupelo.store.sqlite import Durability

PATHS = ("path", "archive", "report")
ORDERS = {
    "fifo": tupelo.Fifo,
    "lifo": tupelo.Lifo,
    "queue": tupelo.Queue,
    "stack": tupelo.Stack,
    "vector": tupelo.Vector,
}
Rule = str | list[str]
T = TypeVar("T", bound=msgspec.Struct)


class AccessTable(msgspec.Struct, forbid_unknown_fields=True):
    """The access rules: "anyone", "local", or identities; and the place of the password."""

    read: Rule = "anyone"
    write: Rule = "anyone"
    take: Rule = "anyone"
    subscribe: Rule = "anyone"
    administer: Rule = "local"
    password_file: str | None = None
    password_env: str | None = None


class KeyTable(msgspec.Struct, forbid_unknown_fields=True):
    """An order of entries by one of their fields."""

    key: str | int
    reverse: bool = False


class CapacityTable(msgspec.Struct, forbid_unknown_fields=True):
    entries: int | None = None
    size_bytes: int | None = None
    evict: Literal["fifo", "lru"] | None = None


class DoubtTable(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float | Literal["forever"] = 30.0
    then: Literal["return", "forget"] = "return"


class SpaceTable(msgspec.Struct, forbid_unknown_fields=True):
    """One space: [spaces.NAME]."""

    capacity: CapacityTable | None = None
    order: Literal["fifo", "lifo", "queue", "stack", "vector"] | KeyTable | None = None
    durability: Durability | None = None
    log_keep: int | Literal["all"] | None = None
    log_reads: bool | None = None
    store: str | None = None
    doubt: DoubtTable | None = None
    access: AccessTable | None = None


class HostTable(msgspec.Struct, forbid_unknown_fields=True):
    """The keys outside [limits], [access] and [spaces.NAME]. Options of the command win."""

    name: str | None = None
    listen: str | None = None
    path: str | None = None
    peers: list[str] | None = None
    discover: bool | None = None
    trust: str | None = None
    local_trust: bool | None = None
    heartbeat: float | None = None
    archive: str | None = None
    store: str | None = None
    console: str | None = None
    console_tls: bool | None = None
    report: str | None = None
    create: bool | None = None
    verbose: bool | None = None


def read_hostfile(file: Path) -> dict[str, Any]:
    """The arguments of `run_host` that the file gives. Raises BadInput, which names the file, the
    line and the key."""
    try:
        text = file.read_text("utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise BadInput(f"--config {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} is no TOML: {error}") from error
    reader = _Reader(file, text)
    limits, access, spaces = (
        reader.table(tables.pop(key, {}), key) for key in ("limits", "access", "spaces")
    )
    top = msgspec.to_builtins(reader.read(tables, HostTable, ""))
    given = {key: value for key, value in top.items() if value is not None}
    for key in PATHS:
        if key in given:
            given[key] = file.parent / given[key]
    if given.get("trust") not in (None, "anyone", "first-use"):
        given["trust"] = str(file.parent / given["trust"])
    if limits:
        given["limits"] = reader.made(lambda: tupelo.Limits(**limits), "limits", limits)
    if access:
        given["access"] = reader.access(reader.read(access, AccessTable, "access"), "access")
    given["spaces"] = {name: reader.space(name, table) for name, table in spaces.items()}
    return given


class _Reader:
    """Reads the tables of one file; its errors name the line and the key."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._text = text

    def table(self, value: Any, section: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error("", section, f"must be a section [{section}]")
        return value

    def read(self, table: Any, kind: type[T], section: str) -> T:
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            said, _, where = str(error).partition(" - at `$")
            keys = re.findall(r"\w+", re.sub(r"\[.*?\]", "", where))  # without places in lists
            expected, got = _type_at(kind, keys), table
            if unknown := re.search(r"unknown field `(.*)`", said):
                known = ", ".join(_keys_of(expected))
                keys.append(unknown[1])
                said = f"is no key of it; the keys are: {known}"
            else:
                for key in keys:
                    got = got[key]
                said = f"must be {_words(expected)}, not {got!r}"
            raise self.error(section, ".".join(keys), said) from None

    def made(self, make: Any, section: str, table: dict[str, Any]) -> Any:
        """The result of a constructor for a table."""
        try:
            return make()
        except BadArgument as error:
            said = str(error).partition("= ")[2]
            raise self.error(section, error.argument, said) from error
        except TypeError as error:
            key = next((key for key in table if repr(key) in str(error)), "")
            raise self.error(section, key, "is no key of it") from error

    def space(self, name: str, value: Any) -> dict[str, Any]:
        """The arguments of `host.space`."""
        section = f"spaces.{name}"
        table = self.read(self.table(value, section), SpaceTable, section)
        options: dict[str, Any] = {}
        for key in ("durability", "log_keep", "log_reads", "store"):
            if (given := getattr(table, key)) is not None:
                options[key] = given
        if table.capacity is not None:
            bounds = msgspec.to_builtins(table.capacity)
            options["capacity"] = self.made(lambda: tupelo.Capacity(**bounds), section, {})
        if isinstance(table.order, KeyTable):
            options["order"] = tupelo.Key(table.order.key, reverse=table.order.reverse)
        elif table.order is not None:
            options["order"] = ORDERS[table.order]()
        if (doubt := table.doubt) is not None:
            seconds = None if doubt.seconds == "forever" else float(doubt.seconds)
            options["doubt"] = tupelo.Doubt(seconds, doubt.then)
        if table.access is not None:
            options["access"] = self.access(table.access, f"{section}.access")
        return options

    def access(self, table: AccessTable, section: str) -> tupelo.Access:
        rules = msgspec.to_builtins(table)
        file, variable = rules.pop("password_file"), rules.pop("password_env")
        if file is not None and variable is not None:
            raise self.error(section, "password_env", "is left out where password_file is given")
        password = None
        if file is not None:
            try:
                password = (self._file.parent / file).read_text().rstrip("\r\n")
            except OSError as error:
                raise self.error(
                    section, "password_file", f"cannot be read: {file}: {error.strerror}"
                ) from error
        elif variable is not None:
            password = os.environ.get(variable)
        if (file or variable) and not password:
            key = "password_file" if file else "password_env"
            raise self.error(section, key, f"must name a password; {file or variable} is empty")
        made: tupelo.Access = self.made(
            lambda: tupelo.Access(**rules, password=password), section, {}
        )
        return made

    def error(self, section: str, key: str, said: str) -> BadInput:
        line = _line_of(self._text, section, key)
        place = f"{self._file}, line {line}" if line else str(self._file)
        inside = f" in [{section}]" if section else ""
        return BadInput(f"{place}: {key}{inside} {said}")


def _type_at(kind: type[msgspec.Struct], keys: list[str]) -> inspect.Type:
    """The type of the value at this place."""
    found = inspect.type_info(kind)
    for key in keys:
        found = next(field.type for field in _table_in(found).fields if field.name == key)
    return found


def _table_in(found: inspect.Type) -> inspect.StructType:
    choices = found.types if isinstance(found, inspect.UnionType) else (found,)
    return next(one for one in choices if isinstance(one, inspect.StructType))


def _keys_of(found: inspect.Type) -> list[str]:
    table = _table_in(found)
    more = ["limits", "access", "spaces"] if table.cls is HostTable else []
    return [field.name for field in table.fields] + more


def _words(found: inspect.Type) -> str:
    """A description of the values of this type, in the words of the file."""
    match found:
        case inspect.UnionType(types=choices):
            given = [one for one in choices if not isinstance(one, inspect.NoneType)]
            return " or ".join(map(_words, given))
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.ListType():
            return "a list of texts"
        case inspect.StructType():
            return f"a table with the keys {', '.join(_keys_of(found))}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType():
            return "a number"
    return "a text"


def _line_of(text: str, section: str, key: str) -> int:
    """The line of a key in a section, or of the section itself; 0 if it is not found."""
    found, current = 0, ""
    last = key.rpartition(".")[2]
    wanted = f"{section}.{key}".strip(".").replace('"', "")
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            current = header[1].replace('"', "").strip()
            found = number if current in (section, wanted) else found
        elif wanted.startswith(current) and re.search(
            rf"(^|[\s{{,.\"]){re.escape(last)}\"?\s*=", line
        ):
            return number
    return found
