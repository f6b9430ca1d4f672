"""MLPerf Storage: its rules for a run, and the directory tree of a submission, written and checked."""
