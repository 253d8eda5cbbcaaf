"""Simulating LIME: groups that merge and part, agents that move, reactions, and a judge."""
