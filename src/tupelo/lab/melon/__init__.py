"""Simulating MELON: hosts that part and crash, processes that exchange messages, and a judge."""
