"""Search for the number of accelerators that a storage feeds, and for the dataset size that the rules demand."""
