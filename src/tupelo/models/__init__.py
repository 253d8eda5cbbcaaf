"""Doors: other people's words for the same engine, one file each."""
