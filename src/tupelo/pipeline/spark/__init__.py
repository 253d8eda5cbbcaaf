"""Starting Spark: finding Java, a session that just works, how far it is."""
