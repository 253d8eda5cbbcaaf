"""The HTML page of a report: one file for any device and screen reader, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tupelo.pipeline.commands.prompt import text_of
from tupelo.pipeline.reports.sections import Headline, Plot, Section, Shown

_NOTHING = Markup('<span aria-label="nothing">–</span>')


def page_of(
    faults: dict[str, int],
    headlines: Sequence[Headline],
    logs: Shown,
    sections: Sequence[Section],
    made_at: datetime,
) -> str:
    """The whole page, which begins with a summary."""
    pages = Environment(
        loader=PackageLoader("tupelo.pipeline", "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    pages.filters |= {"cell": _cell, "drawn": _drawn}
    changes = sum(logs.rows.column("changes").to_pylist())
    subject = f"{_counted(changes, 'change')} in {_counted(logs.rows.num_rows, 'log')}"
    return pages.get_template("page.html").render(
        title=f"What happened: {subject}",
        verdict=verdict_of(faults, subject),
        faults=faults,
        headlines=headlines,
        logs=logs,
        sections=sections,
        made_at=made_at,
    )


def verdict_of(faults: dict[str, int], subject: str) -> str:
    """The summary in plain words."""
    if not faults:
        return f"Sound: no fault in {subject}."
    counts = ", ".join(f"{fault} {times:,}" for fault, times in faults.items())
    return f"Not sound: {_counted(sum(faults.values()), 'fault')} in {subject}: {counts}."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _drawn(plot: Plot) -> Markup:
    """A plot, with its description for those who do not see it."""
    return Markup(plot.svg.replace("<svg", f'<svg role="img" aria-label="{escape(plot.words)}"', 1))


def _cell(value: Any) -> Markup | str:
    """A value for people, with the exact value as an attribute."""
    if value is None:
        return _NOTHING
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        shown = f"{moment:%Y-%m-%d %H:%M:%S}"
        return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(), shown)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return Markup('<data value="{}">{}</data>').format(value, f"{value:,}")
    if isinstance(value, float):
        return Markup('<data value="{}">{}</data>').format(repr(value), f"{value:,.4g}")
    text = text_of(value)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
