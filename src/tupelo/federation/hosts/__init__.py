"""A host: its spaces, the agents it serves, the hosts it meets."""
