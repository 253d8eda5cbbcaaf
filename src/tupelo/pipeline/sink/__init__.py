"""The format "tupelo" as Spark writes to it: rows become entries, each once."""
