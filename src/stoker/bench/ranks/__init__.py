"""The processes of a benchmark, started, joined and stopped together."""
