"""The parts of templates as programs use them, in place of a field's value.

To a type checker each is Any, so that `Job(name=ANY, size=Between(1, 5))` is accepted whatever the
types of the fields. At run time they are the classes of `tupelo.values.parts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    ANY: Any
    """Matches every value; as a whole template, every entry."""

    def Between(low: Any, high: Any) -> Any:  # noqa: N802
        """A value of the bounds' type from `low` to `high`, both included."""

    def Exactly(cls: type) -> Any:  # noqa: N802
        """A value of exactly this type, subclasses excluded."""

    def Not(part: Any) -> Any:  # noqa: N802
        """A value that does not match."""

    def OneOf(*choices: Any) -> Any:  # noqa: N802
        """A value that matches one of the choices: values, types or parts."""

    def Prefix(text: str) -> Any:  # noqa: N802
        """A str that begins with this text."""

    def Suffix(text: str) -> Any:  # noqa: N802
        """A str that ends with this text."""

    def Regex(text: str) -> Any:  # noqa: N802
        """A str that matches this regular expression of RE2 as a whole (`fullmatch`)."""

    def Where(function: Callable[[Any], Any]) -> Any:  # noqa: N802
        """A value for which the function is true."""
else:
    from tupelo.values.parts import (
        ANY,
        Between,
        Exactly,
        Not,
        OneOf,
        Prefix,
        Regex,
        Suffix,
        Where,
    )

__all__ = ["ANY", "Between", "Exactly", "Not", "OneOf", "Prefix", "Regex", "Suffix", "Where"]
