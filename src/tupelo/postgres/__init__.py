"""Spaces on PostgreSQL: one space that many programs on many machines share, with no host between
(docs/decisions/0052)."""
