"""Groups: the hosts that reach each other, directly or through others, and their agreed
membership."""
