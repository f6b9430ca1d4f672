"""Search for the number of accelerators that a storage feeds."""
