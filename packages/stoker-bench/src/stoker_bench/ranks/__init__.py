"""Processes of a benchmark: started, connected to each other and stopped together."""
