"""How large a dataset a benchmark needs."""
