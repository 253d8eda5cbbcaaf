"""Connections to other programs: frames, messages, calls, handshake."""
