"""Statements: which ones only read, and how they are written for each engine."""

from __future__ import annotations

import re

_QUESTION = re.compile(
    r"[\s(]*(select|with|from|values|table|show|describe|desc|explain)\b", re.IGNORECASE
)
_QUOTED = re.compile(
    r"\br'[^']*' | \br\"[^\"]*\" | '(?:[^'\\]|\\.)*' | \"(?:[^\"\\]|\\.)*\""
    r" | `(?:[^`]|``)*` | --[^\r\n]* | /\*.*?\*/",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""Strings, quoted names and comments, as Spark reads them."""
_WRITING = re.compile(r"\b(insert|update|delete|merge|reflect|try_reflect|java_method)\b", re.I)
"""Words that write within a query, or call something other than SQL."""
_OPEN = re.compile(r"['\"`]|/\*")
"""What begins a quotation or a comment."""
_TABLES = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
_DESCRIBE = re.compile(
    r"\s*desc(?:ribe)?\s+(?:table\s+)?(?:`((?:[^`]|``)+)`|([\w.]+))\s*;?\s*", re.IGNORECASE
)


def is_question(statement: str) -> bool:
    """Whether the statement only reads. Statements that write are refused here."""
    plain = _QUOTED.sub(" ", statement)
    return _QUESTION.match(plain) is not None and _WRITING.search(plain) is None


def is_complete(text: str) -> bool:
    """Whether the text ends a statement: with a semicolon, outside of quotes and comments."""
    plain = _QUOTED.sub(lambda found: "" if _is_comment(found[0]) else "x", text)
    return plain.rstrip().endswith(";") and _OPEN.search(plain) is None


def on_one_line(statement: str) -> str:
    """The statement without comments and line breaks, for a history."""
    plain = _QUOTED.sub(lambda found: " " if _is_comment(found[0]) else found[0], statement)
    return " ".join(plain.split("\n")).strip()


def _is_comment(token: str) -> bool:
    return token.startswith(("--", "/*"))


def asks_for_tables(statement: str) -> bool:
    return _TABLES.fullmatch(statement) is not None


def described_table(statement: str) -> list[str] | None:
    """The parts of the name of a table that is to be described."""
    found = _DESCRIBE.fullmatch(statement)
    if found is None:
        return None
    return [found[1].replace("``", "`")] if found[1] else found[2].split(".")


def as_duckdb(statement: str) -> str:
    """With names in backticks in double quotes."""
    return _QUOTED.sub(lambda found: _quoted(found[0]), statement)


def _quoted(token: str) -> str:
    if not token.startswith("`"):
        return token
    name = token[1:-1].replace("``", "`").replace('"', '""')
    return f'"{name}"'
