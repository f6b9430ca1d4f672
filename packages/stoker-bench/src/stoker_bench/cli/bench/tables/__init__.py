"""Results of a benchmark on the terminal."""
