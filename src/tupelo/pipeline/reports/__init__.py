"""A report: what all jobs say of a log, as tables and as one page."""
