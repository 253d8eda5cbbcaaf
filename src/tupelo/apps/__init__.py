"""The command line, the tour, and experiments on many hosts."""
