"""The spaces of a host: their access rules, and their deliveries in doubt."""
