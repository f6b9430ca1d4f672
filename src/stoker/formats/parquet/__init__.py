"""Parquet: shards are row groups, samples are rows, decoding is pyarrow's."""
