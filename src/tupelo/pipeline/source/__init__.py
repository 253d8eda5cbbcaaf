"""The format "tupelo" for reading: options, tables, streams and filters."""
