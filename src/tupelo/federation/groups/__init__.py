"""Groups: all hosts that reach each other, also through others, and agree on who they are."""
