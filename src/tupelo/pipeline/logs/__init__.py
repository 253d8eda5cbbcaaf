"""Logs in files, sealed in archives, in databases, and at other hosts."""
