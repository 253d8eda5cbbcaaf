"""Reports: the results of all jobs on a log, as tables and as one page."""
