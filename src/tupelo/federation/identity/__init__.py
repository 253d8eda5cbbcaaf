"""Who is who: keys, TLS, whom to trust, who may do what."""
