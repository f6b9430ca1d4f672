"""The order of token rows, divided among ranks."""
