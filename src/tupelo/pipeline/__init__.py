"""The change log on Spark: its schema, its archive, and the data source `tupelo`."""
