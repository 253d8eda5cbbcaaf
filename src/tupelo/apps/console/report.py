"""The report of the pipeline, as a page of the console.

The report is a page of its own, with its own styles, so the console shows it in a frame that may
run nothing. A frame cannot send the token: the API gives out an address that holds for a while.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tupelo.apps.console.gateway import Handles
from tupelo.errors import BadArgument

FILE = "report.html"
ADDRESS = "/report/"
ADDRESSES_MAX = 100
SECONDS = 300.0
HEADERS = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ReportPage:
    """The report in a folder that `tupelo pipeline report --to FOLDER` writes; there may be none
    yet."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE
        self._addresses: Handles[Path] = Handles("report", ADDRESSES_MAX, SECONDS, False)

    def address(self) -> dict[str, Any] | None:
        """Where the page is for the next minutes, and when it was written; None without report."""
        if self._file is None or not self._file.is_file():
            return None
        key, _ = self._addresses.add(self._file)
        return {"page": f"{ADDRESS}{key}", "time": self._file.stat().st_mtime}

    def page(self, path: str) -> bytes | None:
        """The page at an address that still holds."""
        try:
            return self._addresses.get(path.removeprefix(ADDRESS)).read_bytes()
        except (BadArgument, OSError):
            return None
