"""The footer of a Parquet file: schema, row groups, statistics."""
