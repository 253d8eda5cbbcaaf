"""Logs in files, sealed in archives, and at other hosts."""
