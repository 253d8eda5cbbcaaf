"""Who a host or a client is: an Ed25519 key pair, made on first use and kept in a private file.

The public key, as text, is *the identity*: access rules, lists of known hosts and messages name
a program by it. The private key proves it and never leaves the program.

The package `cryptography` is needed only by those who have an identity; a program that stays on
its own machine need not have one.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tupelo.errors import BadArgument, IdentityUnusable, Stranger
from tupelo.store.filelock import sync_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )


_PREFIX = "ed25519:"
_KEY = re.compile(_PREFIX + "[0-9a-f]{64}")

_MISSING = (
    'an identity needs the package cryptography, which is not here: pip install "tupelo[hosts]"'
)


class Identity:
    """A key pair. Two programs that know each other's `key` recognise each other by it."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public: Ed25519PublicKey = private.public_key()
        self.key = key_text(self.public.public_bytes_raw())

    def __repr__(self) -> str:
        return f"Identity({self.key!r})"

    @classmethod
    def new(cls) -> Self:
        """Create an identity, which is not stored in a file."""
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ImportError as error:
            raise IdentityUnusable(_MISSING) from error
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Self:
        """The identity in this file. If there is no file, create an identity and store it there.

        Programs that start at the same time get the same identity. Raises IdentityUnusable if the
        file is damaged or other users can read it.
        """
        file = Path(path)
        try:
            try:
                return cls._load(file)
            except FileNotFoundError:
                _keep(file, cls.new().private_pem())
                return cls._load(file)  # another program may have been faster: then it is theirs
        except OSError as error:
            raise IdentityUnusable(f"the identity at {path} cannot be used: {error}") from error

    @classmethod
    def _load(cls, path: Path) -> Self:
        with path.open("rb") as file:
            require_private(path, os.fstat(file.fileno()), stat.S_IRWXG | stat.S_IRWXO)
            pem = file.read()
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as error:
            raise IdentityUnusable(_MISSING) from error
        try:
            private = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise IdentityUnusable(
                f"{path} holds no identity that can be read: {error}; bring it back from a copy, "
                "or move it away to get a new identity"
            ) from error
        if not isinstance(private, Ed25519PrivateKey):
            raise IdentityUnusable(
                f"{path} holds a key of another kind; an identity is an Ed25519 key"
            )
        return cls(private)

    def sign(self, data: bytes) -> bytes:
        """The signature of these data, 64 bytes."""
        return self._private.sign(data)

    def draw(self) -> bytes:
        """Random bytes for a key that is used once."""
        return os.urandom(32)

    def agree(self, public: bytes) -> bytes:
        """The secret that this identity shares with the holder of an X25519 key. ValueError if
        everybody would agree on the same with that key.

        It is the same private number that signs, as libsodium derives it too.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import (
            X25519PrivateKey,
            X25519PublicKey,
        )

        number = hashlib.sha512(self._private.private_bytes_raw()).digest()[:32]
        private = X25519PrivateKey.from_private_bytes(number)
        return private.exchange(X25519PublicKey.from_public_bytes(public))

    def private_pem(self) -> bytes:
        """The private key as it is written to a file. Whoever has it is this identity."""
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def verify(key: str, data: bytes, signature: bytes) -> bool:
    """Whether the identity `key` has signed these data. False if `key` is not a valid key."""
    if not is_key(key):
        return False
    try:
        from cryptography.exceptions import InvalidSignature

        _public_key(key).verify(signature, data)
    except ImportError as error:
        raise IdentityUnusable(_MISSING) from error
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=1_024)
def _public_key(key: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(key_bytes(key))


def key_text(public: bytes) -> str:
    """The 32 bytes of a public key as text."""
    return _PREFIX + public.hex()


def key_bytes(key: str) -> bytes:
    """The 32 bytes of an identity."""
    return bytes.fromhex(key.removeprefix(_PREFIX))


def is_key(text: object) -> bool:
    """Whether this is the text of a public key."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


def check_key(text: object, name: str = "key") -> str:
    """The text, if it is an identity; BadArgument that names the argument if not."""
    if not isinstance(text, str) or not is_key(text):
        raise BadArgument(name, f"an identity, {_PREFIX} and 64 digits from 0-9a-f", text)
    return text


def default_folder() -> Path:
    """Where this user's identity and what it remembers of others are kept.

    TUPELO_HOME if it is set; else the folder tupelo among the user's configuration.
    """
    if home := os.environ.get("TUPELO_HOME"):
        return Path(home).expanduser()
    config = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not config.is_absolute():  # the XDG rules: any other is to be ignored
        config = Path.home() / ".config"
    return config / "tupelo"


def make_folder(folder: Path) -> None:
    """Make a folder that is its owner's alone. One that is there already is left as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def require_private(path: Path, status: os.stat_result, forbidden: int) -> None:
    """IdentityUnusable if the file's mode grants any of the forbidden permissions."""
    if not stat.S_ISREG(status.st_mode):
        raise IdentityUnusable(f"{path} is no file")
    # Windows keeps its permissions elsewhere, and shows a mode that means nothing.
    if os.name == "posix" and status.st_mode & forbidden:
        raise IdentityUnusable(
            f"{path} is open to other users (its mode is {stat.S_IMODE(status.st_mode):04o}): "
            f"chmod 600 {path}"
        )


def _keep(path: Path, pem: bytes) -> None:
    """Write the file whole, unless there is one by now."""
    make_folder(path.parent)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # its mode: 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: it never replaces the key that another program has just made.
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        Path(temporary).unlink()
    sync_folder(path.parent)


ID_CHARACTERS = 40
"""The length of the id of a host that has an identity; no other host has an id of this length."""


def require_proved(identity: str | None, host_id: str) -> None:
    """Raise Stranger if a host has an id that belongs to another identity than the proved one."""
    if identity and host_id != id_of(identity):
        raise Stranger(f"a host with the identity {identity} is not {host_id}")
    if not identity and len(host_id) == ID_CHARACTERS:
        raise Stranger(f"that it is {host_id} must be proved, by an identity")


def id_of(key: str) -> str:
    """The id of the host with this identity: a part of its key."""
    return key.removeprefix("ed25519:")[:ID_CHARACTERS]
