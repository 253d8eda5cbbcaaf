"""The ids of hosts: of one that has an identity it is a part of its key, which must be proved."""

from __future__ import annotations

from tupelo.errors import Stranger

ID_CHARACTERS = 40
"""Of the id of a host that has an identity; no other has an id of this length."""


def require_proved(identity: str | None, host_id: str) -> None:
    """Stranger, if a host gives itself an id that it has not proved to be its own."""
    if identity and host_id != id_of(identity):
        raise Stranger(f"a host with the identity {identity} is not {host_id}")
    if not identity and len(host_id) == ID_CHARACTERS:
        raise Stranger(f"that it is {host_id} must be proved, by an identity")


def id_of(key: str) -> str:
    """The id of the host that has this identity."""
    return key.removeprefix("ed25519:")[:ID_CHARACTERS]
