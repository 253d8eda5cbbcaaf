"""Torture: real processes behind links that fail, and a checker of what their clients were told."""
