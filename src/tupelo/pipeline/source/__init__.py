"""The format "tupelo" as Spark reads it: options, tables, streams, and what is passed over."""
