"""The simulation of LIME: `tupelo lab simulate --model lime`."""
