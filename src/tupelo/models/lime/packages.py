"""Classes of agents in packages: zip files or wheels in a folder, signed by allowed keys.

The owner of a host puts packages there; code is never sent. An agent whose class is not registered
can migrate to the host if a package in the folder has it. A package lists its classes in
`entry_points.txt`, as wheels do (in their `.dist-info`; in a zip file at the top):

    [tupelo.agents]
    Traveller = travelling.agents:Traveller
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from configparser import ConfigParser
from configparser import Error as ConfigError
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path

from tupelo.errors import BadArgument
from tupelo.federation.identity.keys import Identity, check_key, verify

GROUP = "tupelo.agents"
PACKAGE_BYTES_MAX = 64 * 2**20
_SIGNED = b"tupelo agents\0"
_ENDINGS = (".zip", ".whl")

logger = logging.getLogger("tupelo")


def sign_package(path: str | os.PathLike[str], identity: Identity) -> Path:
    """Sign a package. Returns the path of the signature, a file beside it that ends in `.sig`."""
    package = Path(path)
    signature = _signature_of(package)
    signature.write_bytes(identity.sign(_SIGNED + package.read_bytes()))
    return signature


class AgentPackages:
    """The packages in a folder that are signed by one of these keys (`Identity.key`). Their code
    runs with all the rights of this program when an agent of one of their classes comes."""

    def __init__(self, folder: str | os.PathLike[str], keys: Iterable[str]) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise BadArgument("folder", "a folder that exists", folder)
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise BadArgument("keys", "the keys of the allowed signers", keys)
        self.keys = frozenset(check_key(key, "keys") for key in keys)
        self._seen: dict[Path, tuple[object, dict[str, str]]] = {}
        """The classes of each file, with the version of the file and its signature."""

    def find(self, class_name: str) -> object | None:
        """The class of this name in one of the packages; None if there is none. A package that is
        not signed or cannot be read is ignored with a warning."""
        for path in sorted(self.folder.iterdir()):
            if path.suffix in _ENDINGS:
                try:
                    if class_name in self._names(path):
                        return self._load(path, class_name)
                except Exception as error:  # Importing it runs its code.
                    logger.warning("the package %s of agents is not used: %s", path, error)
        return None

    def __repr__(self) -> str:
        return f"<AgentPackages in {str(self.folder)!r}, {len(self.keys)} keys>"

    def _names(self, path: Path) -> dict[str, str]:
        version = tuple(
            (one.st_mtime_ns, one.st_size) for one in (path.stat(), _signature_of(path).stat())
        )
        if path not in self._seen or self._seen[path][0] != version:
            self._seen[path] = version, {}  # It is not read again if it cannot be used.
            self._seen[path] = version, _classes_in(self._verified(path))
        return self._seen[path][1]

    def _verified(self, path: Path) -> bytes:
        """The content of a file; raises ValueError unless one of the keys has signed it."""
        if path.stat().st_size > PACKAGE_BYTES_MAX:
            raise ValueError(f"it has more than {PACKAGE_BYTES_MAX:,} bytes")
        content = path.read_bytes()
        signature = _signature_of(path).read_bytes()
        if not any(verify(key, _SIGNED + content, signature) for key in self.keys):
            raise ValueError("it is not signed by one of the allowed keys")
        return content

    def _load(self, path: Path, class_name: str) -> object:
        """Import a class from a copy of the verified content: the file may change meanwhile."""
        content = self._verified(path)
        module_name, _, attribute = _classes_in(content)[class_name].partition(":")
        copy = _copies() / f"{hashlib.sha256(content).hexdigest()}{path.suffix}"
        if not copy.exists():
            copy.write_bytes(content)
        if str(copy) not in sys.path:
            sys.path.append(str(copy))  # last, so that it replaces no module of this program
        module = import_module(module_name)
        if not str(module.__file__).startswith(f"{copy}{os.sep}"):
            raise ValueError(
                f"this program has another module {module_name!r} already; if it is of an earlier "
                "version of the package, start the program anew"
            )
        return getattr(module, attribute)


@cache
def _copies() -> Path:
    """The folder for copies of imported packages; only this program can write there."""
    folder = tempfile.mkdtemp(prefix="tupelo-agents-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _signature_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sig")


class _EntryPoints(ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr  # as it is written: names of classes have capitals


def _classes_in(content: bytes) -> dict[str, str]:
    """The names of the classes in a package, and their modules."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        for name in archive.namelist():
            folder, _, file = name.rpartition("/")
            if file == "entry_points.txt" and (not folder or folder.endswith(".dist-info")):
                config = _EntryPoints(delimiters=("=",), interpolation=None)
                try:
                    config.read_string(archive.read(name).decode())
                except ConfigError as error:
                    raise ValueError(f"its {name} cannot be read: {error}") from error
                return dict(config[GROUP]) if config.has_section(GROUP) else {}
    return {}
