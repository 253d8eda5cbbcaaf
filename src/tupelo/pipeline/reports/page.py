"""The HTML page of a report: one file for any device and screen reader, which loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from tupelo.pipeline.commands.prompt import text_of, values
from tupelo.pipeline.reports.sections import Plot, Section, Shown

if TYPE_CHECKING:
    import pyarrow as pa

_STYLE = """\
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fdfdfb; --dim: #59636e; --grid: #d5d9dd;
  --sound: #14632f; --sound-paper: #e4f4e8; --faulty: #97180c; --faulty-paper: #fdeae7;
  --series-1: #1f6fb2; --series-2: #b85a00; --series-3: #2c7a3f; --series-4: #8a3d97;
  --series-5: #a8264a; --series-6: #4f6670; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --paper: #15191d; --dim: #a3acb5;
  --grid: #3a424a; --sound: #8fdca6; --sound-paper: #163321; --faulty: #ffb0a3;
  --faulty-paper: #43160f; --series-1: #6db6f2; --series-2: #f0a04b; --series-3: #7fcb8f;
  --series-4: #d499e0; --series-5: #f58ba8; --series-6: #a9bcc6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 58rem; padding: 1rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.5rem 0 0.25rem; }
p { margin: 0.5rem 0; max-width: 44rem; }
a { color: var(--series-1); }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; padding: 0; list-style: none; }
nav a { display: inline-block; padding: 0.25rem 0; }
.verdict { padding: 0.75rem 1rem; border-left: 0.4rem solid; font-size: 1.1rem; }
.sound { color: var(--sound); background: var(--sound-paper); }
.faulty { color: var(--faulty); background: var(--faulty-paper); }
.about, caption, figcaption, footer { color: var(--dim); }
figure { margin: 1rem 0; max-width: 40rem; }
figcaption { font-size: 0.875rem; }
svg { display: block; width: 100%; height: auto; }
svg * { stroke-linejoin: round; }
svg text { fill: currentColor; font-family: system-ui, sans-serif; }
.wide { overflow-x: auto; margin: 1rem 0; }
.wide:focus-visible { outline: 2px solid var(--series-1); }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0.25rem 0; }
th, td { padding: 0.25rem 0.75rem 0.25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--grid); max-width: 16rem; overflow-wrap: anywhere; }
th { white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
time { white-space: nowrap; }
footer { margin-top: 3rem; font-size: 0.875rem; }
@media print { .wide { overflow: visible; } nav { display: none; } }
"""

_NOTHING = '<span aria-label="nothing">–</span>'


def page_of(
    faults: dict[str, int], logs: Shown, sections: Sequence[Section], made_at: datetime
) -> str:
    """The whole page, which begins with a summary."""
    changes, number = sum(logs.rows.column("changes").to_pylist()), logs.rows.num_rows
    subject = f"{_counted(changes, 'change')} in {_counted(number, 'log')}"
    title = f"What happened: {subject}"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    links = "".join(f'<li><a href="#{part.name}">{escape(part.name)}</a></li>' for part in sections)
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_STYLE}</style>",
        "</head>",
        "<body>",
        "<header>",
        f"<h1>{escape(title)}</h1>",
        _verdict(faults, subject),
        f'<nav aria-label="Sections"><ul><li><a href="#logs">logs</a></li>{links}</ul></nav>',
        "</header>",
        "<main>",
        '<section id="logs" aria-labelledby="logs-title">',
        '<h2 id="logs-title">What was read</h2>',
        *_table(logs, "logs-1"),
        "</section>",
    ]
    for section in sections:
        lines += _section(section)
    made = made_at.astimezone(UTC)
    lines += [
        "</main>",
        f"<footer><p>Made by Tupelo at {_time(made)}. The tables are beside this page, as Parquet;"
        " all times are UTC.</p></footer>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def verdict_of(faults: dict[str, int], subject: str) -> str:
    """The summary in plain words."""
    if not faults:
        return f"Sound: nothing in {subject} says what cannot be."
    counts = ", ".join(f"{fault} {times:,}" for fault, times in faults.items())
    return f"Not sound: {_counted(sum(faults.values()), 'fault')} in {subject}: {counts}."


def _verdict(faults: dict[str, int], subject: str) -> str:
    kind = "faulty" if faults else "sound"
    return f'<p class="verdict {kind}"><strong>{escape(verdict_of(faults, subject))}</strong></p>'


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _section(section: Section) -> Iterator[str]:
    name = escape(section.name)
    yield f'<section id="{name}" aria-labelledby="{name}-title">'
    yield f'<h2 id="{name}-title">{escape(section.title)}</h2>'
    if section.about:
        yield f'<p class="about">{escape(section.about)}</p>'
    if section.plot is not None:
        yield from _figure(section.plot)
    rows = [shown for shown in section.tables if shown.rows.num_rows]
    for number, shown in enumerate(rows, 1):
        yield from _table(shown, f"{name}-{number}")
    if not rows:
        yield "<p>There is nothing of this in these logs.</p>"
    yield "</section>"


def _figure(plot: Plot) -> Iterator[str]:
    yield "<figure>"
    words = escape(plot.words)
    yield plot.svg.replace("<svg", f'<svg role="img" aria-label="{words}"', 1)
    yield f'<figcaption aria-hidden="true">{words}</figcaption>'
    yield "</figure>"


def _table(shown: Shown, name: str) -> Iterator[str]:
    """A table wider than the screen scrolls by itself, also by keyboard."""
    numeric = [_is_number(field.type) for field in shown.rows.schema]
    yield f'<div class="wide" role="region" aria-labelledby="{name}" tabindex="0">'
    yield f'<table>\n<caption id="{name}">{escape(shown.caption)}</caption>'
    heads = zip(shown.rows.column_names, numeric, strict=True)
    cells = "".join(
        f'<th scope="col"{_class(number)}>{escape(head.replace("_", " "))}</th>'
        for head, number in heads
    )
    yield f"<thead><tr>{cells}</tr></thead>\n<tbody>"
    for row in values(shown.rows):
        cells = "".join(
            f"<td{_class(number)}>{_cell(value)}</td>"
            for value, number in zip(row, numeric, strict=True)
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody>\n</table>\n</div>"


def _is_number(kind: pa.DataType) -> bool:
    return str(kind).startswith(("int", "double", "float", "decimal"))


def _class(number: bool) -> str:
    return ' class="number"' if number else ""


def _cell(value: Any) -> str:
    """A value for people, with the exact value as an attribute."""
    if value is None:
        return _NOTHING
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<data value="{value}">{value:,}</data>'
    if isinstance(value, float):
        return f'<data value="{value!r}">{value:,.4g}</data>'
    return escape(_printable(text_of(value)))


def _time(moment: datetime) -> str:
    moment = moment.astimezone(UTC)
    return f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S}</time>'


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
