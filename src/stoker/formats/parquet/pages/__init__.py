"""Pages of a Parquet column chunk, decoded to arrays."""
