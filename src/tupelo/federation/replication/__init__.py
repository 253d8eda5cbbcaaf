"""Replication: copies of what a host has written, at other hosts, in order and without holes."""
