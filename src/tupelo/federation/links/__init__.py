"""Lines to other programs: what is said over them, and how."""
