"""Replication: copies of entries at other hosts, in the order of their source and without gaps."""
