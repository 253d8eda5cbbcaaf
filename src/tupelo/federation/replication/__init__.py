"""Replication: copies of what one host has written, at other hosts, in its order and without holes."""
