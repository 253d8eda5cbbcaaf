"""The simulation of spaces that span hosts: `tupelo lab simulate --model federation`."""
