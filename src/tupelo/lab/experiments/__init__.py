"""The experiments that come with Tupelo, each a file that `tupelo lab run` runs."""
