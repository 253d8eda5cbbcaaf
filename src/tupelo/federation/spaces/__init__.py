"""The spaces of a host: access rules and deliveries in doubt."""
