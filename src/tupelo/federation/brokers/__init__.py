"""Brokers: publish, subscribe and collect, on the tree of a group."""
