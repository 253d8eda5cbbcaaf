"""What `make bench` measures: every line a ratio of two things measured in the same run."""
