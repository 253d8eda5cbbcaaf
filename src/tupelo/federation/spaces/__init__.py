"""The spaces of a host: each with its rules, and what is in doubt at them."""
