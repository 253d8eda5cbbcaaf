"""The commands of `tupelo pipeline` and `tupelo sql`."""
