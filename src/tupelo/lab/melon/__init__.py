"""The simulation of MELON: `tupelo lab simulate --model melon`."""
