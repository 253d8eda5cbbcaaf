"""Recordings: the logs of a real federation, made while its hosts are killed and its links cut."""
