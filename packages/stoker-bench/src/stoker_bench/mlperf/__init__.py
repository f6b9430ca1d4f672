"""MLPerf Storage: its rules for a run, and the verdict by them."""
