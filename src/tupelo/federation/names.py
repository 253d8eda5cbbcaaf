"""Names of spaces that a host keeps for itself. Programs cannot open spaces named `tupelo.…`."""

PRESENCE = "tupelo.presence"
"""Who is there: entries about hosts, agents and spaces. Everyone may read it."""

DECISIONS = "tupelo.decisions"
"""The outcomes of transactions over several hosts that were decided here."""
