"""How a space finds and keeps entries: an index in memory, and a journal on disk."""
