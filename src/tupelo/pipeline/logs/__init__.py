"""Logs: in files, sealed in archives, at hosts elsewhere."""
