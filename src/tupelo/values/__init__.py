"""What is said: entries, templates, leases, changes, and how they are encoded in bytes."""
