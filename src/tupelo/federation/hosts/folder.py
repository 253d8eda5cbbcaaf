"""The folder of a host: the files of its spaces, and which of them its program opens itself."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

from tupelo.errors import BadArgument
from tupelo.federation.names import RESERVED, is_reserved

SPACE_FILE = ".tupelo"
OWN_FILE = ".own"
SPACE_NAME_MAX = 80
"""In bytes: with every one of them encoded as three letters it is still the name of a file."""


class Folder:
    """Where the spaces of one host are kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def file_of(self, name: str) -> Path:
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path / (quote(name, safe="") + SPACE_FILE)

    def claim(self, name: str) -> None:
        """From now on this space is opened by the program of the host alone: it has rules, or
        options, that are not in its file."""
        self.file_of(name).with_suffix(OWN_FILE).touch()

    def is_claimed(self, name: str) -> bool:
        return self.file_of(name).with_suffix(OWN_FILE).exists()

    def names(self) -> list[str]:
        """The spaces that are kept here, and may be opened by whoever asks for them."""
        files = sorted(self._path.glob("*" + SPACE_FILE))
        names = [unquote(file.name.removesuffix(SPACE_FILE)) for file in files]
        return [n for n in names if not (is_reserved(n) or self.is_claimed(n))]

    def file_of_either(self, name: str, former: str) -> Path:
        """The file of a space that a model keeps, or the one that it had under its `former` name,
        which then goes on being used. A file of that name that clients could open is not one."""
        file, before = self.file_of(name), self.file_of(former)
        is_kept = is_reserved(former) or self.is_claimed(former)
        return before if is_kept and before.exists() and not file.exists() else file


def check_space_name(name: object) -> str:
    if not isinstance(name, str) or not name or is_reserved(name):
        expected = f"a text that does not begin with {RESERVED!r}: such spaces are the host's own"
        raise BadArgument("name", expected, name)
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise BadArgument("name", "valid Unicode", name) from None
    if length > SPACE_NAME_MAX:
        raise BadArgument("name", f"a text of at most {SPACE_NAME_MAX} bytes", name[:50])
    return name
