"""Logs: in files, sealed in archives, at hosts elsewhere, and what a location stands for."""
