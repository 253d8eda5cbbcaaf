"""What people run: the command line, and the tour."""
