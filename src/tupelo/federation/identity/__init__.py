"""Identities: keys, TLS, trust, access rules and encrypted messages."""
