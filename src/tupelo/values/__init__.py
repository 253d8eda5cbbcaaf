"""What is said: entries, templates, leases, changes, and how they are spelled in bytes."""
