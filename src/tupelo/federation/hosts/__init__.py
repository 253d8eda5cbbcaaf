"""A host: its spaces, its clients, its peers, discovery and services."""
