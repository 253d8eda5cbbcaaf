"""Plots as SVG inside a page: with text, in the colours of the page, without external
references."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import cos, hypot, sin, tau
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
from matplotlib import dates as matplotlib_dates
from matplotlib import ticker as matplotlib_ticker
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_dates: Any = matplotlib_dates  # untyped
_ticker: Any = matplotlib_ticker

SERIES = 6
"""The number of colours; further series repeat them with other markers."""

WIDTH = 5.2
"""Inches. On a phone the whole plot is shown, a quarter smaller."""
_LEAST, _ROW, _EDGE = 1.3, 0.24, 0.8
LABEL_MAX = 30
LEGEND_WIDTH = 75
"""Characters."""
_BETWEEN = " · "
_BEND = 0.18
"""Of an arrow: there is another for the way back."""

_COLOURS = tuple(f"#0000f{number}" for number in range(1, SERIES + 1))
"""Placeholders for the colours of the page."""
_GRID, _PAPER = "#0000fe", "#0000fd"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_STYLES = ("-", "--", "-.", ":")
_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # A name may contain a dollar sign.
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "timezone": "UTC",
}

_CLEANED = (
    (re.compile(r"^.*?(?=<svg)", re.DOTALL), ""),
    (re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL), ""),
    (re.compile(r' xmlns(?::\w+)?="[^"]*"| version="[^"]*"'), ""),
    (re.compile(r'<svg width="[^"]*" height="[^"]*"'), "<svg"),
    (re.compile(r'<g id="[^"]*"'), "<g"),
    (re.compile(r" font-family: [^;\"]*;?"), ""),
    (re.compile(r' transform="rotate\(-0 [^"]*"'), ""),
    (re.compile(r"xlink:href="), "href="),
    (re.compile(r"#000000"), "currentColor"),
    (re.compile(_GRID), "var(--grid)"),
    (re.compile(_PAPER), "var(--paper)"),
    (re.compile(r"#0000f(\d)"), r"var(--series-\1)"),
    (re.compile(r"\s*\n\s*"), "\n"),
)


def bars(
    name: str,
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    axis: str,
    stacked: bool = False,
) -> str:
    """A bar per label and part. Parts that make up a whole can be `stacked`."""
    beside = 1 if stacked else len(parts)
    height = 0.7 / beside
    with matplotlib.rc_context(_LOOK):
        figure, axes = _begun(len(labels) * (1 + beside) / 2, axis)
        left = [0.0] * len(labels)
        for number, (part, values) in enumerate(parts.items()):
            aside = 0.0 if stacked else (number - (beside - 1) / 2) * height
            places = [place + aside for place in range(len(labels))]
            colour = _COLOURS[number % SERIES]
            axes.barh(places, values, left=left, height=height, color=colour, label=part)
            if stacked:
                left = [before + value for before, value in zip(left, values, strict=True)]
        axes.set_xlim(left=0)
        _label_numbers(axes.xaxis)
        _label_rows(axes, labels)
        if len(parts) > 1:
            _add_legend(figure, axes)
        return _svg(figure, name)


def dots(name: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], axis: str) -> str:
    """A row per label with a mark per series, from the smallest to the largest."""
    with matplotlib.rc_context(_LOOK):
        figure, axes = _begun(len(labels), axis)
        columns = list(series.values())
        for place in range(len(labels)):
            row = [column[place] for column in columns]
            axes.plot([min(row), max(row)], [place, place], color=_GRID, linewidth=2, zorder=1)
        for number, (part, values) in enumerate(series.items()):
            axes.plot(
                values,
                range(len(labels)),
                linestyle="none",
                color=_COLOURS[number % SERIES],
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=5,
                label=part,
            )
        _spread(axes, [value for column in columns for value in column])
        _label_rows(axes, labels)
        _add_legend(figure, axes)
        return _svg(figure, name)


def lines(
    name: str,
    times: Sequence[datetime],
    series: Mapping[str, Sequence[float]],
    axis: str,
    steps: bool = False,
) -> str:
    """A line per series, over time; with `steps`, a value holds until the next."""
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        axes = figure.add_subplot()
        places = _dates.date2num(times)
        for number, (part, values) in enumerate(series.items()):
            axes.plot(
                places,
                values,
                color=_COLOURS[number % SERIES],
                linestyle=_STYLES[number % len(_STYLES)],
                marker=_MARKERS[number % len(_MARKERS)] if len(times) <= 30 else None,
                markersize=3.5,
                linewidth=1.3,
                label=part,
                drawstyle="steps-post" if steps else "default",
            )
        axes.set_ylim(bottom=0)
        axes.set_ylabel(axis)
        _label_numbers(axes.yaxis, all(n == int(n) for points in series.values() for n in points))
        _show_times(axes)
        _add_legend(figure, axes)
        return _svg(figure, name)


def intervals(
    name: str,
    axis: str,
    label: str,
    panels: Mapping[str, Mapping[str, Sequence[tuple[Any, float, float, float]]]],
    legend: str = "",
) -> str:
    """A panel for each name, with a line per series. A point has a place on the axis (numbers, or
    texts), a value, and the ends of its interval. `legend` is the title of the legend."""
    points = [one for panel in panels.values() for series in panel.values() for one in series]
    places = list(dict.fromkeys(place for place, *_ in points))
    has_numbers = all(isinstance(place, int | float) for place in places)
    series_max = max(map(len, panels.values()))
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
        (row,) = figure.subplots(1, len(panels), sharey=True, squeeze=False)
        for axes, (title, panel) in zip(row, panels.items(), strict=True):
            axes.set_title(title, fontsize=9)
            for number, (part, series) in enumerate(panel.items()):
                # Texts have no place between them, so that series can stand side by side.
                aside = 0.0 if has_numbers else 0.09 * (number - (series_max - 1) / 2)
                axes.errorbar(
                    [at if has_numbers else places.index(at) + aside for at, *_ in series],
                    [value for _, value, _, _ in series],
                    yerr=[
                        [max(0.0, value - low) for _, value, low, _ in series],
                        [max(0.0, high - value) for _, value, _, high in series],
                    ],
                    color=_COLOURS[number % SERIES],
                    linestyle=_STYLES[number % len(_STYLES)] if has_numbers else "none",
                    marker=_MARKERS[number % len(_MARKERS)],
                    markersize=3.5,
                    linewidth=1.3,
                    capsize=2.5,
                    label=part,
                )
            axes.set_xlabel(axis)
            if not has_numbers:
                axes.set_xticks(range(len(places)), list(map(str, places)))
                axes.set_xlim(-0.6, len(places) - 0.4)
            elif min(places) > 0 and max(places) >= 50 * min(places):
                _make_log(axes, "x", places)
        values = [value for _, value, _, _ in points]
        if min(values) > 0 and max(values) >= 30 * min(values):
            _make_log(row[0], "y", values)
            row[0].set_ylim(bottom=0.5 * min(values))  # An interval may begin at 0.
        elif min(low for _, _, low, _ in points) >= 0:
            row[0].set_ylim(bottom=0)
        row[0].set_ylabel(label)
        if series_max > 1:
            _add_legend(figure, row[0], legend)
        return _svg(figure, name)


def spans(name: str, rows: Mapping[str, Sequence[tuple[datetime, datetime]]]) -> str:
    """A row per label with a bar per span of time."""
    with matplotlib.rc_context(_LOOK):
        figure, axes = _begun(len(rows), "")
        for place, ranges in enumerate(rows.values()):
            begun = [(_dates.date2num(since), _dates.date2num(until)) for since, until in ranges]
            axes.broken_barh(
                [(since, until - since) for since, until in begun],
                (place - 0.35, 0.7),
                facecolors=_COLOURS[0],
            )
            # Also shows short spans.
            axes.plot([since for since, _ in begun], [place] * len(begun), "|", color="#000000")
        _label_rows(axes, list(rows))
        _show_times(axes)
        return _svg(figure, name)


def graph(name: str, arrows: Mapping[tuple[str, str], tuple[int, str]]) -> str:
    """Points on a circle, and arrows between different ones: the wider, the greater their number.
    An arrow is labelled with its number and its text."""
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axis_off()
        axes.set_aspect("equal")
        axes.set_xlim(-1.7, 1.7)
        axes.set_ylim(-1.35, 1.35)
        nodes = sorted({node for pair in arrows for node in pair})
        angles = [tau * number / len(nodes) + tau / 4 for number in range(len(nodes))]
        places = {node: (cos(angle), sin(angle)) for node, angle in zip(nodes, angles, strict=True)}
        most = max(number for number, _ in arrows.values())
        labels: list[tuple[str, tuple[float, float]]] = []
        for (source, target), (number, label) in arrows.items():
            (x, y), (to_x, to_y) = places[source], places[target]
            across, along = to_x - x, to_y - y
            axes.annotate(
                "",
                (to_x, to_y),
                (x, y),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": _COLOURS[0],
                    "linewidth": 0.6 + 2.4 * number / most,
                    "connectionstyle": f"arc3,rad={_BEND}",
                    "shrinkA": 7,
                    "shrinkB": 7,
                },
            )
            # Beside the bend, nearer to the target: labels of both directions stay apart.
            away = _BEND / 2 + 0.14 / hypot(across, along)
            at = x + 0.58 * across + away * along, y + 0.58 * along - away * across
            labels.append((f"{number:,} {label}", at))
        behind = {"facecolor": _PAPER, "edgecolor": "none", "pad": 0.8}
        for text, at in labels:  # Above all arrows.
            axes.annotate(text, at, ha="center", va="center", fontsize=7, bbox=behind)
        for node, (x, y) in places.items():
            axes.plot([x], [y], "o", color=_COLOURS[1], markersize=9)
            side = "left" if x > 0.3 else "right" if x < -0.3 else "center"
            axes.annotate(node, (x * 1.1, y * 1.14), ha=side, va="center")
        return _svg(figure, name)


def shortened(parts: Sequence[str]) -> str:
    """A label of these parts. Names of hosts and agents may be long: the longest are cut."""
    parts = [
        "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in part)
        for part in parts
    ]
    while len(_BETWEEN.join(parts)) > LABEL_MAX:
        longest = max(parts, key=len)
        parts[parts.index(longest)] = longest.removesuffix("…")[:-1] + "…"
        if len(longest) <= 2:
            break
    return _BETWEEN.join(parts)


def _begun(rows: float, axis: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, max(_LEAST, rows * _ROW + _EDGE)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(axis)
    axes.grid(axis="y", visible=False)
    return figure, axes


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)  # The first is on top.


def _spread(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic scale shows long and short values together."""
    if min(values) > 0:
        _make_log(axes, "x", values)


