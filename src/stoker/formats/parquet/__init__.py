"""Parquet: shards are row groups, samples are rows, decoding is pyarrow's."""

from stoker.formats.parquet.format import ParquetFormat

__all__ = ["ParquetFormat"]
