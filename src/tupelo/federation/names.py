"""Names of spaces that a host keeps for itself. Programs cannot open spaces named `tupelo.…`."""

PRESENCE = "tupelo.presence"
"""Who is there: entries about hosts, agents and spaces. Everyone may read it."""

DECISIONS = "tupelo.decisions"
"""The outcomes of transactions over several hosts that were decided here."""

RESERVED = "tupelo."
"""How the names begin that no program can give a space."""


def is_reserved(name: str) -> bool:
    """Is it the name of a space that a host keeps for itself, or for a model?"""
    return name.startswith(RESERVED)


def companion_name(kind: str, name: str) -> str:
    """The name of the space in which a model keeps more of this `kind` for the space `name`."""
    return f"{RESERVED}{kind}.{name}"