def _make_log(axes: Axes, which: Literal["x", "y"], values: Sequence[float]) -> None:
    axes.set(**{f"{which}scale": "log"})
    scaled = axes.xaxis if which == "x" else axes.yaxis
    steps = (1.0,) if max(values) > 100 * min(values) else (1.0, 2.0, 5.0)
    scaled.set_major_locator(_ticker.LogLocator(subs=steps))
    scaled.set_major_formatter("{x:g}")
    scaled.set_minor_formatter(_ticker.NullFormatter())


def _label_numbers(axis: Any, whole: bool = False) -> None:
    """Few numbers, so that long ones stay apart; 200k and 3M instead of many zeros."""
    axis.set_major_locator(_ticker.MaxNLocator(6, integer=whole, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: _shortest(value))


def _shortest(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= max(size, 1e4):
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _show_times(axes: Axes) -> None:
    locator = _dates.AutoDateLocator(tz=UTC, maxticks=6)
    days, seconds = "%Y-%m-%d", "%H:%M:%S"
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        _dates.ConciseDateFormatter(
            locator,
            tz=UTC,
            formats=["%Y", "%Y-%m", days, "%H:%M", "%H:%M", seconds],
            zero_formats=["", "%Y", "%Y-%m", days, "%H:%M", seconds],
            offset_formats=["", "", "", days, days, days],
        )
    )


def _add_legend(figure: Figure, axes: Axes, title: str = "") -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = LEGEND_WIDTH // (max(map(len, labels)) + 7)  # 7: the line before a label
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=max(1, min(4, columns)),
        title=title or None,
        alignment="left",
    )


def _svg(figure: Figure, name: str) -> str:
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # The reader's browser has the fonts.
        figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    for pattern, instead in _CLEANED:
        svg = pattern.sub(instead, svg)
    # A page has several plots, whose ids must differ.
    svg = re.sub(r' id="', f' id="{name}-', svg)
    return re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", svg)
