"""Spaces at a host elsewhere, at both doors: channels, remote spaces, what they hand out."""
