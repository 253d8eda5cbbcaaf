"""Transactions over several hosts, and who decides them."""
