"""Plain values: entries, templates, leases and changes, and their encoding in bytes."""
