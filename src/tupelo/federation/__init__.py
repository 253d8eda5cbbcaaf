"""Clients, hosts, and operations over several hosts."""
