"""Reserved names of spaces, `tupelo.…`, which belong to the host and which programs cannot open."""

PRESENCE = "tupelo.presence"
"""Entries about the hosts, agents and spaces that are there; every client may read it."""

DECISIONS = "tupelo.decisions"
"""The decisions of this host about transactions over several hosts."""

RESERVED = "tupelo."
"""The prefix of reserved names."""


def is_reserved(name: str) -> bool:
    """Whether this space belongs to the host itself, or to a model."""
    return name.startswith(RESERVED)


def companion_name(kind: str, name: str) -> str:
    """The name of the companion space of this `kind` for the space `name`."""
    return f"{RESERVED}{kind}.{name}"
