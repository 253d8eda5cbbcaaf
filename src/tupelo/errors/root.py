"""The root of all errors."""

from __future__ import annotations


class TupeloError(Exception):
    """The root: catch this to catch everything that Tupelo raises."""
