"""Parquet files: row groups are shards, rows are samples."""

from stoker.formats.parquet.format import ParquetFormat

__all__ = ["ParquetFormat"]
