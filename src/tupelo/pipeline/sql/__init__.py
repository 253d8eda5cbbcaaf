"""SQL on logs: the tables, and the two engines that answer statements."""
